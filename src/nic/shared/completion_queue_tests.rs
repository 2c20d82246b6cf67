//! Tests of completion queues, in a file of their own because `tests/handoff` also compiles the queue.

use std::sync::atomic::Ordering::Relaxed;

use super::Region;
use super::completion_queue::{Armed, CompletionRing, Overflow};
use crate::verbs::{Qpn, Wc, WcFlags, WcStatus};

fn wc(wr_id: u64) -> Wc {
    Wc {
        wr_id,
        byte_len: 7,
        imm: u32::MAX,
        qpn: Qpn::new(0xabcdef),
        src_qp: Qpn::new(0xfedcba),
        sl: 0x81,
        pkey_index: 0x8002,
        vlan: 0x8003,
        ..Wc::default()
    }
}

#[test]
fn completions_are_polled_in_order_over_many_laps() {
    let cq = CompletionRing::new(3).unwrap();
    // Over 300 laps: a slot's sequence has 8 bits.
    for id in 0..1300 {
        let wc = if id % 3 == 0 { wc(id) } else { Wc { wr_id: id, ..Wc::default() } };
        assert_eq!(cq.push(&wc, id + 7), Ok(()));
        assert_eq!(cq.poll_timed(), Some((wc, id + 7)));
        assert_eq!(cq.poll(), None);
    }
}

