//! Undelivered frames are counted and reported, and block no other frame.

use std::time::Instant;

use roxie::port::Port;
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::undelivered::Quoted;
use roxie::time::Nanos;

use crate::udp::{
    Flow, PATIENCE, commit, count, counters, datagrams, flush, in_namespace, ip, open, payloads, receive,
    run, send,
};

/// While a port listens for ICMP errors, the kernel also reports them to the sending socket, in place of sending the
/// next datagram.
#[test]
fn undelivered_datagrams_are_reported_and_block_nothing() {
    in_namespace("undelivered_datagrams_are_reported_and_block_nothing", || {
        for (own, absent, there) in
            [("10.77.0.1", "10.77.0.2", "10.77.0.1"), ("fd77::1", "fd77::2", "fd77::1")]
        {
            let mut port = open(own);
            let undelivered = port.undelivered().unwrap().unwrap();
            assert_eq!(undelivered.next(), None);
            let lost = payloads(1, 300);
            send(&mut port, &Flow::new(own, absent), &lost);
            assert_eq!(undelivered.next(), Some(Quoted { remote: ip(absent), datagram: lost[0].clone() }));
            assert_eq!(undelivered.next(), None);
            let sent = payloads(100, 200);
            let mut arrived = Vec::new();
            for payload in &sent {
                send(&mut port, &Flow::new(own, absent), &lost);
                send(&mut port, &Flow::new(own, there), std::slice::from_ref(payload));
                arrived.extend(datagrams(&receive(&mut port, 1)));
            }
            assert!(arrived == sent, "{} of {}", arrived.len(), sent.len());
            for kind in ["tx_failed", "tx_unreachable", "tx_refused"] {
                assert_eq!(count(&port, kind), 0, "{kind}: {:?}", counters(&port));
            }
            // Linux sends a few errors in a row, then one a second.
            assert!(undelivered.next().is_some());
            drop(undelivered);
            send(&mut port, &Flow::new(own, absent), &lost);
            send(&mut port, &Flow::new(own, there), &sent[..1]);
            assert_eq!(receive(&mut port, 1).len(), 1);
            assert_eq!(
                port.undelivered().unwrap().unwrap().next(),
                None,
                "errors are only recorded for a listener"
            );
        }
    });
}

#[test]
fn unsendable_frames_are_counted() {
    in_namespace("unsendable_frames_are_counted", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        let mut fragment = good.frame(b"fragment");
        fragment[20] = 0x20;
        let mut short = good.frame(b"wrong length");
        short.push(0);
        let mut arp = good.frame(b"arp");
        arp[13] = 6;
        let other_flow = Flow { port: 4792, ..Flow::new("10.77.0.1", "10.77.0.2") }.frame(b"elsewhere");
        let no_such_family = Flow::new("fd77::1", "fd77::2").frame(b"no v6 socket here");
        let frames = [
            good.frame(b"one"),
            fragment,
            short,
            arp,
            other_flow,
            no_such_family,
            vec![0; 5],
            good.frame(b"two"),
        ];
        commit(&mut a, &frames);
        flush(&mut a);
        assert_eq!(datagrams(&receive(&mut b, 2)), [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(count(&a, "tx_not_roce"), 6);
    });
}

#[test]
fn unreachable_peer_does_not_block_others() {
    in_namespace("unreachable_peer_does_not_block_others", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let lost = Flow::new("10.77.0.1", "192.0.2.7");
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        commit(&mut a, &[lost.frame(b"x"), good.frame(b"y"), lost.frame(b"z")]);
        flush(&mut a);
        assert_eq!(datagrams(&receive(&mut b, 1)), [b"y".to_vec()]);
        assert_eq!((count(&a, "tx_unreachable"), count(&a, "tx_packets")), (2, 1));
    });
}

/// A peer chooses the address of the answer. The kernel keeps datagrams for an unresolved neighbour in the sender's
/// buffer.
#[test]
fn silent_neighbours_do_not_block_sending() {
    in_namespace("silent_neighbours_do_not_block_sending", || {
        for command in [
            "link add silent0 type veth peer name silent1",
            "addr add 10.78.0.1/16 dev silent0",
            "link set silent0 up",
            "link set silent1 up",
        ] {
            run("ip", command).expect("a link without a peer");
        }
        let addresses = vec![ip("10.77.0.1"), ip("10.78.0.1")];
        let config = UdpConfig { addresses, socket_buffer: 64 * 1024, ..UdpConfig::default() };
        let mut port = UdpPort::open(&config).expect("a port");
        let mut peer = open("10.77.0.2");
        let to_qp = |qpn: u8| [&[0x64, 0, 0xff, 0xff, 0, 0, 0, qpn][..], &[0; 280]].concat();
        for round in 0..20 {
            let frames: Vec<_> = (2..=41)
                .map(|host| Flow::new("10.78.0.1", &format!("10.78.{round}.{host}")).frame(&to_qp(1)))
                .collect();
            commit(&mut port, &frames);
            port.tx_flush(Nanos::ZERO).expect("a flush");
        }
        assert!(!port.tx_pending(), "something waits");
        assert!(count(&port, "tx_management_dropped") > 0, "{:?}", counters(&port));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        commit(&mut port, &[flow.frame(&to_qp(17))]);
        port.tx_flush(Nanos::ZERO).expect("a flush");
        assert_eq!(datagrams(&receive(&mut peer, 1)), [to_qp(17)]);
    });
}

