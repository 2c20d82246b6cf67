//! `roxie conform --fuzz` against Roxie: nothing is found without a bug, planted bugs are found and shrunk; and
//! `--ssh`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[cfg(feature = "planted-bugs")]
use roxie_conform_bench::fuzz::Sequence;
use roxie_conform_bench::report::Report;
use roxie_conform_bench::verdict::Verdict;

use crate::conform::{agent, conform, here, target};
use crate::site::{FAR, Running, Site, folder, launcher, ports, skip};

fn report(file: &Path) -> Report {
    Report::read(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn fuzzing_finds_nothing_in_roxie() {
    let name = "fuzzing_finds_nothing_in_roxie";
    if skip(name, &["cc"]) {
        return;
    }
    let (place, program) = agent();
    let json = place.path().join("run.json");
    let runs = ports().into_iter().map(|port| (port, "raw", 1)).chain([("packet", "socket", 2)]);
    for (port, link, seed) in runs {
        let site = Site::new("fuzzed");
        let _agent = target(&site, port, &program, "");
        let options = format!("--fuzz --seed {seed} --packets 2000 --link {link} --json {}", json.display());
        let done = conform(&site, &options);
        assert_eq!(done.status.code(), Some(0), "{port}, {link}: {}", done.output);
        let report = report(&json);
        let names: Vec<&str> = report.checks.iter().map(|outcome| outcome.name.as_str()).collect();
        assert_eq!(names, ["fuzz/rc", "fuzz/uc", "fuzz/ud"]);
        assert_eq!(report.count(Verdict::Keeps), 3, "{port}, {link}: {}", done.output);
        let seconds: f64 = report.checks.iter().map(|outcome| outcome.seconds).sum();
        println!("{port}, {link}: {seconds:.1} s");
        assert!(done.output.contains(&format!("seed {seed}")), "{}", done.output);
    }
}

/// Planted bugs, and the service whose packets show each.
#[cfg(feature = "planted-bugs")]
const BUGS: [(&str, &str); 4] =
    [("AtomicExecutedAgain", "rc"), ("AnySource", "rc"), ("UdIgnoresQkey", "ud"), ("LongDatagramEnds", "ud")];

/// Each bug is found from outside, and what shows it is shrunk to a script that shows it again.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found_and_shrunk() {
    let name = "planted_bugs_are_found_and_shrunk";
    if skip(name, &["cc"]) {
        return;
    }
    let (place, program) = agent();
    let (json, captures) = (place.path().join("run.json"), place.path().join("captures"));
    for (bug, service) in BUGS {
        let site = Site::new("fuzzed");
        let agent = target(&site, "packet", &program, bug);
        let options = format!(
            "--fuzz --seed 7 --packets 4000 --json {} --captures {}",
            json.display(),
            captures.display()
        );
        let done = conform(&site, &options);
        println!("{bug}: {}", done.output);
        assert_eq!(done.status.code(), Some(1), "{bug}: {}", done.output);
        let read = report(&json);
        let read = read.checks.iter().find(|outcome| outcome.name == format!("fuzz/{service}")).unwrap();
        assert_eq!(read.verdict, Verdict::Breaks, "{bug}: {}", done.output);
        let script: Sequence = read.script.parse().unwrap();
        assert!((1..=5).contains(&script.lines.len()), "{bug}: {}", done.output);
        assert!(
            !read.ladder.is_empty() && done.output.contains(&read.script.lines().last().unwrap().to_owned())
        );
        let file = captures.join(format!("fuzz-{service}.script"));
        assert_eq!(fs::read_to_string(&file).unwrap(), read.script);
        let again = conform(&site, &format!("--script {}", file.display()));
        assert_eq!(again.status.code(), Some(1), "{bug}: {}", again.output);
        drop(agent);
        let _sound = target(&site, "packet", &program, "");
        let sound = conform(&site, &format!("--script {}", file.display()));
        assert_eq!(sound.status.code(), Some(0), "{bug}: {}", sound.output);
    }
}

#[test]
fn target_that_dies_breaks_the_rule() {
    let name = "target_that_dies_breaks_the_rule";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = agent();
    let site = Site::new("fuzzed");
    let agent = target(&site, "packet", &program, "");
    let mut command = Command::new(folder().join("roxie"));
    command.args(["conform", "--target", FAR, "--fuzz", "--packets", "1000000", "--rate", "20000"]);
    let mut bench = Running::start(&site.local, command);
    bench.wait_for_output("fuzzing with");
    drop(agent);
    let done = bench.finish();
    assert!(matches!(done.status.code(), Some(1 | 77)), "{}", done.output);
    // Either the agent or the honest connection is missed first.
    assert!(done.output.contains("the target is gone") || done.output.contains("agent"), "{}", done.output);
}

#[test]
fn wrong_scripts_and_options_are_usage() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("script");
    fs::write(&file, "pair RC\n1: RC_SEND_ONLY twice\n").unwrap();
    for (options, words) in [
        (format!("--target {FAR} --script {}", file.display()), "line 2"),
        (format!("--target {FAR} --script /nowhere"), "/nowhere"),
        (format!("--target {FAR} --seed 7"), "--fuzz"),
        (format!("--target {FAR} --fuzz --short"), "--short"),
        (format!("--target {FAR} --ssh=-oProxyCommand=x"), "USER@HOST"),
        (format!("--target {FAR} --ssh host --ssh-device a;b"), "mlx5_0"),
    ] {
        let (code, output) = here(&options);
        assert!(code == 2 && output.contains(words), "{options}: {output}");
    }
}

