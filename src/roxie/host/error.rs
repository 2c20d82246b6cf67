//! Errors of devices.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::packet_rule::RuleError;
use crate::remote::AttachError;
use roxie_nic::nic::{Answer, ControlError};
use roxie_nic::shared::PostError;
use roxie_nic::verbs::{LocalGid, Mtu};
use roxie_port::netdev::NetdevError;
use roxie_port::netdev::neighbour::NeighbourError;
#[cfg(feature = "udp")]
use roxie_port::packet::PacketError;
#[cfg(feature = "udp")]
use roxie_port::udp::UdpError;
use roxie_port::xdp::XdpError;
use roxie_wire::Gid;

/// Why a neighbour's MAC address could not be found.
#[derive(Debug, thiserror::Error)]
#[error("no path to {destination} from {device}: {reason}")]
pub struct ResolveError {
    /// The unresolved destination.
    pub destination: IpAddr,
    /// The device that the frames would leave from.
    pub device: String,
    /// The reason, as text.
    pub reason: String,
}

/// Errors of operations on a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device refused a command.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused memory or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such GID.
    #[error("{device} has no GID at index {index}; it has {available}")]
    NoGid {
        /// The device that was asked.
        device: String,
        /// The GID index that it does not have.
        index: usize,
        /// The device's GIDs by index, as text.
        available: String,
    },
    /// The two ends of a connection are of different address families.
    #[error("the local GID {local} and the remote GID {remote} are of different address families")]
    Families {
        /// The local GID.
        local: Gid,
        /// The peer's GID, of the other address family.
        remote: Gid,
    },
    /// There is no such VLAN.
    #[error("there is no VLAN {0}: VLAN IDs are 1 to 4094")]
    Vlan(u16),
    /// Multicast groups are not served on VLANs.
    #[error(
        "{group} cannot be reached from {local}: multicast groups are served without a VLAN only; use a GID of the interface itself"
    )]
    VlanMulticast {
        /// The local GID.
        local: LocalGid,
        /// The group.
        group: Gid,
    },
    /// The port does not carry RoCE v1; its name.
    #[error(
        "a port of kind {0} carries no RoCE v1, which is no UDP: packet sockets and AF_XDP do (--port packet, --port xdp)"
    )]
    NoRoceV1(String),
    /// The port cannot carry even the smallest path MTU.
    #[error("link MTU {0} is too small: the smallest path MTU, 256, needs {needs}", needs = 256 + Mtu::OVERHEAD)]
    LinkMtu(usize),
    /// The interface could not be claimed for the first queue pair.
    #[error(transparent)]
    Claim(Box<OpenError>),
    /// There is no way to the peer.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A copy beyond the end of a region, or to memory that is no longer mapped.
    #[error(transparent)]
    Memory(#[from] roxie_nic::shared::memory::CopyFault),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// Errors of opening a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The AF_XDP port failed.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The packet port failed.
    #[cfg(feature = "udp")]
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The UDP port failed.
    #[cfg(feature = "udp")]
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The interface failed.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// Neighbour resolution failed.
    #[error(transparent)]
    Neighbour(#[from] NeighbourError),
    /// The device on the port failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A rule of faults that the device cannot follow.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The capture file could not be written.
    #[error("cannot write the capture {path}: {source}")]
    Capture {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The interface's NIC is another process, and does not serve this one.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No NIC serves the interface.
    #[error("no NIC serves {0}: `roxie nic --dev {0}` starts one")]
    NoNic(String),
    /// The option must be given to the NIC, which is another process.
    #[error(
        "{what} is the NIC's, which is another process: ask for it where `roxie nic --dev {interface}` is started, or take --port udp"
    )]
    NicsOwn {
        /// The interface.
        interface: String,
        /// The option.
        what: &'static str,
    },
    /// Several workers cannot have this; why.
    #[error("no several workers: {0}")]
    SeveralWorkers(&'static str),
    /// The interface has no address that could be a GID.
    #[error("{0} has no IP address: give it one, for example `ip addr add 192.0.2.1/24 dev {0}`")]
    NoAddress(String),
}

/// Panics: the device answered a command with the wrong kind of answer, which is a bug of Roxie.
pub(super) fn unexpected(answer: &Answer) -> ! {
    unreachable!("the device answered {answer:?}")
}

pub(super) fn within(what: &'static str, value: u32, limit: u32) -> Result<(), DeviceError> {
    if value > limit {
        return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() }.into());
    }
    Ok(())
}

pub(super) fn no_memory(source: io::Error) -> DeviceError {
    DeviceError::System { what: "memory for a queue", source }
}
