//! Synchronization primitives of this module. `tests/handoff` replaces them by the primitives of a model checker.

pub(super) use super::aio::Signals;
pub(super) use nix::sys::eventfd::{EfdFlags, EventFd};
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
