//! What does not arrive: it is counted, heard of, and keeps nothing else.

use std::time::Instant;

use roxie::port::Port;
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::undelivered::Quoted;
use roxie::time::Nanos;

use crate::{
    Flow, PATIENCE, commit, count, counters, datagrams, flush, in_namespace, ip, open, payloads, receive,
    run, send,
};

/// While what is undelivered is heard of, the kernel tells a socket that sends of it as well, in the place of sending what comes next.
#[test]
fn what_nobody_takes_is_heard_of_and_keeps_nothing_else_from_arriving() {
    in_namespace("what_nobody_takes_is_heard_of_and_keeps_nothing_else_from_arriving", || {
        for (own, absent, there) in
            [("10.77.0.1", "10.77.0.2", "10.77.0.1"), ("fd77::1", "fd77::2", "fd77::1")]
        {
            let mut port = open(own);
            let heard = port.undelivered().unwrap().unwrap();
            assert_eq!(heard.next(), None);
            let lost = payloads(1, 300);
            send(&mut port, &Flow::new(own, absent), &lost);
            assert_eq!(heard.next(), Some(Quoted { remote: ip(absent), datagram: lost[0].clone() }));
            assert_eq!(heard.next(), None);
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
            // Linux says it a few times in a row, and then once a second.
            assert!(heard.next().is_some());
            drop(heard);
            send(&mut port, &Flow::new(own, absent), &lost);
            send(&mut port, &Flow::new(own, there), &sent[..1]);
            assert_eq!(receive(&mut port, 1).len(), 1);
            assert_eq!(port.undelivered().unwrap().unwrap().next(), None, "nobody asked for that");
        }
    });
}

#[test]
fn frames_that_are_not_for_the_port_are_counted_and_never_leave() {
    in_namespace("frames_that_are_not_for_the_port_are_counted_and_never_leave", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        let mut fragment = good.frame(b"fragment");
        fragment[20] = 0x20;
        let mut short = good.frame(b"wrong length");
        short.push(0);
        let mut arp = good.frame(b"arp");
        arp[13] = 6;
        let elsewhere = Flow { port: 4792, ..Flow::new("10.77.0.1", "10.77.0.2") }.frame(b"elsewhere");
        let no_such_family = Flow::new("fd77::1", "fd77::2").frame(b"no v6 socket here");
        let frames = [
            good.frame(b"one"),
            fragment,
            short,
            arp,
            elsewhere,
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
fn an_unreachable_peer_is_counted_and_does_not_stop_the_others() {
    in_namespace("an_unreachable_peer_is_counted_and_does_not_stop_the_others", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let lost = Flow::new("10.77.0.1", "192.0.2.7");
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        commit(&mut a, &[lost.frame(b"x"), good.frame(b"y"), lost.frame(b"z")]);
        flush(&mut a);
        assert_eq!(datagrams(&receive(&mut b, 1)), [b"y".to_vec()]);
        assert_eq!((count(&a, "tx_unreachable"), count(&a, "tx_packets")), (2, 1));
    });
}

/// Who asks for a connection chooses the address that is answered. The kernel keeps what waits for a neighbour in the sender's buffer.
#[test]
fn answers_to_silent_neighbours_keep_nothing_else_from_leaving() {
    in_namespace("answers_to_silent_neighbours_keep_nothing_else_from_leaving", || {
        for command in [
            "link add silent0 type veth peer name silent1",
            "addr add 10.78.0.1/16 dev silent0",
            "link set silent0 up",
            "link set silent1 up",
        ] {
            run("ip", command).expect("a link to nobody");
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
fn the_mtu_is_that_of_the_interface_and_too_long_datagrams_are_counted() {
    in_namespace("the_mtu_is_that_of_the_interface_and_too_long_datagrams_are_counted", || {
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
fn datagrams_lost_to_a_full_socket_buffer_are_counted() {
    in_namespace("datagrams_lost_to_a_full_socket_buffer_are_counted", || {
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
        // The count comes with the next datagram that gets through.
        send(&mut a, &flow, &payloads(1, 1000));
        receive(&mut b, 1);
        let (arrived, lost) = (count(&b, "rx_packets"), count(&b, "rx_out_of_buffer"));
        assert!(lost > 0 && arrived < 1001, "{arrived} arrived, {lost} lost");
    });
}

#[test]
fn datagrams_lost_at_several_sockets_are_counted_together() {
    in_namespace("datagrams_lost_at_several_sockets_are_counted_together", || {
        let small = UdpConfig {
            addresses: vec![ip("10.77.0.2"), ip("fd77::2")],
            socket_buffer: 65_536,
            ..UdpConfig::default()
        };
        let mut b = UdpPort::open(&small).expect("a port");
        let mut lost = 0;
        // Fewer each time.
        for (from, to, bursts) in [("10.77.0.1", "10.77.0.2", 40), ("fd77::1", "fd77::2", 20)] {
            let (mut a, flow) = (open(from), Flow::new(from, to));
            for _ in 0..bursts {
                send(&mut a, &flow, &payloads(50, 1000));
            }
            while b.rx_burst(Nanos::ZERO) > 0 {
                b.rx_release();
            }
            // The count comes with the next datagram that gets through.
            send(&mut a, &flow, &payloads(1, 1000));
            receive(&mut b, 1);
            let all = count(&b, "rx_out_of_buffer");
            assert!(all > lost, "{all} lost in all, {lost} of them before {to}");
            lost = all;
        }
    });
}

/// What is held back of a port on sockets still does not show its identification: its ICRC would not fit.
#[test]
fn a_frame_that_a_fault_delays_or_harms_hides_what_the_socket_hides() {
    in_namespace("a_frame_that_a_fault_delays_or_harms_hides_what_the_socket_hides", || {
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
