//! Foundations: objects that C programs hold, errors, locks, cancellation and forks.
//!
//! [`object`] is to be read first: a C structure and the Rust object behind it are one allocation. No module here knows
//! a device.

pub(crate) mod cancellation;
pub(crate) mod fork;
pub(crate) mod lists;
pub(crate) mod lock;
pub(crate) mod newer;
pub(crate) mod object;
pub(crate) mod report;
pub(crate) mod waiting;
