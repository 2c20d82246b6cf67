//! The events of a completion channel, counted in a descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

use nix::sys::eventfd::EventFd;

/// Somebody catches what is raised.
const CATCHING: u32 = 1 << 31;

/// Counts events in a descriptor that is readable while there are any. Cloning it gives another handle to the same one.
///
/// A thread that turns the NIC because it waits for an event catches what its own pass raises: the descriptor would only have to be
/// written and read again.
#[derive(Clone, Debug)]
pub struct EventCounter {
    fd: Arc<EventFd>,
    /// [`CATCHING`], and how many were caught.
    caught: Arc<AtomicU32>,
}

impl EventCounter {
    /// Counts in `fd`, of which whoever waits takes them.
    pub fn new(fd: Arc<EventFd>) -> EventCounter {
        EventCounter { fd, caught: Arc::default() }
    }

    /// An event more.
    pub fn raise(&self) {
        let caught = |state: u32| (state & CATCHING != 0).then(|| state + 1);
        if self.caught.fetch_update(AcqRel, Relaxed, caught).is_err() {
            // Fails only if the counter is full, and then there are events enough to read.
            let _ = self.fd.write(1);
        }
    }

    /// What is raised while `pass` runs is caught. True if there was an event: the caller has taken it. More than one are
    /// left in the descriptor.
    pub fn catch<T>(&self, pass: impl FnOnce() -> T) -> (bool, T) {
        if self.caught.compare_exchange(0, CATCHING, AcqRel, Relaxed).is_err() {
            // Another thread does.
            return (false, pass());
        }
        let result = pass();
        let caught = self.caught.swap(0, AcqRel) & !CATCHING;
        if caught > 1 {
            let _ = self.fd.write(u64::from(caught) - 1);
        }
        (caught > 0, result)
    }

    /// Takes one count, or all, as the descriptor is made. False: there is none.
    pub fn take(&self) -> bool {
        self.fd.read().is_ok()
    }
}

impl AsFd for EventCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Arc<EventFd>> for EventCounter {
    fn from(fd: Arc<EventFd>) -> EventCounter {
        EventCounter::new(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EfdFlags;

    fn counter() -> EventCounter {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        EventCounter::new(Arc::new(EventFd::from_flags(flags).unwrap()))
    }

    #[test]
    fn what_is_raised_is_counted_in_the_descriptor() {
        let counter = counter();
        counter.raise();
        counter.clone().raise();
        assert!(counter.take() && counter.take() && !counter.take());
    }

    #[test]
    fn what_is_caught_is_taken_once_and_the_rest_is_counted() {
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
    fn of_two_who_catch_one_does() {
        let counter = counter();
        let inner = counter.catch(|| counter.catch(|| counter.raise()));
        assert_eq!(inner, (true, (false, ())));
        assert!(!counter.take());
    }
}
