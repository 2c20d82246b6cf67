//! Congestion on real links: marks that the kernel carries, notifications in response, and PAUSE frames. Two
//! namespaces, XDP and UDP ports, IPv4 and IPv6. Needs root; skips without.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roxie::congestion::Rate;
use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, ProtectionDomain, QueuePair, Stack,
};
use roxie::netdev::{IfAddr, Links, NetNs};
use roxie::nic::{CongestionConfig, TrafficClasses, Trust};
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Mtu, QpCaps, QpInit, QpType, SendWr, Wc, WcStatus, WrOpcode};
use roxie::wire::MacControl;

use crate::end::{End, PATIENCE, counter};

const LENGTH: usize = 256 * 1024;

fn network(test: &str, tag: &str) -> Option<[NetNs; 2]> {
    let ends = match (NetNs::create(&format!("{tag}-a")), NetNs::create(&format!("{tag}-b"))) {
        (Ok(here), Ok(there)) => [here, there],
        (Err(why), _) | (_, Err(why)) => {
            println!("SKIP {test}: {why}");
            return None;
        }
    };
    Links::open_in(&ends[0]).expect("netlink").create_veth("veth0", &ends[1], "veth0", 1).expect("a pair");
    for (n, end) in (1..).zip(&ends) {
        let mut links = Links::open_in(end).expect("netlink");
        for text in [format!("10.82.0.{n}/24"), format!("fd82::{n}/64")] {
            links.add_address("veth0", text.parse::<IfAddr>().expect("an address")).expect("an address");
        }
        links.set_up("veth0", true).expect("up");
    }
    Some(ends)
}

fn open(port: &str, namespace: &NetNs, congestion: CongestionConfig) -> Device {
    let config = DeviceConfig { congestion, ..DeviceConfig::default() };
    let open = || match port {
        "xdp" => Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &config),
        _ => {
            let udp = UdpConfig { interface: Some("veth0".to_owned()), ..UdpConfig::default() };
            Device::open_udp(&udp, &Stack::default(), &config)
        }
    };
    namespace.run(open).expect("the namespace").expect("a device")
}

fn endpoint(end: &End, device: &Device, ipv4: bool) -> Endpoint {
    let entry = device.gids().into_iter().find(|e| {
        let ip = e.gid.to_ip();
        // The configured address, not the link-local one.
        ip.is_ipv4() == ipv4 && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
    });
    end.qp.endpoint(entry.expect("a GID").index).expect("an endpoint")
}

fn connect(devices: [&Device; 2], ipv4: bool, options: [&ConnectOptions; 2]) -> [End; 2] {
    let ends = devices.map(|device| End::new(device, LENGTH));
    let [here, there] = [0, 1].map(|n| endpoint(&ends[n], devices[n], ipv4));
    ends[0].qp.connect(&here, &there, options[0]).expect("connected");
    ends[1].qp.connect(&there, &here, options[1]).expect("connected");
    ends
}

fn dcqcn() -> CongestionConfig {
    let control = "dcqcn,preset=paper".parse().expect("settings");
    CongestionConfig { control, line_rate: Some(Rate::from_gbps(1.0)), ..CongestionConfig::default() }
}

/// All data carries CE, as if switches had marked every packet: the kernel marks trains of sockets as a whole.
#[test]
fn marks_are_answered_over_both_ports() {
    const NAME: &str = "marks_are_answered_over_both_ports";
    let Some(ends) = network(NAME, "marks") else { return };
    for (port, ipv4) in [("xdp", true), ("xdp", false), ("udp", true), ("udp", false)] {
        let what = format!("{port}, IPv{}", if ipv4 { 4 } else { 6 });
        let local = open(port, &ends[0], dcqcn());
        let remote = open(port, &ends[1], CongestionConfig::default());
        let marked =
            ConnectOptions { traffic_class: 26 << 2 | 3, path_mtu: Some(Mtu::Mtu1024), ..Default::default() };
        let plain = ConnectOptions { path_mtu: Some(Mtu::Mtu1024), ..ConnectOptions::default() };
        let [a, b] = connect([&local, &remote], ipv4, [&marked, &plain]);
        a.post(&b, WrOpcode::Write, LENGTH);
        assert_eq!(a.status(), WcStatus::Success);
        let data = LENGTH as u64 / 1024;
        let seen = counter(&remote, "np_ecn_marked_roce_packets");
        assert!(seen >= data, "{what}: {seen} of {data} marks");
        let sent = counter(&remote, "np_cnp_sent");
        assert!((1..=seen).contains(&sent), "{what}: {sent} notifications");
        // The last notification may still be under way.
        let until = Instant::now() + PATIENCE;
        let notifications = || counter(&local, "rp_cnp_handled") + counter(&local, "rp_cnp_ignored");
        while notifications() < sent {
            local.poll();
            assert!(Instant::now() < until, "{what}: {} of {sent} notifications", notifications());
        }
        assert_eq!(notifications(), sent, "{what}");
        assert!(counter(&local, "rp_cnp_handled") >= 1, "{what}");
        let log: Vec<String> = a.qp.log().expect("a log").iter().map(ToString::to_string).collect();
        assert!(
            log.iter().any(|line| line.contains("congestion notification: rate 1 Gb/s -> 500 Mb/s")),
            "{what}: {log:#?}"
        );
        // Packets in the reverse direction are not marked.
        assert_eq!((counter(&local, "np_cnp_sent"), counter(&remote, "rp_cnp_handled")), (0, 0), "{what}");
    }
}

