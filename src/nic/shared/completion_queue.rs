//! Completion queues.
//!
//! ```text
//! word 0       producer: completions written so far (any worker, compare-and-swap)
//! word 8       consumer: completions polled so far  (the application, Release)
//! word 9       armed: 0 no, 1 for a solicited completion, 2 for any
//! word 10      events raised and not yet taken
//! word 11      completions that the last event covered
//! word 12      1: the application sleeps until a completion is published
//! word 16 ..   slots: 0 wr_id | 1 byte_len:32 imm:32 | 2 time in ns on the device's clock
//!              3 status:8 opcode:8 flags:8 vendor:8 qpn:24 sequence:8
//! then         for each slot a word: src_qp:24 sl:8 pkey_index:16 vlan:16   if the flag SOURCED is set
//! ```
//!
//! A slot's sequence is the lap, from 1 and modulo 256, in which it was last filled. Its word is stored last, with
//! Release: several workers may produce, the application never sees half a slot, and zeroed memory reads as empty. A
//! slot is filled once in each lap, so that its sequence belongs to this lap or to the one before. Two slots are a
//! cache line; only datagrams have a source.

use std::sync::Arc;

use super::notifier::Due;
use super::region::{LINE, Region, Words, slots_for};
use super::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::verbs::{Qpn, Wc, WcFlags, WcOpcode, WcStatus};

const PRODUCER: usize = 0;
const CONSUMER: usize = LINE;
const ARMED: usize = LINE + 1;
const EVENTS: usize = LINE + 2;
const TOLD: usize = LINE + 3;
pub(super) const POLLERS_SLEEP: usize = LINE + 4;
const SLOTS: usize = 2 * LINE;
/// Attempts to claim slots while other workers claim some.
const TRIES: u32 = 1 << 10;
/// Words of a slot.
const SLOT: usize = 4;
const TIME: usize = 2;
const HEAD: usize = 3;
/// Flag of a head, next to [`WcFlags`]: the slot's source is not zero.
const SOURCED: u64 = 1 << (16 + 6);

/// The completions for which the application wants an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Armed {
    /// None.
    No = 0,
    /// The next solicited or failed completion.
    Solicited = 1,
    /// The next completion.
    Next = 2,
}

/// The queue was full: the completion is lost and the CQ is in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// A completion queue. A clone is another handle to the same memory.
#[derive(Clone, Debug)]
pub struct CompletionRing {
    memory: Words,
    mask: u64,
    /// Base-2 logarithm of the number of slots, the completions of a lap.
    lap_bits: u32,
    capacity: u64,
    /// Set if a notifier wakes the pollers.
    pub(super) due: Option<Arc<Due>>,
}

