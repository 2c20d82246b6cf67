//! Differences of two runs.

use super::Report;
use crate::verdict::Verdict;

/// A check with another verdict; `None` where a run does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the check.
    pub name: String,
    /// Verdict in the first run.
    pub before: Option<Verdict>,
    /// Verdict in the second run.
    pub after: Option<Verdict>,
    /// The target's reaction in the second run.
    pub came: String,
}

impl Change {
    /// True if the second run breaks what the first did not.
    pub fn is_worse(&self) -> bool {
        self.after == Some(Verdict::Breaks) && self.before != Some(Verdict::Breaks)
    }

    /// Returns one line: `rc/duplicate/send_only: keeps -> breaks`.
    pub fn words(&self) -> String {
        let word = |verdict: Option<Verdict>| verdict.map_or("absent", Verdict::words);
        format!("{}: {} -> {}", self.name, word(self.before), word(self.after))
    }
}

/// Returns the checks with other verdicts, in the order of the second run, then those that it lacks.
pub fn diff(before: &Report, after: &Report) -> Vec<Change> {
    let verdict = |report: &Report, name: &str| {
        report.checks.iter().find(|outcome| outcome.name == name).map(|outcome| outcome.verdict)
    };
    let gone = before.checks.iter().filter(|outcome| verdict(after, &outcome.name).is_none());
    let changes = after.checks.iter().map(|outcome| Change {
        name: outcome.name.clone(),
        before: verdict(before, &outcome.name),
        after: Some(outcome.verdict),
        came: outcome.came.clone(),
    });
    let gone = gone.map(|outcome| Change {
        name: outcome.name.clone(),
        before: Some(outcome.verdict),
        after: None,
        came: String::new(),
    });
    changes.chain(gone).filter(|change| change.before != change.after).collect()
}
