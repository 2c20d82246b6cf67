//! The doorbell pages of the clients of a NIC: one for each client.
//!
//! A client with a page can also clear bells in it, so no two clients share one. A bell names a QP by its index in the NIC's table.
//! The NIC honours it only if that QP was made to be rung by this page ([`SendRing::rung_by`](super::SendRing::rung_by)). Each page
//! has a budget in each pass, so that a client that rings for all its QPs takes no more of the worker's time than any other.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Doorbells;
pub use super::doorbell::DoorbellsId;
use crate::verbs::QpIndex;

/// The doorbell page of a client.
#[derive(Clone, Debug)]
struct Page {
    id: DoorbellsId,
    bells: Doorbells,
    /// The index to begin at in the next pass.
    next: Arc<AtomicU32>,
}

/// The current set of pages.
#[derive(Debug, Default)]
struct Pages {
    all: Vec<Page>,
    next: u64,
}

/// The doorbell pages of all clients; see the module's page. A clone is another handle to the same set.
#[derive(Clone, Debug, Default)]
pub struct ClientDoorbells {
    is_used: Arc<AtomicBool>,
    pages: Arc<Mutex<Arc<Pages>>>,
}

impl ClientDoorbells {
    /// Adds a page.
    pub fn add(&self, bells: Doorbells) -> DoorbellsId {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let id = DoorbellsId(pages.next);
        let all = pages.all.iter().cloned().chain([Page { id, bells, next: Arc::default() }]).collect();
        *pages = Arc::new(Pages { all, next: id.0 + 1 });
        self.is_used.store(true, Relaxed);
        id
    }

    /// Removes a page.
    pub fn remove(&self, id: DoorbellsId) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = pages.all.iter().filter(|page| page.id != id).cloned().collect();
        self.is_used.store(!all.is_empty(), Relaxed);
        *pages = Arc::new(Pages { all, next: pages.next });
    }

    /// Number of pages.
    #[cfg(any(test, feature = "testing"))]
    pub fn pages_heard(&self) -> usize {
        self.pages().map_or(0, |pages| pages.all.len())
    }

    fn pages(&self) -> Option<Arc<Pages>> {
        // A page is added between two passes, and rung only after that.
        let is_used = self.is_used.load(Relaxed);
        is_used.then(|| Arc::clone(&self.pages.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The worker's side: takes bells of each page until their cost reaches `budget`. `each` gets the page and the QP's index, and
    /// returns the cost, and true if the bell is to ring again. Returns true if any bell is still rung.
    pub fn take(&self, budget: usize, mut each: impl FnMut(DoorbellsId, QpIndex) -> (usize, bool)) -> bool {
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

    /// The worker's side: rings a bell of a page.
    pub fn ring(&self, id: DoorbellsId, index: QpIndex) {
        let pages = self.pages();
        let page = pages.iter().flat_map(|pages| &pages.all).find(|page| page.id == id);
        page.map(|page| page.bells.ring_silently(index));
    }

    /// The worker's side: true if any bell is rung.
    pub fn any(&self) -> bool {
        self.pages().is_some_and(|pages| pages.all.iter().any(|page| page.bells.any()))
    }

    /// The worker's side: from now on a ring writes one of the eventfds of the result. Caller must check the bells once more before
    /// it sleeps.
    pub fn sleep_begins(&self) -> ClientSleep {
        let pages = self.pages();
        let sleep = ClientSleep(pages);
        sleep.bells().for_each(Doorbells::sleep_begins);
        sleep
    }
}

/// The pages by which a sleeping worker is woken: those that existed when it fell asleep.
#[derive(Debug)]
#[must_use = "a sleep has to end"]
pub struct ClientSleep(Option<Arc<Pages>>);

impl ClientSleep {
    fn bells(&self) -> impl Iterator<Item = &Doorbells> {
        self.0.iter().flat_map(|pages| &pages.all).map(|page| &page.bells)
    }

    /// The eventfds that wake the worker, one for each page.
    pub fn wake_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bells().map(|bells| bells.wake_fd().as_fd())
    }

    /// Ends the sleep. `rang` tells by index which of the descriptors was readable.
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
    fn removed_page_neither_rings_nor_wakes() {
        let guests = ClientDoorbells::default();
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
    fn every_bell_is_heard_within_the_budget() {
        let guests = ClientDoorbells::default();
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
    fn eventfd_that_blocks_is_cleared_without_waiting() {
        let (bells, [_page, rung], _held) = Doorbells::for_client(64).expect("a page");
        let guests = ClientDoorbells::default();
        guests.add(bells);
        // The flags belong to the open file, so to all duplicates.
        fcntl(&rung, FcntlArg::F_SETFL(OFlag::empty())).expect("its own");
        for _ in 0..3 {
            // Nothing is left to read: the client has read it.
            guests.sleep_begins().ends(|_| true);
        }
    }

    #[test]
    fn eventfd_that_is_full_wakes_once() {
        let (bells, [_page, rung], _held) = Doorbells::for_client(64).expect("a page");
        let guests = ClientDoorbells::default();
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
