//! Devices with GIDs of a VLAN and of RoCE v1, on a veth pair between two namespaces, over AF_XDP and packet sockets.
//! Needs root; skips without. Most tests have no VLAN interface: the GIDs are given by hand, and the kernel resolves
//! neighbours on the interface itself. Those with VLAN interfaces and bonds skip on kernels that have neither; `cargo
//! test -p interop --test guests links::` runs them in a guest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roxie::host::{
    ConnectOptions, ConnectionManager, Device, DeviceConfig, DialOptions, Endpoint, GidEntry, Resolve,
    ResolveError, Stack,
};
use roxie::netdev::{IfAddr, Interface, Links, NetNs, RouteKey, ethtool};
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, QpState, SendWr, Wc, WcStatus, WrOpcode};
use roxie::wire::{Encapsulation, RoceVersion};

use crate::end::{End, PATIENCE, counter};
use crate::wire::{A4, A6, B4, Wire, skip};

const LENGTH: usize = 64 << 10;
const VLAN: u16 = 5;
const PORTS: [&str; 2] = ["xdp", "packet"];

fn open(wire: &Wire, port: &str, is_left: bool, roce_v1: bool) -> Device {
    let (namespace, name) = if is_left { (&wire.a, "left") } else { (&wire.b, "right") };
    let config = DeviceConfig { roce_v1, ..DeviceConfig::default() };
    let stack = Stack::default();
    let open = || match port {
        "xdp" => Device::open_xdp(&XdpConfig::new(name), &stack, &config),
        _ => Device::open_packet(&PacketConfig { shared: false, ..PacketConfig::new(name) }, &stack, &config),
    };
    namespace.run(open).expect("the namespace").expect("a device")
}

fn pair(wire: &Wire, port: &str, roce_v1: bool) -> [Device; 2] {
    [open(wire, port, true, roce_v1), open(wire, port, false, roce_v1)]
}

/// Returns the index of the GID of an address in an encapsulation.
fn index(device: &Device, address: Ipv4Addr, encapsulation: Encapsulation) -> usize {
    let gid = device
        .gids()
        .into_iter()
        .find(|entry| entry.gid.to_ip() == IpAddr::from(address) && entry.encapsulation == encapsulation);
    gid.expect("a GID").index
}

/// Connects two QPs between GIDs in these encapsulations. `options`: of the first.
fn connect(devices: &[Device; 2], of: [Encapsulation; 2], options: &ConnectOptions) -> [End; 2] {
    let ends = [End::new(&devices[0], LENGTH), End::new(&devices[1], LENGTH)];
    let here = ends[0].qp.endpoint(index(&devices[0], A4, of[0])).expect("an endpoint");
    let there = ends[1].qp.endpoint(index(&devices[1], B4, of[1])).expect("an endpoint");
    ends[0].qp.connect(&here, &there, options).expect("connected");
    ends[1].qp.connect(&there, &here, &ConnectOptions::default()).expect("connected");
    ends
}

/// WRITEs and READs back, and checks the bytes.
fn exchange(ends: &[End; 2], what: &str) {
    let bytes: Vec<u8> = (0..LENGTH).map(|i| ((i * 31) >> 3) as u8).collect();
    ends[0].memory.write_at(0, &bytes).expect("within the region");
    ends[0].post(&ends[1], WrOpcode::Write, LENGTH);
    assert_eq!(ends[0].status(), WcStatus::Success, "{what}: WRITE");
    assert!(ends[1].memory.to_vec(0, LENGTH).expect("within the region") == bytes, "{what}: WRITE");
    ends[0].memory.write_at(0, &vec![0; LENGTH]).expect("within the region");
    ends[0].post(&ends[1], WrOpcode::Read, LENGTH);
    assert_eq!(ends[0].status(), WcStatus::Success, "{what}: READ");
    assert!(ends[0].memory.to_vec(0, LENGTH).expect("within the region") == bytes, "{what}: READ");
}

/// Few and short retries, so that a peer that does not answer is soon given up.
fn impatient() -> ConnectOptions {
    ConnectOptions { timeout: 10, retry_cnt: 1, ..ConnectOptions::default() }
}

