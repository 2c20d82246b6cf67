//! Locks that a panic of somebody else does not close.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the mutex guards, also after a thread panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
