//! A port without a NIC, for measuring what the port alone can do.

use std::net::IpAddr;
use std::time::Duration;

use roxie::host::OpenError;
use roxie::netdev::{Interface, RouteKey, resolve};
use roxie::port::Port;
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::packet::{PacketConfig, PacketPort};
use roxie::port::udp::{UdpConfig, UdpPort, synthetic_mac};
use roxie::port::xdp;
use roxie::wire::Gid;
use roxie_report::failure::Failure;

use super::gids::{first_gid, no_gid};
use super::options::{DeviceOptions, PortKind};

/// Longest wait for a neighbour's answer.
const RESOLVE: Duration = Duration::from_secs(3);

/// An open port, and how to address frames to a peer.
pub struct BarePort {
    /// The port.
    pub port: Box<dyn Port>,
    /// The port's own address.
    pub own: Gid,
    /// The interface on which neighbours are resolved; `None` if the port derives or ignores station addresses.
    interface: Option<Interface>,
}

impl BarePort {
    /// Returns the destination station address for a peer.
    pub fn mac_of(&self, peer: IpAddr) -> Result<[u8; 6], Failure> {
        match &self.interface {
            Some(interface) => {
                let key = RouteKey::new(self.own.to_ip(), peer, 0);
                resolve(interface, key, RESOLVE).map_err(|e| Failure::Peer(e.to_string()))
            }
            None => Ok(synthetic_mac(peer)),
        }
    }
}

impl DeviceOptions {
    /// Opens the chosen port as [`DeviceOptions::open`] does, without a NIC on it.
    pub fn open_bare(&self) -> Result<BarePort, Failure> {
        self.check()?;
        self.refuse_layers()?;
        let interface = self.interface()?;
        // The benchmark's datagrams are no RoCE packets, so they could not be told apart for a group of processes.
        if self.asked_port() == Some(PortKind::Packet) {
            let config = PacketConfig { shared: false, ..self.packet_config(&interface) };
            let port = PacketPort::open(&config)
                .map_err(|e| self.refused(&interface, "packet sockets", &e.into()))?;
            let own = self.own_gid(&interface)?;
            return Ok(BarePort { port: Box::new(port), own, interface: Some(interface) });
        }
        if self.asked_port() != Some(PortKind::Udp) {
            match xdp::open(&self.xdp_config(&interface)).map_err(OpenError::from) {
                Ok(port) => {
                    let own = self.own_gid(&interface)?;
                    return Ok(BarePort { port, own, interface: Some(interface) });
                }
                Err(error) if self.asked_port().is_none() => self.fall_back(&interface, &error)?,
                Err(error) => return Err(self.refused(&interface, "AF_XDP", &error)),
            }
        }
        let config = UdpConfig { shared: false, ..self.udp_config(&interface) };
        let port = UdpPort::open(&config).map_err(|e| self.refused(&interface, "UDP sockets", &e.into()))?;
        Ok(BarePort { port: Box::new(port), own: self.own_gid(&interface)?, interface: None })
    }

    /// Opens two ports that memory joins.
    pub fn open_bare_pair(&self) -> Result<(BarePort, BarePort), Failure> {
        self.check()?;
        self.refuse_layers()?;
        let end = |n: u8| MemoryConfig {
            mac: [2, 0, 0, 0, 0, n],
            name: format!("memory{n}"),
            ..Default::default()
        };
        let (near, far) = memory::pair(end(1), end(2));
        let bare = |port, n| BarePort {
            port: Box::new(port) as Box<dyn Port>,
            own: Gid::from(IpAddr::from([192, 0, 2, n])),
            interface: None,
        };
        Ok((bare(near, 1), bare(far, 2)))
    }

    fn refuse_layers(&self) -> Result<(), Failure> {
        if self.fault.is_some() || self.capture.is_some() {
            return Err(Failure::Usage(
                "--floor measures the bare port: leave --fault and --capture out".into(),
            ));
        }
        Ok(())
    }

    /// Chooses the GID as a device does: the given index, else the first IPv4 address.
    fn own_gid(&self, interface: &Interface) -> Result<Gid, Failure> {
        let table = self.gid_table(interface);
        let chosen = match self.gid_index {
            Some(index) => table.get(index).map(|local| local.gid),
            None => first_gid(&table).map(|entry| entry.gid),
        };
        chosen.ok_or_else(|| no_gid(&interface.name, &table, self.gid_index))
    }
}
