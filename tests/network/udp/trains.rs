//! Segmentation trains: the datagrams that share one send, and their headers.

use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use roxie::port::Port;

use crate::udp::{
    Flow, PORT, UNIT, commit, count, datagrams, flush, in_namespace, open, payloads, receive, run, send,
};

#[test]
fn trains_and_ids_follow_kernel_segmentation() {
    in_namespace("trains_and_ids_follow_kernel_segmentation", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        // FIRST is longer than the MIDDLEs, LAST is shorter, then a LAST that is longer than its MIDDLE.
        let lens = [1060, 1044, 1044, 500, 1044, 1048, 1044];
        let sent: Vec<_> = lens.iter().map(|len| payloads(1, *len).remove(0)).collect();
        let arranged = send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let ids: Vec<_> = arranged.iter().map(|f| u16::from_be_bytes([f[18], f[19]])).collect();
        // A shorter datagram ends a train: 1060 takes 1044 as its last.
        assert_eq!(ids, [0, 1, 0, 1, 0, 0, 1]);
        assert_eq!(datagrams(&receive(&mut b, lens.len())), sent);
        assert_eq!(count(&a, "tx_trains"), 4);
    });
}

/// A train is delivered to one process, but a peer's QPs may belong to several.
#[test]
fn each_unit_gets_its_own_trains() {
    in_namespace("each_unit_gets_its_own_trains", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let mut sent = payloads(6, 100);
        for (datagram, unit) in sent.iter_mut().zip([1, 1, 2, 2, 1, 1]) {
            datagram[UNIT] = unit;
        }
        let arranged = send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let ids: Vec<_> = arranged.iter().map(|f| f[19]).collect();
        // Order is kept: a datagram joins the newest train of its flow, or starts a new one.
        assert_eq!(ids, [0, 1, 0, 1, 0, 1]);
        assert_eq!(datagrams(&receive(&mut b, 6)), sent);
        assert_eq!(count(&a, "tx_trains"), 3);
    });
}

/// One send holds at most an IPv4 packet.
#[test]
fn long_train_is_split() {
    in_namespace("long_train_is_split", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        // 65,507 bytes hold eight datagrams of 8,188, and 3 bytes more.
        for (len, trains) in [(8188, 1), (8189, 2)] {
            let before = count(&a, "tx_trains");
            let sent = payloads(8, len);
            send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
            assert!(datagrams(&receive(&mut b, 8)) == sent, "8 of {len} bytes");
            assert_eq!(count(&a, "tx_trains") - before, trains, "of 8 of {len} bytes");
        }
    });
}

#[test]
fn cancelling_before_arrangement_leaves_no_gap() {
    in_namespace("cancelling_before_arrangement_leaves_no_gap", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        let sent = payloads(6, 200);
        let ids: Vec<_> = sent
            .iter()
            .map(|p| {
                let id = a.tx_alloc(42 + p.len()).expect("room");
                a.tx_frame(&id).write(0, &flow.frame(p));
                id
            })
            .collect();
        let mut held = Vec::new();
        for (i, id) in ids.into_iter().enumerate() {
            if i % 3 == 1 { a.tx_cancel(id) } else { held.push(id) }
        }
        a.tx_arrange();
        let numbers: Vec<_> = held.iter().map(|id| a.tx_frame(id).as_frame().to_vec()[19]).collect();
        held.into_iter().for_each(|id| a.tx_commit(id));
        flush(&mut a);
        assert_eq!(numbers, [0, 1, 2, 3]);
        let wanted: Vec<_> = [0, 2, 3, 5].iter().map(|i| sent[*i].clone()).collect();
        assert_eq!(datagrams(&receive(&mut b, 4)), wanted);
        assert_eq!((count(&a, "tx_trains"), count(&a, "tx_id_shifted")), (1, 0));
    });
}

