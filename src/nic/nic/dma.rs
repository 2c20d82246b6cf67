//! The DMA stage: the copies of a burst, which run together.

use super::host_side::{DmaOut, HostSide, Registered};
use super::parked::Piece;
use super::remote_copies::{Batch, Payload, RemoteCopies};
use super::{Nic, RxFrame, split};
use crate::shared::memory::CopyFault;
use crate::transport::{DmaIn, MemoryTable, Span, Verdict};
use crate::verbs::{MrIndex, QpIndex, QpType, WcStatus};
use roxie_base::time::Nanos;
use roxie_wire::frame::{Frame, FrameMut};
use roxie_wire::{self as wire, Packet};

/// The outcome of gathering a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// The frame is complete.
    Whole,
    /// Memory is missing, and the frame must not be sent: call [`Nic::payload_missing`].
    Missing,
    /// The NIC has kept a copy of the frame, which waits for its payload ([`Nic::next_frame`]). Its slot is cancelled.
    Waits,
}

/// The DMA stage.
#[derive(Debug)]
pub(super) struct Dma {
    /// The NIC serves other processes, whose memory is copied while the worker is not locked.
    serves: bool,
    /// Registered memory, by the slots of its regions.
    regions: Vec<Option<Registered>>,
    /// Copies for the frames of the burst, in the order of their slots.
    out: Vec<DmaOut>,
    /// Number of these copies already made.
    gathered: usize,
    pub(super) remote: RemoteCopies,
    /// Payload that the frame being gathered waits for.
    pieces: Vec<Piece>,
}

impl Dma {
    /// The stage of a NIC with up to `regions` regions. `copies` are planned for a burst.
    pub(super) fn new(serves: bool, regions: u32, copies: usize) -> Dma {
        Dma {
            serves,
            regions: (0..regions).map(|_| None).collect(),
            out: Vec::with_capacity(copies),
            gathered: 0,
            remote: RemoteCopies::default(),
            pieces: Vec::new(),
        }
    }

    /// Sets the memory of a region.
    pub(super) fn add(&mut self, mr: MrIndex, registered: Registered) {
        debug_assert!(self.out.is_empty(), "commands run between bursts, when no copy is pending");
        self.regions[mr.place()] = Some(registered);
    }

    /// Returns the memory of a region.
    pub(super) fn region(&self, mr: MrIndex) -> Option<&Registered> {
        self.regions.get(mr.place()).and_then(Option::as_ref)
    }

    /// Removes the memory of a region, which no copy uses from then on.
    pub(super) fn remove(&mut self, mr: MrIndex) -> Option<Registered> {
        debug_assert!(self.out.is_empty(), "commands run between bursts, when no copy is pending");
        self.regions[mr.place()].take()
    }

    /// Plans a copy for a frame. Slots must come in the order in which their frames are [gathered](Self::gather).
    #[inline(always)]
    pub(super) fn plan(&mut self, copy: DmaOut) {
        let is_next = self.out.last().is_none_or(|last| last.slot <= copy.slot);
        invariant!(is_next, "a copy for slot {} follows those of later slots", copy.slot);
        self.out.push(copy);
    }

    /// True if a planned copy was not made yet.
    #[inline(always)]
    pub(super) fn is_planned(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes payload to memory, or lists the write if another process has the memory.
    ///
    /// # Errors
    /// If the memory is missing.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        table: &MemoryTable,
        qp: QpIndex,
        to: Span,
        bytes: (&[u8], &[u8]),
    ) -> Result<(), CopyFault> {
        let host = HostSide { regions: &self.regions, table };
        if self.serves && self.remote.list_write(&host, qp, to, bytes) {
            return Ok(());
        }
        host.write_pieces(to, bytes)
    }

    /// Runs an operation that a packet for `qp` in `frame` has requested, or lists it if another process has the
    /// memory. Returns the previous value if it is an atomic operation that has run.
    ///
    /// # Errors
    /// If the memory is missing.
    fn run(
        &mut self,
        table: &MemoryTable,
        qp: Option<QpIndex>,
        op: &DmaIn,
        frame: Frame<'_>,
    ) -> Result<Option<u64>, CopyFault> {
        let host = HostSide { regions: &self.regions, table };
        if self.serves
            && let Some(listed) = self.remote.list(&host, qp, op, frame)
        {
            return listed.map(|()| None);
        }
        match *op {
            DmaIn::Scatter { offset, length, to, .. } => {
                let start = usize::from(offset);
                host.write_pieces(to, frame.slices(start..start + usize::from(length)))?;
            }
            DmaIn::AtomicWrite { offset, to, .. } => {
                let mut bytes = [0; 8];
                frame.copy_to(offset.into(), &mut bytes);
                host.atomic(to, |_| Some(u64::from_ne_bytes(bytes)))?;
            }
            //= IBTA 9.4.5: atomic-is-one-step
            DmaIn::Atomic { at, operation, .. } => {
                return host.atomic(at, |value| operation.apply(value)).map(Some);
            }
            DmaIn::Flush { at, length, persistent } => host.flush(at, length, persistent)?,
            DmaIn::Store { value, skip, length, to } => {
                let bytes = value.to_ne_bytes();
                host.write(to, &bytes[usize::from(skip)..usize::from(skip) + usize::from(length)])?;
            }
        }
        Ok(None)
    }

