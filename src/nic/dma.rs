//! The dma stage: the copies that a burst asked for, run together.

use super::Nic;
use crate::frame::{Frame, FrameMut};
use crate::transport::{DmaIn, Span};

/// Copy `length` bytes of host memory to byte `offset` of the frame in transmit slot `slot`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmaOut {
    pub(super) slot: u16,
    pub(super) offset: u16,
    pub(super) length: u16,
    pub(super) from: Span,
}

impl Nic {
    /// Runs what the received frames asked of memory; `frame(i)` is the `i`-th of the burst. As often as is best for the
    /// kind of memory: after each frame, or once for all.
    pub fn scatter<'f>(&mut self, frame: impl Fn(u16) -> Frame<'f>) {
        for op in self.out.dma_in.drain(..) {
            match op {
                DmaIn::Scatter { frame: i, offset, length, to } => {
                    let Some(region) = self.regions.get(to.mr.0 as usize).and_then(Option::as_ref) else {
                        continue;
                    };
                    let start = usize::from(offset);
                    let (a, b) = frame(i).slices(start..start + usize::from(length));
                    // The table has checked the bounds; the region checks again and refuses what does not fit.
                    let _ = region.memory.write(to.offset, a);
                    if !b.is_empty() {
                        let _ = region.memory.write(to.offset + a.len() as u64, b);
                    }
                }
                DmaIn::Atomic { qp, resource, at, operation } => {
                    let region = self.regions.get(at.mr.0 as usize).and_then(Option::as_ref);
                    let before = region.and_then(|r| r.memory.atomic(at.offset, |v| operation.apply(v)).ok());
                    if let (Some(before), Some(entry)) = (before, self.qps.get_mut(qp.0)) {
                        entry.qp.atomic_done(resource, before);
                    }
                }
                DmaIn::Store { value, skip, length, to } => {
                    let Some(region) = self.regions.get(to.mr.0 as usize).and_then(Option::as_ref) else {
                        continue;
                    };
                    let bytes = value.to_ne_bytes();
                    let piece = &bytes[usize::from(skip)..usize::from(skip) + usize::from(length)];
                    let _ = region.memory.write(to.offset, piece);
                }
            }
        }
    }

    /// Copies the payload of the frame in transmit slot `slot` into it.
    ///
    /// Slots come in the order in which they were emitted: each takes its copies from the front of the plan.
    pub fn gather(&mut self, slot: u16, frame: &mut FrameMut<'_>) {
        while let Some(op) = self.dma_out.front().filter(|op| op.slot == slot).copied() {
            self.dma_out.pop_front();
            let Some(region) = self.regions.get(op.from.mr.0 as usize).and_then(Option::as_ref) else {
                continue;
            };
            let start = usize::from(op.offset);
            let (a, b) = frame.slices_mut(start..start + usize::from(op.length));
            let _ = region.memory.read(op.from.offset, a);
            if !b.is_empty() {
                let _ = region.memory.read(op.from.offset + a.len() as u64, b);
            }
        }
    }
}