impl CompletionRing {
    /// Makes a queue of `capacity` completions.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(capacity: u32) -> std::io::Result<CompletionRing> {
        CompletionRing::on(&Region::new(CompletionRing::size(capacity))?, capacity)
    }

    /// Words of a queue of `capacity` completions.
    pub fn size(capacity: u32) -> usize {
        SLOTS + (slots_for(capacity) * (SLOT + 1)).next_multiple_of(LINE)
    }

    /// Returns a handle to the queue of `capacity` completions in `region`; other handles may exist. A zeroed region is
    /// an empty queue.
    ///
    /// # Errors
    /// If the region is too small.
    pub fn on(region: &Arc<Region>, capacity: u32) -> std::io::Result<CompletionRing> {
        let region = region.part(0, CompletionRing::size(capacity))?;
        let slots = slots_for(capacity) as u64;
        let (mask, lap_bits) = (slots - 1, slots.trailing_zeros());
        let capacity = u64::from(capacity.max(1));
        Ok(CompletionRing { memory: region.into(), mask, lap_bits, capacity, due: None })
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64] {
        self.slot_of(self.memory.words(), position)
    }

    #[inline(always)]
    fn slot_of<'a>(&self, words: &'a [AtomicU64], position: u64) -> &'a [AtomicU64] {
        let at = SLOTS + (position & self.mask) as usize * SLOT;
        &words[at..][..SLOT]
    }

    /// The word of the slot's source.
    #[inline(never)]
    fn source(&self, position: u64) -> &AtomicU64 {
        let slots = self.mask as usize + 1;
        self.word(SLOTS + slots * SLOT + (position & self.mask) as usize)
    }

    /// The words before the slots.
    fn control(&self) -> &[AtomicU64] {
        &self.memory.words()[..SLOTS]
    }

    /// The sequence that a slot has in the lap of this position.
    #[inline(always)]
    fn lap(&self, position: u64) -> u8 {
        ((position >> self.lap_bits) as u8).wrapping_add(1)
    }

    /// The NIC's side: publishes a completion that occurred at `time_ns`.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn push(&self, wc: &Wc, time_ns: u64) -> Result<(), Overflow> {
        if self.push_all(std::slice::from_ref(wc).iter(), time_ns) == 1 { Ok(()) } else { Err(Overflow) }
    }

    /// Publishes several completions in their order, with one step to claim all slots. Returns how many fit, counted
    /// from the first.
    pub fn push_all<'a>(&self, wcs: impl ExactSizeIterator<Item = &'a Wc>, time_ns: u64) -> usize {
        let (first, count) = self.claim(wcs.len() as u64);
        let words = self.memory.words();
        for (at, wc) in wcs.take(count as usize).enumerate() {
            self.write(words, first.wrapping_add(at as u64), wc, time_ns);
        }
        count as usize
    }

    /// Claims up to `wanted` slots. Returns the position of the first and their number.
    fn claim(&self, wanted: u64) -> (u64, u64) {
        let control = self.control();
        let mut position = control[PRODUCER].load(Relaxed);
        // Each attempt that fails means that another worker has succeeded. A client that keeps overwriting these words
        // gets no slots.
        for _ in 0..TRIES {
            let consumer = control[CONSUMER].load(Acquire);
            let room = self.capacity.saturating_sub(position.wrapping_sub(consumer));
            if room == 0 {
                // The queue is full, unless `position` is stale: other workers have published since, and the
                // application has polled their completions.
                let now = control[PRODUCER].load(Relaxed);
                if now == position {
                    return (position, 0);
                }
                position = now;
                continue;
            }
            let count = wanted.min(room);
            let after = position.wrapping_add(count);
            match control[PRODUCER].compare_exchange_weak(position, after, AcqRel, Relaxed) {
                Ok(_) => return (position, count),
                Err(now) => position = now,
            }
        }
        (position, 0)
    }

    #[inline(always)]
    fn write(&self, words: &[AtomicU64], position: u64, wc: &Wc, time_ns: u64) {
        let slot = self.slot_of(words, position);
        let mut head = wc.status as u64
            | (wc.opcode as u64) << 8
            | u64::from(wc.flags.bits()) << 16
            | u64::from(wc.vendor_err) << 24
            | u64::from(wc.qpn.value()) << 32
            | u64::from(self.lap(position)) << 56;
        slot[0].store(wc.wr_id, Relaxed);
        slot[1].store(u64::from(wc.byte_len) | u64::from(wc.imm) << 32, Relaxed);
        slot[TIME].store(time_ns, Relaxed);
        let source = u64::from(wc.src_qp.value())
            | u64::from(wc.sl) << 24
            | u64::from(wc.pkey_index) << 32
            | u64::from(wc.vlan) << 48;
        if source != 0 {
            self.source(position).store(source, Relaxed);
            head |= SOURCED;
        }
        slot[HEAD].store(head, Release);
    }

    /// The NIC's side, after a push: true if this completion raises an event. The request is taken, so it raises one
    /// event only.
    ///
    /// Pairs with the fence in `arm`: either the NIC sees the request, or the check in `arm` sees the completion.
    pub fn disarm_for(&self, wc: &Wc) -> bool {
        fence(SeqCst);
        let armed = self.word(ARMED).load(Relaxed);
        is_wanted(armed, wc.flags, wc.status) && self.raise(armed)
    }

    /// As [`disarm_for`](Self::disarm_for), once for all completions of a push.
    pub fn disarm_for_any<'a>(&self, mut wcs: impl Iterator<Item = &'a Wc>) -> bool {
        fence(SeqCst);
        let armed = self.word(ARMED).load(Relaxed);
        armed != Armed::No as u64 && wcs.any(|wc| is_wanted(armed, wc.flags, wc.status)) && self.raise(armed)
    }

    /// Takes the request and counts an event, unless the other side has done so. The event covers all completions
    /// published so far.
    fn raise(&self, armed: u64) -> bool {
        //= IBTA 11.4.2.2: notification-is-once
        let raised = self.word(ARMED).compare_exchange(armed, Armed::No as u64, AcqRel, Relaxed).is_ok();
        if raised {
            self.word(TOLD).store(self.word(PRODUCER).load(Relaxed), Relaxed);
            self.word(EVENTS).fetch_add(1, Release);
        }
        raised
    }

    /// The application's side: takes one event. Returns false if there is none.
    pub fn take_event(&self) -> bool {
        self.word(EVENTS).fetch_update(AcqRel, Relaxed, |events| events.checked_sub(1)).is_ok()
    }

    /// The application's side: takes the oldest completion. Caller must serialize calls.
    #[inline(always)]
    pub fn poll(&self) -> Option<Wc> {
        self.poll_with(|_| ()).map(|(wc, ())| wc)
    }

    /// As [`poll`](Self::poll), with the completion's time in ns on the device's clock.
    pub fn poll_timed(&self) -> Option<(Wc, u64)> {
        self.poll_with(|slot| slot[TIME].load(Relaxed))
    }

    #[inline(always)]
    fn poll_with<T>(&self, more: impl FnOnce(&[AtomicU64]) -> T) -> Option<(Wc, T)> {
        let words = self.memory.words();
        let consumer = &words[CONSUMER];
        let position = consumer.load(Relaxed);
        let slot = self.slot_of(words, position);
        let head = slot[HEAD].load(Acquire);
        if !self.is_filled(head, position) {
            return None;
        }
        let rest = slot[1].load(Relaxed);
        let source = if head & SOURCED == 0 { 0 } else { self.source(position).load(Relaxed) };
        let wc = Wc {
            wr_id: slot[0].load(Relaxed),
            status: WcStatus::from_code(head as u8),
            opcode: WcOpcode::from_code((head >> 8) as u8).unwrap_or_default(),
            flags: WcFlags::from_bits_truncate((head >> 16) as u8) - WcFlags::SOLICITED,
            vendor_err: (head >> 24) as u8,
            qpn: Qpn::new((head >> 32) as u32),
            byte_len: rest as u32,
            imm: (rest >> 32) as u32,
            src_qp: Qpn::new(source as u32),
            sl: (source >> 24) as u8,
            pkey_index: (source >> 32) as u16,
            vlan: (source >> 48) as u16,
        };
        let more = more(slot);
        consumer.store(position.wrapping_add(1), Release);
        Some((wc, more))
    }

    /// Begins to move all completions that wait to another ring, in their order, and what is armed. Until the move has
    /// ended, the application neither polls nor arms, and [`Move::add`] counts what is pushed.
    ///
    /// # Errors
    /// How many wait, if the other ring does not hold as many; nothing has changed then.
    pub fn begin_move(&self, to: CompletionRing) -> Result<Move, u32> {
        let first = self.word(CONSUMER).load(Acquire);
        let remaining = self.word(PRODUCER).load(Acquire).wrapping_sub(first);
        if to.capacity < remaining {
            return Err(remaining.try_into().unwrap_or(u32::MAX));
        }
        Ok(Move { to, first, remaining, moved: 0 })
    }

    /// The application's side: the numbers of completions polled and published since the queue was made.
    pub fn positions(&self) -> (u64, u64) {
        (self.word(CONSUMER).load(Relaxed), self.word(PRODUCER).load(Acquire))
    }

    /// True if a completion is waiting.
    pub fn has_completions(&self) -> bool {
        let position = self.word(CONSUMER).load(Relaxed);
        self.is_filled(self.slot(position)[HEAD].load(Acquire), position)
    }

    /// True if this head of a slot belongs to the lap of this position.
    #[inline(always)]
    fn is_filled(&self, head: u64, position: u64) -> bool {
        (head >> 56) as u8 == self.lap(position)
    }

    /// The application's side: requests an event. Returns true if a wanted completion is already waiting that no event
    /// covers: its event is raised immediately, and the caller must wake the threads that wait for events. ConnectX
    /// does the same, by the `last_notified_index` of its queues. A completion that an event has covered raises no
    /// other: a program may arm again before it polls, as perftest does.
    #[must_use]
    pub fn arm(&self, armed: Armed) -> bool {
        // The stronger request stays: arming for solicited completions must not weaken a request for any.
        let armed = self.word(ARMED).fetch_max(armed as u64, AcqRel).max(armed as u64);
        fence(SeqCst);
        // The NIC checks for the request after it publishes; only one side takes it.
        //= IBTA 11.4.2.2: notification-is-not-lost
        self.has_wanted(armed) && self.raise(armed)
    }

    /// True if a completion is waiting that `armed` wants and no event covers.
    fn has_wanted(&self, armed: u64) -> bool {
        let (consumer, producer) = self.positions();
        // At most as many positions as there are slots, whatever another process wrote.
        let first = consumer.max(self.word(TOLD).load(Relaxed)).max(producer.saturating_sub(self.mask + 1));
        // Includes positions behind one that another worker still writes: that worker will raise an event for its own
        // completion only.
        (first..producer)
            .filter_map(|position| self.head(position))
            .any(|(flags, status)| is_wanted(armed, flags, status))
    }

    /// The fields that decide whether the completion at a position raises an event. `None` if it is not written yet.
    fn head(&self, position: u64) -> Option<(WcFlags, WcStatus)> {
        let head = self.slot(position)[HEAD].load(Acquire);
        self.is_filled(head, position)
            .then(|| (WcFlags::from_bits_truncate((head >> 16) as u8), WcStatus::from_code(head as u8)))
    }

    /// The words of the queue. The other side may write them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// True if another process may have mapped the queue too.
    pub fn is_mapped(&self) -> bool {
        self.memory.is_mapped()
    }

    /// Completions that fit.
    pub fn capacity(&self) -> u32 {
        self.capacity as u32
    }
}

