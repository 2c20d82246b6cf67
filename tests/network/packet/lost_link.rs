//! A link that takes no frames: down, deleted, moved to another namespace, or refusing each one.

use super::*;
use crate::run_in;
use roxie::netdev::Links;

/// More frames than a port has slots.
const FRAMES: u64 = 600;

/// Hands frames to the port one by one, with a flush at time `now` after each. Returns true if a flush failed.
fn send(port: &mut PacketPort, now: Nanos) -> bool {
    let mut has_failed = false;
    for i in 0..FRAMES {
        assert!(put(port, &frame(true, false, false, 200, i)), "frame {i} has a slot");
        has_failed |= port.tx_flush(now).is_err();
    }
    has_failed
}

/// True if the port lets its thread sleep.
fn sleeps(port: &mut PacketPort) -> bool {
    (0..3).any(|_| port.prepare_sleep() && ready(port) == 0)
}

#[test]
fn frames_to_a_down_link_are_lost() {
    if skip("frames_to_a_down_link_are_lost") {
        return;
    }
    let wire = Wire::new("pk-down", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let mut links = Links::open_in(&wire.a).unwrap();
    links.set_up("left", false).unwrap();
    assert!(!send(&mut left, Nanos::ZERO));
    assert_eq!((counter(&left, "link_down"), left.tx_pending()), (FRAMES, false));
    assert!(sleeps(&mut left), "the error of the socket does not keep its descriptor readable");

    links.set_up("left", true).unwrap();
    links.add_neighbour("left", B4.into(), MAC_B).unwrap();
    let until = std::time::Instant::now() + SOON;
    let passes = |from: &mut PacketPort, to: &mut PacketPort, to_b| {
        assert!(put(from, &frame(to_b, false, false, 100, 1)));
        flush(from);
        take(to, 1, A_WHILE).len() == 1
    };
    for to_b in [true, false] {
        let (from, to) = if to_b { (&mut left, &mut right) } else { (&mut right, &mut left) };
        while !passes(from, to, to_b) {
            assert!(std::time::Instant::now() < until, "frames pass again, to the right: {to_b}");
        }
    }
}

#[test]
fn frames_to_a_removed_link_are_lost() {
    if skip("frames_to_a_removed_link_are_lost") {
        return;
    }
    for (tag, is_moved) in [("pk-moved", true), ("pk-deleted", false)] {
        let wire = Wire::new(tag, 1500, 1);
        let mut left = open(&wire.a, "left").unwrap();
        if is_moved {
            run_in(&wire.a, "ip", &format!("link set left netns {}", wire.b.name().unwrap()));
        } else {
            Links::open_in(&wire.a).unwrap().delete("left").unwrap();
        }
        assert!(send(&mut left, Nanos::ZERO), "the flush reports it");
        assert_eq!((counter(&left, "tx_failed"), left.tx_pending()), (FRAMES, false));
        assert!(sleeps(&mut left), "the error of the socket does not keep its descriptor readable");
    }
}

/// A queue that drops each frame is a busy link to the sender (`ENOBUFS`), and so is a filter that does.
#[test]
fn frames_of_a_stuck_link_are_lost() {
    if skip("frames_of_a_stuck_link_are_lost") {
        return;
    }
    let wire = Wire::new("pk-stuck", 1500, 1);
    let mut left = open(&wire.a, "left").unwrap();
    run_in(&wire.a, "tc", "qdisc add dev left root pfifo limit 0");
    let second = Nanos(1_000_000_000);
    assert!(put(&mut left, &frame(true, false, false, 200, 1)));
    flush(&mut left);
    assert!(left.tx_pending() && counter(&left, "tx_busy") > 0, "a busy link may have room soon");
    left.tx_flush(second).unwrap();
    assert_eq!((counter(&left, "tx_failed"), left.tx_pending()), (1, false), "it had none for a second");
}
