//! `roxie capture`: frames of programs that run.

mod extcap;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::unistd::Pid;
use roxie::capture::{Direction, Reader};
use roxie::engine::Drive;
use roxie::host::inspect::{AttachError, Snapshot, attach, snapshots};
use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, PortPlan, ProtectionDomain,
    QueuePair, Stack,
};
use roxie::netdev::NetNs;
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::threads::as_user;
use roxie::time::Nanos;
use roxie::verbs::{Access, SendFlags, SendWr, WcStatus};

use crate::network::Net;
use crate::{A, Finished, LIMIT, Running};

const LENGTH: usize = 64 << 10;

/// One end of a connection, in this process: nothing moves but in the test's own calls.
struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    _pd: ProtectionDomain,
}

impl End {
    fn open(ns: &NetNs, port: &str, interface: &str, address: &str) -> End {
        let address: IpAddr = address.parse().unwrap();
        let (stack, config) = (Stack::default(), DeviceConfig::caller_only());
        let open = || match port {
            "two workers" => {
                let drive = Drive::Thread { core: None, spin: Nanos(10_000) };
                let several = DeviceConfig { drive, cores: vec![0, 1], ..DeviceConfig::default() };
                Device::open_unclaimed(interface, PortPlan::Packet, stack.clone(), &several)
            }
            "xdp" => Device::open_xdp(&XdpConfig::new(interface), &stack, &config),
            "packet" => Device::open_packet(&PacketConfig::new(interface), &stack, &config),
            _ => {
                let udp = UdpConfig { addresses: vec![address], ..UdpConfig::default() };
                Device::open_udp(&udp, &stack, &config)
            }
        };
        let device = ns.run(open).unwrap().unwrap();
        ns.run(|| device.claim()).unwrap().unwrap();
        End::on(device)
    }

    fn on(device: Device) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let qp = pd.queue_pair(&cq).signal_all().create().unwrap();
        let memory = pd.register(LENGTH, Access::READ_WRITE).unwrap();
        End { device, cq, qp, memory, _pd: pd }
    }

    fn polled(&self) -> usize {
        let done = std::iter::from_fn(|| self.cq.poll_one());
        done.inspect(|wc| assert_eq!(wc.status, WcStatus::Success, "{wc:?}")).count()
    }

    /// Frames sent and received.
    fn counted(&self) -> [u64; 2] {
        ["sent_pkts", "rcvd_pkts"].map(|name| self.device.counter(name))
    }
}

/// Two connected ends.
struct Pair {
    local: End,
    remote: End,
}

impl Pair {
    fn new(net: &Net, port: &str) -> Pair {
        let local = End::open(&net.a, port, "left", A);
        let remote = End::open(&net.b, port, "right", "192.0.2.2");
        Pair::connected(net, local, remote)
    }

    /// Connects another QP of each device.
    fn another(&self, net: &Net) -> Pair {
        let [local, remote] = [&self.local, &self.remote].map(|end| End::on(end.device.clone()));
        Pair::connected(net, local, remote)
    }

    fn connected(net: &Net, near: End, far: End) -> Pair {
        let index = |end: &End, at: &str| {
            let at: IpAddr = at.parse().unwrap();
            end.device.gids().iter().position(|entry| entry.gid.to_ip() == at).unwrap_or(0)
        };
        let here = near.qp.endpoint(index(&near, A)).unwrap();
        let there = far.qp.endpoint(index(&far, "192.0.2.2")).unwrap();
        let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
        net.a.run(|| near.qp.connect(&here, &there, &options)).unwrap().unwrap();
        net.b.run(|| far.qp.connect(&there, &here, &options)).unwrap().unwrap();
        Pair { local: near, remote: far }
    }

    /// Writes messages to the far end, and waits for their completions.
    fn write(&self, messages: usize) {
        let (mut posted, mut done) = (0, 0);
        let until = Instant::now() + LIMIT;
        while done < messages {
            while posted < messages && posted - done < 16 {
                let wr = SendWr {
                    flags: SendFlags::SIGNALED,
                    ..SendWr::write(self.remote.memory.address(), self.remote.memory.rkey())
                };
                self.local.qp.post_send(&wr, &[self.local.memory.sge(0, LENGTH as u32)]).unwrap();
                posted += 1;
            }
            done += self.local.polled();
            self.remote.polled();
            assert!(Instant::now() < until, "{done} of {messages}");
        }
    }
}

