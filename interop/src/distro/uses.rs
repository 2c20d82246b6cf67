//! Uses of programs in each release: those of the matrix, with Roxie at both ends, and some single commands.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use crate::error::Error;
use crate::pyverbs;
use crate::rows::{self, Family, Program};

/// A use of a program.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// A program of the matrix.
    Row(Program),
    /// A command line: alone, or the same at both ends, with the server's address appended to the client's.
    Line(&'static Line),
    /// rdma-core's own Python tests, of the release's rdma-core.
    Python,
}

/// A use that consists of one command line.
#[derive(Debug)]
pub struct Line {
    /// Its name in the table.
    name: &'static str,
    /// The command line.
    line: &'static str,
    /// The TCP port of its server; `None` if there is no server.
    pub port: Option<u16>,
    /// Text in the output that shows success.
    shows: &'static str,
    /// UCX's transport, for `ucx_perftest`.
    ucx: Option<&'static str>,
}

const fn alone(name: &'static str, line: &'static str, shows: &'static str) -> Line {
    Line { name, line, port: None, shows, ucx: None }
}

const fn ucx(name: &'static str, transport: &'static str, line: &'static str) -> Line {
    Line { name, line, port: Some(13337), shows: "Final:", ucx: Some(transport) }
}

const fn fabric(name: &'static str, line: &'static str) -> Line {
    Line { name, line, port: Some(47592), shows: "=50", ucx: None }
}

static LINES: [Line; 14] = [
    alone("ibv_devices", "ibv_devices", "roxie0"),
    alone("ibv_devinfo", "ibv_devinfo -v", "PORT_ACTIVE (4)"),
    alone("rdma/dev", "rdma dev", "0: roxie0: node_type ca"),
    alone("rdma/link", "rdma link", "link roxie0/1 state ACTIVE"),
    alone("rdma/resource", "rdma resource show", "0: roxie0: pd 0"),
    alone("ucx_info", "ucx_info -d", "Transport: rc_verbs"),
    alone("fi_info", "fi_info -p verbs", "domain: roxie0"),
    ucx("ucx_perftest/rc/tags", "rc_v", "ucx_perftest -n 200 -w 20 -t tag_lat -s 64"),
    ucx("ucx_perftest/rc/rendezvous", "rc_v", "ucx_perftest -n 200 -w 20 -t tag_bw -s 100000"),
    ucx("ucx_perftest/rc/put", "rc_v", "ucx_perftest -n 200 -w 20 -t ucp_put_bw -s 5000"),
    ucx("ucx_perftest/rc/get", "rc_v", "ucx_perftest -n 200 -w 20 -t ucp_get -s 5000"),
    ucx("ucx_perftest/ud/tags", "ud_v", "ucx_perftest -n 200 -w 20 -t tag_lat -s 64"),
    fabric("fi_pingpong/rdm", "env FI_VERBS_GID_IDX=1 fi_pingpong -p verbs -e rdm -I 50 -S 64 -c"),
    fabric("fi_pingpong/dgram", "env FI_VERBS_GID_IDX=1 fi_pingpong -p verbs -e dgram -I 50 -S 64 -c"),
];

/// The runner of the Python tests, in a release's folder.
const RUNNER: &str = "/roxie/tests/verbs/run_pyverbs.py";
/// Path of the tests below the release's folder, on the host.
pub const PYTHON_TESTS: &str = "root/srv/rdma-core/tests/run_tests.py";

/// Name parts of Python tests that may fail, and why.
const KNOWN: [(&str, &str); 2] = [
    ("tests.test_rdmacm.", "its two ends are two processes on one device"),
    (
        "_implicit_",
        "it asks for a region of all addresses with rights for peers, which is refused: see docs/security.md",
    ),
];

/// Returns why a Python test may fail; `None` if it must not.
fn known(test: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(part, _)| test.contains(part)).map(|(_, why)| *why)
}

/// Returns all uses, except qperf without rdma_cm, which addresses peers by LIDs: RoCE has none.
pub fn all() -> Vec<Use> {
    let rows = rows::uses().into_iter().map(|(program, _)| program).filter(|program| !program.names_no_gid());
    LINES.iter().map(Use::Line).chain(rows.map(Use::Row)).chain([Use::Python]).collect()
}

impl fmt::Display for Use {
    /// `ib_send_bw/rc/qps3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Row(program) => f.write_str(program.to_string().trim_start_matches("program/")),
            Use::Line(line) => f.write_str(line.name),
            Use::Python => f.write_str("pyverbs"),
        }
    }
}

impl Line {
    /// Returns the words of the command line, for a client with the server's address.
    pub fn words(&self, server: Option<String>) -> Vec<String> {
        let words = self.line.split(' ').map(str::to_owned).chain(server);
        let Some(transport) = self.ucx else { return words.collect() };
        // Debian 13's ucx_perftest uses Open MPI unless its input is a terminal: `script` provides one.
        let typed = words.collect::<Vec<_>>().join(" ");
        let before = format!("env UCX_TLS={transport} UCX_NET_DEVICES=roxie0:1 script -qec");
        before.split(' ').map(str::to_owned).chain([typed, "/dev/null".to_owned()]).collect()
    }

