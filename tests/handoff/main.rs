//! Handoffs between threads, in every interleaving: turns of callers and the engine thread, doorbells, work requests,
//! completions and their events, receives that several workers take from one queue.
//!
//! `watch.rs` and `turns.rs` of `src/engine`, and the queues of `src/shared`, are compiled with a model checker's atomics and
//! locks. The checker runs each model in every order that the memory model allows. A thread that sleeps and is never woken is a
//! deadlock, which fails the model. A backoff sleep really ends by itself; here it does not, so that missing wake-ups show.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/turns.rs"]
mod turns;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/wait_policy.rs"]
mod wait_policy;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/engine/watch.rs"]
mod watch;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/completion_queue.rs"]
mod completion_queue;
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/shared/doorbell.rs"]
mod doorbell;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/event_counter.rs"]
mod event_counter;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/page_list.rs"]
mod page_list;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/shared_receives.rs"]
mod shared_receives;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/work_queue.rs"]
mod work_queue;

mod bells;
mod completions;
mod descriptor;
mod events;
mod receives;
mod region;
mod sends;

mod limits {
    pub(crate) use roxie::limits::{MAX_INLINE, MAX_MESSAGE, MAX_SGE};
}

mod verbs {
    pub(crate) use roxie::verbs::*;
}

mod sync {
    pub(super) use crate::descriptor::{EventFd, Signals};
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use nix::sys::eventfd::EfdFlags;
    pub(super) use std::sync::TryLockError;

    pub(super) fn clear(counter: &EventFd) {
        let _ = counter.read();
    }
}

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use turns::Turns;
use wait_policy::WaitPolicy;
use watch::{Rest, Watch};

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

/// Runs a model in all orders with up to three preemptions. In models of this size, more preemptions find nothing else, and
/// take hours.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Time of the models: a caller has polled without a break for long.
const NOW: u64 = 1_000_000_000;

/// Returns a watch with a polling, trusted caller.
fn polled() -> Watch {
    let watch = Watch::new();
    let mut at = NOW - 8 * WaitPolicy::LONGEST_NAP_NS;
    while at < NOW {
        watch.passed(at);
        at += WaitPolicy::POLL_GAP_NS;
    }
    watch
}

/// Runs the engine thread until it watches.
fn keep(watch: &Watch, alarm: &Alarm, now: u64) {
    while watch.rest(now) != Rest::None {
        alarm.sleep();
        let _ = watch.wakes();
    }
}

#[test]
fn polling_caller_extends_the_backoff_sleep() {
    check(|| {
        let watch = polled();
        let mut now = NOW;
        assert_eq!(watch.lengthen(now), None, "the keeper is awake");
        assert_eq!(watch.rest(now), Rest::Until(now + WaitPolicy::LONGEST_NAP_NS));
        for _ in 0..3 {
            watch.pass_ended(now + WaitPolicy::LONGEST_NAP_NS / 2);
            assert_eq!(watch.lengthen(now + WaitPolicy::LONGEST_NAP_NS / 2), None, "it is early");
            watch.pass_ended(now + WaitPolicy::LONGEST_NAP_NS * 7 / 8);
            now += WaitPolicy::LONGEST_NAP_NS * 7 / 8;
            assert_eq!(watch.lengthen(now), Some(now + WaitPolicy::LONGEST_NAP_NS));
        }
        assert_eq!(watch.wakes(), Some(now + WaitPolicy::LONGEST_NAP_NS));
        // A caller that returns from a break is not trusted.
        assert_eq!(watch.rest(now), Rest::Until(now + WaitPolicy::LONGEST_NAP_NS));
        now += WaitPolicy::LONGEST_NAP_NS * 7 / 8;
        watch.passed(now);
        assert_eq!(watch.lengthen(now), None);
    });
}

