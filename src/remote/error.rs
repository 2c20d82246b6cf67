//! Why a process has no NIC.

use std::io;

/// Why a process is not served by a NIC that is there.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It is somebody's who is not to be trusted with this process's memory.
    #[error(
        "the NIC of {interface} is process {pid} of user {uid}, which is neither root nor this user ({own}): it would reach into this \
         process's memory; start `roxie nic` as one of them, or take --port udp"
    )]
    Stranger {
        /// The interface.
        interface: String,
        /// The process.
        pid: u32,
        /// Whose it is.
        uid: u32,
        /// Who asks.
        own: u32,
    },
    /// A process has its name, and does not do what a NIC does.
    #[error(
        "the NIC of {interface} does not answer: it is stopped, or another process has taken its name, @roxie/nic/{interface} \
         (`ss -xlp` says which); end that process, or take --port udp"
    )]
    Silent {
        /// The interface.
        interface: String,
    },
    /// This process cannot hand over descriptors of its memory.
    #[error(
        "the NIC of {interface} (`roxie nic`) reaches memory by /proc/self/mem, which this process may not open: {source}; mount /proc, \
         and let the process be dumpable (PR_SET_DUMPABLE: a process that has changed its user is not), or take --port udp"
    )]
    Memory {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// It does not serve this process.
    #[error("the NIC of {interface} (`roxie nic`) does not serve this process: {why}")]
    Refused {
        /// The interface.
        interface: String,
        /// What it says.
        why: String,
    },
    /// The system, or a NIC of another version.
    #[error("asking the NIC of {interface} (`roxie nic`): {source}")]
    System {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
}
