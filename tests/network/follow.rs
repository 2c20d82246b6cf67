//! A device follows its interface while it is open.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::in_time::CommandInTime;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use roxie::host::inspect::snapshots;
use roxie::host::{
    AhOptions, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, Stack,
    WaitError,
};
use roxie::netdev::{IfAddr, Interface, Links, NetNs};
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, AsyncEvent, EventKind, Mtu, QpState, SendWr, Wc, WcStatus};

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn saw(device: &Device, wanted: EventKind) -> bool {
    std::iter::from_fn(|| device.event()).any(|event| event == AsyncEvent::Port(wanted))
}

/// Two namespaces with a veth pair, `veth0` in each, 10.79.0.1 here and 10.79.0.2 there; `None` without privileges.
fn network(test: &str, tag: &str) -> Option<(NetNs, NetNs)> {
    let (here, there) = match (NetNs::create(&format!("{tag}-a")), NetNs::create(&format!("{tag}-b"))) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(why), _) | (_, Err(why)) => {
            println!("SKIP {test}: {why}");
            return None;
        }
    };
    Links::open_in(&here).expect("netlink").create_veth("veth0", &there, "veth0", 1).expect("a pair");
    for (ns, own) in [(&here, "10.79.0.1/24"), (&there, "10.79.0.2/24")] {
        let mut links = Links::open_in(ns).expect("netlink");
        links.set_mtu("veth0", 4200).expect("an MTU");
        links.add_address("veth0", address(own)).expect("an address");
        links.set_up("veth0", true).expect("up");
    }
    Some((here, there))
}

fn address(text: &str) -> IfAddr {
    text.parse().expect("an address")
}

fn mac(ns: &NetNs) -> [u8; 6] {
    ns.run(|| Interface::by_name("veth0")).expect("the namespace").expect("an interface").mac
}

fn open_xdp(ns: &NetNs) -> Device {
    let open = || Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &DeviceConfig::default());
    ns.run(open).expect("the namespace").expect("a device")
}

fn open_udp(ns: &NetNs, config: &UdpConfig) -> Device {
    let open = || Device::open_udp(config, &Stack::default(), &DeviceConfig::default());
    ns.run(open).expect("the namespace").expect("a device")
}

fn has(device: &Device, ip: &str) -> Option<usize> {
    let ip: IpAddr = ip.parse().expect("an address");
    device.gids().iter().find(|e| e.gid.to_ip() == ip).map(|e| e.index)
}

/// A QP and the objects it uses.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(device: &Device) -> End {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(16, None).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let memory = pd.register(64, Access::LOCAL_WRITE).expect("memory");
        End { qp, cq, memory }
    }

    /// Sends 64 bytes; true if they arrived and were acknowledged.
    fn send_to(&self, there: &End) -> bool {
        there.qp.post_recv(1, &[there.memory.sge(0, 64)]).expect("room");
        self.qp.post_send(&SendWr::default(), &[self.memory.sge(0, 64)]).expect("room");
        let ok = |wc: Result<Wc, WaitError>| wc.is_ok_and(|wc| wc.status == WcStatus::Success);
        ok(there.cq.wait(Duration::from_secs(5))) && ok(self.cq.wait(Duration::from_secs(5)))
    }
}

fn connected(near: &Device, far: &Device) -> (End, End) {
    let (a, b) = (End::new(near), End::new(far));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    a.qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
    b.qp.connect(&there, &here, &ConnectOptions::default()).expect("connected");
    (a, b)
}

/// Returns the number of this process's threads that follow an interface.
fn followers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "roxie-watch").count()
}

#[test]
fn addresses_mtu_and_link_state_are_followed() {
    let Some((here, there)) = network("addresses_mtu_and_link_state_are_followed", "follow") else {
        return;
    };
    let mut links = Links::open_in(&here).expect("netlink");
    let device = open_xdp(&here);
    assert_eq!(device.largest_mtu(), Mtu::Mtu4096);

    links.add_address("veth0", address("10.79.0.9/24")).expect("an address");
    eventually("the new address is a GID", || has(&device, "10.79.0.9").is_some());
    let index = has(&device, "10.79.0.9");
    eventually("the event", || saw(&device, EventKind::GidChange));

    links.delete_address("veth0", address("10.79.0.1/24")).expect("removed");
    eventually("the old address is gone", || has(&device, "10.79.0.1").is_none());
    // Removing the first address of a subnet removes its secondaries too, unless they are promoted.
    links.add_address("veth0", address("10.79.0.9/24")).ok();
    eventually("the new address is there", || has(&device, "10.79.0.9").is_some());
    assert!(has(&device, "10.79.0.9") <= index, "indices do not grow");

    links.set_mtu("veth0", 1500).expect("an MTU");
    eventually("the path MTU follows", || device.largest_mtu() == Mtu::Mtu1024);
    assert_eq!(device.port().mtu, 1500);

    let mut remote = Links::open_in(&there).expect("netlink");
    remote.set_up("veth0", false).expect("down");
    eventually("the loss of the link is told", || saw(&device, EventKind::PortError));
    remote.set_up("veth0", true).expect("up");
    eventually("its return is told", || saw(&device, EventKind::PortActive));
}

