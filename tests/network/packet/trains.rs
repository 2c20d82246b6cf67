//! Frames that leave together arrive as they would one by one.

use std::time::Instant;

use roxie::port::BURST;
#[cfg(feature = "xdp")]
use roxie::port::xdp::{XdpConfig, XdpPort};

use super::*;

/// Sends frames with one flush, some slots cancelled after they were arranged. Returns the frames as the NIC left them.
fn send(port: &mut PacketPort, frames: &[Vec<u8>], is_cancelled: impl Fn(usize) -> bool) -> Vec<Vec<u8>> {
    let ids = arrange(port, frames);
    let mut sealed = Vec::new();
    for (i, id) in ids.into_iter().enumerate() {
        if is_cancelled(i) {
            port.tx_cancel(id);
        } else {
            sealed.push(port.tx_frame(&id).as_frame().to_vec());
            port.tx_commit(id);
        }
    }
    let start = Instant::now();
    while port.tx_pending() {
        flush(port);
        assert!(start.elapsed() < SOON, "the link takes no frames: {} refusals", counter(port, "tx_busy"));
    }
    sealed
}

/// Returns a frame to QPNs of one unit.
fn packet(v6: bool, len: usize, seed: u64) -> Vec<u8> {
    let mut f = frame(true, v6, false, len, seed);
    let bth = if v6 { 62 } else { 42 };
    f[bth..len.min(bth + 12)].fill(0);
    f
}

/// Returns a frame without its UDP checksum, which the kernel fills in, and without what a train hides: the IPv4
/// identification and checksum.
fn bare(mut frame: Vec<u8>, hidden: bool) -> Vec<u8> {
    let udp = if frame[12..14] == [8, 0] { 34 } else { 54 };
    frame[udp + 6..udp + 8].fill(0);
    if hidden && udp == 34 {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    frame
}

fn all_bare(frames: Vec<Vec<u8>>, hidden: bool) -> Vec<Vec<u8>> {
    frames.into_iter().map(|frame| bare(frame, hidden)).collect()
}

/// Lengths as a NIC sends them: messages of full packets with a shorter end, ACKs between.
fn lengths(seed: u64) -> Vec<usize> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((x >> 33) % below) as usize
    };
    let full = 100 + 4 * draw(1000);
    (0..1 + draw(BURST as u64))
        .map(|_| match draw(8) {
            0 => full.saturating_sub(16).max(70),
            1 => 70,
            2 => 70 + draw(4000),
            _ => full,
        })
        .collect()
}

/// Sends frames as one train.
fn send_train(port: &mut PacketPort, frames: &[Vec<u8>]) {
    let trains = counter(port, "tx_trains");
    send(port, frames, |_| false);
    assert_eq!(counter(port, "tx_trains"), trains + 1);
}

