//! Roxie's end of a run: its verbs API on a port of its own.

pub mod program;
mod verbs;

use std::net::IpAddr;
use std::time::Duration;

use roxie::engine::Drive;
use roxie::host::{
    AddressHandle, CompletionChannel, CompletionQueue, Device, DeviceConfig, GidTable, MemoryRegion,
    MemoryWindow, OpenError, ProtectionDomain, QueuePair, SelectiveRepeat, SharedReceiveQueue, Stack,
};
use roxie::netdev::Interface;
use roxie::nic::CongestionConfig;
use roxie::port::fault::FaultConfig;
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::{XdpConfig, XdpError};
use roxie::time::Nanos;
use roxie::verbs::{LocalGid, Sge};
use roxie::wire::{Encapsulation, Gid};

use crate::end::{End, Ended, Local, Pair, Registration, Setup, Unready};
use crate::error::Error;
use crate::network::{Namespace, VLAN, vlan_address};
use crate::rows::{Family, Impairment, Network, PortKind, Stock};
use crate::skip::SkipReason;
use crate::wire::Wire;
use program::Program;

pub use program::{build_library, build_roxie};

/// How long the engine thread polls before it sleeps. The guest needs its core.
const SPIN: Nanos = Nanos::from_micros(200);
/// Timeout of `roxie pingpong … --help`.
const HELP_WITHIN: Duration = Duration::from_secs(10);
/// Counters that no row may raise: a peer's packets are valid and addressed to us, and queues are large enough.
const NEVER: [&str; 9] = [
    "rx_icrc_encapsulated",
    "rx_malformed",
    "rx_wrong_source",
    "rx_wrong_service",
    "rx_bad_pkey",
    "cq_overflow",
    "ghost_acks",
    "tx_invalid",
    "tx_failed",
];
/// The site of Roxie's end.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The interface's namespace; `None` for the runner's own (hardware peers).
    pub namespace: Option<&'a Namespace>,
    /// The device's interface.
    pub interface: &'a str,
    /// The interface's addresses, one per IP version to test.
    pub addresses: &'a [IpAddr],
    /// True if the peer sends and accepts FLUSH with rdma_rxe's ICRC only.
    pub rxe_flush_icrc: bool,
}

/// Returns Roxie's end at a site. The first row opens its port.
pub fn open<'a>(site: &Site<'a>) -> Box<dyn Local + 'a> {
    Box::new(Roxie { site: *site, open: None, program: None, reported: None, prepared: None })
}

struct Roxie<'a> {
    site: Site<'a>,
    open: Option<Open>,
    program: Option<Program>,
    /// The port for which the mode was printed last.
    reported: Option<PortKind>,
    /// Configuration of the current row, also for programs, which open the port themselves.
    prepared: Option<Setup>,
}

/// An open device and the objects on it.
struct Open {
    setup: Setup,
    /// The [`NEVER`] counters before the row.
    before: [u64; NEVER.len()],
    // Fields are dropped in this order: queue pairs before the objects they use, windows before regions.
    pairs: Vec<PairObjects>,
    handles: Vec<AddressHandle>,
    queues: Vec<SharedReceiveQueue>,
    windows: Vec<MemoryWindow>,
    regions: Vec<MemoryRegion>,
    pd: ProtectionDomain,
    device: Device,
}

struct PairObjects {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
}

/// Adds the failed call to an error.
trait Named<T> {
    fn named(self, what: &str) -> Result<T, Error>;
}

impl<T, E: std::fmt::Display> Named<T> for Result<T, E> {
    fn named(self, what: &str) -> Result<T, Error> {
        self.map_err(|reason| Error::Local(format!("{what}: {reason}")))
    }
}

impl Impairment {
    /// Returns the fault in the words of `--fault`; `None` for none.
    fn text(self) -> Option<&'static str> {
        match self {
            Impairment::None => None,
            Impairment::Loss1 => Some("drop=0.01"),
            Impairment::Loss5 => Some("drop=0.05"),
            // If no frame follows, the frame is late by less than the ACK timeout of a row.
            Impairment::Reorder => Some("reorder=0.05:3:10ms"),
        }
    }

    /// Returns the option of a program under the fault.
    fn option(self, seed: u64) -> Option<String> {
        self.text().map(|text| format!("--fault={text},seed={seed}"))
    }

    /// Returns the options of a command of `roxie` under the fault, without segmentation offload as in [`Site::open`].
    fn words(self, seed: u64, port: PortKind) -> Vec<String> {
        let fault = self.option(seed);
        let no_gso = (fault.is_some() && port == PortKind::Udp).then(|| "--no-gso".to_owned());
        fault.into_iter().chain(no_gso).collect()
    }

    /// Returns the configuration of the fault port; `None` for none.
    fn config(self, seed: u64) -> Result<Option<FaultConfig>, Error> {
        let Some(text) = self.text() else { return Ok(None) };
        let parsed = FaultConfig::parse(text).named("the fault")?;
        Ok(Some(FaultConfig { seed, ..parsed }))
    }
}