#[test]
fn lowered_mtu_fails_only_the_qp() {
    let test = "lowered_mtu_fails_only_the_qp";
    let Some((here, there)) = network(test, "shrink") else { return };
    let (local, remote) = (open_xdp(&here), open_xdp(&there));
    let (a, b) = connected(&local, &remote);
    assert!(a.send_to(&b));
    Links::open_in(&here).expect("netlink").set_mtu("veth0", 1500).expect("an MTU");
    eventually("the QP fails", || a.qp.query().expect("a status").state == QpState::Err);
    assert!(saw_qp(&local, &a, EventKind::QpFatal));
    let (c, d) = connected(&local, &remote);
    assert!(c.send_to(&d), "a new connection takes the path MTU that fits");
}

fn saw_qp(device: &Device, end: &End, wanted: EventKind) -> bool {
    std::iter::from_fn(|| device.event()).any(|event| event == AsyncEvent::Qp(end.qp.index(), wanted))
}

#[test]
fn station_address_change_keeps_connections() {
    let test = "station_address_change_keeps_connections";
    let Some((here, there)) = network(test, "station") else { return };
    let (local, remote) = (open_xdp(&here), open_xdp(&there));
    let (a, b) = connected(&local, &remote);
    assert!(a.send_to(&b));
    let (old, new) = (mac(&there), [2, 0x79, 0, 0, 0, 9]);
    assert_ne!(old, new);
    let mut links = Links::open_in(&there).expect("netlink");
    links.set_mac("veth0", new).expect("an address");
    eventually("the device has it", || remote.port().mac == new);
    // The kernel may keep the old address until it solicits again: set the new one, as an administrator of both ends
    // would.
    let mut local_links = Links::open_in(&here).expect("netlink");
    local_links.add_neighbour("veth0", "10.79.0.2".parse().expect("an address"), new).expect("a neighbour");
    let destination_of = |device: &Device| device.qps()[0].attributes.av.expect("a path");
    eventually("its frames come from there", || destination_of(&remote).smac == new);
    eventually("the peer's frames go there", || destination_of(&local).dmac == new);
    assert!(a.send_to(&b) && b.send_to(&a));
}

#[test]
fn device_opened_without_carrier_connects_later() {
    let test = "device_opened_without_carrier_connects_later";
    let Some((here, there)) = network(test, "carrier") else { return };
    let mut links = Links::open_in(&there).expect("netlink");
    links.set_up("veth0", false).expect("down");
    let local = open_xdp(&here);
    links.set_up("veth0", true).expect("up");
    let remote = open_xdp(&there);
    eventually("the link is up", || saw(&local, EventKind::PortActive));
    let (a, b) = connected(&local, &remote);
    assert!(a.send_to(&b));
}

#[test]
fn neighbours_are_released_on_close() {
    let Some((here, there)) = network("neighbours_are_released_on_close", "release") else {
        return;
    };
    let (local, remote) = (open_xdp(&here), open_xdp(&there));
    let (a, b) = connected(&local, &remote);
    assert!(a.send_to(&b));
    assert!(manages_the_neighbour(&here));
    drop((a, b, local, remote));
    assert!(!manages_the_neighbour(&here));
}

fn manages_the_neighbour(here: &NetNs) -> bool {
    let arguments = ["-n", here.name().expect("a name"), "neigh", "show"];
    let shown = Command::new("ip").args(arguments).output_in_time().expect("iproute2").stdout;
    String::from_utf8_lossy(&shown).lines().any(|l| l.starts_with("10.79.0.2 ") && l.contains("managed"))
}

/// The kernel forgets all neighbours of a link that goes down. The device asks for them again when it is up.
#[test]
fn neighbours_are_requested_again_after_link_up() {
    let Some((here, _there)) = network("neighbours_are_requested_again_after_link_up", "again") else {
        return;
    };
    let local = open_xdp(&here);
    let pd = local.alloc_pd().expect("a domain");
    let ip: IpAddr = "10.79.0.2".parse().expect("an address");
    let from = has(&local, "10.79.0.1").expect("its own");
    let _handle = pd.create_ah(from, ip.into(), &AhOptions::default()).expect("it answers");
    assert!(manages_the_neighbour(&here));
    let mut links = Links::open_in(&here).expect("netlink");
    links.set_up("veth0", false).expect("down");
    eventually("it is told that the link is down", || saw(&local, EventKind::PortError));
    assert!(!manages_the_neighbour(&here), "the kernel has forgotten it");
    links.set_up("veth0", true).expect("up");
    eventually("the kernel keeps it again", || manages_the_neighbour(&here));
}

