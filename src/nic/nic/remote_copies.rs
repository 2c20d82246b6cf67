//! Copies from and to the memory of other processes.
//!
//! Such a copy takes a system call, and may block for as long as the other process likes: on a page of its own file
//! system, or one that is swapped out. A pass therefore only lists the copies, in one [`Batch`] for each process. A
//! thread of that process makes them, and the QPs concerned wait for it: see [`parking`](super::parking).
//!
//! ```text
//! a half of a pass      lists                                  once they are made
//! receiving half        writes and atomics, in order           completions, ACKs and READ responses may be sent
//! sending half          reads of payload, by transmit slot     payload is put into the frames
//! ```
//!
//! A packet counts as executed once its write is made. If a page is missing, because the process has unmapped
//! registered memory, the QP fails without telling its peer the reason.

use std::ops::Range;
use std::sync::Arc;

use super::host_side::{DmaOut, HostSide};
use crate::shared::memory::CopyFault;
use crate::shared::remote_memory::{Lookup, RemoteMemory};
use crate::transport::{AtomicOp, DmaIn, Span};
use crate::verbs::QpIndex;
use roxie_wire::frame::Frame;

/// Maximum number of buffers that are kept for reuse, and bytes of each.
const SPARE: usize = 16;
const SPARE_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKind {
    Read,
    Write,
    /// A read-modify-write; the previous value is kept for this responder resource.
    Atomic(AtomicOp, u8),
}

/// One copy of a batch.
#[derive(Clone, Copy, Debug)]
struct Copy {
    kind: CopyKind,
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
    /// Set when the batch is handed to a copying thread; 0 before.
    pub(super) number: u64,
    copies: Vec<Copy>,
    bytes: Vec<u8>,
}

/// The outcome of a write or an atomic operation for a QP. The previous value belongs to an atomic operation, with its
/// resource.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyOutcome {
    Failed,
    Atomic(u8, u64),
}

impl Batch {
    /// The memory of all its copies.
    pub fn memory(&self) -> &Arc<RemoteMemory> {
        &self.memory
    }

    /// True if a thread of the process has to make the copies.
    pub fn needs_thread(&self) -> bool {
        self.memory.waits_for_copier()
    }

    /// Number of copies.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// True if there are no copies.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Bytes of all copies.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Calls `each` with the QPs of writes and atomic operations that have failed or have a result.
    pub(super) fn outcomes(&self, mut each: impl FnMut(Option<QpIndex>, CopyOutcome)) {
        for copy in self.copies.iter().filter(|copy| copy.kind != CopyKind::Read) {
            match copy.kind {
                _ if !copy.is_done => each(copy.qp, CopyOutcome::Failed),
                CopyKind::Atomic(_, resource) => {
                    let before = self.bytes[copy.at..copy.at + 8].try_into().expect("8 bytes");
                    each(copy.qp, CopyOutcome::Atomic(resource, u64::from_ne_bytes(before)));
                }
                _ => {}
            }
        }
    }

    /// Returns the bytes of adjacent copies, if all were made.
    pub(super) fn read(&self, copies: Range<usize>) -> Option<&[u8]> {
        let all = self.copies.get(copies).filter(|all| !all.is_empty())?;
        let (first, last) = (all.first()?, all.last()?);
        all.iter().all(|copy| copy.is_done).then(|| &self.bytes[first.at..last.at + last.length])
    }

    /// Makes the copies; adjacent ones by one system call. Blocks until the process's pages are present.
    pub fn run(&mut self) {
        let (mut lookup, mut first) = (Lookup::default(), 0);
        while first < self.copies.len() {
            let continues = |pair: &[Copy]| {
                pair[0].kind == pair[1].kind
                    && !matches!(pair[0].kind, CopyKind::Atomic(..))
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
            CopyKind::Read => self.memory.read(lookup, first.address, bytes),
            CopyKind::Write => self.memory.write(lookup, first.address, bytes),
            CopyKind::Atomic(operation, _) => {
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

    fn add(&mut self, kind: CopyKind, address: u64, length: usize, qp: Option<QpIndex>) -> &mut [u8] {
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

/// Where the bytes of a copy in the transmit plan are.
pub(super) enum Payload<'a> {
    Local,
    Here(&'a [u8]),
    /// Copies in this range of the batch with this number, which is not back.
    Waits(u64, Range<usize>),
    Missing,
}

/// The copies of the current half of a pass.
#[derive(Debug, Default)]
pub(super) struct RemoteCopies {
    /// Batches; `None` while one is being made.
    batches: Vec<Option<Batch>>,
    /// Their numbers; 0: not handed to a thread.
    numbers: Vec<u64>,
    /// Index of the next batch to hand out.
    next: usize,
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
            self.batches.push(Some(Batch { memory: Arc::clone(memory), slot, number: 0, copies, bytes }));
            self.numbers.push(0);
            slot
        })
    }

    fn add(
        &mut self,
        memory: &Arc<RemoteMemory>,
        kind: CopyKind,
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
            copy_range(bytes, range.clone(), self.add(memory, CopyKind::Write, address, range.len(), qp));
        }))
    }