impl Site<'_> {
    /// Runs `f` in the interface's namespace.
    fn within<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, Error> {
        match self.namespace {
            Some(namespace) => namespace.within(f),
            None => Ok(f()),
        }
    }

    fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|a| a.is_ipv4() == (family == Family::V4))
    }

    fn open(&self, setup: &Setup) -> Result<Open, Unready> {
        let fault = setup.fault.config(setup.seed)?;
        // A held IPv4 frame is sent outside its segmentation group, so with another identification than its ICRC was
        // computed for.
        let gso = fault.is_none();
        let stack = Stack { fault, capture: setup.capture.clone(), ..Stack::default() };
        let control = setup.control.unwrap_or("off").parse().named("the congestion control")?;
        let congestion = CongestionConfig { control, ..CongestionConfig::default() };
        let config = DeviceConfig {
            drive: Drive::Thread { core: None, spin: SPIN },
            // Seeded by the row, so that a row always sends the same frames.
            seed: Some(setup.seed),
            rxe_flush_icrc: self.rxe_flush_icrc,
            congestion,
            roce_v1: setup.network == Network::V1,
            selective_repeat: match setup.network {
                Network::Selective => SelectiveRepeat::Assume,
                _ => SelectiveRepeat::Off,
            },
            ..DeviceConfig::default()
        };
        let (interface, addresses) = (self.interface, self.addresses.to_vec());
        let device = self.within(move || match setup.port {
            PortKind::Xdp => {
                let xdp = XdpConfig { addresses, ..XdpConfig::new(interface) };
                Device::open_xdp(&xdp, &stack, &config)
            }
            PortKind::Packet => {
                let packet = PacketConfig { addresses, ..PacketConfig::new(interface) };
                Device::open_packet(&packet, &stack, &config)
            }
            PortKind::Udp => {
                let interface = Some(interface.to_owned());
                let udp = UdpConfig { addresses, interface, gso, ..UdpConfig::default() };
                Device::open_udp(&udp, &stack, &config)
            }
        })?;
        let device = device.map_err(unready)?;
        if setup.network == Network::Vlan {
            for address in self.addresses.iter().filter_map(|own| on_vlan(*own)) {
                device.add_vlan_address(address, VLAN).named("an address on the VLAN")?;
            }
        }
        let pd = device.alloc_pd().named("a protection domain")?;
        Ok(Open {
            setup: setup.clone(),
            before: [0; NEVER.len()],
            pairs: Vec::new(),
            handles: Vec::new(),
            queues: Vec::new(),
            windows: Vec::new(),
            regions: Vec::new(),
            pd,
            device,
        })
    }
}

/// Returns the VLAN's address of the host with this address; `None` if it is no address of the site's.
fn on_vlan(address: IpAddr) -> Option<IpAddr> {
    let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
    (1..=u8::MAX)
        .find(|host| crate::network::address(*host, family) == address)
        .map(|host| vlan_address(host, family))
}

/// Skips a port that this host does not have: that is not Roxie's failure.
fn unready(error: OpenError) -> Unready {
    match error {
        OpenError::Xdp(XdpError::Unsupported { .. } | XdpError::NotPermitted { .. }) => {
            eprintln!("{error}");
            Unready::Skip(SkipReason::PortUnavailable)
        }
        other => Unready::Failed(Error::Local(format!("the port did not open: {other}"))),
    }
}

impl Open {
    fn pair(&self, pair: Pair) -> Result<&PairObjects, Error> {
        self.pairs.get(pair.key).ok_or_else(|| Error::Local(format!("there is no queue pair {}", pair.key)))
    }

    fn region(&self, region: Registration) -> Result<&MemoryRegion, Error> {
        self.regions.get(region.key).ok_or_else(|| Error::Local(format!("there is no region {}", region.key)))
    }

    /// Returns the scatter/gather list of a request: one entry or none.
    fn entries(&self, entry: Option<(Registration, usize, usize)>) -> Result<Vec<Sge>, Error> {
        let Some((region, offset, length)) = entry else { return Ok(Vec::new()) };
        let length = u32::try_from(length).named("the length of an entry")?;
        Ok(vec![self.region(region)?.sge(offset, length)])
    }

