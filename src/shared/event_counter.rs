//! The events of a completion channel, counted in a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::readlink;

use super::sync::{
    AtomicU32, EventFd,
    Ordering::{AcqRel, Relaxed},
    Signals,
};

/// Somebody catches what is raised.
const CATCHING: u32 = 1 << 31;

/// Counts events in a descriptor that is readable while there are any. Cloning it gives another handle to the same one.
///
/// A thread that turns the NIC because it waits for an event catches what its own pass raises: the descriptor would only have to be
/// written and read again.
#[derive(Clone, Debug)]
pub struct EventCounter {
    fd: Arc<EventFd>,
    /// [`CATCHING`], and how many were caught.
    caught: Arc<AtomicU32>,
    /// Another process made it: its counter may be full, and a write would wait for that process.
    foreign: Option<&'static Signals>,
}

impl EventCounter {
    /// Counts in `fd`, of which whoever waits takes them.
    pub fn new(fd: Arc<EventFd>) -> EventCounter {
        EventCounter { fd, caught: Arc::new(AtomicU32::new(0)), foreign: None }
    }

    /// Counts in an eventfd that another process made, which may have duplicates of it.
    ///
    /// # Errors
    /// If the descriptor is something else: to write there might mean anything, and wait for anything. If the kernel gives no way to
    /// add without waiting.
    pub fn of(fd: OwnedFd) -> io::Result<EventCounter> {
        let target = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())?;
        if target != "anon_inode:[eventfd]" {
            let why = format!("events are counted in an eventfd, not in {}", target.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let foreign = Some(Signals::get()?);
        // SAFETY: a wrapper for reads and writes of 8 bytes each, around a descriptor that is this process's own.
        let fd = Arc::new(unsafe { EventFd::from_owned_fd(fd) });
        Ok(EventCounter { foreign, ..EventCounter::new(fd) })
    }

    /// Makes what counting in descriptors of other processes takes. A NIC that serves does so at its start, and holds no more later.
    ///
    /// # Errors
    /// If the kernel refuses it, as [`of`](Self::of) will say again.
    pub fn prepare() -> io::Result<()> {
        Signals::get().map(drop)
    }

    /// An event more. Never waits.
    pub fn raise(&self) {
        let caught = |state: u32| (state & CATCHING != 0).then(|| state + 1);
        if self.caught.fetch_update(AcqRel, Relaxed, caught).is_err() {
            match self.foreign {
                Some(signals) => signals.raise(self.fd.as_fd()),
                // Fails only if the counter is full, and then there are events enough to read.
                None => drop(self.fd.write(1)),
            }
        }
    }

    /// What is raised while `pass` runs is caught. True if there was an event: the caller has taken it. More than one are
    /// left in the descriptor.
    pub fn catch<T>(&self, pass: impl FnOnce() -> T) -> (bool, T) {
        if self.caught.compare_exchange(0, CATCHING, AcqRel, Relaxed).is_err() {
            // Another thread does.
            return (false, pass());
        }
        let result = pass();
        let caught = self.caught.swap(0, AcqRel) & !CATCHING;
        if caught > 1 {
            let _ = self.fd.write(u64::from(caught) - 1);
        }
        (caught > 0, result)
    }

    /// In the pass of [`EventCounter::catch`]: true if there is an event already.
    pub fn has_caught(&self) -> bool {
        self.caught.load(Relaxed) & !CATCHING > 0
    }

    /// Returns the kernel's number of this eventfd, which all its duplicates have. `None`: the kernel is older than 5.2.
    pub fn id(&self) -> Option<u64> {
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_fd().as_raw_fd())).ok()?;
        info.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()
    }

    /// True if nobody else has it.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.fd) == 1
    }

    /// Takes one count, or all, as the descriptor is made. False: there is none.
    pub fn take(&self) -> bool {
        self.fd.read().is_ok()
    }
}

impl AsFd for EventCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Arc<EventFd>> for EventCounter {
    fn from(fd: Arc<EventFd>) -> EventCounter {
        EventCounter::new(fd)
    }
}