#[test]
fn connections_stay_in_their_vlan() {
    if skip("connections_stay_in_their_vlan") {
        return;
    }
    let (plain, five) = (Encapsulation::default(), Encapsulation::vlan(VLAN));
    for port in PORTS {
        let wire = Wire::new("vlans-in", 1500, 1);
        let devices = pair(&wire, port, false);
        for (device, address) in devices.iter().zip([A4, B4]) {
            let added = device.add_vlan_address(address.into(), VLAN).expect("the port sees tags");
            assert_eq!(device.local_gid(added).expect("listed").encapsulation, five);
            device.add_vlan_address(address.into(), 6).expect("another VLAN");
        }
        exchange(&connect(&devices, [five, five], &ConnectOptions::default()), &format!("{port}, VLAN 5"));
        exchange(&connect(&devices, [plain, plain], &ConnectOptions::default()), &format!("{port}, none"));
        for of in [[five, plain], [plain, five], [five, Encapsulation::vlan(6)]] {
            let ends = connect(&devices, of, &impatient());
            ends[0].post(&ends[1], WrOpcode::Write, LENGTH);
            assert_eq!(ends[0].status(), WcStatus::RetryExc, "{port}, {of:?}");
            assert_eq!(ends[1].memory.to_vec(0, 8).expect("bytes"), [0; 8], "{port}, {of:?}: nothing came");
        }
        assert!(counter(&devices[1], "rx_wrong_source") > 0, "{port}: the other VLAN is a GID too");
    }
}

#[test]
fn vlan_deleted_in_use_fails_its_connections() {
    if skip("vlan_deleted_in_use_fails_its_connections") {
        return;
    }
    let (plain, five) = (Encapsulation::default(), Encapsulation::vlan(VLAN));
    for port in PORTS {
        let wire = Wire::new("vlans-gone", 1500, 1);
        let devices = pair(&wire, port, false);
        for (device, address) in devices.iter().zip([A4, B4]) {
            device.add_vlan_address(address.into(), VLAN).expect("the port sees tags");
        }
        let tagged = connect(&devices, [five, five], &ConnectOptions::default());
        let others = connect(&devices, [plain, plain], &ConnectOptions::default());
        exchange(&tagged, port);
        devices[0].remove_vlan_address(A4.into(), VLAN).expect("removed");
        assert_eq!(tagged[0].qp.query().expect("a status").state, QpState::Err, "{port}");
        tagged[0].qp.post_recv(1, &[]).expect("room");
        assert_eq!(tagged[0].status(), WcStatus::WrFlush, "{port}: work is flushed");
        assert!(devices[0].gids().iter().all(|entry| entry.encapsulation == plain));
        exchange(&others, &format!("{port}, beside it"));
    }
}

/// Routes of an interface or of a VLAN, with this hop limit.
struct Routes(u8);

impl Resolve for Routes {
    fn resolve(&self, _: RouteKey) -> Result<[u8; 6], ResolveError> {
        Ok([2, 0, 0, 0, 0, 2])
    }

    fn hop_limit(&self, _: RouteKey) -> u8 {
        self.0
    }

    fn on_vlan(&self, vlan: u16) -> Option<Arc<dyn Resolve>> {
        Some(Arc::new(Routes(vlan as u8)))
    }
}

#[test]
fn vlan_routes_set_the_hop_limit() {
    let (port, _other_end) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let (resolver, config) = (Box::new(Routes(70)), DeviceConfig::default());
    let device =
        Device::new("routes", Box::new(port), [IpAddr::from(A4)], resolver, &config).expect("a device");
    device.add_vlan_address(A4.into(), VLAN).expect("memory carries tags");
    for (of, hops) in [(Encapsulation::default(), 70), (Encapsulation::vlan(VLAN), VLAN as u8)] {
        let end = End::new(&device, LENGTH);
        let here = end.qp.endpoint(index(&device, A4, of)).expect("an endpoint");
        let there = Endpoint::new(here.qpn, here.psn, IpAddr::from(B4).into());
        end.qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
        let path = end.qp.query().expect("a status").attributes.av.expect("a path");
        assert_eq!(path.hop_limit, hops, "{of}");
    }
}

