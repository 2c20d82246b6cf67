//! What goes wrong with a device.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::netdev::NetdevError;
use crate::netdev::neighbour::NeighbourError;
use crate::nic::{Answer, ControlError};
use crate::port::udp::UdpError;
use crate::port::xdp::XdpError;
use crate::remote::AttachError;
use crate::shared::PostError;
use crate::verbs::Mtu;
use crate::wire::Gid;

/// Why a neighbour's MAC address could not be found.
#[derive(Debug, thiserror::Error)]
#[error("no way to {destination} from {device}: {reason}")]
pub struct ResolveError {
    /// The address whose station address was sought.
    pub destination: IpAddr,
    /// The device that the frames would leave from.
    pub device: String,
    /// What went wrong, for people.
    pub reason: String,
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device refused a command.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused memory or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// What the system was asked for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such GID.
    #[error("{device} has no GID at index {index}; it has {available}")]
    NoGid {
        /// The device that was asked.
        device: String,
        /// The GID index that it does not have.
        index: usize,
        /// Its GIDs by index, for people.
        available: String,
    },
    /// The two ends of a connection are of different address families.
    #[error("the local GID {local} and the remote GID {remote} are of different address families")]
    Families {
        /// This side's GID.
        local: Gid,
        /// The peer's GID, of the other address family.
        remote: Gid,
    },
    /// The port cannot carry even the smallest path MTU.
    #[error("link MTU {0} is too small: the smallest path MTU, 256, needs {needs}", needs = 256 + Mtu::OVERHEAD)]
    LinkMtu(usize),
    /// The interface could not be claimed for the first queue pair.
    #[error(transparent)]
    Claim(Box<OpenError>),
    /// There is no way to the peer.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A copy outside of a region.
    #[error(transparent)]
    Memory(#[from] crate::shared::memory::CopyFault),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The AF_XDP port.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The UDP port.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The interface.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// The way to its neighbours.
    #[error(transparent)]
    Neighbour(#[from] NeighbourError),
    /// The device on the port.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The capture file.
    #[error("cannot write the capture {path}: {source}")]
    Capture {
        /// The path of the file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The NIC of the interface is another process, and does not serve this one.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No NIC serves the interface.
    #[error("no NIC serves {0}: `roxie nic --dev {0}` starts one")]
    NoNic(String),
    /// This is for whoever started the NIC to ask for.
    #[error(
        "{what} is the NIC's, which is another process: ask for it where `roxie nic --dev {interface}` is started, or take --port udp"
    )]
    NicsOwn {
        /// The interface.
        interface: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The interface has no address that could be a GID.
    #[error("{0} has no IP address: give it one, for example `ip addr add 192.0.2.1/24 dev {0}`")]
    NoAddress(String),
}

/// The device answered a command with something else than it is specified to: a bug of ours.
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
