//! What a device stands on.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{EventSink, Progress, Wait, WaitSet, Workers};
use roxie_base::time::Nanos;
use roxie_nic::nic::{Answer, Command, ControlError};
use roxie_nic::shared::{CompletionRing, HostMemory, Region};
use roxie_nic::verbs::{AsyncEvent, CqIndex, Mtu, OpenXrcd, QpIndex};
use roxie_port::PortInfo;

/// The NIC of a device: [`Workers`] of this process, or another process that serves this one. Methods with a body are
/// of use with one of the two only: a NIC in another process sends, receives and outlives the application by itself.
pub trait Adapter: Debug + Send + Sync {
    /// Executes a command, and blocks until its answer.
    ///
    /// # Errors
    /// The errors of the command; [`ControlError::DeviceFatal`] if the NIC has failed or ended.
    fn call(&self, command: Command) -> Result<Answer, ControlError>;

    /// Opens an XRC domain, which stands for a file if one is given.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    fn open_xrcd(&self, open: OpenXrcd, file: Option<BorrowedFd<'_>>) -> Result<Answer, ControlError>;

    /// Returns zeroed memory of `words` 64-bit words for a queue.
    ///
    /// # Errors
    /// If there is no memory, or the NIC's bound for this process is reached.
    fn region(&self, words: usize) -> io::Result<Arc<Region>>;

    /// Returns zeroed memory to be registered. A NIC in another process maps it, where the system has the means.
    ///
    /// # Errors
    /// If the system has no `length` bytes.
    fn memory(&self, length: usize) -> io::Result<HostMemory>;

    /// Sends the new work requests of a QP: see [`Engine::ring_doorbell`](super::Engine::ring_doorbell).
    fn ring_doorbell(&self, qp: QpIndex, outstanding: u32, posts: u32);

    /// Notifies the NIC of a posted receive, for a QP that asked for it.
    fn ring_for_receive(&self, qp: QpIndex);

    /// Runs a pass if callers drive the NIC, without waiting for a completion. With a NIC in another process, yields
    /// the processor to it.
    fn caller_pass(&self) -> Progress;

    /// Runs after a poll of completion queue `cq` that found nothing. `has_come` returns true if the queue has a
    /// completion by now, `ring` returns its ring.
    fn after_empty_poll(&self, cq: CqIndex, has_come: &dyn Fn() -> bool, ring: &dyn Fn() -> CompletionRing);

    /// The time on the NIC's clock, in ns.
    fn now(&self) -> Nanos;

    /// True if a pass of a worker panicked, or the other process has ended.
    fn is_dead(&self) -> bool;

    /// Passes future events to `sink`. False: a sink is already set.
    fn set_event_sink(&self, sink: EventSink) -> bool;

    /// Returns the next asynchronous event, if any, and if there is no sink.
    fn event(&self) -> Option<AsyncEvent>;

    /// Reports an event that the caller has detected itself.
    fn raise(&self, event: AsyncEvent);

    /// Returns the properties of the port.
    fn port(&self) -> PortInfo;

    /// Returns the largest path MTU of the port's link.
    fn largest_mtu(&self) -> Mtu;

    /// Returns the NIC's counters.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// The workers, if they are in this process.
    fn workers(&self) -> Option<&Workers> {
        None
    }

    /// Returns a snapshot of this process's objects, as JSON, from a NIC in another process.
    fn served_snapshot(&self) -> Option<Vec<u8>> {
        None
    }

    /// A caller has armed a completion queue: see [`Engine::armed`](super::Engine::armed).
    fn armed(&self, _set: &WaitSet) {}

    /// Prepares a caller to sleep: see [`Engine::begin_wait`](super::Engine::begin_wait).
    fn begin_wait(&self, _set: &WaitSet) -> Wait {
        Wait::Sleep
    }

    /// Ends a sleep: see [`Engine::end_wait`](super::Engine::end_wait).
    fn end_wait(&self, _rang: bool) {}

    /// Hands polling over to the engine thread: see [`Engine::step_aside`](super::Engine::step_aside).
    fn step_aside(&self) {}

    /// Sends what is posted and owed before the process ends: see [`Engine::send_last`](super::Engine::send_last).
    fn send_last(&self, _limit: Duration) {}
}
