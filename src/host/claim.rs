//! Devices that are opened without taking anything from others: the interface is claimed for the first queue pair.
//!
//! What only asks about a device, as `ibv_devinfo` does, thus works beside a program that uses it.

use std::sync::Arc;

use super::error::OpenError;
use super::stack::Stack;
use crate::port::Port;
use crate::port::udp::group::Member;
use crate::port::udp::{UdpConfig, UdpPort};
use crate::port::xdp::{Mode, XdpConfig, XdpError, XdpPort};

/// Which port a device is to stand on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPlan {
    /// AF_XDP where it is permitted, else UDP sockets.
    #[default]
    Best,
    /// AF_XDP, in this mode.
    Xdp(Mode),
    /// UDP sockets.
    Udp,
    /// A NIC that is another process.
    Nic,
}

/// A port, and the processes that it is shared with, if any may come.
pub(super) type Opened = (Box<dyn Port>, Option<Arc<Member>>);

/// What is left to do for the first queue pair.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) interface: String,
    pub(super) plan: PortPlan,
    pub(super) stack: Stack,
}

impl Claim {
    /// `mac`: the station address that address handles made so far carry.
    pub(super) fn open(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let (port, member): (Box<dyn Port>, _) = match self.plan {
            PortPlan::Udp => self.open_udp(mac)?,
            PortPlan::Xdp(mode) => (Box::new(self.open_xdp(mode)?), None),
            // There is nothing to claim: a device on one was opened as such.
            PortPlan::Nic | PortPlan::Best => match self.open_xdp(Mode::Auto) {
                Ok(port) => (Box::new(port), None),
                Err(why) if why.leaves_sockets() => {
                    eprintln!(
                        "roxie: using UDP sockets on {}, since AF_XDP did not open: {why}",
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

    /// On any address, so that those that come later are served as well, and with any process that comes.
    fn open_udp(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let interface = Some(self.interface.clone());
        let config = UdpConfig { interface, mac: Some(mac), ..UdpConfig::default() };
        let port = UdpPort::open(&config)?;
        let member = port.member().cloned();
        Ok((Box::new(port), member))
    }
}
