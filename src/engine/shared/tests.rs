use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use super::*;
use crate::Request;
use roxie_nic::nic::{Command, Nic, NicConfig};
use roxie_nic::verbs::QpIndex;
use roxie_port::memory;

fn worker() -> Worker {
    worker_of(bounded(1).1)
}

fn worker_of(requests: Receiver<Request>) -> Worker {
    let config = NicConfig::default();
    let doorbells = Doorbells::new(config.limits.qps).unwrap();
    let end = memory::MemoryConfig::default();
    let (port, _) = memory::pair(end.clone(), end);
    Worker::new(Nic::new(config), Box::new(port), doorbells, requests, bounded(1).0)
}

#[test]
fn pass_carries_out_few_commands() {
    const WAITING: usize = 64;
    let (requests, waiting) = bounded(WAITING);
    let mut worker = worker_of(waiting);
    let (answer, answers) = bounded(WAITING);
    for _ in 0..WAITING {
        let request = Request { command: Command::AllocPd, answer: answer.clone() };
        assert!(requests.try_send(request).is_ok());
    }
    let first = worker.poll(Nanos(1)).commands;
    assert!(first > 0 && first < WAITING / 8 && answers.len() == first, "{first} commands");
    assert_eq!(worker.needed_by(), Nanos::ZERO, "there are more");
    let passes = (2..).take_while(|now| worker.poll(Nanos(*now)).commands > 0).count();
    assert_eq!((answers.len(), passes), (WAITING, WAITING / first - 1));
}

/// Callers and the worker thread make progress while callers lock the worker without a break.
#[test]
fn callers_and_the_worker_thread_take_turns() {
    const CALLS: u32 = 200;
    let shared = Shared::new(worker(), true, Clock::new()).unwrap();
    let (over, calls) = (AtomicBool::new(false), [0, 1, 2].map(|_| AtomicU32::new(0)));
    let until = Instant::now() + Duration::from_secs(10);
    thread::scope(|scope| {
        for calls in &calls {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    drop(shared.lock_between().unwrap());
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        let is_through = || calls.iter().all(|calls| calls.load(Relaxed) >= CALLS);
        let mut turns = 0;
        while (turns < CALLS || !is_through()) && Instant::now() < until {
            drop(shared.lock_in_turn().unwrap());
            turns += 1;
        }
        over.store(true, Relaxed);
        assert!(turns >= CALLS && is_through(), "{turns} turns, {calls:?}");
    });
}

/// Otherwise a post that finds the worker locked by a look would wait for the engine thread.
#[test]
fn bell_rung_during_a_look_is_heard() {
    let shared = Shared::new(worker(), false, Clock::new()).unwrap();
    let look = shared.lock_to_look();
    shared.doorbells.ring_silently(QpIndex(0));
    assert!(shared.try_turn().is_none());
    drop(look);
    assert!(!shared.doorbells.any());
}

/// A yield would last until a competing program has used up its time slice.
#[test]
fn crowded_caller_sleeps_until_the_worker_is_free() {
    let shared = Shared::new(worker(), false, Clock::new()).unwrap();
    let now = shared.clock.now();
    let returned = AtomicBool::new(false);
    let held = shared.lock_to_look();
    shared.give_way(now);
    shared.load.assume_high(now.0);
    thread::scope(|scope| {
        scope.spawn(|| {
            shared.give_way(now);
            returned.store(true, Relaxed);
        });
        while shared.waiting.load(Relaxed) == 0 {
            assert!(!returned.load(Relaxed), "the worker is still taken");
            thread::yield_now();
        }
        assert!(!returned.load(Relaxed));
        drop(held);
    });
    assert!(returned.load(Relaxed));
}

#[test]
fn caller_blocked_at_time_zero_is_remembered() {
    let handoff = Handoff::new();
    assert!(!handoff.had_stand_in_lately(0));
    assert!(handoff.begin_stand_in(0));
    assert!(handoff.had_stand_in_lately(5) && !handoff.had_stand_in_lately(WaitPolicy::RECENT_NS));
    handoff.forget_stand_in();
    assert!(!handoff.had_stand_in_lately(5));
}
