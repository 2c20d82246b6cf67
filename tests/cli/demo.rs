//! `roxie demo` as users run it: as root, without privilege, and where a request cannot be met.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::in_time::{ChildInTime, CommandInTime, copy_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use tempfile::TempDir;

const ROXIE: &str = env!("CARGO_BIN_EXE_roxie");
/// UID without privilege on every Linux (`nobody`).
const NOBODY: &str = "65534";

/// Arguments for the shortest run of all stages.
const SHORT: [&str; 5] = ["demo", "--json", "--seconds", "0.5", "--no-programs"];

fn root(name: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("SKIP {name}: needs root");
    }
    root
}

/// Returns the object on the last line of standard output.
fn object(output: &Output) -> Value {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let last = out.lines().last().unwrap_or_else(|| panic!("no output\n{err}"));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}\n{err}"))
}

/// Checks that a row is complete and its data intact; returns its port.
fn check_row(row: &Value) -> String {
    for name in [
        "payload_bytes",
        "floor_gbps",
        "write_gbps",
        "floor_mpps",
        "send64_mpps",
        "floor_rtt_us",
        "rtt_us",
        "lossy_write_gbps",
    ] {
        let value = row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"));
        assert!(value.is_finite() && value > 0.0, "{name} = {value}");
    }
    assert!(!row["mode"].as_str().unwrap().is_empty());
    // Twice nine sizes of three operations, up to 1 MiB each, without and with loss.
    assert!(row["verified_bytes"].as_u64().unwrap() > 12 << 20, "{row}");
    assert_eq!(row["corrupt_bytes"].as_u64(), Some(0), "{row}");
    assert!(row["retransmitted_packets"].as_u64().unwrap() > 0, "1 % was lost: {row}");
    row["port"].as_str().unwrap().to_owned()
}

/// Returns the names that a process left under /run/netns.
fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("roxie-{pid}-"))).collect()
}

#[test]
fn root_gets_both_ports_and_a_ladder() {
    if !root("root_gets_both_ports_and_a_ladder") {
        return;
    }
    let captures = TempDir::new().unwrap();
    let child = Command::new(ROXIE)
        .args(SHORT)
        .args(["--port", "xdp,udp", "--capture"])
        .arg(captures.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.output_in_time();
    let report = object(&output);
    let ports: Vec<String> = report["rows"].as_array().unwrap().iter().map(check_row).collect();
    assert_eq!(ports, ["xdp", "udp"]);
    assert_eq!(namespaces_of(pid), Vec::<String>::new(), "namespaces are left");

    // The text for people shows the loss, the NAK and the retransmission, in this order.
    let text = String::from_utf8_lossy(&output.stderr);
    let ladder = text.split_once("One lost packet").expect("a ladder").1;
    let place = |what: &str| ladder.find(what).unwrap_or_else(|| panic!("no {what:?} in\n{ladder}"));
    assert!(place("lost on the way") < place("NAK_PSN_SEQUENCE"));
    assert!(place("NAK_PSN_SEQUENCE") < place(" again "));
    assert!(place(" again ") < place("<- ACK"));

    for port in ["xdp", "udp"] {
        for (end, reason) in
            [("near", "retransmit after sequence NAK, try 1 of 7"), ("far", "is due; sequence NAK")]
        {
            let path = captures.path().join(format!("roxie-demo-{port}-{end}.pcapng"));
            let decoded = Command::new(ROXIE).arg("decode").arg(&path).output_in_time().unwrap();
            let text = String::from_utf8_lossy(&decoded.stdout);
            assert!(decoded.status.success() && text.contains(reason), "{}:\n{text}", path.display());
        }
    }
}

#[test]
fn memory_port_needs_no_privilege() {
    let captures = TempDir::new().unwrap();
    let run = Command::new(ROXIE)
        .args(SHORT)
        .args(["--port", "memory", "--threads", "2", "--capture"])
        .arg(captures.path())
        .output_in_time()
        .unwrap();
    let report = object(&run);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(check_row).collect::<Vec<_>>(), ["memory"]);
    assert_eq!(report["threads"].as_u64(), Some(2));
}

