//! Errors of an initiator.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::DialError;
use roxie_ulp::Ended;

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
    /// The connection has ended: it is lost, the target has closed it, or violates the protocol.
    #[error(transparent)]
    Lost(#[from] Ended),
    /// The target violates the protocol.
    #[error("{0}")]
    Protocol(String),
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
