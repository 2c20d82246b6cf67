//! File descriptors between processes: passing them, and closing them in children of a fork.

pub mod children;
mod connecting;
mod limit;
mod passing;

pub use children::leave_in_child;
pub use connecting::{connect, connect_now, listen, peer_of};
pub use limit::raise_limit;
pub use passing::{MOST, receive, receive_until, receive_with, send, send_with, set_takes_descriptors};
