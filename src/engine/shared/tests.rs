use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use super::*;
use crate::{Drive, Engine, Request};
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
        let request = Request::Command { command: Command::AllocPd, answer: answer.clone() };
        assert!(requests.try_send(request).is_ok());
    }
    let first = worker.poll(Nanos(1)).commands;
    assert!(first > 0 && first < WAITING / 8 && answers.len() == first, "{first} commands");
    assert_eq!(worker.needed_by(), Nanos::ZERO, "there are more");
    let passes = (2..).take_while(|now| worker.poll(Nanos(*now)).commands > 0).count();
    assert_eq!((answers.len(), passes), (WAITING, WAITING / first - 1));
}

/// The engine ends although its thread polls without a pause.
#[test]
fn caller_is_let_in_between_two_passes() {
    let shared = Shared::new(worker(), true, Clock::new()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                drop(shared.lock_between().unwrap());
            }
            over.store(true, Relaxed);
        });
        let until = Instant::now() + Duration::from_secs(10);
        while !over.load(Relaxed) && Instant::now() < until {
            drop(shared.lock_in_turn().unwrap());
        }
        assert!(over.load(Relaxed));
    });
}

/// A thread that is not scheduled must not hold the worker up: it is never waited for.
#[test]
fn owner_of_the_worker_runs_looks_and_changes() {
    let end = memory::MemoryConfig::default();
    let (port, _) = memory::pair(end.clone(), end);
    let drive = Drive::Thread { core: None, spin: Nanos(1_000) };
    let engine = Engine::start(NicConfig::default(), Box::new(port), drive).unwrap();
    let thread = || thread::current().name().map(str::to_owned);
    assert_eq!(engine.inspect(move |_| thread()).as_deref(), Some("roxie-worker"));
    assert_eq!(engine.adjust(move |_| thread()).flatten().as_deref(), Some("roxie-worker"));
}

#[test]
fn dead_engine_is_looked_at_and_not_changed() {
    let end = memory::MemoryConfig::default();
    let (port, _) = memory::pair(end.clone(), end);
    let drive = Drive::Thread { core: None, spin: Nanos(1_000) };
    let engine = Engine::start(NicConfig::default(), Box::new(port), drive).unwrap();
    let panics =
        thread::scope(|scope| scope.spawn(|| engine.adjust(|_| -> u32 { panic!("planted") })).join());
    assert!(panics.is_err());
    // The engine's thread declares it while it unwinds.
    let until = Instant::now() + Duration::from_secs(10);
    while !engine.is_dead() && Instant::now() < until {
        thread::yield_now();
    }
    assert!(engine.is_dead());
    assert_eq!(engine.inspect(|worker| worker.nic().objects().qps), 0);
    assert_eq!(engine.adjust(|_| 1), None);
}

/// Otherwise a post that finds the worker locked by a look would wait for the engine thread.
#[test]
fn bell_rung_during_a_look_is_heard() {
    let shared = Shared::new(worker(), false, Clock::new()).unwrap();
    let guard = shared.lock_to_inspect();
    shared.doorbells.ring_silently(QpIndex(0));
    assert!(shared.try_turn().is_none());
    drop(guard);
    assert!(!shared.doorbells.any());
}

/// A yield would last until a competing program has used up its time slice.
#[test]
fn crowded_caller_sleeps_until_the_worker_is_free() {
    let shared = Shared::new(worker(), false, Clock::new()).unwrap();
    let now = shared.clock.now();
    let returned = AtomicBool::new(false);
    let held = shared.lock_to_inspect();
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
    assert!(!handoff.had_substitute_recently(0));
    assert!(handoff.begin_substituting(0));
    assert!(handoff.had_substitute_recently(5) && !handoff.had_substitute_recently(WaitPolicy::RECENT_NS));
    handoff.distrust_substitutes();
    assert!(!handoff.had_substitute_recently(5));
}

#[test]
fn trust_regained_is_no_more_than_at_first() {
    let handoff = Handoff::new();
    (0..8).for_each(|_| handoff.backoff_ended(0, true));
    (0..16).for_each(|_| handoff.backoff_ended(0, false));
    let polls_until = WaitPolicy::TRUST_AFTER_NS - 1;
    assert_eq!(handoff.earned(polls_until), None, "it has polled for less than `TRUST_AFTER_NS`");
    assert!(handoff.earned(polls_until + 1).is_some());
}
