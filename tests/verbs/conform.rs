//! `roxie conform` against Roxie: over each kind of port, with planted bugs, and against agents that lie.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use roxie_conform_bench::report::Report;
use roxie_conform_bench::verdict::Verdict;
use tempfile::TempDir;

use crate::site::in_time::CommandInTime;
use crate::site::{FAR, Finished, Running, Site, folder, launcher, ports, skip};

/// Compiles the agent as its source says.
pub(crate) fn agent() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let (source, program) = (place.path().join("agent.c"), place.path().join("agent"));
    fs::write(&source, roxie_conform_bench::agent::SOURCE).unwrap();
    let mut compile = Command::new("cc");
    compile
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(&source)
        .args(["-libverbs", "-lrdmacm", "-o"])
        .arg(&program);
    let done = compile.output_in_time().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    (place, program)
}

/// Starts the agent on the far device, with a planted bug if one is named, and waits until it listens.
pub(crate) fn target(site: &Site, port: &str, program: &Path, bug: &str) -> Running {
    let mut command = launcher(&["--dev", "right", "--port", port], &program.display().to_string());
    command.env("ROXIE_PLANTED_BUG", bug);
    let mut agent = Running::start(&site.remote, command);
    agent.wait_for_output("TCP port");
    agent
}

/// Runs the bench on the near host.
pub(crate) fn conform(site: &Site, options: &str) -> Finished {
    let mut command = Command::new(folder().join("roxie"));
    command.args(["conform", "--target", FAR]).args(options.split_whitespace());
    Running::start(&site.local, command).finish()
}

/// Runs the bench on this host, where there is nothing to test.
pub(crate) fn here(options: &str) -> (i32, String) {
    let mut command = Command::new(folder().join("roxie"));
    let done = command.arg("conform").args(options.split_whitespace()).output_in_time().unwrap();
    let output = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    (done.status.code().unwrap_or(-1), output.into_owned())
}

#[test]
fn roxie_keeps_every_rule_over_each_port() {
    let name = "roxie_keeps_every_rule_over_each_port";
    if skip(name, &["cc"]) {
        return;
    }
    let (place, program) = agent();
    let file = |name: &str| place.path().join(name);
    for port in ports() {
        let site = Site::new("conform");
        let _agent = target(&site, port, &program, "");
        let options = format!(
            "--json {} --junit {} --html {} --captures {}",
            file("run.json").display(),
            file("run.xml").display(),
            file("run.html").display(),
            file("packets").display()
        );
        let done = conform(&site, &options);
        assert_eq!(done.status.code(), Some(0), "{port}: {}", done.output);
        let report = Report::read(&fs::read_to_string(file("run.json")).unwrap()).unwrap();
        let others = report.checks.iter().filter(|outcome| outcome.verdict != Verdict::Keeps);
        let others: Vec<&str> = others.map(|outcome| outcome.name.as_str()).collect();
        assert_eq!(others, [""; 0], "{port}: {}", done.output);
        assert_eq!(report.checks.len(), roxie_conform_bench::checks::all().len());
        assert_eq!(report.device["device"], "roxie0");
        let sends = report.checks.iter().find(|outcome| outcome.name == "rc/valid/send_only").unwrap();
        assert!(sends.ladder.contains("SEND_ONLY") && sends.ladder.contains("ACK"), "{}", sends.ladder);
        let xml = fs::read_to_string(file("run.xml")).unwrap();
        assert_eq!(xml.matches("<testcase ").count(), report.checks.len());
        assert!(fs::read_to_string(file("run.html")).unwrap().contains("rc/valid/send_only"));
        let capture = fs::read(file("packets/rc-valid-send_only.pcapng")).unwrap();
        assert!(capture.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    }
}

#[test]
fn socket_names_the_checks_it_leaves_out() {
    let name = "socket_names_the_checks_it_leaves_out";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = agent();
    let site = Site::new("conform");
    let _agent = target(&site, "udp", &program, "");
    let done = conform(&site, "--link socket --filter rc/cnp");
    assert_eq!(done.status.code(), Some(0), "{}", done.output);
    assert!(done.output.contains("3 keep, 0 break, 0 lenient, 6 not tested"), "{}", done.output);
    assert!(done.output.contains("needs CAP_NET_RAW"), "{}", done.output);
    let none = conform(&site, "--link socket --filter rc/dropped/other_address");
    assert_eq!(none.status.code(), Some(77), "{}", none.output);
}

/// Planted bugs, and the check that must find each.
#[cfg(feature = "planted-bugs")]
const BUGS: [(&str, &str); 21] = [
    ("NoDuplicateCheck", "rc/duplicate/send_only"),
    ("AckBeforeReadResponse", "rc/read/ack_stays_behind"),
    ("PsnCompareWithoutWrap", "rc/ahead_by_half/write_only"),
    ("AtomicExecutedAgain", "rc/duplicate/fetch_add"),
    ("AckCompletesRead", "rc/read_response/gap"),
    ("UcIgnoresGaps", "uc/dropped/gap_in_message"),
    ("UdIgnoresQkey", "ud/dropped/wrong_qkey"),
    ("LongDatagramEnds", "ud/dropped/above_receive"),
    ("AnySource", "rc/dropped/other_address/write_only"),
    ("SolicitedOnlyOnce", "rc/timeout/again_is_the_same"),
    ("NotifiesItself", "rc/cnp/of_marked_write"),
    ("NewestResultAnswers", "rc/atomic/saved_result"),
    ("RestOfReadStartsOver", "rc/read/rest_again"),
    ("RnrCodeZeroIsNoWait", "rc/rnr_wait/code_0"),
    ("AckPsnStopsAtZero", "rc/psn_wrap/send_only"),
    ("Ipv4HeaderComesFirst", "ud/valid/network_header"),
    ("PadIsWritten", "rc/pad/write"),
    ("NoTimerAfterNak", "rc/timeout/behind_sequence_nak"),
    ("WindowOpensToAllQps", "rc/rights/window_of_another_qp"),
    ("MarkedResponsesAreSilent", "rc/cnp/of_marked_response"),
    ("AtomicExecutedAgain", "xrc/duplicate/fetch_add"),
];

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_break_the_right_checks() {
    let name = "planted_bugs_break_the_right_checks";
    if skip(name, &["cc"]) {
        return;
    }
    if !crate::site::runs_all() {
        println!("SKIP {name}: `make test-all` plants them");
        return;
    }
    let (place, program) = agent();
    let json = place.path().join("run.json");
    for (bug, check) in BUGS {
        let site = Site::new("conform");
        let _agent = target(&site, "packet", &program, bug);
        let done = conform(&site, &format!("--filter {check} --json {}", json.display()));
        assert_eq!(done.status.code(), Some(1), "{bug}: {}", done.output);
        let report = Report::read(&fs::read_to_string(&json).unwrap()).unwrap();
        let check_outcome = report.checks.iter().find(|outcome| outcome.name == check).unwrap();
        assert_eq!(check_outcome.verdict, Verdict::Breaks, "{bug}: {}", done.output);
        assert!(!check_outcome.came.is_empty() && !check_outcome.ladder.is_empty(), "{bug}: {}", done.output);
    }
}

#[test]
fn target_without_an_agent_is_told() {
    let name = "target_without_an_agent_is_told";
    if skip(name, &["cc"]) {
        return;
    }
    let site = Site::new("conform");
    let done = conform(&site, "");
    assert_eq!(done.status.code(), Some(77), "{}", done.output);
    assert!(done.output.contains("cc agent.c -libverbs -lrdmacm -o agent"), "{}", done.output);
}

/// Listens in place of the agent, and answers each line of one client by `answer`; without one, never.
fn liar(site: &Site, answer: Option<&'static str>) {
    let listener =
        site.remote.run(|| TcpListener::bind((FAR, roxie_conform_bench::agent::PORT))).unwrap().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for _ in lines.map_while(Result::ok) {
            if answer.is_some_and(|answer| stream.write_all(answer.as_bytes()).is_err()) {
                return;
            }
        }
    });
}

