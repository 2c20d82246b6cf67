//! What profiles of adapters say of checks, and a target that is expected to do the same.

use std::sync::LazyLock;

use roxie_conform_bench::check::Check;
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::verdict::Verdict;
use roxie_options::profile::{Class, Evidence, ProfileError, ProfileFile, names};
use roxie_report::output;
use toml::Value;

use super::Ended;

/// A field of profiles, and the checks that an adapter with this field breaks: whole names, or beginnings that end with
/// a slash.
type Prediction = (&'static str, &'static [&'static str]);

const PREDICTIONS: [Prediction; 3] = [
    ("responder.range", &["rc/rights/fault_in_later_packet"]),
    (
        "cnp.on_nak",
        &["rc/ahead/", "xrc/ahead/", "rc/nak/repeated_after_gap_again", "rc/rnr/sequence_nak_after_wait"],
    ),
    // Timeouts below 16 count as 16, and a retry of 0 as another number. That of 14 may be the first point's.
    (
        "timer.mode",
        &[
            "rc/timeout/code_15",
            "rc/timeout/code_16",
            "rc/timeout/retry_count_0",
            "rc/timeout/retry_count_1",
            "rc/timeout/retry_count_3",
            "cm/reply/retry_count",
        ],
    ),
];

/// Returns why an adapter breaks a check, as far as its profile says so.
fn breaks<'a>(file: &'a ProfileFile, check: &str) -> Option<&'a Evidence> {
    let is_meant = |name: &&str| if name.ends_with('/') { check.starts_with(*name) } else { check == *name };
    let (field, _) = PREDICTIONS.iter().find(|(_, checks)| checks.iter().any(is_meant))?;
    let has_floor = file.get("timer.floor").and_then(Value::as_integer) >= Some(16);
    let is_set = |value: &Value| *value != Value::Boolean(false) && (*field != "timer.mode" || has_floor);
    file.fields.get(*field).filter(|field| is_set(&field.value))?.evidence.as_ref()
}

/// Returns the adapters that break this check as well, with the class of evidence.
fn alike(check: &str) -> impl Iterator<Item = (&'static str, Class)> {
    static FILES: LazyLock<Vec<ProfileFile>> =
        LazyLock::new(|| names().filter_map(|name| ProfileFile::find(name).ok()).collect());
    FILES.iter().filter_map(move |file| Some((file.name.as_str(), breaks(file, check)?.class)))
}

/// Notes in a broken check which adapters are known to break it too.
pub(super) fn annotate(outcome: &mut Outcome) {
    if outcome.verdict == Verdict::Breaks {
        outcome.adapters = alike(&outcome.name).map(|(name, class)| words(name, class)).collect();
    }
}

fn words(name: &str, class: Class) -> String {
    match class {
        Class::Measured | Class::Captured => format!("as {name} does ({})", class.word()),
        Class::Documented | Class::Said | Class::Inferred => {
            format!("as {name} is said to do ({})", class.word())
        }
    }
}

/// A profile to compare the target with.
#[derive(Debug)]
pub(super) struct Expected(ProfileFile);

impl Expected {
    /// Reads a profile by its name, or from a file.
    pub(super) fn find(name: &str) -> Result<Expected, ProfileError> {
        ProfileFile::find(name).map(Expected)
    }

    /// Refuses checks of which the profile says nothing.
    pub(super) fn check(&self, checks: &[Check]) -> Result<(), Ended> {
        match checks.iter().any(|check| breaks(&self.0, &check.name).is_some()) {
            true => Ok(()),
            false => Err(Ended(
                super::USAGE,
                format!(
                    "profile {} says nothing of the chosen checks: see `roxie profile show`",
                    self.0.name
                ),
            )),
        }
    }

    /// Prints where the target differs from the profile. Returns true if it does not, and an error if no check was run
    /// of which the profile says something.
    pub(super) fn compare(&self, outcomes: &[Outcome]) -> Result<bool, Ended> {
        let name = &self.0.name;
        let tested = outcomes.iter().filter(|outcome| outcome.verdict != Verdict::NotTested);
        let (mut like, mut other, mut silent) = (0, 0, 0);
        for outcome in tested {
            let is_broken = outcome.verdict == Verdict::Breaks;
            match breaks(&self.0, &outcome.name) {
                None => silent += u32::from(is_broken),
                Some(_) if is_broken => like += 1,
                Some(Evidence { class, who, src }) => {
                    other += 1;
                    output::line(format_args!(
                        "not as {name}: {} is kept; {name} breaks it ({} on {who}; {src})",
                        outcome.name,
                        class.word()
                    ))?;
                }
            }
        }
        if like + other == 0 {
            return Err(Ended(
                super::CANNOT_RUN,
                format!("no check was run of which profile {name} says something"),
            ));
        }
        output::line(format_args!(
            "{name}: {like} of {} checks end as its profile says; {silent} more are broken, of which it says nothing",
            like + other
        ))?;
        Ok(other == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_name_checks_and_fields() {
        let checks = roxie_conform_bench::checks::all();
        for (field, predicted) in PREDICTIONS {
            assert!(roxie_options::profile::FIELDS.iter().any(|(known, ..)| *known == field), "{field}");
            for name in predicted {
                let is_there = checks.iter().any(|check| match name.ends_with('/') {
                    true => check.name.starts_with(name),
                    false => check.name == *name,
                });
                assert!(is_there, "{name}");
            }
        }
    }

    #[test]
    fn broken_check_names_adapters_by_evidence() {
        let said = |check| alike(check).map(|(name, class)| words(name, class)).collect::<Vec<_>>();
        assert_eq!(said("rc/rights/fault_in_later_packet"), ["as cx5 does (measured)"]);
        assert_eq!(
            said("rc/timeout/code_15"),
            ["as cx5 is said to do (inferred)", "as cx6 does (measured)", "as cx6-20.40 does (measured)"]
        );
        assert_eq!(said("rc/valid/send_only").len(), 0);
    }
}
