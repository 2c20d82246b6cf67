//! Opening a device: port, layers on it, and neighbour resolution.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use super::claim::{Claim, PortPlan};
use super::device::{Device, DeviceConfig};
#[cfg(feature = "udp")]
use super::device_slot::DeviceSlot;
use super::error::{OpenError, ResolveError};
use super::gid_table::GidOrder;
use super::interface_watcher::{WatchedSources, watch};
use super::kernel_neighbours::{KernelNeighbours, VlanResolvers};
use super::resolve::Resolve;
use super::stack::Stack;
use super::vlans::VlanFollower;
use super::watched_interface::Live;
use crate::remote::Attachment;
use roxie_engine::Adapter;
use roxie_nic::nic::CongestionConfig;
use roxie_nic::transport::AckRequestPolicy;
use roxie_port::Port;
use roxie_port::memory::{self, MemoryConfig};
#[cfg(feature = "udp")]
use roxie_port::netdev::NetdevError;
use roxie_port::netdev::{Interface, Neighbours, Reach, RouteKey, Vlans};
#[cfg(feature = "udp")]
use roxie_port::packet::{PacketConfig, PacketPort};
use roxie_port::synthetic_mac;
#[cfg(feature = "udp")]
use roxie_port::udp::{UdpConfig, UdpPort};
use roxie_port::unclaimed::UnclaimedPort;
use roxie_port::xdp::{self, XdpConfig};
use roxie_port::{Carries, PortInfo};
use roxie_wire::frame::ETHERNET_HEADER;

impl Device {
    /// Opens a device on an interface of the calling thread's network namespace, mostly as `roxie run` does: at the
    /// interface's `roxie nic` if there is one, else through packet sockets, else, where these are not permitted or not
    /// possible, through UDP sockets.
    ///
    /// # Errors
    /// Those of [`Device::open_attached`], [`Device::open_packet`] and [`Device::open_udp`].
    #[cfg(feature = "udp")]
    pub fn open(interface: &str) -> Result<Device, OpenError> {
        let (stack, config) = (Stack::default(), DeviceConfig::default());
        match Device::open_attached(interface, &config) {
            Ok(Some(device)) => return Ok(device),
            // A tunnel without station addresses has no frames, and so no NIC.
            Ok(None) | Err(OpenError::Netdev(NetdevError::NotEthernet { .. })) => {}
            Err(error) => return Err(error),
        }
        match Device::open_packet(&PacketConfig::new(interface), &stack, &config) {
            Err(OpenError::Netdev(NetdevError::NotEthernet { .. })) => {}
            Err(OpenError::Packet(why)) if why.leaves_sockets() => {}
            opened => return opened,
        }
        let udp = UdpConfig { interface: Some(interface.to_owned()), ..UdpConfig::default() };
        Device::open_udp(&udp, &stack, &config)
    }

    /// Opens a device on an interface of the calling thread's network namespace, through AF_XDP.
    ///
    /// # Errors
    /// If there is no such interface or address, AF_XDP is not permitted or not possible on it, another program has
    /// claimed it, or the crate was built without the feature `xdp`.
    pub fn open_xdp(xdp: &XdpConfig, stack: &Stack, config: &DeviceConfig) -> Result<Device, OpenError> {
        let interface = Interface::by_name(&xdp.interface)?;
        let addresses = addresses_of(&interface, &xdp.addresses)?;
        let port = stack.on(xdp::open(xdp)?)?;
        Device::on_frames(port, interface, (addresses, xdp.addresses.is_empty()), config)
    }

    /// Opens a device on an interface of the calling thread's network namespace, through packet sockets.
    ///
    /// # Errors
    /// If there is no such interface or address, packet sockets are not permitted, or another program has UDP port
    /// 4791.
    #[cfg(feature = "udp")]
    pub fn open_packet(
        packet: &PacketConfig,
        stack: &Stack,
        config: &DeviceConfig,
    ) -> Result<Device, OpenError> {
        let interface = Interface::by_name(&packet.interface)?;
        let addresses = addresses_of(&interface, &packet.addresses)?;
        let port = PacketPort::open(packet)?;
        let slot = port.member().cloned().map(DeviceSlot::Group);
        let port = stack.on(Box::new(port))?;
        let device = Device::on_frames(port, interface, (addresses, packet.addresses.is_empty()), config)?;
        device.share(vec![slot])?;
        Ok(device)
    }

