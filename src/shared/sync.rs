//! What threads and processes share here is reached through these; `tests/handoff` puts those of a model checker in their place.

pub(super) use super::aio::Signals;
pub(super) use nix::sys::eventfd::{EfdFlags, EventFd};
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
