//! An eventfd made of a model checker's parts.

use std::os::fd::{BorrowedFd, OwnedFd};

use loom::sync::{Condvar, Mutex};
use nix::errno::Errno;
use nix::sys::eventfd::EfdFlags;

/// Raises events of other processes; models have a single process.
#[derive(Debug)]
pub(crate) struct Signals;

impl Signals {
    pub(crate) fn get() -> std::io::Result<&'static Signals> {
        Ok(&Signals)
    }

    pub(crate) fn raise(&self, _event: BorrowedFd<'_>) {}
}

/// The part of nix's `EventFd` that `src/nic/shared` uses. Reads never block; a waiter calls [`sleep`](Self::sleep) in
/// place of `poll`.
#[derive(Debug)]
pub(crate) struct EventFd {
    count: Mutex<u64>,
    changed: Condvar,
    one_at_a_time: bool,
}

impl EventFd {
    pub(crate) fn from_flags(flags: EfdFlags) -> nix::Result<EventFd> {
        let one_at_a_time = flags.contains(EfdFlags::EFD_SEMAPHORE);
        Ok(EventFd { count: Mutex::new(0), changed: Condvar::new(), one_at_a_time })
    }

    pub(crate) fn write(&self, more: u64) -> nix::Result<usize> {
        *self.count.lock().unwrap() += more;
        self.changed.notify_all();
        Ok(8)
    }

    pub(crate) fn read(&self) -> nix::Result<u64> {
        let mut count = self.count.lock().unwrap();
        let taken = if self.one_at_a_time { (*count).min(1) } else { *count };
        *count -= taken;
        if taken == 0 { Err(Errno::EAGAIN) } else { Ok(taken) }
    }

    /// Blocks until the counter is readable.
    pub(crate) fn sleep(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
    }

    /// # Safety
    /// None: models have one process.
    pub(crate) unsafe fn from_owned_fd(_fd: OwnedFd) -> EventFd {
        panic!("a model has one process")
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("a model's descriptor has no number")
    }
}
