//! Devices that claim their interface only with the first queue pair.
//!
//! A program that only queries a device, such as `ibv_devinfo`, so works beside a program that uses it.

#[cfg(feature = "udp")]
use roxie_port::packet::{PacketConfig, PacketError, PacketPort};
#[cfg(feature = "udp")]
use roxie_port::udp::{UdpConfig, UdpPort};
#[cfg(feature = "xdp")]
use roxie_port::xdp::{Mode, XdpConfig, XdpError, XdpPort};

use super::adapter::DeviceSlot;
use super::error::OpenError;
use super::stack::Stack;
use roxie_port::{Carries, Port};

/// The kind of port that a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPlan {
    /// The NIC of another process if one serves the interface, else the first of these that is built in and possible: packet sockets,
    /// AF_XDP, UDP sockets.
    #[default]
    Best,
    /// AF_XDP, in this mode.
    #[cfg(feature = "xdp")]
    Xdp(Mode),
    /// Packet sockets.
    #[cfg(feature = "udp")]
    Packet,
    /// UDP sockets.
    #[cfg(feature = "udp")]
    Udp,
    /// A NIC that is another process.
    Nic,
}

impl PortPlan {
    /// Returns what the port will carry.
    pub(super) fn carries(self) -> Carries {
        match self {
            #[cfg(feature = "xdp")]
            PortPlan::Xdp(_) => Carries::AnyFrames,
            #[cfg(feature = "udp")]
            PortPlan::Packet => Carries::RoceFrames,
            #[cfg(feature = "udp")]
            PortPlan::Udp => Carries::Datagrams,
            PortPlan::Best | PortPlan::Nic if cfg!(feature = "udp") => Carries::RoceFrames,
            PortPlan::Best | PortPlan::Nic => Carries::AnyFrames,
        }
    }
}

/// A port, and its slot in a socket group if other processes may share it.
pub(super) type Opened = (Box<dyn Port>, Option<DeviceSlot>);

/// The claim that the first queue pair makes.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) interface: String,
    pub(super) plan: PortPlan,
    pub(super) stack: Stack,
}

impl Claim {
    /// Opens a port for each worker. `mac`: the MAC address in address handles made so far.
    pub(super) fn open(&self, mac: [u8; 6], workers: usize) -> Result<Vec<Opened>, OpenError> {
        if workers > 1 && self.stack.capture.is_some() {
            return Err(OpenError::SeveralWorkers("a capture is of one worker"));
        }
        let first = self.open_port(mac)?;
        if workers > 1 && first.1.is_none() {
            return Err(OpenError::SeveralWorkers(
                "they share packet sockets or UDP sockets: --port packet, --port udp",
            ));
        }
        std::iter::once(Ok(first)).chain((1..workers).map(|_| self.open_port(mac))).collect()
    }

    fn open_port(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let (port, slot) = match self.plan {
            #[cfg(feature = "udp")]
            PortPlan::Packet => self.open_packet()?,
            #[cfg(feature = "udp")]
            PortPlan::Udp => self.open_udp(mac)?,
            #[cfg(feature = "xdp")]
            PortPlan::Xdp(mode) => (Box::new(self.open_xdp(mode)?) as Box<dyn Port>, None),
            // A device on a NIC of another process has no claim.
            PortPlan::Nic | PortPlan::Best => self.open_best(mac)?,
        };
        Ok((self.stack.on(port)?, slot))
    }

    /// Opens the first kind of port that the program was built with and the kernel permits.
    fn open_best(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        #[cfg(feature = "udp")]
        match self.open_packet() {
            Err(why) if why.leaves_sockets() => {
                tracing::info!("no packet sockets on {}: {why}", self.interface)
            }
            other => return Ok(other?),
        }
        #[cfg(feature = "xdp")]
        match self.open_xdp(Mode::Auto) {
            Ok(port) => return Ok((Box::new(port), None)),
            Err(why) if cfg!(feature = "udp") && why.leaves_sockets() => {
                tracing::warn!("using UDP sockets on {}, since AF_XDP did not open: {why}", self.interface);
            }
            Err(why) => return Err(why.into()),
        }
        #[cfg(feature = "udp")]
        return self.open_udp(mac);
        #[cfg(not(feature = "udp"))]
        {
            let _ = mac;
            Err(OpenError::NoNic(self.interface.clone()))
        }
    }

    #[cfg(feature = "udp")]
    fn open_packet(&self) -> Result<Opened, PacketError> {
        let port = PacketPort::open(&PacketConfig::new(self.interface.clone()))?;
        let slot = port.member().cloned().map(DeviceSlot::Group);
        Ok((Box::new(port), slot))
    }

    #[cfg(feature = "xdp")]
    fn open_xdp(&self, mode: Mode) -> Result<XdpPort, XdpError> {
        XdpPort::open(&XdpConfig { mode, ..XdpConfig::new(self.interface.clone()) })
    }

    /// Opens UDP sockets on the wildcard address, so that addresses added later work too, and shares the port with other
    /// processes.
    #[cfg(feature = "udp")]
    fn open_udp(&self, mac: [u8; 6]) -> Result<Opened, OpenError> {
        let interface = Some(self.interface.clone());
        let config = UdpConfig { interface, mac: Some(mac), ..UdpConfig::default() };
        let port = UdpPort::open(&config)?;
        let slot = port.member().cloned().map(DeviceSlot::Group);
        Ok((Box::new(port), slot))
    }
}
