//! What threads hand to one another, in every interleaving: the turns of callers and the keeper, doorbells, work requests, completions and
//! their events, receives that several workers take from one queue.
//!
//! `watch.rs` and `turns.rs` of `src/engine`, and the queues of `src/shared`, are compiled here with the atomics and locks of a model checker, which runs each
//! model in all orders that the memory model allows. A thread that sleeps and is never woken is a deadlock, which fails the
//! model. A nap ends by itself after a while; here it does not, so that what relies on being roused shows.

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

/// Runs a model in all orders with up to three switches away from a thread that could go on. More find nothing that these do not, in
/// models of this size, and take hours.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// When the models play: a caller has polled without a break for long.
const NOW: u64 = 1_000_000_000;

/// A watch whose caller polls and is trusted.
fn polled() -> Watch {
    let watch = Watch::new();
    let mut at = NOW - 8 * WaitPolicy::LONGEST_NAP_NS;
    while at < NOW {
        watch.passed(at);
        at += WaitPolicy::POLL_GAP_NS;
    }
    watch
}

/// The keeper, until it watches.
fn keep(watch: &Watch, alarm: &Alarm, now: u64) {
    while watch.rest(now) != Rest::None {
        alarm.sleep();
        let _ = watch.wakes();
    }
}

#[test]
fn a_caller_that_polls_puts_the_end_of_a_nap_off() {
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
        // A caller that comes back from a break is not trusted.
        assert_eq!(watch.rest(now), Rest::Until(now + WaitPolicy::LONGEST_NAP_NS));
        now += WaitPolicy::LONGEST_NAP_NS * 7 / 8;
        watch.passed(now);
        assert_eq!(watch.lengthen(now), None);
    });
}

#[test]
fn a_nap_that_is_put_off_keeps_nobody_else_waiting() {
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
fn a_keeper_naps_while_a_caller_polls_and_not_when_it_waits() {
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
fn a_caller_that_begins_to_wait_is_never_left_to_a_nap() {
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
fn of_two_callers_that_begin_to_wait_none_is_left_to_a_nap() {
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
fn a_caller_that_stops_watching_leaves_no_keeper_in_deep_sleep() {
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
fn a_deadline_that_comes_earlier_wakes_a_keeper_that_watches() {
    check(|| {
        let (watch, alarm) = (Arc::new(Watch::new()), Arc::new(Alarm::default()));
        let deadline = Arc::new(AtomicU64::new(u64::MAX));
        // Who sets a deadline and who goes to sleep by it do so under the worker's lock.
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

/// What a NIC has to do here: to send what bells were rung for.
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

    /// A pass that began before anything was posted.
    fn pass(&self, turns: &Turns<()>) {
        let turn = turns.worker().lock().unwrap();
        drop(turn);
        assert!(!turns.look_again(|| self.rings(), |()| self.send()));
    }
}

#[test]
fn what_is_posted_has_left_when_all_calls_have_returned() {
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
fn of_three_calls_that_post_at_a_time_each_is_served() {
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

/// Frames end the sleep of whoever watches; somebody always does, or comes soon by itself.
#[test]
fn a_frame_that_comes_while_the_watch_changes_hands_is_taken() {
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
        // The caller sleeps until the frame comes, as its descriptors tell, and takes it.
        link.sleep();
        assert_eq!(frame.swap(0, AcqRel), 1);
        let _ = watch.stop_watching();
        // From now on the keeper is to look by itself: it naps at most.
        let rest = watch.rest(NOW + WaitPolicy::SHORTEST_NAP_NS / 2);
        assert_ne!(rest, Rest::Deep);
        wire.join().unwrap();
    });
}
