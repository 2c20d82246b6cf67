//! Links that fail, owners that die, privileges that are missing: what is said, and that it goes on.

use std::process::{Command, Stdio};

use super::*;

#[test]
fn a_link_that_goes_down_is_counted_and_recovers() {
    if skip("a_link_that_goes_down_is_counted_and_recovers") {
        return;
    }
    let wire = Wire::new("down", 1500, 1);
    let (mut left, mut right) = wire.ports();
    let mut links = Links::open_in(&wire.a).unwrap();
    links.set_up("left", false).unwrap();
    for i in 0..3 {
        assert!(put(&mut left, &frame(true, false, false, 100, i)));
        flush(&mut left);
    }
    assert!(counter(&left, "link_down") > 0);
    assert!(left.tx_pending(), "the frames wait");
    links.set_up("left", true).unwrap();
    let mut sent = 3;
    let start = Instant::now();
    let mut got = 0;
    while got == 0 && start.elapsed() < SOON {
        assert!(put(&mut left, &frame(true, false, false, 100, sent)));
        sent += 1;
        flush(&mut left);
        got += take(&mut right, 1, Duration::from_millis(20)).len();
    }
    assert!(got > 0, "frames pass again");
    assert!(!left.tx_pending());
}

#[test]
fn an_interface_that_is_deleted_fails_the_flush_with_the_reason() {
    if skip("an_interface_that_is_deleted_fails_the_flush_with_the_reason") {
        return;
    }
    let wire = Wire::new("gone", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    Links::open_in(&wire.b).unwrap().delete("right").unwrap();
    assert!(put(&mut left, &frame(true, false, false, 100, 1)));
    let e = left.tx_flush(Nanos::ZERO).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::NotConnected, "{e}");
    assert_eq!(left.rx_burst(Nanos::ZERO), 0);
}

#[test]
fn a_missing_interface_is_named_with_those_that_exist() {
    if skip("a_missing_interface_is_named_with_those_that_exist") {
        return;
    }
    let wire = Wire::new("missing", 1500, 1);
    let e = open(&wire.a, "wrong", |_| {}).err().unwrap().to_string();
    assert!(e.contains("\"wrong\"") && e.contains("left") && !e.contains("right"), "{e}");
}

#[test]
fn a_second_port_on_an_interface_is_told_who_has_it() {
    if skip("a_second_port_on_an_interface_is_told_who_has_it") {
        return;
    }
    let wire = Wire::new("twice", 1500, 1);
    let first = wire.left(|_| {}).unwrap();
    let refused = wire.left(|_| {}).err().unwrap();
    let e = refused.to_string();
    assert!(e.contains("roxie_steer"), "{e}");
    assert!(e.contains(&format!("(pid {})", std::process::id())), "{e}");
    assert!(matches!(refused, XdpError::ProgramAttached { attempts: 1, .. }), "{refused:?}");
    drop(first);
    wire.left(|_| {}).expect("dropping the port frees the interface");
    let left = wire.a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!(left.xdp_program, None, "and takes the program off");
}

#[test]
fn a_queue_with_a_foreign_socket_is_reported_after_two_seconds() {
    if skip("a_queue_with_a_foreign_socket_is_reported_after_two_seconds") {
        return;
    }
    use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
    let wire = Wire::new("busy", 1500, 1);
    let config = SocketConfig::builder()
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_COPY)
        .build();
    let make = || {
        // The first socket of a UMEM is the UMEM's own: both are made inside the namespace.
        let (umem, _) = xsk_rs::Umem::new(UmemConfig::default(), 64.try_into().unwrap(), false).unwrap();
        // SAFETY: the UMEM is new and has no other socket.
        unsafe { xsk_rs::Socket::new(config, &umem, &"left".parse().unwrap(), 0).unwrap() }
    };
    let foreign = wire.a.run(make).unwrap();
    let e = wire.left(|_| {}).err().unwrap();
    assert!(matches!(e, XdpError::QueueBusy { queue: 0, waited_ms: 2000.., .. }), "{e}");
    let left = wire.a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!(left.xdp_program, None, "a failed opening leaves nothing behind");
    drop(foreign);
    wire.left(|_| {}).unwrap();
}

