//! Opens the device that the options select.

use std::net::IpAddr;

use roxie::host::{Device, DeviceConfig, GidOrder, GidTable, OpenError, Stack};
use roxie::netdev::{Interface, vlan_links};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::{Mode, XdpConfig};
use roxie::verbs::LocalGid;
use roxie_report::failure::Failure;
use roxie_report::output;

use super::interface::{Without, check_up, usable_interface};
use super::options::{DeviceOptions, PortKind};

/// An open device.
pub struct Opened {
    /// The device that the options select.
    pub device: Device,
    /// The peer's device with `--port memory`, where both ends are in this process.
    pub far: Option<Device>,
    /// Index of the GID to use.
    pub gid_index: usize,
}

impl DeviceOptions {
    /// Opens the device. Reports on standard error each choice made for the user.
    pub fn open(&self) -> Result<Opened, Failure> {
        self.check()?;
        if let Some(chosen) = &self.profile {
            chosen.report();
        }
        let (device, far) = match self.asked_port() {
            Some(PortKind::Memory) => self.open_memory()?,
            Some(PortKind::Udp) => (self.open_udp(&self.interface()?)?, None),
            Some(PortKind::Xdp) => {
                let interface = self.interface()?;
                (self.open_xdp(&interface).map_err(|e| self.refused(&interface, "AF_XDP", &e))?, None)
            }
            Some(PortKind::Packet) => {
                let interface = self.interface()?;
                let packet = self.packet_config(&interface);
                let device =
                    Device::open_packet(&packet, &self.stack(), &self.config(self.gid_order(&interface)));
                (device.map_err(|e| self.refused(&interface, "packet sockets", &e))?, None)
            }
            None => (self.open_best(&self.interface()?)?, None),
        };
        let gid_index = self.choose_gid(&device)?;
        Ok(Opened { device, far, gid_index })
    }

    fn open_best(&self, interface: &Interface) -> Result<Device, Failure> {
        match self.open_xdp(interface) {
            Ok(device) => Ok(device),
            Err(error) => {
                self.fall_back(interface, &error)?;
                self.open_udp(interface)
            }
        }
    }

    /// Reports that UDP sockets are used instead, if AF_XDP failed for a reason that does not affect sockets.
    pub(super) fn fall_back(&self, interface: &Interface, error: &OpenError) -> Result<(), Failure> {
        let OpenError::Xdp(why) = error else { return Err(self.refused(interface, "AF_XDP", error)) };
        if !why.leaves_sockets() {
            return Err(self.refused(interface, "AF_XDP", error));
        }
        output::note(format_args!(
            "using UDP sockets on {}, since AF_XDP did not open: {why}",
            interface.name
        ));
        Ok(())
    }

    fn open_xdp(&self, interface: &Interface) -> Result<Device, OpenError> {
        Device::open_xdp(&self.xdp_config(interface), &self.stack(), &self.config(self.gid_order(interface)))
    }

    pub(super) fn xdp_config(&self, interface: &Interface) -> XdpConfig {
        XdpConfig {
            mode: self.mode.map_or(Mode::Auto, Mode::from),
            addresses: self.address.clone(),
            ..XdpConfig::new(interface.name.clone())
        }
    }

    pub(super) fn packet_config(&self, interface: &Interface) -> PacketConfig {
        PacketConfig {
            addresses: self.address.clone(),
            // Members of a group receive packets for their own QPs only, not for those of their clients.
            shared: !self.serves,
            ..PacketConfig::new(interface.name.clone())
        }
    }

    fn open_udp(&self, interface: &Interface) -> Result<Device, Failure> {
        Device::open_udp(&self.udp_config(interface), &self.stack(), &self.config(self.gid_order(interface)))
            .map_err(|e| self.refused(interface, "UDP sockets", &e))
    }

    pub(super) fn udp_config(&self, interface: &Interface) -> UdpConfig {
        UdpConfig {
            addresses: self.address.clone(),
            interface: Some(interface.name.clone()),
            gso: !self.no_gso,
            ..UdpConfig::default()
        }
    }