    fn never(&self) -> [u64; NEVER.len()] {
        let counters = self.device.counters();
        let of = |name| counters.iter().filter(|(n, _)| *n == name).map(|(_, value)| value).sum();
        NEVER.map(of)
    }

    /// True if a new row may reuse the open device.
    fn serves(&self, setup: &Setup) -> bool {
        let plain = |s: &Setup| s.fault == Impairment::None && s.capture.is_none();
        (self.setup.port, self.setup.control, self.setup.network)
            == (setup.port, setup.control, setup.network)
            && plain(&self.setup)
            && plain(setup)
    }

    /// Returns index and value of the device's first GID of the family on the row's link.
    fn gid(&self, family: Family) -> Result<(usize, LocalGid), Error> {
        let link = match self.setup.network {
            Network::Vlan => Encapsulation::vlan(VLAN),
            Network::V1 => Encapsulation::v1(),
            Network::Plain | Network::Selective => Encapsulation::default(),
        };
        let gids = self.device.gids();
        let is_it = |gid: Gid| gid.is_ipv4() == (family == Family::V4);
        let matching = gids.iter().find(|entry| is_it(entry.gid) && entry.encapsulation == link);
        let matching =
            matching.ok_or_else(|| Error::Local(format!("the device has no {family} GID ({link})")))?;
        Ok((matching.index, LocalGid { gid: matching.gid, encapsulation: link }))
    }
}

impl Roxie<'_> {
    /// Returns the site's address of the family, on the row's link.
    fn own_address(&self, family: Family) -> Option<IpAddr> {
        let plain = self.site.address(family)?;
        match self.prepared.as_ref().map(|setup| setup.network) {
            Some(Network::Vlan) => on_vlan(plain),
            _ => Some(plain),
        }
    }

    fn open(&self) -> Result<&Open, Error> {
        self.open.as_ref().ok_or_else(|| Error::Local("no port is open: prepare comes first".into()))
    }

    fn open_mut(&mut self) -> Result<&mut Open, Error> {
        self.open.as_mut().ok_or_else(|| Error::Local("no port is open: prepare comes first".into()))
    }
}

