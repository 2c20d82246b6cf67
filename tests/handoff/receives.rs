//! A receive queue with several consumers: `src/nic/shared/work_queue.rs` and `src/nic/shared/shared_receives.rs`.

use loom::sync::Arc;
use loom::thread;

use crate::check;
use crate::shared_receives::SharedReceives;
use crate::verbs::Sge;
use crate::work_queue::RecvRing;

fn post(ring: &RecvRing, id: u64) -> bool {
    ring.post(id, &[Sge { addr: id, ..Sge::default() }]).is_ok()
}

/// Takes a receive, if there is one. Returns its number, and whether the limit was reached.
fn take(queue: &SharedReceives) -> Option<(u64, bool)> {
    let mut sges = [Sge::default()];
    let taken = queue.take(&mut sges)?;
    assert_eq!(sges[0].addr, taken.wr.wr_id, "a list of another receive");
    Some((taken.wr.wr_id, taken.limit_reached))
}

/// Returns the receives of two threads that each take `times` times.
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
fn two_consumers_get_each_receive_once() {
    check(|| {
        let ring = RecvRing::new(2, 1).unwrap();
        assert!(post(&ring, 1) && post(&ring, 2));
        let queue = Arc::new(SharedReceives::new(ring));
        assert_eq!(numbers(share(&queue, 2)), [1, 2]);
        assert_eq!(take(&queue), None);
    });
}

#[test]
fn limit_is_reported_to_one_consumer() {
    check(|| {
        let ring = RecvRing::new(2, 1).unwrap();
        assert!(post(&ring, 1) && post(&ring, 2));
        let queue = Arc::new(SharedReceives::new(ring));
        assert!(!queue.arm(2));
        let notified = share(&queue, 1).iter().filter(|(_, limit_reached)| *limit_reached).count();
        assert_eq!(notified, 1);
    });
}

/// A slot is rewritten as soon as it is free. A slower thread may have copied from both receives, and discards that
/// copy.
#[test]
fn reused_receive_slot_is_never_torn() {
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

/// One thread takes below the limit while the other sets it: one of them reports.
#[test]
fn limit_set_during_take_is_reported_once() {
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