#[test]
fn socket_device_follows_its_interface() {
    let Some((here, there)) = network("socket_device_follows_its_interface", "sockets") else {
        return;
    };
    let config = UdpConfig { interface: Some("veth0".into()), ..UdpConfig::default() };
    let (local, remote) = (open_udp(&here, &config), open_udp(&there, &config));
    let mut links = Links::open_in(&here).expect("netlink");
    links.add_address("veth0", address("10.79.0.9/24")).expect("an address");
    eventually("the new address is a GID", || has(&local, "10.79.0.9").is_some());
    let (a, b) = connected(&local, &remote);
    assert!(a.send_to(&b));
    links.set_mtu("veth0", 1500).expect("an MTU");
    eventually("the QP fails", || a.qp.query().expect("a status").state == QpState::Err);
    assert_eq!((local.port().mtu, local.largest_mtu()), (1500, Mtu::Mtu1024));
    links.set_mtu("veth0", 4200).expect("an MTU");
    eventually("the path MTU follows", || local.largest_mtu() == Mtu::Mtu4096);
    Links::open_in(&there).expect("netlink").set_up("veth0", false).expect("down");
    eventually("the loss of the link is told", || saw(&local, EventKind::PortError));

    // Explicitly configured addresses and MTU stay.
    let chosen = UdpConfig {
        addresses: vec!["10.79.0.9".parse().expect("an address")],
        mtu: Some(4200),
        port: 4792,
        ..UdpConfig::default()
    };
    let fixed = open_udp(&here, &chosen);
    links.add_address("veth0", address("10.79.0.10/24")).expect("an address");
    links.set_mtu("veth0", 1500).expect("an MTU");
    eventually("the other device sees both", || {
        has(&local, "10.79.0.10").is_some() && local.largest_mtu() == Mtu::Mtu1024
    });
    assert_eq!((fixed.gids().len(), fixed.largest_mtu()), (1, Mtu::Mtu4096));
}

/// Runs in its own process, because it counts threads.
#[test]
fn follower_ends_with_its_interface() {
    if std::env::var_os("ROXIE_TEST_DELETED").is_none() {
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        child.args(["--exact", "follow::follower_ends_with_its_interface", "--nocapture"]);
        let output = child.env("ROXIE_TEST_DELETED", "1").output_in_time().expect("this program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let Some((here, _there)) = network("follower_ends_with_its_interface", "deleted") else { return };
    let device = open_xdp(&here);
    eventually("it has its thread, under its name", || followers() == 1);
    Links::open_in(&here).expect("netlink").delete("veth0").expect("deleted");
    eventually("it is told", || saw(&device, EventKind::PortError));
    eventually("the thread ends", || followers() == 0);
}

#[test]
fn dropping_the_last_handle_frees_the_port() {
    let Some((here, _there)) = network("dropping_the_last_handle_frees_the_port", "free") else {
        return;
    };
    let config = UdpConfig { interface: Some("veth0".into()), ..UdpConfig::default() };
    let device = open_udp(&here, &config);
    let (begins, begun) = channel();
    // The follower thread is in the middle of answering a reader of the device.
    device.set_cm_ids(Box::new(move || {
        begins.send(()).expect("the test waits");
        std::thread::sleep(Duration::from_millis(200));
        Vec::new()
    }));
    std::thread::scope(|scope| {
        let looker =
            scope.spawn(|| here.run(snapshots).expect("the namespace").expect("the list of sockets"));
        begun.recv_timeout(Duration::from_secs(10)).expect("the follower is asked");
        drop(device);
        let bind = || UdpSocket::bind("10.79.0.1:4791");
        here.run(bind).expect("the namespace").expect("the port is free");
        assert_eq!(looker.join().expect("no panic").snapshots.len(), 1);
    });
}

/// Runs in its own process, because it lowers its limits.
#[test]
fn missing_descriptors_are_reported_with_purpose() {
    let test = "missing_descriptors_are_reported_with_purpose";
    if std::env::var_os("ROXIE_TEST_DESCRIPTORS").is_none() {
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        let output = child
            .args(["--exact", &format!("follow::{test}"), "--nocapture"])
            .env("ROXIE_TEST_DESCRIPTORS", "1")
            .output_in_time();
        let output = output.expect("this program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let Some((here, _there)) = network(test, "few") else { return };
    let open = || Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &DeviceConfig::default());
    let tries = || -> Vec<String> {
        here.enter_thread().expect("the namespace");
        let used = std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64;
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        let with = |limit| {
            setrlimit(Resource::RLIMIT_NOFILE, limit, most).expect("a lower limit");
            open().err().map(|error| error.to_string())
        };
        (used + 1..).map_while(with).collect()
    };
    // Everything runs in the namespace: entering it takes a descriptor, too.
    let message = std::thread::scope(|scope| scope.spawn(tries).join()).expect("no panic");
    assert!(message.len() > 5, "{message:?}");
    for error in &message {
        let (what, _) = error.split_once(": ").unwrap_or_default();
        assert!(what.len() > 8 && !what.contains("following"), "{error}");
    }
    assert!(message.iter().any(|error| error.contains("veth0")), "{message:#?}");
    println!("{message:#?}");
}