#[test]
fn lying_agent_ends_the_run() {
    let name = "lying_agent_ends_the_run";
    if skip(name, &["cc"]) {
        return;
    }
    let liars = [
        (None, "did not answer"),
        (Some("ok protocol=9\n"), "version"),
        (Some("err no such device\n"), "no such device"),
        (Some("ok protocol=1 mr=0 addr=0 rkey=0 qp=0 qpn=17\n"), "answers no RoCE packet"),
        (Some("220 mail server\n"), "no answer of an agent"),
    ];
    for (answer, told) in liars {
        let site = Site::new("conform");
        liar(&site, answer);
        // A socket asks for no station address, which a host without a device would answer as well.
        let done = conform(&site, "--short");
        assert_eq!(done.status.code(), Some(77), "{answer:?}: {}", done.output);
        assert!(done.output.contains(told), "{answer:?}: {}", done.output);
    }
}

#[test]
fn list_is_readable_by_programs() {
    let (code, text) = here("list --json");
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    let listed = listed["checks"].as_array().unwrap();
    assert_eq!((code, listed.len()), (0, roxie_conform_bench::checks::all().len()));
    for key in ["name", "chapter", "clause", "service", "role", "needs"] {
        assert!(listed.iter().all(|check| !check[key].is_null()), "{key}");
    }
    let (code, text) = here("list --short --filter ud/");
    assert!(code == 0 && text.lines().all(|line| line.starts_with("ud/")), "{text}");
    let (_, source) = here("agent");
    assert_eq!(source.trim_end(), roxie_conform_bench::agent::SOURCE.trim_end());
}

#[test]
fn wrong_usage_has_its_exit_code() {
    for options in
        ["", "--target nowhere", "list --filter no-such", "diff one.json", "diff none.json none.json"]
    {
        let (code, output) = here(options);
        assert_eq!(code, 2, "{options}: {output}");
    }
    let (code, output) = here("--target 127.0.0.1");
    assert!(code == 77 && output.contains("address of this host"), "{output}");
}

#[test]
fn diff_fails_if_a_verdict_is_worse() {
    let place = tempfile::tempdir().unwrap();
    let outcome = |verdict: &str| {
        serde_json::json!({
            "name": "rc/valid/send_only", "chapter": "One", "clause": "9.7.5", "stimulus": "", "asks": "",
            "verdict": verdict, "came": "nothing", "seconds": 0.1,
        })
    };
    let write = |name: &str, verdict: &str| {
        let mut report =
            Report::new("192.0.2.2".into(), "192.0.2.1".into(), "raw", std::collections::BTreeMap::new());
        report.checks = vec![serde_json::from_value(outcome(verdict)).unwrap()];
        let file = place.path().join(name);
        fs::write(&file, report.json()).unwrap();
        file.display().to_string()
    };
    let (good, bad) = (write("good.json", "keeps"), write("bad.json", "breaks"));
    let (code, output) = here(&format!("diff {good} {bad}"));
    assert!(code == 1 && output.contains("rc/valid/send_only: keeps -> breaks"), "{output}");
    assert_eq!(here(&format!("diff {bad} {good}")).0, 0);
    assert!(here(&format!("diff {bad} {bad}")).1.contains("no verdict differs"));
}
