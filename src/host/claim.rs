//! Devices that claim their interface only with the first queue pair.
//!
//! A program that only queries a device, such as `ibv_devinfo`, so works beside a program that uses it.

use std::sync::Arc;

use super::error::OpenError;
use super::stack::Stack;
use crate::port::Port;
use crate::port::udp::group::Member;
use crate::port::udp::{UdpConfig, UdpPort};
use crate::port::xdp::{Mode, XdpConfig, XdpError, XdpPort};

/// The kind of port that a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPlan {
    /// AF_XDP if permitted, else UDP sockets.
    #[default]
    Best,
    /// AF_XDP, in this mode.
    Xdp(Mode),
    /// UDP sockets.
    Udp,
    /// A NIC that is another process.
    Nic,
}

/// A port, and its membership in a socket group if other processes may share it.
pub(super) type Opened = (Box<dyn Port>, Option<Arc<Member>>);

/// The claim that the first queue pair makes.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) interface: String,
    pub(super) plan: PortPlan,
    pub(super) stack: Stack,
}

impl Claim {
    /// Opens the port. `mac`: the MAC address in address handles made so far.
    pub(super) fn open(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let (port, member): (Box<dyn Port>, _) = match self.plan {
            PortPlan::Udp => self.open_udp(mac)?,
            PortPlan::Xdp(mode) => (Box::new(self.open_xdp(mode)?), None),
            // A device on a NIC of another process has no claim.
            PortPlan::Nic | PortPlan::Best => match self.open_xdp(Mode::Auto) {
                Ok(port) => (Box::new(port), None),
                Err(why) if why.leaves_sockets() => {
                    tracing::warn!(
                        "using UDP sockets on {}, since AF_XDP did not open: {why}",
                        self.interface
                    );
                    self.open_udp(mac)?
                }
                Err(why) => return Err(why.into()),
            },
        };
        Ok((self.stack.on(port)?, member))
    }

    fn open_xdp(&self, mode: Mode) -> Result<XdpPort, XdpError> {
        XdpPort::open(&XdpConfig { mode, ..XdpConfig::new(self.interface.clone()) })
    }

    /// Opens UDP sockets on the wildcard address, so that addresses added later work too, and shares the port with other
    /// processes.
    fn open_udp(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let interface = Some(self.interface.clone());
        let config = UdpConfig { interface, mac: Some(mac), ..UdpConfig::default() };
        let port = UdpPort::open(&config)?;
        let member = port.member().cloned();
        Ok((Box::new(port), member))
    }
}
