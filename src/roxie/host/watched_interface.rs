//! The interface as last seen, and the handle to the thread that follows it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::EventFd;

use roxie_port::netdev::Interface;

/// The interface as last seen, shared by its users.
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

/// The thread that follows. Ends when this is dropped.
#[derive(Debug)]
pub(super) struct InterfaceWatcher {
    pub(super) stop: Arc<EventFd>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Drop for InterfaceWatcher {
    fn drop(&mut self) {
        self.stopping.store(true, Relaxed);
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            // The thread itself may drop the last handle, since a callback that it calls may hold one. A thread cannot
            // join itself.
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