/// What a capture has: packets in and out, and how many have no comment.
#[derive(Debug, Default, PartialEq, Eq)]
struct Content {
    sent: u64,
    received: u64,
    without_comment: u64,
    /// Sum of the frames that comments say are missing.
    missing: u64,
}

fn read(capture: impl Read) -> Content {
    let mut reader = Reader::new(capture).unwrap();
    let mut read = Content::default();
    while let Some(record) = reader.next().unwrap() {
        match record.direction {
            Some(Direction::Out) => read.sent += 1,
            Some(Direction::In) => read.received += 1,
            None => panic!("{record:?} without a direction"),
        }
        let comment = record.comment.unwrap_or_default();
        read.without_comment += u64::from(comment.is_empty());
        let missing = comment.strip_prefix("capture: ").and_then(|rest| rest.split(' ').next());
        read.missing += missing.map_or(0, |count| count.parse::<u64>().unwrap());
    }
    read
}

/// Returns the counts of the last block of interface statistics: frames seen, and dropped.
fn statistics(capture: &[u8]) -> [u64; 2] {
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut last) = (0, None);
    while at < capture.len() {
        if word(at) == 5 {
            last = Some(at);
        }
        at += word(at + 4);
    }
    let long = |at: usize| u64::from_le_bytes(capture[at..at + 8].try_into().unwrap());
    // Type, length, interface, time, then two options of 4 and 8 bytes.
    last.map(|at| [long(at + 24), long(at + 36)]).expect("statistics")
}

fn interrupt(running: &Running) {
    kill(Pid::from_raw(running.child.id().cast_signed()), Signal::SIGINT).unwrap();
}

/// Starts a capture at the left, and waits until it captures.
fn capturing(net: &Net, arguments: &str) -> Running {
    let mut capture = net.start_left(&format!("capture {arguments}"));
    capture.wait_for("capturing");
    capture
}

fn device_of(net: &Net, pid: u32) -> Snapshot {
    let view = net.a.run(snapshots).unwrap().unwrap();
    view.snapshots.into_iter().find(|device| device.pid == pid).expect("a device")
}

/// Starts a capture of a process at the left, and waits until its device is captured.
fn attached(net: &Net, pid: u32, arguments: &str) -> Running {
    let capture = net.start_left(&format!("capture {arguments}"));
    wait_until_captured(net, pid);
    capture
}

fn wait_until_captured(net: &Net, pid: u32) {
    let until = Instant::now() + LIMIT;
    while !device_of(net, pid).port.as_received().contains("pcap") {
        assert!(Instant::now() < until, "no capture of {pid}");
        std::thread::yield_now();
    }
}

/// Waits until a process's device has no capture.
fn wait_until_free(net: &Net, pid: u32) {
    let until = Instant::now() + LIMIT;
    while device_of(net, pid).port.as_received().contains("pcap") {
        assert!(Instant::now() < until, "{:?}", device_of(net, pid).port);
        std::thread::yield_now();
    }
}

