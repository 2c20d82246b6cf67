//! The seconds of programs and tests, and those of the last run.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::job::Outcome;
use crate::report::ALL;

pub(crate) struct Seconds {
    file: &'static str,
    last: HashMap<String, f64>,
}

impl Seconds {
    /// Reads what the last run has kept, a name and its seconds a line.
    pub(crate) fn read(file: &'static str) -> Seconds {
        let text = fs::read_to_string(file).unwrap_or_default();
        let of_line = |line: &str| {
            let (name, seconds) = line.split_once('\t')?;
            Some((name.to_owned(), seconds.parse().ok()?))
        };
        Seconds { file, last: text.lines().filter_map(of_line).collect() }
    }

    /// Returns seconds as text, with the difference to the last run.
    pub(crate) fn text(&self, name: &str, seconds: f64) -> String {
        match self.last.get(name) {
            Some(last) => format!("{seconds:6.1} s {:+6.1} s", seconds - last),
            None => format!("{seconds:6.1} s         "),
        }
    }

    /// Keeps the seconds of this run beside those of programs that did not run. `whole`: the seconds of a run of all
    /// programs.
    pub(crate) fn write(&self, outcomes: &[Outcome], whole: Option<f64>) {
        let mut all = self.last.clone();
        all.extend(whole.map(|seconds| (ALL.to_owned(), seconds)));
        for outcome in outcomes {
            // A part of a program says nothing of it.
            all.extend(whole.map(|_| (outcome.job.clone(), outcome.seconds)));
            let tests = outcome.tests.iter();
            all.extend(tests.map(|(name, seconds)| (format!("{} {name}", outcome.job), *seconds)));
        }
        let mut lines: Vec<_> = all.iter().map(|(name, seconds)| format!("{name}\t{seconds:.3}\n")).collect();
        lines.sort();
        let _ = fs::create_dir_all(Path::new(self.file).parent().unwrap_or(Path::new(".")));
        if let Err(error) = fs::write(self.file, lines.concat()) {
            println!("{}: {error}", self.file);
        }
    }
}
