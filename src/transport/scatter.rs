//! Scatter/gather lists: which bytes of a message lie where.

use super::{DmaIn, Gather, MemoryTable, Output, Span};
use crate::verbs::{Access, PdId, Sge};

/// Why a list cannot hold or give the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListError {
    /// It is shorter than the bytes.
    TooShort,
    /// An entry's key, bounds or rights forbid it.
    Protection,
}

/// Bytes of all entries.
pub(super) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.length)).sum()
}

/// Where bytes `offset..offset + length` of a message of one piece lie; `None`: it is of several, or does not hold them, or they are not
/// for this.
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

/// Calls `piece` for each stretch of memory that holds bytes `offset..offset + length` of the message.
fn walk(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    length: u64,
    access: Access,
    mut piece: impl FnMut(Span, u64),
) -> Result<(), ListError> {
    let (mut skip, mut left) = (offset, length);
    for sge in sges {
        if left == 0 {
            break;
        }
        let here = u64::from(sge.length);
        if skip >= here {
            skip -= here;
            continue;
        }
        let take = left.min(here - skip);
        let address = sge.addr.checked_add(skip).ok_or(ListError::Protection)?;
        let span =
            //= IBTA 10.7.2: lkey-is-checked
            memory.check_local(pd, sge.lkey.0, address, take, access).map_err(|_| ListError::Protection)?;
        piece(span, take);
        skip = 0;
        left -= take;
    }
    if left == 0 { Ok(()) } else { Err(ListError::TooShort) }
}

/// Checks every entry that has bytes.
///
/// # Errors
/// The entry that names no memory of the domain, or none with such rights.
pub(super) fn check(memory: &MemoryTable, pd: PdId, sges: &[Sge], access: Access) -> Result<(), ListError> {
    walk(memory, pd, sges, 0, total(sges), access, |_, _| ())
}

/// The payload of a packet: bytes `offset..offset + length` of the message. On error nothing was appended.
///
/// # Errors
/// The entry that names no memory of the domain, or none with such rights.
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
    // Local reading needs no right (IBTA 10.6.3.1).
    let result = walk(memory, pd, sges, offset, length.into(), Access::empty(), |from, n| {
        out.push(Gather { from, length: n as u16 });
    });
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Where the payload of a received packet is.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePayload {
    /// Index in the receive burst.
    pub frame: u16,
    /// Byte offset in the frame.
    pub offset: u16,
    /// Bytes of payload.
    pub length: u16,
}

/// Copies a packet's payload to byte `offset` of the message. On error nothing was appended.
///
/// # Errors
/// The entry that names no memory of the domain, or none with such rights.
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

/// Zeroes the first `length` bytes of the message. On error nothing was appended.
///
/// # Errors
/// The entry that names no memory of the domain, or none with such rights.
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
            out.dma_in.push(DmaIn::Store { value: 0, skip: 0, length: (n - done).min(8) as u8, to });
        }
    });
    if result.is_err() {
        out.dma_in.truncate(before);
    }
    result
}

/// Stores the 8 bytes of an atomic's result. On error nothing was appended.
///
/// # Errors
/// The entry that names no memory of the domain, or none with such rights.
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
