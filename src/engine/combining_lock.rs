//! The worker's lock. Its holder checks the doorbells again after unlocking.
//!
//! A caller with work for the worker rings a doorbell first, then tries the lock. If the lock is taken, the work is
//! left to its holder. Caller and holder write before they read, with a fence in between: either the caller finds the
//! lock free, or the holder finds the doorbell rung.

use super::sync::{Mutex, MutexGuard, Ordering::SeqCst, TryLockError, fence};
use super::wait_policy::WaitPolicy;

/// A lock. Its holder handles the work of callers that found it taken.
#[derive(Debug)]
pub(crate) struct CombiningLock<W> {
    worker: Mutex<W>,
}

impl<W> CombiningLock<W> {
    pub(crate) fn new(worker: W) -> CombiningLock<W> {
        CombiningLock { worker: Mutex::new(worker) }
    }

    /// The mutex.
    pub(crate) fn worker(&self) -> &Mutex<W> {
        &self.worker
    }

    /// Tries the lock after ringing a doorbell. `Ok(None)`: the lock is taken, and its holder will see the doorbell.
    ///
    /// # Errors
    /// If a holder has panicked: the poisoned guard.
    pub(crate) fn after_ringing(&self) -> Result<Option<MutexGuard<'_, W>>, MutexGuard<'_, W>> {
        fence(SeqCst);
        self.unless_taken()
    }

    /// Tries the lock. `Ok(None)`: it is taken.
    ///
    /// # Errors
    /// If a holder has panicked: the poisoned guard.
    pub(crate) fn unless_taken(&self) -> Result<Option<MutexGuard<'_, W>>, MutexGuard<'_, W>> {
        match self.worker.try_lock() {
            Ok(worker) => Ok(Some(worker)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned.into_inner()),
        }
    }

    /// After unlocking: calls `send` while `rings`, up to [`WaitPolicy::LOOKS_AFTER_UNLOCK`] times. True: doorbells are
    /// still rung, and another thread must be woken.
    pub(crate) fn recheck(&self, rings: impl Fn() -> bool, mut send: impl FnMut(&mut W)) -> bool {
        for _ in 0..WaitPolicy::LOOKS_AFTER_UNLOCK {
            fence(SeqCst);
            if !rings() {
                return false;
            }
            // If the lock is taken, its holder checks again.
            let Ok(Some(mut worker)) = self.unless_taken() else { return false };
            send(&mut worker);
        }
        fence(SeqCst);
        rings()
    }
}
