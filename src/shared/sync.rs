//! What [`super::work_queue`] and [`super::shared_receives`] are made of. `tests/handoff` compiles those two with the parts of a model
//! checker instead.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
