//! The application's completion queues.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::channel::CompletionChannel;
use super::device::Device;
use super::error::{DeviceError, unexpected, within};
use roxie_base::limits::MAX_CQE;
use roxie_base::threads::lock;
use roxie_base::time::Nanos;
use roxie_engine::WaitSet;
use roxie_nic::nic::{Answer, Command, MemoryCommand};
use roxie_nic::shared::{Armed, CompletionRing};
use roxie_nic::verbs::{CqIndex, Qpn, Wc};

impl Device {
    /// Makes a completion queue of at least `entries`. Events go to `channel`, if given.
    ///
    /// # Errors
    /// If `entries` is 0 or beyond the limit of the device, or there is no room or memory for another queue.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, DeviceError> {
        within("completion queue entries", entries, MAX_CQE)?;
        let ring = self.completion_ring(entries)?;
        let notify = channel.map(|c| c.waits.events().clone());
        match self.execute(MemoryCommand::CreateCq { ring: ring.clone(), notify })? {
            Answer::Cq(index) => {
                let inner = CqInner {
                    device: self.clone(),
                    index,
                    waits: channel.map(|c| Arc::clone(&c.waits)),
                    ring: Mutex::new(Polled { ring, forgotten: Vec::new() }),
                };
                Ok(CompletionQueue { inner: Arc::new(inner) })
            }
            other => unexpected(&other),
        }
    }
}

#[derive(Debug)]
struct CqInner {
    device: Device,
    index: CqIndex,
    /// The channel's wait set, for events.
    waits: Option<Arc<WaitSet>>,
    /// Threads that poll, arm or resize the queue take this lock.
    ring: Mutex<Polled>,
}

/// A ring as the application polls it.
#[derive(Debug)]
struct Polled {
    ring: CompletionRing,
    /// QPs with the position in the ring below which their completions are skipped.
    forgotten: Vec<(Qpn, u64)>,
}

impl Polled {
    fn poll(&mut self) -> Option<Wc> {
        if self.forgotten.is_empty() { self.ring.poll() } else { self.poll_timed().map(|(wc, _)| wc) }
    }

    fn poll_timed(&mut self) -> Option<(Wc, u64)> {
        loop {
            let (position, _) = self.ring.positions();
            self.forgotten.retain(|(_, end)| *end > position);
            let (wc, time) = self.ring.poll_timed()?;
            if !self.forgotten.iter().any(|(qpn, _)| *qpn == wc.qpn) {
                return Some((wc, time));
            }
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let _ = self.device.execute(Command::DestroyCq(self.index));
    }
}

/// A completion queue. A clone is another handle to the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
}

/// Why no completion came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time is over.
    #[error("no completion came within {0:?}")]
    TimedOut(Duration),
    /// The device has failed: none will come.
    #[error("the device has failed")]
    DeviceFailed,
}

impl CompletionQueue {
    pub(super) fn keep_alive(&self) -> Arc<dyn std::fmt::Debug + Send + Sync> {
        Arc::clone(&self.inner) as _
    }

