//! The report of a run: a line per row while it runs, and `report.json` afterwards, which names the peer and its
//! versions.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::peer::About;
use crate::skip::SkipReason;

/// The outcome of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All expectations were met.
    Pass,
    /// An expectation was not met; the reason, with the numbers.
    Fail(String),
    /// The row does not apply here.
    Skip(SkipReason),
}

/// `report.json`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    peer: &'a About,
    rows: Vec<Entry>,
}

/// A row of `report.json`.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    name: String,
    result: &'static str,
    reason: String,
    seconds: f64,
}

/// Collects outcomes and compares them with the expected rows.
#[derive(Debug)]
pub struct Report {
    peer: About,
    expected: Vec<String>,
    entries: Vec<Entry>,
}

/// Number of rows by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows that passed.
    pub pass: usize,
    /// Rows that failed.
    pub fail: usize,
    /// Rows that were skipped, each with its reason.
    pub skip: usize,
    /// Rows that were expected and never reported.
    pub missing: usize,
}

impl Totals {
    /// True if the run is good: at least one row passed, none failed, none is missing.
    pub fn good(&self) -> bool {
        self.pass > 0 && self.fail == 0 && self.missing == 0
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { pass, fail, skip, missing } = self;
        write!(f, "{pass} passed, {fail} failed, {skip} skipped, {missing} missing")
    }
}

impl Report {
    /// Makes a report for a run of these rows against a peer.
    pub fn new(peer: About, expected: Vec<String>) -> Report {
        Report { peer, expected, entries: Vec::new() }
    }

    /// Records a row's outcome and prints its line.
    pub fn add(&mut self, name: &str, outcome: &Outcome, took: Duration) {
        let (result, reason) = match outcome {
            Outcome::Pass => ("pass", String::new()),
            Outcome::Fail(reason) => ("fail", reason.clone()),
            Outcome::Skip(reason) => ("skip", reason.to_string()),
        };
        self.entries.push(Entry { name: name.to_owned(), result, reason, seconds: took.as_secs_f64() });
        println!("{}", self.line());
    }

    /// Returns the line of the latest entry: `[ 12/980] pass   0.043 s  name`.
    fn line(&self) -> String {
        let Some(Entry { name, result, reason, seconds }) = self.entries.last() else {
            return String::new();
        };
        let (done, of) = (self.entries.len(), self.expected.len());
        let separator = if reason.is_empty() { "" } else { ": " };
        format!("[{done:>4}/{of}] {result} {seconds:>7.3} s  {name}{separator}{reason}")
    }

    /// Returns the expected rows without an entry.
    pub fn missing(&self) -> Vec<&str> {
        let reported = |name: &&String| self.entries.iter().any(|e| e.name == **name);
        self.expected.iter().filter(|name| !reported(name)).map(String::as_str).collect()
    }

    /// Returns the skipped rows, with their reasons.
    pub fn skips(&self) -> impl Iterator<Item = (&str, &str)> {
        let skipped = self.entries.iter().filter(|e| e.result == "skip");
        skipped.map(|e| (e.name.as_str(), e.reason.as_str()))
    }

    /// Returns the number of rows by outcome.
    pub fn totals(&self) -> Totals {
        let count = |result: &str| self.entries.iter().filter(|e| e.result == result).count();
        Totals {
            pass: count("pass"),
            fail: count("fail"),
            skip: count("skip"),
            missing: self.missing().len(),
        }
    }

    /// Writes `report.json`: `peer` (`device`, `kernel`, `rdma_core`, `active_mtu`, `atomics`) and `rows`, each with
    /// `name`, `result` (pass, fail, skip), `reason`, `seconds`. A missing row counts as failed.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut entries = self.entries.clone();
        entries.extend(self.missing().into_iter().map(|name| Entry {
            name: name.to_owned(),
            result: "fail",
            reason: "missing: the run ended before it".into(),
            seconds: 0.0,
        }));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        let json = serde_json::to_string_pretty(&Document { peer: &self.peer, rows: entries })
            .map_err(std::io::Error::other);
        json.and_then(|json| fs::write(path, json + "\n")).map_err(Error::file(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreported_row_makes_the_run_bad() {
        let mut report = Report::new(About::default(), vec!["a".into(), "b".into()]);
        report.add("a", &Outcome::Pass, Duration::from_millis(5));
        assert_eq!(report.missing(), ["b"]);
        assert!(!report.totals().good());
        report.add("b", &Outcome::Skip(SkipReason::PeerHasNoAtomics), Duration::ZERO);
        assert!(report.totals().good());
    }

    #[test]
    fn run_without_a_pass_is_not_good() {
        let mut report = Report::new(About::default(), vec!["a".into()]);
        report.add("a", &Outcome::Skip(SkipReason::PortUnavailable), Duration::ZERO);
        assert!(!report.totals().good());
    }

    #[test]
    fn the_line_of_a_failure_gives_its_reason() {
        let mut report = Report::new(About::default(), vec!["a".into()]);
        report.add("a", &Outcome::Fail("byte 7 is 0x00".into()), Duration::from_millis(43));
        assert_eq!(report.line(), "[   1/1] fail   0.043 s  a: byte 7 is 0x00");
    }
}
