//! A device on a station of a simulated fabric, in virtual time.

use roxie_base::time::Nanos;
use roxie_engine::{Drive, Progress};
use roxie_port::Port;
use roxie_port::netdev::RouteKey;
use roxie_port::pcap::Timestamps;
use roxie_sim::Host;
use roxie_sim::fabric::{Fabric, Machine};

use super::device::{Device, DeviceConfig};
use super::error::{OpenError, ResolveError};
use super::resolve::Resolve;
use super::stack::Stack;

impl Device {
    /// Opens a device on a free station of `fabric`, in virtual time: the fabric's steps run it, and its clock is the
    /// fabric's. Station `n` has the addresses of host `n + 1` ([`Host::address`]), IPv4 at GID index 0 and IPv6 at 1,
    /// and must have its MAC address ([`Host::mac`]).
    ///
    /// Posts and polls work between two steps of the fabric. Calls that block
    /// ([`CompletionQueue::wait`](super::CompletionQueue::wait), channels,
    /// [`ConnectionManager`](super::ConnectionManager)) do not: they wait in real time. `config.drive` has no effect.
    /// Without `config.seed`, the station's number is the seed, so that all runs have the same QPNs, keys and times.
    /// Addresses of memory that the device allocates are the process's own, and differ between runs.
    ///
    /// # Errors
    /// If the link's MTU is too small for RoCE, a capture cannot be written, or the system is out of memory or
    /// descriptors.
    ///
    /// # Panics
    /// If the station does not exist, has a host, or another MAC address.
    ///
    /// ```
    /// use roxie::host::{ConnectOptions, Device, DeviceConfig, Stack};
    /// use roxie::time::Nanos;
    /// use roxie::verbs::{Access, SendWr};
    /// use roxie_sim::Host;
    /// use roxie_sim::fabric::{Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, SwitchConfig};
    ///
    /// let link = LinkConfig::new(LinkRate::from_gbps(100), Nanos(2_000));
    /// let stations = (1..=2).map(|n| StationConfig::new(Host::mac(n), link)).collect();
    /// let switch = SwitchConfig::new(FabricConfig::ports(2, &PortConfig::new(link)));
    /// let mut fabric = Fabric::new(FabricConfig::star(stations, switch))?;
    /// let near = Device::in_fabric(&mut fabric, 0, &Stack::default(), &DeviceConfig::default())?;
    /// let far = Device::in_fabric(&mut fabric, 1, &Stack::default(), &DeviceConfig::default())?;
    ///
    /// let (pd, cq) = (near.alloc_pd()?, near.create_cq(16, None)?);
    /// let (far_pd, far_cq) = (far.alloc_pd()?, far.create_cq(16, None)?);
    /// let (qp, far_qp) = (pd.queue_pair(&cq).create()?, far_pd.queue_pair(&far_cq).create()?);
    /// let (here, there) = (qp.endpoint(0)?, far_qp.endpoint(0)?);
    /// qp.connect(&here, &there, &ConnectOptions::default())?;
    /// far_qp.connect(&there, &here, &ConnectOptions::default())?;
    /// let source = pd.register(1 << 20, Access::empty())?;
    /// let target = far_pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    ///
    /// let write = SendWr::write(target.address(), target.rkey()).signaled();
    /// qp.post_send(&write, &[source.sge(0, 1 << 20)])?;
    /// fabric.run(Nanos::from_millis(10));
    /// cq.poll_one().expect("a completion within 10 ms of virtual time").ok()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_fabric(
        fabric: &mut Fabric,
        station: usize,
        stack: &Stack,
        config: &DeviceConfig,
    ) -> Result<Device, OpenError> {
        let number = station as u16 + 1;
        let port = fabric.port(station);
        assert_eq!(port.info().mac, Host::mac(number), "the MAC address of station {station}");
        let config = DeviceConfig {
            drive: Drive::Stepped,
            seed: Some(config.seed.unwrap_or(number.into())),
            ..config.clone()
        };
        let port = stack.on_at(Box::new(port), Timestamps::Virtual)?;
        let addresses = [false, true].map(|ipv6| Host::address(number, ipv6));
        let name = format!("station{station}");
        let device = Device::new(&name, port, addresses, Box::new(Stations(name.clone())), &config)?;
        fabric.attach_machine(station, Box::new(device.clone()));
        Ok(device)
    }
}

impl Machine for Device {
    fn step(&self, now: Nanos) -> Progress {
        self.engine().map_or_else(Progress::default, |engine| engine.step(now))
    }

    fn needed_by(&self) -> Nanos {
        self.engine().map_or(Nanos::MAX, |engine| engine.inspect(|worker| worker.needed_by()))
    }
}

/// Resolves the addresses of simulated hosts, for the device with this name.
struct Stations(String);

impl Resolve for Stations {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        Host::number_of(key.destination).map(Host::mac).ok_or_else(|| ResolveError {
            destination: key.destination,
            device: self.0.clone(),
            reason: "no address of a simulated host".into(),
        })
    }
}
