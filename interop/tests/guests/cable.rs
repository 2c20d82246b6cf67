//! `roxie wire` between two peers that have nothing of Roxie's: perftest on the rdma_rxe of two guests, with packets
//! lost, marked, doubled, damaged and late by script.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use interop::end::End;
use interop::end::Ended;
use interop::guest::{Guest, Image, output_folder};
use interop::local::program::{roxie, roxie_for_tests};
use interop::network::{LINK_MTU, Namespace, run};
use interop::peer::Peer;
use interop::rows::Family;
use roxie_conform_bench::through::SCRIPTS;
use serde_json::Value;

/// perftest's TCP port.
const PORT: u16 = 18515;
/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running wire. Dropping it kills it.
struct Wire(Child);

impl Wire {
    /// Starts a wire with a script between the two halves of the site, and waits until it carries frames.
    fn start(namespace: &Namespace, script: &str) -> Wire {
        let captures = ["a", "b"].map(|end| output_folder().join(format!("cable-{end}.pcapng")));
        let mut command = namespace.command(&roxie().expect("roxie").to_string_lossy());
        command.args(["wire", "near", "far", "--script", script, "--json", "--capture"]).args(captures);
        let mut wire = Wire(command.stdout(Stdio::piped()).spawn().expect("the wire starts"));
        let mut line = String::new();
        let output = wire.0.stdout.as_mut().expect("a pipe");
        BufReader::with_capacity(1, output).read_line(&mut line).expect("a line");
        assert!(line.contains('{'), "the wire is not ready: {line:?}");
        wire
    }

    /// Ends the wire, and returns its report.
    fn end(mut self) -> Value {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        let mut text = String::new();
        self.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("the report");
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "the wire: {status} {text}");
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Either call fails only if the wire has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a second bridge, and the interfaces `near` and `far` between which the wire goes.
fn split(namespace: &Namespace) {
    let mtu = LINK_MTU.to_string();
    let ip = |line: &str| {
        let mut command = Command::new("ip");
        command.args(["-n", namespace.name()]).args(line.split(' '));
        run(&mut command).expect("ip");
    };
    ip(&format!("link add br1 mtu {mtu} type bridge mcast_snooping 0"));
    ip("link set br1 up");
    for (end, bridge) in [("near", "br0"), ("far", "br1")] {
        ip(&format!("link add {end} mtu {mtu} txqueuelen 10000 type veth peer name {end}-br mtu {mtu}"));
        // The wire forwards every frame and answers none.
        ip(&format!("link set {end} addrgenmode none up"));
        ip(&format!("link set {end}-br addrgenmode none master {bridge} up"));
    }
}

fn start(peer: &mut Peer, program: &str, line: &str) -> usize {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    peer.spawn(program, &words).expect("the program")
}

/// Returns the index of a guest's IPv4 GID.
fn gid(peer: &mut Peer) -> u32 {
    let address = peer.address(Family::V4).expect("an address");
    peer.gids().iter().find(|gid| gid.address == address).map_or(0, |gid| gid.index)
}

/// Runs a program between the guests: how the server and the client ended.
fn play(server: &mut Peer, client: &mut Peer, program: &str, options: &str) -> [Ended; 2] {
    let there = server.address(Family::V4).expect("an address");
    let line = |gid: u32| format!("-F -x {gid} -m 1024 -n 16 -t 4 -u 15 {options}");
    let (serves, client_line) = (line(gid(server)), line(gid(client)));
    let serving = start(server, program, &serves);
    assert!(server.wait_for_listener(PORT, PATIENCE).expect("a session"), "{program} does not listen");
    let client_run = start(client, program, &format!("{client_line} {there}"));
    let client = client.wait(client_run, PATIENCE).expect("the client ends");
    [server.wait(serving, PATIENCE).expect("the server ends"), client]
}

/// Returns the ladder of both captures.
fn ladder() -> String {
    let captures = ["a", "b"].map(|end| output_folder().join(format!("cable-{end}.pcapng")));
    let mut command = Command::new(roxie().expect("roxie"));
    run(command.args(["decode", "--ladder"]).args(captures)).expect("the ladder")
}

#[test]
fn wire_changes_packets_of_two_foreign_peers() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("wire_changes_packets_of_two_foreign_peers") else { return };
    roxie_for_tests().expect("roxie");
    let namespace = Namespace::create().expect("the namespace");
    let guests = [2, 3].map(|number| {
        let log = output_folder().join(format!("test-cable-{number}.log"));
        Guest::start(&image, &namespace, number, &log).expect("the guest")
    });
    split(&namespace);
    let [local, remote] = &guests;
    let (mut server, mut client) =
        (local.peer(&namespace).expect("a session"), remote.peer(&namespace).expect("a session"));
    run(Command::new("ip").args(["-n", namespace.name(), "link", "set", "tap3", "master", "br1"]))
        .expect("ip");
    // A quarter of the scripts, of each program; `ALL_SCRIPTS=1`, as in `make interop`, takes all.
    let step = if std::env::var_os("ALL_SCRIPTS").is_some() { 1 } else { 4 };
    for script in SCRIPTS.into_iter().step_by(step) {
        let (program, size) = (format!("ib_{}_bw", script.operation()), "-s 8192");
        let options = if script.operation() == "atomic" { "" } else { size };
        let wire = Wire::start(&namespace, script.name);
        let [serving, client_run] = play(&mut server, &mut client, &program, options);
        let report = wire.end();
        let about = format!("{}: {report:#}\n{serving:?}\n{client_run:?}\n{}", script.name, ladder());
        assert_eq!((serving.code, client_run.code), (Some(0), Some(0)), "{about}");
        for rule in report["rules"].as_array().expect("an array") {
            assert_ne!(rule["applied"], Value::Bool(false), "{about}");
            assert_ne!(rule["matched"], Value::from(0), "{about}");
        }
        let verdicts = report["verdicts"].as_array().expect("an array");
        let passed: Vec<&str> = verdicts
            .iter()
            .filter(|verdict| verdict["verdict"] == "keeps")
            .filter_map(|verdict| verdict["name"].as_str())
            .collect();
        let followed = format!("wire/script/{}", script.name);
        assert!(passed.contains(&followed.as_str()) && passed.contains(&"wire/recovers"), "{about}");
        let forwarding = &report["forwarding_us"];
        println!(
            "{}: {} rules kept, forwarded in {} us, 99 of 100 in {}",
            script.name,
            passed.len(),
            forwarding["median"],
            forwarding["p99"]
        );
    }
}