    /// Takes up to `out.len()` completions. If there is none and callers drive the device, runs a pass first.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let taken = self.poll_ready(out);
        if taken > 0 || out.is_empty() {
            return taken;
        }
        self.turn();
        self.poll_ready(out)
    }

    /// Does what [`CompletionQueue::poll`] does if it finds nothing: runs a pass if callers drive the device, else
    /// yields the processor. On an overloaded machine the thread sleeps, for 50 us at most.
    pub fn turn(&self) {
        let inner = &self.inner;
        let has_completions = || lock(&inner.ring).ring.has_completions();
        let ring = || lock(&inner.ring).ring.clone();
        inner.device.inner.adapter.after_empty_poll(inner.index, &has_completions, &ring);
    }

    /// Hands polling over to the engine thread: the caller is about to wait.
    #[cfg(feature = "tokio")]
    pub(super) fn step_aside(&self) {
        self.inner.device.step_aside();
    }

    /// Takes up to `out.len()` completions without running a pass.
    pub fn poll_ready(&self, out: &mut [Wc]) -> usize {
        let mut ring = lock(&self.inner.ring);
        let mut taken = 0;
        for slot in out {
            let Some(wc) = ring.poll() else { break };
            *slot = wc;
            taken += 1;
        }
        taken
    }

    /// Takes one completion.
    pub fn poll_one(&self) -> Option<Wc> {
        let mut wc = [Wc::default()];
        (self.poll(&mut wc) == 1).then_some(wc[0])
    }

    /// Polls until a completion comes or `timeout` has passed. A timeout beyond the clock's range (`Duration::MAX`) is
    /// infinite.
    ///
    /// # Errors
    /// If the time is over; immediately if the device has failed.
    pub fn wait(&self, timeout: Duration) -> Result<Wc, WaitError> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(wc) = self.poll_one() {
                return Ok(wc);
            }
            if self.inner.device.has_failed() {
                // The last completion may have come meanwhile.
                return self.poll_one().ok_or(WaitError::DeviceFailed);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(WaitError::TimedOut(timeout));
            }
        }
    }

    /// True if the device has failed: no more completions will come.
    pub fn has_failed(&self) -> bool {
        self.inner.device.has_failed()
    }

    /// Discards pending completions of a QP that was reset or destroyed.
    pub fn forget(&self, qpn: Qpn) {
        let mut polled = lock(&self.inner.ring);
        let (position, end) = polled.ring.positions();
        if end != position {
            polled.forgotten.push((qpn, end));
        }
    }

    /// Takes an event that this queue has raised on its channel. False: there is none.
    pub fn take_event(&self) -> bool {
        lock(&self.inner.ring).ring.take_event()
    }

    /// Index of the queue in the device's table. Events carry it.
    pub fn index(&self) -> CqIndex {
        self.inner.index
    }

    /// Requests an event on the channel for the next matching completion. If one is already pending, the event is
    /// raised immediately. The caller is then expected to wait, and another thread runs the device meanwhile.
    pub fn arm(&self, armed: Armed) {
        let raised = lock(&self.inner.ring).ring.arm(armed);
        let Some(waits) = &self.inner.waits else { return };
        if raised {
            waits.events().raise();
        } else {
            self.inner.device.inner.adapter.armed(waits);
        }
    }

    /// Takes one completion with its time on the [device's clock](Device::now).
    pub fn poll_timed(&self) -> Option<(Wc, Nanos)> {
        let take = || lock(&self.inner.ring).poll_timed().map(|(wc, time_ns)| (wc, Nanos(time_ns)));
        take().or_else(|| {
            self.turn();
            take()
        })
    }

    /// Resizes the queue to at least `entries` completions. Pending completions keep their order, and an armed queue
    /// stays armed.
    ///
    /// # Errors
    /// If more completions are pending, or `entries` is beyond the device's limit. The queue is then unchanged.
    pub fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        within("completion queue entries", entries, MAX_CQE)?;
        let mut polled = lock(&self.inner.ring);
        let other = self.inner.device.completion_ring(entries)?;
        let (consumed, _) = polled.ring.positions();
        self.inner.device.execute(MemoryCommand::ResizeCq { cq: self.inner.index, ring: other.clone() })?;
        polled.ring = other;
        // Pending completions now begin at position 0 of the new ring.
        for (_, end) in &mut polled.forgotten {
            *end = end.saturating_sub(consumed);
        }
        Ok(())
    }

    /// Moderates events (`ibv_modify_cq`): one event for `count` completions, or `period` after the first of them. A
    /// count of 0 or 1 disables moderation. A completion in error raises its event immediately. Completions themselves
    /// are not delayed.
    ///
    /// # Errors
    /// If `count` is above 1 and `period` is zero.
    pub fn moderate(&self, count: u32, period: Duration) -> Result<(), DeviceError> {
        let period = Nanos(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX));
        self.inner.device.execute(Command::ModerateCq { cq: self.inner.index, count, period }).map(drop)
    }
}
