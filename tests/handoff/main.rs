//! Handoffs between threads, in every interleaving: turns of callers and the engine thread, doorbells, work requests,
//! completions and their events, receives that several workers take from one queue.
//!
//! `handoff.rs` and `combining_lock.rs` of `src/engine`, and the queues of `src/nic/shared`, are compiled with a model
//! checker's atomics and locks. The checker runs each model in every order that the memory model allows. A thread that
//! sleeps and is never woken is a deadlock, which fails the model. A backoff sleep really ends by itself; here it does
//! not, so that missing wake-ups show.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/combining_lock.rs"]
mod combining_lock;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/handoff.rs"]
mod handoff;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/wait_policy.rs"]
mod wait_policy;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/nic/shared/completion_queue.rs"]
mod completion_queue;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/nic/shared/doorbell.rs"]
mod doorbell;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/nic/shared/event_counter.rs"]
mod event_counter;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/nic/shared/notifier.rs"]
mod notifier;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/nic/shared/page_list.rs"]
mod page_list;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/nic/shared/shared_receives.rs"]
mod shared_receives;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/nic/shared/work_queue.rs"]
mod work_queue;

mod bells;
mod completions;
mod descriptor;
mod events;
mod receives;
mod region;
mod sends;

mod verbs {
    pub(crate) use roxie_nic::verbs::*;
}

mod sync {
    pub(super) use crate::descriptor::{EventFd, Signals};
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use nix::sys::eventfd::EfdFlags;
    pub(super) use std::sync::TryLockError;
}

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use combining_lock::CombiningLock;
use handoff::{Handoff, NextSleep};
use wait_policy::WaitPolicy;

/// A descriptor that ends a sleep.
#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Runs a model in all orders with up to three preemptions. In models of this size, more preemptions find nothing else,
/// and take hours.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Time of the models: a caller has polled without a break for long.
const NOW: u64 = 1_000_000_000;

/// Returns a handoff with a polling, trusted caller.
fn polled() -> Handoff {
    let handoff = Handoff::new();
    let mut at = NOW - 8 * WaitPolicy::LONGEST_BACKOFF_NS;
    while at < NOW {
        handoff.passed(at);
        at += WaitPolicy::POLL_GAP_NS;
    }
    handoff
}

/// Runs the engine thread until it blocks on the link.
fn run_engine_thread(handoff: &Handoff, alarm: &Alarm, now: u64) {
    while handoff.rest(now) != NextSleep::None {
        alarm.sleep();
        let _ = handoff.wakes();
    }
}

#[test]
fn polling_caller_extends_the_backoff_sleep() {
    check(|| {
        let handoff = polled();
        let mut now = NOW;
        assert_eq!(handoff.extend(now), None, "the engine thread is awake");
        assert_eq!(handoff.rest(now), NextSleep::Until(now + WaitPolicy::LONGEST_BACKOFF_NS));
        for _ in 0..3 {
            handoff.pass_ended(now + WaitPolicy::LONGEST_BACKOFF_NS / 2);
            assert_eq!(handoff.extend(now + WaitPolicy::LONGEST_BACKOFF_NS / 2), None, "it is early");
            handoff.pass_ended(now + WaitPolicy::LONGEST_BACKOFF_NS * 7 / 8);
            now += WaitPolicy::LONGEST_BACKOFF_NS * 7 / 8;
            assert_eq!(handoff.extend(now), Some(now + WaitPolicy::LONGEST_BACKOFF_NS));
        }
        assert_eq!(handoff.wakes(), Some(now + WaitPolicy::LONGEST_BACKOFF_NS));
        // A caller that returns from a break is not trusted.
        assert_eq!(handoff.rest(now), NextSleep::Until(now + WaitPolicy::LONGEST_BACKOFF_NS));
        now += WaitPolicy::LONGEST_BACKOFF_NS * 7 / 8;
        handoff.passed(now);
        assert_eq!(handoff.extend(now), None);
    });
}

