//! Devices that are opened without taking anything from others: the interface is claimed for the first queue pair.
//!
//! What only asks about a device, as `ibv_devinfo` does, thus works beside a program that uses it.

use std::sync::{Arc, PoisonError};

use super::device::{Device, DeviceConfig, DeviceError, Resolve};
use super::follow::{Followed, Live};
use super::gid_table::GidOrder;
use super::open::{KernelNeighbours, OpenError, Stack, Synthetic};
use crate::netdev::{Interface, Neighbours};
use crate::port::udp::{UdpConfig, UdpPort, synthetic_mac};
use crate::port::unclaimed::UnclaimedPort;
use crate::port::xdp::{XdpConfig, XdpError, XdpPort};
use crate::port::{Port, PortInfo};

/// Bytes that a frame has beside its L3 packet.
const ETHERNET_HEADER: usize = 14;

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
    interface: String,
    plan: PortPlan,
    stack: Stack,
}

impl Device {
    /// A device on an interface of the calling thread's network namespace that claims it with its first queue pair; until then
    /// it answers questions, registers memory and makes queues.
    ///
    /// # Errors
    /// If there is no such interface, or it has no address.
    pub fn open_unclaimed(
        interface: &str,
        plan: PortPlan,
        stack: Stack,
        config: &DeviceConfig,
    ) -> Result<Device, OpenError> {
        let found = Interface::by_name(interface)?;
        let first = found.addresses.first().ok_or_else(|| OpenError::NoAddress(interface.to_owned()))?.ip;
        let frames = plan != PortPlan::Udp;
        let info = PortInfo {
            name: "unclaimed".into(),
            interface: Some(found.name.clone()),
            mode: "claimed with the first queue pair".into(),
            mac: if frames { found.mac } else { synthetic_mac(first) },
            mtu: found.mtu,
            max_frame: found.mtu + ETHERNET_HEADER,
            raw_frames: frames,
        };
        let addresses: Vec<_> = found.addresses.iter().map(|a| a.ip).collect();
        let neighbours = if frames { Some(Arc::new(Neighbours::open(&found)?)) } else { None };
        let config = DeviceConfig { gid_order: GidOrder::Customary { station: found.mac }, ..config.clone() };
        let interface = Live::new(found);
        let resolver: Box<dyn Resolve> = match &neighbours {
            Some(neighbours) => Box::new(KernelNeighbours {
                interface: interface.clone(),
                neighbours: Arc::clone(neighbours),
            }),
            None => Box::new(Synthetic),
        };
        let port = Box::new(UnclaimedPort::new(info.clone()));
        let device = Device::new("roxie0", port, addresses, resolver, &config)?;
        let claim = Claim { interface: info.interface.unwrap_or_default(), plan, stack };
        *device.inner.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
        device.follow(Followed { interface, addresses: true, neighbours })?;
        Ok(device)
    }

    /// Claims the interface, if that was left for later: from now on frames come and go. Making a queue pair does so by itself.
    ///
    /// # Errors
    /// If it cannot be had: the error says who has it. A later call tries again.
    pub fn claim(&self) -> Result<(), DeviceError> {
        let mut left = self.inner.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(claim) = &*left else { return Ok(()) };
        let port = claim.open(self.port().mac).map_err(|e| DeviceError::Claim(Box::new(e)))?;
        self.inner
            .engine
            .set_port(port)
            .map_err(|source| DeviceError::System { what: "waiting for frames", source })?;
        *left = None;
        Ok(())
    }

    /// True if its port is open.
    pub fn is_claimed(&self) -> bool {
        self.inner.claim.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Claim {
    /// `mac`: the station address that address handles made so far carry.
    fn open(&self, mac: [u8; 6]) -> Result<Box<dyn Port>, OpenError> {
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
