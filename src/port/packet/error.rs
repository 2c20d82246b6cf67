//! Errors of opening a packet port.

use std::io;

use crate::group::JoinError;
use crate::netdev::NetdevError;
use roxie_base::frame::ROCE_V2_PORT;

/// Why a [`PacketPort`](super::PacketPort) did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The interface itself.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// The caller lacks the privilege.
    #[error(
        "packet sockets are not permitted: they take CAP_NET_RAW. Run as root, or `setcap cap_net_raw+ep` the binary; without it use \
         the udp port"
    )]
    NotPermitted,
    /// The kernel has no trains of UDP datagrams in packet sockets (`GSO_UDP_L4` in `linux/virtio_net.h`), sent or
    /// received.
    #[error(
        "packet sockets of Linux {release} carry no trains of datagrams: the packet port takes Linux 6.2; use the udp port"
    )]
    OldKernel {
        /// The kernel's release.
        release: String,
    },
    /// Another process or the kernel receives on the UDP port.
    #[error("UDP port {ROCE_V2_PORT} of {interface} is taken: {owner}")]
    InUse {
        /// The interface that was to be opened.
        interface: String,
        /// The holder, and what to do.
        owner: String,
    },
    /// Other processes share the interface, and this one cannot join them.
    #[error(transparent)]
    Group(#[from] JoinError),
    /// Any other refusal.
    #[error("{action}: {source}")]
    Kernel {
        /// The action that failed, as a sentence without its subject.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PacketError {
    /// True if the error does not affect other kinds of ports.
    pub fn leaves_sockets(&self) -> bool {
        use PacketError::{InUse, NotPermitted, OldKernel};
        matches!(self, NotPermitted | OldKernel { .. } | InUse { .. })
    }

    pub(super) fn of(action: &str) -> impl Fn(io::Error) -> PacketError + '_ {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => PacketError::NotPermitted,
            _ => PacketError::Kernel { action: action.into(), source },
        }
    }
}
