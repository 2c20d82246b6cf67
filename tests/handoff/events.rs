//! Catching the events that a thread's own pass raises: `src/nic/shared/event_counter.rs`.

use std::sync::Arc;

use loom::thread;
use nix::sys::eventfd::EfdFlags;

use crate::check;
use crate::descriptor::EventFd;
use crate::event_counter::EventCounter;

fn counter() -> EventCounter {
    EventCounter::new(Arc::new(EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).unwrap()))
}

fn remaining(counter: &EventCounter) -> u32 {
    std::iter::from_fn(|| counter.take().then_some(1)).sum()
}

#[test]
fn concurrent_event_is_caught_or_counted() {
    check(|| {
        let counter = counter();
        let other = {
            let counter = counter.clone();
            thread::spawn(move || counter.raise())
        };
        let (caught, ()) = counter.catch(|| counter.raise());
        other.join().unwrap();
        assert!(caught, "its own was there to be caught");
        assert_eq!(remaining(&counter), 1);
    });
}

#[test]
fn two_catchers_share_no_event() {
    check(|| {
        let counter = counter();
        let other = {
            let counter = counter.clone();
            thread::spawn(move || u32::from(counter.catch(|| counter.raise()).0))
        };
        let caught = u32::from(counter.catch(|| counter.raise()).0);
        assert_eq!(caught + other.join().unwrap() + remaining(&counter), 2);
    });
}

#[test]
fn descriptor_delivers_uncaught_events() {
    check(|| {
        let counter = counter();
        counter.raise();
        let other = {
            let counter = counter.clone();
            thread::spawn(move || u32::from(counter.take()))
        };
        let caught = u32::from(counter.catch(|| counter.raise()).0);
        assert_eq!(caught + other.join().unwrap() + remaining(&counter), 2);
    });
}
