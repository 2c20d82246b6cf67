//! Failing links, killed owners, missing privileges: errors and recovery.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use roxie::host::{Device, DeviceConfig, Stack};

use super::*;
use crate::in_time::{ChildInTime, CommandInTime, LIMIT, Stream, copy_program};

#[test]
fn link_down_is_counted_and_recovers() {
    if skip("link_down_is_counted_and_recovers") {
        return;
    }
    let wire = Wire::new("down", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let mut links = Links::open_in(&wire.a).unwrap();
    links.set_up("left", false).unwrap();
    // More frames than the port has chunks.
    let mut sent = 5000;
    for i in 0..sent {
        assert!(put(&mut left, &frame(true, false, false, 100, i)), "frame {i} has a slot");
        flush(&mut left);
    }
    assert!(counter(&left, "link_down") > 0);
    assert_eq!(counter(&left, "tx_failed"), sent - 1, "lost, except the one that the kernel has");
    assert!(left.tx_pending());
    links.set_up("left", true).unwrap();
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
fn deleted_interface_fails_the_flush() {
    if skip("deleted_interface_fails_the_flush") {
        return;
    }
    let wire = Wire::new("gone", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    Links::open_in(&wire.b).unwrap().delete("right").unwrap();
    for i in 0..5000 {
        assert!(put(&mut left, &frame(true, false, false, 100, i)), "frame {i} has a slot");
        let e = left.tx_flush(Nanos::ZERO).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::NotConnected, "{e}");
    }
    assert!(!left.tx_pending(), "nothing waits for it");
    assert_eq!((left.rx_burst(Nanos::ZERO), ready(&left)), (0, 0));
}

#[test]
fn missing_interface_error_lists_existing_ones() {
    if skip("missing_interface_error_lists_existing_ones") {
        return;
    }
    let wire = Wire::new("missing", 1500, 1);
    let e = open(&wire.a, "wrong", |_| {}).err().unwrap().to_string();
    assert!(e.contains("\"wrong\"") && e.contains("left") && !e.contains("right"), "{e}");
}

#[test]
fn second_port_learns_the_holder() {
    if skip("second_port_learns_the_holder") {
        return;
    }
    let wire = Wire::new("twice", 1500, 1);
    let first = wire.left(|_| {}).unwrap();
    let refused = wire.left(|_| {}).err().unwrap();
    let e = refused.to_string();
    assert!(e.contains("roxie_steer"), "{e}");
    assert!(e.contains(&format!("(pid {})", std::process::id())), "{e}");
    assert!(matches!(refused, XdpError::ProgramAttached { .. }), "{refused:?}");
    drop(first);
    wire.left(|_| {}).expect("dropping the port frees the interface");
    let left = wire.a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!(left.xdp_program, None, "and takes the program off");
}

#[test]
fn foreign_socket_on_queue_is_reported() {
    if skip("foreign_socket_on_queue_is_reported") {
        return;
    }
    use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
    let wire = Wire::new("busy", 1500, 1);
    let config = SocketConfig::builder()
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_COPY)
        .build();
    let make = || {
        // The first socket of a UMEM owns it: create both inside the namespace.
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
    // The kernel frees the queue later, in a worker of its own that waits for its turn to change interfaces.
    let until = Instant::now() + LIMIT;
    while let Err(e) = wire.left(|_| {}) {
        assert!(matches!(e, XdpError::QueueBusy { .. }) && Instant::now() < until, "{e}");
    }
}

/// Environment variable with the argument of a child process. A child runs the same test as its parent, and acts on the
/// argument.
const CHILD: &str = "ROXIE_TEST_CHILD";

/// Returns a command that runs the test `name` alone, with an argument in [`CHILD`].
fn child(program: &Path, name: &str, argument: &str) -> Command {
    let mut child = Command::new(program);
    child.args(["--exact", &format!("xdp::faults::{name}"), "--nocapture"]).env(CHILD, argument);
    child
}

/// Returns the argument in a child process.
fn child_argument() -> Option<String> {
    std::env::var(CHILD).ok()
}

#[test]
fn killed_owner_leaves_interface_usable() {
    let name = "killed_owner_leaves_interface_usable";
    if let Some(namespace) = child_argument() {
        let _port = open(&NetNs::open(&namespace).unwrap(), "left", |_| {}).unwrap();
        println!("HOLDING");
        // Block until killed; if the parent has ended, its end of the pipe is closed.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    if skip(name) {
        return;
    }
    let wire = Wire::new("kill", 1500, 1);
    let mut child = child(&std::env::current_exe().unwrap(), name, wire.a.name().unwrap());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = Stream::of(child.stdout.take().unwrap());
    let until = Instant::now() + LIMIT;
    while !output.text().contains("HOLDING") {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < until, "no port: {}", output.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    let e = wire.left(|_| {}).err().unwrap().to_string();
    assert!(e.contains(&format!("(pid {})", child.id())), "{e}");
    child.kill().unwrap();
    child.wait_in_time();
    let start = Instant::now();
    let (mut left, mut right) = wire.xdp_ports();
    println!("open again {:?} after the kill", start.elapsed());
    let sent = frame(true, false, false, 200, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

/// Reports the result of opening a port to the parent.
fn report<T>(opened: Result<T, impl Display>) {
    match opened {
        Ok(_) => println!("OPENED"),
        Err(error) => println!("REFUSED {error}"),
    }
}

/// Runs a child to its end, and returns its line.
fn report_of(child: &mut Command) -> String {
    let output = child.output_in_time().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .find_map(|line| ["OPENED", "REFUSED"].iter().find_map(|word| line.find(word).map(|at| &line[at..])));
    line.map(str::to_owned).unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn missing_privileges_are_named() {
    let name = "missing_privileges_are_named";
    if child_argument().is_some() {
        // The child is in its parent's namespace already: it may not enter another.
        return report(XdpPort::open(&XdpConfig::new("lo")));
    }
    if skip(name) {
        return;
    }
    use std::os::unix::process::CommandExt;
    // Copy the test's binary, which only root may be able to read.
    let copy = tempfile::Builder::new().prefix("roxie-").tempdir_in("/tmp").unwrap();
    let binary = copy.path().join("xdp");
    copy_program(std::env::current_exe().unwrap(), &binary);
    for path in [copy.path(), &binary] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let e = report_of(child(&binary, name, "1").current_dir("/").uid(65534).gid(65534));
    assert!(e.contains("not permitted") && e.contains("CAP_BPF") && e.contains("udp port"), "{e}");
}

#[test]
fn memlock_limit_is_reported_with_remedy() {
    let name = "memlock_limit_is_reported_with_remedy";
    if let Some(namespace) = child_argument() {
        return report(open(&NetNs::open(&namespace).unwrap(), "left", |_| {}));
    }
    if skip(name) {
        return;
    }
    use std::os::unix::process::CommandExt;
    let wire = Wire::new("memlock", 1500, 1);
    let mut child = child(&std::env::current_exe().unwrap(), name, wire.a.name().unwrap());
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
    // SAFETY: the closure makes system calls only, which are safe between fork and exec.
    unsafe { child.pre_exec(few) };
    let e = report_of(&mut child);
    assert!(e.contains("16777216 bytes") && e.contains("1048576 bytes"), "{e}");
    assert!(e.contains("ulimit -l 16384") && e.contains("CAP_IPC_LOCK"), "{e}");
}

#[test]
fn invalid_ring_sizes_are_refused() {
    for ring in [0, 63, 100, 65536] {
        let mut config = XdpConfig::new("lo");
        config.ring = ring;
        let e = XdpPort::open(&config).err().unwrap().to_string();
        assert!(e.contains(&ring.to_string()) && e.contains("power of two"), "{e}");
    }
}

/// Runs a child of `test` with these capabilities only (`include/uapi/linux/capability.h`), and returns its line.
fn with_capabilities(test: &str, ns: &NetNs, kept: &'static [libc::c_ulong]) -> String {
    use std::os::unix::process::CommandExt;
    let mut child = child(&std::env::current_exe().unwrap(), test, "1");
    let drop_others = move || {
        for capability in (0..=40).filter(|c| !kept.contains(c)) {
            // SAFETY: a system call with plain values.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only, which are safe between fork and exec.
    unsafe { child.pre_exec(drop_others) };
    // The child starts in the namespace, as an application does: it may not enter one.
    ns.run(|| report_of(&mut child)).unwrap()
}

#[test]
fn named_capabilities_suffice() {
    let name = "named_capabilities_suffice";
    if child_argument().is_some() {
        return report(Device::open_xdp(
            &XdpConfig::new("left"),
            &Stack::default(),
            &DeviceConfig::default(),
        ));
    }
    if skip(name) {
        return;
    }
    const NET_ADMIN: libc::c_ulong = 12;
    const NET_RAW: libc::c_ulong = 13;
    const IPC_LOCK: libc::c_ulong = 14;
    const PERFMON: libc::c_ulong = 38;
    const BPF: libc::c_ulong = 39;
    let wire = Wire::new("caps", 1500, 1);
    let output = with_capabilities(name, &wire.a, &[NET_ADMIN, NET_RAW, IPC_LOCK, BPF]);
    assert!(output.contains("verifier") && output.contains("CAP_PERFMON"), "{output}");
    let output = with_capabilities(name, &wire.a, &[NET_ADMIN, NET_RAW, IPC_LOCK, BPF, PERFMON]);
    assert!(output.contains("OPENED"), "{output}");
}
