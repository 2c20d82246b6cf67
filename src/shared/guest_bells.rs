//! The doorbell pages of processes that a NIC in another process serves: one of each.
//!
//! Whoever has a page can take bells back that others rang, so none is for two. A bell names a QP by its place
//! in the NIC's table. To ring that of somebody else's does no harm: the NIC looks into that queue, and finds what its owner posted.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Doorbells;
use crate::verbs::QpIndex;

/// Names a page that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestId(u64);

/// The pages at a time.
#[derive(Debug, Default)]
struct Pages {
    all: Vec<(GuestId, Doorbells)>,
    next: u64,
}

/// See the module's page. Cloning it gives another handle to the same one.
#[derive(Clone, Debug, Default)]
pub struct GuestBells {
    is_used: Arc<AtomicBool>,
    pages: Arc<Mutex<Arc<Pages>>>,
}

impl GuestBells {
    /// Hears a page more from now on.
    pub fn add(&self, bells: Doorbells) -> GuestId {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let id = GuestId(pages.next);
        let all = pages.all.iter().cloned().chain([(id, bells)]).collect();
        *pages = Arc::new(Pages { all, next: id.0 + 1 });
        self.is_used.store(true, Relaxed);
        id
    }

    /// Hears it no more.
    pub fn remove(&self, id: GuestId) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = pages.all.iter().filter(|(other, _)| *other != id).cloned().collect();
        self.is_used.store(!all.is_empty(), Relaxed);
        *pages = Arc::new(Pages { all, next: pages.next });
    }

    fn pages(&self) -> Option<Arc<Pages>> {
        // A page is added between two passes, and rung after that.
        let is_used = self.is_used.load(Relaxed);
        is_used.then(|| Arc::clone(&self.pages.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The worker's side: takes all bells, calling `each` for every QP that rang.
    pub fn take(&self, mut each: impl FnMut(QpIndex)) {
        if let Some(pages) = self.pages() {
            pages.all.iter().for_each(|(_, bells)| bells.take(&mut each));
        }
    }

    /// The worker's side: true if some bell rang.
    pub fn any(&self) -> bool {
        self.pages().is_some_and(|pages| pages.all.iter().any(|(_, bells)| bells.any()))
    }

    /// The worker's side: from now on a ring writes one of the eventfds of what is returned. Look once more before sleeping on them.
    pub fn sleep_begins(&self) -> GuestSleep {
        let pages = self.pages();
        let sleep = GuestSleep(pages);
        sleep.bells().for_each(Doorbells::sleep_begins);
        sleep
    }
}

/// By whom a worker that sleeps is rung: by those who were there when it fell asleep.
#[derive(Debug)]
#[must_use = "a sleep has to end"]
pub struct GuestSleep(Option<Arc<Pages>>);

impl GuestSleep {
    fn bells(&self) -> impl Iterator<Item = &Doorbells> {
        self.0.iter().flat_map(|pages| &pages.all).map(|(_, bells)| bells)
    }

    /// Readable when the worker is to wake: one of each page.
    pub fn wake_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bells().map(|bells| bells.wake_fd().as_fd())
    }

    /// The worker is awake again. `rang` tells which of the descriptors was readable, by their order.
    pub fn ends(&self, rang: impl Fn(usize) -> bool) {
        self.bells().enumerate().for_each(|(at, bells)| bells.sleep_ends(rang(at)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn bells_of_all_pages_are_heard_and_wake_but_of_those_that_were_removed() {
        let guests = GuestBells::default();
        let pages = [0, 1].map(|_| Doorbells::new(64).expect("a page"));
        let heard = || {
            let mut all = Vec::new();
            guests.take(|index| all.push(index.0));
            all
        };
        let [a, b] = [0, 1].map(|at: usize| guests.add(pages[at].clone()));
        pages[1].ring(QpIndex(5));
        pages[0].ring(QpIndex(7));
        assert!(guests.any());
        assert_eq!((heard(), heard()), (vec![7, 5], vec![]));

        let sleep = guests.sleep_begins();
        pages[1].ring(QpIndex(3));
        sleep.ends(|at| at == 1);
        assert_eq!(sleep.wake_fds().count(), 2);
        assert!(pages[1].wake_fd().read().is_err(), "its wake-up was taken");
        guests.remove(a);
        pages[0].ring(QpIndex(9));
        assert_eq!(heard(), [3]);
        guests.remove(b);
        assert!(!guests.any() && guests.sleep_begins().wake_fds().next().is_none());
    }

    #[test]
    fn eventfd_that_blocks_is_cleared_without_waiting() {
        let (bells, [_page, rung], _held) = Doorbells::for_guest(64).expect("a page");
        let guests = GuestBells::default();
        guests.add(bells);
        // Flags are those of all duplicates.
        fcntl(&rung, FcntlArg::F_SETFL(OFlag::empty())).expect("its own");
        for _ in 0..3 {
            // Nothing is to be read: its owner has read it.
            guests.sleep_begins().ends(|_| true);
        }
    }

    #[test]
    fn eventfd_that_is_full_wakes_once() {
        let (bells, [_page, rung], _held) = Doorbells::for_guest(64).expect("a page");
        let guests = GuestBells::default();
        guests.add(bells);
        std::fs::File::from(rung).write_all(&(u64::MAX - 1).to_ne_bytes()).expect("room");
        let sleep = guests.sleep_begins();
        let is_readable = || {
            let mut fds: Vec<_> = sleep.wake_fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::ZERO).expect("a descriptor") > 0
        };
        assert!(is_readable());
        sleep.ends(|_| true);
        assert!(!is_readable());
    }
}
