//! The engine behind a device: one in this process, or a NIC that is another process.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::inspect::{IsOfClient, Snapshot, snapshot_of_device};
use crate::remote::Attachment;
use roxie_base::time::Nanos;
use roxie_engine::Adapter as _;
use roxie_engine::{EventSink, Progress, Wait, WaitSet, Workers};
use roxie_nic::nic::{Answer, Command, ControlError};
use roxie_nic::shared::{CompletionRing, HostMemory, Region};
use roxie_nic::verbs::{AsyncEvent, CqIndex, Mtu, OpenXrcd, QpIndex};
use roxie_port::PortInfo;

/// The engine behind a device.
#[derive(Debug)]
pub(crate) enum Adapter {
    /// Workers of this process.
    Own(Workers),
    /// A NIC that is another process.
    Shared(Arc<Attachment>),
}

impl Adapter {
    /// Returns the workers, if they are in this process.
    pub(crate) fn workers(&self) -> Option<&Workers> {
        match self {
            Adapter::Own(workers) => Some(workers),
            Adapter::Shared(_) => None,
        }
    }

    pub(crate) fn dispatch(&self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        match self {
            Adapter::Own(workers) => workers.call(command.into()),
            Adapter::Shared(nic) => nic.call(command.into()),
        }
    }

    /// Opens an XRC domain, which stands for a file if one is given.
    pub(super) fn open_xrcd(
        &self,
        open: OpenXrcd,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, ControlError> {
        match self {
            Adapter::Own(workers) => workers.open_xrcd(open, file),
            Adapter::Shared(nic) => nic.open_xrcd(open, file),
        }
    }

    /// Returns zeroed memory of `words` 64-bit words for a queue.
    pub(super) fn region(&self, words: usize) -> io::Result<Arc<Region>> {
        match self {
            Adapter::Own(workers) => workers.region(words),
            Adapter::Shared(nic) => nic.region(words),
        }
    }

    /// Zeroed memory to be registered: a NIC in another process maps it as well, where the system has the means.
    pub(crate) fn memory(&self, length: usize) -> io::Result<HostMemory> {
        match self {
            Adapter::Own(workers) => workers.memory(length),
            Adapter::Shared(nic) => nic.memory(length),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        match self {
            Adapter::Own(workers) => workers.now(),
            Adapter::Shared(nic) => nic.now(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        match self {
            Adapter::Own(workers) => workers.is_dead(),
            Adapter::Shared(nic) => nic.is_dead(),
        }
    }

    pub(super) fn announce_work(&self, qp: QpIndex, outstanding: u32, posts: u32) {
        match self {
            Adapter::Own(workers) => workers.ring_doorbell(qp, outstanding, posts),
            Adapter::Shared(nic) => nic.ring_doorbell(qp, outstanding, posts),
        }
    }

    /// Notifies the NIC of a posted receive, for a QP that asked for it.
    pub(super) fn posted_receive(&self, qp: QpIndex) {
        match self {
            Adapter::Own(workers) => workers.ring_for_receive(qp),
            Adapter::Shared(nic) => nic.ring_for_receive(qp),
        }
    }

    /// Runs a pass without waiting for a completion. With a remote NIC, yields the processor to it.
    pub(super) fn caller_pass(&self) -> Progress {
        match self {
            Adapter::Own(workers) => workers.caller_pass(),
            Adapter::Shared(nic) => nic.caller_pass(),
        }
    }

    /// Runs after a poll of a completion queue that found nothing.
    pub(super) fn after_empty_poll(
        &self,
        cq: CqIndex,
        has_come: &dyn Fn() -> bool,
        ring: &dyn Fn() -> CompletionRing,
    ) {
        match self {
            Adapter::Own(workers) => workers.after_empty_poll(cq, has_come, ring),
            Adapter::Shared(nic) => nic.after_empty_poll(cq, has_come, ring),
        }
    }

    pub(super) fn armed(&self, set: &WaitSet) {
        if let Adapter::Own(workers) = self {
            workers.armed(set);
        }
    }

    pub(super) fn begin_wait(&self, set: &WaitSet) -> Wait {
        match self {
            Adapter::Own(workers) => workers.begin_wait(set),
            Adapter::Shared(_) => Wait::Sleep,
        }
    }

    pub(super) fn end_wait(&self, rang: bool) {
        if let Adapter::Own(workers) = self {
            workers.end_wait(rang);
        }
    }

    pub(super) fn step_aside(&self) {
        if let Adapter::Own(workers) = self {
            workers.step_aside();
        }
    }

    /// Sends what is posted and owed before the process ends. A remote NIC outlives the application, as an adapter
    /// does.
    pub(super) fn send_last(&self, limit: Duration) {
        if let Adapter::Own(workers) = self {
            workers.send_last(limit);
        }
    }

    pub(super) fn set_event_sink(&self, sink: EventSink) -> bool {
        match self {
            Adapter::Own(workers) => workers.set_event_sink(sink),
            Adapter::Shared(nic) => nic.set_event_sink(sink),
        }
    }

    pub(super) fn event(&self) -> Option<AsyncEvent> {
        match self {
            Adapter::Own(workers) => workers.event(),
            Adapter::Shared(nic) => nic.event(),
        }
    }

    pub(super) fn raise(&self, event: AsyncEvent) {
        match self {
            Adapter::Own(workers) => workers.raise(event),
            Adapter::Shared(nic) => nic.raise(event),
        }
    }

    pub(super) fn port(&self) -> PortInfo {
        match self {
            Adapter::Own(workers) => workers.port(),
            Adapter::Shared(nic) => nic.port(),
        }
    }

    pub(super) fn largest_mtu(&self) -> Mtu {
        match self {
            Adapter::Own(workers) => workers.largest_mtu(),
            Adapter::Shared(nic) => nic.largest_mtu(),
        }
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Adapter::Own(workers) => workers.counters(),
            Adapter::Shared(nic) => nic.counters(),
        }
    }

    /// Returns the device's snapshot, without objects that belong to `others`.
    pub(super) fn snapshot(&self, others: Option<&IsOfClient>) -> Snapshot {
        match self {
            Adapter::Own(workers) => snapshot_of_device(workers, others),
            Adapter::Shared(nic) => {
                nic.served_snapshot().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
            }
        }
    }
}
