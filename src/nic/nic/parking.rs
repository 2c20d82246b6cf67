//! QPs that wait for copies: parked.
//!
//! A [`Batch`] of copies from and to the memory of another process goes to a thread of that process, and comes back
//! after a time that the process decides. A QP with copies in a batch is parked from the end of the half that listed
//! them until all its batches are back. The rest of the NIC continues.
//!
//! ```text
//! a parked QP                           once its batches are back
//! has no turn: it sends nothing         frames that waited for their payload are sent, in order
//! publishes no completion               its completions are published, or report LOC_PROT if a write could not be made
//! sets received packets aside           those are handled, in order, before newly received ones
//! has no timers                         its timers continue where they stood
//! ```
//!
//! The thread makes the batches of a process one after the other. Atomic operations of its QPs on one address are
//! therefore serialized. Those of two processes on a page that both have mapped are not, unless the NIC has mapped it
//! too.
//!
//! A command or work request that withdraws access takes effect immediately, so that no new copy is listed. Its answer
//! or completion waits for the batches that are out at that moment ([`Nic::take_awaited`], [`Nic::park_withdrawn`]). If
//! a batch does not come back in time, the memory is fenced, and the QPs that wait for it fail
//! ([`Nic::abandon`]).

use std::collections::VecDeque;
use std::sync::Arc;

use super::gsi::Gsis;
use super::host_side::Registered;
use super::parked::{KeptFrame, MAX_HELD, Parked, Piece, SetAside};
use super::remote_copies::{Batch, CopyOutcome};
use super::table::NumberedTable;
use super::{Nic, QpEntry, RxFrame};
use crate::shared::remote_memory::RemoteMemory;
use crate::verbs::{CqIndex, MrIndex, QpIndex, Wc, WcStatus};
use roxie_base::time::Nanos;

/// Maximum number of bytes of packets and frames of one QP: a window of the largest packets, twice.
const MAX_HELD_OF_QP: usize = 1 << 20;

/// Bytes that a packet is charged at least.
const SMALLEST_HELD: usize = 2048;

/// A batch that is not back.
#[derive(Debug)]
struct OutBatch {
    number: u64,
    memory: Arc<RemoteMemory>,
    handed: Nanos,
    /// When the thread could begin it; `MAX`: another batch precedes it.
    since: Nanos,
    bytes: usize,
    /// The half that listed the copies waits a little for it.
    is_awaited: bool,
    /// The QPs that wait for it. A QP that waits for several reasons is in the list as often.
    qps: Vec<QpIndex>,
    is_abandoned: bool,
}

/// The batches that are not back, and the QPs that wait for none any more.
#[derive(Debug, Default)]
pub(super) struct Parking {
    out: Vec<OutBatch>,
    last_number: u64,
    /// QPs that wait for no batch any more.
    released: VecDeque<QpIndex>,
    /// Number of parked QPs.
    parked: usize,
    /// Batches that the answer of the latest command waits for.
    awaited: Vec<u64>,
    /// When overdue batches were last looked for.
    checked_at: Nanos,
}

/// State of the batches that an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// At least one is not back.
    Pending,
    /// Every batch is back.
    Back,
    /// A batch does not come back, and may still touch memory.
    Overdue,
}

/// Batches on their way.
impl Nic {
    /// Takes note that a batch goes to a thread: parks its QPs.
    pub fn hand_over(&mut self, now: Nanos, batch: &mut Batch) {
        let parking = &mut self.parking;
        parking.last_number += 1;
        let number = parking.last_number;
        let qps: Vec<QpIndex> = self.dma.remote.hand_over(batch, number).collect();
        let (memory, bytes) = (Arc::clone(batch.memory()), batch.bytes());
        memory.hold(bytes, 0);
        let is_first = !parking.out.iter().any(|out| Arc::ptr_eq(&out.memory, &memory));
        let since = if is_first { now } else { Nanos::MAX };
        let is_awaited = memory.is_prompt();
        parking.out.push(OutBatch {
            number,
            memory,
            handed: now,
            since,
            bytes,
            is_awaited,
            qps: Vec::new(),
            is_abandoned: false,
        });
        let last = parking.out.len() - 1;
        qps.into_iter().for_each(|qp| parking.park(&mut self.qps, qp, last));
    }

