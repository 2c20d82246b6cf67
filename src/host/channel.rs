//! Completion channels: what a program waits on for completions.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::Device;
use super::error::DeviceError;
use crate::engine::{Wait, WaitSet};
use crate::shared::EventCounter;

/// Where completion queues report that an armed completion has come: a descriptor to wait on.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(super) waits: Arc<WaitSet>,
}

impl CompletionChannel {
    /// A channel.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    pub fn new() -> Result<CompletionChannel, DeviceError> {
        CompletionChannel::of(EfdFlags::EFD_NONBLOCK)
    }

    /// A channel as a verbs program knows it: its descriptor is readable as long as events wait that were not
    /// taken one by one. Take a count of [`events`](CompletionChannel::events) for each, then ask its queues which of them it was
    /// ([`CompletionQueue::take_event`](super::CompletionQueue::take_event)).
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    pub fn counting() -> Result<CompletionChannel, DeviceError> {
        CompletionChannel::of(EfdFlags::EFD_SEMAPHORE)
    }

    fn of(kind: EfdFlags) -> Result<CompletionChannel, DeviceError> {
        let failed = |source| DeviceError::System { what: "a descriptor for events", source };
        let events = EventFd::from_flags(kind | EfdFlags::EFD_CLOEXEC).map_err(|e| failed(e.into()))?;
        let events = EventCounter::new(Arc::new(events));
        let waits = Arc::new(WaitSet::new(events).map_err(failed)?);
        Ok(CompletionChannel { waits })
    }

    /// Readable when an event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waits.as_fd()
    }

    /// Counts the events that wait.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.waits.events().as_fd()
    }

    /// True if its descriptor was made non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        self.waits.is_nonblocking()
    }

    /// Before sleeping inside a call until an event waits.
    pub fn begin_wait(&self, device: &Device) -> Wait {
        device.inner.adapter.begin_wait(&self.waits)
    }

    /// Takes back that an event waits.
    pub(super) fn forget(&self) {
        let _ = self.waits.events().take();
    }

    /// Waits for an event. False: none came in time.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, timeout);
        self.waits.events().take()
    }
}
