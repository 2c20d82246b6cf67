//! Programs of rdma_cm, under the distribution's own `librdmacm`: rping, ucmatose, udaddy, mckey, rdma_client and
//! rdma_xclient, rsockets, cmtime, perftest with `-R`, qperf, fio. Programs that can verify received data do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use roxie::netdev::Links;

use super::{
    FAR, NEAR, NEAR_V6, QPERF_PORT, Running, Site, compiled, descendants, has, launcher, ports, skip,
};

impl Running {
    /// Returns true when the program listens; false if it ends before.
    pub(super) fn serves(&mut self) -> bool {
        while self.child.try_wait().unwrap().is_none() {
            if has(self.child.id(), "LISTEN") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Kills the program, which cannot disconnect; the launcher lives on.
    fn kill_program(&self) {
        for pid in descendants(self.child.id()).into_iter().filter(|pid| *pid != self.child.id()) {
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Runs a server and a client to their successful ends. Returns their outputs.
pub(super) fn meet(site: &Site, port: &str, server: &str, client: &str) -> (String, String) {
    let mut serving = site.local(port, server);
    serving.wait_until_it_serves();
    let (client_end, server_end) = (site.remote(port, client).finish(), serving.finish());
    let context = format!("{port}: {client}\nclient: {client_end:?}\nserver: {server_end:?}");
    assert!(client_end.status.success() && server_end.status.success(), "{context}");
    (client_end.output, server_end.output)
}

fn meets(test: &str, tag: &str, programs: &[&str], pairs: &[(&str, &str)]) {
    if skip(test, programs) {
        return;
    }
    let site = Site::new(tag);
    for port in ports() {
        for (server, client) in pairs {
            meet(&site, port, server, client);
        }
    }
}

#[test]
fn rping_verifies_over_ipv4_and_ipv6() {
    let name = "rping_verifies_over_ipv4_and_ipv6";
    if skip(name, &["rping"]) {
        return;
    }
    let site = Site::new("cm-rping");
    for port in ports() {
        for address in [NEAR, NEAR_V6] {
            let (client, server) = meet(
                &site,
                port,
                &format!("rping -s -a {address} -v -V -C 20 -S 2000 -d"),
                &format!("rping -c -a {address} -v -V -C 20 -S 2000"),
            );
            assert_eq!(client.matches("ping data: rdma-ping-").count(), 20, "{client}");
            assert_eq!(server.matches("server ping data: rdma-ping-").count(), 20, "{server}");
            assert!(server.contains("RDMA_CM_EVENT_DISCONNECTED"), "{server}");
        }
    }
}

/// 127.0.0.1 is the device itself. rxe resolves the address, too, but then finds no route.
#[test]
fn loopback_destination_reaches_the_own_device() {
    if skip("loopback_destination_reaches_the_own_device", &["rping"]) {
        return;
    }
    let site = Site::new("cm-itself");
    for address in ["127.0.0.1", "::1"] {
        let mut server = site.local("udp", &format!("rping -s -a {address} -V -C 5"));
        server.wait_until_it_serves();
        let client = site.local("udp", &format!("rping -c -a {address} -V -C 5")).finish();
        assert!(client.status.success(), "{address}: {client:?}");
        assert!(server.finish().status.success(), "{address}");
    }
}

#[test]
fn persistent_rping_server_serves_successive_clients() {
    let name = "persistent_rping_server_serves_successive_clients";
    if skip(name, &["rping"]) {
        return;
    }
    let site = Site::new("cm-persist");
    for port in ports() {
        let mut server = site.local(port, &format!("rping -s -P -a {NEAR} -V"));
        server.wait_until_it_serves();
        for _ in 0..3 {
            let client = site.remote(port, &format!("rping -c -a {NEAR} -V -C 5")).finish();
            assert!(client.status.success(), "{port}: {client:?}");
        }
    }
}

/// A program that exits without a launcher disconnects by itself. Otherwise the server would notice only by its
/// timeouts, after 77 s or more.
#[test]
fn exiting_program_disconnects_without_launcher() {
    let name = "exiting_program_disconnects_without_launcher";
    if skip(name, &["rping", "cc"]) {
        return;
    }
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        println!("SKIP {name}: librdmacm-dev not installed (.ci/setup test)");
        return;
    }
    let (_place, program) = compiled("parts_silently", &["-lrdmacm", "-libverbs"]);
    let site = Site::new("cm-exits");
    for port in ports() {
        let mut server = site.local(port, &format!("rping -s -a {NEAR} -d"));
        server.wait_until_it_serves();
        let mut client = Command::new("sh");
        let roxie = env!("CARGO_BIN_EXE_roxie");
        let environment = format!("eval \"$({roxie} env --dev right --port {port})\"");
        client.args(["-c", &format!("{environment} && exec {} {NEAR} 7174", program.display())]);
        let client = Running::start(&site.remote, client).finish();
        assert!(client.status.success() && client.output.contains("connected"), "{port}: {client:?}");
        let parted = Instant::now();
        let server = server.finish();
        assert!(server.output.contains("RDMA_CM_EVENT_DISCONNECTED"), "{port}: {server:?}");
        assert!(parted.elapsed() < Duration::from_secs(30), "{port}: {:?}", parted.elapsed());
    }
}

/// For a killed program, the launcher disconnects, as the kernel would: otherwise a peer that sends nothing would wait
/// for ever.
#[test]
fn launcher_disconnects_a_killed_program() {
    let name = "launcher_disconnects_a_killed_program";
    if skip(name, &["rping"]) {
        return;
    }
    let site = Site::new("cm-killed");
    for port in ports() {
        for kill_server in [false, true] {
            let mut server = site.local(port, &format!("rping -s -a {NEAR} -d"));
            server.wait_until_it_serves();
            let mut client = site.remote(port, &format!("rping -c -a {NEAR} -d"));
            client.wait_until_it_has("CONNECT");
            // rping writes its output to a pipe, by blocks: both programs are exchanging messages by then.
            server.wait_for_output("RDMA_CM_EVENT_ESTABLISHED");
            client.wait_for_output("RDMA_CM_EVENT_ESTABLISHED");
            let (victim, survivor) = if kill_server { (server, client) } else { (client, server) };
            victim.kill_program();
            let output = survivor.finish().output;
            assert!(output.contains("RDMA_CM_EVENT_ESTABLISHED"), "{port}: {output}");
            assert!(output.contains("RDMA_CM_EVENT_DISCONNECTED"), "{port}: {output}");
            assert_eq!(victim.finish().status.code(), Some(128 + 9), "{port}");
        }
    }
}

/// A kernel disconnects as soon as a program's files are closed, however that comes about, and whatever the launcher
/// still waits for.
#[test]
fn peer_is_told_however_a_program_ends() {
    let name = "peer_is_told_however_a_program_ends";
    if skip(name, &["rping", "cc", "unshare"]) {
        return;
    }
    let (place, program) = compiled("parts_silently", &["-lrdmacm", "-libverbs"]);
    let killed_child = place.path().join("killed_child");
    fs::write(&killed_child, format!("{} {NEAR} 7174 kill; sleep 100\n", program.display())).unwrap();
    let program = format!("{} {NEAR} 7174", program.display());
    let shell = format!("sh {}", killed_child.display());
    // Those that leave a process behind leave it for longer than the server lives.
    let ways = [
        (format!("{program} exec"), true),
        // A debug build may end the program: Rust's standard library notices descriptors that were closed behind its
        // back.
        (format!("{program} close"), false),
        (shell.clone(), true),
        (format!("unshare --pid --fork --mount-proc --kill-child {shell}"), true),
        (format!("{program} daemon"), false),
        (format!("{program} parent"), false),
    ];
    let site = Site::new("cm-ways");
    let play = |site: &Site, port: &str| {
        for (client, stays) in &ways {
            let mut server = site.local(port, &format!("rping -s -a {NEAR} -d"));
            server.wait_until_it_serves();
            let mut client = site.remote(port, client);
            let output = server.finish().output;
            let ended = client.child.try_wait().unwrap();
            let context = client.read_to_end();
            let context = format!("{port}: {}: {ended:?}: {context}\n{output}", client.what);
            assert!(output.contains("RDMA_CM_EVENT_ESTABLISHED"), "{context}");
            assert!(output.contains("RDMA_CM_EVENT_DISCONNECTED"), "{context}");
            assert!(!stays || ended.is_none(), "{context}");
        }
    };
    ports().into_iter().for_each(|port| play(&site, port));
    drop(site);
    let (site, _nics) = Site::with_nics("cm-ways-nic", &[]);
    play(&site, "nic");
}

/// The NIC ends with its process, and must first send the acknowledgement of what it has completed, however the process
/// ends. fio's receiver ends by `_exit`.
#[test]
fn exiting_receiver_acknowledges_its_message() {
    let name = "exiting_receiver_acknowledges_its_message";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("leaver", &["-lrdmacm", "-libverbs"]);
    let site = Site::new("cm-leaver");
    for port in ports() {
        let client = format!("{} {NEAR}", program.display());
        meet(&site, port, &format!("{client} serve"), &client);
    }
}

#[test]
fn ucmatose_and_udaddy_exchange_messages() {
    let pairs = [
        ("ucmatose -c 3 -C 20 -S 1000", "ucmatose -c 3 -C 20 -S 1000 -s 192.0.2.1"),
        ("ucmatose -b fd00::1", "ucmatose -s fd00::1"),
        ("udaddy -c 3 -C 20 -S 500", "udaddy -c 3 -C 20 -S 500 -s 192.0.2.1"),
    ];
    let name = "ucmatose_and_udaddy_exchange_messages";
    meets(name, "cm-ucmatose", &["ucmatose", "udaddy"], &pairs);
}

#[test]
fn ucmatose_migrates_identifiers_to_another_channel() {
    let pairs = [("ucmatose -m", "ucmatose -m -s 192.0.2.1")];
    meets("ucmatose_migrates_identifiers_to_another_channel", "cm-migrate", &["ucmatose"], &pairs);
}

#[test]
fn mckey_sends_to_and_receives_from_group() {
    let name = "mckey_sends_to_and_receives_from_group";
    if skip(name, &["mckey"]) {
        return;
    }
    let site = Site::new("cm-mckey");
    for port in ports() {
        let mut receiver = site.local(port, "mckey -m 239.1.2.3 -b 192.0.2.1 -C 10");
        // Datagrams before the receiver has joined are lost.
        receiver.wait_until("in the group", |pid| {
            let groups = fs::read_to_string(format!("/proc/{pid}/net/igmp")).unwrap_or_default();
            groups.contains("030201EF")
        });
        let sender = site.remote(port, "mckey -m 239.1.2.3 -b 192.0.2.2 -s -C 10").finish();
        let receiver = receiver.finish();
        assert!(sender.status.success() && receiver.status.success(), "{port}: {sender:?} {receiver:?}");
    }
}

#[test]
fn endpoint_examples_connect_over_rc_and_xrc() {
    let pairs = [
        ("rdma_server", "rdma_client -s 192.0.2.1"),
        ("rdma_xserver -c r", "rdma_xclient -c r -s 192.0.2.1"),
        ("rdma_xserver -c x", "rdma_xclient -c x -s 192.0.2.1"),
    ];
    let programs = ["rdma_server", "rdma_client", "rdma_xserver", "rdma_xclient"];
    meets("endpoint_examples_connect_over_rc_and_xrc", "cm-endpoint", &programs, &pairs);
}

#[test]
fn rsockets_carry_streams_that_are_verified() {
    let stream = "-S 2000 -C 100 -T v";
    // Not `-T a`: a polling client then takes the end of a stream for an error if it arrives together with the last
    // data.
    let pairs = ["", "-T n"]
        .map(|more| (format!("rstream {stream} {more}"), format!("rstream {stream} {more} -s 192.0.2.1")));
    let mut pairs: Vec<_> = pairs.iter().map(|(server, client)| (&**server, &**client)).collect();
    pairs.push(("riostream -S 2000 -C 100 -T v", "riostream -S 2000 -C 100 -T v -s 192.0.2.1"));
    meets("rsockets_carry_streams_that_are_verified", "cm-rsocket", &["rstream", "riostream"], &pairs);
}

#[test]
fn cmtime_connects_and_disconnects_many() {
    let name = "cmtime_connects_and_disconnects_many";
    if skip(name, &["cmtime"]) {
        return;
    }
    let site = Site::new("cm-time");
    for port in ports() {
        // The server never ends by itself.
        let mut server = site.local(port, "cmtime");
        server.wait_until_it_serves();
        let client = site.remote(port, "cmtime -c 50 -s 192.0.2.1").finish();
        assert!(client.status.success(), "{port}: {client:?}");
        for step in ["connect", "disconnect"] {
            let row = client.output.lines().find(|line| line.starts_with(step) && line.contains(':'));
            assert!(row.is_some(), "{step} was not measured: {client:?}");
        }
    }
}

#[test]
fn perftest_measures_over_connections_of_rdma_cm() {
    let programs = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw"];
    let mut commands: Vec<String> =
        programs.iter().map(|program| format!("{program} -R -F -n 200 -s 4000")).collect();
    commands.push("ib_send_lat -R -F -n 200 -s 1000 -c UD".into());
    commands.push("ib_write_bw -R -F -n 200 -s 4000 -q 3 -b".into());
    let pairs: Vec<_> =
        commands.iter().map(|command| (command.clone(), format!("{command} {NEAR}"))).collect();
    let pairs: Vec<_> = pairs.iter().map(|(server, client)| (&**server, &**client)).collect();
    meets("perftest_measures_over_connections_of_rdma_cm", "cm-perftest", &programs, &pairs);
}

#[test]
fn qperf_measures_over_connections_of_rdma_cm() {
    let name = "qperf_measures_over_connections_of_rdma_cm";
    if skip(name, &["qperf"]) {
        return;
    }
    let site = Site::new("cm-qperf");
    for port in ports() {
        let mut server = site.local(port, "qperf");
        server.wait_until_it_listens(QPERF_PORT);
        let tests = ["rc_bi_bw", "rc_rdma_read_bw"];
        let client = site.remote(port, &format!("qperf {NEAR} -cm1 -t 1 {}", tests.join(" "))).finish();
        assert!(client.status.success(), "{port}: {client:?}");
        assert!(tests.iter().all(|test| client.output.contains(test)), "{client:?}");
    }
}

#[test]
fn fio_writes_and_the_receiver_verifies() {
    let name = "fio_writes_and_the_receiver_verifies";
    if skip(name, &["fio"]) {
        return;
    }
    let site = Site::new("cm-fio");
    // fio fails if the receiver is not ready: post all receives before the first message, as its source advises.
    let common = "--ioengine=rdma --port=4321 --bs=64k --size=4m";
    let place = tempfile::tempdir().unwrap();
    // fio leaves a file in its working folder.
    let within = |command: &mut Command| {
        command.current_dir(place.path());
    };
    let play = |port: &str, ours: &str, theirs: &str| {
        let serve =
            format!("fio --name=s {common} --iodepth=64 --rw=read --verify=pattern --verify_pattern={ours}");
        let send = format!(
            "fio --name=c {common} --iodepth=4 --hostname={NEAR} --verb=send --rw=write --verify=pattern --verify_pattern={theirs} \
             --do_verify=0"
        );
        let start = |namespace, dev: &str, program: &str| {
            let mut command = launcher(&["--dev", dev, "--port", port], program);
            within(&mut command);
            Running::start(namespace, command)
        };
        let mut server = start(&site.local, "left", &serve);
        server.wait_until_it_serves();
        (start(&site.remote, "right", &send), server)
    };
    for port in ports() {
        let (client, server) = play(port, "0x5aa5", "0x5aa5");
        let (client, server) = (client.finish(), server.finish());
        assert!(client.status.success() && server.status.success(), "{port}: {client:?} {server:?}");
    }
    let (client, server) = play("udp", "0x5aa5", "0x1234");
    let server = server.finish();
    client.kill_program();
    assert!(!server.status.success(), "the receiver compares: {server:?}");
}

#[test]
fn route_off_the_device_is_explained() {
    let name = "route_off_the_device_is_explained";
    if skip(name, &["rping"]) {
        return;
    }
    let site = Site::new("cm-way");
    let mut links = Links::open_in(&site.remote).unwrap();
    links.add_address("lo", "198.51.100.7/32".parse().unwrap()).unwrap();
    links.set_up("lo", true).unwrap();
    let lost = site.remote("udp", "rping -c -a 198.51.100.7 -C 1").finish();
    assert!(
        !lost.status.success() && lost.output.contains("begins at 198.51.100.7, which is not on right"),
        "{lost:?}"
    );
    let nowhere = site.remote("udp", "rping -c -a 203.0.113.9 -C 1").finish();
    assert!(!nowhere.status.success() && nowhere.output.contains("Network is unreachable"), "{nowhere:?}");
    let mut other_place = site.local("udp", &format!("rping -s -a {NEAR} -p 7175"));
    other_place.wait_until_it_serves();
    let refused = site.remote("udp", &format!("rping -c -a {NEAR} -C 1")).finish();
    assert!(!refused.status.success(), "there is no server: {refused:?}");
}

/// An ICMP error of the host ends the wait. AF_XDP frames over IPv6 have no UDP checksum, which RoCE does not need:
/// Linux sends no ICMP error for those.
#[test]
fn host_without_roce_is_unreachable_at_once() {
    let name = "host_without_roce_is_unreachable_at_once";
    if skip(name, &["rping", "udaddy"]) {
        return;
    }
    let site = Site::new("cm-nothing");
    for (port, client) in [
        ("udp", format!("rping -c -a {NEAR} -C 1 -d")),
        ("udp", format!("rping -c -a {NEAR_V6} -C 1 -d")),
        ("xdp", format!("rping -c -a {NEAR} -C 1 -d")),
        ("udp", format!("udaddy -s {NEAR} -C 1")),
    ] {
        let ended = site.remote(port, &client).finish();
        let expected = "its host says that nothing takes UDP port 4791 there";
        assert!(!ended.status.success() && ended.output.contains(expected), "{port}: {client}: {ended:?}");
        assert!(!ended.output.contains("did not answer"), "{port}: {ended:?}");
        let event = client.contains("-d").then_some("RDMA_CM_EVENT_UNREACHABLE");
        assert!(event.is_none_or(|event| ended.output.contains(event)), "{port}: {ended:?}");
    }
}

/// A process that never listened refuses as well: the holder of the interface answers for all ports of rdma_cm.
#[test]
fn process_without_listeners_refuses() {
    let name = "process_without_listeners_refuses";
    if skip(name, &["python3", "rping"]) {
        return;
    }
    let site = Site::new("cm-deaf");
    let program = r#"
import ctypes, socket, struct, time
rdmacm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
rdmacm.rdma_create_event_channel.restype = ctypes.c_void_p
channel = ctypes.c_void_p(rdmacm.rdma_create_event_channel())
id = ctypes.c_void_p()
assert rdmacm.rdma_create_id(channel, ctypes.byref(id), None, 0x0106) == 0
assert rdmacm.rdma_bind_addr(id, struct.pack("=H", socket.AF_INET) + bytes(14)) == 0
time.sleep(100)
"#;
    let place = tempfile::NamedTempFile::new().unwrap();
    fs::write(place.path(), program).unwrap();
    for port in ports() {
        let mut bound = site.local(port, &format!("python3 {}", place.path().display()));
        bound.wait_until_it_has("ADDR_BOUND");
        let refused = site.remote(port, &format!("rping -c -a {NEAR} -C 1 -d")).finish();
        assert!(refused.output.contains("RDMA_CM_EVENT_REJECTED"), "{port}: {refused:?}");
        bound.kill_program();
    }
}

/// A silent, unknown host is given up after 15 s, and the log says why: three requests, and four early repetitions of
/// the first.
#[test]
fn silent_host_is_given_up_after_15_s() {
    let name = "silent_host_is_given_up_after_15_s";
    if skip(name, &["rping"]) {
        return;
    }
    let site = Site::new("cm-silent");
    // A socket that receives the datagrams and never answers.
    let _silent = site.local.run(|| std::net::UdpSocket::bind((NEAR, 4791))).unwrap().unwrap();
    let ended = site.remote("udp", &format!("rping -c -a {NEAR} -C 1 -d")).finish();
    let expected = format!("{NEAR}:7174 did not answer 7 copies of REQ");
    assert!(!ended.status.success() && ended.output.contains(&expected), "{ended:?}");
}

/// As qperf's server. A request that arrives while the port is being opened would be lost, and rdma_rxe repeats it only
/// after 6 s.
#[test]
fn bound_identifier_claims_the_interface() {
    let name = "bound_identifier_claims_the_interface";
    if skip(name, &["python3"]) {
        return;
    }
    let site = Site::new("cm-told");
    let program = r#"
import ctypes, socket, struct
rdmacm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
rdmacm.rdma_create_event_channel.restype = ctypes.c_void_p
channel = ctypes.c_void_p(rdmacm.rdma_create_event_channel())
id = ctypes.c_void_p()
# RDMA_PS_TCP
assert rdmacm.rdma_create_id(channel, ctypes.byref(id), None, 0x0106) == 0
def is_taken():
    return any(line.split()[1].endswith(":12B7") for line in open("/proc/self/net/udp").readlines()[1:])
assert not is_taken(), "it is not needed yet"
anywhere = struct.pack("=H", socket.AF_INET) + bytes(14)
assert rdmacm.rdma_bind_addr(id, anywhere) == 0
assert is_taken(), "a client may come"
print("fine")
"#;
    let place = tempfile::NamedTempFile::new().unwrap();
    fs::write(place.path(), program).unwrap();
    let path = place.path().display().to_string();
    let ran = site.local("udp", &format!("python3 {path}")).finish();
    assert!(ran.status.success() && ran.output.contains("fine"), "{ran:?}");
}

#[test]
fn other_files_and_children_are_unaffected() {
    let name = "other_files_and_children_are_unaffected";
    if skip(name, &["python3"]) {
        return;
    }
    let site = Site::new("cm-files");
    let program = r#"
import ctypes, errno, os, select, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
device = b"/dev/infiniband/rdma_cm"
def opened():
    fd = libc.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd
def command(fd, number, body, out=0):
    data = number.to_bytes(4, "little") + len(body).to_bytes(2, "little") + out.to_bytes(2, "little") + body
    written = libc.write(fd, data, len(data))
    return 0 if written == len(data) else ctypes.get_errno()
answer = ctypes.create_string_buffer(512)
to = ctypes.addressof(answer).to_bytes(8, "little")
create = (1).to_bytes(8, "little") + to + (0x0106).to_bytes(2, "little") + bytes(6)
fd = opened()
# A character device for those who ask, readable only while an event waits.
assert stat.S_ISCHR(os.fstat(fd).st_mode)
assert select.select([fd], [], [], 0)[0] == []
assert command(fd, 12, to, 512) == errno.EAGAIN
assert command(fd, 0, create, 4) == 0
assert command(fd, 0, create, 3) == errno.ENOSPC
assert command(fd, 99, create, 4) == errno.EINVAL
# Duplicates are the same file, until the last is closed.
other = libc.dup(fd)
assert libc.close(fd) == 0
assert command(other, 1, to + bytes(8), 4) == 0, "the identifier is still there"
assert command(other, 1, to + bytes(8), 4) == errno.ENOENT
# A child finds it dead, and may open its own.
pid = os.fork()
if pid == 0:
    dead = command(other, 0, create, 4)
    libc.close(other)
    file = os.open("/dev/null", os.O_RDWR)
    fine = os.write(file, b"eight by") == 8
    own = opened()
    os._exit(0 if dead == errno.EIO and fine and command(own, 0, create, 4) == 0 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert command(other, 0, create, 4) == 0, "the parent's is as it was"
# A number that became another file's is that file's.
libc.close(other)
read, write = os.pipe()
os.dup2(write, other)
assert os.write(other, bytes(16)) == 16 and os.read(read, 64) == bytes(16)
assert libc.open(b"/dev/infiniband/none", os.O_RDWR) == -1 and ctypes.get_errno() == errno.ENOENT
print("fine")
"#;
    let place = tempfile::NamedTempFile::new().unwrap();
    fs::write(place.path(), program).unwrap();
    let path = place.path().display().to_string();
    let ran = site.local("udp", &format!("python3 {path}")).finish();
    assert!(ran.status.success() && ran.output.contains("fine"), "{ran:?}");
}

#[test]
fn event_wait_survives_channel_destruction() {
    let name = "event_wait_survives_channel_destruction";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("channel", &["-lrdmacm", "-libverbs", "-lpthread"]);
    let ran = Site::new("cm-channel").local("udp", &format!("{} {NEAR}", program.display())).finish();
    assert!(ran.status.success() && ran.output.contains("all waited"), "{ran:?}");
}

/// 20 unused addresses are resolved at a time, more than there are resolver threads.
#[test]
fn resolution_of_silent_host_ends_with_its_timeout() {
    if skip("resolution_of_silent_host_ends_with_its_timeout", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("resolves", &["-lrdmacm", "-libverbs"]);
    let site = Site::new("cm-silent");
    for port in ports() {
        let ended = site.local(port, &format!("{} {FAR} 192.0.2.100", program.display())).finish();
        assert!(ended.status.success() && ended.output.contains("all so"), "{port}: {ended:?}");
    }
}