    /// Takes back a batch that was made: in the pass, or by a thread.
    pub fn copied(&mut self, now: Nanos, batch: Batch) {
        let at = self.parking.out.iter().position(|out| out.number == batch.number);
        let out = at.map(|at| self.parking.out.remove(at));
        let is_late = out.as_ref().is_some_and(|out| out.is_abandoned);
        let mut failed = 0;
        batch.outcomes(|qp, outcome| match (&out, outcome) {
            _ if is_late => {}
            (_, CopyOutcome::Failed) if out.is_some() => {
                failed += 1;
                self.qps.lose(qp);
            }
            (_, CopyOutcome::Failed) => {
                failed += 1;
                self.dma.remote.lose(qp);
            }
            (_, CopyOutcome::Atomic(resource, before)) => self.qps.atomic_done(qp, resource, before),
        });
        self.counters.memory_faults += failed;
        let Some(out) = out else {
            self.dma.remote.take_back(batch);
            return;
        };
        out.memory.hold(0, out.bytes);
        // The thread begins the next batch now.
        if let Some(next) = self.parking.out.iter_mut().find(|next| Arc::ptr_eq(&next.memory, &out.memory)) {
            next.since = now;
        }
        if !is_late {
            self.end_wait(&out.qps, Some(&batch), out.number);
        }
        // The half that listed the copies may not have ended.
        if let Some(batch) = self.dma.remote.put_back(batch) {
            self.dma.remote.reuse(batch);
        }
    }

    /// True if batches of the half that has not ended are out, of processes that were prompt.
    pub fn half_waits(&self) -> bool {
        let awaited = |number| self.parking.out.iter().any(|out| out.number == number && out.is_awaited);
        self.dma.remote.numbers().any(awaited)
    }

    /// The batches of this half were not back in time for its end: their processes are waited for less often.
    pub fn note_late_copies(&self) {
        for number in self.dma.remote.numbers() {
            if let Some(out) = self.parking.out.iter().find(|out| out.number == number) {
                out.memory.note_late();
            }
        }
    }

    /// Completes the wait of these QPs for one batch. `None`: the batch does not come back.
    fn end_wait(&mut self, qps: &[QpIndex], batch: Option<&Batch>, number: u64) {
        for qp in qps {
            let Some(parked) = self.qps.parked_mut(*qp) else { continue };
            for frame in &mut parked.frames {
                frame.fill(batch, number);
            }
            parked.has_lost |= batch.is_none();
            invariant!(parked.batches > 0, "a QP waits for no batch, and batch {number} lists it");
            parked.batches -= 1;
            if parked.batches == 0 {
                self.parking.released.push_back(*qp);
            }
        }
    }

    /// Returns the numbers of batches that have taken `deadline`, which their threads spent waiting. Time in which a
    /// thread or the NIC lacks a processor does not count.
    pub fn overdue(&mut self, now: Nanos, deadline: Nanos) -> Vec<u64> {
        let mut overdue = Vec::new();
        // A NIC that was stopped, or had no processor, gives the threads their time again.
        let was_stopped = now - self.parking.checked_at > deadline + Nanos(deadline.0 / 8);
        self.parking.checked_at = now;
        for out in self.parking.out.iter_mut().filter(|out| !out.is_abandoned && out.since != Nanos::MAX) {
            if was_stopped || out.memory.is_paused() {
                out.since = now;
            } else if now - out.since >= deadline {
                match out.memory.is_copier_runnable() {
                    true => out.since = now,
                    false => overdue.push(out.number),
                }
            }
        }
        overdue
    }