/// Creates a raw packet QP, to send frames in a neighbour's name.
fn raw_qp(device: &Device) -> (QueuePair, CompletionQueue, ProtectionDomain) {
    let pd = device.alloc_pd().expect("a domain");
    let cq = device.create_cq(16, None).expect("a queue");
    let caps = QpCaps { max_inline: 128, ..QpCaps::default() };
    let init = QpInit { qp_type: QpType::RawPacket, caps, sq_sig_all: true };
    let qp = pd.queue_pair(&cq).init(&init).create().expect("a QP");
    qp.start_raw().expect("a raw packet QP");
    (qp, cq, pd)
}

#[test]
fn pfc_stops_only_its_priority() {
    const NAME: &str = "pfc_stops_only_its_priority";
    let Some(ends) = network(NAME, "pauses") else { return };
    let classes = TrafficClasses { trust: Trust::Dscp, pfc: 1 << 3, ..TrafficClasses::default() };
    // A quantum is 512 bits: at 400 Mb/s, 65,535 quanta are 84 ms.
    let line_rate = Some(Rate::from_mbps(400.0));
    let [local, remote] = [0, 1].map(|end| open("xdp", &ends[end], CongestionConfig::default()));
    // Changed while the port is open: the port receives such frames from now on.
    let rules = CongestionConfig { classes, line_rate, ..CongestionConfig::default() };
    local.set_congestion(rules).expect("heeds them");
    let of_dscp = |dscp: u8| ConnectOptions { traffic_class: dscp << 2, ..ConnectOptions::default() };
    let plain = ConnectOptions::default();
    let third = connect([&local, &remote], true, [&of_dscp(26), &plain]);
    let first = connect([&local, &remote], true, [&of_dscp(0), &plain]);
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    let frame = MacControl::Pfc { enable: 1 << 3, quanta }.build(remote.port().mac);
    let (raw, sent, _pd) = raw_qp(&remote);
    let began = Instant::now();
    raw.post_send_inline(&SendWr::default(), &frame).expect("room");
    assert_eq!(sent.wait(PATIENCE).map(|wc| wc.status), Ok(WcStatus::Success));
    let until = Instant::now() + PATIENCE;
    while counter(&local, "rx_prio3_pause") == 0 {
        local.poll();
        assert!(Instant::now() < until, "the frame is taken from the link");
    }
    third[0].post(&third[1], WrOpcode::Write, 4096);
    first[0].post(&first[1], WrOpcode::Write, 4096);
    assert_eq!(first[0].status(), WcStatus::Success);
    // On a busy machine, the pause may be over by now.
    let early = third[0].cq.poll(&mut [Wc::default()]) == 0;
    assert!(
        early || began.elapsed() > Duration::from_millis(83),
        "priority 3 is stopped while priority 0 is done"
    );
    if early {
        assert_eq!(third[0].status(), WcStatus::Success);
    }
    let paused = began.elapsed();
    assert!(paused >= Duration::from_millis(83), "{paused:?}");
    assert_eq!(counter(&local, "rx_prio3_pause_duration"), 83_884);
}

/// A receiver that is not polled sends PAUSE as its ring fills. The sender honours it, and no frame is lost.
#[test]
fn full_receive_ring_pauses_the_neighbour() {
    const NAME: &str = "full_receive_ring_pauses_the_neighbour";
    let Some(ends) = network(NAME, "xoff") else { return };
    let with = |text: &str| CongestionConfig {
        classes: text.parse().expect("classes"),
        line_rate: Some(Rate::from_gbps(1.0)),
        ..CongestionConfig::default()
    };
    let local = open("xdp", &ends[0], with("pfc=0"));
    let namespace = &ends[1];
    let remote = namespace
        .run(|| {
            let config =
                DeviceConfig { congestion: with("send_pfc=0,xoff=2"), ..DeviceConfig::caller_only() };
            Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &config)
        })
        .expect("the namespace")
        .expect("a device");
    let plain = ConnectOptions { path_mtu: Some(Mtu::Mtu1024), timeout: 20, ..ConnectOptions::default() };
    let [a, b] = connect([&local, &remote], true, [&plain, &plain]);
    // The far ring holds a window of packets, none of which has been taken yet.
    a.post(&b, WrOpcode::Write, LENGTH);
    let until = Instant::now() + PATIENCE;
    while counter(&local, "sent_pkts") < 100 {
        local.poll();
        assert!(Instant::now() < until, "{} packets sent", counter(&local, "sent_pkts"));
    }
    let done = Instant::now() + PATIENCE;
    while a.cq.poll(&mut [Wc::default()]) == 0 {
        remote.poll();
        assert!(Instant::now() < done, "the WRITE is done");
    }
    assert!(counter(&remote, "tx_prio_pause") >= 1);
    while counter(&remote, "tx_prio_resume") == 0 || counter(&local, "rx_prio0_pause") < 2 {
        remote.poll();
        local.poll();
        assert!(Instant::now() < done, "stopped, and let go on");
    }
    assert_eq!(counter(&local, "retransmitted_packets"), 0);
}
