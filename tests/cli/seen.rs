//! Devices as other processes see them: `roxie show`, `roxie top`, `roxie metrics`.

use std::collections::BTreeMap;
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use roxie::host::inspect::{AccountEntry, ClientEntry, CounterReader, Snapshot};
use roxie::threads::as_user;
use serde_json::Value;

use crate::network::Net;
use crate::{Running, run};

/// Returns the rows of a process in a command's JSON.
fn rows_of(told: &str, pid: u32) -> Vec<Value> {
    let object: Value = serde_json::from_str(told).unwrap_or_else(|e| panic!("{e}: {told}"));
    let mut members = object.as_object().expect("an object").values();
    let all = members.find_map(Value::as_array).expect("a list");
    all.iter().filter(|row| row["pid"] == pid).cloned().collect()
}

#[test]
fn process_shows_all_its_objects() {
    let Some(net) = Net::new("seen") else { return };
    for port in ["udp", "xdp"] {
        let server = net.serve(&format!("pingpong rc --port {port} -n 3"));
        let pid = server.child.id();
        let shown = |what: &str| net.left(&format!("{what} --json")).succeeded().stdout;
        let processes = rows_of(&shown("show processes"), pid);
        assert_eq!((&processes[0]["interface"], &processes[0]["qps"]), (&"left".into(), &1.into()));
        assert_eq!(processes[0]["slot"].is_null(), port == "xdp", "{processes:?}");
        let qps = rows_of(&shown("show qps"), pid);
        assert_eq!(
            (qps.len(), &qps[0]["type"], &qps[0]["state"]),
            (1, &"RC".into(), &"INIT".into()),
            "{qps:?}"
        );
        let mrs = rows_of(&shown("show mrs"), pid);
        assert!(mrs.iter().any(|mr| mr["kind"] == "region" && mr["length"].as_u64() > Some(0)), "{mrs:?}");
        assert_eq!(rows_of(&shown("show counters"), pid)[0]["counters"]["sent_pkts"], 0);
        let top = rows_of(&shown("top -n 1 -d 0.05"), pid);
        assert_eq!(
            (&top[0]["port"], &top[0]["qps"], &top[0]["tx_bytes"]),
            (&port.into(), &1.into(), &0.0.into())
        );
        // The text form.
        for (command, part) in [
            ("show processes", "left"),
            ("show qps", "INIT"),
            ("show mrs", "local_write"),
            ("show cm_ids", "no identifiers"),
            ("show counters --all", "retransmitted_packets"),
            ("top -b -n 1 -d 0.05", "PROGRAM"),
            ("metrics", "roxie_qps{device=\"roxie0\""),
        ] {
            let output = net.left(command).succeeded();
            assert!(output.stdout.contains(part), "{command}: {output:#?}");
            let filtered = net.left(&format!("{command} --pid {pid}"));
            assert!(command == "show processes" || filtered.succeeded().stdout.contains(part), "{command}");
        }
        net.left("show qps --pid 1").failed(1, &["process 1 has no device", "roxie show processes"]);
        assert_eq!(net.right("show qps").succeeded().stdout, "no queue pairs\n", "another network namespace");
        net.right(&format!("pingpong rc --port {port} -n 3 192.0.2.1")).succeeded();
        server.finish().succeeded();
        assert_eq!(net.left("show qps").succeeded().stdout, "no queue pairs\n");
    }
}