    /// Fences the memory of a batch that is not back, and fails the QPs that wait for it.
    pub fn abandon(&mut self, number: u64) {
        let Some(out) = self.parking.out.iter().find(|out| out.number == number) else { return };
        let memory = &Arc::clone(&out.memory);
        memory.abandon();
        self.counters.memory_faults += 1;
        let mut lost = Vec::new();
        for out in self.parking.out.iter_mut().filter(|out| Arc::ptr_eq(&out.memory, memory)) {
            out.is_abandoned = true;
            lost.push((out.number, out.qps.clone()));
        }
        lost.into_iter().for_each(|(number, qps)| self.end_wait(&qps, None, number));
    }

    /// Returns since when the oldest batch is being made. `None`: none is out, or none is expected back.
    pub fn oldest_copies(&self) -> Option<Nanos> {
        self.parking.out.iter().filter(|out| !out.is_abandoned).map(|out| out.since).min()
    }

    /// True if QPs that wait for no batch any more have not continued.
    pub fn has_released(&self) -> bool {
        !self.parking.released.is_empty()
    }

    /// True if batches are out, or QPs that wait for no batch any more have not continued.
    #[inline]
    pub fn awaits_copies(&self) -> bool {
        !self.parking.out.is_empty() || !self.parking.released.is_empty()
    }
}

/// Limits of a parked QP.
impl Parking {
    /// Has a QP wait for a batch that is out.
    fn park(&mut self, qps: &mut NumberedTable<QpEntry>, qp: QpIndex, out: usize) {
        let (Some(entry), Some(batch)) = (qps.get_mut(qp.0), self.out.get_mut(out)) else {
            return;
        };
        // It waits for this batch already.
        if batch.qps.last() == Some(&qp) {
            return;
        }
        batch.qps.push(qp);
        entry.client.get_or_insert_with(|| Arc::clone(&batch.memory));
        if let Some(parked) = &mut entry.parked {
            parked.batches += 1;
            return;
        }
        self.parked += 1;
        invariant!(!entry.qp.is_parked(), "QP {} is parked twice", qp.0);
        entry.qp.set_parked(true);
        entry.parked = Some(Box::new(Parked::new(batch.handed, &batch.memory)));
    }

    /// True if the QP has to wait for copies: its own, or others of its process of which too many bytes are out.
    pub(super) fn has_to_wait(&mut self, qps: &mut NumberedTable<QpEntry>, qp: QpIndex) -> bool {
        let Some(entry) = qps.get(qp.0) else { return false };
        if entry.parked.is_some() {
            return true;
        }
        let Some(memory) = entry.client.as_ref().filter(|_| entry.holds_too_much()) else {
            return false;
        };
        let out = &self.out;
        let Some(last) = out.iter().rposition(|out| Arc::ptr_eq(&out.memory, memory) && !out.is_abandoned)
        else {
            return false;
        };
        self.park(qps, qp, last);
        true
    }

    /// Sets a received frame aside if its QP has to wait. `Some(false)`: there was no room, and the frame is dropped.
    pub(super) fn set_aside(
        &mut self,
        qps: &mut NumberedTable<QpEntry>,
        qp: QpIndex,
        received: &RxFrame<'_>,
    ) -> Option<bool> {
        if !self.has_to_wait(qps, qp) {
            return None;
        }
        let parked = qps.parked_mut(qp)?;
        // Their number counts too: each is handled in the pass in which the QP continues.
        let length = received.frame.len().max(SMALLEST_HELD);
        if parked.bytes + length > MAX_HELD_OF_QP || parked.memory.held() + length > MAX_HELD {
            return Some(false);
        }
        parked.hold(length);
        parked.set_aside.push_back(SetAside { bytes: received.frame.to_vec(), arrived: received.arrived });
        Some(true)
    }

    /// Keeps a frame of a QP until the batches of its payload are back.
    pub(super) fn keep_frame(
        &mut self,
        qps: &mut NumberedTable<QpEntry>,
        qp: QpIndex,
        bytes: Vec<u8>,
        pieces: Vec<Piece>,
    ) {
        for piece in &pieces {
            if let Some(out) = self.out.iter().position(|out| out.number == piece.number) {
                self.park(qps, qp, out);
            }
        }
        let Some(parked) = qps.parked_mut(qp) else { return };
        parked.hold(bytes.len());
        parked.frames.push_back(KeptFrame { bytes, is_missing: false, pieces });
    }