/// A move from one ring to another, in steps.
#[derive(Debug)]
pub struct Move {
    to: CompletionRing,
    /// The position of the first completion that moves.
    first: u64,
    /// Completions that are still to move.
    remaining: u64,
    /// Completions that are in the other ring. Only the move writes there: its indices, which a client could overwrite,
    /// are not read.
    moved: u64,
}

impl Move {
    /// Number of completions pushed to the ring `from`.
    pub fn add(&mut self, pushed: usize) {
        self.remaining += pushed as u64;
    }

    /// Moves up to `most` completions. True: all have moved, and the other ring takes over.
    ///
    /// # Errors
    /// If more were pushed than the other ring holds. It takes over without the rest.
    pub fn go_on(&mut self, from: &CompletionRing, most: u64) -> Result<bool, Overflow> {
        let mut result = Ok(true);
        // No more than were there: another process may write completions meanwhile, or name the memory of the old ring
        // for the new one.
        for _ in 0..self.remaining.min(most) {
            self.remaining -= 1;
            let Some((wc, time)) = from.poll_timed() else {
                self.remaining = 0;
                break;
            };
            if self.moved == self.to.capacity {
                self.remaining = 0;
                result = Err(Overflow);
                break;
            }
            self.to.write(self.to.memory.words(), self.moved, &wc, time);
            self.moved += 1;
        }
        if self.remaining > 0 {
            return Ok(false);
        }
        self.to.word(PRODUCER).store(self.moved, Release);
        let notified = from.word(TOLD).load(Relaxed).saturating_sub(self.first);
        self.to.word(TOLD).store(notified, Relaxed);
        self.to.word(ARMED).store(from.word(ARMED).load(Acquire), Release);
        self.to.word(EVENTS).store(from.word(EVENTS).load(Acquire), Release);
        result
    }

    /// The ring that takes over.
    pub fn ring(&self) -> &CompletionRing {
        &self.to
    }
}

/// True if an event was asked for by `armed`, an [`Armed`], for such a completion. A failure counts as solicited.
fn is_wanted(armed: u64, flags: WcFlags, status: WcStatus) -> bool {
    //= IBTA 11.4.2.2: solicited-event-is-raised
    let solicited = flags.contains(WcFlags::SOLICITED) || status != WcStatus::Success;
    armed == Armed::Next as u64 || (armed == Armed::Solicited as u64 && solicited)
}
