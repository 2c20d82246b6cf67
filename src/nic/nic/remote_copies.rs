//! Copies from and to the memory of other processes.
//!
//! Such a copy takes a system call, and may block for as long as the other process likes: on a page of its own file system, or one
//! that is swapped out. A pass therefore only lists the copies, in one [`Batch`] for each process. The thread that runs the worker
//! then makes them without the worker's lock: see `engine::remote_pass`.
//!
//! ```text
//! a half of a pass      lists                                  once they are made
//! receiving half        writes and atomics, in order           completions, ACKs and READ responses may be sent
//! sending half          reads of payload, by transmit slot     payload is put into the frames
//! ```
//!
//! A packet counts as executed once its write is made. If a page is missing, because the process has unmapped registered memory,
//! the QP fails without telling its peer the reason.

use std::ops::Range;
use std::sync::Arc;

use super::host_side::{DmaOut, HostSide};
use crate::shared::memory::CopyFault;
use crate::shared::remote_memory::{Lookup, RemoteMemory};
use crate::transport::{AtomicOp, DmaIn, Span};
use crate::verbs::QpIndex;
use roxie_wire::frame::Frame;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// A read-modify-write; the previous value is kept for this responder resource.
    Atomic(AtomicOp, u8),
}

/// One copy of a batch.
#[derive(Clone, Copy, Debug)]
struct Copy {
    kind: Kind,
    address: u64,
    /// Position of the bytes in the batch.
    at: usize,
    length: usize,
    /// The QP that fails if the copy cannot be made.
    qp: Option<QpIndex>,
    is_done: bool,
}

/// Copies from and to the memory of one process, in order, with their bytes.
#[derive(Debug)]
pub struct Batch {
    memory: Arc<RemoteMemory>,
    slot: usize,
    copies: Vec<Copy>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Makes the copies; adjacent ones by one system call. Blocks until the process's pages are present.
    pub fn run(&mut self) {
        let (mut lookup, mut first) = (Lookup::default(), 0);
        while first < self.copies.len() {
            let continues = |pair: &[Copy]| {
                pair[0].kind == pair[1].kind
                    && !matches!(pair[0].kind, Kind::Atomic(..))
                    && pair[0].address.wrapping_add(pair[0].length as u64) == pair[1].address
            };
            let count = 1 + self.copies[first..].windows(2).take_while(|pair| continues(pair)).count();
            let end = first + count;
            if !self.copy(first..end, &mut lookup) && count > 1 {
                for one in first..end {
                    self.copy(one..one + 1, &mut lookup);
                }
            }
            first = end;
        }
    }

    fn copy(&mut self, these: Range<usize>, lookup: &mut Lookup) -> bool {
        let (first, last) = (self.copies[these.start], self.copies[these.end - 1]);
        let bytes = &mut self.bytes[first.at..last.at + last.length];
        let copied = match first.kind {
            Kind::Read => self.memory.read(lookup, first.address, bytes),
            Kind::Write => self.memory.write(lookup, first.address, bytes),
            Kind::Atomic(operation, _) => {
                let mut before = [0; 8];
                self.memory.read(lookup, first.address, &mut before).and_then(|()| {
                    bytes.copy_from_slice(&before);
                    // An unchanged value is not written: the process may have changed it since.
                    match operation.apply(u64::from_ne_bytes(before)) {
                        Some(after) => self.memory.write(lookup, first.address, &after.to_ne_bytes()),
                        None => Ok(()),
                    }
                })
            }
        };
        let is_done = copied.is_ok();
        self.copies[these].iter_mut().for_each(|copy| copy.is_done = is_done);
        is_done
    }

    fn add(&mut self, kind: Kind, address: u64, length: usize, qp: Option<QpIndex>) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.resize(at + length, 0);
        self.copies.push(Copy { kind, address, at, length, qp, is_done: false });
        &mut self.bytes[at..]
    }
}

/// Source of a copy in the transmit plan.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Local,
    /// Copies in this range of this batch.
    Remote(usize, Range<usize>),
    Missing,
}

