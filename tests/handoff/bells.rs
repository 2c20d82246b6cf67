//! Doorbells: `src/nic/shared/doorbell.rs`, also under the turns of `src/engine/combining_lock.rs`.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::thread;

use crate::check;
use crate::combining_lock::CombiningLock;
use crate::doorbell::Doorbells;
use crate::verbs::QpIndex;

/// A worker that sleeps while no bell rings, until `done`.
fn work(bells: &Doorbells, mut rang: impl FnMut(QpIndex), done: impl Fn() -> bool) {
    loop {
        bells.take(&mut rang);
        if done() {
            return;
        }
        bells.sleep_begins();
        let rings = bells.any();
        if !rings {
            bells.wake_fd().sleep();
        }
        bells.sleep_ends(!rings);
    }
}

#[test]
fn bell_wakes_a_sleeper_or_is_seen() {
    check(|| {
        let bells = Doorbells::new(1).unwrap();
        let ringer = {
            let bells = bells.clone();
            thread::spawn(move || bells.ring(QpIndex(0)))
        };
        let rang = std::cell::Cell::new(false);
        work(&bells, |_| rang.set(true), || rang.get());
        ringer.join().unwrap();
    });
}

/// A thread that takes a bell sees all that was written before each ring of it, also if another thread had rung it
/// already.
#[test]
fn bell_publishes_writes_of_every_ringer() {
    check(|| {
        let bells = Doorbells::new(1).unwrap();
        let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let ringers = [0, 1].map(|at| {
            let (bells, posted) = (bells.clone(), Arc::clone(&posted));
            thread::spawn(move || {
                posted[at].store(1, Relaxed);
                bells.ring(QpIndex(0));
            })
        });
        let seen = std::cell::Cell::new(0);
        let read_posted = |_| seen.set(posted.iter().map(|one| one.load(Relaxed)).sum());
        work(&bells, read_posted, || seen.get() == 2);
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn two_bells_in_a_word_are_taken() {
    check(|| {
        let bells = Doorbells::new(2).unwrap();
        let ringers = [0, 1].map(|qp| {
            let bells = bells.clone();
            thread::spawn(move || bells.ring(QpIndex(qp)))
        });
        let rang = std::cell::Cell::new(0);
        work(&bells, |qp| rang.set(rang.get() | 1 << qp.0), || rang.get() == 3);
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
        assert!(
            !bells.any() || {
                bells.take(|_| panic!("taken twice"));
                true
            }
        );
    });
}

/// A frame that a sibling puts into the worker's queue, here a number that it sets.
#[test]
fn given_frame_wakes_a_sleeper() {
    check(|| {
        let (bells, queue) = (Doorbells::new(1).unwrap(), Arc::new(AtomicU64::new(0)));
        let giver = {
            let (bells, queue) = (bells.clone(), Arc::clone(&queue));
            thread::spawn(move || {
                queue.store(1, Relaxed);
                bells.wake_if_sleeping();
            })
        };
        while queue.load(Relaxed) == 0 {
            bells.sleep_begins();
            let given = queue.load(Relaxed) != 0;
            if !given {
                bells.wake_fd().sleep();
            }
            bells.sleep_ends(!given);
        }
        giver.join().unwrap();
    });
}

/// A call that posts: it rings, and runs the worker unless another thread does.
fn post(bells: &Doorbells, turns: &CombiningLock<()>, sent: &AtomicU64, qp: u32) {
    let send = || {
        bells.take(|qp| {
            sent.fetch_or(1 << qp.0, SeqCst);
        })
    };
    bells.ring_silently(QpIndex(qp));
    if let Ok(Some(turn)) = turns.after_ringing() {
        send();
        drop(turn);
        assert!(!turns.recheck(|| bells.any(), |()| send()));
    }
}

#[test]
fn posts_of_two_qps_are_sent() {
    check(|| {
        let (bells, turns) = (Doorbells::new(2).unwrap(), Arc::new(CombiningLock::new(())));
        let sent = Arc::new(AtomicU64::new(0));
        let other = {
            let (bells, turns, sent) = (bells.clone(), Arc::clone(&turns), Arc::clone(&sent));
            thread::spawn(move || post(&bells, &turns, &sent, 0))
        };
        post(&bells, &turns, &sent, 1);
        other.join().unwrap();
        assert_eq!(sent.load(SeqCst), 3);
    });
}
