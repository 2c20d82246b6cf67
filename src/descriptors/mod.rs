//! File descriptors between processes: passing them, and closing them in children of a fork.

pub(crate) mod children;
mod connecting;
mod limit;
mod passing;

pub use children::leave_in_child;
pub(crate) use connecting::{connect, connect_now, peer_of};
pub use limit::raise_limit;
pub(crate) use passing::{MOST, receive, receive_until, receive_with, send, send_with};
