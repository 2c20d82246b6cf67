//! Reasons why a process gets no NIC.

use std::io;

use roxie_base::descriptors::Peer;
use roxie_base::text::Plain;

/// The reason why an existing NIC does not serve this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The NIC's process is another user's, and may not be trusted with this process's memory.
    #[error(
        "the NIC of {interface} is process {} of {nic}, which is neither root nor this user ({own}): it would reach into this \
         process's memory; start `roxie nic` as one of them, or take --port udp",
        nic.pid
    )]
    Stranger {
        /// The interface.
        interface: String,
        /// The process and its user.
        nic: Peer,
        /// The user of this process.
        own: u32,
    },
    /// The process with the NIC's name does not respond as a NIC.
    #[error(
        "the NIC of {interface} does not answer: it is stopped, or another process has taken its name, @roxie/nic/{interface} \
         (`ss -xlp` says which); end that process, or take --port udp"
    )]
    Silent {
        /// The interface.
        interface: String,
    },
    /// The process cannot pass descriptors of its memory.
    #[error(
        "the NIC of {interface} (`roxie nic`) reaches memory by /proc/self/mem, which this process may not open: {source}; mount /proc, \
         and let the process be dumpable (PR_SET_DUMPABLE: a process that has changed its user is not), or take --port udp"
    )]
    Memory {
        /// The interface.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
    /// The NIC refuses this process.
    #[error("the NIC of {interface} (`roxie nic`) does not serve this process: {}", Plain(.why))]
    Refused {
        /// The interface.
        interface: String,
        /// The NIC's reason.
        why: String,
    },
    /// A system error, or a NIC of another version.
    #[error("asking the NIC of {interface} (`roxie nic`): {source}")]
    System {
        /// The interface.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
}
