//! What is followed while a device is open, and the thread that does it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::EventFd;

use crate::netdev::{Interface, Neighbours};

/// The interface as it was last seen, for all who need it.
#[derive(Clone, Debug)]
pub(super) struct Live(Arc<RwLock<Interface>>);

impl Live {
    pub(super) fn new(interface: Interface) -> Live {
        Live(Arc::new(RwLock::new(interface)))
    }

    pub(super) fn get(&self) -> Interface {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, interface: &Interface) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clone_from(interface);
    }
}

/// What is followed, and what of it concerns the device.
pub(super) struct Followed {
    /// The interface; the follower keeps it up to date.
    pub(super) interface: Live,
    /// Addresses become GIDs. False: they were chosen by the user and stay.
    pub(super) addresses: bool,
    /// The neighbours that the device sends to, where frames carry their station addresses.
    pub(super) neighbours: Option<Arc<Neighbours>>,
}

/// The thread that follows; ends when dropped.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) stop: Arc<EventFd>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stopping.store(true, Relaxed);
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            // It may be the follower itself that drops the last handle: it calls what tells of connections, and that may hold one.
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
