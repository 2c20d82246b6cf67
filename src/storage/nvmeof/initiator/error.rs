//! Errors of an initiator.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{DeviceError, DialError, PostError};
use roxie::verbs::WcStatus;

use crate::cm::Refusal;
use crate::status::Status;

/// Why an operation of an initiator failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitiatorError {
    /// The connection was not made.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The target refuses a queue.
    #[error("{peer} refuses queue {queue}: {refusal}")]
    Queue {
        /// The target's address.
        peer: SocketAddr,
        /// Queue identifier.
        queue: u16,
        /// The reason.
        refusal: Refusal,
    },
    /// The controller answered a command with another status than success.
    #[error("{command}: {status}{}", field.map_or(String::new(), |field| format!(" ({field})")))]
    Refused {
        /// The command, as [`Command::title`](crate::Command::title) shows it.
        command: String,
        /// The status.
        status: Status,
        /// The field of a Connect command that is invalid.
        field: Option<&'static str>,
    },
    /// The device refused an operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request failed, with which the connection is lost.
    #[error("the connection is lost: {0}")]
    Lost(WcStatus),
    /// The target has disconnected.
    #[error("the target has closed the connection")]
    Closed,
    /// The target violates the protocol.
    #[error("{0}")]
    Protocol(String),
    /// A response that is too short.
    #[error("a response of {0} bytes; one has 16")]
    Short(usize),
    /// No command has finished in time.
    #[error("no response in {0:?}")]
    Timeout(Duration),
    /// The data of a command is longer than its buffer.
    #[error("{length} bytes of data; a command of this queue moves {most} at most")]
    TooLong {
        /// The bytes.
        length: usize,
        /// The limit.
        most: usize,
    },
    /// As many commands are outstanding as the queue takes.
    #[error("the queue is full")]
    QueueFull,
    /// The I/O queue is not connected.
    #[error("the I/O queue is not connected")]
    NoQueue,
}
