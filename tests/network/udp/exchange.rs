//! Frames pass in both directions: both families, bursts, segmentation on either side or neither.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt,
};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::{BURST, Port};

use crate::udp::{
    Flow, PATIENCE, commit, count, counters, datagrams, flush, in_namespace, ip, open, open_without_gso,
    payloads, receive, receive_burst, send,
};

fn frames_pass_both_ways(a: &str, b: &str) {
    let (mut left, mut right) = (open(a), open(b));
    let sent = payloads(5, 300);
    let there = send(&mut left, &Flow::new(a, b), &sent);
    let arrived = receive(&mut right, 5);
    assert_eq!(datagrams(&arrived), sent);
    let udp = if ip(a).is_ipv4() { 34 } else { 54 };
    for (arrived, sent) in arrived.iter().zip(&there) {
        assert_eq!(arrived[..14], sent[..14], "station addresses and EtherType");
        assert_eq!(arrived[udp..udp + 6], sent[udp..udp + 6], "ports and length");
        let addresses = if udp == 34 { 26..34 } else { 22..54 };
        assert_eq!(arrived[addresses.clone()], sent[addresses], "IP addresses");
        assert!(arrived[udp] >= 0xc0, "the source port is one of RoCE v2");
    }
    send(&mut right, &Flow::new(b, a), &sent[..2]);
    assert_eq!(datagrams(&receive(&mut left, 2)), sent[..2]);
}

#[test]
fn frames_pass_both_ways_over_ipv4() {
    in_namespace("frames_pass_both_ways_over_ipv4", || frames_pass_both_ways("10.77.0.1", "10.77.0.2"));
}

#[test]
fn frames_pass_both_ways_over_ipv6() {
    in_namespace("frames_pass_both_ways_over_ipv6", || frames_pass_both_ways("fd77::1", "fd77::2"));
}

#[test]
fn frames_pass_on_loopback_without_privilege() {
    // An unused port: another process may own 4791 on this host.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let open = |address: &str| {
        let config = UdpConfig { addresses: vec![ip(address)], port, ..UdpConfig::default() };
        UdpPort::open(&config).expect("a port")
    };
    let (mut left, mut right) = (open("127.0.0.1"), open("127.0.0.2"));
    let flow = Flow { port, ..Flow::new("127.0.0.1", "127.0.0.2") };
    let sent = payloads(10, 1000);
    send(&mut left, &flow, &sent);
    assert_eq!(datagrams(&receive(&mut right, 10)), sent);
}

#[test]
fn wildcard_port_serves_both_families() {
    in_namespace("wildcard_port_serves_both_families", || {
        // Not shared: a socket group could not steer these datagrams, which are no RoCE packets.
        let config = UdpConfig { shared: false, ..UdpConfig::default() };
        let mut any = UdpPort::open(&config).expect("a port");
        assert!(any.addresses().contains(&ip("10.77.0.2")) && any.addresses().contains(&ip("fd77::2")));
        // Families alternate: a slot that was split for one takes a frame of the other.
        let flows = [Flow::new("10.77.0.1", "10.77.0.2"), Flow::new("fd77::1", "fd77::2")];
        let sent = payloads(6, 77);
        let frames: Vec<_> = sent.iter().enumerate().map(|(i, p)| flows[i % 2].frame(p)).collect();
        commit(&mut any, &frames);
        flush(&mut any);
        let arrived = receive(&mut any, 6);
        for (family, ether) in [(0, [8, 0]), (1, [0x86, 0xdd])] {
            let mine: Vec<_> = arrived.iter().filter(|f| f[12..14] == ether).cloned().collect();
            let wanted: Vec<_> = sent.iter().skip(family).step_by(2).cloned().collect();
            assert_eq!(datagrams(&mine), wanted);
            let destinations = if family == 0 { 30..34 } else { 38..54 };
            assert!(
                mine.iter()
                    .all(|f| f[destinations.clone()] == flows[family].headers(1)[destinations.clone()])
            );
        }
    });
}

