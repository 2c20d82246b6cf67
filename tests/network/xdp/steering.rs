//! Frames to this station go to the port, others to the kernel.

use std::net::{IpAddr, UdpSocket};

use roxie::flow::{FlowField, FlowKey, FlowMatch, MAX_FLOWS, layer};
use roxie::frame::Frame;

use roxie::port::{LinkChange, RxOptions};

use super::*;

#[test]
fn priority_tagged_frames_are_steered() {
    if skip("priority_tagged_frames_are_steered") {
        return;
    }
    let wire = Wire::new("vlan", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    for v6 in [false, true] {
        let mut sent = frame(true, v6, true, 200, 1);
        sent[14..16].copy_from_slice(&[0x60, 0]);
        assert!(put(&mut left, &sent));
        flush(&mut left);
        assert!(take(&mut right, 1, SOON) == [sent]);
    }
    assert_eq!(counter(&right, "rx_tagged"), 0);
}

/// Frames to one of the port's IP addresses that an adapter would not deliver to a QP.
#[test]
fn foreign_or_malformed_frames_are_counted_not_taken() {
    let name = "foreign_or_malformed_frames_are_counted_not_taken";
    if skip(name) {
        return;
    }
    type Case = (&'static str, bool, fn(&mut Vec<u8>));
    let cases: [Case; 8] = [
        ("rx_bad_ip_checksum", false, |f| f[24] ^= 1),
        ("rx_bad_ip_checksum", false, |f| f[22] -= 1),
        ("rx_bad_ip_checksum", false, |f| {
            f.splice(34..34, [1, 1, 1, 1]);
            f[14] = 0x46;
            f[17] += 4;
            set_checksum(&mut f[14..]);
            f[36] = 0;
        }),
        ("rx_other_station", false, |f| f[5] ^= 1),
        ("rx_other_station", false, |f| f[..6].fill(0xff)),
        // A multicast station address with a unicast IP address.
        ("rx_other_station", false, |f| f[..6].copy_from_slice(&[1, 0, 0x5e, 0, 2, 2])),
        ("rx_tagged", true, |_| {}),
        ("rx_tagged", true, |f| f[12..14].copy_from_slice(&[0x88, 0xa8])),
    ];
    for v6 in [false, true] {
        let wire = Wire::new("strict", 1500, 1);
        let (mut left, mut right) = wire.xdp_ports();
        for (counted, tagged, change) in cases.iter().filter(|case| !v6 || case.0 != "rx_bad_ip_checksum") {
            let before = counter(&right, counted);
            let mut bent = frame(true, v6, *tagged, 200, 1);
            change(&mut bent);
            let good = frame(true, v6, false, 200, 2);
            assert!(put(&mut left, &bent) && put(&mut left, &good));
            flush(&mut left);
            assert!(take(&mut right, 1, SOON) == [good], "{counted}");
            assert_eq!(counter(&right, counted), before + 1, "{counted}");
        }
    }
}

#[test]
fn station_address_change_is_followed() {
    if skip("station_address_change_is_followed") {
        return;
    }
    let wire = Wire::new("mac", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let sent = frame(true, false, false, 200, 1);
    let mut other_port = sent.clone();
    other_port[5] ^= 1;
    let other = [2, 0, 0, 0, 0, 0xb ^ 1];
    assert!(put(&mut left, &other_port));
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty());
    right.follow(&LinkChange::Mac(other)).unwrap();
    assert!(put(&mut left, &sent) && put(&mut left, &other_port));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [other_port]);
    assert_eq!(counter(&right, "rx_other_station"), 2);
}

#[test]
fn group_needs_its_own_station_address() {
    if skip("group_needs_its_own_station_address") {
        return;
    }
    let wire = Wire::new("group", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    for (v6, group) in [(false, "233.252.0.7"), (true, "ff0e::db8:7:8")] {
        let group: IpAddr = group.parse().unwrap();
        right.join(group).unwrap();
        let mut sent = frame(true, v6, false, 200, 1);
        match group {
            IpAddr::V4(ip) => {
                sent[30..34].copy_from_slice(&ip.octets());
                set_checksum(&mut sent[14..]);
                sent[..6].copy_from_slice(&[1, 0, 0x5e, 124, 0, 7]);
            }
            IpAddr::V6(ip) => {
                sent[38..54].copy_from_slice(&ip.octets());
                sent[..6].copy_from_slice(&[0x33, 0x33, 0, 7, 0, 8]);
            }
        }
        let mut bent = sent.clone();
        bent[5] ^= 1;
        let mut broadcast = sent.clone();
        broadcast[..6].fill(0xff);
        assert!(put(&mut left, &bent) && put(&mut left, &broadcast) && put(&mut left, &sent));
        flush(&mut left);
        assert!(take(&mut right, 1, SOON) == [sent], "{group}");
    }
    assert_eq!(counter(&right, "rx_other_station"), 4);
}

#[test]
fn foreign_frames_go_to_the_kernel() {
    if skip("foreign_frames_go_to_the_kernel") {
        return;
    }
    let wire = Wire::new("pass", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let bind = |ns: &NetNs, at: (IpAddr, u16)| {
        let socket = ns.run(|| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    };
    let mut bytes = [0; 16];
    for (a, b) in [(IpAddr::from(A4), IpAddr::from(B4)), (A6.into(), B6.into())] {
        let (here, there) = (bind(&wire.a, (a, 5000)), bind(&wire.b, (b, 5000)));
        here.send_to(b"over", (b, 5000)).unwrap();
        assert_eq!(there.recv(&mut bytes).unwrap(), 4, "another port passes");
        there.send_to(b"back", (a, 5000)).unwrap();
        assert_eq!(here.recv(&mut bytes).unwrap(), 4);
    }
    let listener = wire.b.run(|| std::net::TcpListener::bind((B4, 5000))).unwrap().unwrap();
    wire.a.run(|| std::net::TcpStream::connect((B4, 5000)).map(drop)).unwrap().unwrap();
    listener.accept().unwrap();

    // The RoCE port at an address that the port does not have.
    Links::open_in(&wire.b).unwrap().add_address("right", "192.0.2.9/24".parse().unwrap()).unwrap();
    Links::open_in(&wire.a).unwrap().add_neighbour("left", "192.0.2.9".parse().unwrap(), MAC_B).unwrap();
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    let there = bind(&wire.b, (other, ROCE));
    bind(&wire.a, (A4.into(), 5001)).send_to(b"other", (other, ROCE)).unwrap();
    assert_eq!(there.recv(&mut bytes).unwrap(), 5);

    // A fragment of a datagram to the RoCE port; and RoCE v1 and MAC control frames without a subscription.
    let mut fragment = frame(true, false, false, 200, 1);
    fragment[20] |= 0x20;
    let mut v1 = frame(true, false, false, 100, 1);
    v1[12..14].copy_from_slice(&[0x89, 0x15]);
    let mut pause = frame(true, false, false, 64, 1);
    pause[12..14].copy_from_slice(&[0x88, 0x08]);
    for f in [&fragment, &v1, &pause] {
        assert!(put(&mut left, f));
    }
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty());
    assert_eq!(counter(&right, "rx_packets"), 0);
}

#[test]
fn roce_v1_and_mac_control_need_a_request() {
    if skip("roce_v1_and_mac_control_need_a_request") {
        return;
    }
    let wire = Wire::new("types", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    for (ether_type, v1, control) in [([0x89, 0x15], true, false), ([0x88, 0x08], false, true)] {
        let mut right = wire.right(|c| c.roce_v1 = v1).unwrap();
        right.set_rx_wishes(RxOptions { mac_control: control, ..RxOptions::default() }).unwrap();
        for sent_type in [[0x89, 0x15], [0x88, 0x08]] {
            let mut f = v1_frame(&B6, 100);
            f[12..14].copy_from_slice(&sent_type);
            assert!(put(&mut left, &f));
        }
        flush(&mut left);
        let got = take(&mut right, 2, A_WHILE);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0][12..14], ether_type);
    }
}

#[test]
fn ip_options_do_not_hide_the_port() {
    if skip("ip_options_do_not_hide_the_port") {
        return;
    }
    let wire = Wire::new("kernel", 1500, 1);
    let mut right = wire.right(|_| {}).unwrap();
    let socket = wire.a.run(|| UdpSocket::bind((A4, 49152))).unwrap().unwrap();
    socket.send_to(b"to the port", (B4, ROCE)).unwrap();
    let got = take(&mut right, 1, SOON);
    assert_eq!(got.len(), 1);
    assert!(got[0].ends_with(b"to the port"));
    assert_eq!(got[0][34..38], [0xc0, 0, 0x12, 0xb7]);

    // Four bytes of IP options (no-operation) in front of UDP.
    let mut left = wire.left(|_| {}).unwrap();
    let mut f = frame(true, false, false, 200, 1);
    f.splice(34..34, [1, 1, 1, 1]);
    f[14] = 0x46;
    f[17] += 4;
    set_checksum(&mut f[14..]);
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [f]);
}

#[test]
fn address_changes_are_followed() {
    if skip("address_changes_are_followed") {
        return;
    }
    let wire = Wire::new("addr", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let mut passes = |right: &mut XdpPort, v6: bool| {
        assert!(put(&mut left, &frame(true, v6, false, 100, 1)));
        flush(&mut left);
        !take(right, 1, A_WHILE).is_empty()
    };
    assert!(passes(&mut right, false) && passes(&mut right, true));
    right.set_addresses(&[B6.into()]).unwrap();
    assert!(!passes(&mut right, false) && passes(&mut right, true));
    right.set_addresses(&[B4.into()]).unwrap();
    assert!(passes(&mut right, false) && !passes(&mut right, true));
    right.set_addresses(&[]).unwrap();
    assert!(!passes(&mut right, false) && !passes(&mut right, true));
}

#[test]
fn next_change_repairs_partial_address_set() {
    if skip("next_change_repairs_partial_address_set") {
        return;
    }
    let wire = Wire::new("many", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let many = |n: u16, count: u16| -> Vec<std::net::IpAddr> {
        (0..count).map(|i| Ipv4Addr::from([10, n as u8, (i >> 8) as u8, i as u8]).into()).collect()
    };
    // The map holds 1024 addresses: the kernel refuses in the middle.
    right.set_addresses(&many(1, 1500)).unwrap_err();
    right.set_addresses(&many(2, 1024)).expect("what was taken of the first is gone");
    right.set_addresses(&[B4.into()]).unwrap();
    let sent = frame(true, false, false, 100, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

#[test]
fn superframe_packets_arrive_or_are_counted() {
    if skip("superframe_packets_arrive_or_are_counted") {
        return;
    }
    use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
    for (mode, packets) in [(Mode::Native, 5), (Mode::Native, 50), (Mode::Generic, 5), (Mode::Generic, 50)] {
        let wire = Wire::new("gso", 1500, 1);
        let socket = wire.a.run(|| UdpSocket::bind((A4, 49152))).unwrap().unwrap();
        setsockopt(&socket, UdpGsoSegment, &1000).unwrap();
        let mut right = wire.right(|c| c.mode = mode).unwrap();
        socket.send_to(&vec![7; packets * 1000], (B4, ROCE)).unwrap();
        let got = take(&mut right, packets, A_WHILE);
        assert!(got.iter().all(|f| f.len() == 42 + 1000), "no frame is longer than a packet");
        let lost = ["rx_gso_superframe", "rx_dropped"].map(|n| counter(&right, n));
        println!("{mode:?}: {} of {packets} packets, superframes and drops {lost:?}", got.len());
        match mode {
            Mode::Generic => assert!(got.len() == packets || lost.iter().sum::<u64>() > 0),
            _ => assert_eq!((got.len(), lost), (packets, [0, 0])),
        }
        let (rx, _) = right.chunks();
        assert_eq!((rx.held, rx.free + rx.kernel), (0, rx.total), "every piece of a dropped frame went back");
    }
}

/// Returns frames of other protocols, each different for steering: types, tags, addresses, ports, fragments, options,
/// truncated frames.
fn others() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (v6, vlan) in [(false, false), (false, true), (true, false), (true, true)] {
        let l3 = if vlan { 18 } else { 14 };
        let l4 = l3 + if v6 { 40 } else { 20 };
        let change = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut f = frame(true, v6, vlan, 120, 1);
            f[l4 + 2..l4 + 4].copy_from_slice(&5000u16.to_be_bytes());
            edit(&mut f);
            f
        };
        let (protocol, hops) = if v6 { (l3 + 6, l3 + 7) } else { (l3 + 9, l3 + 8) };
        all.extend([
            change(&|_| {}),
            change(&|f| f[protocol] = 6),
            change(&|f| f[protocol] = 89),
            change(&|f| f[l4 + 1] = 7),
            change(&|f| f[l4 + 3] ^= 1),
            // RoCE, but to another address.
            change(&|f| {
                f[l4 + 2..l4 + 4].copy_from_slice(&ROCE.to_be_bytes());
                f[l4 - 1] = 99;
            }),
            change(&|f| f[l3 - 2..l3].copy_from_slice(&[0x89, 0x15])),
            change(&|f| f[l4 - 1] = 9),
            change(&|f| f[if v6 { l3 + 23 } else { l3 + 15 }] = 9),
            change(&|f| f[l3 + 1] = 0xb9),
            change(&|f| f[hops] = 1),
            change(&|f| f[l3 - 1] ^= 1),
            change(&|f| f[0] = 3),
            change(&|f| f[11] = 9),
            change(&|f| f.truncate(l4 + 3)),
            change(&|f| f.truncate(l4 - 1)),
            change(&|f| f.truncate(l3)),
        ]);
        if !v6 {
            all.extend([
                change(&|f| f[l3 + 6] = 0x20),
                change(&|f| f[l3 + 7] = 1),
                change(&|f| f[l3] = 0x44),
                change(&|f| f[l3] = 0x55),
                change(&|f| {
                    f.splice(l3 + 20..l3 + 20, [1; 8]);
                    f[l3] = 0x47;
                }),
            ]);
        }
    }
    all
}

/// Returns one flow for each field.
fn one_for_each_field() -> Vec<FlowMatch> {
    let port = 5000u16.to_be_bytes();
    let fields: [(FlowField, &[u8]); 16] = [
        (FlowField::Destination, &MAC_B),
        (FlowField::Source, &MAC_A),
        (FlowField::EtherType, &[8, 0]),
        (FlowField::VlanTag, &[0, 5]),
        (FlowField::Layers, &[layer::VLAN | layer::IPV6]),
        (FlowField::Layers, &[layer::IPV4 | layer::TCP]),
        (FlowField::Layers, &[layer::IPV4]),
        (FlowField::Protocol, &[89]),
        (FlowField::TrafficClass, &[0xb9]),
        (FlowField::HopLimit, &[1]),
        (FlowField::SourcePort, &[0xc0, 7]),
        (FlowField::DestinationPort, &port),
        (FlowField::FlowLabel, &[0, 9, 0, 0]),
        (FlowField::Ipv4Flags, &[4]),
        (FlowField::SourceIpv6, &A6.octets()),
        (FlowField::DestinationIpv4, &B4.octets()),
    ];
    let mut all: Vec<_> =
        fields.iter().map(|(field, value)| FlowMatch::default().with(*field, value)).collect();
    let mut net = FlowMatch::default();
    net.require(FlowField::DestinationIpv6, &B6.octets(), &[0xff; 16].map(|byte| byte & 0xf0));
    net.require_layers(layer::UDP);
    all.push(net);
    all.push(FlowMatch::default());
    all
}

/// The kernel's program and [`FlowMatch`] agree on each frame.
#[test]
fn flows_take_only_matching_frames() {
    if skip("flows_take_only_matching_frames") {
        return;
    }
    let wire = Wire::new("flow", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let frames = others();
    let (mut taken, mut left_alone) = (0, 0);
    for flow in one_for_each_field() {
        right.steer(&[flow]).unwrap();
        let takes = |f: &&Vec<u8>| FlowKey::of(&Frame::whole(f)).is_some_and(|key| flow.takes(&key));
        let expected: Vec<_> = frames.iter().filter(takes).cloned().collect();
        for sent in frames.chunks(16) {
            assert!(sent.iter().all(|f| put(&mut left, f)));
            flush(&mut left);
        }
        let (mut got, until) = (Vec::new(), Instant::now() + SOON);
        while got.len() < expected.len() && Instant::now() < until {
            // The kernels send packets of their own now and then.
            got.extend(take(&mut right, 1, A_WHILE).into_iter().filter(|f| frames.contains(f)));
        }
        assert!(got == expected, "{flow:?}: {} of {}", got.len(), expected.len());
        (taken, left_alone) = (taken + expected.len(), left_alone + frames.len() - expected.len());
    }
    assert!(taken > 300 && left_alone > 700, "{taken} and {left_alone}");
}

#[test]
fn many_flows_coexist_with_roce() {
    if skip("many_flows_coexist_with_roce") {
        return;
    }
    let wire = Wire::new("flows", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let flows = |count: usize| -> Vec<_> {
        let of_port =
            |n| FlowMatch::default().with(FlowField::DestinationPort, &(6000 + n as u16).to_be_bytes());
        (0..count).map(of_port).collect()
    };
    let mut receive = |right: &mut XdpPort, ports: &[u16]| {
        for port in ports {
            let mut f = frame(true, false, false, 100, 1);
            f[36..38].copy_from_slice(&port.to_be_bytes());
            assert!(put(&mut left, &f));
        }
        flush(&mut left);
        let got = take(right, ports.len(), A_WHILE);
        got.iter().map(|f| u16::from_be_bytes([f[36], f[37]])).collect::<Vec<_>>()
    };
    right.steer(&flows(MAX_FLOWS)).unwrap();
    assert_eq!(receive(&mut right, &[6000, 6063, 6064, ROCE, 6001]), [6000, 6063, ROCE, 6001]);
    right.steer(&flows(2)).unwrap();
    assert_eq!(receive(&mut right, &[6000, 6063, ROCE, 6001]), [6000, ROCE, 6001]);
    let more = right.steer(&flows(MAX_FLOWS + 1)).unwrap_err();
    assert!(more.to_string().contains("65 flows: 64 at most"), "{more}");
    right.steer(&[]).unwrap();
    assert_eq!(receive(&mut right, &[6000, ROCE]), [ROCE]);
}