    /// True if the program uses UCX, which a release may have built without verbs.
    pub fn is_of_ucx(&self) -> bool {
        self.name.starts_with("ucx_")
    }

    /// True if the program uses netlink, which the library answers only if the kernel itself has no RDMA.
    pub fn uses_netlink(&self) -> bool {
        self.name.starts_with("rdma/")
    }

    /// Returns what is missing in the output of the client (or of the only program).
    pub fn complaint(&self, said: &str) -> Option<String> {
        (!said.contains(self.shows)).then(|| format!("{:?} is not in the output", self.shows))
    }
}

/// Returns the command that runs the Python tests. `PYVERBS_LEAVE_OUT` excludes the tests that Debian 12's table marks
/// as waiting.
///
/// # Errors
/// If that table cannot be read.
pub fn python() -> Result<Vec<String>, Error> {
    let path = pyverbs::table_path();
    let table = fs::read_to_string(&path).map_err(Error::file(&path))?;
    let omitted: Vec<&str> = table.lines().filter_map(|line| waiting(line)).collect();
    let line = format!(
        "env PYVERBS_LEAVE_OUT={} /usr/bin/python3 {RUNNER} /srv/rdma-core roxie0 1",
        omitted.join(",")
    );
    Ok(line.split(' ').map(str::to_owned).collect())
}

/// Returns the test of a table line, if it waits for a feature that Roxie lacks.
fn waiting(line: &str) -> Option<&str> {
    let mut words = line.split(' ');
    let test = words.next()?;
    (words.next() == Some("wait")).then_some(test)
}

/// Returns the results of the Python tests in words.
///
/// # Errors
/// The unexpected failures, or that no test passed.
pub fn python_results(said: &str) -> Result<String, String> {
    let ended: Vec<(&str, &str)> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(test, rest)| (test, rest.split(' ').next().unwrap_or_default()))
        .filter(|(test, outcome)| test.starts_with("tests.") && ["pass", "skip", "fail"].contains(outcome))
        .collect();
    let of = |wanted: &'static str| {
        ended.iter().filter(move |(_, outcome)| *outcome == wanted).map(|(test, _)| *test)
    };
    let failed: BTreeSet<&str> = of("fail").filter(|test| known(test).is_none()).collect();
    let passed = of("pass").count();
    if passed == 0 {
        return Err("no Python test has passed".to_owned());
    }
    if !failed.is_empty() {
        return Err(format!("these fail: {}", failed.into_iter().collect::<Vec<_>>().join(", ")));
    }
    let mut words = vec![format!("{passed} tests pass"), format!("{} are skipped", of("skip").count())];
    for (part, why) in KNOWN {
        let count = of("fail").filter(|test| test.contains(part)).count();
        if count > 0 {
            words.push(format!("{count} fail ({why})"));
        }
    }
    Ok(words.join(", "))
}

/// IP version of the ends' addresses.
pub const FAMILY: Family = Family::V4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_cover_the_matrix() {
        let names: Vec<String> = all().iter().map(Use::to_string).collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        for name in [
            "ib_send_bw/rc/qps3",
            "rping/cm",
            "fio/cm/verified",
            "ibv_devices",
            "pyverbs",
            "qperf/cm/latency",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert!(!names.iter().any(|name| name == "qperf/lids"));
    }

    #[test]
    fn ucx_programs_run_at_a_terminal() {
        let line = LINES.iter().find(|line| line.name == "ucx_perftest/ud/tags").unwrap();
        let words = line.words(Some("10.71.0.1".into()));
        assert_eq!(words[..3].join(" "), "env UCX_TLS=ud_v UCX_NET_DEVICES=roxie0:1");
        assert_eq!(words[5], "ucx_perftest -n 200 -w 20 -t tag_lat -s 64 10.71.0.1");
    }

    #[test]
    fn python_results_count_unexpected_failures() {
        assert_eq!(waiting("tests.a.b wait pass several processes"), Some("tests.a.b"));
        assert_eq!(waiting("tests.a.b pass pass"), None);
        assert!(python().unwrap()[1].contains("PYVERBS_LEAVE_OUT=tests."));
        let fine = "# tests.a.b\ntests.a.b pass \nnoise\ntests.a.c skip no such thing\n";
        assert_eq!(python_results(fine), Ok("1 tests pass, 1 are skipped".to_owned()));
        let known = format!("{fine}tests.test_rdmacm.X.y fail no such device\n");
        assert!(python_results(&known).unwrap().contains("1 fail (its two ends"));
        assert_eq!(
            python_results(&format!("{fine}tests.a.d fail bad")),
            Err("these fail: tests.a.d".to_owned())
        );
        assert!(python_results("tests.a.c skip no such thing\n").is_err());
    }
}
