//! Devices that claim their interface only with the first queue pair.
//!
//! A program that only queries a device, such as `ibv_devinfo`, so works next to a program that uses it.

#[cfg(feature = "udp")]
use std::sync::Arc;

#[cfg(feature = "udp")]
use roxie_port::group::Member;
#[cfg(feature = "udp")]
use roxie_port::packet::{PacketConfig, PacketError, PacketPort};
#[cfg(feature = "udp")]
use roxie_port::udp::{UdpConfig, UdpPort};
use roxie_port::xdp::{self, Mode, XdpConfig, XdpError};

use super::device_slot::DeviceSlot;
use super::error::OpenError;
use super::stack::Stack;
use roxie_port::{Carries, Port};

/// The kind of port that a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPlan {
    /// The NIC of another process if one serves the interface, else the first of these that is built in and possible:
    /// packet sockets, AF_XDP, UDP sockets.
    #[default]
    Best,
    /// AF_XDP, in this mode.
    Xdp(Mode),
    /// Packet sockets; UDP sockets if the process lacks the privilege when it claims the interface.
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
        let ports = match self.plan {
            #[cfg(feature = "udp")]
            PortPlan::Packet => match self.open_packet(workers) {
                // A server that has given up root.
                Err(PacketError::NotPermitted) => {
                    tracing::warn!(
                        "using UDP sockets on {}: packet sockets take CAP_NET_RAW, which this process does not have",
                        self.interface
                    );
                    self.open_udp(mac, workers)?
                }
                opened => opened?,
            },
            #[cfg(feature = "udp")]
            PortPlan::Udp => self.open_udp(mac, workers)?,
            PortPlan::Xdp(mode) => self.open_xdp(mode, workers)?,
            // A device on a NIC of another process has no claim.
            PortPlan::Nic | PortPlan::Best => self.open_best(mac, workers)?,
        };
        if ports.len() < workers {
            return Err(OpenError::SeveralWorkers(
                "the interface has fewer receive queues than `--cores` has cores, and over AF_XDP a worker needs one: name fewer \
                 cores, or `ethtool -L` gives it more queues",
            ));
        }
        let (ports, slots): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
        Ok(self.stack.on_all(ports)?.into_iter().zip(slots).collect())
    }

    /// Opens the first kind of port that the program was built with and the kernel permits.
    fn open_best(&self, mac: [u8; 6], workers: usize) -> Result<Vec<Opened>, OpenError> {
        #[cfg(feature = "udp")]
        match self.open_packet(workers) {
            Err(why) if why.leaves_sockets() => {
                tracing::info!("no packet sockets on {}: {why}", self.interface)
            }
            other => return Ok(other?),
        }
        match self.open_xdp(Mode::Auto, workers) {
            Err(XdpError::NotBuilt) if cfg!(feature = "udp") => {}
            Err(why) if cfg!(feature = "udp") && why.leaves_sockets() => {
                tracing::warn!("using UDP sockets on {}, since AF_XDP did not open: {why}", self.interface);
            }
            other => return Ok(other?),
        }
        #[cfg(feature = "udp")]
        return self.open_udp(mac, workers);
        #[cfg(not(feature = "udp"))]
        {
            let _ = (mac, workers);
            Err(OpenError::NoNic(self.interface.clone()))
        }
    }

    #[cfg(feature = "udp")]
    fn open_packet(&self, workers: usize) -> Result<Vec<Opened>, PacketError> {
        let config = PacketConfig::new(self.interface.clone());
        opened(workers, || PacketPort::open(&config), PacketPort::member)
    }

    fn open_xdp(&self, mode: Mode, workers: usize) -> Result<Vec<Opened>, XdpError> {
        let config = XdpConfig { mode, ..XdpConfig::new(self.interface.clone()) };
        Ok(xdp::open_split(&config, workers)?.into_iter().map(|port| (port, None)).collect())
    }

    /// Opens UDP sockets on the wildcard address, so that addresses added later work too, and shares the port with
    /// other processes.
    #[cfg(feature = "udp")]
    fn open_udp(&self, mac: [u8; 6], workers: usize) -> Result<Vec<Opened>, OpenError> {
        let interface = Some(self.interface.clone());
        let config = UdpConfig { interface, mac: Some(mac), ..UdpConfig::default() };
        Ok(opened(workers, || UdpPort::open(&config), UdpPort::member)?)
    }
}

/// Opens this many ports of a kind, with their slots in its socket group.
#[cfg(feature = "udp")]
fn opened<P: Port + 'static, E>(
    workers: usize,
    open: impl Fn() -> Result<P, E>,
    member: impl Fn(&P) -> Option<&Arc<Member>>,
) -> Result<Vec<Opened>, E> {
    let one = |_| {
        let port = open()?;
        let slot = member(&port).cloned().map(DeviceSlot::Group);
        Ok((Box::new(port) as Box<dyn Port>, slot))
    };
    (0..workers).map(one).collect()
}
