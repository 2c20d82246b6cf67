//! The requester's own copy of its work requests.
//!
//! Copied from shared memory once, before anything in them is believed, and kept until they complete:
//! retransmission builds packets from here. Positions count up for ever and wrap at 2^32.

use super::scatter;
use crate::verbs::{SendFlags, SendWr, Sge};
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
    /// READ: the packet of its answer from which on it was asked for last.
    pub asked_from: u32,
}

impl Wqe {
    /// The PSN after its last.
    pub fn end_psn(&self) -> Psn {
        self.first_psn + self.packets
    }
}

/// A ring of work requests, in three stretches: `tail..next` sent at least in part, `next..head` waiting.
#[derive(Debug)]
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
    /// A queue like the shared one.
    pub fn new(capacity: u32, max_sge: u32, max_inline: u32) -> SendQueue {
        let slots = capacity.max(1).next_power_of_two() as usize;
        SendQueue {
            wqes: vec![Wqe::default(); slots].into(),
            sges: vec![Sge::default(); slots * max_sge as usize].into(),
            inline: vec![0; slots * max_inline as usize].into(),
            mask: slots as u32 - 1,
            capacity: capacity.max(1),
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            head: 0,
            tail: 0,
        }
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

    /// Where the next work request's list and inline bytes are to be copied to.
    pub fn next_buffers(&mut self) -> (&mut [Sge], &mut [u8]) {
        let slot = (self.head & self.mask) as usize;
        let sges = &mut self.sges[slot * self.max_sge..(slot + 1) * self.max_sge];
        let inline = &mut self.inline[slot * self.max_inline..(slot + 1) * self.max_inline];
        (sges, inline)
    }

    /// Appends a work request whose list and bytes are already in `next_buffers`.
    pub fn push(&mut self, wr: Option<SendWr>, wr_id: u64, num_sge: usize, inline_len: usize) {
        let slot = (self.head & self.mask) as usize;
        let sges = &self.sges[slot * self.max_sge..][..num_sge];
        let is_inline = wr.is_some_and(|w| w.flags.contains(SendFlags::INLINE));
        let length = if is_inline { inline_len as u64 } else { scatter::total(sges) };
        self.wqes[slot] = Wqe {
            wr: wr.unwrap_or(SendWr { wr_id, ..SendWr::default() }),
            valid: wr.is_some(),
            length,
            num_sge: num_sge as u32,
            ..Wqe::default()
        };
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