    /// Lists a write of payload for `to`. False: the span is not in remote memory, or access to a part of it was
    /// revoked.
    pub(super) fn list_write(
        &mut self,
        host: &HostSide<'_>,
        qp: QpIndex,
        to: Span,
        bytes: (&[u8], &[u8]),
    ) -> bool {
        matches!(self.write(host, Some(qp), to, bytes), Some(Ok(())))
    }

    /// Lists an operation on remote memory that the packet in `frame` requests. `None`: it does not concern remote
    /// memory.
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
                    self.add(memory, CopyKind::Atomic(operation, resource), address, range.len(), Some(qp));
                }))
            }
            DmaIn::Flush { .. } => None,
        }
    }

    /// Returns where the bytes of a copy in the transmit plan are.
    pub(super) fn payload(&self, index: usize) -> Payload<'_> {
        match self.sources.get(index) {
            None | Some(Source::Local) => Payload::Local,
            Some(Source::Missing) => Payload::Missing,
            Some(Source::Remote(slot, copies)) => match self.batches.get(*slot).and_then(Option::as_ref) {
                Some(batch) => batch.read(copies.clone()).map_or(Payload::Missing, Payload::Here),
                None => Payload::Waits(self.numbers[*slot], copies.clone()),
            },
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
                    self.add(memory, CopyKind::Read, address, range.len(), None);
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
        Some(batch)
    }

    /// Gives a batch that goes to a thread its number. Returns the QPs with writes in it.
    pub(super) fn hand_over(&mut self, batch: &mut Batch, number: u64) -> impl Iterator<Item = QpIndex> {
        invariant!(batch.number == 0 && number > 0, "batch {} is handed over as {number}", batch.number);
        batch.number = number;
        self.numbers[batch.slot] = number;
        let slot = batch.slot;
        self.waiting.iter().filter(move |(of, _)| *of == slot).map(|(_, qp)| *qp)
    }

    /// Takes back a batch that was made in the pass.
    pub(super) fn take_back(&mut self, batch: Batch) {
        let slot = batch.slot;
        invariant!(self.batches[slot].is_none(), "batch {slot} is taken back twice");
        self.batches[slot] = Some(batch);
    }

    /// Takes back a batch that a thread has made before the half ended. Otherwise returns it.
    pub(super) fn put_back(&mut self, batch: Batch) -> Option<Batch> {
        let slot = batch.slot;
        if self.numbers.get(slot) != Some(&batch.number) {
            return Some(batch);
        }
        invariant!(self.batches[slot].is_none(), "batch {} comes back twice", batch.number);
        self.batches[slot] = Some(batch);
        None
    }

    /// Returns the numbers of the batches that this half has handed to threads.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.numbers.iter().copied().filter(|number| *number > 0)
    }

    /// A write for this QP could not be made.
    pub(super) fn lose(&mut self, qp: Option<QpIndex>) {
        self.lost.extend(qp);
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
        while let Some(batch) = self.batches.pop() {
            batch.into_iter().for_each(|batch| self.reuse(batch));
        }
        self.numbers.clear();
        self.next = 0;
        self.waiting.clear();
        self.sources.clear();
    }
}

impl RemoteCopies {
    /// Keeps the buffers of a batch that is done, unless it was unusually large.
    pub(super) fn reuse(&mut self, batch: Batch) {
        let Batch { mut copies, mut bytes, .. } = batch;
        if self.spare.len() < SPARE && bytes.capacity() <= SPARE_BYTES {
            copies.clear();
            bytes.clear();
            self.spare.push((copies, bytes));
        }
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
