//! Completion channels, on which an application waits for completions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::Device;
use super::error::DeviceError;
use roxie_engine::{Wait, WaitSet};
use roxie_nic::shared::EventCounter;

/// A descriptor that reports events of armed completion queues.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(super) waits: Arc<WaitSet>,
}

/// The descriptor is readable while an event is pending. A runtime or an `epoll` set may watch it. Then arm the queue
/// again ([`CompletionQueue::arm`](super::CompletionQueue::arm)), and poll it.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waits.as_fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl CompletionChannel {
    /// Makes a channel. One wait consumes all pending events.
    ///
    /// # Errors
    /// If the system is out of descriptors.
    pub fn new() -> Result<CompletionChannel, DeviceError> {
        CompletionChannel::of(EfdFlags::EFD_NONBLOCK)
    }

    /// Makes a channel with the semantics of `ibv_create_comp_channel`: its descriptor is readable until each event was
    /// taken. For each event, read once from [`events`](CompletionChannel::events), then find the queue that raised it
    /// ([`CompletionQueue::take_event`](super::CompletionQueue::take_event)).
    ///
    /// # Errors
    /// If the system is out of descriptors.
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

    /// The eventfd that counts pending events.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.waits.events().as_fd()
    }

    /// True if the application has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        self.waits.is_nonblocking()
    }

    /// Prepares to sleep inside a call until an event is pending.
    pub fn begin_wait(&self, device: &Device) -> Wait {
        device.inner.adapter.begin_wait(&self.waits)
    }

    /// Discards a pending event.
    pub(super) fn discard_event(&self) {
        let _ = self.waits.events().take();
    }

    /// Waits for an event. False: none came within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, timeout);
        self.waits.events().take()
    }
}
