//! The requester's private copy of its work requests.
//!
//! A work request is copied from shared memory once, before it is validated, and kept until it completes.
//! Retransmission rebuilds packets from this copy. Positions count up and wrap at 2^32.

use std::collections::TryReserveError;

use super::scatter;
use crate::shared::work_queue::FetchedSend;
use crate::verbs::{RKey, SendFlags, SendWr, Sge, Srqn, UdAddress, WrOpcode};
use roxie_base::limits::{MAX_MESSAGE, MAX_SGE};
use roxie_wire::Psn;

/// A work request in the send queue, as far as the common operations need it: one cache line, since with thousands of
/// QPs each line of a queue is a miss. [`SendQueue::operands`] has the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wqe {
    /// The work request as posted.
    pub wr: QueuedWr,
    /// PSN of its first packet. Valid if `started`.
    pub first_psn: Psn,
    /// Number of PSNs that it takes. Valid if `started`.
    pub packets: u32,
    /// READ: the response packet from which the last request asked. Otherwise the packet sent last.
    pub requested_from: u32,
    /// Number of entries of its scatter/gather list.
    num_sge: u8,
    /// False if the opcode in the slot was invalid.
    pub valid: bool,
    /// True once its first packet was sent.
    pub started: bool,
    /// True for a SEND or WRITE without immediate, invalidation or fence: the fast path may send it.
    pub plain: bool,
    /// The scatter/gather list, in a queue whose lists have one entry at most.
    sge: Sge,
}

/// Compile-time check of the size that the comment above promises.
const _: () = assert!(size_of::<Wqe>() == 64 && MAX_SGE <= u8::MAX as usize);

/// A work request without operands and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedWr {
    /// Identifier, returned in the completion.
    pub wr_id: u64,
    /// Remote address, for WRITE, READ, FLUSH and atomics.
    pub remote_addr: u64,
    /// Remote key; for SEND with invalidate, the key to invalidate; for LOCAL_INV, a local key.
    pub rkey: RKey,
    /// Immediate data in host order, for operations that carry it.
    pub imm: u32,
    /// Length of the message in bytes. `u32::MAX`: at least as many, which is too long.
    length: u32,
    /// The operation.
    pub opcode: WrOpcode,
    /// Signaled, fenced, solicited, inline.
    pub flags: SendFlags,
}

impl Default for QueuedWr {
    fn default() -> QueuedWr {
        QueuedWr::new(&SendWr::default(), 0)
    }
}

impl QueuedWr {
    /// Returns the work request with a message of `length` bytes.
    #[inline(always)]
    fn new(wr: &SendWr, length: u32) -> QueuedWr {
        let SendWr { wr_id, opcode, flags, imm, remote_addr, rkey, .. } = *wr;
        QueuedWr { wr_id, remote_addr, rkey, imm, length, opcode, flags }
    }
}

/// Parts of a work request that few operations have: see [`WrOpcode::has_operands`], UD and XRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// Compare or add operand.
    pub compare_add: u64,
    /// Swap operand of compare-and-swap.
    pub swap: u64,
    /// Destination, of a UD QP.
    pub ud: UdAddress,
    /// Number of the destination SRQ, of an XRC QP.
    pub remote_srqn: Srqn,
}

/// The oldest work request before a response completed it: the point to return to if the bytes of the response cannot
/// be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultPoint {
    /// Position in the send queue.
    pub position: u32,
    pub wr: QueuedWr,
    /// Number of completions before its own.
    pub completions: usize,
}

impl Wqe {
    /// Returns the length of the message in bytes; one that exceeds 2^32 - 1 is returned as that.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        self.wr.length.into()
    }

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

/// Returns the number of entries per list outside of the work requests.
fn listed(max_sge: u32) -> usize {
    if max_sge > 1 { max_sge as usize } else { 0 }
}

