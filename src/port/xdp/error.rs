//! Errors of opening an interface through AF_XDP.

use std::io;

use crate::netdev::NetdevError;

/// Why an interface did not open through AF_XDP.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        /// Number of receive queues.
        count: u32,
    },
    /// A bond, whose frames pass its slaves' hooks.
    #[error(
        "{interface} is a bond ({mode}): its frames pass the XDP hooks of its slaves ({}), and AF_XDP sockets of one slave would not \
         follow when it fails over; packet sockets do (--port packet), UDP sockets do, or name a slave",
        slaves.join(", ")
    )]
    Bond {
        /// The bond.
        interface: String,
        /// Its mode, by the kernel's name.
        mode: String,
        /// The names of its slaves.
        slaves: Vec<String>,
    },
    /// The program was built without the feature `xdp`.
    #[error(
        "this program was built without AF_XDP: build it with the feature xdp, which takes clang, or use sockets"
    )]
    NotBuilt,
    /// Another program occupies the interface's only slot.
    #[error(
        "{interface} already has an XDP program attached: {program} (id {id}), {}; or use another interface",
        remedy(interface, holders)
    )]
    ProgramAttached {
        /// The interface that has a program already.
        interface: String,
        /// The name that its loader gave the program.
        program: String,
        /// The program's id in the kernel.
        id: u32,
        /// The processes that hold it, as far as they are visible from here.
        holders: Vec<String>,
    },
    /// Another process's socket is bound to the queue.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket, still after {waited_ms} ms; \
         processes that hold an XSKMAP: {holders}"
    )]
    QueueBusy {
        /// The interface that was to be opened.
        interface: String,
        /// The receive queue.
        queue: u32,
        /// How long binding was retried.
        waited_ms: u128,
        /// Processes that may hold it, as text.
        holders: String,
    },
    /// The caller lacks privileges.
    #[error(
        "{action}: not permitted. An XDP port needs CAP_NET_RAW (the socket), CAP_BPF and CAP_PERFMON (the program), \
         CAP_NET_ADMIN (to attach it) and, where little memory may be locked, CAP_IPC_LOCK: run as root, or `setcap \
         cap_net_raw,cap_bpf,cap_perfmon,cap_net_admin,cap_ipc_lock+ep` the binary; without them use the udp port"
    )]
    NotPermitted {
        /// The call that the kernel refused, as text.
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
        /// The loader's error, with the verifier's log.
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
        /// The action that failed, as a sentence without its subject.
        action: String,
        /// The kernel's answer, as an errno.
        source: io::Error,
    },
}

/// Says how to free the slot. A program that a process attached by a link (`bpf_link`) ends with that process: the
/// kernel refuses to detach it otherwise. A program without a visible holder was attached by `ip link set xdp`, or its
/// holder is in another PID namespace.
fn remedy(interface: &str, holders: &[String]) -> String {
    match holders {
        [] => format!(
            "held by no process that is visible from here: detach it (`ip link set dev {interface} xdp off`)"
        ),
        some => format!("held by {}: stop that first", some.join(", ")),
    }
}

impl XdpError {
    /// True if the error does not affect UDP sockets on the same interface.
    pub fn leaves_sockets(&self) -> bool {
        use XdpError::{Bond, LockedMemory, NotBuilt, NotPermitted, Program, Unsupported};
        matches!(
            self,
            NotBuilt
                | NotPermitted { .. }
                | LockedMemory { .. }
                | Program { .. }
                | Unsupported { .. }
                | Bond { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_bond_leaves_sockets() {
        let slaves = vec!["eth1".into(), "eth2".into()];
        let refused = XdpError::Bond { interface: "bond0".into(), mode: "active-backup".into(), slaves };
        assert!(refused.leaves_sockets());
        let message = refused.to_string();
        assert!(
            message.starts_with("bond0 is a bond (active-backup)") && message.contains("(eth1, eth2)"),
            "{message}"
        );
    }

    fn attached(holders: &[&str]) -> String {
        let holders = holders.iter().map(ToString::to_string).collect();
        XdpError::ProgramAttached { interface: "eth0".into(), program: "p".into(), id: 7, holders }
            .to_string()
    }

    #[test]
    fn only_an_unheld_program_can_be_detached() {
        let held = attached(&["roxie (pid 42)"]);
        assert!(
            held.contains("held by roxie (pid 42): stop that first") && !held.contains("xdp off"),
            "{held}"
        );
        assert!(attached(&[]).contains("ip link set dev eth0 xdp off"));
    }
}
