//! Multicast over real links: two namespaces, XDP and UDP ports, IPv4 and IPv6. Needs root; skips without.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    AhOptions, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QueuePair, Stack,
};
use roxie::netdev::{IfAddr, Links, NetNs};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, Gid, Psn, QpCaps, QpInit, QpType, Qpn, WcStatus};

const QKEY: u32 = 0x0102_0304;
const HEADER: usize = 40;
const RECEIVES: u64 = 8;

/// A datagram QP with its receives posted.
struct Member {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    pd: ProtectionDomain,
}

impl Member {
    fn new(device: &Device) -> Member {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(64, None).expect("a queue");
        let init = QpInit { qp_type: QpType::Ud, caps: QpCaps::default(), sq_sig_all: true };
        let qp = pd.queue_pair(&cq).init(&init).create().expect("a QP");
        qp.start_datagrams(QKEY, Psn::new(0)).expect("a datagram QP");
        let memory = pd.register(100 * RECEIVES as usize, Access::LOCAL_WRITE).expect("memory");
        for i in 0..RECEIVES {
            qp.post_recv(i, &[memory.sge(100 * i as usize, 100)]).expect("room");
        }
        Member { qp, cq, memory, pd }
    }

    /// Returns the payload of the next datagram.
    fn next(&self, patience: Duration) -> Option<Vec<u8>> {
        let wc = self.cq.wait(patience).ok()?;
        assert_eq!(wc.status, WcStatus::Success);
        let length = wc.byte_len as usize - HEADER;
        Some(self.memory.to_vec(100 * wc.wr_id as usize + HEADER, length).expect("within the region"))
    }
}

fn open(port: &str, namespace: &NetNs, address: &[IpAddr]) -> Device {
    let config = DeviceConfig::default();
    let open = || match port {
        "xdp" => Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &config),
        "packet" => Device::open_packet(&PacketConfig::new("veth0"), &Stack::default(), &config),
        // Bound to its addresses, or to none.
        _ => {
            let interface = Some("veth0".to_owned());
            let udp = UdpConfig { addresses: address.to_vec(), interface, ..UdpConfig::default() };
            Device::open_udp(&udp, &Stack::default(), &config)
        }
    };
    namespace.run(open).expect("the namespace").expect("a device")
}

/// True if the kernel lists the group.
fn kernel_has(namespace: &NetNs, group: IpAddr) -> bool {
    let (table, key) = match group {
        IpAddr::V4(v4) => ("igmp", format!("{:08X}", u32::from_le_bytes(v4.octets()))),
        IpAddr::V6(v6) => ("igmp6", v6.octets().iter().map(|byte| format!("{byte:02x}")).collect()),
    };
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).expect("a table");
    namespace.run(read).expect("the namespace").contains(&key)
}

fn play(port: &str, ends: &[NetNs; 2], addresses: [&[IpAddr]; 2], group: IpAddr) {
    let what = format!("{port}, {group}, addresses {addresses:?}");
    let here = open(port, &ends[0], addresses[0]);
    let there = open(port, &ends[1], addresses[1]);
    let gid = Gid::from(group);
    let (sender, neighbour) = (Member::new(&here), Member::new(&here));
    let remote = [Member::new(&there), Member::new(&there)];
    let other_group = Member::new(&there);
    for member in [&sender, &neighbour, &remote[0], &remote[1]] {
        member.qp.attach_multicast(gid).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    assert!(kernel_has(&ends[1], group), "{what}: the kernel is in the group");
    let index = here.gids().iter().find(|e| e.gid.to_ip().is_ipv4() == group.is_ipv4()).expect("a GID").index;
    let way = sender.pd.create_ah(index, gid, &AhOptions::default()).expect("a way");
    for n in 1..=3 {
        let wr = way.send_to(Qpn::MULTICAST, QKEY);
        sender.qp.post_send_inline(&wr, &[n; 5]).expect("room");
        let patience = Duration::from_secs(10);
        assert_eq!(sender.cq.wait(patience).map(|wc| wc.status), Ok(WcStatus::Success), "{what}");
        for member in [&neighbour, &remote[0], &remote[1]] {
            assert_eq!(member.next(patience).as_deref(), Some(&[n; 5][..]), "{what}");
        }
    }
    let soon = Duration::from_millis(20);
    for nobody in [&sender, &neighbour, &remote[0], &other_group] {
        assert_eq!(nobody.next(soon), None, "{what}: no second copy, and none for the sender or non-members");
    }
    remote[0].qp.detach_multicast(gid).expect("a member");
    assert!(kernel_has(&ends[1], group), "{what}: one is still in it");
    drop(remote);
    let until = Instant::now() + Duration::from_secs(5);
    while kernel_has(&ends[1], group) {
        assert!(Instant::now() < until, "{what}: the kernel leaves with the last member");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn group_is_joined_and_left_over_all_ports() {
    let ends = match (NetNs::create("mcast-a"), NetNs::create("mcast-b")) {
        (Ok(here), Ok(there)) => [here, there],
        (Err(why), _) | (_, Err(why)) => {
            println!("SKIP group_is_joined_and_left_over_all_ports: {why}");
            return;
        }
    };
    let mut links = Links::open_in(&ends[0]).expect("netlink");
    links.create_veth("veth0", &ends[1], "veth0", 1).expect("a pair");
    for (n, end) in (1..).zip(&ends) {
        let mut links = Links::open_in(end).expect("netlink");
        for text in [format!("10.81.0.{n}/24"), format!("fd81::{n}/64")] {
            links.add_address("veth0", text.parse::<IfAddr>().expect("an address")).expect("an address");
        }
        links.set_up("veth0", true).expect("up");
    }
    let ips: Vec<Vec<IpAddr>> = (1..=2)
        .map(|n| {
            [format!("10.81.0.{n}"), format!("fd81::{n}")].map(|a| a.parse().expect("an address")).into()
        })
        .collect();
    for group in ["239.1.2.3", "ff0e::1:2:3"] {
        let group = group.parse().expect("an address");
        play("xdp", &ends, [&ips[0], &ips[1]], group);
        play("packet", &ends, [&ips[0], &ips[1]], group);
        play("udp", &ends, [&ips[0], &ips[1]], group);
    }
    // Sockets bound to no address.
    play("udp", &ends, [&ips[0], &[]], "239.1.2.3".parse().expect("an address"));
}