#[test]
fn capture_has_every_packet_with_its_reason() {
    let Some(net) = Net::new("capture") else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("left.pcapng");
    for port in ["udp", "packet", "xdp"] {
        let pair = Pair::new(&net, port);
        pair.write(3);
        let (before, own) = (pair.local.counted(), std::process::id());
        let name = pair.local.device.port().name;
        let capture = capturing(&net, &format!("--pid {own} -w {}", file.display()));
        assert_eq!(pair.local.device.port().name, format!("pcap({name})"));
        pair.write(20);
        let after = pair.local.counted();
        interrupt(&capture);
        let done = capture.finish().succeeded();
        let [sent, received] = [0, 1].map(|i| after[i] - before[i]);
        assert!(sent >= 20 * (LENGTH as u64) / 4096 && received > 0);
        let bytes = fs::read(&file).unwrap();
        assert_eq!(read(&bytes[..]), Content { sent, received, ..Content::default() }, "{port}");
        assert_eq!(statistics(&bytes), [sent + received, 0]);
        let expected = format!("{} packets captured, none dropped", sent + received);
        assert!(done.stderr.contains(&expected), "{done:#?}");
        // The program goes on as before, and can be captured again.
        assert_eq!(pair.local.device.port().name, name);
        assert_eq!(pair.local.device.counter("live_capture_packets"), 0);
        pair.write(3);
        let again = attached(&net, own, &format!("--dev left --json --count 1 -w {}", file.display()));
        pair.write(1);
        let rows = again.finish().succeeded().json();
        assert_eq!((&rows[0]["event"], &rows[0]["pid"]), (&"ready".into(), &own.into()));
        assert_eq!(
            (&rows[1]["event"], &rows[1]["captured"], &rows[1]["ended_by"]),
            (&"end".into(), &1.into(), &"count".into())
        );
        assert_eq!(read(&fs::read(&file).unwrap()[..]).sent, 1);
    }
}

#[test]
fn capture_has_packets_of_several_workers() {
    let Some(net) = Net::new("capture-workers") else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("left.pcapng");
    let first = Pair::new(&net, "two workers");
    let second = first.another(&net);
    let before = first.local.counted();
    let capture = capturing(&net, &format!("--pid {} -w {}", std::process::id(), file.display()));
    first.write(20);
    second.write(20);
    let [sent, received] = [0, 1].map(|i| first.local.counted()[i] - before[i]);
    interrupt(&capture);
    capture.finish().succeeded();
    assert!(sent >= 40 * (LENGTH as u64) / 4096 && received > 0);
    let bytes = fs::read(&file).unwrap();
    assert_eq!(read(&bytes[..]), Content { sent, received, ..Content::default() });
    assert_eq!(statistics(&bytes), [sent + received, 0]);
    assert_eq!(first.local.device.counter("live_capture_packets"), 0, "the capture has left each worker");
}

#[test]
fn packets_that_a_slow_reader_loses_are_counted() {
    let Some(net) = Net::new("capture-slow") else { return };
    let pair = Pair::new(&net, "udp");
    let device = device_of(&net, std::process::id());
    let mut reader = net.a.run(|| attach(&device, 0)).unwrap().unwrap();
    let before = pair.local.counted();
    // More than the two queues hold. Nothing is read meanwhile, and no call waits for the reader.
    pair.write(2_500);
    let after = pair.local.counted();
    let refused = net.a.run(|| attach(&device, 0)).unwrap().unwrap_err();
    assert!(
        matches!(&refused, AttachError::Refused { why, .. } if why.as_received().contains("captures its frames already")),
        "{refused}"
    );
    reader.stop().unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let (read, [seen, dropped]) = (read(&bytes[..]), statistics(&bytes));
    assert!(dropped > 0, "{read:?}");
    assert_eq!(seen, after[0] + after[1] - before[0] - before[1]);
    assert_eq!(read.sent + read.received + dropped, seen, "captured and dropped are all");
    assert!(read.missing <= dropped);
    // A cut packet keeps its length.
    wait_until_free(&net, std::process::id());
    let mut reader = net.a.run(|| attach(&device, 64)).unwrap().unwrap();
    pair.write(1);
    reader.stop().unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let mut records = Reader::new(&bytes[..]).unwrap();
    let mut longest = 0;
    while let Some(record) = records.next().unwrap() {
        assert!(record.data.len() <= 64);
        longest = longest.max(record.wire_len);
    }
    assert!(longest > 1024, "{longest}");
}

#[test]
fn reader_that_takes_nothing_delays_no_close() {
    let Some(net) = Net::new("capture-stalled") else { return };
    let pair = Pair::new(&net, "udp");
    let device = device_of(&net, std::process::id());
    let reader = net.a.run(|| attach(&device, 0)).unwrap().unwrap();
    pair.write(50);
    drop(pair);
    let refused = net.a.run(|| attach(&device, 0)).unwrap().unwrap_err();
    assert!(matches!(refused, AttachError::Gone { .. }), "{refused}");
    drop(reader);
}

