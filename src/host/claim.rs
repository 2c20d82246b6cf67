//! Devices that are opened without taking anything from others: the interface is claimed for the first queue pair.
//!
//! What only asks about a device, as `ibv_devinfo` does, thus works beside a program that uses it.

use super::error::OpenError;
use super::stack::Stack;
use crate::port::Port;
use crate::port::udp::{UdpConfig, UdpPort};
use crate::port::xdp::{XdpConfig, XdpError, XdpPort};

/// Which port a device is to stand on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPlan {
    /// AF_XDP where it is permitted, else UDP sockets.
    #[default]
    Best,
    /// AF_XDP.
    Xdp,
    /// UDP sockets.
    Udp,
}

/// What is left to do for the first queue pair.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) interface: String,
    pub(super) plan: PortPlan,
    pub(super) stack: Stack,
}

impl Claim {
    /// `mac`: the station address that address handles made so far carry.
    pub(super) fn open(&self, mac: [u8; 6]) -> Result<Box<dyn Port>, OpenError> {
        let port: Box<dyn Port> = match self.plan {
            PortPlan::Udp => Box::new(self.open_udp(mac)?),
            PortPlan::Xdp => Box::new(self.open_xdp()?),
            PortPlan::Best => match self.open_xdp() {
                Ok(port) => Box::new(port),
                Err(why) if why.leaves_sockets() => {
                    eprintln!(
                        "roxie: using UDP sockets on {}, since AF_XDP did not open: {why}",
                        self.interface
                    );
                    Box::new(self.open_udp(mac)?)
                }
                Err(why) => return Err(why.into()),
            },
        };
        self.stack.on(port)
    }

    fn open_xdp(&self) -> Result<XdpPort, XdpError> {
        XdpPort::open(&XdpConfig::new(self.interface.clone()))
    }

    /// On any address, so that those that come later are served as well.
    fn open_udp(&self, mac: [u8; 6]) -> Result<UdpPort, OpenError> {
        let config =
            UdpConfig { interface: Some(self.interface.clone()), mac: Some(mac), ..UdpConfig::default() };
        Ok(UdpPort::open(&config)?)
    }
}