#[test]
fn extended_backoff_sleep_delays_no_waiter() {
    check(|| {
        let (handoff, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let polls = {
            let handoff = Arc::clone(&handoff);
            thread::spawn(move || {
                let _ = handoff.extend(NOW + WaitPolicy::LONGEST_BACKOFF_NS * 7 / 8);
            })
        };
        let waits = {
            let (handoff, alarm) = (Arc::clone(&handoff), Arc::clone(&alarm));
            thread::spawn(move || {
                if handoff.caller_waits(NOW) {
                    alarm.ring();
                }
            })
        };
        run_engine_thread(&handoff, &alarm, NOW);
        [polls, waits].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn engine_thread_sleeps_only_while_caller_polls() {
    check(|| {
        let handoff = polled();
        assert_eq!(handoff.rest(NOW), NextSleep::Until(NOW + WaitPolicy::LONGEST_BACKOFF_NS));
        assert!(handoff.is_in_backoff());
        assert!(handoff.caller_waits(NOW), "once");
        assert!(!handoff.caller_waits(NOW), "it is awake");
        assert_eq!(handoff.rest(NOW), NextSleep::None);
    });
}

#[test]
fn waiting_caller_ends_the_backoff_sleep() {
    check(|| {
        let (handoff, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let engine_thread = {
            let (handoff, alarm) = (Arc::clone(&handoff), Arc::clone(&alarm));
            thread::spawn(move || run_engine_thread(&handoff, &alarm, NOW))
        };
        if handoff.caller_waits(NOW) {
            alarm.ring();
        }
        engine_thread.join().unwrap();
    });
}

#[test]
fn two_waiting_callers_end_the_backoff_sleep() {
    check(|| {
        let (handoff, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let threads = [0, 1].map(|_| {
            let (handoff, alarm) = (Arc::clone(&handoff), Arc::clone(&alarm));
            thread::spawn(move || {
                if handoff.caller_waits(NOW) {
                    alarm.ring();
                }
            })
        });
        run_engine_thread(&handoff, &alarm, NOW);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn departing_stand_in_wakes_the_engine_thread() {
    check(|| {
        let (handoff, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        assert!(handoff.begin_substituting(NOW));
        assert!(!handoff.begin_substituting(NOW), "one does");
        let later = NOW + 2 * WaitPolicy::RECENT_NS;
        let engine_thread = {
            let (handoff, alarm) = (Arc::clone(&handoff), Arc::clone(&alarm));
            thread::spawn(move || run_engine_thread(&handoff, &alarm, later))
        };
        if handoff.end_substituting() {
            alarm.ring();
        }
        engine_thread.join().unwrap();
    });
}

#[test]
fn earlier_deadline_wakes_the_blocked_thread() {
    check(|| {
        let (handoff, alarm) = (Arc::new(Handoff::new()), Arc::new(Alarm::default()));
        let deadline = Arc::new(AtomicU64::new(u64::MAX));
        // Setting a deadline and going to sleep both hold the worker's lock.
        let worker = Arc::new(Mutex::new(()));
        let engine_thread = {
            let (handoff, alarm) = (Arc::clone(&handoff), Arc::clone(&alarm));
            let (deadline, worker) = (Arc::clone(&deadline), Arc::clone(&worker));
            thread::spawn(move || {
                loop {
                    let turn = worker.lock().unwrap();
                    let until = deadline.load(Acquire);
                    if until < u64::MAX {
                        return;
                    }
                    handoff.blocks(until);
                    drop(turn);
                    alarm.sleep();
                    let _ = handoff.wakes();
                }
            })
        };
        let turn = worker.lock().unwrap();
        deadline.store(NOW, SeqCst);
        let wake = handoff.needs_by(NOW);
        drop(turn);
        if wake {
            alarm.ring();
        }
        engine_thread.join().unwrap();
    });
}

/// The work of a NIC here: sends for the bells that rang.
struct Bells {
    rung: AtomicU64,
    sent: AtomicU64,
}

impl Bells {
    fn send(&self) {
        self.sent.fetch_add(self.rung.swap(0, AcqRel), SeqCst);
    }

    fn rings(&self) -> bool {
        self.rung.load(Acquire) > 0
    }

    /// A call that posts.
    fn post(&self, turns: &CombiningLock<()>) {
        self.rung.fetch_add(1, AcqRel);
        if let Ok(Some(turn)) = turns.after_ringing() {
            self.send();
            drop(turn);
            assert!(!turns.recheck(|| self.rings(), |()| self.send()));
        }
    }

    /// A pass that began before the post.
    fn pass(&self, turns: &CombiningLock<()>) {
        let turn = turns.worker().lock().unwrap();
        drop(turn);
        assert!(!turns.recheck(|| self.rings(), |()| self.send()));
    }
}

#[test]
fn posts_are_sent_before_calls_return() {
    check(|| {
        let bells = Arc::new(Bells { rung: AtomicU64::new(0), sent: AtomicU64::new(0) });
        let turns = Arc::new(CombiningLock::new(()));
        let poster = {
            let (bells, turns) = (Arc::clone(&bells), Arc::clone(&turns));
            thread::spawn(move || bells.post(&turns))
        };
        bells.pass(&turns);
        poster.join().unwrap();
        assert_eq!(bells.sent.load(SeqCst), 1);
    });
}

#[test]
fn three_concurrent_posts_are_sent() {
    check(|| {
        let bells = Arc::new(Bells { rung: AtomicU64::new(0), sent: AtomicU64::new(0) });
        let turns = Arc::new(CombiningLock::new(()));
        let posters = [0, 1].map(|_| {
            let (bells, turns) = (Arc::clone(&bells), Arc::clone(&turns));
            thread::spawn(move || bells.post(&turns))
        });
        bells.post(&turns);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert_eq!(bells.sent.load(SeqCst), 3);
    });
}

/// A frame ends the sleep of the blocked thread. At any time, a thread blocks on the link, or will soon check it by
/// itself.
#[test]
fn frame_during_handoff_is_taken() {
    check(|| {
        let handoff = Arc::new(polled());
        let (frame, link) = (Arc::new(AtomicU64::new(0)), Arc::new(Alarm::default()));
        assert!(handoff.begin_substituting(NOW));
        let wire = {
            let (frame, link) = (Arc::clone(&frame), Arc::clone(&link));
            thread::spawn(move || {
                frame.store(1, SeqCst);
                link.ring();
            })
        };
        // The caller sleeps until its descriptors report the frame, and takes it.
        link.sleep();
        assert_eq!(frame.swap(0, AcqRel), 1);
        let _ = handoff.end_substituting();
        // From now on the engine thread polls by itself: a backoff sleep at most.
        let rest = handoff.rest(NOW + WaitPolicy::SHORTEST_BACKOFF_NS / 2);
        assert_ne!(rest, NextSleep::UntilWoken);
        wire.join().unwrap();
    });
}