/// Descriptors, threads and mappings of a process.
fn held(pid: u32) -> BTreeMap<&'static str, usize> {
    let entries = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
    ["fd", "task"].map(|folder| (folder, entries(folder))).into()
}

#[test]
fn capture_leaves_nothing_in_the_program() {
    let Some(net) = Net::new("capture-trace") else { return };
    let server = net.serve("pingpong rc --port udp");
    let pid = server.child.id();
    let before = held(pid);
    // By the end of the capture, and by the death of its reader.
    for killed in [false, true] {
        let mut capture = capturing(&net, &format!("--pid {pid} -w /dev/null"));
        assert!(held(pid).values().sum::<usize>() > before.values().sum());
        if killed {
            capture.kill();
        } else {
            interrupt(&capture);
        }
        let done = capture.finish();
        assert_eq!(done.status.success(), !killed);
        wait_until_free(&net, pid);
        let until = Instant::now() + LIMIT;
        while held(pid) != before {
            assert!(Instant::now() < until, "it held {before:?}, and holds {:?}", held(pid));
            std::thread::yield_now();
        }
    }
    net.right("pingpong rc --port udp 192.0.2.1").succeeded();
    server.finish().succeeded();
}

#[test]
fn end_of_program_ends_the_capture() {
    let Some(net) = Net::new("capture-end") else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("run.pcapng");
    let ready = |pid: u32| attached(&net, pid, &format!("--pid {pid} --json -w {}", file.display()));
    let server = net.serve("pingpong rc --port udp -n 200");
    let capture = ready(server.child.id());
    net.right("pingpong rc --port udp -n 200 192.0.2.1").succeeded();
    server.finish().succeeded();
    let end = &capture.finish().succeeded().json()[1];
    assert_eq!(
        (&end["ended_by"], &end["dropped"], &end["is_whole"]),
        (&"program".into(), &0.into(), &true.into()),
        "{end}"
    );
    let whole = read(&fs::read(&file).unwrap()[..]);
    assert!(whole.sent >= 200 && whole.received >= 200, "{whole:?}");
    assert_eq!(end["captured"], whole.sent + whole.received);

    let mut server = net.serve("pingpong rc --port udp -n 1000000");
    let capture = ready(server.child.id());
    let mut client = net.start_right("pingpong rc --port udp -n 1000000 192.0.2.1");
    net.wait_until_left_has_received(1000);
    server.kill();
    server.finish().was_killed();
    client.kill();
    let end = &capture.finish().succeeded().json()[1];
    assert_eq!((&end["ended_by"], &end["is_whole"]), (&"program".into(), &false.into()), "{end}");
    let part = read(&fs::read(&file).unwrap()[..]);
    assert_eq!(end["captured"], part.sent + part.received, "what is there is whole");
}