#[test]
fn full_queue_reports_overflow_and_keeps_its_completions() {
    let cq = CompletionRing::new(3).unwrap();
    for id in 0..3 {
        cq.push(&wc(id), 0).unwrap();
    }
    assert_eq!(cq.push(&wc(3), 0), Err(Overflow));
    assert_eq!((0..4).filter_map(|_| cq.poll()).map(|w| w.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
}

//= test: IBTA 11.4.2.2: solicited-event-is-raised, notification-is-once
#[test]
fn request_raises_one_event_and_respects_solicited() {
    let cq = CompletionRing::new(8).unwrap();
    let event = |wc: Wc| {
        cq.push(&wc, 0).unwrap();
        cq.disarm_for(&wc)
    };
    assert!(!cq.arm(Armed::Solicited));
    assert!(!event(wc(0)));
    let solicited = Wc { flags: WcFlags::SOLICITED, ..wc(1) };
    assert!(event(solicited));
    assert!(!event(solicited), "once");
    while cq.poll().is_some() {}
    assert!(!cq.arm(Armed::Next));
    assert!(!cq.arm(Armed::Solicited));
    assert!(event(wc(2)), "the stronger request stays");
    assert_eq!((0..4).filter(|_| cq.take_event()).count(), 2, "each that was raised is taken once");
}

//= test: IBTA 11.4.2.2: notification-is-not-lost
#[test]
fn arming_over_a_waiting_completion_raises_an_event() {
    let cq = CompletionRing::new(8).unwrap();
    cq.push(&wc(0), 0).unwrap();
    assert!(!cq.arm(Armed::Solicited), "it is not solicited");
    assert!(cq.arm(Armed::Next));
    assert!(!cq.disarm_for(&wc(1)), "the request is taken");
    cq.push(&Wc { flags: WcFlags::SOLICITED, ..wc(1) }, 0).unwrap();
    assert!(cq.arm(Armed::Solicited), "one of two is solicited");
    while cq.poll().is_some() {}
    cq.push(&Wc { status: WcStatus::WrFlush, ..wc(2) }, 0).unwrap();
    assert!(cq.arm(Armed::Solicited), "it failed");
    cq.poll().unwrap();
    assert!(!cq.arm(Armed::Next), "none waits");
    assert_eq!((0..5).filter(|_| cq.take_event()).count(), 3);
}

fn move_to(from: &CompletionRing, to: &CompletionRing) {
    let mut moving = from.begin_move(to.clone()).unwrap();
    assert_eq!(moving.go_on(from, u64::MAX), Ok(true));
}

#[test]
fn completion_covered_by_an_event_raises_no_other() {
    let cq = CompletionRing::new(8).unwrap();
    assert!(!cq.arm(Armed::Next));
    cq.push(&wc(0), 0).unwrap();
    assert!(cq.disarm_for(&wc(0)));
    assert!(!cq.arm(Armed::Next), "asked again before it was polled");
    let other = CompletionRing::new(4).unwrap();
    move_to(&cq, &other);
    assert!(!other.arm(Armed::Next), "nor in another ring");
    other.push(&wc(1), 0).unwrap();
    assert!(other.disarm_for(&wc(1)));
    other.push(&wc(2), 0).unwrap();
    assert!(other.arm(Armed::Next), "of this one nobody was told");
}

/// A moved ring knows which completions were covered by an event, also if some were polled before.
#[test]
fn moved_ring_knows_completions_covered_by_events() {
    for polled in 0..3 {
        let cq = CompletionRing::new(8).unwrap();
        for id in 0..polled {
            cq.push(&wc(id), 0).unwrap();
            assert_eq!(cq.poll().map(|wc| wc.wr_id), Some(id));
        }
        assert!(!cq.arm(Armed::Next));
        cq.push(&wc(10), 0).unwrap();
        assert!(cq.disarm_for(&wc(10)) && cq.take_event());
        let larger = CompletionRing::new(16).unwrap();
        move_to(&cq, &larger);
        assert!(!larger.arm(Armed::Next), "an event has told of what waits");
        larger.push(&wc(11), 0).unwrap();
        assert!(
            larger.disarm_for(&wc(11)) && larger.take_event(),
            "and of this none, {polled} polled before"
        );
        let small = CompletionRing::new(2).unwrap();
        larger.push(&wc(12), 0).unwrap();
        assert_eq!(larger.poll().map(|wc| wc.wr_id), Some(10));
        move_to(&larger, &small);
        assert!(small.arm(Armed::Next), "nor of the last");
    }
}

/// Events that were raised and not taken can be taken from the other ring, once each.
#[test]
fn raised_events_move_to_the_other_ring() {
    let (cq, larger) = (CompletionRing::new(8).unwrap(), CompletionRing::new(16).unwrap());
    for id in 0..2 {
        assert!(!cq.arm(Armed::Next));
        cq.push(&wc(id), 0).unwrap();
        assert!(cq.disarm_for(&wc(id)));
    }
    move_to(&cq, &larger);
    assert!(larger.take_event() && larger.take_event() && !larger.take_event());
}

#[test]
fn has_completions_is_right_over_many_laps() {
    let cq = CompletionRing::new(2).unwrap();
    for id in 0..10 {
        assert!(!cq.has_completions(), "before {id}");
        cq.push(&wc(id), 0).unwrap();
        assert!(cq.has_completions(), "{id}");
        cq.poll().unwrap();
    }
}

/// Another process can do this to a ring that is moved.
#[test]
fn move_of_an_overwritten_ring_ends() {
    let region = Region::new(CompletionRing::size(8)).unwrap();
    let cq = CompletionRing::on(&region, 8).unwrap();
    (0..3).for_each(|id| cq.push(&wc(id), 0).unwrap());
    move_to(&cq, &CompletionRing::on(&region, 8).unwrap());
    assert_eq!(cq.positions(), (3, 3), "each was polled, and moved to its own place");
    // By these numbers three completions wait, but the slots are empty.
    cq.words().iter().for_each(|word| word.store(0, Relaxed));
    cq.words()[0].store(3, Relaxed);
    move_to(&cq, &CompletionRing::new(8).unwrap());
}

/// A client could overwrite the producer of the new ring again and again, so that each push would try again.
#[test]
fn move_ignores_the_new_rings_producer() {
    let (cq, other) = (CompletionRing::new(4).unwrap(), CompletionRing::new(4).unwrap());
    (0..4).for_each(|id| cq.push(&wc(id), 0).unwrap());
    other.words()[0].store(1 << 40, Relaxed);
    move_to(&cq, &other);
    assert_eq!(other.positions(), (0, 4));
    assert_eq!((0..5).filter_map(|_| other.poll()).map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn move_in_steps_takes_what_is_pushed_meanwhile() {
    let (cq, small) = (CompletionRing::new(8).unwrap(), CompletionRing::new(5).unwrap());
    (0..4).for_each(|id| cq.push(&wc(id), 0).unwrap());
    assert_eq!(cq.begin_move(CompletionRing::new(3).unwrap()).map(drop), Err(4), "four wait");
    let mut moving = cq.begin_move(small.clone()).unwrap();
    assert_eq!(moving.go_on(&cq, 3), Ok(false));
    for id in 4..6 {
        cq.push(&wc(id), 0).unwrap();
        moving.add(1);
    }
    assert_eq!(moving.go_on(&cq, 2), Ok(false));
    assert_eq!(moving.go_on(&cq, 2), Err(Overflow), "five have room");
    let ids: Vec<_> = std::iter::from_fn(|| small.poll()).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
}
