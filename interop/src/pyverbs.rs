//! rdma-core's own Python tests on rdma_rxe in the guest, for the column of rxe in `tests/verbs/pyverbs.txt`.
//!
//! The tests and the runner are those of `tests/verbs/pyverbs.rs`, which runs them on Roxie. Here they run with the
//! host's Python, in a guest that sees the host's files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::network::run;
use crate::peer::Peer;

/// Timeout of the tests, which take about 20 s on an idle host.
const WITHIN: Duration = Duration::from_secs(110);
/// Index of the guest's IPv4 GID.
const GID_INDEX: &str = "1";
/// Positions of a table line's words: the test, and its result on rdma_rxe (1 is the one on Roxie).
const NAME: usize = 0;
const RXE: usize = 2;

/// Returns the workspace's folder, which the guest sees at the same path below `/host`.
fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Returns the path of the table.
pub fn table_path() -> PathBuf {
    workspace().join("tests/verbs/pyverbs.txt")
}

/// Returns what this host lacks to run the tests, or `None`.
pub fn host_lacks() -> Option<String> {
    let pyverbs = Path::new("/usr/lib/python3/dist-packages/pyverbs");
    (!pyverbs.is_dir()).then(|| "python3-pyverbs is not installed (.ci/setup test)".into())
}

/// Runs the tests in a guest that sees the host's files. Returns the result of each, by name: `pass`, `skip` or `fail`.
///
/// # Errors
/// If the tests are not available or do not end.
pub fn outcomes(peer: &mut Peer) -> Result<BTreeMap<String, String>, Error> {
    let sources = run(&mut Command::new(workspace().join(".ci/rdma-core-tests")))?;
    let runner = workspace().join("tests/verbs/run_pyverbs.py").display().to_string();
    let device = peer.about().device.clone();
    let words = ["/host", "/usr/bin/python3", &runner, sources.trim(), &device, GID_INDEX];
    let job = peer.spawn("chroot", &words.map(str::to_owned))?;
    let ended = peer.wait(job, WITHIN)?;
    let outcomes: BTreeMap<String, String> = ended.output.lines().filter_map(outcome).collect();
    if ended.code == Some(0) {
        return Ok(outcomes);
    }
    let last: Vec<&str> = ended.output.lines().rev().take(3).collect();
    Err(Error::Guest(format!("the Python tests did not end well ({:?}): {}", ended.code, last.join(" / "))))
}

/// Parses a line of the runner: test, result, reason. `None` for other output of the tests.
fn outcome(line: &str) -> Option<(String, String)> {
    let mut words = line.split(' ');
    let (name, outcome) = (words.next()?, words.next()?);
    let known = name.starts_with("tests.") && ["pass", "skip", "fail"].contains(&outcome);
    known.then(|| (name.to_owned(), outcome.to_owned()))
}

/// Returns the table with rxe's column replaced by `found`. A test that is not in `found` keeps its word.
pub fn with_column(table: &str, found: &BTreeMap<String, String>) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.splitn(RXE + 2, ' ').collect();
        if let Some(outcome) = words.first().and_then(|name| found.get(*name))
            && words.len() > RXE
        {
            words[RXE] = outcome;
        }
        words.join(" ") + "\n"
    };
    table.lines().map(line).collect()
}

/// Returns the rank of a result: pass is best; a missing result is worst.
fn rank(outcome: &str) -> usize {
    ["fail", "skip", "pass"].iter().position(|known| *known == outcome).map_or(0, |rank| rank + 1)
}

/// Returns the differences between the column and `found`: `test: found instead of expected`, and true if the result is
/// worse.
pub fn differences(table: &str, found: &BTreeMap<String, String>) -> Vec<(String, bool)> {
    let mut differences = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, expected) = (words[NAME], words.get(RXE).copied().unwrap_or_default());
        let got = found.get(name).map_or("nothing", String::as_str);
        if got != expected {
            differences.push((format!("{name}: {got} instead of {expected}"), rank(got) < rank(expected)));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# made by hand\ntests.a.b pass fail\ntests.a.c skip pass no such thing here\n";

    #[test]
    fn a_column_is_replaced_and_all_else_stays() {
        let outcomes = ["tests.a.b pass", "tests.a.c skip for a reason", "# tests.a.d", "a print"];
        let outcomes: BTreeMap<String, String> = outcomes.into_iter().filter_map(outcome).collect();
        assert_eq!(outcomes.len(), 2);
        assert_eq!(
            differences(TABLE, &outcomes),
            [
                ("tests.a.b: pass instead of fail".to_owned(), false),
                ("tests.a.c: skip instead of pass".to_owned(), true)
            ]
        );
        let table = with_column(TABLE, &outcomes);
        assert_eq!(table, "# made by hand\ntests.a.b pass pass\ntests.a.c skip skip no such thing here\n");
        assert!(differences(&table, &outcomes).is_empty());
    }

    #[test]
    fn a_test_that_did_not_run_differs() {
        assert_eq!(
            differences("tests.a.b pass pass\n", &BTreeMap::new()),
            [("tests.a.b: nothing instead of pass".to_owned(), true)]
        );
    }
}
