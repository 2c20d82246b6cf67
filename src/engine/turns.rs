//! The lock of the worker, whose holder looks once more after letting go.
//!
//! Who has work for the worker says so first (rings a bell), then tries the lock. If it is taken, the work is its holder's. Both sides
//! write before they look, with a fence in between: either the ringer finds the lock free, or the holder finds the bell.

use super::sync::{Mutex, MutexGuard, Ordering::SeqCst, TryLockError, fence};
use super::wait_policy::WaitPolicy;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Turns<W> {
    worker: Mutex<W>,
}

impl<W> Turns<W> {
    pub(crate) fn new(worker: W) -> Turns<W> {
        Turns { worker: Mutex::new(worker) }
    }

    /// The lock itself.
    pub(crate) fn worker(&self) -> &Mutex<W> {
        &self.worker
    }

    /// The worker, for whoever has just rung a bell. `Ok(None)`: its holder hears the bell.
    ///
    /// # Errors
    /// If a holder has panicked.
    pub(crate) fn after_ringing(&self) -> Result<Option<MutexGuard<'_, W>>, MutexGuard<'_, W>> {
        fence(SeqCst);
        self.unless_taken()
    }

    /// The worker, unless somebody has it.
    ///
    /// # Errors
    /// If a holder has panicked.
    pub(crate) fn unless_taken(&self) -> Result<Option<MutexGuard<'_, W>>, MutexGuard<'_, W>> {
        match self.worker.try_lock() {
            Ok(worker) => Ok(Some(worker)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned.into_inner()),
        }
    }

    /// After letting go: does what was rung for meanwhile. True: bells ring still, and somebody else is to look.
    pub(crate) fn look_again(&self, rings: impl Fn() -> bool, mut send: impl FnMut(&mut W)) -> bool {
        for _ in 0..WaitPolicy::LOOKS_AFTER_UNLOCK {
            fence(SeqCst);
            if !rings() {
                return false;
            }
            // If somebody has it, that one looks again.
            let Ok(Some(mut worker)) = self.unless_taken() else { return false };
            send(&mut worker);
        }
        fence(SeqCst);
        rings()
    }
}
