//! The events of a completion channel, counted in a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use nix::fcntl::readlink;

use super::notifier::{Due, Notifier, Target};
use super::sync::{
    AtomicU32, EventFd,
    Ordering::{AcqRel, Relaxed},
    Signals,
};

/// Set while a thread catches the events that its own pass raises.
const CATCHING: u32 = 1 << 31;

/// Counts events in a descriptor that is readable while the count is not 0. A clone is another handle to the same
/// counter.
///
/// A thread that runs the NIC in order to wait for an event catches the events that its own pass raises. Catching
/// spares a write and a read of the descriptor.
#[derive(Clone, Debug)]
pub struct EventCounter {
    fd: Arc<EventFd>,
    /// The flag [`CATCHING`], and the number of events caught.
    caught: Arc<AtomicU32>,
    /// Set if another process made the eventfd: its counter may be full, and a write would block until that process
    /// reads.
    foreign: Option<&'static Signals>,
    /// Set if a notifier raises the events.
    due: Option<Arc<Due>>,
}

/// A counter for its notifier, which keeps no descriptor open.
#[derive(Debug)]
pub(super) struct WeakCounter {
    fd: Weak<EventFd>,
    foreign: Option<&'static Signals>,
}

impl WeakCounter {
    pub(super) fn upgrade(&self) -> Option<EventCounter> {
        Some(EventCounter { foreign: self.foreign, ..EventCounter::new(self.fd.upgrade()?) })
    }
}

impl EventCounter {
    /// Counts in `fd`, from which the waiting threads read.
    pub fn new(fd: Arc<EventFd>) -> EventCounter {
        EventCounter { fd, caught: Arc::new(AtomicU32::new(0)), foreign: None, due: None }
    }

    /// Counts in an eventfd that another process made, and of which it may keep duplicates.
    ///
    /// # Errors
    /// If the descriptor is no eventfd: a write to another file might have any effect, and block. If the kernel offers
    /// no way to add to the counter without blocking.
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

    /// Has a notifier raise the events, because raising takes longer the more threads wait for the descriptor.
    ///
    /// # Errors
    /// If the notifier has no place for it.
    pub fn raised_by(self, notifier: &Notifier) -> io::Result<EventCounter> {
        let target = Target::Events(WeakCounter { fd: Arc::downgrade(&self.fd), foreign: self.foreign });
        Ok(EventCounter { due: Some(notifier.add(target)?), ..self })
    }

    /// Allocates the resources for counting in other processes' descriptors. `roxie nic` does so at its start; later
    /// events allocate nothing.
    ///
    /// # Errors
    /// If the kernel refuses, as [`of`](Self::of) will report again.
    pub fn prepare() -> io::Result<()> {
        Signals::get().map(drop)
    }

    /// Counts one event. Never blocks.
    pub fn raise(&self) {
        let caught = |state: u32| (state & CATCHING != 0).then(|| state + 1);
        if self.caught.fetch_update(AcqRel, Relaxed, caught).is_err() {
            match (&self.due, self.foreign) {
                (Some(due), _) => due.mark(),
                (None, Some(signals)) => signals.raise(self.fd.as_fd()),
                // A write fails only if the counter is full, and then enough events wait.
                (None, None) => drop(self.fd.write(1)),
            }
        }
    }

    /// Catches what is raised while `pass` runs. Returns true if there was an event, which the caller has thereby
    /// taken; any further events are counted in the descriptor.
    pub fn catch<T>(&self, pass: impl FnOnce() -> T) -> (bool, T) {
        if self.caught.compare_exchange(0, CATCHING, AcqRel, Relaxed).is_err() {
            // Another thread catches at the moment.
            return (false, pass());
        }
        let result = pass();
        let caught = self.caught.swap(0, AcqRel) & !CATCHING;
        if caught > 1 {
            let _ = self.fd.write(u64::from(caught) - 1);
        }
        (caught > 0, result)
    }

    /// For use within the pass of [`EventCounter::catch`]: true if an event was caught.
    pub fn has_caught(&self) -> bool {
        self.caught.load(Relaxed) & !CATCHING > 0
    }

    /// Returns the kernel's number of this eventfd, which all duplicates share. `None` before Linux 5.2.
    pub fn id(&self) -> Option<u64> {
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_fd().as_raw_fd())).ok()?;
        info.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()
    }

    /// True if this is the only handle.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.fd) == 1
    }

    /// Takes one event or all, depending on the eventfd's flags. Returns false if there is none.
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
