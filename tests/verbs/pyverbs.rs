//! rdma-core's own Python tests, against a table of expected outcomes (`pyverbs.txt`), which may only improve.
//!
//! The tests are those of Debian 12's `python3-pyverbs` release, and not part of this repository: `.ci/rdma-core-tests`
//! puts them into `target/cache/rdma-core-44.0`, from Debian's source archive after a checksum, or from the folder that
//! `RDMA_CORE_TESTS` names. Most tests have both ends in one process on one device: the port loops frames back. ends in
//! it: frames are turned round in the port.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::huge_pages::HugePages;
use super::{Running, Site, skip};
use crate::site::in_time::CommandInTime;

const EXPECTED: &str = include_str!("pyverbs.txt");

/// Expected outcome of a test on Roxie and on Linux 6.1's rdma_rxe, and why it does not pass on Roxie.
struct Expected {
    test: &'static str,
    roxie: &'static str,
    rxe: &'static str,
    why: &'static str,
}

/// Parses lines `name roxie rxe why`; a `#` begins a comment.
fn expected() -> Vec<Expected> {
    let lines = EXPECTED.lines().filter(|line| !line.starts_with('#'));
    let of = |line: &'static str| {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        Expected { test: word(), roxie: word(), rxe: word(), why: word() }
    };
    lines.map(of).collect()
}

/// Parses the runner's lines `name outcome why`.
fn outcomes(text: &str) -> BTreeMap<&str, (&str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let words = lines.filter_map(|line| line.split_once(' '));
    words.map(|(name, rest)| (name, rest.split_once(' ').unwrap_or((rest, "")))).collect()
}

fn sources() -> Option<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let script = Command::new(root.join(".ci/rdma-core-tests")).output_in_time().unwrap();
    script.status.success().then(|| PathBuf::from(String::from_utf8(script.stdout).unwrap().trim()))
}

/// Outcome of a test that is not run, because it would wait for ever.
const WAITS: &str = "wait";
/// Outcome of a test that passes over AF_XDP, and is skipped over sockets.
const XDP: &str = "xdp";
/// Outcome of a test that passes over sockets, and is not run over AF_XDP, because it has two processes.
const UDP: &str = "udp";

/// Tests that need huge pages, and skip themselves if the system has none free.
const HUGE: [&str; 3] = [
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_traffic",
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_user_addr_traffic",
    "tests.test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic",
];
/// Pages of 2 MiB that they use: one for each end, and as many for the ends of the previous test that Python has not
/// freed yet.
const HUGE_PAGES: u64 = 4;

/// Ranks an outcome: pass, then skip, then failure.
fn rank(outcome: &str) -> u32 {
    ["fail", "skip", "pass"].iter().position(|known| *known == outcome).map_or(0, |rank| rank as u32)
}

#[test]
fn rdma_core_tests_reach_expected_outcomes() {
    let name = "rdma_core_tests_reach_expected_outcomes";
    if skip(name, &["python3"]) {
        return;
    }
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
        println!("SKIP {name}: python3-pyverbs is not installed (.ci/setup test)");
        return;
    }
    let Some(sources) = sources() else {
        println!(
            "SKIP {name}: the source of rdma-core 44.0 cannot be had here (RDMA_CORE_TESTS names a folder with its tests/)"
        );
        return;
    };
    let site = Site::new("pyverbs");
    let huge = HugePages::reserve(HUGE_PAGES);
    if let Err(why) = &huge {
        println!("these may be skipped, for there are no huge pages ({why}): {}", HUGE.join(", "));
    }
    let runner = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/verbs/run_pyverbs.py");
    for port in super::ports().into_iter().chain(["nic"]) {
        // AF_XDP as well, with the engine in a process of its own.
        let _nic =
            (port == "nic").then(|| super::site::nic(&site.local, "left", &["--port", "xdp", "--quiet"]));
        let waits = |line: &&Expected| line.roxie == WAITS || (port == "xdp" && line.roxie == UDP);
        let waiting: Vec<_> = expected().iter().filter(waits).map(|line| line.test).collect();
        let program = format!("/usr/bin/python3 {} {} roxie0 1", runner.display(), sources.display());
        let mut command = super::launcher(&["--dev", "left", "--port", port], &program);
        command.env("PYVERBS_LEAVE_OUT", waiting.join(","));
        let ended = Running::start(&site.local, command).finish();
        let outcomes_of_run = outcomes(&ended.output);
        let mut worse = Vec::new();
        for Expected { test, roxie, .. } in expected().iter().filter(|line| !waits(line)) {
            let (outcome, why) = outcomes_of_run.get(*test).copied().unwrap_or(("fail", "it did not end"));
            let least = match *roxie {
                _ if huge.is_err() && HUGE.contains(test) => "skip",
                XDP => {
                    if port == "udp" {
                        "skip"
                    } else {
                        "pass"
                    }
                }
                UDP => "pass",
                other => other,
            };
            if rank(outcome) < rank(least) {
                worse.push(format!("{test}: {outcome} instead of {least}: {why}"));
            }
        }
        let count = |wanted| outcomes_of_run.values().filter(|(outcome, _)| *outcome == wanted).count();
        println!("{port}: {} pass, {} are skipped, {} fail", count("pass"), count("skip"), count("fail"));
        assert!(worse.is_empty(), "{port}:\n{}", worse.join("\n"));
    }
}

#[test]
fn expected_skips_and_failures_have_reasons() {
    let expected = expected();
    assert!(expected.iter().filter(|line| line.roxie == "pass").count() > 100);
    for Expected { test, roxie, rxe, why } in expected {
        assert!(roxie == "pass" || !why.is_empty(), "{test} {roxie}: why?");
        assert!(
            ["pass", XDP, UDP, "skip", "fail", WAITS].contains(&roxie),
            "{test}: {roxie:?} is no outcome"
        );
        assert!(["pass", "skip", "fail"].contains(&rxe), "{test}: {rxe:?} is no outcome");
    }
}