/// A ring of work requests: `tail..next` was sent at least in part, `next..head` is waiting.
#[derive(Debug, Default)]
pub struct SendQueue {
    wqes: Box<[Wqe]>,
    /// The lists, if they have more than one entry each.
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    operands: Box<[Operands]>,
    /// True if each work request has an address among its operands.
    has_addresses: bool,
    /// The fast path sends messages that are shorter than this.
    plain_below: u32,
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
        let list = listed(max_sge) * size_of::<Sge>();
        let slot = size_of::<Wqe>() + size_of::<Operands>() + list + max_inline as usize;
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
            sges: filled(slots * listed(max_sge))?,
            inline: filled(slots * max_inline as usize)?,
            operands: filled(slots)?,
            has_addresses: false,
            plain_below: MAX_MESSAGE + 1,
            mask: slots as u32 - 1,
            capacity: capacity.max(1),
            max_sge: listed(max_sge),
            max_inline: max_inline as usize,
            head: 0,
            tail: 0,
        })
    }

    /// Returns the queue for a QP whose work requests have addresses, of UD or XRC, or not.
    #[must_use]
    pub fn with_addresses(self, has_addresses: bool) -> SendQueue {
        SendQueue { has_addresses, ..self }
    }

    /// Keeps all messages from the fast path.
    pub fn without_fast_path(self) -> SendQueue {
        SendQueue { plain_below: 0, ..self }
    }

    /// True if each work request has an address among its operands.
    #[inline(always)]
    pub fn has_addresses(&self) -> bool {
        self.has_addresses
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
        let wqe = &mut self.wqes[slot];
        let sges = match self.max_sge {
            0 => std::slice::from_mut(&mut wqe.sge),
            max_sge => &mut self.sges[slot * max_sge..][..max_sge],
        };
        let inline = &mut self.inline[slot * self.max_inline..][..self.max_inline];
        let mut wr = SendWr::default();
        let FetchedSend { valid, num_sge, inline_len } = copy(&mut wr, sges, inline);
        let length = match &sges[..num_sge] {
            _ if valid && wr.flags.contains(SendFlags::INLINE) => inline_len as u32,
            [sge] => sge.length,
            list => u32::try_from(scatter::total(list)).unwrap_or(u32::MAX),
        };
        wqe.wr = QueuedWr::new(&wr, length);
        wqe.valid = valid;
        wqe.num_sge = num_sge as u8;
        wqe.started = false;
        wqe.plain = valid
            && matches!(wr.opcode, WrOpcode::Send | WrOpcode::Write)
            && !wr.flags.contains(SendFlags::FENCE)
            && length < self.plain_below;
        wqe.requested_from = 0;
        if self.has_addresses || wr.opcode.has_operands() {
            let SendWr { compare_add, swap, ud, remote_srqn, .. } = wr;
            self.operands[slot] = Operands { compare_add, swap, ud, remote_srqn };
        }
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
    #[inline(always)]
    pub fn sges(&self, position: u32) -> &[Sge] {
        let slot = (position & self.mask) as usize;
        let wqe = &self.wqes[slot];
        let list = match self.max_sge {
            0 => std::slice::from_ref(&wqe.sge),
            max_sge => &self.sges[slot * max_sge..][..max_sge],
        };
        &list[..wqe.num_sge.into()]
    }

    /// Returns the operands and the address of a work request; those that it lacks are zero.
    pub fn operands(&self, position: u32) -> Operands {
        let slot = (position & self.mask) as usize;
        let has_some = self.has_addresses || self.wqes[slot].wr.opcode.has_operands();
        if has_some { self.operands[slot] } else { Operands::default() }
    }

    /// Returns a work request as it was posted, without an address that the service does not have.
    pub fn work_request(&self, position: u32) -> SendWr {
        let QueuedWr { wr_id, remote_addr, rkey, imm, opcode, flags, .. } = self.at(position).wr;
        let Operands { compare_add, swap, ud, remote_srqn } = self.operands(position);
        SendWr { wr_id, opcode, flags, imm, remote_addr, rkey, compare_add, swap, ud, remote_srqn }
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
