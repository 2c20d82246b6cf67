//! Programs that run in each release: those of the matrix, at both ends on Roxie, and some that only have to be there.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use crate::error::Error;
use crate::pyverbs;
use crate::rows::{self, Family, Program};

/// A use of a program.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// One of the matrix's.
    Row(Program),
    /// Alone, or the same line at both ends but for the server's address at the end of the client's.
    Line(&'static Line),
    /// rdma-core's own Python tests, of the release's own rdma-core.
    Python,
}

/// A use that is one line.
#[derive(Debug)]
pub struct Line {
    /// Its name in the table.
    name: &'static str,
    /// What is typed.
    line: &'static str,
    /// Where its server listens; `None`: there is no server.
    pub port: Option<u16>,
    /// What it says if it works.
    shows: &'static str,
    /// UCX's transport, if it is for `ucx_perftest`.
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

/// The runner of Python tests, and where the tests are, in a release's folder.
const RUNNER: &str = "/roxie/tests/verbs/run_pyverbs.py";
/// As the host sees it, below the release's folder.
pub const PYTHON_TESTS: &str = "root/srv/rdma-core/tests/run_tests.py";

/// Parts of the names of Python tests that fail, and why.
const KNOWN: [(&str, &str); 2] = [
    ("tests.test_rdmacm.", "its two ends are two processes on one device"),
    (
        "_implicit_",
        "it asks for a region of all addresses with rights for peers, which is refused: see docs/security.md",
    ),
];

/// Why a Python test may fail.
fn known(test: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(part, _)| test.contains(part)).map(|(_, why)| *why)
}

/// All of them. qperf without rdma_cm, whose paths have LIDs, is none: RoCE has none.
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
    /// The words; of a client with the server's address.
    pub fn words(&self, server: Option<String>) -> Vec<String> {
        let words = self.line.split(' ').map(str::to_owned).chain(server);
        let Some(transport) = self.ucx else { return words.collect() };
        // Debian 13's is built with Open MPI, which it takes to be wanted if its input is no terminal: `script` gives it one.
        let typed = words.collect::<Vec<_>>().join(" ");
        let before = format!("env UCX_TLS={transport} UCX_NET_DEVICES=roxie0:1 script -qec");
        before.split(' ').map(str::to_owned).chain([typed, "/dev/null".to_owned()]).collect()
    }

    /// It goes through UCX, which a release may have built without verbs.
    pub fn is_of_ucx(&self) -> bool {
        self.name.starts_with("ucx_")
    }

    /// It asks the kernel by netlink, which the library answers only where the kernel itself does not.
    pub fn asks_by_netlink(&self) -> bool {
        self.name.starts_with("rdma/")
    }

    /// What is wrong with what its client, or it alone, has said.
    pub fn complaint(&self, said: &str) -> Option<String> {
        (!said.contains(self.shows)).then(|| format!("{:?} is not said", self.shows))
    }
}

/// The Python tests: the words, and which tests are left out (`PYVERBS_LEAVE_OUT`): those of which Debian 12's are known not to run.
///
/// # Errors
/// If the table of those cannot be read.
pub fn python() -> Result<Vec<String>, Error> {
    let path = pyverbs::table_path();
    let table = fs::read_to_string(&path).map_err(Error::file(&path))?;
    let left_out: Vec<&str> = table.lines().filter_map(|line| waiting(line)).collect();
    let line = format!(
        "env PYVERBS_LEAVE_OUT={} /usr/bin/python3 {RUNNER} /srv/rdma-core roxie0 1",
        left_out.join(",")
    );
    Ok(line.split(' ').map(str::to_owned).collect())
}

/// The test of a line of the table that waits for something that Roxie has not.
fn waiting(line: &str) -> Option<&str> {
    let mut words = line.split(' ');
    let test = words.next()?;
    (words.next() == Some("wait")).then_some(test)
}

/// What the Python tests came to, in words.
///
/// # Errors
/// The tests that failed and are not known to, or that none ran.
pub fn python_came_to(said: &str) -> Result<String, String> {
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

/// The address of an end, for the words of a program.
pub const FAMILY: Family = Family::V4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_program_of_the_matrix_is_there() {
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
    fn what_is_for_ucx_is_typed_at_a_terminal() {
        let line = LINES.iter().find(|line| line.name == "ucx_perftest/ud/tags").unwrap();
        let words = line.words(Some("10.71.0.1".into()));
        assert_eq!(words[..3].join(" "), "env UCX_TLS=ud_v UCX_NET_DEVICES=roxie0:1");
        assert_eq!(words[5], "ucx_perftest -n 200 -w 20 -t tag_lat -s 64 10.71.0.1");
    }

    #[test]
    fn python_tests_that_wait_are_left_out_and_one_that_fails_fails_all() {
        assert_eq!(waiting("tests.a.b wait pass several processes"), Some("tests.a.b"));
        assert_eq!(waiting("tests.a.b pass pass"), None);
        assert!(python().unwrap()[1].contains("PYVERBS_LEAVE_OUT=tests."));
        let fine = "# tests.a.b\ntests.a.b pass \nnoise\ntests.a.c skip no such thing\n";
        assert_eq!(python_came_to(fine), Ok("1 tests pass, 1 are skipped".to_owned()));
        let known = format!("{fine}tests.test_rdmacm.X.y fail no such device\n");
        assert!(python_came_to(&known).unwrap().contains("1 fail (its two ends"));
        assert_eq!(
            python_came_to(&format!("{fine}tests.a.d fail bad")),
            Err("these fail: tests.a.d".to_owned())
        );
        assert!(python_came_to("tests.a.c skip no such thing\n").is_err());
    }
}
