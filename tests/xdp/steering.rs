//! What is ours comes to the port, what is not goes to the kernel.

use std::net::{IpAddr, UdpSocket};

use super::*;

#[test]
fn frames_behind_a_vlan_tag_are_steered() {
    if skip("frames_behind_a_vlan_tag_are_steered") {
        return;
    }
    let wire = Wire::new("vlan", 1500, 1);
    let (mut left, mut right) = wire.ports();
    for v6 in [false, true] {
        let sent = frame(true, v6, true, 200, 1);
        assert!(put(&mut left, &sent));
        flush(&mut left);
        assert!(take(&mut right, 1, SOON) == [sent]);
    }
}

#[test]
fn what_is_not_ours_goes_to_the_kernel() {
    if skip("what_is_not_ours_goes_to_the_kernel") {
        return;
    }
    let wire = Wire::new("pass", 1500, 1);
    let (mut left, mut right) = wire.ports();
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

    // The RoCE port, but an address that is not ours.
    Links::open_in(&wire.b).unwrap().add_address("right", "192.0.2.9/24".parse().unwrap()).unwrap();
    Links::open_in(&wire.a).unwrap().add_neighbour("left", "192.0.2.9".parse().unwrap(), MAC_B).unwrap();
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    let there = bind(&wire.b, (other, ROCE));
    bind(&wire.a, (A4.into(), 5001)).send_to(b"other", (other, ROCE)).unwrap();
    assert_eq!(there.recv(&mut bytes).unwrap(), 5);

    // A fragment of a datagram to the RoCE port, and the v1 and MAC control frames nobody asked for.
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
fn roce_v1_and_mac_control_are_steered_if_asked_for() {
    if skip("roce_v1_and_mac_control_are_steered_if_asked_for") {
        return;
    }
    let wire = Wire::new("types", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    for (ether_type, v1, control) in [([0x89, 0x15], true, false), ([0x88, 0x08], false, true)] {
        let mut right = wire
            .right(|c| {
                c.roce_v1 = v1;
                c.mac_control = control;
            })
            .unwrap();
        for sent_type in [[0x89, 0x15], [0x88, 0x08]] {
            let mut f = frame(true, false, false, 100, 1);
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
fn a_kernel_sender_reaches_the_port_and_options_do_not_hide_it() {
    if skip("a_kernel_sender_reaches_the_port_and_options_do_not_hide_it") {
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
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [f]);
}

#[test]
fn addresses_are_steered_as_they_come_and_go() {
    if skip("addresses_are_steered_as_they_come_and_go") {
        return;
    }
    let wire = Wire::new("addr", 1500, 1);
    let (mut left, mut right) = wire.ports();
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
fn addresses_that_were_not_all_taken_are_set_right_by_the_next_change() {
    if skip("addresses_that_were_not_all_taken_are_set_right_by_the_next_change") {
        return;
    }
    let wire = Wire::new("many", 1500, 1);
    let (mut left, mut right) = wire.ports();
    let many = |n: u16, count: u16| -> Vec<std::net::IpAddr> {
        (0..count).map(|i| Ipv4Addr::from([10, n as u8, (i >> 8) as u8, i as u8]).into()).collect()
    };
    // The map holds 1024: the kernel refuses somewhere in the middle.
    right.set_addresses(&many(1, 1500)).unwrap_err();
    right.set_addresses(&many(2, 1024)).expect("what was taken of the first is gone");
    right.set_addresses(&[B4.into()]).unwrap();
    let sent = frame(true, false, false, 100, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

#[test]
fn packets_of_an_unsegmented_sender_arrive_one_by_one_or_are_counted() {
    if skip("packets_of_an_unsegmented_sender_arrive_one_by_one_or_are_counted") {
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
        assert_eq!((rx.held, rx.kernel), (0, rx.total), "every piece of a dropped frame went back");
    }
}
