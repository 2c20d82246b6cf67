//! What [`super::watch`] and [`super::turns`] are made of. `tests/handoff` compiles those two with the parts of a model checker instead.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard, TryLockError};
