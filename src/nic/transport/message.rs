//! The message in progress: a request of several packets, between its first and its last one.

use roxie_wire::Reth;

/// The message in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    None,
    /// A SEND and the number of bytes received. Its receive is taken.
    Send {
        received: u64,
    },
    /// A WRITE and the number of bytes received.
    Write {
        reth: Reth,
        received: u64,
    },
}
