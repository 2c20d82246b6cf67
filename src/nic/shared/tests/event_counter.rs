//! Event counters of completion channels.

use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::shared::EventCounter;

fn counter() -> EventCounter {
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
    EventCounter::new(Arc::new(EventFd::from_flags(flags).unwrap()))
}

#[test]
fn raised_events_are_counted_in_the_descriptor() {
    let counter = counter();
    counter.raise();
    counter.clone().raise();
    assert!(counter.take() && counter.take() && !counter.take());
}

#[test]
fn first_caught_event_is_taken_others_are_counted() {
    let counter = counter();
    assert_eq!(counter.catch(|| 7), (false, 7));
    assert!(counter.catch(|| counter.raise()).0);
    assert!(!counter.take());
    let three = || (0..3).for_each(|_| counter.raise());
    assert!(counter.catch(three).0);
    assert!(counter.take() && counter.take() && !counter.take());
    counter.raise();
    assert!(counter.take());
}

#[test]
fn nested_catch_leaves_events_to_the_outer() {
    let counter = counter();
    let inner = counter.catch(|| counter.catch(|| counter.raise()));
    assert_eq!(inner, (true, (false, ())));
    assert!(!counter.take());
}
