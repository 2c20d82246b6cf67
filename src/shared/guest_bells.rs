//! The doorbell pages of processes that a NIC in another process serves: one of each.
//!
//! Whoever has a page can take bells back that others rang, so none is for two. A bell names a QP by its place
//! in the NIC's table, and is heard if that QP was made to be rung by this page ([`SendRing::rung_by`](super::SendRing::rung_by)). In each
//! pass a page has a budget, so that a client that rings for all it has takes no more of the worker's time than another.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Doorbells;
pub use super::doorbell::GuestId;
use crate::verbs::QpIndex;

/// A page, and whether its owner may still ring: it holds its end of the pipe.
#[derive(Clone, Debug)]
struct Page {
    id: GuestId,
    bells: Doorbells,
    may_ring: Arc<AtomicBool>,
    /// The place to begin at.
    next: Arc<AtomicU32>,
}

/// The pages at a time.
#[derive(Debug, Default)]
struct Pages {
    all: Vec<Page>,
    next: u64,
}

/// The state of a descriptor after a worker slept on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rang {
    /// Nothing.
    No,
    /// Readable.
    Yes,
    /// The other end is closed (`POLLHUP`, `POLLERR`). Every poll of it would return at once, so no worker sleeps on it again.
    HungUp,
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
        let page = Page { id, bells, may_ring: Arc::new(AtomicBool::new(true)), next: Arc::default() };
        let all = pages.all.iter().cloned().chain([page]).collect();
        *pages = Arc::new(Pages { all, next: id.0 + 1 });
        self.is_used.store(true, Relaxed);
        id
    }

    /// Hears it no more.
    pub fn remove(&self, id: GuestId) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = pages.all.iter().filter(|page| page.id != id).cloned().collect();
        self.is_used.store(!all.is_empty(), Relaxed);
        *pages = Arc::new(Pages { all, next: pages.next });
    }

    /// Pages that are heard.
    #[cfg(test)]
    pub(crate) fn pages_heard(&self) -> usize {
        self.pages().map_or(0, |pages| pages.all.len())
    }

    fn pages(&self) -> Option<Arc<Pages>> {
        // A page is added between two passes, and rung after that.
        let is_used = self.is_used.load(Relaxed);
        is_used.then(|| Arc::clone(&self.pages.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The worker's side: takes bells of each page, until what they cost comes to `budget`. `each` is told the page and the QP's place, and
    /// returns the cost, and true if the bell is to ring again. Returns true if some bell rings.
    pub fn take(&self, budget: usize, mut each: impl FnMut(GuestId, QpIndex) -> (usize, bool)) -> bool {
        let Some(pages) = self.pages() else { return false };
        pages.all.iter().fold(false, |more, page| {
            let first = page.next.load(Relaxed);
            let next = page.bells.take_some(first, budget, |index| {
                let (cost, again) = each(page.id, index);
                if again {
                    page.bells.ring_silently(index);
                }
                cost
            });
            page.next.store(next, Relaxed);
            page.bells.any() || more
        })
    }

    /// The worker's side: rings a page's bell.
    pub fn ring(&self, id: GuestId, index: QpIndex) {
        let pages = self.pages();
        let page = pages.iter().flat_map(|pages| &pages.all).find(|page| page.id == id);
        page.map(|page| page.bells.ring_silently(index));
    }

    /// The worker's side: true if some bell rang.
    pub fn any(&self) -> bool {
        self.pages().is_some_and(|pages| pages.all.iter().any(|page| page.bells.any()))
    }

    /// The worker's side: from now on a ring writes one of the eventfds of what is returned. Look once more before sleeping on them.
    pub fn sleep_begins(&self) -> GuestSleep {
        let pages = self.pages();
        pages.iter().flat_map(|pages| &pages.all).for_each(|page| page.bells.sleep_begins());
        GuestSleep(pages)
    }
}

/// By whom a worker that sleeps is rung: by those who were there when it fell asleep.
#[derive(Debug)]
#[must_use = "a sleep has to end"]
pub struct GuestSleep(Option<Arc<Pages>>);

impl GuestSleep {
    fn pages(&self) -> impl Iterator<Item = &Page> {
        self.0.iter().flat_map(|pages| &pages.all)
    }

    /// Readable when the worker is to wake: one of each page whose owner may ring.
    pub fn wake_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pages().filter(|page| page.may_ring.load(Relaxed)).map(|page| page.bells.wake_fd().as_fd())
    }

    /// The worker is awake again. `rang` tells what was found at each of the descriptors, in their order.
    pub fn ends(&self, mut rang: impl FnMut(usize) -> Rang) {
        let mut at = 0;
        for page in self.pages() {
            let may_ring = page.may_ring.load(Relaxed);
            let found = if may_ring { rang(at) } else { Rang::No };
            at += usize::from(may_ring);
            if found == Rang::HungUp {
                page.may_ring.store(false, Relaxed);
            }
            page.bells.sleep_ends(found == Rang::Yes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_of_all_pages_are_heard_and_wake_but_of_those_that_were_removed() {
        let guests = GuestBells::default();
        let pages = [0, 1].map(|_| Doorbells::new(64).expect("a page"));
        let heard = || {
            let mut all = Vec::new();
            guests.take(usize::MAX, |_, index| {
                all.push(index.0);
                (1, false)
            });
            all
        };
        let [a, b] = [0, 1].map(|at: usize| guests.add(pages[at].clone()));
        pages[1].ring(QpIndex(5));
        pages[0].ring(QpIndex(7));
        assert!(guests.any());
        assert_eq!((heard(), heard()), (vec![7, 5], vec![]));

        let sleep = guests.sleep_begins();
        pages[1].ring(QpIndex(3));
        sleep.ends(|at| if at == 1 { Rang::Yes } else { Rang::No });
        assert_eq!(sleep.wake_fds().count(), 2);
        assert!(pages[1].wake_fd().read().is_err(), "its wake-up was taken");
        guests.remove(a);
        pages[0].ring(QpIndex(9));
        assert_eq!(heard(), [3]);
        guests.remove(b);
        assert!(!guests.any() && guests.sleep_begins().wake_fds().next().is_none());
    }

    #[test]
    fn no_bell_waits_behind_louder_ones() {
        let guests = GuestBells::default();
        let page = Doorbells::new(300).expect("a page");
        guests.add(page.clone());
        (0..300).for_each(|index| page.ring(QpIndex(index)));
        let mut heard = [0; 300];
        for _ in 0..6 {
            let mut cost = 0;
            let more = guests.take(64, |_, index| {
                heard[index.0 as usize] += 1;
                cost += 2;
                (2, index.0 < 200)
            });
            assert!(more && cost == 64, "{cost}");
        }
        assert!(heard[..64].iter().all(|times| *times == 1), "{heard:?}");
        assert!(heard[64..192].iter().all(|times| *times == 1), "{heard:?}");
        for again in [true, false] {
            for _ in 0..20 {
                guests.take(64, |_, index| {
                    heard[index.0 as usize] += 1;
                    (1, again && index.0 < 200)
                });
            }
        }
        assert!(heard.iter().all(|times| *times > 0), "{heard:?}");
        assert!(!guests.any());
    }

    #[test]
    fn closed_pipe_is_slept_on_no_more() {
        let guests = GuestBells::default();
        let (bells, page_and_pipe, _) = Doorbells::for_guest(64).expect("a page");
        let (other, kept, _) = Doorbells::for_guest(64).expect("a page");
        guests.add(bells.clone());
        guests.add(other);
        drop(page_and_pipe);
        let sleep = guests.sleep_begins();
        assert_eq!(sleep.wake_fds().count(), 2);
        sleep.ends(|at| if at == 0 { Rang::HungUp } else { Rang::No });
        let sleep = guests.sleep_begins();
        assert_eq!(sleep.wake_fds().count(), 1, "the one whose owner may ring");
        sleep.ends(|_| Rang::No);
        bells.ring(QpIndex(3));
        assert!(guests.any(), "its bells are heard when the worker is awake");
        drop(kept);
    }
}