#[test]
fn cancelling_after_arrangement_splits_the_train() {
    in_namespace("cancelling_after_arrangement_splits_the_train", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        for (cancelled, shifted) in [(vec![0], 5), (vec![2, 3], 2), (vec![1, 4], 3), (vec![5], 0)] {
            let sent = payloads(6, 200);
            let before = count(&a, "tx_id_shifted");
            let ids: Vec<_> = sent
                .iter()
                .map(|p| {
                    let id = a.tx_alloc(42 + p.len()).expect("room");
                    a.tx_frame(&id).write(0, &flow.frame(p));
                    id
                })
                .collect();
            a.tx_arrange();
            for (i, id) in ids.into_iter().enumerate() {
                if cancelled.contains(&i) { a.tx_cancel(id) } else { a.tx_commit(id) }
            }
            flush(&mut a);
            let wanted: Vec<_> = (0..6).filter(|i| !cancelled.contains(i)).map(|i| sent[i].clone()).collect();
            assert_eq!(datagrams(&receive(&mut b, wanted.len())), wanted, "without {cancelled:?}");
            assert_eq!(count(&a, "tx_id_shifted") - before, shifted, "without {cancelled:?}");
        }
    });
}

#[test]
fn interleaved_flows_each_make_one_train() {
    in_namespace("interleaved_flows_each_make_one_train", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let calm = Flow::new("10.77.0.1", "10.77.0.2");
        let marked = Flow { class: 0x02, ..Flow::new("10.77.0.1", "10.77.0.2") };
        let sent = payloads(40, 100);
        let frames: Vec<_> = sent.iter().enumerate().map(|(i, p)| [&calm, &marked][i % 2].frame(p)).collect();
        commit(&mut a, &frames);
        flush(&mut a);
        let arrived = receive(&mut b, 40);
        for class in [0, 2] {
            let mine: Vec<_> = arrived.iter().filter(|f| f[15] == class).cloned().collect();
            let wanted: Vec<_> = sent.iter().skip(usize::from(class) / 2).step_by(2).cloned().collect();
            assert_eq!(datagrams(&mine), wanted, "class {class}");
        }
        assert_eq!((count(&a, "tx_trains"), count(&a, "tx_calls")), (2, 1));
    });
}

#[test]
fn source_ports_are_spread_and_stable() {
    in_namespace("source_ports_are_spread_and_stable", || {
        let mut a = open("10.77.0.1");
        let mut seen = std::collections::HashSet::new();
        for source_port in 0xc000..0xc040 {
            let flow = Flow { source_port, ..Flow::new("10.77.0.1", "10.77.0.2") };
            let port_of = |f: &Vec<u8>| u16::from_be_bytes([f[34], f[35]]);
            let first = port_of(&send(&mut a, &flow, &payloads(1, 64))[0]);
            assert_eq!(port_of(&send(&mut a, &flow, &payloads(1, 64))[0]), first);
            // A frame that was arranged once (a delayed copy) goes through the same socket again.
            let again = Flow { source_port: first, ..flow };
            assert_eq!(port_of(&send(&mut a, &again, &payloads(1, 64))[0]), first);
            seen.insert(first);
        }
        assert_eq!(seen.len(), 4);
    });
}

#[test]
fn wire_identifications_match_arranged_headers() {
    in_namespace("wire_identifications_match_arranged_headers", || {
        // The loopback interface segments late. Without the feature, a tap sees what a wire would carry.
        if let Err(reason) = run("ethtool", "-K lo tx-udp-segmentation off") {
            println!("SKIP wire_identifications_match_arranged_headers: {reason}");
            return;
        }
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        assert!(a.info().mode.contains("IPv4 ids checked"), "{}", a.info().mode);
        let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll)
            .expect("a tap");
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        let mut arranged = send(&mut a, &flow, &payloads(5, 300));
        arranged.extend(send(&mut a, &flow, &payloads(1, 400)));
        receive(&mut b, 6);
        let mut seen = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok(n) = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            // A tap on lo sees each frame twice, sent and received.
            let frame = buffer[..n].to_vec();
            if n > 42 && frame[36..38] == PORT.to_be_bytes() && !seen.contains(&frame) {
                seen.push(frame);
            }
        }
        assert_eq!(seen.len(), 6, "one frame per datagram");
        for (wire, ours) in seen.iter().zip(&arranged) {
            assert_eq!(wire[18..22], ours[18..22], "identification, DF and offset");
            assert_eq!(wire[34..40], ours[34..40], "UDP ports and length");
            assert_eq!(wire[42..], ours[42..]);
        }
        assert_eq!(seen.iter().map(|f| f[19]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
    });
}
