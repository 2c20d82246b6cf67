//! The requester's own copy of its work requests.
//!
//! Copied from shared memory once, before anything in them is believed, and kept until they complete:
//! retransmission builds packets from here. Positions count up for ever and wrap at 2^32.

use std::collections::TryReserveError;

use super::scatter;
use crate::limits::MAX_MESSAGE;
use crate::shared::work_queue::FetchedSend;
use crate::verbs::{SendFlags, SendWr, Sge, WrOpcode};
use crate::wire::Psn;

/// A work request in the send queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wqe {
    /// The work request as it was posted.
    pub wr: SendWr,
    /// False: the opcode in the slot was none.
    pub valid: bool,
    /// Bytes of the message.
    pub length: u64,
    /// Entries of its list.
    pub num_sge: u32,
    /// PSN of its first packet; valid once `started`.
    pub first_psn: Psn,
    /// PSNs that it takes; valid once `started`.
    pub packets: u32,
    /// Its first packet was sent at least once.
    pub started: bool,
    /// A SEND or WRITE that waits for nothing and may be sent as it is.
    pub plain: bool,
    /// READ: the packet of its answer from which on it was asked for last.
    pub asked_from: u32,
}

impl Wqe {
    /// The PSN after its last.
    pub fn end_psn(&self) -> Psn {
        self.first_psn + self.packets
    }
}

/// So many default values.
fn filled<T: Clone + Default>(count: usize) -> Result<Box<[T]>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, T::default());
    Ok(values.into())
}

/// A ring of work requests, in three stretches: `tail..next` sent at least in part, `next..head` waiting.
#[derive(Debug, Default)]
pub struct SendQueue {
    wqes: Box<[Wqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    mask: u32,
    capacity: u32,
    max_sge: usize,
    max_inline: usize,
    head: u32,
    tail: u32,
}

impl SendQueue {
    /// Bytes of such a queue.
    pub fn size(capacity: u32, max_sge: u32, max_inline: u32) -> usize {
        let slots = capacity.max(1).next_power_of_two() as usize;
        let slot = size_of::<Wqe>() + max_sge as usize * size_of::<Sge>() + max_inline as usize;
        slots.saturating_mul(slot)
    }

    /// A queue like the shared one.
    ///
    /// # Errors
    /// If there is no memory for it: an application chooses the sizes.
    pub fn new(capacity: u32, max_sge: u32, max_inline: u32) -> Result<SendQueue, TryReserveError> {
        let slots = capacity.max(1).next_power_of_two() as usize;
        Ok(SendQueue {
            wqes: filled(slots)?,
            sges: filled(slots * max_sge as usize)?,
            inline: filled(slots * max_inline as usize)?,
            mask: slots as u32 - 1,
            capacity: capacity.max(1),
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            head: 0,
            tail: 0,
        })
    }

    /// The position after the newest.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The oldest that is not complete.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// True if nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True if another work request fits.
    pub fn has_room(&self) -> bool {
        self.head.wrapping_sub(self.tail) < self.capacity
    }

    /// Appends what `copy` brings: it is shown where the work request, its list and its inline bytes go.
    #[inline(always)]
    pub fn push_with(&mut self, copy: impl FnOnce(&mut SendWr, &mut [Sge], &mut [u8]) -> FetchedSend) {
        let slot = (self.head & self.mask) as usize;
        let sges = &mut self.sges[slot * self.max_sge..][..self.max_sge];
        let inline = &mut self.inline[slot * self.max_inline..][..self.max_inline];
        let wqe = &mut self.wqes[slot];
        let FetchedSend { valid, num_sge, inline_len } = copy(&mut wqe.wr, sges, inline);
        let length = match &sges[..num_sge] {
            _ if valid && wqe.wr.flags.contains(SendFlags::INLINE) => inline_len as u64,
            [sge] => u64::from(sge.length),
            list => scatter::total(list),
        };
        wqe.valid = valid;
        wqe.length = length;
        wqe.num_sge = num_sge as u32;
        wqe.started = false;
        wqe.plain = valid
            && matches!(wqe.wr.opcode, WrOpcode::Send | WrOpcode::Write)
            && !wqe.wr.flags.contains(SendFlags::FENCE)
            && length <= u64::from(MAX_MESSAGE);
        wqe.asked_from = 0;
        self.head = self.head.wrapping_add(1);
    }

    /// The work request at a position between tail and head.
    pub fn at(&self, position: u32) -> &Wqe {
        &self.wqes[(position & self.mask) as usize]
    }

    /// The same, to change.
    pub fn at_mut(&mut self, position: u32) -> &mut Wqe {
        &mut self.wqes[(position & self.mask) as usize]
    }

    /// Its scatter/gather list.
    pub fn sges(&self, position: u32) -> &[Sge] {
        let slot = (position & self.mask) as usize;
        &self.sges[slot * self.max_sge..][..self.wqes[slot].num_sge as usize]
    }

    /// Its inline bytes from `offset` on, `length` of them.
    pub fn inline(&self, position: u32, offset: u32, length: u16) -> &[u8] {
        let slot = (position & self.mask) as usize;
        &self.inline[slot * self.max_inline + offset as usize..][..length.into()]
    }

    /// Takes the oldest out.
    pub fn retire(&mut self) {
        debug_assert!(!self.is_empty());
        self.tail = self.tail.wrapping_add(1);
    }

    /// Forgets everything and counts from zero again.
    pub fn reset(&mut self) {
        self.head = 0;
        self.tail = 0;
    }
}
