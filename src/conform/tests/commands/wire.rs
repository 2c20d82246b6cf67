//! `roxie wire` between two interfaces, with stock rules and with wrong ones.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::netdev::{Links, NetNs};
use roxie_conform_bench::through::SCRIPTS;

use crate::{A, Finished, Running, network, roxie, run};

/// Three namespaces: the ends, and between them the wire, on interfaces without an address.
pub(super) struct Wired {
    pub(super) left: NetNs,
    pub(super) right: NetNs,
    pub(super) middle: NetNs,
    folder: tempfile::TempDir,
    _turn: network::Turn,
}

impl Wired {
    /// `None`, with a message, if that is not possible here.
    pub(super) fn new(test: &str) -> Option<Wired> {
        let turn = network::turn(test)?;
        let [left, right, middle] =
            ["l", "r", "w"].map(|end| NetNs::create(&format!("{test}-{end}")).expect("a namespace"));
        for (ns, name, inner, ip) in
            [(&left, "left", "a", "192.0.2.1/24"), (&right, "right", "b", "192.0.2.2/24")]
        {
            let mut links = Links::open_in(ns).expect("netlink");
            links.create_veth(name, &middle, inner, 1).expect("a pair");
            links.add_address(name, ip.parse().expect("an address")).expect("an address");
            links.set_up(name, true).expect("up");
            Links::open_in(&middle).expect("netlink").set_up(inner, true).expect("up");
        }
        let folder = tempfile::tempdir().expect("a folder");
        Some(Wired { left, right, middle, folder, _turn: turn })
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts the wire with these rules, and waits until it forwards.
    fn wire(&self, rules: &[&str]) -> Running {
        let options: Vec<&str> = rules.iter().flat_map(|rule| ["--rule", *rule]).collect();
        self.start(&options)
    }

    /// Starts the wire with these options, and waits until it forwards.
    fn start(&self, options: &[&str]) -> Running {
        let mut command = roxie("wire a b --capture");
        command.args([self.file("a"), self.file("b")]).args(options);
        let mut wire = self.middle.run(|| Running::start(command)).expect("a namespace");
        if options.contains(&"--json") {
            assert!(wire.stdout.recv().expect("a line").contains("\"ready\""));
        } else {
            wire.wait_for("<->");
        }
        wire
    }

    /// Runs an operation from the right to the left. Returns both results.
    fn perf(&self, operation: &str) -> (Finished, Finished) {
        let mut server =
            self.left.run(|| Running::start(roxie(&format!("perf {operation}")))).expect("a namespace");
        server.wait_for("waiting for a peer");
        let client = self.right.run(|| run(&format!("perf {operation} {A}"))).expect("a namespace");
        (server.finish(), client)
    }

    /// Returns the ladder of both captures.
    fn ladder(&self) -> String {
        let mut command = roxie("decode --ladder");
        command.args([self.file("a"), self.file("b")]);
        Running::start(command).finish().stdout
    }
}

fn end(wire: Running) -> Finished {
    kill(Pid::from_raw(wire.child.id().cast_signed()), Signal::SIGTERM).expect("it runs");
    wire.finish()
}

#[test]
fn scripts_change_packets_and_connections_hold() {
    let Some(net) = Wired::new("scripts_change_packets_and_connections_hold") else { return };
    for script in SCRIPTS {
        let wire =
            net.start(&["--script", script.name, "--html", &net.file("html"), "--junit", &net.file("xml")]);
        let operation = script.operation();
        let size = if operation == "atomic" { "" } else { "-s 8192 -m 1024" };
        let (server, client) = net.perf(&format!("{operation} bw --port udp -n 16 -t 4 {size}"));
        let wire = end(wire).succeeded();
        let ladder = net.ladder();
        let about = format!("{}: {wire:#?}\n{ladder}", script.name);
        assert!(server.status.success() && client.status.success(), "{server:#?}\n{client:#?}\n{about}");
        assert!(!wire.stdout.contains("too few for an effect"), "{about}");
        assert!(ladder.contains("fault: ") || !script.rules.starts_with("drop"), "{about}");
        let followed = format!("keeps      wire/script/{}", script.name);
        assert!(wire.stdout.contains(&followed), "{about}");
        assert!(wire.stdout.contains("keeps      wire/recovers"), "{about}");
        let read = |name: &str| std::fs::read_to_string(net.file(name)).expect("a report");
        assert!(read("html").contains("wire/recovers") && read("xml").contains("failures=\"0\""), "{about}");
    }
}

#[test]
fn random_losses_are_judged() {
    let Some(net) = Wired::new("random_losses_are_judged") else { return };
    let wire = net.start(&["--judge", "--rule", "drop kind=data 3%"]);
    let (server, client) = net.perf("write bw --port udp -n 16 -t 4 -s 8192 -m 1024");
    let wire = end(wire).succeeded();
    assert!(server.status.success() && client.status.success(), "{server:#?}\n{client:#?}\n{wire:#?}");
    for rule in ["again_from_the_oldest", "answers_what_arrived", "messages_once", "recovers"] {
        assert!(wire.stdout.contains(&format!("keeps      wire/{rule}")), "{rule}: {wire:#?}");
    }
}

/// A responder that executes a repeated atomic again is found by the values that it answers.
#[cfg(feature = "planted-bugs")]
#[test]
fn judge_finds_an_atomic_executed_again() {
    let Some(net) = Wired::new("judge_finds_an_atomic_executed_again") else { return };
    let wire = net.start(&["--script", "atomic/request_twice", "--json"]);
    let mut server = roxie("perf atomic bw --port udp -n 16 -t 4");
    server.env("ROXIE_PLANTED_BUG", "AtomicExecutedAgain");
    let mut server = net.left.run(|| Running::start(server)).expect("a namespace");
    server.wait_for("waiting for a peer");
    let client =
        net.right.run(|| run(&format!("perf atomic bw --port udp -n 16 -t 4 {A}"))).expect("a namespace");
    drop(server);
    let wire = end(wire);
    assert_eq!(wire.status.code(), Some(1), "{client:#?}\n{wire:#?}");
    let report = &wire.json()[0];
    let verdicts = report["verdicts"].as_array().expect("an array");
    let adds = verdicts.iter().find(|verdict| verdict["name"] == "wire/adds_once").expect("the rule");
    assert_eq!(adds["verdict"], "breaks", "{report:#}");
}

#[test]
fn scripts_are_listed_by_name() {
    let listed = run("wire --scripts").succeeded().stdout;
    assert_eq!(listed.lines().count(), SCRIPTS.len());
    assert!(listed.contains("write/middle_lost") && listed.contains("nak"), "{listed}");
    run("wire x y --script no/such").failed(2, &["`no/such` is no script", "--scripts"]);
    run("wire x").failed(2, &["B"]);
}

#[test]
fn marks_reach_the_receiver_of_dcqcn() {
    let Some(net) = Wired::new("marks_reach_the_receiver_of_dcqcn") else { return };
    let wire = net.wire(&["mark kind=data nth20"]);
    let (server, client) = net.perf("write bw --port udp -n 32 -t 4 -s 8192 -m 1024 --cc dcqcn --speed 1G");
    end(wire).succeeded();
    let ladder = net.ladder();
    assert!(server.status.success() && client.status.success(), "{server:#?}\n{client:#?}\n{ladder}");
    assert!(ladder.contains("CNP"), "{ladder}");
}

/// TCP in segments that the kernel has merged, and datagrams of UDP, arrive whole.
#[test]
fn merged_frames_of_tcp_are_carried() {
    let Some(net) = Wired::new("merged_frames_of_tcp_are_carried") else { return };
    let wire = net.wire(&[]);
    let bytes: Vec<u8> = (0..4_000_000_u32).map(|n| (n ^ n >> 9) as u8).collect();
    let listener =
        net.left.run(|| std::net::TcpListener::bind((A, 7)).expect("a port")).expect("a namespace");
    let received = std::thread::spawn(move || {
        let mut all = Vec::new();
        let (mut stream, _) = listener.accept().expect("a connection");
        std::io::Read::read_to_end(&mut stream, &mut all).expect("an end");
        all
    });
    let mut stream =
        net.right.run(|| std::net::TcpStream::connect((A, 7)).expect("connected")).expect("a namespace");
    std::io::Write::write_all(&mut stream, &bytes).expect("sent");
    drop(stream);
    assert_eq!(received.join().expect("no panic"), bytes);
    let report = end(wire).succeeded().stdout;
    assert!(report.contains("b -> a"), "{report}");
}

#[test]
fn rules_file_and_json_report_work() {
    let Some(net) = Wired::new("rules_file_and_json_report_work") else { return };
    let script = net.file("script");
    std::fs::write(&script, "# two rules\ndrop opcode=SEND_LAST nth2 from=b\n\nmark kind=cm\n")
        .expect("a file");
    let mut command = roxie("wire a b --json --rules");
    command.arg(&script);
    let wire = net.middle.run(|| Running::start(command)).expect("a namespace");
    assert!(wire.stdout.recv().expect("a line").contains("\"ready\""));
    let (server, client) = net.perf("send bw --port udp -n 8 -t 2 -s 8192 -m 1024");
    server.succeeded();
    client.succeeded();
    let report = &end(wire).succeeded().json()[0];
    let [to_b, to_a] = [&report["directions"][0], &report["directions"][1]];
    assert_eq!((&to_b["from"], &to_a["from"]), (&"a".into(), &"b".into()), "{report}");
    assert_eq!((&to_b["dropped"], &to_a["dropped"]), (&0.into(), &1.into()), "{report}");
    assert_eq!(report["rules"][0]["applied"], true, "{report}");
    assert_eq!((&report["rules"][1]["matched"], &report["rules"][1]["applied"]), (&0.into(), &false.into()));
    let sent = |direction: &serde_json::Value| direction["sent"].as_u64().expect("a count");
    assert_eq!(to_a["received"].as_u64(), Some(sent(to_a) + 1), "{report}");
}

/// A device takes the same rules.
#[test]
fn rules_act_on_devices_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("capture").display().to_string();
    let mut command =
        roxie(&format!("perf write bw --port memory -n 8 -t 2 -s 8192 -m 1024 --capture {file}"));
    command.args(["--rule", "drop kind=ack from=peer once"]);
    command.args(["--rule", "drop opcode=WRITE_MIDDLE from=self psn=+3 once"]);
    Running::start(command).finish().succeeded();
    let ladder = run(&format!("decode --ladder {file}")).succeeded().stdout;
    // The capture shows what the device sees, and so not what it lost.
    assert!(ladder.contains("NAK") && ladder.contains("again"), "{ladder}");
    let mut command = roxie("perf write bw --port memory --rule");
    command.arg("drop from=veth0");
    Running::start(command).finish().failed(3, &["from=veth0 is no end", "self or peer"]);
}