/// Not a test of its own: the process that `a_killed_owner_leaves_the_interface_usable` kills.
#[test]
fn child_that_holds_a_port() {
    let Ok(name) = std::env::var("ROXIE_TEST_HOLD") else { return };
    let ns = NetNs::open(&name).unwrap();
    let _port = open(&ns, "left", |_| {}).unwrap();
    println!("HOLDING");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_owner_leaves_the_interface_usable() {
    if skip("a_killed_owner_leaves_the_interface_usable") {
        return;
    }
    use std::io::{BufRead, BufReader};
    let wire = Wire::new("kill", 1500, 1);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_that_holds_a_port", "--nocapture"])
        .env("ROXIE_TEST_HOLD", wire.a.name().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|l| l.contains("HOLDING")), "the child opened its port");
    let e = wire.left(|_| {}).err().unwrap().to_string();
    assert!(e.contains(&format!("(pid {})", child.id())), "{e}");
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    let (mut left, mut right) = wire.ports();
    println!("open again {:?} after the kill", start.elapsed());
    let sent = frame(true, false, false, 200, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

/// Not a test of its own: the process that the tests of missing privileges start with few of them.
#[test]
fn child_that_is_refused() {
    let Ok(name) = std::env::var("ROXIE_TEST_REFUSED") else { return };
    let refused = match name.as_str() {
        // It may not enter a namespace either.
        "" => XdpPort::open(&XdpConfig::new("lo")),
        ns => open(&NetNs::open(ns).unwrap(), "left", |_| {}),
    };
    println!("REFUSED {}", refused.err().expect("an error"));
}

fn refusal(child: &mut Command, namespace: &str) -> String {
    let child = child.args(["--exact", "faults::child_that_is_refused", "--nocapture"]);
    let output = child.env("ROXIE_TEST_REFUSED", namespace).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|l| l.split_once("REFUSED ")).map(|(_, error)| error.to_owned());
    line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn missing_privileges_are_named() {
    if skip("missing_privileges_are_named") {
        return;
    }
    use std::os::unix::process::CommandExt;
    // The test's binary may lie where only root can read it.
    let copy = tempfile::Builder::new().prefix("roxie-").tempdir_in("/tmp").unwrap();
    let binary = copy.path().join("xdp");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    for path in [copy.path(), &binary] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let e = refusal(Command::new(&binary).current_dir("/").uid(65534).gid(65534), "");
    assert!(e.contains("not permitted") && e.contains("CAP_BPF") && e.contains("udp port"), "{e}");
}

#[test]
fn a_limit_of_locked_memory_is_told_with_the_remedy() {
    if skip("a_limit_of_locked_memory_is_told_with_the_remedy") {
        return;
    }
    use std::os::unix::process::CommandExt;
    let wire = Wire::new("memlock", 1500, 1);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let few = || {
        const CAP_IPC_LOCK: libc::c_ulong = 14;
        const CAP_SYS_RESOURCE: libc::c_ulong = 24;
        let megabyte = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: system calls with plain values, and one pointer to a local that lives across the call.
        let failed = unsafe {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK)
                | libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE)
                | libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const megabyte)
        };
        if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls only: nothing that is unsafe between fork and exec.
    unsafe { child.pre_exec(few) };
    let e = refusal(&mut child, wire.a.name().unwrap());
    assert!(e.contains("16777216 bytes") && e.contains("1048576 bytes"), "{e}");
    assert!(e.contains("ulimit -l 16384") && e.contains("CAP_IPC_LOCK"), "{e}");
}

#[test]
fn rings_that_cannot_be_are_refused() {
    for ring in [0, 63, 100, 65536] {
        let mut config = XdpConfig::new("lo");
        config.ring = ring;
        let e = XdpPort::open(&config).err().unwrap().to_string();
        assert!(e.contains(&ring.to_string()) && e.contains("power of two"), "{e}");
    }
}

/// Not a test of its own: the process that `the_capabilities_that_are_named_suffice` starts with few of them.
#[test]
fn child_with_few_capabilities() {
    if std::env::var_os("ROXIE_TEST_CAPABILITIES").is_none() {
        return;
    }
    // In the namespace already, as an application is: it may not enter one.
    let opened = roxie::host::Device::open_xdp(
        &XdpConfig::new("left"),
        &roxie::host::Stack::default(),
        &roxie::host::DeviceConfig::default(),
    );
    match opened {
        Ok(_) => println!("OPENED"),
        Err(e) => println!("REFUSED {e}"),
    }
}

/// What that process says if it has these capabilities alone (`include/uapi/linux/capability.h`).
fn with_capabilities(ns: &NetNs, kept: &'static [libc::c_ulong]) -> String {
    use std::os::unix::process::CommandExt;
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "faults::child_with_few_capabilities", "--nocapture"]);
    child.env("ROXIE_TEST_CAPABILITIES", "1");
    let drop_others = move || {
        for capability in (0..=40).filter(|c| !kept.contains(c)) {
            // SAFETY: a system call with plain values.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only: nothing that is unsafe between fork and exec.
    unsafe { child.pre_exec(drop_others) };
    let output = ns.run(|| child.output()).unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|l| l.contains("OPENED") || l.contains("REFUSED")).map(str::to_owned);
    line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_capabilities_that_are_named_suffice() {
    if skip("the_capabilities_that_are_named_suffice") {
        return;
    }
    const NET_ADMIN: libc::c_ulong = 12;
    const NET_RAW: libc::c_ulong = 13;
    const IPC_LOCK: libc::c_ulong = 14;
    const PERFMON: libc::c_ulong = 38;
    const BPF: libc::c_ulong = 39;
    let wire = Wire::new("caps", 1500, 1);
    let said = with_capabilities(&wire.a, &[NET_ADMIN, NET_RAW, IPC_LOCK, BPF]);
    assert!(said.contains("verifier") && said.contains("CAP_PERFMON"), "{said}");
    let said = with_capabilities(&wire.a, &[NET_ADMIN, NET_RAW, IPC_LOCK, BPF, PERFMON]);
    assert!(said.contains("OPENED"), "{said}");
}