/// Writes a program `ssh` that runs the command on the far device, and returns its folder.
fn ssh_substitute(site: &Site, place: &Path, port: &str) {
    let run = launcher(&["--dev", "right", "--port", port], "sh");
    let words: Vec<String> = std::iter::once(run.get_program())
        .chain(run.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let remote = site.remote.name().unwrap();
    let text = format!(
        "#!/bin/sh\necho \"$1 $2\" > {}/asked\nexec ip netns exec {remote} {} -c \"$3\"\n",
        place.display(),
        words.join(" ")
    );
    let file = place.join("ssh");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn ssh_starts_and_ends_the_agent() {
    let name = "ssh_starts_and_ends_the_agent";
    if skip(name, &["cc", "ip"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let site = Site::new("fuzzed");
    ssh_substitute(&site, place.path(), "packet");
    let path = format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap());
    let bench = |options: &str| {
        let mut command = Command::new(folder().join("roxie"));
        command.args(["conform", "--target", FAR, "--ssh", "me@far"]).args(options.split_whitespace());
        command.env("PATH", &path);
        Running::start(&site.local, command)
    };
    let done = bench("--short --filter rc/").finish();
    assert_eq!(done.status.code(), Some(0), "{}", done.output);
    assert_eq!(fs::read_to_string(place.path().join("asked")).unwrap().trim(), "-T me@far");
    // A bench that is killed leaves no agent behind, so that the device is free for the next.
    let mut killed = bench("--fuzz --packets 1000000");
    killed.wait_for_output("fuzzing with");
    let pid = nix::unistd::Pid::from_raw(killed.child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let ended = killed.finish();
    assert!(!ended.status.success(), "{}", ended.output);
    let again = bench("--filter rc/valid/send_only").finish();
    assert_eq!(again.status.code(), Some(0), "{}", again.output);
}

/// Checks that a target that is started anew shows which packets ended it. `bug`: one at which an assertion ends it, by
/// packets of `service`.
#[cfg(feature = "planted-bugs")]
fn end_is_shrunk(name: &str, bug: &str, service: &str) {
    if skip(name, &["cc", "ip"]) || !cfg!(debug_assertions) {
        println!("SKIP {name}: assertions are off in this build");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let json = place.path().join("run.json");
    let site = Site::new("fuzzed");
    ssh_substitute(&site, place.path(), "packet");
    let mut command = Command::new(folder().join("roxie"));
    let arguments = "conform --ssh me@far --fuzz --seed 7 --packets 2000 --target";
    command.args(arguments.split(' ')).arg(FAR).arg("--json").arg(&json).env("ROXIE_PLANTED_BUG", bug);
    command.env("PATH", format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap()));
    let done = Running::start(&site.local, command).finish();
    println!("{bug}: {}", done.output);
    assert_eq!(done.status.code(), Some(1), "{bug}: {}", done.output);
    let report = report(&json);
    for outcome in &report.checks {
        let breaks = outcome.name == format!("fuzz/{service}");
        let expected = if breaks { Verdict::Breaks } else { Verdict::Keeps };
        assert_eq!(outcome.verdict, expected, "{bug}: {}", done.output);
        if breaks {
            let script: Sequence = outcome.script.parse().unwrap();
            assert!((1..=5).contains(&script.lines.len()), "{bug}: {}", done.output);
        }
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn end_of_the_target_by_rc_is_shrunk() {
    end_is_shrunk("end_of_the_target_by_rc_is_shrunk", "NoDuplicateCheck", "rc");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn end_of_the_target_by_uc_is_shrunk() {
    end_is_shrunk("end_of_the_target_by_uc_is_shrunk", "UcIgnoresGaps", "uc");
}

#[test]
fn ssh_that_fails_is_told() {
    let name = "ssh_that_fails_is_told";
    if skip(name, &[]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let site = Site::new("fuzzed");
    for (text, words) in [(None, "ssh"), (Some("#!/bin/sh\nexit 255\n"), "the agent")] {
        let file = place.path().join("ssh");
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(folder().join("roxie"));
        command.args(["conform", "--target", FAR, "--ssh", "far", "--link", "socket"]);
        command.env(
            "PATH",
            if text.is_some() { place.path().display().to_string() + ":/bin" } else { "/nowhere".into() },
        );
        let done = Running::start(&site.local, command).finish();
        assert_eq!(done.status.code(), Some(77), "{}", done.output);
        assert!(done.output.contains(words), "{}", done.output);
    }
}