/// Returns a copy of the program, and a directory for captures, which an unprivileged user can access.
fn public_copy() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().unwrap();
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(directory.path(), 0o755);
    let program = directory.path().join("roxie");
    copy_program(ROXIE, &program);
    open(&program, 0o755);
    let captures = directory.path().join("captures");
    fs::create_dir(&captures).unwrap();
    open(&captures, 0o777);
    (directory, program, captures)
}

/// Runs the program without privilege; `None` if that is not possible here.
fn as_nobody(name: &str, program: &Path, arguments: &[&str]) -> Option<Output> {
    if !root(name) {
        return None;
    }
    let run = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(program)
        .args(arguments)
        .output_in_time();
    match run {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIP {name}: setpriv: {error}");
            None
        }
    }
}

#[test]
fn unprivileged_user_gets_sockets_and_a_reason() {
    let (_directory, program, captures) = public_copy();
    let arguments = [&SHORT[..], &["--capture", captures.to_str().unwrap()]].concat();
    let Some(output) = as_nobody("unprivileged_user_gets_sockets_and_a_reason", &program, &arguments) else {
        return;
    };
    let report = object(&output);
    // Packet sockets open in a user namespace that owns the network namespace.
    assert_eq!(
        report["rows"].as_array().unwrap().iter().map(check_row).collect::<Vec<_>>(),
        ["packet", "udp"]
    );
    let skipped = &report["skipped"][0];
    assert_eq!(skipped["port"], "xdp");
    assert!(skipped["reason"].as_str().unwrap().contains("root"), "{skipped}");
    let network = report["network"].as_str().unwrap();
    assert!(network.contains("user namespace") && network.contains("not root"), "{network}");
}

#[test]
fn unavailable_requested_port_is_an_error() {
    let (_directory, program, captures) = public_copy();
    let arguments = ["demo", "--port", "xdp", "--capture", captures.to_str().unwrap()];
    let name = "unavailable_requested_port_is_an_error";
    let Some(output) = as_nobody(name, &program, &arguments) else { return };
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output_text}");
    assert!(output_text.contains("AF_XDP needs root"), "{output_text}");
}

#[test]
fn interrupt_leaves_no_namespace() {
    if !root("interrupt_leaves_no_namespace") {
        return;
    }
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        is_interrupted(signal, code);
    }
}

fn is_interrupted(signal: Signal, code: i32) {
    let captures = TempDir::new().unwrap();
    let child = Command::new(ROXIE)
        .args(["demo", "--seconds", "60", "--port", "udp", "--capture"])
        .arg(captures.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let start = Instant::now();
    while namespaces_of(pid).len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "no namespaces appear");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(pid as i32), signal).unwrap();
    let interrupted = Instant::now();
    let output = child.output_in_time();
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(interrupted.elapsed() < Duration::from_secs(30), "it measures 60 s without an interrupt");
    assert_eq!(namespaces_of(pid), Vec::<String>::new(), "namespaces are left");
}

#[test]
fn unwritable_capture_directory_fails_at_once() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let output = Command::new(ROXIE).args(["demo", "--capture"]).arg(&file).output_in_time().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output_text}");
    assert!(output_text.contains(file.to_str().unwrap()), "{output_text}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("RC WRITE"), "it measured first");
}

#[test]
fn full_disk_exits_1() {
    let captures = TempDir::new().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(ROXIE)
        .args(["demo", "--json", "--seconds", "0.2", "--port", "memory", "--capture"])
        .arg(captures.path())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .output_in_time();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    assert!(output_text.contains("cannot write the output"), "{output_text}");
}

/// The scenario of the congestion tests.
const CONGESTION: [&str; 8] = ["demo", "congestion", "--json", "--seconds", "1", "--senders", "2", "--rate"];

