//! Why an interface could not be opened through AF_XDP, and what to do about it.

use std::io;

use crate::netdev::NetdevError;

/// Why [`super::XdpPort::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The interface itself.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// A value of the configuration that cannot work.
    #[error("configuration of the XDP port: {0}")]
    Config(String),
    /// The interface has fewer queues.
    #[error(
        "{interface} has no receive queue {queue}: it has {count}, numbered from 0 (`ethtool -l {interface}`)"
    )]
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue that was asked for.
        queue: u32,
        /// How many there are.
        count: u32,
    },
    /// Somebody else's program has the interface's only slot.
    #[error(
        "{interface} already has an XDP program attached: {program} (id {id}), held by {holders}; \
         stop its owner or detach it (`ip link set dev {interface} xdp off`), or use another interface"
    )]
    ProgramAttached {
        /// The interface.
        interface: String,
        /// The program's name.
        program: String,
        /// The kernel's id of it.
        id: u32,
        /// The processes that hold it.
        holders: String,
    },
    /// Somebody else's socket is bound to the queue.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket, still after {waited_ms} ms; \
         processes that hold an XSKMAP: {holders}"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// How long we tried.
        waited_ms: u128,
        /// The suspects.
        holders: String,
    },
    /// The caller lacks privileges.
    #[error(
        "{action}: not permitted. An XDP port needs CAP_NET_RAW (the socket), CAP_BPF and CAP_PERFMON (the program), \
         CAP_NET_ADMIN (to attach it) and, where little memory may be locked, CAP_IPC_LOCK: run as root, or `setcap \
         cap_net_raw,cap_bpf,cap_perfmon,cap_net_admin,cap_ipc_lock+ep` the binary; without them use the udp port"
    )]
    NotPermitted {
        /// What was refused.
        action: String,
    },
    /// The UMEM is larger than the process may lock.
    #[error(
        "{needed} bytes of packet memory exceed the limit of locked memory ({limit} bytes), which could not \
         be raised: run `ulimit -l {}` first (systemd: LimitMEMLOCK={needed}), give the program \
         CAP_IPC_LOCK, or open fewer or smaller rings", needed.div_ceil(1024)
    )]
    LockedMemory {
        /// Bytes of UMEM.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel did not take the steering program.
    #[error("the kernel refused the steering program: {reason}")]
    Program {
        /// The loader's words.
        reason: String,
    },
    /// No mode that was allowed works on this interface.
    #[error("{interface} ({driver}) cannot be opened through AF_XDP: {tried}")]
    Unsupported {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// Each mode that was tried and the kernel's answer.
        tried: String,
    },
    /// Any other refusal.
    #[error("{action}: {source}")]
    Kernel {
        /// What was tried.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}
