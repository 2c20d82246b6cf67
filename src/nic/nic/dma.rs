//! The DMA stage: runs the copies of a burst together.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::memory::Registered;
use super::{Nic, RxFrame, split};
use crate::shared::memory::CopyFault;
use crate::shared::remote_memory::RemoteMemory;
use crate::transport::{DmaIn, MemoryTable, Span, Verdict};
use crate::verbs::{QpIndex, QpType};
use roxie_base::time::Nanos;
use roxie_wire::frame::{Frame, FrameMut};
use roxie_wire::{self as wire, Packet};

/// A copy of `length` bytes of host memory to byte `offset` of the frame in transmit slot `slot`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmaOut {
    pub(super) slot: u16,
    pub(super) offset: u16,
    pub(super) length: u16,
    pub(super) from: Span,
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
    fn region(&self, span: Span) -> Result<&Registered, CopyFault> {
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
    fn write(&self, to: Span, bytes: &[u8]) -> Result<(), CopyFault> {
        let region = self.region(to)?;
        if !region.paged {
            return region.memory.write(to.offset, bytes);
        }
        self.pieces(to, bytes.len(), |offset, range| region.memory.write(offset, &bytes[range]))
    }

    /// Writes both pieces of a frame, one after the other.
    #[inline(always)]
    pub(super) fn write_pieces(&self, to: Span, (first, second): (&[u8], &[u8])) -> Result<(), CopyFault> {
        in_stores(first, second, |offset, bytes| {
            self.write(Span { offset: to.offset + offset as u64, ..to }, bytes)
        })
    }

    #[inline(always)]
    fn read(&self, from: Span, bytes: &mut [u8]) -> Result<(), CopyFault> {
        let region = self.region(from)?;
        if !region.paged {
            return region.memory.read(from.offset, bytes);
        }
        self.pieces(from, bytes.len(), |offset, range| region.memory.read(offset, &mut bytes[range]))
    }

    /// Reads into both pieces of a frame, one after the other.
    #[inline(never)]
    fn read_pieces(&self, from: Span, (first, second): (&mut [u8], &mut [u8])) -> Result<(), CopyFault> {
        let rest = Span { offset: from.offset + first.len() as u64, ..from };
        self.read(from, first)?;
        if second.is_empty() { Ok(()) } else { self.read(rest, second) }
    }

    /// Calls `copy` for each contiguous part of `length` bytes at `span` in a paged region.
    fn pieces(
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
    fn atomic(&self, at: Span, operation: impl Fn(u64) -> Option<u64>) -> Result<u64, CopyFault> {
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

    fn flush(&self, at: Span, length: u64, persistent: bool) -> Result<(), CopyFault> {
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

/// Passes two pieces to `store` with their offsets, such that the last 8 bytes are in one store. A frame may be split anywhere,
/// and the end of a message that fits one aligned store must be one store.
#[inline(always)]
fn in_stores(
    first: &[u8],
    second: &[u8],
    mut store: impl FnMut(usize, &[u8]) -> Result<(), CopyFault>,
) -> Result<(), CopyFault> {
    if second.is_empty() {
        return store(0, first);
    }
    in_two_stores(first, second, store)
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

impl Nic {
    /// Runs the memory operations of received frames; `frame(i)` is frame `i` of the burst. May be called after each frame, or
    /// once for all.
    pub fn run_dma<'f>(&mut self, frame: impl Fn(u16) -> Frame<'f>) {
        self.run_dma_from(None, 0, frame);
    }

    /// Runs the operations from index `first` on, which a packet for `qp` has requested. Operations on remote memory are listed
    /// instead, and run while the worker is not locked. False: at least one operation failed.
    pub(super) fn run_dma_from<'f>(
        &mut self,
        qp: Option<QpIndex>,
        first: usize,
        frame: impl Fn(u16) -> Frame<'f>,
    ) -> bool {
        let host = HostSide { regions: &self.regions, table: &self.memory };
        let mut faults = 0;
        for op in self.out.dma_in.drain(first..) {
            if self.config.serves
                && let Some(listed) = self.remote.list(&host, qp, &op, frame(op.frame()))
            {
                faults += u64::from(listed.is_err());
                continue;
            }
            let done = match op {
                DmaIn::Scatter { frame: i, offset, length, to } => {
                    let start = usize::from(offset);
                    host.write_pieces(to, frame(i).slices(start..start + usize::from(length)))
                }
                DmaIn::AtomicWrite { frame: i, offset, to } => {
                    let mut bytes = [0; 8];
                    frame(i).copy_to(offset.into(), &mut bytes);
                    host.atomic(to, |_| Some(u64::from_ne_bytes(bytes))).map(drop)
                }
                //= IBTA 9.4.5: atomic-is-one-step
                DmaIn::Atomic { qp, resource, at, operation } => {
                    host.atomic(at, |value| operation.apply(value)).map(|before| {
                        if let Some(entry) = self.qps.get_mut(qp.0) {
                            entry.qp.atomic_done(resource, before);
                        }
                    })
                }
                DmaIn::Flush { at, length, persistent } => host.flush(at, length, persistent),
                DmaIn::Store { value, skip, length, to } => {
                    let bytes = value.to_ne_bytes();
                    host.write(to, &bytes[usize::from(skip)..usize::from(skip) + usize::from(length)])
                }
            };
            faults += u64::from(done.is_err());
        }
        self.counters.memory_faults += faults;
        faults == 0
    }

    /// Runs the operations of a packet that may fault, from index `first` on. If one does, undoes the packet's effects.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        index: QpIndex,
        packet: &Packet,
        received: &RxFrame<'_>,
        (first, completions): (usize, usize),
    ) -> Option<Verdict> {
        self.out.may_fault = false;
        let done = self.run_dma_from(Some(index), first, |_| received.frame);
        if done {
            self.out.result = None;
            return None;
        }
        let entry = self.qps.get_mut(index.0)?;
        split!(self, now, entry => qp, ctx);
        Some(qp.memory_fault(&mut ctx, packet, completions))
    }

    /// Copies the payload of the frame in transmit slot `slot` into it. False: memory is missing, and the frame must not be sent;
    /// call [`Nic::payload_missing`].
    ///
    /// Slots must come in the order in which they were emitted: each takes its copies from the front of the plan.
    #[inline]
    pub fn gather(&mut self, slot: u16, frame: &mut FrameMut<'_>) -> bool {
        let host = HostSide { regions: &self.regions, table: &self.memory };
        let mut whole = true;
        while let Some(op) = self.dma_out.get(self.gathered)
            && op.slot == slot
        {
            let index = self.gathered;
            self.gathered += 1;
            let start = usize::from(op.offset);
            let place = start..start + usize::from(op.length);
            if self.config.serves
                && let Some(payload) = self.remote.payload(index)
            {
                match payload {
                    Ok(bytes) => frame.write(start, bytes),
                    Err(_) => whole = false,
                }
                continue;
            }
            whole &= if place.end <= frame.a.len() {
                host.read(op.from, &mut frame.a[place]).is_ok()
            } else {
                host.read_pieces(op.from, frame.slices_mut(place)).is_ok()
            };
        }
        if self.gathered == self.dma_out.len() {
            self.dma_out.clear();
            self.gathered = 0;
            self.end_reads();
        }
        self.counters.memory_faults += u64::from(!whole);
        whole
    }

    /// Handles a frame of a QP that cannot be sent because its payload is missing.
    pub fn payload_missing(&mut self, now: Nanos, index: QpIndex, frame: &Frame<'_>) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        // A raw packet's request completed when its frame got a slot, and its content is the application's.
        if entry.qp.qp_type == QpType::RawPacket {
            return;
        }
        let Ok(packet) = wire::parse(frame) else { return };
        split!(self, now, entry => qp, ctx);
        qp.payload_missing(&mut ctx, packet.bth.psn, packet.info().is_response());
        self.touch(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
