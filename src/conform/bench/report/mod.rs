//! Reports of a run: JSON, JUnit, a page, text, and the differences of two runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::run::Outcome;
use crate::verdict::Verdict;

mod diff;
mod html;
mod junit;

pub use diff::{Change, diff};
pub use html::page;
pub use junit::junit;

/// Version of the report's format.
const FORMAT: u32 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format, 1. Older releases call it `format`.
    #[serde(alias = "format")]
    pub version: u32,
    /// Version of the bench.
    pub bench: String,
    /// Address of the target.
    pub target: String,
    /// Address of the bench.
    pub from: String,
    /// How the bench reached the link: `raw` or `socket`.
    pub access: String,
    /// Seconds since the Unix epoch at the start.
    pub started: u64,
    /// Words of agent and device about themselves.
    pub device: BTreeMap<String, String>,
    /// Outcomes, in the order of the run.
    pub checks: Vec<Outcome>,
}

impl Report {
    /// Returns a report without outcomes.
    pub fn new(target: String, from: String, access: &str, device: BTreeMap<String, String>) -> Report {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Report {
            version: FORMAT,
            bench: env!("CARGO_PKG_VERSION").into(),
            target,
            from,
            access: access.into(),
            started: started.as_secs(),
            device,
            checks: Vec::new(),
        }
    }

    /// Reads a report that was written as JSON.
    ///
    /// # Errors
    /// If the text is no report, or one of another format.
    pub fn read(json: &str) -> Result<Report, String> {
        let report: Report = serde_json::from_str(json).map_err(|e| format!("no report of a run: {e}"))?;
        if report.version != FORMAT {
            return Err(format!("a report of version {}, known is {FORMAT}", report.version));
        }
        Ok(report)
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the number of checks with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|outcome| outcome.verdict == verdict).count()
    }

    /// Returns chapters in their order, each with the numbers of its verdicts, as in [`Verdict::ALL`].
    pub fn chapters(&self) -> Vec<(&str, [usize; 4])> {
        let mut chapters: Vec<(&str, [usize; 4])> = Vec::new();
        for outcome in &self.checks {
            let at = chapters.iter().position(|(name, _)| *name == outcome.chapter).unwrap_or_else(|| {
                chapters.push((&outcome.chapter, [0; 4]));
                chapters.len() - 1
            });
            let verdict = Verdict::ALL.iter().position(|verdict| *verdict == outcome.verdict).unwrap_or(0);
            chapters[at].1[verdict] += 1;
        }
        chapters
    }

    /// Returns one line: `209 keep, 2 break, 1 lenient, 4 not tested`.
    pub fn summary(&self) -> String {
        let [keeps, breaks, lenient, not_tested] = Verdict::ALL.map(|verdict| self.count(verdict));
        format!("{keeps} keep, {breaks} break, {lenient} lenient, {not_tested} not tested")
    }

    /// Returns the device in words: name, firmware, kernel.
    pub fn device_in_words(&self) -> String {
        let word = |key: &str| self.device.get(key).map_or("?", String::as_str);
        format!("{} (firmware {}, Linux {})", word("device"), word("fw"), word("kernel"))
    }
}

/// Escapes text for HTML and XML. Characters that XML does not have are replaced.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
