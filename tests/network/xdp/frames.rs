//! Frames arrive intact, on every queue, and no chunk leaks.

use super::*;

/// Every length near a boundary, and many between.
fn lengths(longest: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (64..longest).step_by(37).collect();
    all.extend([64, 65, 1514, 3839, 3840, 3841, 3842, 4095, 4096, 4097, 4206, longest]);
    all.retain(|l| *l <= longest);
    all
}

fn every_length_passes_each_way(tag: &str, mtu: u32, v6: bool, mode: Mode) {
    let wire = Wire::new(tag, mtu, 1);
    let mut left = wire.left(|c| c.mode = mode).unwrap();
    let mut right = wire.right(|c| c.mode = mode).unwrap();
    println!("{tag}: {}", left.info().mode);
    let longest = mtu as usize + 14;
    for (i, len) in lengths(longest).into_iter().enumerate() {
        for to_b in [true, false] {
            let (from, to) = if to_b { (&mut left, &mut right) } else { (&mut right, &mut left) };
            let sent = frame(to_b, v6, false, len.max(70), i as u64);
            assert!(put(from, &sent));
            flush(from);
            let got = take(to, 1, SOON);
            assert_eq!(got.len(), 1, "a frame of {len} bytes arrives");
            assert!(got[0] == sent, "a frame of {len} bytes arrives unchanged");
        }
    }
    let split = counter(&right, "rx_multi_buffer");
    assert_eq!(split > 0, longest > 3840, "{split} frames of two buffers");
    assert_eq!(counter(&right, "rx_gso_superframe") + counter(&right, "rx_dropped"), 0);
}

#[test]
fn ipv4_frames_of_every_length_pass_mtu_4200() {
    if !skip("ipv4_frames_of_every_length_pass_mtu_4200") {
        every_length_passes_each_way("v4-4200", 4200, false, Mode::Auto);
    }
}

#[test]
fn ipv6_frames_of_every_length_pass_mtu_4200() {
    if !skip("ipv6_frames_of_every_length_pass_mtu_4200") {
        every_length_passes_each_way("v6-4200", 4200, true, Mode::Native);
    }
}

#[test]
fn frames_of_every_length_pass_mtu_1500() {
    if !skip("frames_of_every_length_pass_mtu_1500") {
        every_length_passes_each_way("v4-1500", 1500, false, Mode::Auto);
        every_length_passes_each_way("v6-1500", 1500, true, Mode::Auto);
    }
}

#[test]
fn frames_of_every_length_pass_in_generic_mode() {
    if !skip("frames_of_every_length_pass_in_generic_mode") {
        every_length_passes_each_way("generic", 4200, false, Mode::Generic);
    }
}

#[test]
fn frames_on_every_queue_arrive() {
    if skip("frames_on_every_queue_arrive") {
        return;
    }
    let wire = Wire::new("queues", 1500, 2);
    let mut right = wire.right(|_| {}).unwrap();
    // One port per queue at the left: veth delivers on the queue with the same number.
    let mut lefts = wire.left(|_| {}).unwrap().split(2);
    assert_eq!(lefts.len(), 2);
    for (seed, left) in (0..).zip(&mut lefts) {
        let sent = frame(true, false, false, 300, seed);
        assert!(put(left, &sent));
        flush(left);
        assert!(take(&mut right, 1, SOON) == [sent], "queue {seed}");
    }
    let mut rights = right.split(2);
    for (left, to) in lefts.iter_mut().zip([0, 1]) {
        assert!(put(left, &frame(true, false, false, 300, 1)));
        flush(left);
        let got: Vec<_> = rights.iter_mut().map(|r| take(r, 1, A_WHILE).len()).collect();
        assert_eq!(got, if to == 0 { [1, 0] } else { [0, 1] }, "each worker gets its queue's frames");
    }
    drop(rights.remove(0));
    rights[0].set_addresses(&[A6.into()]).expect("the steering lives as long as one of its ports");
    drop(lefts);
    let e = wire.left(|c| c.queues = vec![2]).err().unwrap();
    assert!(matches!(e, XdpError::NoSuchQueue { queue: 2, count: 2, .. }), "{e}");
}