#[test]
fn lone_frames_and_trains_fill_separate_rings() {
    if skip("lone_frames_and_trains_fill_separate_rings") {
        return;
    }
    let wire = Wire::new("pk-rings", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let lone = packet(false, 90, 1);
    let train: Vec<_> = (0..10).map(|seed| packet(false, 1400, seed)).collect();
    for _ in 0..SLOTS + 300 {
        send(&mut left, std::slice::from_ref(&lone), |_| false);
    }
    send_train(&mut left, &train);
    let received = take(&mut right, SLOTS + 300 + train.len(), A_WHILE);
    assert_eq!((received.len(), counter(&right, "rx_out_of_buffer")), (SLOTS + train.len(), 300));
    assert!(received[..SLOTS].iter().all(|frame| frame.len() == lone.len()), "in the order of arrival");

    for _ in 0..TRAIN_SLOTS + 10 {
        send_train(&mut left, &train);
    }
    send(&mut left, std::slice::from_ref(&lone), |_| false);
    let received = take(&mut right, (TRAIN_SLOTS + 10) * train.len() + 1, A_WHILE);
    assert_eq!(received.len(), TRAIN_SLOTS * train.len() + 1);
    assert_eq!(counter(&right, "rx_out_of_buffer"), 300 + 10);
}

#[test]
fn lone_frames_and_trains_are_received_in_order() {
    if skip("lone_frames_and_trains_are_received_in_order") {
        return;
    }
    let wire = Wire::new("pk-merge", 4200, 1);
    let (mut left, mut right) = wire.packet_ports();
    let mut sent = Vec::new();
    for turn in 0..100 {
        // Up to one frame or seven of the same length: 90 bytes to 28 KB, across the border between the rings.
        let count = 1 + turn * 5 % 7;
        let frames: Vec<_> =
            (0..count).map(|i| packet(false, 90 + turn as usize * 40, turn * 8 + i)).collect();
        sent.extend(all_bare(send(&mut left, &frames, |_| false), true));
        if turn % 20 == 0 {
            let received = take(&mut right, sent.len(), SOON);
            assert!(all_bare(received, true) == std::mem::take(&mut sent), "up to turn {turn}");
        }
    }
    assert!(all_bare(take(&mut right, sent.len(), SOON), true) == sent);
    assert_eq!(counter(&right, "rx_out_of_buffer"), 0);
}

#[test]
fn train_arrives_as_frames_in_order() {
    if skip("train_arrives_as_frames_in_order") {
        return;
    }
    for v6 in [false, true] {
        let wire = Wire::new(if v6 { "pk-tr6" } else { "pk-tr4" }, 4200, 1);
        let (mut left, mut right) = wire.packet_ports();
        for seed in 0..200 {
            let lengths = lengths(seed);
            let frames: Vec<_> =
                lengths.iter().zip(0..).map(|(len, i)| packet(v6, *len, seed * 100 + i)).collect();
            let sent = send(&mut left, &frames, |i| seed % 4 == 3 && i % 5 == 2);
            let got = take(&mut right, sent.len(), SOON);
            assert!(all_bare(got, true) == all_bare(sent, true), "seed {seed}: {lengths:?}");
        }
        let [packets, calls, trains, taken] = [
            counter(&left, "tx_packets"),
            counter(&left, "tx_calls"),
            counter(&left, "tx_trains"),
            counter(&right, "rx_trains"),
        ];
        assert!(
            trains > 500 && taken == trains,
            "{packets} packets in {calls} calls, {trains} and {taken} trains"
        );
        assert!(calls * 10 < packets, "{packets} packets in {calls} calls");
        assert_eq!(counter(&right, "rx_packets"), packets);
    }
}

/// The kernel cuts trains for a receiver without offloads. Each frame then has the identification that the NIC sealed.
#[cfg(feature = "xdp")]
#[test]
fn kernel_cuts_trains_as_sealed() {
    if skip("kernel_cuts_trains_as_sealed") {
        return;
    }
    for v6 in [false, true] {
        let wire = Wire::new(if v6 { "pk-cut6" } else { "pk-cut4" }, 4200, 1);
        let mut right = wire.b.run(|| XdpPort::open(&XdpConfig::new("right"))).unwrap().unwrap();
        let mut left = open(&wire.a, "left").unwrap();
        for seed in 0..100 {
            let lengths = lengths(seed);
            let frames: Vec<_> =
                lengths.iter().zip(0..).map(|(len, i)| packet(v6, *len, seed * 100 + i)).collect();
            let sent = send(&mut left, &frames, |i| seed % 4 == 3 && i % 5 == 2);
            let got = take(&mut right, sent.len(), SOON);
            assert!(all_bare(got, false) == all_bare(sent, false), "seed {seed}: {lengths:?}");
        }
        assert!(counter(&left, "tx_trains") > 200);
    }
}

#[test]
fn sealed_frame_keeps_its_identification() {
    if skip("sealed_frame_keeps_its_identification") {
        return;
    }
    let wire = Wire::new("pk-sealed", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    // A layer above has held these frames, so they are committed before they are arranged.
    let held = |seed: u16| {
        let mut frame = packet(false, 500, seed.into());
        frame[18..20].copy_from_slice(&(0x4100 + 7 * seed).to_be_bytes());
        set_checksum(&mut frame[14..34]);
        frame
    };
    let frames: Vec<Vec<u8>> = (0..8).map(held).collect();
    for bytes in &frames {
        let id = left.tx_alloc(bytes.len()).expect("room for a burst");
        left.tx_frame(&id).write(0, bytes);
        left.tx_commit(id);
    }
    left.tx_arrange();
    flush(&mut left);
    assert_eq!(counter(&left, "tx_trains"), 0, "each frame is sent alone");
    let got = take(&mut right, frames.len(), SOON);
    assert!(all_bare(got, false) == all_bare(frames, false));
}

/// A train for several flows: each flow's frames arrive in order, and no frame joins another flow's train.
#[test]
fn flows_do_not_mix_in_a_train() {
    if skip("flows_do_not_mix_in_a_train") {
        return;
    }
    let wire = Wire::new("pk-mix", 4200, 1);
    let (mut left, mut right) = wire.packet_ports();
    let change: [fn(&mut Vec<u8>); 4] = [
        |_| {},
        |f| f[34..36].copy_from_slice(&[0xc1, 0x23]), // source port
        |f| f[15] = 0x6a,                             // traffic class
        |f| f[47] = 0x01,                             // unit of the destination QPN
    ];
    let frames: Vec<_> = (0..64)
        .map(|i| {
            let mut f = packet(false, 500, i);
            change[(i % 4) as usize](&mut f);
            set_checksum(&mut f[14..34]);
            f
        })
        .collect();
    let sent = send(&mut left, &frames, |_| false);
    assert_eq!(counter(&left, "tx_trains"), 4);
    let got = take(&mut right, sent.len(), SOON);
    let of_flow = |frames: &[Vec<u8>], flow: usize| -> Vec<Vec<u8>> {
        let mut probe = frames_like(&frames[0]);
        change[flow](&mut probe);
        let key = |f: &[u8]| (f[34..36].to_vec(), f[15], f[47]);
        frames.iter().filter(|f| key(f) == key(&probe)).map(|f| bare(f.clone(), true)).collect()
    };
    for flow in 0..4 {
        assert_eq!(of_flow(&sent, flow).len(), 16);
        assert!(of_flow(&got, flow) == of_flow(&sent, flow), "flow {flow}");
    }
}

/// Returns a frame whose flow fields are those of the first flow.
fn frames_like(frame: &[u8]) -> Vec<u8> {
    let mut like = frame.to_vec();
    like[34..36].copy_from_slice(&[0xc0, 0]);
    (like[15], like[47]) = (0, 0);
    like
}

#[test]
fn train_may_span_two_bursts() {
    if skip("train_may_span_two_bursts") {
        return;
    }
    let wire = Wire::new("pk-parts", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let frames: Vec<_> = (0..BURST as u64).map(|i| packet(false, 300, i)).collect();
    let sent = [send(&mut left, &frames, |_| false), send(&mut left, &frames[..40], |_| false)].concat();
    let mut got = Vec::new();
    let first = right.rx_burst(Nanos::ZERO);
    assert_eq!(first, BURST);
    got.extend((0..first).map(|i| right.rx_frame(i).frame.to_vec()));
    assert!((0..first).all(|i| right.rx_frame(i).ip_id_hidden));
    right.rx_release();
    got.extend(take(&mut right, 40, SOON));
    assert!(all_bare(got, true) == all_bare(sent, true));
    assert_eq!((right.next_event(), right.rx_waiting()), (Nanos::MAX, Some((0, SLOTS))));
}
