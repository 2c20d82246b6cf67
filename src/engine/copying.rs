//! Copies that threads of clients make, and what waits for them.
//!
//! A copy from or to the memory of a client may take as long as the client likes. The worker makes none if the client
//! has a copying thread (`RemoteMemory::copied_by`): a batch goes to that thread, the worker continues, and the batch
//! comes back through a channel. QPs and answers that depend on the batch wait meanwhile (`roxie_nic::nic::parking`). A
//! copy blocks the thread of its client alone.
//!
//! ```text
//! worker                             copying thread of a client
//! ------                             --------------------------
//! lists copies, parks their QPs
//! hands a batch over      ---------> makes the copies
//! continues                          returns the batch, wakes the worker if it sleeps
//! resumes the QPs         <---------
//! ```
//!
//! A half waits for a few microseconds for its batches, as long as the client's batches come back that soon. Its QPs
//! are then not parked. Memory without such a thread is copied in the pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::control::Answered;
use super::wait_policy::WaitPolicy;
use super::worker::Worker;
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;
use roxie_nic::nic::{Awaited, Batch, ControlError, Gathered, KeptFrame};
use roxie_nic::shared::Doorbells;
use roxie_nic::shared::remote_memory::CopyJob;
use roxie_nic::verbs::QpIndex;

/// The worker's side.
#[derive(Debug)]
pub(super) struct Copying {
    returns: Sender<Batch>,
    returned: Receiver<Batch>,
    /// Answers that wait for batches.
    withheld: Vec<Withheld>,
    /// How long a half waits for its batches; zero in virtual time.
    pub(super) patience: Duration,
    /// Number of halves that do not wait, because another program took the processor meanwhile.
    skipped: u32,
}

/// The answer to a command, and the batches that it waits for.
#[derive(Debug)]
struct Withheld {
    batches: Vec<u64>,
    answer: Sender<Answered>,
    answered: Answered,
}

/// A batch on its way to a copying thread and back.
#[derive(Debug)]
struct Job {
    batch: Option<Batch>,
    returns: Sender<Batch>,
    worker: Doorbells,
}

impl CopyJob for Job {
    fn run(mut self: Box<Self>) {
        if let Some(batch) = &mut self.batch {
            batch.run();
        }
    }

    fn copies(&self) -> u32 {
        self.batch.as_ref().map_or(0, |batch| batch.len() as u32)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Made or not: the worker must not wait for a thread that has ended.
        if let Some(batch) = self.batch.take()
            && self.returns.send(batch).is_ok()
        {
            self.worker.wake_if_sleeping();
        }
    }
}

impl Default for Copying {
    fn default() -> Copying {
        let (returns, returned) = unbounded();
        Copying { returns, returned, withheld: Vec::new(), patience: Duration::ZERO, skipped: 0 }
    }
}

impl Copying {
    /// True if batches are back that the worker has not taken.
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Answers a command, once these batches are back.
    pub(super) fn answer(&mut self, batches: Vec<u64>, answer: Sender<Answered>, answered: Answered) {
        if batches.is_empty() {
            let _ = answer.send(answered);
        } else {
            self.withheld.push(Withheld { batches, answer, answered });
        }
    }

    /// Drops what waits: the engine is dead.
    pub(super) fn die(&mut self) {
        self.withheld.clear();
    }
}

impl Worker {
    /// Makes the copies that a half has listed, or hands them to the threads of their clients.
    pub(super) fn copy(&mut self, now: Nanos) {
        let mut waits = false;
        while let Some(mut batch) = self.nic.next_copies() {
            if !batch.needs_thread() {
                batch.run();
                self.nic.copied(now, batch);
                continue;
            }
            debug_assert!(!batch.is_empty(), "a batch without copies is handed over");
            self.nic.hand_over(now, &mut batch);
            let memory = Arc::clone(batch.memory());
            waits |= memory.is_prompt();
            let (returns, worker) = (self.copying.returns.clone(), self.doorbells().clone());
            memory.hand_over(Box::new(Job { batch: Some(batch), returns, worker }));
        }
        if waits && !self.copying.patience.is_zero() {
            match self.copying.skipped.checked_sub(1) {
                Some(fewer) => self.copying.skipped = fewer,
                None => self.wait_briefly(now),
            }
        }
        self.nic.park_withdrawn();
    }

    /// Waits a little for the batches of this half, so that it need not park their QPs: a prompt copy takes less than
    /// that. Another program that takes the processor meanwhile ends such waits for a while.
    fn wait_briefly(&mut self, now: Nanos) {
        let began = Instant::now();
        while self.nic.half_waits() {
            match self.copying.returned.try_recv() {
                Ok(batch) => self.nic.copied(now, batch),
                Err(_) if began.elapsed() >= self.copying.patience => break,
                // The copying thread may need this processor.
                Err(_) => std::thread::yield_now(),
            }
        }
        self.nic.note_late_copies();
        if began.elapsed() > Nanos(WaitPolicy::YIELD_LOST_NS).as_duration() {
            self.copying.skipped = WaitPolicy::SKIPPED_COPY_WAITS;
        }
    }