#[test]
fn connection_manager_serves_each_network() {
    if skip("connection_manager_serves_each_network") {
        return;
    }
    for port in PORTS {
        let wire = Wire::new("vlans-cm", 1500, 1);
        let devices = pair(&wire, port, true);
        for (device, address) in devices.iter().zip([A4, B4]) {
            device.add_vlan_address(address.into(), VLAN).expect("the port sees tags");
        }
        let tagged_v1 = Encapsulation { vlan: VLAN, version: RoceVersion::V1 };
        let all = [Encapsulation::default(), Encapsulation::vlan(VLAN), Encapsulation::v1(), tagged_v1];
        let [local, remote] = &devices;
        let (server, client) = (ConnectionManager::start(remote), ConnectionManager::start(local));
        let (server, client) = (server.expect("a manager"), client.expect("a manager"));
        let address = SocketAddr::new(B4.into(), 7174);
        let listener = server.listen(address, 4).expect("a listener");
        thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                for of in all {
                    let end = End::new(remote, LENGTH);
                    end.qp.initialize(Access::LOCAL_WRITE).expect("in RESET");
                    end.qp.post_recv(1, &[end.memory.sge(0, 64)]).expect("room");
                    let request = listener.accept(PATIENCE).expect("no error").expect("a request");
                    let End { qp, cq, memory, _pd } = end;
                    let connection = request.accept(qp, &DialOptions::default()).expect("accepted");
                    let path = connection.qp().query().expect("a status").attributes.av.expect("a path");
                    assert_eq!(path.encapsulation, of, "{port}: the listener's path");
                    let wc: Wc = cq.wait(PATIENCE).expect("a completion");
                    assert_eq!(
                        (wc.status, memory.to_vec(0, 5).expect("bytes")),
                        (WcStatus::Success, b"hello".to_vec())
                    );
                    assert!(connection.wait_for_end(PATIENCE), "{port}, {of}: ended by the peer");
                }
            });
            for of in all {
                let End { qp, cq, memory, _pd } = End::new(local, LENGTH);
                let options = DialOptions { gid_index: Some(index(local, A4, of)), ..DialOptions::default() };
                let connection = client.connect(qp, address, &options).expect("connected");
                memory.write_at(0, b"hello").expect("bytes");
                connection.qp().post_send(&SendWr::default(), &[memory.sge(0, 5)]).expect("room");
                assert_eq!(
                    cq.wait(PATIENCE).expect("a completion").status,
                    WcStatus::Success,
                    "{port}, {of}"
                );
                drop(connection);
            }
            accepting.join().expect("each is accepted");
        });
    }
}

#[test]
fn roce_v1_gids_come_behind_the_others() {
    if skip("roce_v1_gids_come_behind_the_others") {
        return;
    }
    for port in PORTS {
        let wire = Wire::new("vlans-v1", 1500, 1);
        let devices = pair(&wire, port, true);
        // The kernel may give the interface its link-local address at any time: that one is a later address too.
        let listed = || -> Vec<_> {
            let others = |entry: &GidEntry| (entry.gid.to_ip().to_string(), entry.encapsulation.version);
            let all = devices[0].gids();
            all.iter().map(others).filter(|(address, _)| !address.starts_with("fe80:")).collect()
        };
        let later = Ipv4Addr::new(198, 51, 100, 1);
        let given = IfAddr { ip: later.into(), prefix: 24 };
        Links::open_in(&wire.a).unwrap().add_address("left", given).unwrap();
        await_gid(&devices[0], later, Encapsulation::v1(), true);
        let of = |version| [IpAddr::from(A4), IpAddr::from(A6)].map(|ip| (ip.to_string(), version));
        let (v2, v1) = (RoceVersion::V2, RoceVersion::V1);
        let last = [v2, v1].map(|version| (later.to_string(), version));
        assert_eq!(listed(), [of(v2), of(v1), last].concat(), "{port}");
        let both = [Encapsulation::v1(), Encapsulation::v1()];
        exchange(&connect(&devices, both, &ConnectOptions::default()), &format!("{port}, RoCE v1"));
    }
}

