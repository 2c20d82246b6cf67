//! Doorbells: one bit for each QP, and a way to wake a sleeping worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::region::{HeldPages, LINE, Region};
use super::sync::{
    AtomicU64, EfdFlags, EventFd,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    clear, fence,
};
use crate::verbs::QpIndex;

/// Names the doorbell page of a process that a NIC in another process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestId(pub(super) u64);

const SLEEPING: usize = 0;
const SUMMARY: usize = LINE;

/// The doorbell page of one worker.
///
/// ```text
/// word 0      how many sleep until somebody rings: if any, the next ring writes the eventfd
/// word 8 ..   summary: bit i set = word i of the bells may have bits
/// then        one bit for each QP
/// ```
#[derive(Clone, Debug)]
pub struct Doorbells {
    region: Arc<Region>,
    wake: Arc<EventFd>,
    summaries: usize,
    bells: usize,
}

impl Doorbells {
    /// Doorbells for `qps` QPs.
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn new(qps: u32) -> std::io::Result<Doorbells> {
        Ok(Doorbells::on(Region::new(Doorbells::size(qps))?, Arc::new(new_wake()?), qps))
    }

    /// The same with a descriptor that others have as well: for workers that never sleep, of which there are many.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn with_wake(qps: u32, wake: Arc<EventFd>) -> std::io::Result<Doorbells> {
        Ok(Doorbells::on(Region::new(Doorbells::size(qps))?, wake, qps))
    }

    /// A descriptor for [`with_wake`](Self::with_wake).
    ///
    /// # Errors
    /// If the system has none.
    pub fn common_wake() -> std::io::Result<Arc<EventFd>> {
        new_wake().map(Arc::new)
    }

    /// The same with the descriptor by which another process maps the page; it also needs that of [`wake_fd`](Self::wake_fd).
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn shared(qps: u32) -> std::io::Result<(Doorbells, OwnedFd)> {
        let (region, fd) = Region::shared(Doorbells::size(qps))?;
        Ok((Doorbells::on(region, Arc::new(new_wake()?), qps), fd))
    }

    /// The same for another process that is not trusted. What it gets: the page, and a duplicate of the eventfd. Its bells are not to be
    /// heard before the page's memory is [held](HeldPages::hold), once it has mapped it.
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn for_guest(qps: u32) -> std::io::Result<(Doorbells, [OwnedFd; 2], HeldPages)> {
        let (region, page, held) = Region::to_lend_and_hold(Doorbells::size(qps))?;
        let wake = new_wake()?;
        let rung = wake.as_fd().try_clone_to_owned()?;
        Ok((Doorbells::on(region, Arc::new(wake), qps), [page, rung], held))
    }

    /// Maps the page that another process made by [`shared`](Self::shared) for as many QPs; `wake` is what its
    /// [`wake_fd`](Self::wake_fd) names.
    ///
    /// # Errors
    /// If the descriptor of the page is of something else, or has fewer bells.
    pub fn map(page: BorrowedFd<'_>, wake: OwnedFd, qps: u32) -> std::io::Result<Doorbells> {
        let region = Region::map(page, Doorbells::size(qps))?;
        // SAFETY: a wrapper for reads and writes of 8 bytes each; that the descriptor is of a file on which that means
        // something is the other side's word, and no memory depends on it.
        let wake = unsafe { EventFd::from_owned_fd(wake) };
        Ok(Doorbells::on(region, Arc::new(wake), qps))
    }

    fn on(region: Arc<Region>, wake: Arc<EventFd>, qps: u32) -> Doorbells {
        let (summaries, bells) = Doorbells::counts(qps);
        Doorbells { region, wake, summaries, bells }
    }

    /// Words of summary, and of bells.
    fn counts(qps: u32) -> (usize, usize) {
        let bells = (qps as usize).div_ceil(64).max(1);
        (bells.div_ceil(64).next_multiple_of(LINE), bells)
    }

    /// Words of the page.
    fn size(qps: u32) -> usize {
        let (summaries, bells) = Doorbells::counts(qps);
        SUMMARY + summaries + bells
    }

    fn bell(&self, word: usize) -> &AtomicU64 {
        &self.region.words()[SUMMARY + self.summaries + word]
    }

    fn summary(&self, word: usize) -> &AtomicU64 {
        &self.region.words()[SUMMARY + word]
    }

    /// The application's side: the QP has new work. Wakes the worker if it sleeps.
    pub fn ring(&self, qp: QpIndex) {
        if self.ring_silently(qp) {
            self.wake_if_sleeping();
        }
    }

    /// The same for who turns the worker next, and wakes nobody. False: the bell had rung already.
    pub fn ring_silently(&self, qp: QpIndex) -> bool {
        let index = qp.place() as usize;
        let word = index / 64;
        if word >= self.bells {
            return false;
        }
        let bit = 1 << (index % 64);
        if self.bell(word).fetch_or(bit, AcqRel) & bit != 0 {
            // Whoever rang before sets the summary and wakes, and the worker that takes this bell sees what we
            // published before ringing.
            return false;
        }
        self.summary(word / 64).fetch_or(1 << (word % 64), Release);
        true
    }

    /// Wakes the worker if it sleeps; after a command was sent, for example.
    pub fn wake_if_sleeping(&self) {
        // Pairs with the fence in `sleep_begins`: either the worker's last look sees the bell, or this sees
        // that it sleeps.
        fence(SeqCst);
        if self.region.words()[SLEEPING].load(Relaxed) != 0 {
            // The counter can only be full if a wake-up is pending anyway.
            let _ = self.wake.write(1);
        }
    }

    /// The worker's side: takes all bells, calling `each` for every QP that rang, whose place it is told.
    pub fn take(&self, mut each: impl FnMut(QpIndex)) {
        self.take_some(0, usize::MAX, |qp| {
            each(qp);
            1
        });
    }

    /// The worker's side: takes bells until what they cost, as `each` says, comes to `budget`; the others ring on. It begins at place
    /// `first`, and returns the one to begin at next time, so that no bell waits for ever.
    pub(super) fn take_some(&self, first: u32, budget: usize, mut each: impl FnMut(QpIndex) -> usize) -> u32 {
        let start = first as usize / 64;
        // Places before `first` in its word of the bells, and words before that in its word of the summary.
        let (low, before) = ((1u64 << (first % 64)) - 1, (1u64 << (start % 64)) - 1);
        let last = before | u64::from(low != 0) << (start % 64);
        let mut left = budget;
        // The word of the summary that it begins in comes twice: at first without what lies before `first`, at last with that alone.
        for step in 0..self.summaries + usize::from(last != 0) {
            let s = (start / 64 + step) % self.summaries;
            let now = if step == 0 { !before } else { u64::MAX };
            let mut words = take_bits(self.summary(s), if step == self.summaries { last } else { now });
            while words != 0 {
                let word = s * 64 + words.trailing_zeros() as usize;
                let of_first = if step == 0 { !low } else { low };
                let these = if word == start { of_first } else { u64::MAX };
                let is_there = word < self.bells;
                let mut bits = if is_there && left > 0 { take_bits(self.bell(word), these) } else { 0 };
                while bits != 0 && left > 0 {
                    let cost = each(QpIndex((word * 64) as u32 + bits.trailing_zeros()));
                    left = left.saturating_sub(cost.max(1));
                    bits &= bits - 1;
                }
                if left == 0 && is_there {
                    self.bell(word).fetch_or(bits, AcqRel);
                    self.summary(s).fetch_or(words, Release);
                    return ((word * 64) as u32 + bits.trailing_zeros()) % (self.bells * 64) as u32;
                }
                if is_there && these != u64::MAX && self.bell(word).load(Acquire) != 0 {
                    self.summary(s).fetch_or(words & words.wrapping_neg(), Release);
                }
                words &= words - 1;
            }
        }
        first
    }

    /// The worker's side: true if some bell rang.
    pub fn any(&self) -> bool {
        (0..self.summaries).any(|s| self.summary(s).load(Acquire) != 0)
    }

    /// The worker's side: from now on a ring writes the eventfd. Look once more before sleeping.
    pub fn sleep_begins(&self) {
        self.region.words()[SLEEPING].fetch_add(1, Relaxed);
        fence(SeqCst);
    }

    /// The worker's side: one who slept is awake again, once for each [`sleep_begins`](Self::sleep_begins). `rang`: its
    /// descriptor was readable, which is over now.
    pub fn sleep_ends(&self, rang: bool) {
        self.region.words()[SLEEPING].fetch_sub(1, Relaxed);
        if rang {
            // One who may not be trusted may have made it a descriptor that blocks.
            clear(&self.wake);
        }
    }

    /// Becomes readable when a sleeping worker is to wake.
    pub fn wake_fd(&self) -> &EventFd {
        &self.wake
    }
}

/// Takes these bits of a word.
fn take_bits(word: &AtomicU64, these: u64) -> u64 {
    match word.load(Relaxed) & these {
        0 => 0,
        _ if these == u64::MAX => word.swap(0, AcqRel),
        _ => word.fetch_and(!these, AcqRel) & these,
    }
}

fn new_wake() -> std::io::Result<EventFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?)
}
