//! A NIC's notifier wakes its clients, and the worker does not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::completion_queue::{CompletionRing, POLLERS_SLEEP};
use super::event_counter::EventCounter;
use super::notifier::{Notifier, Wake};

fn event() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a descriptor")
}

fn counter(fd: &EventFd, notifier: &Notifier) -> io::Result<EventCounter> {
    let copy = fd.as_fd().try_clone_to_owned().expect("a descriptor");
    EventCounter::of(copy).expect("an eventfd").raised_by(notifier)
}

#[test]
fn worker_leaves_descriptors_of_clients_alone() {
    let notifier = Notifier::new(8).expect("memory");
    let fds = [event(), event()];
    let counters = fds.each_ref().map(|fd| counter(fd, &notifier).expect("a place"));
    let ring = CompletionRing::new(4).expect("memory").woken_by(&notifier).expect("a place");
    for _ in 0..3 {
        counters[1].raise();
    }
    ring.word(POLLERS_SLEEP).store(1, Relaxed);
    ring.wake_pollers();
    notifier.mark_messages();
    assert_eq!(fds.each_ref().map(EventFd::read), [Err(Errno::EAGAIN); 2], "nothing is woken yet");
    let mut seen = Vec::new();
    assert!(notifier.sleep(|_| panic!("it is due")));
    notifier.take(|wake| {
        wake.run();
        seen.push(format!("{wake:?}").split(['(', ' ']).next().map(str::to_owned));
    });
    let of = |name: &str| seen.iter().filter(|seen| seen.as_deref() == Some(name)).count();
    assert_eq!([of("Messages"), of("Event"), of("Pollers")], [1, 3, 1], "{seen:?}");
    assert_eq!(fds.each_ref().map(EventFd::read), [Err(Errno::EAGAIN), Ok(3)]);
    notifier.take(|wake| panic!("{wake:?}"));
}

#[test]
fn place_of_dropped_target_is_used_again() {
    let notifier = Notifier::new(2).expect("memory");
    let fds = [event(), event(), event()];
    let [first, second] = [0, 1].map(|at: usize| counter(&fds[at], &notifier).expect("a place"));
    let full = counter(&fds[2], &notifier).expect_err("two are all").to_string();
    assert!(full.contains("2 completion queues and channels"), "{full}");
    first.raise();
    drop(first);
    let third = counter(&fds[2], &notifier).expect("the first one's place");
    notifier.take(|wake| panic!("the mark of another target: {wake:?}"));
    third.raise();
    second.raise();
    notifier.take(Wake::run);
    assert_eq!(fds.each_ref().map(|fd| fd.read().is_ok()), [false, true, true]);
}

#[test]
fn sleeping_notifier_is_woken_and_ends() {
    let notifier = Notifier::new(1).expect("memory");
    let fd = event();
    let counter = counter(&fd, &notifier).expect("a place");
    let waits = |fd: BorrowedFd<'_>| {
        let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE) == Ok(1)
    };
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| {
            let mut woken = 0;
            while notifier.sleep(waits) {
                notifier.take(|wake| {
                    wake.run();
                    woken += 1;
                });
            }
            woken
        });
        for _ in 0..100 {
            counter.raise();
            while fd.read().is_err() {
                std::thread::yield_now();
            }
        }
        notifier.end();
        assert_eq!(woken.join().expect("its end"), 100);
    });
    assert!(!notifier.sleep(waits), "it has ended");
}
