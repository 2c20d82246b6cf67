//! The doorbell pages of the clients of a NIC: one for each client.
//!
//! A client with a page can also clear bells in it, so no two clients share one. A bell names a QP by its index in the
//! NIC's table. The NIC honours it only if that QP was made to be rung by this page
//! ([`SendRing::rung_by`](super::SendRing::rung_by)). Each page has a budget in each pass, so that a client that rings
//! for all its QPs takes no more of the worker's time than any other.
//!
//! A client wakes a sleeping worker by an eventfd of the page. Reading it would visit all threads that the client has
//! waiting for it, so it is never read: an epoll set reports each write once (`EPOLLET`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Doorbells;
pub use super::doorbell::DoorbellsId;
use crate::verbs::QpIndex;
use roxie_base::threads::lock;

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
    /// The eventfds of all pages. `None`: there are no pages.
    wakes: Option<Arc<Epoll>>,
}

/// Wake-ups that one system call takes.
const AT_ONCE: usize = 16;

/// The doorbell pages of all clients; see the module's page. A clone is another handle to the same set.
#[derive(Clone, Debug, Default)]
pub struct ClientDoorbells {
    is_used: Arc<AtomicBool>,
    pages: Arc<Mutex<Arc<Pages>>>,
}

impl ClientDoorbells {
    /// Adds a page.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn add(&self, bells: Doorbells) -> io::Result<DoorbellsId> {
        let mut pages = lock(&self.pages);
        let wakes = match &pages.wakes {
            Some(wakes) => Arc::clone(wakes),
            None => Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?),
        };
        wakes.add(bells.wake_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        let id = DoorbellsId(pages.next);
        let all = pages.all.iter().cloned().chain([Page { id, bells, next: Arc::default() }]).collect();
        *pages = Arc::new(Pages { all, next: id.0 + 1, wakes: Some(wakes) });
        self.is_used.store(true, Relaxed);
        Ok(id)
    }

    /// Removes a page.
    pub fn remove(&self, id: DoorbellsId) {
        let mut pages = lock(&self.pages);
        let (removed, all): (Vec<_>, Vec<_>) = pages.all.iter().cloned().partition(|page| page.id == id);
        for page in removed {
            // Fails only if the eventfd is not in the set.
            let _ = pages.wakes.as_ref().map(|wakes| wakes.delete(page.bells.wake_fd()));
        }
        self.is_used.store(!all.is_empty(), Relaxed);
        let wakes = pages.wakes.clone().filter(|_| !all.is_empty());
        *pages = Arc::new(Pages { all, next: pages.next, wakes });
    }

    /// Number of pages.
    #[cfg(any(test, feature = "testing"))]
    pub fn page_count(&self) -> usize {
        self.pages().map_or(0, |pages| pages.all.len())
    }

    fn pages(&self) -> Option<Arc<Pages>> {
        // A page is added between two passes, and rung only after that.
        let is_used = self.is_used.load(Relaxed);
        is_used.then(|| Arc::clone(&lock(&self.pages)))
    }

    /// The worker's side: takes bells of each page until their cost reaches `budget`. `each` gets the page and the QP's
    /// index, and returns the cost, and true if the bell is to ring again. Returns true if any bell is still rung.
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

    /// The worker's side: from now on a ring writes one of the eventfds of the result. Caller must check the bells once
    /// more before it sleeps.
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

    /// The descriptor that becomes readable to wake the worker, if there are pages.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref()?.wakes.as_ref().map(|wakes| wakes.0.as_fd())
    }

    /// Ends the sleep. `rang`: the descriptor was readable, and is cleared.
    pub fn ends(&self, rang: bool) {
        self.bells().for_each(|bells| bells.sleep_ends(false));
        if !rang {
            return;
        }
        let Some(wakes) = self.0.as_ref().and_then(|pages| pages.wakes.as_ref()) else { return };
        let mut taken = [EpollEvent::empty(); AT_ONCE];
        // Clients that keep writing end no other sleep than the next one.
        for _ in 0..=self.bells().count() / AT_ONCE {
            if wakes.wait(&mut taken, EpollTimeout::ZERO) != Ok(AT_ONCE) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn removed_page_neither_rings_nor_wakes() {
        let doorbells = ClientDoorbells::default();
        let pages = [0, 1].map(|_| Doorbells::new(64).expect("a page"));
        let rung = || {
            let mut all = Vec::new();
            doorbells.take(usize::MAX, |_, index| {
                all.push(index.0);
                (1, false)
            });
            all
        };
        let [a, b] = [0, 1].map(|at: usize| doorbells.add(pages[at].clone()).expect("a descriptor"));
        pages[1].ring(QpIndex(5));
        pages[0].ring(QpIndex(7));
        assert!(doorbells.any());
        assert_eq!((rung(), rung()), (vec![7, 5], vec![]));

        let sleep = doorbells.sleep_begins();
        assert!(!is_readable(&sleep));
        pages[1].ring(QpIndex(3));
        assert!(is_readable(&sleep));
        sleep.ends(true);
        assert!(!is_readable(&sleep), "its wake-up was taken");
        doorbells.remove(a);
        let sleep = doorbells.sleep_begins();
        pages[0].ring(QpIndex(9));
        assert!(!is_readable(&sleep));
        sleep.ends(false);
        assert_eq!(rung(), [3]);
        doorbells.remove(b);
        assert!(!doorbells.any());
    }

    #[test]
    fn every_bell_is_heard_within_the_budget() {
        let doorbells = ClientDoorbells::default();
        let page = Doorbells::new(300).expect("a page");
        doorbells.add(page.clone()).expect("a descriptor");
        (0..300).for_each(|index| page.ring(QpIndex(index)));
        let mut visits = [0; 300];
        for _ in 0..6 {
            let mut cost = 0;
            let more = doorbells.take(64, |_, index| {
                visits[index.0 as usize] += 1;
                cost += 2;
                (2, index.0 < 200)
            });
            assert!(more && cost == 64, "{cost}");
        }
        assert!(visits[..64].iter().all(|times| *times == 1), "{visits:?}");
        assert!(visits[64..192].iter().all(|times| *times == 1), "{visits:?}");
        for again in [true, false] {
            for _ in 0..20 {
                doorbells.take(64, |_, index| {
                    visits[index.0 as usize] += 1;
                    (1, again && index.0 < 200)
                });
            }
        }
        assert!(visits.iter().all(|times| *times > 0), "{visits:?}");
        assert!(!doorbells.any());
    }

    #[test]
    fn eventfd_of_client_wakes_and_is_not_read() {
        const ROUNDS: u64 = 3 * AT_ONCE as u64;
        let doorbells = ClientDoorbells::default();
        let pages: Vec<_> = (0..2 * AT_ONCE + 3)
            .map(|_| {
                let (bells, [_page, rung], _held) = Doorbells::for_client(64).expect("a page");
                doorbells.add(bells).expect("a descriptor");
                EventFdOfClient(rung)
            })
            .collect();
        for round in 1..=ROUNDS {
            let sleep = doorbells.sleep_begins();
            assert!(!is_readable(&sleep), "round {round}");
            pages.iter().for_each(|page| page.add(1));
            assert!(is_readable(&sleep));
            sleep.ends(true);
        }
        // A full counter takes no more, so its client wakes nobody any more.
        pages[0].add(u64::MAX - 1 - ROUNDS);
        let sleep = doorbells.sleep_begins();
        assert!(is_readable(&sleep));
        sleep.ends(true);
        let sleep = doorbells.sleep_begins();
        assert!(!is_readable(&sleep));
        pages[1].add(1);
        assert!(is_readable(&sleep), "others do");
        sleep.ends(true);
    }

    struct EventFdOfClient(std::os::fd::OwnedFd);

    impl EventFdOfClient {
        fn add(&self, count: u64) {
            assert_eq!(nix::unistd::write(&self.0, &count.to_ne_bytes()), Ok(8));
        }
    }

    fn is_readable(sleep: &ClientSleep) -> bool {
        let fd = sleep.wake_fd().expect("pages");
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).expect("a descriptor") > 0
    }
}
