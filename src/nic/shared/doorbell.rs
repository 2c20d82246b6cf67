//! Doorbells: one bit for each QP, and a way to wake a sleeping worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::region::{HeldPages, LINE, Region};
use super::sync::{
    AtomicU64, EfdFlags, EventFd,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::verbs::QpIndex;

/// Identifies the doorbell page of a client of a NIC in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellsId(pub(super) u64);

const SLEEPING: usize = 0;
const SUMMARY: usize = LINE;

/// The doorbell page of one worker.
///
/// ```text
/// word 0      number of sleepers: if not 0, a ring also writes the eventfd
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
    /// Makes doorbells for `qps` QPs.
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn new(qps: u32) -> std::io::Result<Doorbells> {
        Ok(Doorbells::on(Region::new(Doorbells::size(qps))?, Arc::new(new_wake()?), qps))
    }

    /// As [`new`](Self::new), with a wake descriptor that other pages use too: for many workers that never sleep.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn with_wake(qps: u32, wake: Arc<EventFd>) -> std::io::Result<Doorbells> {
        Ok(Doorbells::on(Region::new(Doorbells::size(qps))?, wake, qps))
    }

    /// Makes a descriptor for [`with_wake`](Self::with_wake).
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn common_wake() -> std::io::Result<Arc<EventFd>> {
        new_wake().map(Arc::new)
    }

    /// As [`new`](Self::new), in shared memory. Also returns the descriptor by which another process maps the page;
    /// that process needs [`wake_fd`](Self::wake_fd) as well.
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn shared(qps: u32) -> std::io::Result<(Doorbells, OwnedFd)> {
        let (region, fd) = Region::shared(Doorbells::size(qps))?;
        Ok((Doorbells::on(region, Arc::new(new_wake()?), qps), fd))
    }

    /// As [`shared`](Self::shared), for an untrusted process. Also returns the descriptors to pass: the page, and a
    /// duplicate of the eventfd. Once the other process has mapped the page, the caller must [hold](HeldPages::hold)
    /// its memory, and only then take bells from it.
    ///
    /// # Errors
    /// If there is no memory or descriptor for them.
    pub fn for_client(qps: u32) -> std::io::Result<(Doorbells, [OwnedFd; 2], HeldPages)> {
        let (region, page, held) = Region::to_lend_and_hold(Doorbells::size(qps))?;
        let wake = new_wake()?;
        let rung = wake.as_fd().try_clone_to_owned()?;
        Ok((Doorbells::on(region, Arc::new(wake), qps), [page, rung], held))
    }

    /// Maps a page for `qps` QPs that another process made by [`shared`](Self::shared). `wake` is a duplicate of that
    /// page's [`wake_fd`](Self::wake_fd).
    ///
    /// # Errors
    /// If the descriptor is no such page, or the page has fewer bells.
    pub fn map(page: BorrowedFd<'_>, wake: OwnedFd, qps: u32) -> std::io::Result<Doorbells> {
        let region = Region::map(page, Doorbells::size(qps))?;
        // SAFETY: a wrapper for reads and writes of 8 bytes each. The other side answers for what the descriptor is; no
        // memory depends on it.
        let wake = unsafe { EventFd::from_owned_fd(wake) };
        Ok(Doorbells::on(region, Arc::new(wake), qps))
    }

    fn on(region: Arc<Region>, wake: Arc<EventFd>, qps: u32) -> Doorbells {
        let (summaries, bells) = Doorbells::counts(qps);
        Doorbells { region, wake, summaries, bells }
    }

    /// Words of the summary, and words of bells.
    fn counts(qps: u32) -> (usize, usize) {
        let bells = (qps as usize).div_ceil(64).max(1);
        (bells.div_ceil(64).next_multiple_of(LINE), bells)
    }

    /// Words of the page, in total.
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

    /// The application's side: tells the NIC of new work on a QP, and wakes the worker if it sleeps.
    pub fn ring(&self, qp: QpIndex) {
        if self.ring_silently(qp) {
            self.wake_if_sleeping();
        }
    }

    /// Rings without a wake-up, for a caller that runs the worker next. Returns false if the bell was rung already.
    pub fn ring_silently(&self, qp: QpIndex) -> bool {
        let index = qp.place() as usize;
        let word = index / 64;
        if word >= self.bells {
            return false;
        }
        let bit = 1 << (index % 64);
        if self.bell(word).fetch_or(bit, AcqRel) & bit != 0 {
            // The earlier caller sets the summary and wakes the worker. The worker that takes the bell then sees what
            // was published before this call, too.
            return false;
        }
        self.summary(word / 64).fetch_or(1 << (word % 64), Release);
        true
    }

    /// Wakes the worker if it sleeps, for example after a command.
    pub fn wake_if_sleeping(&self) {
        // Pairs with the fence in `sleep_begins`: either the worker's last check sees the bell, or this load sees that
        // the worker sleeps.
        fence(SeqCst);
        if self.region.words()[SLEEPING].load(Relaxed) != 0 {
            // A write fails only if the counter is full, and then a wake-up is pending.
            let _ = self.wake.write(1);
        }
    }

    /// The worker's side: takes all bells, and calls `each` with the index of every QP that rang.
    pub fn take(&self, mut each: impl FnMut(QpIndex)) {
        self.take_some(0, usize::MAX, |qp| {
            each(qp);
            1
        });
    }

    /// The worker's side: takes bells until their cost, the sum of what `each` returns, reaches `budget`. The other
    /// bells stay rung. Begins at index `first` and returns where to begin next time, so that every bell gets its turn.
    pub(super) fn take_some(&self, first: u32, budget: usize, mut each: impl FnMut(QpIndex) -> usize) -> u32 {
        let start = first as usize / 64;
        // Bits below `first` in its word of the bells, and bits below that word's in the summary.
        let (low, before) = ((1u64 << (first % 64)) - 1, (1u64 << (start % 64)) - 1);
        let last = before | u64::from(low != 0) << (start % 64);
        let mut remaining = budget;
        // The summary word that holds `first` is visited twice: at first without the indices below `first`, at last for
        // these alone.
        for step in 0..self.summaries + usize::from(last != 0) {
            let s = (start / 64 + step) % self.summaries;
            let now = if step == 0 { !before } else { u64::MAX };
            let mut words = take_bits(self.summary(s), if step == self.summaries { last } else { now });
            while words != 0 {
                let word = s * 64 + words.trailing_zeros() as usize;
                let of_first = if step == 0 { !low } else { low };
                let these = if word == start { of_first } else { u64::MAX };
                let is_there = word < self.bells;
                let mut bits = if is_there && remaining > 0 { take_bits(self.bell(word), these) } else { 0 };
                while bits != 0 && remaining > 0 {
                    let cost = each(QpIndex((word * 64) as u32 + bits.trailing_zeros()));
                    remaining = remaining.saturating_sub(cost.max(1));
                    bits &= bits - 1;
                }
                if remaining == 0 && is_there {
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

    /// The worker's side: true if any bell rang.
    pub fn any(&self) -> bool {
        (0..self.summaries).any(|s| self.summary(s).load(Acquire) != 0)
    }

    /// The worker's side: from now on a ring writes the eventfd. Caller must check the bells once more before it
    /// sleeps.
    pub fn sleep_begins(&self) {
        self.region.words()[SLEEPING].fetch_add(1, Relaxed);
        fence(SeqCst);
    }

    /// The worker's side: ends one [`sleep_begins`](Self::sleep_begins). `rang`: the descriptor was readable, and is
    /// cleared.
    pub fn sleep_ends(&self, rang: bool) {
        self.region.words()[SLEEPING].fetch_sub(1, Relaxed);
        if rang {
            // Fails if another thread has read it.
            let _ = self.wake.read();
        }
    }

    /// The descriptor that becomes readable to wake a sleeping worker.
    pub fn wake_fd(&self) -> &EventFd {
        &self.wake
    }
}

/// Clears the bits `these` of a word and returns those that were set.
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