    /// Opens two devices joined by memory. The first one's capture shows both directions.
    fn open_memory(&self) -> Result<(Device, Option<Device>), Failure> {
        let pair = Device::memory_pair_with(&self.config(GidOrder::Listed), &self.stack(), &Stack::default());
        let (near, far) = pair.map_err(|e| Failure::Device(e.to_string()))?;
        Ok((near, Some(far)))
    }

    /// Returns the addresses that become GIDs.
    pub(crate) fn addresses(&self, interface: &Interface) -> Vec<IpAddr> {
        match &self.address[..] {
            [] => interface.addresses.iter().map(|a| a.ip).collect(),
            asked => asked.to_vec(),
        }
    }

    /// Returns the device's GID table: in the kernel's order, or in the order of `--address`.
    pub fn gid_table(&self, interface: &Interface) -> GidTable {
        let mut table = GidTable::in_order(self.gid_order(interface), self.addresses(interface));
        let frames = self.asked_port() != Some(PortKind::Udp);
        if self.roce_v1 && frames {
            table.add_roce_v1();
        }
        // A device has the addresses of VLAN interfaces if it chooses its addresses itself.
        if self.address.is_empty() && frames {
            let links = vlan_links(interface.index).unwrap_or_default();
            for link in links.iter().filter(|link| link.up && link.vlan != 0 && link.mac == interface.mac) {
                for ip in &link.addresses {
                    table.add(LocalGid::on_vlan(*ip, link.vlan));
                }
            }
        }
        table
    }

    /// Returns the order of GIDs: that of `--address` if given.
    fn gid_order(&self, interface: &Interface) -> GidOrder {
        if self.address.is_empty() {
            GidOrder::Customary { station: interface.mac }
        } else {
            GidOrder::Listed
        }
    }

    pub(super) fn refused(&self, interface: &Interface, how: &str, error: &OpenError) -> Failure {
        Failure::Device(format!("cannot open {} through {how}: {error}", interface.name))
    }

    fn stack(&self) -> Stack {
        Stack { fault: self.fault.clone(), rules: self.rules.clone(), capture: self.capture.clone() }
    }

    fn config(&self, gid_order: GidOrder) -> DeviceConfig {
        let congestion = self.congestion.config();
        DeviceConfig {
            drive: self.drive.unwrap_or_default(),
            gid_order,
            congestion,
            control_file: self.congestion.control_file(),
            selective_repeat: self.selective_repeat,
            serves: self.serves,
            ack_requests: self.ask.unwrap_or_default(),
            profile: self.profile.as_ref().map(|chosen| chosen.profile),
            name: self.name.clone(),
            roce_v1: self.roce_v1,
            ..DeviceConfig::default()
        }
    }

    /// Returns the named interface, or the only candidate.
    pub fn interface(&self) -> Result<Interface, Failure> {
        let interface = match (&self.dev, self.address.is_empty()) {
            (Some(name), false) => Interface::by_name(name).map_err(|e| Failure::Device(e.to_string()))?,
            (dev, _) => usable_interface(dev.as_deref(), Without::Memory)?,
        };
        check_up(&interface)?;
        match self.address.iter().find(|ip| !is_own(&interface, **ip)) {
            None => Ok(interface),
            Some(stranger) => Err(Failure::Usage(format!(
                "--address {stranger}: {} does not have it; it has {}",
                interface.name,
                match &interface.addresses[..] {
                    [] => "none".to_owned(),
                    some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                }
            ))),
        }
    }

    fn choose_gid(&self, device: &Device) -> Result<usize, Failure> {
        if let Some(index) = self.gid_index {
            device.gid(index)?;
            return Ok(index);
        }
        let gids: Vec<_> = device.gids().into_iter().filter(|entry| entry.assigned).collect();
        let first = gids.iter().find(|entry| entry.gid.is_ipv4()).or(gids.first());
        first.map(|entry| entry.index).ok_or_else(|| Failure::Device(format!("{} has no GID", device.name())))
    }
}

/// True if the interface receives frames to `ip`: an address of its own, or any of 127.0.0.0/8 on loopback.
fn is_own(interface: &Interface, ip: IpAddr) -> bool {
    let own = &interface.addresses;
    own.iter().any(|a| a.ip == ip) || ip.is_loopback() && own.iter().any(|a| a.ip.is_loopback())
}
