//! Application and engine in two processes, which share the memory of queues and buffers, the doorbell page, event
//! descriptors, and a socket for commands.
//!
//! The test program starts itself as the second process, with [`ENGINE`] in its environment and the socket as its
//! standard input. The second process runs the single test in which an engine ends.

mod application;
mod engine;
mod message;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use application::{Application, DEPTH, End, Failure, LENGTH, until};
use message::{ALLOC_PD, CREATE_CQ, CREATE_QP, Link, REGISTER};
use roxie::shared::work_queue::Payload;
use roxie::shared::{HostMemory, PostError};
use roxie::verbs::{Access, SendWr, WcOpcode, WrOpcode};

/// Environment variable of the second process.
const ENGINE: &str = "ROXIE_TEST_ENGINE";
/// The test that the second process runs.
const ENGINE_TEST: &str = "two_processes::engine_ends_with_its_application";

#[test]
fn engine_ends_with_its_application() {
    if std::env::var_os(ENGINE).is_some() {
        let input = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
        return engine::run(&Link(input));
    }
    // The application closes the socket without a message, and after an unfinished one.
    for first_words in [&[][..], &[ALLOC_PD, 0]] {
        let (ours, theirs) = Link::pair();
        if !first_words.is_empty() {
            ours.send(first_words, &[]).expect("a message");
        }
        drop(ours);
        engine::run(&theirs);
    }
}

/// Runs SEND, WRITE, READ and an atomic from one end to the other, with several packets each.
fn exchange(from: &End, to: &End, seed: usize) {
    let sent = from.fill(seed);
    to.fill(seed + 1);
    to.receive(77, 100, 9_000);
    from.post(WrOpcode::Send, 9_000, to, 0);
    let (done, received) = (from.completion(), to.completion());
    assert_eq!((done.opcode, done.qpn), (WcOpcode::Send, from.qpn));
    assert_eq!((received.opcode, received.wr_id, received.byte_len), (WcOpcode::Recv, 77, 9_000));
    assert_eq!(to.bytes(100, 9_000), sent[..9_000]);

    from.post(WrOpcode::Write, 5_000, to, 12_000);
    assert_eq!(from.completion().opcode, WcOpcode::Write);
    assert_eq!(to.bytes(12_000, 5_000), sent[..5_000]);

    let request = to.fill(seed + 2);
    from.post(WrOpcode::Read, 7_000, to, 3);
    assert_eq!(from.completion().opcode, WcOpcode::Read);
    assert_eq!(from.bytes(0, 7_000), request[3..7_003]);
    assert_eq!(from.bytes(7_000, 1_000), sent[7_000..8_000], "and no byte more");

    to.memory.write(64, &10u64.to_ne_bytes()).expect("inside");
    from.post(WrOpcode::FetchAdd, 8, to, 64);
    assert_eq!(from.completion().opcode, WcOpcode::FetchAdd);
    assert_eq!(from.bytes(0, 8), 10u64.to_ne_bytes());
    assert_eq!(to.bytes(64, 8), 15u64.to_ne_bytes());
    assert_eq!((from.cq.poll(), to.cq.poll()), (None, None));
}

#[test]
fn messages_pass_both_ways_between_processes() {
    let mut application = Application::start();
    let [a, b] = application.connection();
    // More rounds than the rings have slots.
    for round in 0..3 * DEPTH as usize {
        exchange(&a, &b, round);
        exchange(&b, &a, round + 1);
    }
}

#[test]
fn events_and_bells_wake_sleeping_processes() {
    let mut application = Application::start();
    let [a, b] = application.connection();
    const ROUNDS: u64 = 10;
    for round in 0..ROUNDS {
        b.receive(round, 0, 64);
        b.arm();
        until("the engine sleeps", || a.bell.engine_sleeps());
        a.post(WrOpcode::Send, 64, &b, 0);
        application.sleep(&b).expect("the engine lives");
        // The engine reads its descriptor only after a sleep that the descriptor has ended.
        until("the bell wakes the engine", || a.bell.is_awake());
        assert_eq!(b.take_events(), 1);
        assert!(b.cq.take_event(), "counted in the queue as well");
        assert_eq!(b.completion().wr_id, round);
        a.completion();
        assert_eq!(a.take_events(), 0, "no event was requested there");
    }
    // An engine that its timer wakes just before a post needs no bell.
    let wakeups = a.bell.wakeups();
    assert!(wakeups > ROUNDS / 2, "the bell woke the engine {wakeups} times in {ROUNDS} rounds");
}

#[test]
fn killed_engine_wakes_its_application() {
    let mut application = Application::start();
    let [a, b] = application.connection();
    exchange(&a, &b, 1);
    b.arm();
    application.kill();
    assert_eq!(application.sleep(&b), Err(Failure::Gone));
    assert_eq!(application.request(&[ALLOC_PD, 0], &[]).expect_err("there is no answer"), Failure::Gone);
    let full = (0..=DEPTH).find_map(|_| {
        a.ring();
        a.sends.post(&SendWr::default(), Payload::Sges(&[a.sge(0, 8)])).err()
    });
    assert_eq!(full, Some(PostError::QueueFull { outstanding: DEPTH, capacity: DEPTH }));
    assert_eq!((a.cq.poll(), b.cq.poll()), (None, None));
    assert_eq!(a.bytes(0, LENGTH).len(), LENGTH, "memory stays");
}

#[test]
fn requests_outside_shared_memory_are_refused() {
    let mut application = Application::start();
    let refused = |application: &Application, words: &[u64], fds: &[_]| match application.request(words, fds)
    {
        Err(Failure::Refused(why)) => why,
        other => panic!("{words:?}: {other:?}"),
    };
    let (_memory, fd) = HostMemory::shared(4096).expect("a page");
    let (fd, access) = (fd.as_fd(), u64::from(Access::LOCAL_WRITE.bits()));
    let pd = application.request(&[ALLOC_PD, 0], &[]).expect("a domain").words[0];
    let why = refused(&application, &[REGISTER, 0, pd, access, 0, 4097], &[fd]);
    assert!(why.contains("4096") && why.contains("4097"), "{why}");
    let (socket, _) = Link::pair();
    refused(&application, &[REGISTER, 0, pd, access, 0, 1], &[socket.as_fd()]);
    for (at, capacity) in [(u64::MAX - 7, 8), (3, 8), (1 << 16, 8), (0, u64::from(u32::MAX))] {
        refused(&application, &[CREATE_CQ, 0, at, capacity], &[]);
        refused(&application, &[CREATE_QP, 0, pd, 0, at, 0, capacity, 8, 1], &[]);
    }
    refused(&application, &[ALLOC_PD, 2], &[]);
    refused(&application, &[99, 0], &[]);
    let [a, b] = application.connection();
    exchange(&a, &b, 3);
}

#[test]
fn corrupt_queues_harm_only_their_application() {
    let mut application = Application::start();
    let [a, b] = application.connection();
    let mut word = 1u64;
    for _ in 0..50 {
        for end in [&a, &b] {
            let queues = [end.sends.words(), end.receives.words(), end.cq.words()];
            for place in queues.into_iter().flatten() {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                place.store(word >> (word & 63), Relaxed);
            }
            end.ring();
        }
        std::thread::yield_now();
    }
    let [c, d] = application.connection();
    exchange(&c, &d, 5);
    exchange(&d, &c, 6);
}
