//! The requester's private copy of its work requests.
//!
//! A work request is copied from shared memory once, before it is validated, and kept until it completes.
//! Retransmission rebuilds packets from this copy. Positions count up and wrap at 2^32.

use std::collections::TryReserveError;

use super::scatter;
use crate::shared::work_queue::FetchedSend;
use crate::verbs::{SendFlags, SendWr, Sge, WrOpcode};
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::Psn;

/// A work request in the send queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wqe {
    /// The work request as posted.
    pub wr: SendWr,
    /// False if the opcode in the slot was invalid.
    pub valid: bool,
    /// Length of the message in bytes.
    pub length: u64,
    /// Number of entries of its scatter/gather list.
    pub num_sge: u32,
    /// PSN of its first packet. Valid if `started`.
    pub first_psn: Psn,
    /// Number of PSNs that it takes. Valid if `started`.
    pub packets: u32,
    /// True once its first packet was sent.
    pub started: bool,
    /// True for a SEND or WRITE without immediate, invalidation or fence: the fast path may send it.
    pub plain: bool,
    /// READ: the response packet from which the last request asked. Otherwise the packet sent last.
    pub asked_from: u32,
}

impl Wqe {
    /// Returns the PSN after its last one.
    pub fn end_psn(&self) -> Psn {
        self.first_psn + self.packets
    }
}

/// Returns `count` default values.
fn filled<T: Clone + Default>(count: usize) -> Result<Box<[T]>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, T::default());
    Ok(values.into())
}

/// A ring of work requests: `tail..next` was sent at least in part, `next..head` is waiting.
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
    /// Returns the size of such a queue in bytes.
    pub fn size(capacity: u32, max_sge: u32, max_inline: u32) -> usize {
        let slots = capacity.max(1).next_power_of_two() as usize;
        let slot = size_of::<Wqe>() + max_sge as usize * size_of::<Sge>() + max_inline as usize;
        slots.saturating_mul(slot)
    }

    /// Returns a queue with the capacities of the shared one.
    ///
    /// # Errors
    /// If memory is exhausted: the application chooses the sizes.
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

    /// Number of work requests that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the position after the newest work request.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Returns the position of the oldest incomplete work request.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// True if no work request is outstanding.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True if another work request fits.
    pub fn has_room(&self) -> bool {
        self.head.wrapping_sub(self.tail) < self.capacity
    }

    /// Appends a work request. `copy` writes it, its scatter/gather list and its inline data to the given places.
    #[inline(always)]
    pub fn push_with(&mut self, copy: impl FnOnce(&mut SendWr, &mut [Sge], &mut [u8]) -> FetchedSend) {
        debug_assert!(self.has_room(), "the caller checks that there is room");
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

    /// Returns the work request at a position between tail and head.
    pub fn at(&self, position: u32) -> &Wqe {
        &self.wqes[(position & self.mask) as usize]
    }

    /// Returns the work request at a position between tail and head, mutably.
    pub fn at_mut(&mut self, position: u32) -> &mut Wqe {
        &mut self.wqes[(position & self.mask) as usize]
    }

    /// Returns the scatter/gather list of a work request.
    pub fn sges(&self, position: u32) -> &[Sge] {
        let slot = (position & self.mask) as usize;
        &self.sges[slot * self.max_sge..][..self.wqes[slot].num_sge as usize]
    }

    /// Returns `length` bytes of a work request's inline data, from `offset` on.
    pub fn inline(&self, position: u32, offset: u32, length: u16) -> &[u8] {
        let slot = (position & self.mask) as usize;
        &self.inline[slot * self.max_inline + offset as usize..][..length.into()]
    }

    /// Removes the oldest work request.
    pub fn retire(&mut self) {
        debug_assert!(!self.is_empty(), "only what is queued completes");
        self.tail = self.tail.wrapping_add(1);
    }

    /// Removes all work requests and restarts positions at 0.
    pub fn reset(&mut self) {
        self.head = 0;
        self.tail = 0;
    }
}