/// Stops a child. Its threads may run on after the signal was sent: returns when all have stopped.
fn stop(child: u32) {
    let child = Pid::from_raw(child.cast_signed());
    kill(child, Signal::SIGSTOP).unwrap();
    let seen = waitpid(child, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(seen, Ok(WaitStatus::Stopped(child, Signal::SIGSTOP)));
}

#[test]
fn stopped_process_delays_no_reader() {
    let Some(net) = Net::new("seen-stopped") else { return };
    let servers = [2000, 2001].map(|tcp| net.serve(&format!("pingpong rc --port udp -p {tcp}")));
    let [stopped, other] = servers.each_ref().map(|server| server.child.id());
    stop(stopped);
    let shown = net.left("show qps --json").succeeded();
    assert_eq!((rows_of(&shown.stdout, stopped).len(), rows_of(&shown.stdout, other).len()), (0, 1));
    assert!(shown.stderr.contains(&format!("process {stopped} does not answer")), "{shown:#?}");
    let processes = net.left("show processes").succeeded();
    assert!(
        processes.stdout.contains(&stopped.to_string()) && processes.stdout.contains('?'),
        "{processes:#?}"
    );
    kill(Pid::from_raw(stopped.cast_signed()), Signal::SIGCONT).unwrap();
    assert_eq!(rows_of(&net.left("show qps --json").succeeded().stdout, stopped).len(), 1);
}

/// The counters are read more often than the socket's backlog has places.
#[test]
fn stopped_process_is_queried_once() {
    let Some(net) = Net::new("seen-counters") else { return };
    let servers = [2000, 2001].map(|tcp| net.serve(&format!("pingpong rc --port udp -p {tcp}")));
    let [stopped, other] = servers.each_ref().map(|server| server.child.id());
    let mut reader = CounterReader::default();
    let mut read = || net.a.run(|| reader.read().unwrap()).unwrap();
    let of = |read: &BTreeMap<String, Option<Snapshot>>, pid: u32| {
        let attach = read.iter().find(|(name, _)| name.starts_with(&format!("roxie/see/{pid}/")));
        attach.expect("the device is there").1.clone()
    };
    let first = read();
    for pid in [stopped, other] {
        let snapshot = of(&first, pid).expect("an answer");
        assert_eq!((snapshot.pid, snapshot.interface.as_received(), snapshot.qps.len()), (pid, "left", 0));
        assert_eq!(snapshot.counters["sent_pkts"], 0);
    }
    stop(stopped);
    for _ in 0..300 {
        let now = read();
        assert_eq!((of(&now, stopped), of(&now, other).map(|s| s.pid)), (None, Some(other)));
    }
    let shown = net.left("show qps").succeeded();
    assert!(shown.stderr.contains(&format!("process {stopped} does not answer")), "{shown:#?}");
    kill(Pid::from_raw(stopped.cast_signed()), Signal::SIGCONT).unwrap();
    while of(&read(), stopped).is_none() {}
}

#[test]
fn other_user_sees_nothing_root_sees_all() {
    let Some(net) = Net::new("seen-users") else { return };
    let server = net.serve("pingpong rc --port udp");
    let pid = server.child.id();
    let seen_by = |user: libc::uid_t| {
        let snapshots = in_namespace_as(&net, user, || roxie::host::inspect::snapshots().unwrap());
        assert!(snapshots.silent.is_empty(), "{snapshots:?}");
        snapshots.snapshots.iter().filter(|device| device.pid == pid).count()
    };
    assert_eq!((seen_by(65534), seen_by(0)), (0, 1));
}

/// In a user namespace, root is a user without a number.
#[test]
fn root_sees_program_in_user_namespace() {
    let Some(net) = Net::new("seen-userns") else { return };
    // Such a user may not reach the build folder.
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("roxie");
    crate::in_time::copy_program(env!("CARGO_BIN_EXE_roxie"), &program);
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let user =
        ["--reuid=65533", "--regid=65533", "--clear-groups", "unshare", "--user", "--map-current-user"];
    let mut command = Command::new("setpriv");
    command.args(user).arg(program).args(["pingpong", "rc", "--port", "udp"]);
    let mut server = net.a.run(|| Running::start(command)).unwrap();
    server.wait_for("waiting for a peer");
    let shown = net.left("show qps --json").succeeded();
    assert_eq!(rows_of(&shown.stdout, server.child.id()).len(), 1, "{shown:#?}");
    server.kill();
}

/// Runs `act` in a namespace as a user.
fn in_namespace_as<T: Send>(net: &Net, user: libc::uid_t, act: impl FnOnce() -> T + Send) -> T {
    net.a.run(|| as_user(user, act).unwrap()).unwrap()
}

/// Binds a socket of another user to an abstract name.
fn squatted(net: &Net, name: &str) -> UnixListener {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    in_namespace_as(net, 65534, || UnixListener::bind_addr(&address)).unwrap()
}

/// Opens connections that fill the listener's backlog.
fn filled(net: &Net, listener: &UnixListener) -> Vec<OwnedFd> {
    nix::sys::socket::listen(listener, Backlog::new(1).unwrap()).unwrap();
    let name = listener.local_addr().unwrap();
    let name = UnixAddr::new_abstract(name.as_abstract_name().unwrap()).unwrap();
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let one = || {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        connect(socket.as_raw_fd(), &name).ok().map(|()| socket)
    };
    net.a.run(|| std::iter::from_fn(one).collect()).unwrap()
}

#[test]
fn foreign_sockets_cannot_hang_or_forge() {
    let Some(net) = Net::new("seen-strangers") else { return };
    let server = net.serve("pingpong rc --port udp");
    let pid = server.child.id();
    let full = squatted(&net, "roxie/see/1/0");
    let waiting = filled(&net, &full);
    assert!(!waiting.is_empty());
    // A socket that answers with another process's PID, with control characters, and with clients that it does not
    // have.
    let forger = squatted(&net, "roxie/see/1/1");
    let used = AccountEntry { used: 666, ..AccountEntry::default() };
    let account = [("qps\u{1b}]0;x\u{7}".into(), used)].into();
    let client = ClientEntry { pid: 1, uid: 0, name: "systemd".into(), slot: 1, account };
    let forged = Snapshot {
        pid: 1,
        name: "sshd".into(),
        interface: "left\u{1b}[2J\nrow".into(),
        counters: [("sent_pkts".into(), 7)].into(),
        clients: vec![client],
        ..Snapshot::default()
    };
    let text = serde_json::to_vec(&forged).unwrap();
    let mut file = std::fs::File::from(memfd_create("forged", MFdFlags::MFD_CLOEXEC).unwrap());
    file.write_all(&text).unwrap();
    std::thread::spawn(move || {
        while let Ok((reader, _)) = forger.accept() {
            let fds = [file.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&fds)];
            let _ =
                sendmsg::<()>(reader.as_raw_fd(), &[IoSlice::new(&[1])], &rights, MsgFlags::empty(), None);
        }
    });
    let shown = net.left("show processes --json").succeeded().stdout;
    assert_eq!(rows_of(&shown, pid)[0]["uid"], 0);
    assert_eq!(rows_of(&shown, 1).len(), 0, "a number that it has not");
    // The socket belongs to a thread of this process.
    let forged = &rows_of(&shown, std::process::id())[0];
    assert_eq!((&forged["uid"], &forged["interface"]), (&65534.into(), &"left\u{1b}[2J\nrow".into()));
    assert_ne!(forged["name"], "sshd");
    for command in ["show processes", "show counters --all", "metrics", "top -b -n 1 -d 0.05"] {
        let output = net.left(command).succeeded().stdout;
        assert!(!output.contains('\u{1b}') && output.contains(&pid.to_string()), "{command}: {output}");
        assert!(!output.contains("systemd") && !output.contains("\nrow"), "{command}: {output}");
    }
    // A third user's reader learns nothing from the forger.
    let seen = in_namespace_as(&net, 65533, || roxie::host::inspect::snapshots().unwrap());
    assert_eq!(seen, roxie::host::inspect::Look::default());
}

