//! Why a connection ended.

use std::fmt::Display;

use roxie::host::{DeviceError, PostError};
use roxie::verbs::{WcOpcode, WcStatus};

/// Why a connection ended, or has to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// A work request failed.
    #[error("the connection is lost: {opcode:?} failed: {status}")]
    Failed {
        /// The operation.
        opcode: WcOpcode,
        /// How it failed.
        status: WcStatus,
    },
    /// A completion of an operation that this end does not post.
    #[error("a completion of {0:?}, which this end does not post")]
    Unexpected(WcOpcode),
    /// The peer violates the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The peer has disconnected, or is lost.
    #[error("the peer has closed the connection")]
    Closed,
    /// The server stops.
    #[error("the server stops")]
    Stopped,
    /// The device has failed.
    #[error("the device has failed")]
    DeviceFailed,
    /// The device refused an operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Ended {
    /// Returns the end by a violation of the protocol.
    pub fn protocol(violation: impl Display) -> Ended {
        Ended::Protocol(violation.to_string())
    }
}