#[test]
fn xdp_port_makes_the_driver_show_tags() {
    if skip("xdp_port_makes_the_driver_show_tags") {
        return;
    }
    let wire = Wire::new("vlans-off", 1500, 1);
    let hides = || {
        let index = Interface::by_name("left").expect("the interface").index;
        ethtool::offloads(index).expect("ethtool").is_on("rx-vlan-hw-parse")
    };
    assert!(wire.a.run(hides).unwrap(), "veth offers the offload, and has it on");
    let device = open(&wire, "xdp", true, false);
    assert!(wire.a.run(hides).unwrap(), "a device without VLANs leaves it on");
    device.add_vlan_address(A4.into(), VLAN).expect("root turns it off");
    assert!(!wire.a.run(hides).unwrap());
}

#[test]
fn unserved_networks_are_refused_with_the_reason() {
    if skip("unserved_networks_are_refused_with_the_reason") {
        return;
    }
    let wire = Wire::new("vlans-not", 1500, 1);
    let config = DeviceConfig { roce_v1: true, ..DeviceConfig::default() };
    let udp = UdpConfig { interface: Some("left".to_owned()), ..UdpConfig::default() };
    let refused = wire.a.run(|| Device::open_udp(&udp, &Stack::default(), &config)).unwrap();
    let refused = refused.expect_err("no EtherType over sockets").to_string();
    assert!(refused.contains("carries no RoCE v1") && refused.contains("--port packet"), "{refused}");

    let device = open(&wire, "packet", true, false);
    for vlan in [0, 4095] {
        let refused = device.add_vlan_address(A4.into(), vlan).expect_err("no such VLAN").to_string();
        assert_eq!(refused, format!("there is no VLAN {vlan}: VLAN IDs are 1 to 4094"));
    }
    let added = device.add_vlan_address(A4.into(), VLAN).expect("a GID");
    let pd = device.alloc_pd().expect("a domain");
    let group = IpAddr::from([239, 1, 2, 3]).into();
    let refused = pd.create_ah(added, group, &Default::default()).expect_err("no groups").to_string();
    assert!(refused.contains("(RoCE v2, VLAN 5)") && refused.contains("without a VLAN only"), "{refused}");
}

/// Runs `ip` in a namespace. False if it fails, as for a kind of link that the kernel lacks.
fn ip(namespace: &NetNs, line: &str) -> bool {
    let run = || Command::new("ip").args(line.split(' ')).status();
    namespace.run(run).expect("the namespace").is_ok_and(|status| status.success())
}

/// Opens a device, or prints why this kernel has none of this kind.
fn open_if_possible(namespace: &NetNs, name: &str, port: &str) -> Option<Device> {
    let (config, stack) = (DeviceConfig::default(), Stack::default());
    let open = || match port {
        "xdp" => Device::open_xdp(&XdpConfig::new(name), &stack, &config),
        _ => Device::open_packet(&PacketConfig { shared: false, ..PacketConfig::new(name) }, &stack, &config),
    };
    namespace.run(open).expect("the namespace").map_err(|why| println!("SKIP {port}: {why}")).ok()
}