#[test]
fn wrong_usage_is_explained() {
    run("wire x x").failed(2, &["both ends are x"]);
    run("wire x y --fault rx.drop=0.1").failed(2, &["both directions", "from=veth0"]);
    run("wire x y --rules /nowhere").failed(2, &["the rules /nowhere"]);
    let rule = |rule: &str| {
        let mut command = roxie("wire x y --rule");
        command.arg(rule);
        Running::start(command).finish()
    };
    rule("drop opcode=SND").failed(2, &["`SND` is no opcode", "SEND_ONLY"]);
    rule("drop from=z").failed(2, &["from=z is no end", "x or y"]);
    run("wire x y").failed(3, &["x"]);
}

#[test]
fn unusable_interfaces_are_refused() {
    let Some(net) = Wired::new("unusable_interfaces_are_refused") else { return };
    let wire = |ns: &NetNs, ends: &str| ns.run(|| run(&format!("wire {ends}"))).expect("a namespace");
    wire(&net.left, "left lo").failed(3, &["left has the address 192.0.2.1", "ip addr flush dev left"]);
    Links::open_in(&net.middle).expect("netlink").set_up("a", false).expect("down");
    wire(&net.middle, "a b").failed(3, &["a is down", "ip link set a up"]);
    Links::open_in(&net.middle).expect("netlink").set_up("a", true).expect("up");
    let wire = net.wire(&[]);
    Links::open_in(&net.right).expect("netlink").delete("right").expect("deleted");
    // The wire notices by the first frame that it cannot send.
    let socket = net.left.run(|| std::net::UdpSocket::bind((A, 0)).expect("a socket")).expect("a namespace");
    let _ = socket.set_broadcast(true);
    let mut wire = wire;
    while wire.child.try_wait().expect("a state").is_none() {
        let _ = socket.send_to(b"anybody?", "192.0.2.255:9");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wire.finish().failed(1, &["a or b has gone"]);
    assert!(Path::new(&net.file("a")).exists());
}