/// A copy of the program that any user may start.
fn public_copy(place: &Path) -> std::path::PathBuf {
    let program = place.join("roxie");
    crate::in_time::copy_program(env!("CARGO_BIN_EXE_roxie"), &program);
    fs::set_permissions(place, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

#[test]
fn only_own_user_and_root_may_capture() {
    let Some(net) = Net::new("capture-users") else { return };
    let place = tempfile::tempdir().unwrap();
    let program = public_copy(place.path());
    let start = |user: &[&str], arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65533", "--regid=65533", "--clear-groups"]).args(user);
        command.arg(&program).args(arguments.split(' '));
        net.a.run(|| Running::start(command)).unwrap()
    };
    let server = net.serve("pingpong rc --port udp");
    let of_root = start(&[], &format!("capture --pid {} -w /dev/null", server.child.id())).finish();
    of_root.failed(3, &["belongs to user root", "only that user and root"]);
    // The socket itself refuses as well.
    let device = device_of(&net, server.child.id());
    let attached = net.a.run(|| as_user(65533, || attach(&device, 0)).unwrap()).unwrap();
    let refused = attached.unwrap_err();
    assert!(matches!(&refused, AttachError::OtherUser { peer } if peer.uid == Some(0)), "{refused}");
    drop(server);
    // In a user namespace, root is a user without a number.
    for user in [&[][..], &["unshare", "--user", "--map-current-user"]] {
        let mut server = start(user, "pingpong rc --port udp");
        server.wait_for("waiting for a peer");
        let pid = server.child.id();
        for own in [false, true] {
            let arguments = format!("capture --pid {pid} --seconds 1 -w /dev/null");
            let done = if own { start(&[], &arguments).finish() } else { net.left(&arguments) };
            let done = done.succeeded();
            assert!(done.stderr.contains("0 packets captured, none dropped"), "{done:#?}");
            wait_until_free(&net, pid);
        }
    }
}

/// In a container, user 65534 has the number of all users that the container does not map.
#[test]
fn program_of_nobody_is_captured_in_its_namespace() {
    let Some(net) = Net::new("capture-nobody") else { return };
    let place = tempfile::tempdir().unwrap();
    let program = public_copy(place.path());
    let start = |user: &str, namespace: &str, arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
        command.args(namespace.split_whitespace()).arg(&program).args(arguments.split(' '));
        net.a.run(|| Running::start(command)).unwrap()
    };
    let mut server = start("65534", "unshare --user --map-current-user", "pingpong rc --port udp");
    server.wait_for("waiting for a peer");
    let pid = server.child.id();
    let arguments = format!("capture --pid {pid} --seconds 1 -w /dev/null");
    let entered = format!("nsenter --user --preserve-credentials --target {pid}");
    let outside = start("65533", "", &arguments).finish();
    outside.failed(3, &["only that user and root may capture its frames"]);
    let inside = start("65534", &entered, &arguments).finish();
    // Before Linux 6.11, no process but the launcher's tells users apart there.
    match inside.status.success() {
        true => assert!(inside.stderr.contains("0 packets captured"), "{inside:#?}"),
        false => drop(inside.failed(3, &["this user namespace does not tell from others"])),
    }
}

#[test]
fn program_with_capabilities_is_captured_by_root() {
    let Some(net) = Net::new("capture-capabilities") else { return };
    let place = tempfile::tempdir().unwrap();
    let program = public_copy(place.path());
    let start = |capabilities: &str, arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65533", "--regid=65533", "--clear-groups"]);
        command.args([format!("--inh-caps={capabilities}"), format!("--ambient-caps={capabilities}")]);
        command.arg(&program).args(arguments.split(' '));
        net.a.run(|| Running::start(command)).unwrap()
    };
    let mut server = start("+net_raw", "pingpong rc --port packet");
    server.wait_for("waiting for a peer");
    let pid = server.child.id();
    let arguments = format!("capture --pid {pid} --seconds 1 -w /dev/null");
    let refused = start("-all", &arguments).finish();
    refused.failed(3, &["only to who may read its memory", "capabilities that this program lacks"]);
    for by_equal in [true, false] {
        let done = if by_equal { start("+net_raw", &arguments).finish() } else { net.left(&arguments) };
        assert!(done.succeeded().stderr.contains("0 packets captured"), "by equal: {by_equal}");
        wait_until_free(&net, pid);
    }
    // A reader that does not show anything gets no frame.
    let device = device_of(&net, pid);
    let answer = net.a.run(|| old_reader(&device.socket)).unwrap();
    assert!(answer.contains("update the program that captures"), "{answer}");
}