impl Local for Roxie<'_> {
    fn prepare(&mut self, setup: &Setup) -> Result<(), Unready> {
        self.prepared = Some(setup.clone());
        if let Some(open) = self.open.as_mut().filter(|open| open.serves(setup)) {
            open.before = open.never();
            return Ok(());
        }
        // Close the old device first: the new one needs the interface.
        self.open = None;
        let open = self.site.open(setup)?;
        if self.reported != Some(setup.port) {
            println!("roxie: {}, {}", setup.port, open.device.port().mode);
            self.reported = Some(setup.port);
        }
        self.open = Some(open);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Some(open) = &self.open else { return Ok(()) };
        let link = open.device.take_link_error();
        let counted = NEVER.iter().zip(open.before.iter().zip(open.never()));
        let counted: Vec<String> = counted
            .filter(|(_, (before, after))| after > before)
            .map(|(name, (before, after))| format!("{name} {}", after - before))
            .collect();
        if open.setup.capture.is_some() {
            // Closing the device completes the capture file.
            self.open = None;
        }
        if let Some(error) = link {
            return Err(Error::Local(format!("the link failed: {error}")));
        }
        match counted.is_empty() {
            true => Ok(()),
            false => Err(Error::Local(format!(
                "the device raised counters that no row may raise: {}",
                counted.join(", ")
            ))),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.open.as_ref().map_or_else(Vec::new, |open| open.device.counters())
    }

    fn wait_for_listener(&mut self, port: u16, timeout: Duration) -> Result<bool, Error> {
        program::wait_until(timeout, || self.site.within(|| program::is_listening(port))?)
    }

    fn wait_for_claim(&mut self, port: PortKind, timeout: Duration) -> Result<bool, Error> {
        program::wait_until(timeout, || match port {
            PortKind::Xdp => {
                let interface = self.site.within(|| Interface::by_name(self.site.interface))?;
                Ok(interface.named("the interface")?.xdp_program.is_some())
            }
            PortKind::Packet | PortKind::Udp => self.site.within(program::roce_port_is_bound)?,
        })
    }

    fn replace_by_script(&mut self, family: Family) -> Result<Wire, Error> {
        self.open = None;
        let here = self.site.address(family);
        let here =
            here.ok_or_else(|| Error::Local(format!("{} has no {family} address", self.site.interface)))?;
        let rxe_flush_icrc = self.site.rxe_flush_icrc;
        self.site.within(|| Wire::open(here, rxe_flush_icrc))?
    }

    fn has_pingpong(&mut self, program: Stock) -> Result<bool, Error> {
        let words = ["pingpong".to_owned(), program.to_string(), "--help".to_owned()];
        let ended = Program::start(None, &program::roxie()?, &words)?.wait(HELP_WITHIN)?;
        Ok(ended.code == Some(0))
    }

    fn pingpong(&mut self, program: Stock, family: Family, arguments: &[String]) -> Result<(), Error> {
        let setup = self.open()?.setup.clone();
        // The program opens the interface itself.
        self.open = None;
        let site = &self.site;
        // A device's GIDs are its addresses, in order.
        let gid = site.addresses.iter().position(|a| Some(*a) == site.address(family));
        let gid = gid.ok_or_else(|| Error::Local(format!("{} has no {family} address", site.interface)))?;
        let service = program.to_string();
        let mut words: Vec<String> = ["pingpong", &service, "--dev", site.interface].map(String::from).into();
        words.extend([
            format!("--port={}", setup.port),
            format!("--gid-index={gid}"),
            "--drive=thread".into(),
        ]);
        words.extend(site.addresses.iter().map(|a| format!("--address={a}")));
        words.extend(setup.capture.map(|path| format!("--capture={}", path.display())));
        words.extend_from_slice(arguments);
        self.program = Some(Program::start(site.namespace, &program::roxie()?, &words)?);
        Ok(())
    }

    fn gid_index(&mut self, family: Family) -> Result<usize, Error> {
        let interface =
            self.site.within(|| Interface::by_name(self.site.interface))?.named("the interface")?;
        let table = GidTable::customary(interface.mac, interface.addresses.iter().map(|a| a.ip));
        let wanted = self.address(family)?;
        let gid = table.iter().find(|entry| entry.gid == Gid::from(wanted));
        gid.map(|entry| entry.index)
            .ok_or_else(|| Error::Local(format!("{wanted} is none of {}", table.listed())))
    }

    fn program(&mut self, name: &str, arguments: &[String]) -> Result<(), Error> {
        let setup = self.prepared.clone();
        let setup = setup.ok_or_else(|| Error::Local("prepare comes first".into()))?;
        // The program's device claims the interface.
        self.open = None;
        let mut words: Vec<String> =
            ["run", "--quiet", "--dev", self.site.interface].map(String::from).into();
        words.push(format!("--port={}", setup.port));
        words.extend(setup.fault.option(setup.seed));
        words.extend(setup.program_option);
        words.extend(setup.capture.map(|path| format!("--capture={}", path.display())));
        words.extend(["--".to_owned(), name.to_owned()]);
        words.extend_from_slice(arguments);
        self.program = Some(Program::start(self.site.namespace, &program::roxie()?, &words)?);
        Ok(())
    }

    fn command(&mut self, command: [&str; 2], arguments: &[String]) -> Result<(), Error> {
        let setup = self.prepared.clone().ok_or_else(|| Error::Local("prepare comes first".into()))?;
        // The program opens the interface itself.
        self.open = None;
        let mut words: Vec<String> = command.map(String::from).into();
        words.extend(["--dev".to_owned(), self.site.interface.to_owned(), format!("--port={}", setup.port)]);
        words.extend(setup.fault.words(setup.seed, setup.port));
        words.extend(setup.capture.map(|path| format!("--capture={}", path.display())));
        words.extend_from_slice(arguments);
        self.program = Some(Program::start(self.site.namespace, &program::roxie()?, &words)?);
        Ok(())
    }

    fn bench(&mut self, arguments: &[String]) -> Result<(), Error> {
        // The bench opens the interface itself.
        self.open = None;
        let mut words: Vec<String> = ["conform", "--interface", self.site.interface].map(String::from).into();
        words.extend_from_slice(arguments);
        self.program = Some(Program::start(self.site.namespace, &program::roxie()?, &words)?);
        Ok(())
    }

    fn terminate(&mut self) -> Result<(), Error> {
        match &self.program {
            Some(program) => program.terminate(),
            None => Err(Error::Local("no program was started".into())),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ended, Error> {
        match self.program.take() {
            Some(program) => program.wait(timeout),
            None => Err(Error::Local("no program was started".into())),
        }
    }

    fn end_program(&mut self) {
        self.program = None;
    }
}
