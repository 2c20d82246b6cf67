//! The place of a process among those that share a device.

use std::net::IpAddr;
use std::sync::Arc;

use crate::remote::Attachment;
use roxie_base::roster::{Denied, PortRequest};
#[cfg(feature = "udp")]
use roxie_port::group::Member;

/// The slot of a process among those that share a device. Numbers that the process allocates begin with it.
#[derive(Clone, Debug)]
pub enum DeviceSlot {
    /// A slot in a group of sockets.
    #[cfg(feature = "udp")]
    Group(Arc<Member>),
    /// A slot at a NIC that is another process.
    Nic(Arc<Attachment>),
}

impl DeviceSlot {
    /// The slot's number.
    pub fn slot(&self) -> u8 {
        match self {
            #[cfg(feature = "udp")]
            DeviceSlot::Group(member) => member.slot(),
            DeviceSlot::Nic(nic) => nic.slot(),
        }
    }

    /// The prefix of this process's QPNs; `None` if QPNs have no such prefix.
    pub(super) fn unit(&self) -> Option<u8> {
        match self {
            #[cfg(feature = "udp")]
            DeviceSlot::Group(member) => Some(member.slot()),
            DeviceSlot::Nic(_) => None,
        }
    }

    /// Takes the unit of another process of this user that has ended, so as to send messages to its peers under its
    /// communication IDs.
    ///
    /// # Errors
    /// If the unit is taken, or the NIC cannot be asked.
    pub fn take_unit(&self, unit: u8) -> Result<(), Denied> {
        match self {
            #[cfg(feature = "udp")]
            DeviceSlot::Group(member) => member.take_unit(unit),
            DeviceSlot::Nic(nic) => nic.take_unit(unit),
        }
    }

    pub(super) fn set_services(
        &self,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        match self {
            #[cfg(feature = "udp")]
            DeviceSlot::Group(member) => member.set_services(services),
            DeviceSlot::Nic(nic) => nic.set_services(services),
        }
    }

    /// Executes a request about an `rdma_cm` port number, which is shared by the processes. Returns the port number.
    ///
    /// # Errors
    /// The errors of [`Roster::port`](roxie_base::roster::Roster::port); `EIO` if the roster cannot be reached.
    pub fn port(&self, request: PortRequest) -> Result<u16, Denied> {
        match self {
            #[cfg(feature = "udp")]
            DeviceSlot::Group(member) => member.port(request),
            DeviceSlot::Nic(nic) => nic.port_number(request),
        }
    }
}