/// Asks for frames as older releases did, and returns the answer.
fn old_reader(device: &str) -> String {
    let flags = SockFlag::SOCK_CLOEXEC;
    let reader = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let own = format!("roxie/ask/frames/0/{}/0", std::process::id());
    bind(reader.as_raw_fd(), &UnixAddr::new_abstract(own.as_bytes()).unwrap()).unwrap();
    connect(reader.as_raw_fd(), &UnixAddr::new_abstract(device.as_bytes()).unwrap()).unwrap();
    let mut answer = String::new();
    UnixStream::from(reader).read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn missing_and_ambiguous_devices_are_named() {
    let Some(net) = Net::new("capture-wrong") else { return };
    net.left("capture").failed(3, &["no program with a device can be seen from here", "--pid PID"]);
    net.left("capture --pid 999999999").failed(3, &["there is no process 999999999"]);
    net.left("capture --pid 1").failed(3, &["process 1 has no device", "roxie show processes"]);
    net.left("capture --dev nowhere").failed(3, &["named nowhere"]);
    net.left("capture --snaplen 0").failed(2, &["snaplen"]);
    net.left("capture -w - --json").failed(2, &["-w -", "--json"]);
    let servers = [2000, 2001].map(|tcp| net.serve(&format!("pingpong rc --port udp -p {tcp}")));
    let [one, other] = servers.each_ref().map(|server| server.child.id());
    net.left("capture")
        .failed(2, &["choose one", &format!("roxie0-{one}"), &format!("roxie0-{other} (roxie)")]);
    net.left("capture --dev left").failed(2, &["choose one"]);
    net.left(&format!("capture --pid {one} -w /proc/none/x")).failed(1, &["cannot write /proc/none/x"]);
    let first = capturing(&net, &format!("--dev roxie0-{one} -w /dev/null"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "an older capture").unwrap();
    let second = net.left(&format!("capture --pid {one} -w {}", file.path().display()));
    second.failed(3, &[&format!("process {} captures its frames already", first.child.id())]);
    assert_eq!(std::fs::read(file.path()).unwrap(), b"an older capture");
    // A stopped program does not answer: the command gives up.
    kill(Pid::from_raw(other.cast_signed()), Signal::SIGSTOP).unwrap();
    net.left(&format!("capture --pid {other}")).failed(3, &[&format!("process {other} does not answer")]);
    kill(Pid::from_raw(other.cast_signed()), Signal::SIGCONT).unwrap();
    // From another network namespace.
    let other_user = net.right(&format!("capture --pid {other} --seconds 1 -w /dev/null"));
    assert!(other_user.succeeded().stderr.contains("0 packets captured"));
}

#[test]
fn client_is_captured_at_its_nic() {
    let Some(net) = Net::new("capture-nic") else { return };
    let mut nic = net.start_left("nic --dev left --port udp");
    nic.wait_for("is served over");
    let (nic_pid, own) = (nic.child.id(), std::process::id());
    let open = || Device::open_attached("left", &DeviceConfig::caller_only());
    let client = net.a.run(open).unwrap().unwrap().expect("a NIC");
    let advice = format!("capture that one (--pid {nic_pid})");
    net.left(&format!("capture --pid {own}")).failed(3, &["is served by a NIC", &advice]);
    let refused = net.a.run(|| attach(&device_of(&net, own), 0)).unwrap().unwrap_err();
    assert!(refused.to_string().contains("its NIC is another process"), "{refused}");
    // By the interface, the NIC is meant.
    let captured = net.left("capture --dev left --seconds 1 --json -w /dev/null").succeeded().json();
    assert_eq!((&captured[0]["pid"], &captured[1]["ended_by"]), (&nic_pid.into(), &"seconds".into()));
    drop(client);
}

#[test]
fn packets_are_printed_as_they_come() {
    let Some(net) = Net::new("capture-print") else { return };
    let pair = Pair::new(&net, "udp");
    let own = std::process::id();
    let printed = |arguments: &str| -> Finished {
        let capture = attached(&net, own, &format!("--pid {own} --count 4 {arguments}"));
        pair.write(1);
        let done = capture.finish().succeeded();
        wait_until_free(&net, own);
        done
    };
    let text = printed("");
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines.len() == 4 && lines[0].contains("RC_WRITE_FIRST") && lines[0].contains(" # "), "{text:#?}");
    assert!(text.stderr.contains("4 packets captured"), "{text:#?}");
    let rows = printed("--json").json();
    let packets = rows.iter().filter(|row| row["opcode_name"].is_string()).count();
    assert_eq!((packets, rows.len(), &rows[5]["event"]), (4, 6, &"end".into()), "{rows:?}");
    assert!(printed("-v -q").stderr.is_empty());
}