#[test]
fn mtu_follows_interface_and_overlong_are_counted() {
    in_namespace("mtu_follows_interface_and_overlong_are_counted", || {
        run("ip", "link set lo mtu 1500").expect("a smaller MTU");
        let mut a = open("10.77.0.1");
        assert_eq!((a.info().mtu, a.info().max_frame), (1500, 1514));
        assert_eq!(a.info().interface.as_deref(), Some("lo"));
        run("ip", "link set lo mtu 1300").expect("a smaller MTU yet");
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(1, 1400));
        assert_eq!((count(&a, "tx_too_long"), count(&a, "tx_packets")), (1, 0));
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(3, 1400));
        assert_eq!((count(&a, "tx_too_long"), count(&a, "tx_packets")), (4, 0));
    });
}

#[test]
fn full_socket_buffer_losses_are_counted() {
    in_namespace("full_socket_buffer_losses_are_counted", || {
        let small =
            UdpConfig { addresses: vec![ip("10.77.0.2")], socket_buffer: 65_536, ..UdpConfig::default() };
        let (mut a, mut b) = (open("10.77.0.1"), UdpPort::open(&small).expect("a port"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        for _ in 0..20 {
            send(&mut a, &flow, &payloads(50, 1000));
        }
        let mut got = Vec::new();
        while b.rx_burst(Nanos::ZERO) > 0 {
            got.push(());
            b.rx_release();
        }
        // The kernel reports the count with the next datagram that is received.
        send(&mut a, &flow, &payloads(1, 1000));
        receive(&mut b, 1);
        let (arrived, lost) = (count(&b, "rx_packets"), count(&b, "rx_out_of_buffer"));
        assert!(lost > 0 && arrived < 1001, "{arrived} arrived, {lost} lost");
    });
}

#[test]
fn losses_of_several_sockets_are_summed() {
    in_namespace("losses_of_several_sockets_are_summed", || {
        let small = UdpConfig {
            addresses: vec![ip("10.77.0.2"), ip("fd77::2")],
            socket_buffer: 65_536,
            ..UdpConfig::default()
        };
        let mut b = UdpPort::open(&small).expect("a port");
        let mut lost = 0;
        // Fewer for each address.
        for (from, to, bursts) in [("10.77.0.1", "10.77.0.2", 40), ("fd77::1", "fd77::2", 20)] {
            let (mut a, flow) = (open(from), Flow::new(from, to));
            for _ in 0..bursts {
                send(&mut a, &flow, &payloads(50, 1000));
            }
            while b.rx_burst(Nanos::ZERO) > 0 {
                b.rx_release();
            }
            // The kernel reports the count with the next datagram that is received.
            send(&mut a, &flow, &payloads(1, 1000));
            receive(&mut b, 1);
            let all = count(&b, "rx_out_of_buffer");
            assert!(all > lost, "{all} lost in all, {lost} of them before {to}");
            lost = all;
        }
    });
}

/// A delayed frame of a socket port still hides its identification: a made-up one would not match the ICRC.
#[test]
fn faulty_frames_hide_the_identification() {
    in_namespace("faulty_frames_hide_the_identification", || {
        let mut a = open("10.77.0.1");
        let config = FaultConfig::parse("rx.delay=nth1:1us,rx.mark=nth2,rx.dup=nth3").expect("faults");
        let mut b = FaultPort::new(open("10.77.0.2"), &config);
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(3, 100));
        let (start, mut seen) = (Instant::now(), 0);
        while seen < 4 {
            assert!(start.elapsed() < PATIENCE, "{seen} frames");
            let now = Nanos(start.elapsed().as_nanos() as u64);
            for i in 0..b.rx_burst(now) {
                assert!(b.rx_frame(i).ip_id_hidden, "frame {seen}");
                seen += 1;
            }
            b.rx_release();
        }
    });
}
