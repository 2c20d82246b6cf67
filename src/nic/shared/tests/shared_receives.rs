use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed};
use std::thread;

use crate::shared::{RecvRing, SharedReceives};
use crate::verbs::Sge;

fn queue(capacity: u32, posted: u64) -> (RecvRing, SharedReceives) {
    let ring = RecvRing::new(capacity, 1).unwrap();
    for id in 0..posted {
        ring.post(id, &[]).unwrap();
    }
    (ring.clone(), SharedReceives::new(ring))
}

fn ids(queue: &SharedReceives) -> Vec<u64> {
    std::iter::from_fn(|| queue.take(&mut [])).map(|taken| taken.wr.wr_id).collect()
}

//= test: IBTA 10.2.9: srq-serves-in-order
#[test]
fn receives_are_taken_in_order_over_many_laps() {
    let (ring, queue) = queue(3, 0);
    for id in 0..100 {
        ring.post(id, &[]).unwrap();
        assert_eq!(ids(&queue), [id]);
    }
}

#[test]
fn limit_is_reached_once_for_each_arming() {
    let (ring, queue) = queue(8, 5);
    assert!(!queue.arm(4));
    let reached: Vec<_> =
        std::iter::from_fn(|| queue.take(&mut [])).map(|taken| taken.limit_reached).collect();
    assert_eq!(reached, [false, true, false, false, false], "three are left after the second");
    assert_eq!(queue.limit(), 0);
    ring.post(9, &[]).unwrap();
    assert!(queue.arm(2), "one is there, which is fewer");
    assert_eq!(queue.limit(), 0);
    assert!(!queue.arm(1));
    assert!(!queue.arm(0), "taken back");
    assert_eq!(queue.take(&mut []).map(|taken| taken.limit_reached), Some(false));
}

#[test]
fn move_keeps_waiting_receives_in_order() {
    let (_, mut queue) = queue(4, 4);
    queue.take(&mut []).unwrap();
    let small = RecvRing::new(2, 1).unwrap();
    assert_eq!(queue.begin_move(small).err(), Some(3));
    let large = RecvRing::new(16, 1).unwrap();
    let mut moving = queue.begin_move(large.clone()).expect("it is large enough");
    assert!(moving.go_on(&queue, 3));
    queue.end_move(moving);
    large.post(77, &[]).unwrap();
    assert_eq!(ids(&queue), [1, 2, 3, 77]);
    assert_eq!(queue.capacity(), 16);
}

#[test]
fn receives_are_taken_while_the_queue_moves() {
    let (_, mut queue) = queue(8, 8);
    let larger = RecvRing::new(9, 1).unwrap();
    let mut moving = queue.begin_move(larger.clone()).expect("it is large enough");
    let mut taken = Vec::new();
    let mut steps = 0;
    while !moving.go_on(&queue, 2) {
        steps += 1;
        taken.push(queue.take(&mut []).expect("none is lost").wr.wr_id);
    }
    queue.end_move(moving);
    assert_eq!((steps, &taken[..]), (3, &[0, 1, 2][..]), "two are copied in each of four steps");
    assert_eq!(queue.waiting(), 5);
    (8..12).for_each(|id| assert_eq!(larger.post(id, &[]), Ok(false), "those taken made room"));
    assert!(larger.post(12, &[]).is_err(), "nine wait");
    assert_eq!(ids(&queue), (3..12).collect::<Vec<_>>());
}

#[test]
fn move_survives_posts_to_the_old_ring() {
    let (old, mut queue) = queue(4, 2);
    let mut moving = queue.begin_move(RecvRing::new(4, 1).unwrap()).expect("it is large enough");
    old.post(2, &[]).unwrap();
    assert_eq!(ids(&queue), [0, 1, 2], "the old ring serves until the end");
    assert!(moving.go_on(&queue, 4));
    queue.end_move(moving);
    assert!(!queue.is_broken());
    assert_eq!((queue.waiting(), queue.take(&mut [])), (0, None));
}

#[test]
fn overwritten_producer_is_detected() {
    let (ring, queue) = queue(4, 4);
    assert!(!queue.is_broken(), "full is not broken");
    ring.words()[0].store(5, Relaxed);
    assert!(queue.is_broken());
    assert_eq!(queue.take(&mut []), None);
}

#[test]
fn concurrent_takers_get_each_receive_once() {
    const COUNT: u64 = 20_000;
    let ring = RecvRing::new(4, 1).unwrap();
    let queue = SharedReceives::new(ring.clone());
    let done = AtomicBool::new(false);
    let take = || {
        let mut got = Vec::new();
        let mut sges = [Sge::default()];
        loop {
            let last = done.load(Acquire);
            while let Some(taken) = queue.take(&mut sges) {
                assert_eq!(sges[0].addr, taken.wr.wr_id, "a list of another receive");
                got.push(taken.wr.wr_id);
            }
            if last {
                break got;
            }
            thread::yield_now();
        }
    };
    let mut all = thread::scope(|scope| {
        let takers: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        for id in 0..COUNT {
            let list = [Sge { addr: id, ..Sge::default() }];
            while ring.post(id, &list).is_err() {
                thread::yield_now();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        let mut all = Vec::new();
        for taker in takers {
            let got = taker.join().expect("a taker");
            assert!(got.is_sorted(), "one taker got them out of order");
            all.extend(got);
        }
        all
    });
    all.sort_unstable();
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
}