    /// Makes a device on a port that sends frames. `follows`: the device follows changes of the interface's addresses.
    #[cfg(any(feature = "udp", feature = "xdp"))]
    fn on_frames(
        port: Box<dyn Port>,
        interface: Interface,
        (addresses, follows): (Vec<IpAddr>, bool),
        config: &DeviceConfig,
    ) -> Result<Device, OpenError> {
        let neighbours = Arc::new(Neighbours::open(&interface)?);
        let vlans = follows.then(|| Vlans::on(interface.index)).transpose()?;
        let interface = Live::new(interface);
        let resolvers = VlanResolvers::default();
        let resolver = KernelNeighbours {
            interface: interface.clone(),
            neighbours: Arc::clone(&neighbours),
            vlans: resolvers.clone(),
        };
        let device = Device::new(config.name.as_str(), port, addresses, Box::new(resolver), config)?;
        let vlans = vlans.map(|vlans| VlanFollower::new(vlans, resolvers));
        device.watch(WatchedSources {
            interface,
            addresses: follows,
            neighbours: Some(neighbours),
            vlans,
        })?;
        Ok(device)
    }

    /// Opens a device on UDP sockets of the calling thread's network namespace. The device follows its interface, if
    /// that is Ethernet or loopback: its addresses and its MTU, unless the configuration fixes them, and the state of
    /// the link.
    ///
    /// # Errors
    /// If there is no such interface or address, or the UDP port cannot be opened.
    #[cfg(feature = "udp")]
    pub fn open_udp(udp: &UdpConfig, stack: &Stack, config: &DeviceConfig) -> Result<Device, OpenError> {
        let port = UdpPort::open(udp)?;
        let slot = port.member().cloned().map(DeviceSlot::Group);
        let addresses = port.addresses().to_vec();
        let interface = port.info().interface.as_deref().map(Interface::by_name);
        let resolver = Sockets::new(interface.as_ref().and_then(|found| found.as_ref().ok()));
        let device = Device::new(
            config.name.as_str(),
            stack.on(Box::new(port))?,
            addresses,
            Box::new(resolver),
            config,
        )?;
        device.share(vec![slot])?;
        match interface {
            Some(Ok(interface)) => {
                let interface = Live::new(interface);
                let addresses = udp.addresses.is_empty();
                device.watch(WatchedSources { interface, addresses, neighbours: None, vlans: None })?;
            }
            Some(Err(NetdevError::NotEthernet { .. })) | None => {}
            Some(Err(error)) => return Err(error.into()),
        }
        Ok(device)
    }

    /// Opens a device on the NIC process of an interface (`roxie nic`), in the calling thread's network namespace.
    /// `None`: there is no such NIC.
    ///
    /// # Errors
    /// If the NIC does not serve this process, the interface does not exist or has no address, or RoCE v1 is wanted of
    /// a NIC over sockets.
    pub fn open_attached(interface: &str, config: &DeviceConfig) -> Result<Option<Device>, OpenError> {
        let link = Interface::by_name(interface)?;
        let Some(nic) = Attachment::open(&link.name)? else { return Ok(None) };
        let setup = InterfaceSetup::of(link, nic.port().carries, config)?;
        let device =
            Device::attached(config.name.as_str(), nic, setup.addresses, setup.resolver, &setup.config)?;
        device.watch(setup.sources)?;
        Ok(Some(device))
    }

    /// For tests: opens a device at a NIC process on the first port of a [`memory_pair`](Self::memory_pair).
    #[cfg(any(test, feature = "testing"))]
    pub fn attached_to_memory(nic: Attachment) -> Device {
        let addresses = [IpAddr::from([192, 0, 2, 1])];
        let device = Device::attached("guest", nic, addresses, Box::new(Pair), &DeviceConfig::default());
        device.expect("the default asks for nothing that a port lacks")
    }