/// Waits until a device has the GID of an address in an encapsulation, or has it no longer.
fn await_gid(device: &Device, address: Ipv4Addr, encapsulation: Encapsulation, wanted: bool) {
    let until = Instant::now() + PATIENCE;
    let has = || {
        device
            .gids()
            .into_iter()
            .any(|entry| entry.gid.to_ip() == IpAddr::from(address) && entry.encapsulation == encapsulation)
    };
    while has() != wanted {
        assert!(Instant::now() < until, "{address}, {encapsulation}: {:?}", device.gids());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Connects the GIDs of two addresses on the VLAN.
fn connect_tagged(devices: &[Device; 2], addresses: [Ipv4Addr; 2]) -> [End; 2] {
    let five = Encapsulation::vlan(VLAN);
    let ends = [End::new(&devices[0], LENGTH), End::new(&devices[1], LENGTH)];
    let at = |n: usize| ends[n].qp.endpoint(index(&devices[n], addresses[n], five)).expect("an endpoint");
    let (here, there) = (at(0), at(1));
    ends[0].qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
    ends[1].qp.connect(&there, &here, &ConnectOptions::default()).expect("connected");
    ends
}

#[test]
fn vlan_interface_addresses_become_gids() {
    if skip("vlan_interface_addresses_become_gids") {
        return;
    }
    let addresses = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];
    for port in PORTS {
        let wire = Wire::new("vlans-if", 1500, 1);
        let make = |namespace: &NetNs, name: &str, address: Ipv4Addr| {
            ip(namespace, &format!("link add link {name} name {name}.5 type vlan id {VLAN}"))
                && ip(namespace, &format!("addr add {address}/24 dev {name}.5"))
                && ip(namespace, &format!("link set {name}.5 up"))
        };
        if !make(&wire.a, "left", addresses[0]) {
            println!(
                "SKIP vlan_interface_addresses_become_gids: this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)"
            );
            return;
        }
        let (Some(local), Some(remote)) =
            (open_if_possible(&wire.a, "left", port), open_if_possible(&wire.b, "right", port))
        else {
            continue;
        };
        let devices = [local, remote];
        let five = Encapsulation::vlan(VLAN);
        // One VLAN is there from the start, the other comes later.
        index(&devices[0], addresses[0], five);
        assert!(make(&wire.b, "right", addresses[1]));
        await_gid(&devices[1], addresses[1], five, true);
        let ends = connect_tagged(&devices, addresses);
        exchange(&ends, &format!("{port}, VLAN interfaces"));
        assert!(ip(&wire.a, "link del left.5"));
        await_gid(&devices[0], addresses[0], five, false);
        assert_eq!(ends[0].qp.query().expect("a status").state, QpState::Err, "{port}: deleted in use");
    }
}

#[test]
fn bond_fails_over_without_losing_a_qp() {
    if skip("bond_fails_over_without_losing_a_qp") {
        return;
    }
    let vlan_addresses = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];
    for port in ["packet"] {
        let ends = ["bond-a", "bond-b"].map(|name| NetNs::create(name).expect("a namespace"));
        let mut links = Links::open_in(&ends[0]).expect("netlink");
        for slave in ["s1", "s2"] {
            links.create_veth(slave, &ends[1], slave, 1).expect("a pair");
        }
        for (n, end) in (1..).zip(&ends) {
            if !ip(end, "link add bond0 type bond mode active-backup miimon 20") {
                println!(
                    "SKIP bond_fails_over_without_losing_a_qp: this kernel has no bonds (CONFIG_BONDING)"
                );
                return;
            }
            for slave in ["s1", "s2"] {
                assert!(ip(end, &format!("link set {slave} master bond0")));
            }
            // The slaves face each other, so both bonds must choose the same pair.
            assert!(ip(end, "link set bond0 type bond primary s1 primary_reselect always"));
            assert!(ip(end, &format!("addr add 192.0.2.{n}/24 dev bond0")) && ip(end, "link set bond0 up"));
            let stacked = ip(end, &format!("link add link bond0 name bond0.5 type vlan id {VLAN}"))
                && ip(end, &format!("addr add 198.51.100.{n}/24 dev bond0.5"))
                && ip(end, "link set bond0.5 up");
            assert!(stacked, "a VLAN on the bond");
        }
        let (Some(local), Some(remote)) =
            (open_if_possible(&ends[0], "bond0", port), open_if_possible(&ends[1], "bond0", port))
        else {
            continue;
        };
        let open = || Device::open_xdp(&XdpConfig::new("bond0"), &Stack::default(), &DeviceConfig::default());
        let refused = ends[0].run(open).unwrap().expect_err("AF_XDP").to_string();
        assert!(refused.starts_with("bond0 is a bond (active-backup)"), "{refused}");
        assert!(refused.contains("(s1, s2)") && refused.contains("--port packet"), "{refused}");
        let devices = [local, remote];
        let (plain, five) = (Encapsulation::default(), Encapsulation::vlan(VLAN));
        for ((device, address), on_vlan) in devices.iter().zip([A4, B4]).zip(vlan_addresses) {
            await_gid(device, address, plain, true);
            await_gid(device, on_vlan, five, true);
        }
        let pairs = [
            connect(&devices, [plain, plain], &ConnectOptions::default()),
            connect_tagged(&devices, vlan_addresses),
        ];
        let all = |what: &str| pairs.iter().for_each(|pair| exchange(pair, &format!("{port}, {what}")));
        all("both links");
        assert!(ip(&ends[0], "link set s1 down"));
        all("the second link");
        assert!(ip(&ends[0], "link set s1 up"));
        all("the first link again");
    }
}