/// Returns a number of a run.
fn number(run: &Value, name: &str) -> f64 {
    run[name].as_f64().unwrap_or_else(|| panic!("{name}: {run}"))
}

fn in_virtual_time(more: &[&str]) -> Value {
    let arguments = ["100", "--no-programs"];
    let report =
        object(&Command::new(ROXIE).args(CONGESTION).args(arguments).args(more).output_in_time().unwrap());
    assert_eq!(report["real"], Value::Null);
    let run = report["virtual"].clone();
    let rates = run["mbps"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap());
    let sum: f64 = rates.sum();
    // 1098 bytes of the wire carry a frame of 1074.
    assert!((70.0..98.0).contains(&sum), "the link is used, and not for more than it carries: {run}");
    run
}

#[test]
fn seed_determines_congestion_in_virtual_time() {
    let first = in_virtual_time(&["--seed", "7"]);
    assert_eq!(first, in_virtual_time(&["--seed", "7"]));
    assert_ne!(first, in_virtual_time(&["--seed", "8"]));
}

#[test]
fn congestion_control_keeps_the_queue_short() {
    let run = |cc: &[&str]| {
        let scenario = ["demo", "congestion", "--json", "--no-programs", "--rate", "200", "--senders", "4"];
        object(&Command::new(ROXIE).args(scenario).args(cc).output_in_time().unwrap())["virtual"].clone()
    };
    let (with, without) = (run(&[]), run(&["--cc", "off"]));
    assert!(
        number(&without, "queue_mean") > 100_000.0 && number(&without, "dropped_settled") > 500.0,
        "{without}"
    );
    let rates: Vec<_> = with["mbps"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).collect();
    assert!(rates.iter().sum::<f64>() > 0.9 * 200.0, "{with}");
    assert!(number(&with, "fairness") >= 0.99, "{with}");
    assert!(number(&with, "queue_99") < 100_000.0, "below Kmax: {with}");
    assert_eq!(number(&with, "dropped_settled"), 0.0, "{with}");
    // Per sender at most one notification in 3.3 ms, for 4 s.
    assert!((100.0..4.0 * 4e6 / 3_200.0).contains(&number(&with, "notifications")), "{with}");
    assert!(number(&with, "notifications") <= number(&with, "marked"), "{with}");
    // Senders start at line rate, so the queue fills at first.
    assert!(number(&with, "queue_peak") > 150_000.0 && number(&with, "marked") > 0.0, "{with}");
}

#[test]
fn real_congestion_is_drawn_and_cleaned_up() {
    const NAME: &str = "real_congestion_is_drawn_and_cleaned_up";
    if !root(NAME) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let svg = folder.path().join("congestion.svg");
    let child = Command::new(ROXIE)
        .args(CONGESTION)
        .args(["50", "--svg"])
        .arg(&svg)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.output_in_time();
    let report = object(&output);
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    if report["real"].is_null() {
        println!("SKIP {NAME}: {output_text}");
        return;
    }
    let run = &report["real"];
    let sum: f64 = run["mbps"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).sum();
    assert!(sum > 0.0 && sum < 50.0, "more than the link carries: {run}");
    assert!(run["frames"].as_u64().unwrap() > 0 && run["marked"].as_u64().unwrap() > 0, "{run}");
    let drawing = fs::read_to_string(&svg).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.trim_end().ends_with("</svg>"));
    assert_eq!(drawing.matches("<polyline").count(), 2 * (1 + 2), "a queue and two rates, twice");
}

#[test]
fn invalid_switch_is_refused_with_valid_values() {
    let output = Command::new(ROXIE)
        .args(["demo", "congestion", "--kmin", "9000", "--kmax", "5000"])
        .output_in_time()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{output_text}");
    assert!(
        output_text.contains("Kmin 9000 is above Kmax 5000") && output_text.contains("Kmin is at most Kmax"),
        "{output_text}"
    );
}