    /// Takes back batches that were made, and has the QPs continue that waited for them. Returns how many.
    pub(super) fn resume_parked(&mut self, now: Nanos) -> usize {
        if !self.nic.awaits_copies() {
            return 0;
        }
        // Before those that are back: a thread that waits has returned all that it made.
        let overdue = self.nic.overdue(now, Nanos(WaitPolicy::COPY_DEADLINE_NS));
        while let Ok(batch) = self.copying.returned.try_recv() {
            self.nic.copied(now, batch);
        }
        overdue.into_iter().for_each(|number| self.nic.abandon(number));
        self.resume_released(now)
    }

    /// Has the QPs continue that wait for no batch any more. Returns how many.
    pub(super) fn resume_released(&mut self, now: Nanos) -> usize {
        let mut resumed = 0;
        debug_assert!(self.slots.is_empty(), "frames that have waited are sent between two halves");
        // A QP without room for its frames holds up no other.
        for _ in 0..self.nic.released() {
            let Some(qp) = self.nic.next_released() else { break };
            if !self.send_parked_frames(now, qp) {
                self.nic.release_later();
                continue;
            }
            resumed += 1;
            let (set_aside, fails) = self.nic.unpark(now, qp);
            if fails {
                self.nic.lose_qp(now, qp);
            }
            for received in &set_aside {
                self.nic.receive_again(now, qp, received);
                self.nic.run_dma(|_| Frame::whole(&received.bytes));
            }
        }
        self.seal_slots(now);
        resumed
    }

    /// Sends the frames with complete payload. Other frames leave their slots, and wait in the NIC. Slots are arranged
    /// afterwards: a frame that waits must be as it was written.
    pub(super) fn gather_what_is_here(&mut self, now: Nanos) {
        std::mem::swap(&mut self.slots, &mut self.spare_slots);
        for (slot, (id, qp)) in self.spare_slots.drain(..).enumerate() {
            let mut frame = self.port.tx_frame(&id);
            match self.nic.gather(slot as u16, qp, &mut frame) {
                Gathered::Whole => {
                    self.slots.push((id, qp));
                    continue;
                }
                Gathered::Missing => self.nic.payload_missing(now, qp, &frame.as_frame()),
                Gathered::Waits => {}
            }
            self.port.tx_cancel(id);
        }
        self.seal_slots(now);
    }

    /// Puts the frames of a QP that have waited for their payload into slots. False: the port has no room.
    fn send_parked_frames(&mut self, now: Nanos, qp: QpIndex) -> bool {
        while let Some(frame) = self.nic.next_frame(qp) {
            let KeptFrame { bytes, is_missing, .. } = &frame;
            if *is_missing {
                self.nic.payload_missing(now, qp, &Frame::whole(bytes));
            } else if bytes.len() > self.port().info().max_frame {
                self.nic.fail_qp(now, qp);
            } else if let Some(id) = self.port.tx_alloc(bytes.len()) {
                self.port.tx_frame(&id).write(0, bytes);
                if self.port.wants_notes() {
                    self.port.tx_note(&id, format_args!("its payload was copied"));
                }
                self.slots.push((id, qp));
            } else {
                self.nic.keep_again(qp, frame);
                return false;
            }
        }
        true
    }

    /// Completes the frames in the slots, and queues them.
    fn seal_slots(&mut self, now: Nanos) {
        if self.slots.is_empty() {
            return;
        }
        self.port.set_now(now);
        self.port.tx_arrange();
        for (id, qp) in self.slots.drain(..) {
            match self.nic.seal(qp, &mut self.port.tx_frame(&id)) {
                true => self.port.tx_commit(id),
                false => self.port.tx_cancel(id),
            }
        }
    }

    /// Answers commands that wait for no batch any more, or for one that does not come back in time. Returns how many.
    pub(super) fn answer_withheld(&mut self) -> usize {
        let (nic, withheld) = (&self.nic, &mut self.copying.withheld);
        let before = withheld.len();
        withheld.retain_mut(|Withheld { batches, answer, answered }| {
            match nic.awaited(batches) {
                Awaited::Pending => return true,
                Awaited::Back => {}
                Awaited::Overdue => answered.result = Err(ControlError::CopyOverdue),
            }
            let result = std::mem::replace(&mut answered.result, Err(ControlError::CopyOverdue));
            let _ = answer.send(Answered { result, remains: answered.remains.take() });
            false
        });
        before - withheld.len()
    }

    /// Returns when a batch is overdue at the earliest.
    pub(super) fn copies_due(&self) -> Nanos {
        self.nic.oldest_copies().map_or(Nanos::MAX, |since| since + Nanos(WaitPolicy::COPY_DEADLINE_NS))
    }
}
