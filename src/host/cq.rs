//! The application's completion queues.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::channel::CompletionChannel;
use super::device::Device;
use super::error::{DeviceError, unexpected, within};
use crate::engine::WaitSet;
use crate::limits::MAX_CQE;
use crate::nic::{Answer, Command, MemoryCommand};
use crate::shared::{Armed, CompletionRing};
use crate::threads::lock;
use crate::time::Nanos;
use crate::verbs::{CqIndex, Qpn, Wc};

impl Device {
    /// Makes a completion queue of at least `entries`, with a channel for its events if one is given.
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
        match self.call(MemoryCommand::CreateCq { ring: ring.clone(), notify })? {
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
    /// Where its events are waited for.
    waits: Option<Arc<WaitSet>>,
    /// Who polls, arms or changes it takes turns.
    ring: Mutex<Polled>,
}

/// A ring as the application polls it.
#[derive(Debug)]
struct Polled {
    ring: CompletionRing,
    /// QPs whose completions below a position are not to be seen any more.
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
        let _ = self.device.call(Command::DestroyCq(self.index));
    }
}

/// A completion queue. Cloning it gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
}

impl CompletionQueue {
    pub(super) fn kept(&self) -> Arc<dyn std::fmt::Debug + Send + Sync> {
        Arc::clone(&self.inner) as _
    }

    /// Takes up to `out.len()` completions. If there is none and callers turn the device, runs a pass first.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let taken = self.poll_ready(out);
        if taken > 0 || out.is_empty() {
            return taken;
        }
        self.turn();
        self.poll_ready(out)
    }

    /// What [`CompletionQueue::poll`] does when it finds nothing: runs a pass if callers turn the device, else lets others have the
    /// processor, for 50 us at most where it is wanted.
    pub fn turn(&self) {
        let inner = &self.inner;
        let has_come = || lock(&inner.ring).ring.has_completions();
        inner.device.inner.adapter.found_nothing(inner.index, has_come, || lock(&inner.ring).ring.clone());
    }

    /// Takes up to `out.len()` completions that are there, and runs no pass.
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

    /// Polls until a completion comes or `timeout` has passed; a timeout beyond the clock's range (`Duration::MAX`) is
    /// for ever. `None` at once if the device has failed.
    pub fn wait(&self, timeout: Duration) -> Option<Wc> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(wc) = self.poll_one() {
                return Some(wc);
            }
            if self.inner.device.has_failed() || until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
        }
    }

    /// True if its device has failed: no completion comes any more.
    pub fn has_failed(&self) -> bool {
        self.inner.device.has_failed()
    }

    /// Completions of a QP that wait are not seen any more: it was reset or destroyed, and its work requests are nobody's.
    pub fn forget(&self, qpn: Qpn) {
        let mut polled = lock(&self.inner.ring);
        let (position, end) = polled.ring.positions();
        if end != position {
            polled.forgotten.push((qpn, end));
        }
    }

    /// Takes an event that the queue has raised on its channel; false: it has none.
    pub fn take_event(&self) -> bool {
        lock(&self.inner.ring).ring.take_event()
    }

    /// Its place in the device's table: what events call it.
    pub fn index(&self) -> CqIndex {
        self.inner.index
    }

    /// Asks for an event on the channel. If a completion that is wanted waits already, unpolled, the event comes at once. From now on
    /// the caller is expected to wait, and the device is looked after meanwhile.
    pub fn arm(&self, armed: Armed) {
        let raised = lock(&self.inner.ring).ring.arm(armed);
        let Some(waits) = &self.inner.waits else { return };
        if raised {
            waits.events().raise();
        } else {
            self.inner.device.inner.adapter.armed(waits);
        }
    }

    /// Takes one completion with the time at which it came about, on the [device's clock](Device::now).
    pub fn poll_timed(&self) -> Option<(Wc, Nanos)> {
        let take = || lock(&self.inner.ring).poll_timed().map(|(wc, time_ns)| (wc, Nanos(time_ns)));
        take().or_else(|| {
            self.turn();
            take()
        })
    }

    /// Makes it hold at least `entries` completions. Those that wait stay in their order, and what was armed stays armed.
    ///
    /// # Errors
    /// If more wait than that, or it is beyond the device's limit; the queue is as before then.
    pub fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        within("completion queue entries", entries, MAX_CQE)?;
        let mut polled = lock(&self.inner.ring);
        let other = self.inner.device.completion_ring(entries)?;
        let (gone, _) = polled.ring.positions();
        self.inner.device.call(MemoryCommand::ResizeCq { cq: self.inner.index, ring: other.clone() })?;
        polled.ring = other;
        // What waited is at the new one's beginning.
        for (_, end) in &mut polled.forgotten {
            *end = end.saturating_sub(gone);
        }
        Ok(())
    }

    /// Holds events back (`ibv_modify_cq`): one for `count` completions, or `period` after the first of them. 0 or 1: at
    /// once. A completion in error waits for nothing. Completions themselves come as ever.
    ///
    /// # Errors
    /// If there is a count and no period.
    pub fn moderate(&self, count: u32, period: Duration) -> Result<(), DeviceError> {
        let period = Nanos(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX));
        self.inner.device.call(Command::ModerateCq { cq: self.inner.index, count, period }).map(drop)
    }
}
