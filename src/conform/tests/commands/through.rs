//! `roxie conform --through`: the scripts of a wire between two peers, played by a command.

use serde_json::Value;

use crate::wire::Wired;
use crate::{A, Finished, Running, roxie, run};

/// Runs the bench between the ends of a wire.
fn through(net: &Wired, options: &[&str]) -> Finished {
    let mut command = roxie("conform --through a b");
    command.args(options);
    net.middle.run(|| Running::start(command)).expect("a namespace").finish()
}

/// Writes the command that performs an operation between both ends, and returns its name.
fn player(net: &Wired) -> String {
    let [left, right] = [&net.left, &net.right].map(|ns| ns.name().expect("a name"));
    let (program, log, file) = (crate::roxie_path().display().to_string(), net.file("log"), net.file("play"));
    let text = format!(
        "size='-s 8192 -m 1024'\n\
         [ $ROXIE_OPERATION = atomic ] && size=\n\
         perf=\"{program} perf $ROXIE_OPERATION bw --port udp -n 16 -t 4 $size\"\n\
         : > {log}\n\
         ip netns exec {left} $perf 2> {log} &\n\
         until grep -q 'waiting for a peer' {log}; do sleep 0.02; done\n\
         ip netns exec {right} $perf {A} || exit 1\n\
         wait $!\n"
    );
    std::fs::write(&file, text).expect("a file");
    format!("sh {file}")
}

#[test]
fn scripts_between_two_peers_are_played() {
    let Some(net) = Wired::new("scripts_between_two_peers_are_played") else { return };
    let (play, json, captures) = (player(&net), net.file("json"), net.file("captures"));
    let options = ["--play", &play, "--filter", "_lost", "--json", &json, "--captures", &captures];
    let done = through(&net, &options).succeeded();
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("a report")).expect("JSON");
    let checks = report["checks"].as_array().expect("an array");
    let played =
        checks.iter().filter(|check| check["name"].as_str().is_some_and(|name| name.ends_with("/ends")));
    assert!(played.count() >= 9, "{done:#?}");
    assert!(checks.iter().all(|check| check["verdict"] == "keeps"), "{report:#}");
    for name in
        ["write/middle_lost/again_from_the_gap", "send/middle_lost/follows", "read/request_lost/recovers"]
    {
        assert!(checks.iter().any(|check| check["name"] == format!("through/{name}")), "{name}: {report:#}");
    }
    assert!(std::path::Path::new(&captures).join("write-middle_lost-a.pcapng").exists());
}

#[test]
fn command_that_fails_breaks_the_rule() {
    let Some(net) = Wired::new("command_that_fails_breaks_the_rule") else { return };
    let only = ["--filter", "write/middle_lost"];
    let failed = through(&net, &[&only[..], &["--play", "exit 3"]].concat());
    assert!(failed.status.code() == Some(1) && failed.stdout.contains("exit status: 3"), "{failed:#?}");
    let late = through(&net, &[&only[..], &["--play", "sleep 600", "--within", "1"]].concat());
    assert!(late.status.code() == Some(1) && late.stdout.contains("within 1 s"), "{late:#?}");
    // Without a packet the script's rule has no effect.
    let idle = through(&net, &[&only[..], &["--play", "true"]].concat());
    assert!(idle.stdout.contains("too few packets"), "{idle:#?}");
}

/// True if a process runs: one that has ended, and waits to be reaped, does not.
fn runs(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|line| line.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z')))
}

#[test]
fn processes_left_by_the_command_are_ended() {
    let Some(net) = Wired::new("processes_left_by_the_command_are_ended") else { return };
    let left = net.file("left");
    for (play, within, told) in [
        ("sleep 600 & echo $! >> LEFT", "60", "too few packets"),
        ("(trap '' TERM; exec sleep 600) & echo $! >> LEFT", "60", "too few packets"),
        ("sleep 600 & echo $! >> LEFT; wait", "1", "within 1 s"),
    ] {
        let play = play.replace("LEFT", &left);
        let done = through(&net, &["--filter", "write/middle_lost", "--play", &play, "--within", within]);
        assert!(done.stdout.contains(told), "{done:#?}");
        let pids = std::fs::read_to_string(&left).expect("numbers of processes");
        std::fs::remove_file(&left).expect("a file");
        assert!(pids.lines().count() == 1 && !pids.lines().any(runs), "{play}: {pids}");
    }
}

#[test]
fn wrong_use_of_through_is_told() {
    run("conform --through a b").failed(2, &["--play"]);
    run("conform --through a b --play true --target 192.0.2.2").failed(2, &["--target"]);
    run("conform --through a b --play true --filter no-such").failed(2, &["roxie wire --scripts"]);
    run("conform --through no such --play true --filter send/").failed(77, &["the wire"]);
}
