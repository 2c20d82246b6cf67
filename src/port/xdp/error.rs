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
        /// The interface that was to be opened.
        interface: String,
        /// The queue that was asked for.
        queue: u32,
        /// How many there are.
        count: u32,
    },
    /// Somebody else's program has the interface's only slot.
    #[error(
        "{interface} already has an XDP program attached: {program} (id {id}), {}; or use another interface",
        remedy(interface, holders)
    )]
    ProgramAttached {
        /// The interface that has a program already.
        interface: String,
        /// The name that its loader gave the program.
        program: String,
        /// The kernel's id of it.
        id: u32,
        /// The processes that hold it, as far as they are visible from here.
        holders: Vec<String>,
        /// How often attaching was tried: more than once where no process held the program.
        attempts: u16,
    },
    /// Somebody else's socket is bound to the queue.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket, still after {waited_ms} ms; \
         processes that hold an XSKMAP: {holders}"
    )]
    QueueBusy {
        /// The interface that was to be opened.
        interface: String,
        /// The receive queue that another socket has.
        queue: u32,
        /// How long we tried.
        waited_ms: u128,
        /// Processes that may have it, for people.
        holders: String,
    },
    /// The caller lacks privileges.
    #[error(
        "{action}: not permitted. An XDP port needs CAP_NET_RAW (the socket), CAP_BPF and CAP_PERFMON (the program), \
         CAP_NET_ADMIN (to attach it) and, where little memory may be locked, CAP_IPC_LOCK: run as root, or `setcap \
         cap_net_raw,cap_bpf,cap_perfmon,cap_net_admin,cap_ipc_lock+ep` the binary; without them use the udp port"
    )]
    NotPermitted {
        /// The call that the kernel refused, for people.
        action: String,
    },
    /// The UMEM is larger than the process may lock.
    #[error(
        "{needed} bytes of packet memory exceed the limit of locked memory ({limit} bytes), which could not \
         be raised: run `ulimit -l {}` first (systemd: LimitMEMLOCK={needed}), give the program \
         CAP_IPC_LOCK, or open fewer or smaller rings", needed.div_ceil(1024)
    )]
    LockedMemory {
        /// Bytes of UMEM that the port wants to lock.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel did not take the steering program.
    #[error("the kernel refused the steering program: {reason}")]
    Program {
        /// What the program's loader said, the verifier's words included.
        reason: String,
    },
    /// No mode that was allowed works on this interface.
    #[error("{interface} ({driver}) cannot be opened through AF_XDP: {tried}")]
    Unsupported {
        /// The interface that was to be opened.
        interface: String,
        /// The driver of the interface.
        driver: String,
        /// Each mode that was tried and the kernel's answer.
        tried: String,
    },
    /// Any other refusal.
    #[error("{action}: {source}")]
    Kernel {
        /// What was tried, as a sentence without its subject.
        action: String,
        /// The kernel's answer, as an errno.
        source: io::Error,
    },
}

/// A program that a process attached by a link (`bpf_link`) goes with that process alone: the kernel refuses to detach it
/// otherwise. One that nobody holds was attached by `ip link set xdp`, or its holder is in another PID namespace.
fn remedy(interface: &str, holders: &[String]) -> String {
    match holders {
        [] => format!(
            "held by no process that is visible from here: detach it (`ip link set dev {interface} xdp off`)"
        ),
        some => format!("held by {}: stop that first", some.join(", ")),
    }
}

impl XdpError {
    /// True if it has a reason that UDP sockets on the same interface do not have.
    pub fn leaves_sockets(&self) -> bool {
        use XdpError::{LockedMemory, NotPermitted, Program, Unsupported};
        matches!(self, NotPermitted { .. } | LockedMemory { .. } | Program { .. } | Unsupported { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(holders: &[&str]) -> String {
        let holders = holders.iter().map(ToString::to_string).collect();
        XdpError::ProgramAttached {
            interface: "eth0".into(),
            program: "p".into(),
            id: 7,
            holders,
            attempts: 1,
        }
        .to_string()
    }

    #[test]
    fn only_a_program_that_nobody_holds_can_be_detached_from_outside() {
        let held = attached(&["roxie (pid 42)"]);
        assert!(
            held.contains("held by roxie (pid 42): stop that first") && !held.contains("xdp off"),
            "{held}"
        );
        assert!(attached(&[]).contains("ip link set dev eth0 xdp off"));
    }
}