/// The copies of the current half of a pass.
#[derive(Debug, Default)]
pub(super) struct RemoteCopies {
    /// Batches; `None` while one is being made.
    batches: Vec<Option<Batch>>,
    /// Index of the next batch to hand out.
    next: usize,
    /// Memory of the batch being made.
    under_way: Option<Arc<RemoteMemory>>,
    /// QPs with writes in a batch, with the batch's index.
    waiting: Vec<(usize, QpIndex)>,
    /// Sources of the copies in the transmit plan.
    sources: Vec<Source>,
    /// QPs with a write that failed.
    lost: Vec<QpIndex>,
    /// Buffers of completed batches, for reuse.
    spare: Vec<(Vec<Copy>, Vec<u8>)>,
}

impl RemoteCopies {
    fn batch(&mut self, memory: &Arc<RemoteMemory>) -> usize {
        let is_its = |batch: &Option<Batch>| batch.as_ref().is_some_and(|b| Arc::ptr_eq(&b.memory, memory));
        self.batches.iter().rposition(is_its).unwrap_or_else(|| {
            let (slot, (copies, bytes)) = (self.batches.len(), self.spare.pop().unwrap_or_default());
            self.batches.push(Some(Batch { memory: Arc::clone(memory), slot, copies, bytes }));
            slot
        })
    }

    fn add(
        &mut self,
        memory: &Arc<RemoteMemory>,
        kind: Kind,
        address: u64,
        length: usize,
        qp: Option<QpIndex>,
    ) -> &mut [u8] {
        let slot = self.batch(memory);
        if let Some(qp) = qp
            && self.waiting.last() != Some(&(slot, qp))
        {
            self.waiting.push((slot, qp));
        }
        let batch = self.batches[slot].as_mut().expect("none is handed out while they are listed");
        batch.add(kind, address, length, qp)
    }

    /// Lists a write of a payload in two pieces. `None`: the span is not in remote memory.
    fn write(
        &mut self,
        host: &HostSide<'_>,
        qp: Option<QpIndex>,
        to: Span,
        bytes: (&[u8], &[u8]),
    ) -> Option<Result<(), CopyFault>> {
        let memory = host.remote(to)?;
        let length = bytes.0.len() + bytes.1.len();
        Some(host.remote_places(to, length, |address, range| {
            copy_range(bytes, range.clone(), self.add(memory, Kind::Write, address, range.len(), qp));
        }))
    }

    /// Lists a write of payload for `to`. False: the span is not in remote memory, or access to a part of it was revoked.
    pub(super) fn list_write(
        &mut self,
        host: &HostSide<'_>,
        qp: QpIndex,
        to: Span,
        bytes: (&[u8], &[u8]),
    ) -> bool {
        matches!(self.write(host, Some(qp), to, bytes), Some(Ok(())))
    }

    /// Lists an operation on remote memory that the packet in `frame` requests. `None`: it does not concern remote memory.
    pub(super) fn list(
        &mut self,
        host: &HostSide<'_>,
        qp: Option<QpIndex>,
        op: &DmaIn,
        frame: Frame<'_>,
    ) -> Option<Result<(), CopyFault>> {
        match *op {
            DmaIn::Scatter { offset, length, to, .. } => {
                let start = usize::from(offset);
                self.write(host, qp, to, frame.slices(start..start + usize::from(length)))
            }
            DmaIn::AtomicWrite { offset, to, .. } => {
                let mut value = [0; 8];
                frame.copy_to(offset.into(), &mut value);
                self.write(host, qp, to, (&value, &[]))
            }
            DmaIn::Store { value, skip, length, to } => {
                let (value, from) = (value.to_ne_bytes(), usize::from(skip));
                self.write(host, qp, to, (&value[from..from + usize::from(length)], &[]))
            }
            DmaIn::Atomic { qp, resource, at, operation } => {
                let memory = host.remote(at)?;
                Some(host.remote_places(at, 8, |address, range| {
                    self.add(memory, Kind::Atomic(operation, resource), address, range.len(), Some(qp));
                }))
            }
            DmaIn::Flush { .. } => None,
        }
    }