    /// Takes the completions of parked QPs out of those to publish.
    pub(super) fn hold_completions(
        &self,
        qps: &mut NumberedTable<QpEntry>,
        gsis: &Gsis,
        completions: &mut Vec<(CqIndex, Wc)>,
    ) {
        if self.parked == 0 {
            return;
        }
        completions.retain(|(cq, wc)| match qps.completing(gsis, *cq, wc) {
            Some(parked) => {
                parked.completions.push((*cq, *wc));
                false
            }
            None => true,
        });
    }
}

impl Nic {
    /// Parks QPs that have withdrawn access to memory of which batches are out.
    pub fn park_withdrawn(&mut self) {
        while let Some((qp, mr)) = self.out.withdrawn.pop() {
            for number in self.out_of_region(mr) {
                if let Some(out) = self.parking.out.iter().position(|out| out.number == number) {
                    self.parking.park(&mut self.qps, qp, out);
                }
            }
        }
    }
}

/// QPs that wait for no batch any more.
impl Nic {
    /// Returns a QP that waits for no batch any more. Caller sends its frames and then [unparks](Self::unpark) it.
    pub fn next_released(&mut self) -> Option<QpIndex> {
        while let Some(qp) = self.parking.released.front().copied() {
            if self.qps.parked_mut(qp).is_some_and(|parked| parked.batches == 0) {
                return Some(qp);
            }
            // Destroyed, or parked again by a command.
            self.parking.released.pop_front();
        }
        None
    }

    /// Returns how many QPs wait for no batch any more.
    pub fn released(&self) -> usize {
        self.parking.released.len()
    }

    /// Puts the [next](Self::next_released) such QP behind the others.
    pub fn release_later(&mut self) {
        self.parking.released.rotate_left(1);
    }

    /// Takes the next frame of such a QP. A QP that has failed or was reset sends none of them, and one that has lost a
    /// write none that could acknowledge it.
    pub fn next_frame(&mut self, qp: QpIndex) -> Option<KeptFrame> {
        let is_live = self.qps.get(qp.0)?.is_live();
        let parked = self.qps.parked_mut(qp)?;
        if parked.has_lost {
            parked.frames.retain(|frame| frame.is_missing);
        }
        let frame = parked.frames.pop_front()?;
        if is_live && !parked.was_reset {
            self.counters.memory_faults += u64::from(frame.is_missing);
            return Some(frame);
        }
        parked.frames.clear();
        None
    }

    /// Returns a frame for which the port has no room.
    pub fn keep_again(&mut self, qp: QpIndex, frame: KeptFrame) {
        if let Some(parked) = self.qps.parked_mut(qp) {
            parked.frames.push_front(frame);
        }
    }

    /// Has a QP continue. Returns the received frames that were set aside, for [`receive_again`](Self::receive_again),
    /// and true if the QP has lost a write, and must fail before.
    pub fn unpark(&mut self, now: Nanos, qp: QpIndex) -> (VecDeque<SetAside>, bool) {
        let released = self.parking.released.pop_front();
        invariant!(released == Some(qp), "QP {} continues out of turn", qp.0);
        let Some(entry) = self.qps.get_mut(qp.0) else { return (VecDeque::new(), false) };
        let Some(parked) = entry.parked.take() else { return (VecDeque::new(), false) };
        invariant!(parked.batches == 0, "QP {} continues, and waits for {} batches", qp.0, parked.batches);
        invariant!(parked.frames.is_empty(), "{} frames of QP {} are forgotten", parked.frames.len(), qp.0);
        self.parking.parked -= 1;
        parked.memory.hold(0, parked.bytes);
        entry.qp.set_parked(false);
        entry.qp.continue_timer(now - parked.since);
        self.scheduler.mark_changed(&mut entry.schedule);
        for (cq, mut wc) in parked.completions {
            if parked.has_lost && wc.status == WcStatus::Success {
                wc.status = WcStatus::LocProt;
            }
            if self.cqs.holds(cq) {
                self.out.completions.push((cq, wc));
            }
        }
        (parked.set_aside, parked.has_lost && !parked.was_reset)
    }
}

