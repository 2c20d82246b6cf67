//! Synchronization primitives of [`super::handoff`] and [`super::combining_lock`]. `tests/handoff` compiles both with a
//! model checker's instead.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard, TryLockError};
