//! Scatter/gather lists: where the bytes of a message lie in memory.

use std::ops::{Deref, DerefMut};

use super::{DmaIn, Gather, MemoryTable, Output, Refusal, Span};
use crate::verbs::{Access, PdId, Sge};
use roxie_wire::Packet;

/// Reason why a scatter/gather list cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListError {
    /// The list is shorter than the message.
    TooShort,
    /// The key, bounds or rights of an entry do not allow the access.
    Protection,
}

/// The scatter list of a receive. A list of one entry lies in the QP's own state.
#[derive(Debug)]
pub(super) struct ReceiveList {
    one: [Sge; 1],
    more: Box<[Sge]>,
    has_one: bool,
}

impl ReceiveList {
    /// Returns a list of `entries` entries.
    pub(super) fn new(entries: usize) -> ReceiveList {
        let more = if entries == 1 { 0 } else { entries };
        let one = [Sge::default()];
        ReceiveList { one, more: vec![Sge::default(); more].into(), has_one: entries == 1 }
    }
}

impl Deref for ReceiveList {
    type Target = [Sge];

    #[inline(always)]
    fn deref(&self) -> &[Sge] {
        if self.has_one { &self.one } else { &self.more }
    }
}

impl DerefMut for ReceiveList {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Sge] {
        if self.has_one { &mut self.one } else { &mut self.more }
    }
}

/// Returns the length of a list in bytes.
pub(super) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.length)).sum()
}

/// Returns where bytes `offset..offset + length` of a message lie. Returns `None` if the list has more than one entry,
/// is too short, or does not allow the access.
#[inline(always)]
pub(super) fn one(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    length: u64,
    access: Access,
) -> Option<Span> {
    let &[Sge { addr, length: whole, lkey }] = sges else { return None };
    if offset + length > u64::from(whole) {
        return None;
    }
    memory.check_local(pd, lkey.0, addr.checked_add(offset)?, length, access).ok()
}

/// Calls `piece` for each part of memory that holds bytes `offset..offset + length` of the message.
fn walk(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    length: u64,
    access: Access,
    mut piece: impl FnMut(Span, u64),
) -> Result<(), ListError> {
    let (mut skip, mut remaining) = (offset, length);
    for sge in sges {
        if remaining == 0 {
            break;
        }
        let here = u64::from(sge.length);
        if skip >= here {
            skip -= here;
            continue;
        }
        let take = remaining.min(here - skip);
        let address = sge.addr.checked_add(skip).ok_or(ListError::Protection)?;
        let span =
            //= IBTA 10.7.2: lkey-is-checked
            memory.check_local(pd, sge.lkey.0, address, take, access).map_err(|_| ListError::Protection)?;
        piece(span, take);
        skip = 0;
        remaining -= take;
    }
    if remaining == 0 { Ok(()) } else { Err(ListError::TooShort) }
}

/// Checks every entry that is not empty.
///
/// # Errors
/// If an entry names no memory of the domain, or memory without the required rights.
pub(super) fn check(memory: &MemoryTable, pd: PdId, sges: &[Sge], access: Access) -> Result<(), ListError> {
    walk(memory, pd, sges, 0, total(sges), access, |_, _| ())
}

/// Returns why the first entry that is refused is. `None`: all entries are granted.
pub(super) fn refusal(memory: &MemoryTable, pd: PdId, sges: &[Sge], access: Access) -> Option<Refusal> {
    let check = |sge: &Sge| memory.check_local(pd, sge.lkey.0, sge.addr, sge.length.into(), access).err();
    sges.iter().filter(|sge| sge.length > 0).find_map(check)
}

/// Appends the pieces of a packet's payload: bytes `offset..offset + length` of the message. On error nothing was
/// appended.
///
/// # Errors
/// If an entry names no memory of the domain, or the list is too short.
pub(super) fn gather(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    length: u16,
    out: &mut Vec<Gather>,
) -> Result<(), ListError> {
    let before = out.len();
    //= IBTA 10.6.3.1: local-reading-needs-no-right
    // Local reads need no access right (IBTA 10.6.3.1).
    let result = walk(memory, pd, sges, offset, length.into(), Access::empty(), |from, n| {
        out.push(Gather { from, length: n as u16 });
    });
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Location of the payload in a received packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePayload {
    /// Index in the receive burst.
    pub frame: u16,
    /// Byte offset in the frame.
    pub offset: u16,
    /// Length in bytes.
    pub length: u16,
}

impl FramePayload {
    /// Returns where the payload of `packet` is, in received frame number `frame`.
    pub(super) fn of(packet: &Packet, frame: u16) -> FramePayload {
        FramePayload { frame, offset: packet.payload.start as u16, length: packet.payload.len() as u16 }
    }
}

/// Appends the copies of a packet's payload to byte `offset` of the message. On error nothing was appended.
///
/// # Errors
/// If an entry names no memory of the domain, or memory that is not writable, or the list is too short.
pub(super) fn plan(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    payload: FramePayload,
    out: &mut Output,
) -> Result<(), ListError> {
    let before = out.dma_in.len();
    let mut at = payload.offset;
    //= IBTA 10.6.3.1: local-writing-needs-a-right
    let result = walk(memory, pd, sges, offset, payload.length.into(), Access::LOCAL_WRITE, |to, n| {
        let length = n as u16;
        out.push_dma(DmaIn::Scatter { frame: payload.frame, offset: at, length, to });
        at += length;
    });
    if result.is_err() {
        out.dma_in.truncate(before);
    }
    result
}

/// Appends stores of zeros to the first `length` bytes of the message. On error nothing was appended.
///
/// # Errors
/// If an entry names no memory of the domain, or memory that is not writable, or the list is too short.
pub(super) fn zero(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    length: u64,
    out: &mut Output,
) -> Result<(), ListError> {
    let before = out.dma_in.len();
    let result = walk(memory, pd, sges, 0, length, Access::LOCAL_WRITE, |to, n| {
        for done in (0..n).step_by(8) {
            let to = Span { offset: to.offset + done, ..to };
            out.push_dma(DmaIn::Store { value: 0, skip: 0, length: (n - done).min(8) as u8, to });
        }
    });
    if result.is_err() {
        out.dma_in.truncate(before);
    }
    result
}

/// Appends the stores of an atomic's result, 8 bytes. On error nothing was appended.
///
/// # Errors
/// If an entry names no memory of the domain, or memory that is not writable, or the list is too short.
pub(super) fn store(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    value: u64,
    out: &mut Output,
) -> Result<(), ListError> {
    let before = out.dma_in.len();
    let mut skip = 0;
    let result = walk(memory, pd, sges, 0, 8, Access::LOCAL_WRITE, |to, n| {
        let length = n as u8;
        out.push_dma(DmaIn::Store { value, skip, length, to });
        skip += length;
    });
    if result.is_err() {
        out.dma_in.truncate(before);
    }
    result
}