    /// Opens a device that claims its interface with the first queue pair. Before that it answers queries, registers
    /// memory and makes completion queues. The interface is one of the calling thread's network namespace.
    ///
    /// # Errors
    /// If there is no such interface, or it has no address.
    pub fn open_unclaimed(
        interface: &str,
        plan: PortPlan,
        stack: Stack,
        config: &DeviceConfig,
    ) -> Result<Device, OpenError> {
        if matches!(plan, PortPlan::Best | PortPlan::Nic) {
            match Device::at_nic(interface, &stack, config) {
                Ok(Some(device)) => return Ok(device),
                Ok(None) if plan == PortPlan::Nic => return Err(OpenError::NoNic(interface.to_owned())),
                Ok(None) => {}
                Err(error) if plan == PortPlan::Nic => return Err(error),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        let link = Interface::by_name(interface)?;
        let first = link.addresses.first().ok_or_else(|| OpenError::NoAddress(interface.to_owned()))?.ip;
        let carries = plan.carries();
        let info = PortInfo {
            name: "unclaimed".into(),
            interface: Some(link.name.clone()),
            mode: "claimed with the first queue pair".into(),
            mac: if carries == Carries::Datagrams { synthetic_mac(first) } else { link.mac },
            mtu: link.mtu,
            max_frame: link.mtu + ETHERNET_HEADER,
            carries,
            has_trains: false,
        };
        let workers = workers_of(&link, plan, config);
        let setup = InterfaceSetup::of(link, carries, config)?;
        let port = || Box::new(UnclaimedPort::new(info.clone())) as Box<dyn Port>;
        let ports = (0..workers).map(|_| port()).collect();
        let device =
            Device::on_ports(config.name.as_str(), ports, setup.addresses, setup.resolver, &setup.config)?;
        let claim = Claim { interface: info.interface.unwrap_or_default(), plan, stack };
        *device.inner.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
        device.watch(setup.sources)?;
        Ok(device)
    }

    /// Like [`open_attached`](Self::open_attached), but fails if the program has asked for options that only the NIC
    /// process can set.
    fn at_nic(interface: &str, stack: &Stack, config: &DeviceConfig) -> Result<Option<Device>, OpenError> {
        let device = Device::open_attached(interface, config)?;
        let ours = [
            ("a capture", stack.capture.is_some()),
            ("faults", stack.fault.is_some() || !stack.rules.is_empty()),
            ("congestion control", config.congestion != CongestionConfig::default()),
            ("congestion control", config.control_file.is_some()),
            ("the profile of an adapter", config.profile.is_some()),
            ("when messages ask", config.ack_requests != AckRequestPolicy::default()),
        ];
        match ours.into_iter().find(|(_, asked)| *asked && device.is_some()) {
            Some((what, _)) => Err(OpenError::NicsOwn { interface: interface.to_owned(), what }),
            None => Ok(device),
        }
    }

    fn watch(&self, mut sources: WatchedSources) -> Result<(), OpenError> {
        if let Some(vlans) = &mut sources.vlans {
            vlans.follow(&self.inner);
        }
        let watcher = watch(Arc::clone(&self.inner.state), sources)?;
        // Succeeds: the caller has just made the device.
        let _ = self.inner.watcher.set(watcher);
        Ok(())
    }

    /// Makes two connected devices in this process, with addresses 192.0.2.1 and 192.0.2.2, and fd00::1 and fd00::2.
    ///
    /// # Errors
    /// If the system is out of memory, descriptors or threads.
    pub fn memory_pair(config: &DeviceConfig) -> Result<(Device, Device), OpenError> {
        Device::memory_pair_with(config, &Stack::default(), &Stack::default())
    }

    /// Like [`memory_pair`](Self::memory_pair), with layers on the ports.
    ///
    /// # Errors
    /// The errors of [`Device::memory_pair`]; also if a capture cannot be written.
    pub fn memory_pair_with(
        config: &DeviceConfig,
        local: &Stack,
        remote: &Stack,
    ) -> Result<(Device, Device), OpenError> {
        let [local, remote] = Device::memory_pair_of(1, config, [local, remote])?;
        Ok((local, remote))
    }

    /// Like [`memory_pair_with`](Device::memory_pair_with), with this many workers at each device: worker `n` of one
    /// has a link to worker `n` of the other.
    ///
    /// # Errors
    /// The errors of [`Device::memory_pair_with`] and [`Device::with_workers`].
    pub fn memory_pair_of(
        workers: usize,
        config: &DeviceConfig,
        stacks: [&Stack; 2],
    ) -> Result<[Device; 2], OpenError> {
        let end = |n: u8| MemoryConfig {
            mac: [2, 0, 0, 0, 0, n],
            name: format!("memory{n}"),
            ..Default::default()
        };
        let mut ports: [Vec<Box<dyn Port>>; 2] = Default::default();
        for _ in 0..workers {
            let (a, b) = memory::pair(end(1), end(2));
            ports[0].push(Box::new(a));
            ports[1].push(Box::new(b));
        }
        let [a, b] = ports;
        let (a, b) = (stacks[0].on_all(a)?, stacks[1].on_all(b)?);
        let open = |n: u8, ports| {
            let addresses =
                [IpAddr::from([192, 0, 2, n]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n.into()])];
            Device::with_workers(&format!("memory{n}"), ports, addresses, Box::new(Pair), config)
        };
        Ok([open(1, a)?, open(2, b)?])
    }
}

/// Returns the number of workers: one for each core, but not more than the receive queues that AF_XDP has for them.
fn workers_of(interface: &Interface, plan: PortPlan, config: &DeviceConfig) -> usize {
    let (cores, queues) = (config.cores.len().max(1), interface.rx_queues.max(1) as usize);
    if plan.carries() == Carries::AnyFrames && queues < cores {
        let name = &interface.name;
        tracing::warn!(
            "{name} has {queues} receive queues for {cores} cores: {queues} workers; `ethtool -L {name} combined {cores}` gives more"
        );
        return queues;
    }
    cores
}

/// Properties of an interface for a device without a port on it: the port is in another process, or not claimed yet.
struct InterfaceSetup {
    addresses: Vec<IpAddr>,
    config: DeviceConfig,
    resolver: Box<dyn Resolve>,
    sources: WatchedSources,
}

impl InterfaceSetup {
    /// Uses all addresses of the interface, and the kernel's neighbours for a port that carries frames.
    fn of(found: Interface, carries: Carries, config: &DeviceConfig) -> Result<InterfaceSetup, OpenError> {
        let addresses = addresses_of(&found, &[])?;
        let config = DeviceConfig { gid_order: GidOrder::Customary { station: found.mac }, ..config.clone() };
        let neighbours =
            (carries != Carries::Datagrams).then(|| Neighbours::open(&found).map(Arc::new)).transpose()?;
        let vlans = neighbours.as_ref().map(|_| Vlans::on(found.index)).transpose()?;
        let resolvers = VlanResolvers::default();
        let sockets = Sockets::new(Some(&found));
        let interface = Live::new(found);
        let resolver: Box<dyn Resolve> = match &neighbours {
            Some(neighbours) => Box::new(KernelNeighbours {
                interface: interface.clone(),
                neighbours: Arc::clone(neighbours),
                vlans: resolvers.clone(),
            }),
            None => Box::new(sockets),
        };
        let vlans = vlans.map(|vlans| VlanFollower::new(vlans, resolvers));
        let sources = WatchedSources { interface, addresses: true, neighbours, vlans };
        Ok(InterfaceSetup { addresses, config, resolver, sources })
    }
}

/// Returns the addresses that become GIDs: those asked for, else the interface's.
fn addresses_of(interface: &Interface, asked: &[IpAddr]) -> Result<Vec<IpAddr>, OpenError> {
    if !asked.is_empty() {
        return Ok(asked.to_vec());
    }
    let all: Vec<IpAddr> = interface.addresses.iter().map(|a| a.ip).collect();
    if all.is_empty() {
        return Err(OpenError::NoAddress(interface.name.clone()));
    }
    Ok(all)
}

/// Resolves for UDP sockets, which have no MAC addresses: their frames carry ones derived from the IP addresses.
struct Sockets {
    /// The kernel's neighbour table; `None`: not available.
    reach: Option<Reach>,
}

impl Sockets {
    /// Opens the neighbour table in the calling thread's network namespace.
    fn new(interface: Option<&Interface>) -> Sockets {
        Sockets { reach: Reach::open(interface.map_or(0, |interface| interface.index)).ok() }
    }
}

impl Resolve for Sockets {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        Ok(synthetic_mac(key.destination))
    }

    /// Requests are sent in any case: the kernel reports a silent neighbour by an error on the socket.
    fn resolve_now(&self, key: RouteKey, asks: bool) -> Result<Option<[u8; 6]>, ResolveError> {
        let ready = asks || self.reach.as_ref().is_none_or(|reach| reach.is_ready(key));
        Ok(ready.then(|| synthetic_mac(key.destination)))
    }
}

/// Resolves for the ends of a memory pair, by the last byte of their addresses.
struct Pair;

impl Resolve for Pair {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        let last = match key.destination {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        Ok([2, 0, 0, 0, 0, last])
    }
}
