//! File descriptors between processes: connecting, passing them, asking for the peer's user, and closing them in
//! children of a fork.

pub mod children;
mod connecting;
mod credentials;
mod limit;
mod passing;
mod peer;

pub use children::leave_in_child;
pub use connecting::{connect, connect_now, listen};
pub use credentials::{CREDENTIALS, CredentialServer, set_credential_server};
pub use limit::raise_limit;
pub use passing::{
    MOST, receive, receive_until, receive_with, send, send_with, set_takes_descriptors,
    sockets_can_refuse_descriptors,
};
pub use peer::{Peer, overflow_uid, peer_of};
