//! File descriptors between processes: those that are handed over, and those that children of a fork must not keep.

pub(crate) mod children;
mod passing;

pub use children::leave_in_child;
pub(crate) use passing::{receive, receive_until, receive_with, send, send_with};
