//! Errors of joining a group.

use std::io;

use super::SLOTS;
use roxie_base::descriptors::Peer;

/// Why a process could not join a group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Another user has the group's name.
    #[error(
        "{peer} keeps the socket @{name}: the processes of one user share a device over sockets, those of others do not; \
         run this one as that user, or in a network namespace of its own"
    )]
    Stranger {
        /// The name in the abstract namespace of Unix sockets.
        name: String,
        /// The process that has it, and its user.
        peer: Peer,
    },
    /// A group exists, and none of its members answers.
    #[error(
        "no process of those that share the device answered in 5 s: all of them are stopped (ps shows T), or left a child that \
         holds their sockets; end them, and try again"
    )]
    Silent,
    /// All slots are taken.
    #[error("{SLOTS} processes share the device already, and there are no more places")]
    Full,
    /// The system refused something.
    #[error("sharing the device: {what}: {source}")]
    System {
        /// The call that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