#[test]
fn squatted_nic_name_is_reported() {
    let Some(net) = Net::new("seen-squatted") else { return };
    let listener = squatted(&net, "roxie/nic/left");
    let attach = || net.a.run(|| roxie::remote::nic_of("left")).unwrap();
    let output = attach().unwrap_err().to_string();
    assert!(output.contains("user 65534"), "{output}");
    net.left("nic --dev left --port udp").failed(3, &["of user 65534", "@roxie/nic/left"]);
    let _waiting = filled(&net, &listener);
    let output = attach().unwrap_err().to_string();
    assert!(output.contains("does not answer") && output.contains("@roxie/nic/left"), "{output}");
    net.left("nic --dev left --port udp").failed(3, &["accepts no connection", "@roxie/nic/left"]);
    drop(listener);
    assert!(matches!(attach(), Ok(None)));
}

#[test]
fn metrics_are_served_over_http() {
    let Some(net) = Net::new("seen-metrics") else { return };
    let program = net.serve("pingpong rc --port udp");
    let mut server = net.start_left("metrics --listen 192.0.2.1:9740");
    server.wait_for("http://192.0.2.1:9740/metrics");
    let query = |what: &str| {
        let answer = net.b.run(|| {
            let mut stream = TcpStream::connect("192.0.2.1:9740").unwrap();
            stream.write_all(format!("{what} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        answer.unwrap()
    };
    let answer = query("GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains(&format!("pid=\"{}\"", program.child.id())), "{answer}");
    for (what, code) in [("GET /", "200"), ("GET /nothing", "404"), ("POST /metrics", "405")] {
        assert!(query(what).starts_with(&format!("HTTP/1.1 {code}")), "{what}");
    }
    // An address takes one server.
    net.left("metrics --listen 192.0.2.1:9740").failed(1, &["cannot listen on 192.0.2.1:9740", "in use"]);
}

#[test]
fn nic_serves_metrics_of_all_its_clients() {
    let Some(net) = Net::new("seen-nic-metrics") else { return };
    let mut nic = net.start_left("nic --dev left --port udp --metrics 9740");
    nic.wait_for("is served over");
    let query = || {
        let answer = net.a.run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:9740").unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        answer.unwrap()
    };
    let answer = query();
    let own = format!("pid=\"{}\"", nic.child.id());
    assert!(answer.contains("roxie_qps{device=\"roxie0\"") && answer.contains(&own), "{answer}");
    // The NIC does not start without its metrics address.
    net.left("nic --dev left --port udp --metrics 9740").failed(1, &["cannot listen on 127.0.0.1:9740"]);
}

#[test]
fn top_screen_needs_a_terminal() {
    run("top").failed(2, &["no terminal", "roxie top -b"]);
    run("top -d 0").failed(2, &["--delay 0", "0.05"]);
    run("metrics --listen nowhere").failed(2, &["ADDRESS:PORT"]);
}
