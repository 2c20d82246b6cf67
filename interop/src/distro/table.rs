//! The table of outcomes: a line for each use of a program, a column for each release and port.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::Outcome;
use crate::rows::PortKind;

/// Collects outcomes.
#[derive(Debug, Default)]
pub struct Table {
    /// Uses, in order.
    uses: Vec<String>,
    /// Releases in order, with their package versions.
    releases: Vec<(String, Vec<String>)>,
    cells: BTreeMap<(String, String, String), Outcome>,
    /// Remarks on cells.
    notes: Vec<String>,
}

/// The columns of a release.
const PORTS: [PortKind; 2] = [PortKind::Xdp, PortKind::Udp];

impl Table {
    /// Makes a table with these lines.
    pub fn new(uses: Vec<String>) -> Table {
        Table { uses, ..Table::default() }
    }

    /// Adds the columns of a release with these package versions.
    pub fn release(&mut self, name: &str, packages: Vec<String>) {
        self.releases.push((name.to_owned(), packages));
    }

    /// Records an outcome.
    pub fn add(&mut self, release: &str, port: PortKind, line: &str, outcome: &Outcome) {
        self.cells.insert((release.to_owned(), port.to_string(), line.to_owned()), outcome.clone());
    }

    /// Adds a line below the table.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// True if something passed and nothing failed.
    pub fn good(&self) -> bool {
        let fails = self.cells.values().any(|outcome| matches!(outcome, Outcome::Fail(_)));
        !fails && self.cells.values().any(|outcome| *outcome == Outcome::Pass)
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        for (name, packages) in &self.releases {
            writeln!(text, "{name}: {}", packages.join(", "))?;
        }
        let first = self.uses.iter().map(String::len).max().unwrap_or(0);
        let width = |name: &str| name.len().max(10);
        write!(text, "\n{:first$}", "")?;
        for (name, _) in &self.releases {
            write!(text, "  {name:<w$}", w = width(name))?;
        }
        write!(text, "\n{:first$}", "")?;
        for (name, _) in &self.releases {
            write!(text, "  {:<w$}", "xdp   udp", w = width(name))?;
        }
        for line in &self.uses {
            write!(text, "\n{line:first$}")?;
            for (name, _) in &self.releases {
                let cells =
                    PORTS.map(|port| match self.cells.get(&(name.clone(), port.to_string(), line.clone())) {
                        Some(Outcome::Pass) => "pass",
                        Some(Outcome::Skip(_)) => "skip",
                        Some(Outcome::Fail(_)) => "FAIL",
                        None => "-",
                    });
                write!(text, "  {:<w$}", format!("{:<6}{}", cells[0], cells[1]), w = width(name))?;
            }
        }
        text.push('\n');
        let mut below = Vec::new();
        for ((release, port, line), outcome) in &self.cells {
            match outcome {
                Outcome::Pass => {}
                Outcome::Skip(why) => below.push(format!("skip {release} {port} {line}: {why}")),
                Outcome::Fail(why) => below.push(format!("FAIL {release} {port} {line}: {why}")),
            }
        }
        below.extend(self.notes.iter().cloned());
        if !below.is_empty() {
            write!(text, "\n{}\n", below.join("\n"))?;
        }
        // Strip trailing spaces.
        for line in text.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::SkipReason;

    #[test]
    fn table_has_all_cells_and_reasons() {
        let mut table = Table::new(vec!["rping/cm".into(), "fio".into()]);
        table.release("trixie", vec!["fio 3.39-1".into()]);
        table.add("trixie", PortKind::Xdp, "rping/cm", &Outcome::Pass);
        assert!(table.good());
        table.add("trixie", PortKind::Udp, "rping/cm", &Outcome::Skip(SkipReason::ProgramMissing));
        table.add("trixie", PortKind::Xdp, "fio", &Outcome::Fail("it hung".into()));
        assert!(!table.good());
        let wanted = "trixie: fio 3.39-1\n\n          trixie\n          xdp   udp\nrping/cm  pass  skip\nfio       FAIL  -\n\n\
                      skip trixie udp rping/cm: program-missing\nFAIL trixie xdp fio: it hung\n";
        let mut lines: Vec<_> = table.to_string().lines().map(str::to_owned).collect();
        let mut expected: Vec<_> = wanted.lines().map(str::to_owned).collect();
        lines[6..].sort();
        expected[6..].sort();
        assert_eq!(lines, expected);
    }

    #[test]
    fn table_without_a_pass_is_not_good() {
        assert!(!Table::new(vec!["a".into()]).good());
    }
}
