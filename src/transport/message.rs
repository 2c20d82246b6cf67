//! A request of several packets, between its first and its last.

use crate::wire::Reth;

/// The message that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    None,
    /// Bytes of a SEND so far; its receive has been taken.
    Send {
        received: u64,
    },
    /// A WRITE and its bytes so far.
    Write {
        reth: Reth,
        received: u64,
    },
}