/// Withdrawn access.
impl Nic {
    /// Returns the batches that the answer of the command executed last waits for; empty if it waits for none.
    pub fn take_awaited(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.parking.awaited)
    }

    /// Returns what became of these batches.
    pub fn awaited(&self, numbers: &[u64]) -> Awaited {
        let mut state = Awaited::Back;
        for out in self.parking.out.iter().filter(|out| numbers.contains(&out.number)) {
            if out.is_abandoned {
                return Awaited::Overdue;
            }
            state = Awaited::Pending;
        }
        state
    }

    /// Returns the batches of a region's memory that are out.
    fn out_of_region(&self, mr: MrIndex) -> Vec<u64> {
        if self.parking.out.is_empty() {
            return Vec::new();
        }
        let Some(memory) = self.dma.region(mr).and_then(|region| region.memory.remote_memory()) else {
            return Vec::new();
        };
        // The process of an abandoned batch ends, and its QPs wait for nothing.
        let is_its = |out: &&OutBatch| Arc::ptr_eq(&out.memory, memory) && !out.is_abandoned;
        self.parking.out.iter().filter(is_its).map(|out| out.number).collect()
    }
}

/// Answers, and QPs that are destroyed.
impl Parking {
    /// Has the answer of a command wait for the batches of a region's memory.
    pub(super) fn await_region(&mut self, region: Option<&Registered>) {
        let Some(memory) = region.and_then(|region| region.memory.remote_memory()) else { return };
        let its = self.out.iter().filter(|out| Arc::ptr_eq(&out.memory, memory));
        self.awaited.extend(its.map(|out| out.number));
    }

    /// Has the answer of a command wait for the batches of a QP, which is destroyed, fails or is reset.
    pub(super) fn await_qp(&mut self, qps: &mut NumberedTable<QpEntry>, qp: QpIndex) {
        if let Some(parked) = qps.parked_mut(qp) {
            parked.was_reset = true;
        }
        let its = self.out.iter().filter(|out| out.qps.contains(&qp));
        self.awaited.extend(its.map(|out| out.number));
    }

    /// Forgets what the answer of an earlier command waited for.
    pub(super) fn await_nothing(&mut self) {
        self.awaited.clear();
    }

    /// Drops the wait of a QP that is destroyed.
    pub(super) fn forget(&mut self, entry: &mut QpEntry) {
        if let Some(parked) = entry.parked.take() {
            self.parked -= 1;
            parked.memory.hold(0, parked.bytes);
        }
    }

    /// For tests: returns how the parked QPs and the lists of QPs that wait for batches disagree, if they do.
    pub(super) fn disagrees(&self, qps: &NumberedTable<QpEntry>) -> Option<String> {
        let parked = qps.iter().filter(|(_, entry)| entry.parked.is_some()).count();
        if parked != self.parked {
            return Some(format!("{parked} QPs are parked, and {} are counted", self.parked));
        }
        let out = self.out.iter().filter(|out| !out.is_abandoned);
        let listed: Vec<QpIndex> = out.flat_map(|out| out.qps.iter().copied()).collect();
        qps.iter().find_map(|(index, entry)| {
            let qp = QpIndex(index);
            let waits = entry.parked.as_ref().map_or(0, |parked| parked.batches);
            let listings = listed.iter().filter(|listed| **listed == qp).count();
            let is_released = waits > 0 || entry.parked.is_none() || self.released.contains(&qp);
            (waits != listings || !is_released)
                .then(|| format!("QP {} waits for {waits} batches, and {listings} list it", entry.qp.qpn))
        })
    }
}