    /// Copies the payload of the frame in transmit slot `slot` into it. False: memory is missing.
    #[inline]
    fn gather(&mut self, table: &MemoryTable, slot: u16, frame: &mut FrameMut<'_>) -> bool {
        let host = HostSide { regions: &self.regions, table };
        let mut whole = true;
        while let Some(op) = self.out.get(self.gathered)
            && op.slot == slot
        {
            let index = self.gathered;
            self.gathered += 1;
            let start = usize::from(op.offset);
            let place = start..start + usize::from(op.length);
            invariant!(place.end <= frame.len(), "payload ends at byte {} of {}", place.end, frame.len());
            if self.serves {
                match self.remote.payload(index) {
                    Payload::Local => {}
                    Payload::Here(bytes) => {
                        frame.write(start, bytes);
                        continue;
                    }
                    Payload::Waits(number, copies) => {
                        self.pieces.push(Piece { number, copies, offset: start });
                        continue;
                    }
                    Payload::Missing => {
                        whole = false;
                        continue;
                    }
                }
            }
            whole &= if place.end <= frame.a.len() {
                host.read(op.from, &mut frame.a[place]).is_ok()
            } else {
                host.read_pieces(op.from, frame.slices_mut(place)).is_ok()
            };
        }
        let next = self.out.get(self.gathered);
        invariant!(next.is_none_or(|next| next.slot > slot), "the frame of slot {slot} lacks payload");
        if self.gathered == self.out.len() {
            self.out.clear();
            self.gathered = 0;
            if self.serves {
                self.remote.clear();
            }
        }
        whole
    }
}

/// Copies from and to the memory of other processes.
impl Nic {
    /// Lists the reads for the frames of a burst. Call this before the first [`gather`](Self::gather).
    pub fn list_reads(&mut self) {
        let Dma { serves, regions, out, remote, .. } = &mut self.dma;
        if *serves {
            let host = HostSide { regions, table: &self.memory };
            out.iter().for_each(|copy| remote.list_read(&host, copy));
        }
    }

    /// Returns the next batch of copies that this half of the pass waits for.
    #[inline]
    pub fn next_copies(&mut self) -> Option<Batch> {
        self.dma.remote.next_batch()
    }

    /// Completes the writes of this half, and fails the QPs of which one could not be made. Call this before their
    /// completions and acknowledgements.
    #[inline]
    pub fn end_writes(&mut self, now: Nanos) {
        if self.dma.remote.has_batches() {
            self.fail_lost(now);
            self.dma.remote.clear();
        }
    }

    fn fail_lost(&mut self, now: Nanos) {
        while let Some(index) = self.dma.remote.take_lost() {
            let Some(entry) = self.qps.get(index.0) else { continue };
            let qpn = entry.qp.qpn;
            let completed = self.out.completions.iter_mut().map(|(_, wc)| wc);
            for wc in completed.filter(|wc| wc.qpn == qpn && wc.status == WcStatus::Success) {
                wc.status = WcStatus::LocProt;
            }
            self.lose_qp(now, index);
        }
    }
}

impl Nic {
    /// Runs the memory operations of received frames; `frame(i)` is frame `i` of the burst. May be called after each
    /// frame, or once for all.
    pub fn run_dma<'f>(&mut self, frame: impl Fn(u16) -> Frame<'f>) {
        self.run_dma_from(None, 0, frame);
    }

    /// Runs the operations from index `first` on, which a packet for `qp` has requested. Operations on remote memory
    /// are listed instead, and run while the worker is not locked. False: at least one operation failed.
    pub(super) fn run_dma_from<'f>(
        &mut self,
        qp: Option<QpIndex>,
        first: usize,
        frame: impl Fn(u16) -> Frame<'f>,
    ) -> bool {
        let mut faults = 0;
        for op in self.out.dma_in.drain(first..) {
            let done = self.dma.run(&self.memory, qp, &op, frame(op.frame()));
            if let (Ok(Some(before)), DmaIn::Atomic { qp, resource, .. }) = (&done, &op)
                && let Some(entry) = self.qps.get_mut(qp.0)
            {
                entry.qp.atomic_done(*resource, *before);
            }
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

    /// Copies the payload of the frame of `qp` in transmit slot `slot` into it.
    ///
    /// Slots must come in the order in which they were emitted: each takes its copies from the front of the plan.
    #[inline]
    pub fn gather(&mut self, slot: u16, qp: QpIndex, frame: &mut FrameMut<'_>) -> Gathered {
        let whole = self.dma.gather(&self.memory, slot, frame);
        self.counters.memory_faults += u64::from(!whole);
        if self.dma.serves && self.waits_for_payload(qp, frame, whole) {
            return Gathered::Waits;
        }
        if whole { Gathered::Whole } else { Gathered::Missing }
    }

    /// Keeps a frame that waits for its payload, or for the frames of its QP before it.
    fn waits_for_payload(&mut self, qp: QpIndex, frame: &FrameMut<'_>, whole: bool) -> bool {
        let pieces = std::mem::take(&mut self.dma.pieces);
        let waits = whole && (!pieces.is_empty() || self.qps.parked_mut(qp).is_some());
        if waits {
            self.parking.keep_frame(&mut self.qps, qp, frame.as_frame().to_vec(), pieces);
        }
        waits
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
        self.mark_changed(index);
    }
}