#[test]
fn hundred_thousand_frames_leak_no_chunk() {
    if skip("hundred_thousand_frames_leak_no_chunk") {
        return;
    }
    let wire = Wire::new("leak", 4200, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let frames: Vec<_> = [64 + 6, 1100, 4170].map(|len| frame(true, false, false, len, 7)).into();
    let (mut sent, mut got) = (0u64, 0u64);
    while sent < 100_000 {
        for i in 0..BURST {
            if i % 7 == 0
                && let Some(id) = left.tx_alloc(4170)
            {
                left.tx_cancel(id);
            }
            sent += u64::from(put(&mut left, &frames[i % 3]));
        }
        flush(&mut left);
        let (rx, tx) = left.chunks();
        assert_eq!([rx.held + rx.free + rx.kernel, tx.held + tx.free + tx.kernel], [rx.total, tx.total]);
        loop {
            let n = right.rx_burst(Nanos::ZERO);
            let (rx, _) = right.chunks();
            assert_eq!(rx.held + rx.free + rx.kernel, rx.total, "mid-burst");
            got += n as u64;
            right.rx_release();
            if n == 0 {
                break;
            }
        }
        // The kernel may deliver later, from another thread: wait before the next burst.
        got += take(&mut right, usize::try_from(sent - got).unwrap(), A_WHILE).len() as u64;
        assert_eq!(got, sent, "one burst at a time: nothing is lost");
    }
    let ((_, tx), (rx, _)) = (left.chunks(), right.chunks());
    assert_eq!((tx.free, tx.kernel), (tx.total, 0), "all transmit chunks came back");
    assert_eq!((rx.held, rx.free + rx.kernel), (0, rx.total), "no frame holds a chunk");
    assert!(counter(&left, "tx_kicks") * 16 <= sent, "one system call for 16 frames at most");
}

#[test]
fn stalled_receiver_loses_frames_but_no_chunks() {
    if skip("stalled_receiver_loses_frames_but_no_chunks") {
        return;
    }
    let wire = Wire::new("stall", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    let mut right = wire.right(|c| c.ring = 64).unwrap();
    let f = frame(true, false, false, 500, 1);
    for _ in 0..500 {
        assert!(put(&mut left, &f));
    }
    flush(&mut left);
    let got = take(&mut right, 500, A_WHILE).len();
    assert_eq!(got, 64, "as many as the ring holds");
    let lost = ["rx_dropped", "rx_ring_full", "fill_ring_empty"].map(|n| counter(&right, n));
    assert!(lost.iter().sum::<u64>() >= 436, "the others are counted: {lost:?}");
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert_eq!(take(&mut right, 1, SOON).len(), 1, "and it goes on");
}

#[test]
fn expected_frames_are_not_lost() {
    if skip("expected_frames_are_not_lost") {
        return;
    }
    let wire = Wire::new("incast", 4200, 1);
    let lost = |expected, sent: usize, long: bool| {
        let (mut left, mut right) = wire.xdp_ports();
        right.expect_frames(expected);
        let f = frame(true, false, false, if long { 4170 } else { 500 }, 1);
        let mut burst = |count: usize| {
            let mut left_over = count;
            while left_over > 0 {
                let now = left_over.min(BURST);
                assert!((0..now).all(|_| put(&mut left, &f)));
                flush(&mut left);
                left_over -= now;
            }
            count - take(&mut right, count, A_WHILE).len()
        };
        [burst(sent), burst(sent)]
    };
    assert_eq!(lost(0, 256, false), [0, 0], "without an announcement");
    assert_eq!(lost(8 * 128, 8 * 128, true), [0, 0], "eight windows of frames in two chunks each");
    // What is lost without an announcement is lost once: the ring that ran empty has twice the chunks from then on.
    let [first, second] = lost(0, 500, false);
    assert!(first > 0 && second == 0, "{first} and {second}");
}

#[test]
fn full_port_refuses_frames_and_recovers() {
    if skip("full_port_refuses_frames_and_recovers") {
        return;
    }
    let wire = Wire::new("full", 1500, 1);
    let mut left = wire.left(|c| c.ring = 64).unwrap();
    let ids: Vec<_> = (0..64).map(|_| left.tx_alloc(100).expect("64 chunks")).collect();
    assert!(left.tx_alloc(100).is_none());
    for id in ids {
        left.tx_frame(&id).write(0, &frame(true, false, false, 100, 1));
        left.tx_commit(id);
    }
    assert!(left.tx_pending());
    flush(&mut left);
    assert!(!left.tx_pending());
    assert!(left.tx_alloc(100).is_some(), "sent frames' chunks are taken back");
}

#[test]
fn frame_wakes_sleeper() {
    if skip("frame_wakes_sleeper") {
        return;
    }
    let wire = Wire::new("sleep", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    assert!(right.prepare_sleep(), "nothing there");
    assert_eq!(ready(&right), 0);
    assert!(put(&mut left, &frame(true, false, false, 100, 1)));
    flush(&mut left);
    assert_eq!(ready(&right), 1);
    assert!(!right.prepare_sleep(), "a frame is there");
    assert_eq!(take(&mut right, 1, SOON).len(), 1);
    assert_eq!(ready(&right), 0);
}

#[test]
fn mtu_change_is_followed() {
    if skip("mtu_change_is_followed") {
        return;
    }
    let wire = Wire::new("mtu", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    for (ns, name) in [(&wire.a, "left"), (&wire.b, "right")] {
        Links::open_in(ns).unwrap().set_mtu(name, 4200).unwrap();
    }
    left.set_mtu(4200);
    assert_eq!((left.info().mtu, left.info().max_frame), (4200, 4218));
    let sent = frame(true, false, false, 4206, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty(), "the receiver does not know yet");
    assert_eq!(counter(&right, "rx_gso_superframe"), 1);
    right.set_mtu(4200);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

#[test]
fn three_buffer_frame_is_dropped_and_counted() {
    if skip("three_buffer_frame_is_dropped_and_counted") {
        return;
    }
    let wire = Wire::new("jumbo", 9000, 1);
    let (mut left, mut right) = wire.xdp_ports();
    assert_eq!(left.info().max_frame, 2 * 3840, "two buffers at most, whatever the MTU");
    let longest = frame(true, false, false, 7680, 1);
    assert!(put(&mut left, &longest));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [longest.clone()]);

    let kernel = wire.a.run(|| std::net::UdpSocket::bind((A4, 49152))).unwrap().unwrap();
    kernel.send_to(&[1; 8900], (B4, ROCE)).unwrap();
    assert!(put(&mut left, &longest));
    flush(&mut left);
    assert!(take(&mut right, 2, A_WHILE) == [longest], "the frame behind it is whole");
    assert_eq!((counter(&right, "rx_too_long"), counter(&right, "rx_gso_superframe")), (1, 0));
    let (rx, _) = right.chunks();
    assert_eq!((rx.held, rx.free + rx.kernel), (0, rx.total), "its three chunks went back");
}
