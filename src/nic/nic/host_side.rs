//! Registered memory, and the copies from and to it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::shared::HostMemory;
use crate::shared::memory::CopyFault;
use crate::shared::remote_memory::RemoteMemory;
use crate::transport::{MemoryTable, Span};
use crate::verbs::PdId;

/// A copy of `length` bytes of host memory to byte `offset` of the frame in transmit slot `slot`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmaOut {
    pub(super) slot: u16,
    pub(super) offset: u16,
    pub(super) length: u16,
    pub(super) from: Span,
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) memory: HostMemory,
    pub(super) pd: PdId,
    /// True if its spans are translated by a page list.
    pub(super) paged: bool,
}

/// The host memory behind spans.
///
/// The table has checked bounds and access. The memory checks bounds again, and refuses copies beyond them.
pub(super) struct HostSide<'a> {
    pub(super) regions: &'a [Option<Registered>],
    pub(super) table: &'a MemoryTable,
}

impl HostSide<'_> {
    #[inline(always)]
    pub(super) fn region(&self, span: Span) -> Result<&Registered, CopyFault> {
        let region = self.regions.get(span.mr.place()).and_then(Option::as_ref);
        region.ok_or(CopyFault::Gone)
    }

    /// Returns the remote memory that a span lies in, if any.
    #[inline]
    pub(super) fn remote(&self, span: Span) -> Option<&Arc<RemoteMemory>> {
        self.region(span).ok()?.memory.remote_memory()
    }

    /// Calls `each` with the address of each contiguous part of a span in remote memory.
    pub(super) fn remote_places(
        &self,
        span: Span,
        length: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>),
    ) -> Result<(), CopyFault> {
        let region = self.region(span)?;
        let mut place = |offset, range: std::ops::Range<usize>| {
            each(region.memory.remote_address(offset, range.len())?, range);
            Ok(())
        };
        match region.paged {
            true => self.pieces(span, length, place),
            false => place(span.offset, 0..length),
        }
    }

    #[inline(always)]
    pub(super) fn write(&self, to: Span, bytes: &[u8]) -> Result<(), CopyFault> {
        let region = self.region(to)?;
        if !region.paged {
            return region.memory.write(to.offset, bytes);
        }
        self.pieces(to, bytes.len(), |offset, range| region.memory.write(offset, &bytes[range]))
    }

    /// Writes both pieces of a frame, one after the other.
    #[inline(always)]
    pub(super) fn write_pieces(&self, to: Span, (first, second): (&[u8], &[u8])) -> Result<(), CopyFault> {
        // The common case, once more: as a parameter of `in_stores`, the copy would be a call.
        if second.is_empty() {
            return self.write(to, first);
        }
        in_stores(first, second, |offset, bytes| {
            self.write(Span { offset: to.offset + offset as u64, ..to }, bytes)
        })
    }

    #[inline(always)]
    pub(super) fn read(&self, from: Span, bytes: &mut [u8]) -> Result<(), CopyFault> {
        let region = self.region(from)?;
        if !region.paged {
            return region.memory.read(from.offset, bytes);
        }
        self.pieces(from, bytes.len(), |offset, range| region.memory.read(offset, &mut bytes[range]))
    }

    /// Reads into both pieces of a frame, one after the other.
    #[inline(never)]
    pub(super) fn read_pieces(
        &self,
        from: Span,
        (first, second): (&mut [u8], &mut [u8]),
    ) -> Result<(), CopyFault> {
        let rest = Span { offset: from.offset + first.len() as u64, ..from };
        self.read(from, first)?;
        if second.is_empty() { Ok(()) } else { self.read(rest, second) }
    }

    /// Calls `copy` for each contiguous part of `length` bytes at `span` in a paged region.
    pub(super) fn pieces(
        &self,
        span: Span,
        length: usize,
        mut copy: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), CopyFault>,
    ) -> Result<(), CopyFault> {
        let translation = self.table.translation(span.mr).ok_or(CopyFault::Gone)?;
        let mut done = 0;
        while done < length {
            let piece = translation.piece(span.offset + done as u64, length - done).ok_or(CopyFault::Gone)?;
            copy(piece.offset, done..done + piece.length)?;
            done += piece.length;
        }
        Ok(())
    }

    /// Executes an atomic operation on 8 aligned bytes, which lie in one page.
    pub(super) fn atomic(&self, at: Span, operation: impl Fn(u64) -> Option<u64>) -> Result<u64, CopyFault> {
        let region = self.region(at)?;
        let offset = match region.paged {
            true => {
                self.table
                    .translation(at.mr)
                    .and_then(|t| t.piece(at.offset, 8))
                    .ok_or(CopyFault::Gone)?
                    .offset
            }
            false => at.offset,
        };
        region.memory.atomic(offset, operation)
    }

    pub(super) fn flush(&self, at: Span, length: u64, persistent: bool) -> Result<(), CopyFault> {
        // The earlier copies were made by this thread: the fence orders them for all other threads.
        fence(Ordering::SeqCst);
        if !persistent {
            return Ok(());
        }
        let region = self.region(at)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match region.paged {
            true => self.pieces(at, length, |offset, range| region.memory.persist(offset, range.len())),
            false => region.memory.persist(at.offset, length),
        }
    }
}

/// Passes two pieces to `store` with their offsets, such that the last 8 bytes are in one store. A frame may be split
/// anywhere, and the end of a message that fits one aligned store must be one store.
#[inline(always)]
fn in_stores(
    first: &[u8],
    second: &[u8],
    mut store: impl FnMut(usize, &[u8]) -> Result<(), CopyFault>,
) -> Result<(), CopyFault> {
    if second.is_empty() { store(0, first) } else { in_two_stores(first, second, store) }
}

#[inline(never)]
fn in_two_stores(
    first: &[u8],
    second: &[u8],
    mut store: impl FnMut(usize, &[u8]) -> Result<(), CopyFault>,
) -> Result<(), CopyFault> {
    const WORD: usize = size_of::<u64>();
    if second.len() >= WORD || first.is_empty() {
        return store(0, first).and_then(|()| store(first.len(), second));
    }
    let (head, end) = first.split_at(first.len().saturating_sub(WORD - second.len()));
    let mut word = [0; WORD];
    let (_, whole) = word.split_at_mut(WORD - end.len() - second.len());
    whole[..end.len()].copy_from_slice(end);
    whole[end.len()..].copy_from_slice(second);
    store(0, head).and_then(|()| store(head.len(), whole))
}

#[cfg(test)]
mod tests {
    use super::in_stores;

    #[test]
    fn last_word_is_one_store_at_any_split() {
        let message: Vec<u8> = (1..=24).collect();
        for length in 1..=message.len() {
            for at in 0..=length {
                let (first, second) = message[..length].split_at(at);
                let (mut there, mut last) = (vec![0; length], 0);
                in_stores(first, second, |offset, bytes| {
                    there[offset..offset + bytes.len()].copy_from_slice(bytes);
                    last = bytes.len();
                    Ok(())
                })
                .unwrap();
                assert_eq!(there, message[..length]);
                assert!(last >= length.min(8), "{length} bytes split at {at}: the last {last} in one");
            }
        }
    }
}