#[test]
fn long_trains_arrive_complete_and_in_order() {
    in_namespace("long_trains_arrive_complete_and_in_order", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let sent = payloads(200, 64);
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let mut first = Vec::new();
        receive_burst(&mut b, &mut first);
        assert_eq!(first.len(), BURST, "a train of 128 does not overflow the burst");
        assert!(!b.prepare_sleep(), "the rest is fetched already");
        first.extend(receive(&mut b, 200 - BURST));
        assert_eq!(datagrams(&first), sent);
        assert!(b.prepare_sleep());
        assert!(count(&a, "tx_calls") <= 4 && count(&b, "rx_calls") <= 4, "{:?}", counters(&a));
    });
}

#[test]
fn traffic_class_and_ecn_arrive_as_sent() {
    in_namespace("traffic_class_and_ecn_arrive_as_sent", || {
        let (mut a4, mut b4, mut a6, mut b6) =
            (open("10.77.0.1"), open("10.77.0.2"), open("fd77::1"), open("fd77::2"));
        for class in [0x00, 0x02, 0x03, 0x6a, 0xfd] {
            let v4 = Flow { class, ..Flow::new("10.77.0.1", "10.77.0.2") };
            send(&mut a4, &v4, &payloads(2, 50));
            assert!(receive(&mut b4, 2).iter().all(|f| f[15] == class), "IPv4, class {class:#x}");
            let v6 = Flow { class, ..Flow::new("fd77::1", "fd77::2") };
            send(&mut a6, &v6, &payloads(2, 50));
            let arrived = receive(&mut b6, 2);
            assert!(arrived.iter().all(|f| f[14] << 4 | f[15] >> 4 == class), "IPv6, class {class:#x}");
        }
    });
}

#[test]
fn ports_with_and_without_segmentation_interoperate() {
    in_namespace("ports_with_and_without_segmentation_interoperate", || {
        let (mut with, mut without) = (open("10.77.0.1"), open_without_gso("10.77.0.2"));
        let sent = payloads(100, 500);
        send(&mut with, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        assert_eq!(datagrams(&receive(&mut without, 100)), sent);
        let back = send(&mut without, &Flow::new("10.77.0.2", "10.77.0.1"), &sent);
        assert!(back.iter().all(|f| f[18..20] == [0, 0]), "each datagram goes alone");
        assert_eq!(datagrams(&receive(&mut with, 100)), sent);
        assert_eq!(count(&without, "tx_trains"), 100);
        assert!(without.info().mode.contains("one datagram per send"), "{}", without.info().mode);
    });
}

#[test]
fn zero_checksum_is_accepted_over_ipv6() {
    in_namespace("zero_checksum_is_accepted_over_ipv6", || {
        let mut port = open("fd77::1");
        let sender = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::empty(), SockProtocol::Udp);
        let sender = sender.expect("a raw socket");
        // A raw socket sends the UDP header as given, with checksum 0.
        let flow = Flow::new("fd77::2", "fd77::1");
        let datagram = flow.frame(b"no checksum")[54..].to_vec();
        let to = nix::sys::socket::SockaddrIn6::from(match SocketAddr::new(ip("fd77::1"), 0) {
            SocketAddr::V6(a) => a,
            SocketAddr::V4(_) => unreachable!(),
        });
        nix::sys::socket::sendto(sender.as_raw_fd(), &datagram, &to, MsgFlags::empty()).expect("sent");
        assert_eq!(datagrams(&receive(&mut port, 1)), [b"no checksum".to_vec()]);
    });
}

#[test]
fn plain_socket_reaches_the_port() {
    in_namespace("plain_socket_reaches_the_port", || {
        let mut port = open("10.77.0.1");
        let plain = UdpSocket::bind("10.77.0.2:4791").expect("a socket");
        setsockopt(&plain.as_fd(), sockopt::Ipv4Tos, &0x03).expect("a class");
        plain.send_to(b"hello", "10.77.0.1:4791").expect("sent");
        let frames = receive(&mut port, 1);
        assert_eq!((datagrams(&frames), frames[0][15]), (vec![b"hello".to_vec()], 0x03));
        send(&mut port, &Flow::new("10.77.0.1", "10.77.0.2"), &[b"and back".to_vec()]);
        plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut buffer = [0; 100];
        let (n, from) = plain.recv_from(&mut buffer).expect("an answer");
        assert_eq!((&buffer[..n], from.ip()), (&b"and back"[..], ip("10.77.0.1")));
    });
}