#[test]
fn extended_backoff_sleep_delays_no_waiter() {
    check(|| {
        let (watch, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let polls = {
            let watch = Arc::clone(&watch);
            thread::spawn(move || {
                let _ = watch.lengthen(NOW + WaitPolicy::LONGEST_NAP_NS * 7 / 8);
            })
        };
        let waits = {
            let (watch, alarm) = (Arc::clone(&watch), Arc::clone(&alarm));
            thread::spawn(move || {
                if watch.caller_waits(NOW) {
                    alarm.ring();
                }
            })
        };
        keep(&watch, &alarm, NOW);
        [polls, waits].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn engine_thread_sleeps_only_while_caller_polls() {
    check(|| {
        let watch = polled();
        assert_eq!(watch.rest(NOW), Rest::Until(NOW + WaitPolicy::LONGEST_NAP_NS));
        assert!(watch.naps());
        assert!(watch.caller_waits(NOW), "once");
        assert!(!watch.caller_waits(NOW), "it is awake");
        assert_eq!(watch.rest(NOW), Rest::None);
    });
}

#[test]
fn waiting_caller_ends_the_backoff_sleep() {
    check(|| {
        let (watch, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let keeper = {
            let (watch, alarm) = (Arc::clone(&watch), Arc::clone(&alarm));
            thread::spawn(move || keep(&watch, &alarm, NOW))
        };
        if watch.caller_waits(NOW) {
            alarm.ring();
        }
        keeper.join().unwrap();
    });
}

#[test]
fn two_waiting_callers_end_the_backoff_sleep() {
    check(|| {
        let (watch, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        let threads = [0, 1].map(|_| {
            let (watch, alarm) = (Arc::clone(&watch), Arc::clone(&alarm));
            thread::spawn(move || {
                if watch.caller_waits(NOW) {
                    alarm.ring();
                }
            })
        });
        keep(&watch, &alarm, NOW);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn departing_watcher_wakes_the_engine_thread() {
    check(|| {
        let (watch, alarm) = (Arc::new(polled()), Arc::new(Alarm::default()));
        assert!(watch.begin_watching(NOW));
        assert!(!watch.begin_watching(NOW), "one does");
        let later = NOW + 2 * WaitPolicy::RECENT_NS;
        let keeper = {
            let (watch, alarm) = (Arc::clone(&watch), Arc::clone(&alarm));
            thread::spawn(move || keep(&watch, &alarm, later))
        };
        if watch.stop_watching() {
            alarm.ring();
        }
        keeper.join().unwrap();
    });
}

#[test]
fn earlier_deadline_wakes_the_watching_thread() {
    check(|| {
        let (watch, alarm) = (Arc::new(Watch::new()), Arc::new(Alarm::default()));
        let deadline = Arc::new(AtomicU64::new(u64::MAX));
        // Setting a deadline and going to sleep both hold the worker's lock.
        let worker = Arc::new(Mutex::new(()));
        let keeper = {
            let (watch, alarm) = (Arc::clone(&watch), Arc::clone(&alarm));
            let (deadline, worker) = (Arc::clone(&deadline), Arc::clone(&worker));
            thread::spawn(move || {
                loop {
                    let turn = worker.lock().unwrap();
                    let until = deadline.load(Acquire);
                    if until < u64::MAX {
                        return;
                    }
                    watch.watches(until);
                    drop(turn);
                    alarm.sleep();
                    let _ = watch.wakes();
                }
            })
        };
        let turn = worker.lock().unwrap();
        deadline.store(NOW, SeqCst);
        let wake = watch.needs_by(NOW);
        drop(turn);
        if wake {
            alarm.ring();
        }
        keeper.join().unwrap();
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
    fn post(&self, turns: &Turns<()>) {
        self.rung.fetch_add(1, AcqRel);
        if let Ok(Some(turn)) = turns.after_ringing() {
            self.send();
            drop(turn);
            assert!(!turns.look_again(|| self.rings(), |()| self.send()));
        }
    }

    /// A pass that began before the post.
    fn pass(&self, turns: &Turns<()>) {
        let turn = turns.worker().lock().unwrap();
        drop(turn);
        assert!(!turns.look_again(|| self.rings(), |()| self.send()));
    }
}

#[test]
fn posts_are_sent_before_calls_return() {
    check(|| {
        let bells = Arc::new(Bells { rung: AtomicU64::new(0), sent: AtomicU64::new(0) });
        let turns = Arc::new(Turns::new(()));
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
        let turns = Arc::new(Turns::new(()));
        let posters = [0, 1].map(|_| {
            let (bells, turns) = (Arc::clone(&bells), Arc::clone(&turns));
            thread::spawn(move || bells.post(&turns))
        });
        bells.post(&turns);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert_eq!(bells.sent.load(SeqCst), 3);
    });
}

/// A frame ends the sleep of the watching thread. At any time, a thread watches, or will soon look by itself.
#[test]
fn frame_during_watch_handoff_is_taken() {
    check(|| {
        let watch = Arc::new(polled());
        let (frame, link) = (Arc::new(AtomicU64::new(0)), Arc::new(Alarm::default()));
        assert!(watch.begin_watching(NOW));
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
        let _ = watch.stop_watching();
        // From now on the engine thread polls by itself: a backoff sleep at most.
        let rest = watch.rest(NOW + WaitPolicy::SHORTEST_NAP_NS / 2);
        assert_ne!(rest, Rest::Deep);
        wire.join().unwrap();
    });
}