    /// Returns the bytes of a copy in the transmit plan. `None`: they are in local memory.
    pub(super) fn payload(&self, index: usize) -> Option<Result<&[u8], CopyFault>> {
        match self.sources.get(index)? {
            Source::Local => None,
            Source::Missing => Some(Err(CopyFault::Gone)),
            Source::Remote(slot, copies) => {
                let batch = self.batches.get(*slot).and_then(Option::as_ref);
                let made = batch.and_then(|batch| {
                    let all = batch.copies.get(copies.clone()).filter(|all| !all.is_empty())?;
                    let (first, last) = (all.first()?, all.last()?);
                    all.iter().all(|copy| copy.is_done).then(|| &batch.bytes[first.at..last.at + last.length])
                });
                Some(made.ok_or(CopyFault::Gone))
            }
        }
    }

    /// Lists the reads of a copy in the transmit plan. Call this for each, in their order.
    pub(super) fn list_read(&mut self, host: &HostSide<'_>, copy: &DmaOut) {
        let source = match host.remote(copy.from) {
            None => Source::Local,
            Some(memory) => {
                let slot = self.batch(memory);
                let first = self.length_of(slot);
                let listed = host.remote_places(copy.from, usize::from(copy.length), |address, range| {
                    self.add(memory, Kind::Read, address, range.len(), None);
                });
                listed.map_or(Source::Missing, |()| Source::Remote(slot, first..self.length_of(slot)))
            }
        };
        self.sources.push(source);
    }

    fn length_of(&self, slot: usize) -> usize {
        self.batches[slot].as_ref().map_or(0, |batch| batch.copies.len())
    }

    /// Hands out the next batch of copies that this half of the pass waits for.
    #[inline]
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        let batch = self.batches.get_mut(self.next)?.take()?;
        self.next += 1;
        self.under_way = Some(Arc::clone(&batch.memory));
        Some(batch)
    }

    /// Takes back a batch that was made. Calls `atomic_done` with the QP, the responder resource and the previous value of each atomic
    /// operation. Returns how many copies could not be made.
    pub(super) fn take_back(&mut self, batch: Batch, mut atomic_done: impl FnMut(QpIndex, u8, u64)) -> u64 {
        let mut failed = 0;
        self.under_way = None;
        for copy in batch.copies.iter().filter(|copy| copy.kind != Kind::Read) {
            if !copy.is_done {
                failed += 1;
                self.lost.extend(copy.qp);
            } else if let (Kind::Atomic(_, resource), Some(qp)) = (copy.kind, copy.qp) {
                let before = batch.bytes[copy.at..copy.at + 8].try_into().expect("8 bytes");
                atomic_done(qp, resource, u64::from_ne_bytes(before));
            }
        }
        let slot = batch.slot;
        self.batches[slot] = Some(batch);
        failed
    }

    /// Gives up the batch being made: fences its process, and loses the QPs that wait for it. False: none is being made.
    pub(super) fn abandon(&mut self) -> bool {
        let Some(memory) = self.under_way.take() else { return false };
        memory.abandon();
        let slot = self.next - 1;
        let waiting = self.waiting.iter().filter(|(of, _)| *of == slot);
        self.lost.extend(waiting.map(|(_, qp)| *qp));
        true
    }

    /// True if this half of a pass has listed copies.
    #[inline]
    pub(super) fn has_batches(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Takes a QP of which a write could not be made.
    pub(super) fn take_lost(&mut self) -> Option<QpIndex> {
        self.lost.pop()
    }

    /// Discards the copies of a completed half.
    pub(super) fn clear(&mut self) {
        for batch in self.batches.drain(..).flatten() {
            let Batch { mut copies, mut bytes, .. } = batch;
            copies.clear();
            bytes.clear();
            self.spare.push((copies, bytes));
        }
        self.next = 0;
        self.waiting.clear();
        self.sources.clear();
    }
}

/// Copies the bytes in `range` of two consecutive pieces.
fn copy_range((first, second): (&[u8], &[u8]), range: Range<usize>, to: &mut [u8]) {
    let split = first.len();
    let from = &first[range.start.min(split)..range.end.min(split)];
    let (head, tail) = to.split_at_mut(from.len());
    head.copy_from_slice(from);
    tail.copy_from_slice(&second[range.start.max(split) - split..range.end.max(split) - split]);
}
