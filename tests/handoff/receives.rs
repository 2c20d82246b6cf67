//! A receive queue that several take from: `src/shared/work_queue.rs` and `src/shared/shared_receives.rs`.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::shared_receives::SharedReceives;
use crate::verbs::Sge;
use crate::work_queue::RecvRing;

fn post(ring: &RecvRing, id: u64) -> bool {
    ring.post(id, &[Sge { addr: id, ..Sge::default() }]).is_ok()
}

/// Takes one, if there is one: its number, and whether the limit was reached.
fn take(queue: &SharedReceives) -> Option<(u64, bool)> {
    let mut sges = [Sge::default()];
    let taken = queue.take(&mut sges)?;
    assert_eq!(sges[0].addr, taken.wr.wr_id, "a list of another receive");
    Some((taken.wr.wr_id, taken.limit_reached))
}

/// What two threads get that take so often each.
fn share(queue: &Arc<SharedReceives>, times: usize) -> Vec<(u64, bool)> {
    let takes = move |queue: &SharedReceives| (0..times).filter_map(|_| take(queue)).collect::<Vec<_>>();
    let other = {
        let queue = Arc::clone(queue);
        thread::spawn(move || takes(&queue))
    };
    let mut all = takes(queue);
    all.extend(other.join().unwrap());
    all
}

fn numbers(all: impl IntoIterator<Item = (u64, bool)>) -> Vec<u64> {
    let mut all: Vec<u64> = all.into_iter().map(|(number, _)| number).collect();
    all.sort_unstable();
    all
}

#[test]
fn two_that_take_get_each_receive_once() {
    check(|| {
        let ring = RecvRing::new(2, 1).unwrap();
        assert!(post(&ring, 1) && post(&ring, 2));
        let queue = Arc::new(SharedReceives::new(ring));
        assert_eq!(numbers(share(&queue, 2)), [1, 2]);
        assert_eq!(take(&queue), None);
    });
}

#[test]
fn the_limit_is_told_to_one_of_two_that_take() {
    check(|| {
        let ring = RecvRing::new(2, 1).unwrap();
        assert!(post(&ring, 1) && post(&ring, 2));
        let queue = Arc::new(SharedReceives::new(ring));
        assert!(!queue.arm(2));
        let told = share(&queue, 1).iter().filter(|(_, limit_reached)| *limit_reached).count();
        assert_eq!(told, 1);
    });
}

/// The slot of what was taken is written anew as soon as it is free: who was slower may have copied of both, and throws that away.
#[test]
fn a_slot_that_is_used_again_is_read_as_one_receive() {
    check(|| {
        let ring = RecvRing::new(1, 1).unwrap();
        assert!(post(&ring, 1));
        let queue = Arc::new(SharedReceives::new(ring.clone()));
        let poster = thread::spawn(move || post(&ring, 2));
        let mut all = share(&queue, 1);
        let due: &[u64] = if poster.join().unwrap() { &[1, 2] } else { &[1] };
        all.extend(std::iter::from_fn(|| take(&queue)));
        assert_eq!(numbers(all), due);
    });
}

/// One takes below the limit while the other sets it: one of them finds out.
#[test]
fn a_limit_that_is_set_while_another_takes_is_told_of_once() {
    check(|| {
        let ring = RecvRing::new(2, 1).unwrap();
        assert!(post(&ring, 1));
        let queue = Arc::new(SharedReceives::new(ring));
        let taker = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || take(&queue).unwrap().1)
        };
        let at_once = queue.arm(1);
        let by_taker = taker.join().unwrap();
        assert!(at_once != by_taker, "told at once {at_once}, by the taker {by_taker}");
    });
}
