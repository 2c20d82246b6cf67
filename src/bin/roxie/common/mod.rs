//! What the commands share: the options that choose a device, how it is opened, and what a failure says.
//!
//! Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be opened, 4 the peer cannot be
//! reached or disagrees.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use congestion::CongestionOptions;
use interface::{Without, check_up, usable_interface};
use roxie::engine::Drive;
use roxie::host::{
    ConnectOptions, Device, DeviceConfig, DeviceError, GidEntry, GidOrder, GidTable, OpenError, Stack,
};
use roxie::netdev::Interface;
use roxie::nic::ControlError;
use roxie::port::PortInfo;
use roxie::port::fault::FaultConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::{Mode, XdpConfig};
use roxie::shared::PostError;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Wc, WcStatus};

pub(crate) mod bare;
pub(crate) mod congestion;
pub(crate) mod health;
pub(crate) mod interface;
pub(crate) mod output;
pub(crate) mod stream;

/// What the help of every command that opens a device ends with.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the device cannot be \
                                     opened, 4 the peer cannot be reached or disagrees.";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It broke off in the middle.
    Run(String),
    /// A value on the command line cannot be.
    Usage(String),
    /// There is no device to run on.
    Device(String),
    /// The other end is not there, or wants something else.
    Peer(String),
    /// Standard output does not take what it should.
    Output(io::Error),
}

impl Failure {
    /// Says so on standard error, and how the process shall end.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        if matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe) {
            // The reader of our output has seen enough.
            return ExitCode::SUCCESS;
        }
        output::complain(command, self);
        ExitCode::from(self.exit_code())
    }

    /// See the module's page.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Run(_) | Failure::Output(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Device(_) => 3,
            Failure::Peer(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Run(why) | Failure::Usage(why) | Failure::Device(why) | Failure::Peer(why) => {
                f.write_str(why)
            }
            Failure::Output(e) => write!(f, "cannot write the output: {e}"),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            DeviceError::NoGid { .. } | DeviceError::Control(ControlError::TooLarge { .. }) => {
                Failure::Usage(error.to_string())
            }
            DeviceError::Resolve(_) | DeviceError::Families { .. } => Failure::Peer(error.to_string()),
            _ => Failure::Run(error.to_string()),
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Failure {
        Failure::Run(format!("cannot post a work request: {error}"))
    }
}

/// Which port moves the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortKind {
    /// AF_XDP: frames below the kernel's network stack; needs CAP_NET_RAW, CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN
    Xdp,
    /// UDP sockets: no privilege, any interface
    Udp,
    /// Both ends in this process, joined by memory: no network at all
    Memory,
}

/// A mode of AF_XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeName {
    /// The fastest mode that works
    Auto,
    /// The adapter writes into Roxie's memory; fails if its driver cannot
    ZeroCopy,
    /// The driver runs the XDP program, and the kernel copies each frame
    Native,
    /// The kernel runs the XDP program, with any driver; slowest
    Generic,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Auto => Mode::Auto,
            ModeName::ZeroCopy => Mode::ZeroCopy,
            ModeName::Native => Mode::Native,
            ModeName::Generic => Mode::Generic,
        }
    }
}

/// The options that choose and open a device.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceOptions {
    /// How frames move [default: xdp if it is permitted, else udp; --mode and --no-gso choose too]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<PortKind>,
    /// The interface [default: the only one besides loopback that has an address]
    #[arg(short, long, alias = "ib-dev", value_name = "IFACE")]
    pub(crate) dev: Option<String>,
    /// Receive only on this address; repeatable [default: all addresses of the interface]
    #[arg(long, value_name = "IP")]
    pub(crate) address: Vec<IpAddr>,
    /// Which of the device's addresses to use: see `roxie show gids` [default: the first IPv4 one]
    #[arg(short, long, visible_alias = "gid-idx", value_name = "N")]
    pub(crate) gid_index: Option<usize>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 bytes of payload a packet
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    pub(crate) mtu: Option<Mtu>,
    /// Harm frames on purpose: drop=0.01,reorder=0.02,delay=1%:200us,corrupt=nth3,seed=7,dir=tx
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<FaultConfig>,
    /// Write a pcapng of both directions, with what the NIC did with each packet and why
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Send datagrams one by one instead of many in one call; implies --port udp
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Which mode of AF_XDP to use; implies --port xdp
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<ModeName>,
    /// Who runs the NIC: `caller` (the command's own polling; best on few cores), `thread` or `thread:CORE`
    /// [default: caller, or thread where the command sleeps on events]
    #[arg(long, value_name = "WHO", value_parser = parse_drive)]
    pub(crate) drive: Option<Drive>,
    /// Local ACK timeout code, 0 to 31: 4.096 us * 2^code; 0 means no timeout
    #[arg(long, default_value_t = 14, value_name = "CODE", value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(crate) timeout: u8,
    /// How often a packet is sent again before the connection fails, 0 to 7
    #[arg(long, default_value_t = 7, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(crate) retry: u8,
    #[command(flatten)]
    pub(crate) congestion: CongestionOptions,
}

/// An open device.
pub(crate) struct Opened {
    /// The device.
    pub(crate) device: Device,
    /// The other end, if it is in this process.
    pub(crate) far: Option<Device>,
    /// Which of its addresses to use.
    pub(crate) gid_index: usize,
}

impl DeviceOptions {
    /// The port that was asked for: by name, or by an option that only one of them has.
    pub(crate) fn asked_port(&self) -> Option<PortKind> {
        match self.port {
            None if self.mode.is_some() => Some(PortKind::Xdp),
            None if self.no_gso => Some(PortKind::Udp),
            port => port,
        }
    }

    /// Opens what was chosen, and says on standard error what was chosen for the user.
    pub(crate) fn open(&self) -> Result<Opened, Failure> {
        self.check()?;
        let (device, far) = match self.asked_port() {
            Some(PortKind::Memory) => self.open_memory()?,
            Some(PortKind::Udp) => (self.open_udp(&self.interface()?)?, None),
            Some(PortKind::Xdp) => {
                let interface = self.interface()?;
                (self.open_xdp(&interface).map_err(|e| self.refused(&interface, "AF_XDP", &e))?, None)
            }
            None => (self.open_best(&self.interface()?)?, None),
        };
        let gid_index = self.choose_gid(&device)?;
        Ok(Opened { device, far, gid_index })
    }

    /// What contradicts itself, before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.no_gso && self.mode.is_some() {
            return Err(Failure::Usage(
                "--mode is for --port xdp and --no-gso for --port udp: leave one of the two out".into(),
            ));
        }
        let misplaced = [
            (self.no_gso && matches!(self.port, Some(PortKind::Xdp | PortKind::Memory)), "--no-gso", "udp"),
            (
                self.mode.is_some() && matches!(self.port, Some(PortKind::Udp | PortKind::Memory)),
                "--mode",
                "xdp",
            ),
        ];
        for (wrong, option, port) in misplaced {
            if wrong {
                return Err(Failure::Usage(format!(
                    "{option} is for --port {port}: leave one of the two out"
                )));
            }
        }
        if self.port == Some(PortKind::Memory) && self.congestion.control_file().is_some() {
            return Err(Failure::Usage(
                "--cc @FILE is read again by who follows the interface, and --port memory has none: write what \
                 the file says"
                    .into(),
            ));
        }
        if self.port == Some(PortKind::Memory) && (self.dev.is_some() || !self.address.is_empty()) {
            return Err(Failure::Usage(
                "--port memory has no interface: leave --dev and --address out".into(),
            ));
        }
        Ok(())
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

    /// Says that UDP sockets are used instead, if AF_XDP failed for a reason that those do not have.
    fn fall_back(&self, interface: &Interface, error: &OpenError) -> Result<(), Failure> {
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

    fn xdp_config(&self, interface: &Interface) -> XdpConfig {
        XdpConfig {
            mode: self.mode.map_or(Mode::Auto, Mode::from),
            addresses: self.address.clone(),
            ..XdpConfig::new(interface.name.clone())
        }
    }

    fn open_udp(&self, interface: &Interface) -> Result<Device, Failure> {
        Device::open_udp(&self.udp_config(interface), &self.stack(), &self.config(self.gid_order(interface)))
            .map_err(|e| self.refused(interface, "UDP sockets", &e))
    }

    fn udp_config(&self, interface: &Interface) -> UdpConfig {
        UdpConfig {
            addresses: self.address.clone(),
            interface: Some(interface.name.clone()),
            gso: !self.no_gso,
            ..UdpConfig::default()
        }
    }

    /// The addresses that become GIDs.
    pub(crate) fn addresses(&self, interface: &Interface) -> Vec<IpAddr> {
        match &self.address[..] {
            [] => interface.addresses.iter().map(|a| a.ip).collect(),
            asked => asked.to_vec(),
        }
    }

    /// The GIDs of a device on an interface, by index: in the customary order, or as they were asked for.
    pub(crate) fn gid_table(&self, interface: &Interface) -> GidTable {
        GidTable::in_order(self.gid_order(interface), self.addresses(interface))
    }

    /// The capture is the near end's: it sees both directions.
    fn open_memory(&self) -> Result<(Device, Option<Device>), Failure> {
        let pair = Device::memory_pair_with(&self.config(GidOrder::Listed), &self.stack(), &Stack::default());
        let (near, far) = pair.map_err(|e| Failure::Device(e.to_string()))?;
        Ok((near, Some(far)))
    }

    fn refused(&self, interface: &Interface, how: &str, error: &OpenError) -> Failure {
        Failure::Device(format!("cannot open {} through {how}: {error}", interface.name))
    }

    fn stack(&self) -> Stack {
        Stack { fault: self.fault.clone(), capture: self.capture.clone() }
    }

    fn config(&self, gid_order: GidOrder) -> DeviceConfig {
        let congestion = self.congestion.config();
        DeviceConfig {
            drive: self.drive.unwrap_or_default(),
            gid_order,
            congestion,
            control_file: self.congestion.control_file(),
            ..DeviceConfig::default()
        }
    }

    /// Addresses that were asked for stay in their order.
    fn gid_order(&self, interface: &Interface) -> GidOrder {
        if self.address.is_empty() {
            GidOrder::Customary { station: interface.mac }
        } else {
            GidOrder::Listed
        }
    }

    /// The interface that was named, or the only one that can be meant.
    pub(crate) fn interface(&self) -> Result<Interface, Failure> {
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

    /// The path MTU to use where the peer has no say: as asked, or `otherwise` if that fits, or what fits.
    ///
    /// # Errors
    /// If what was asked for does not fit the link.
    pub(crate) fn path_mtu(&self, device: &Device, otherwise: Mtu) -> Result<Mtu, Failure> {
        self.path_mtu_for(&device.port(), otherwise)
    }

    /// The same for a port without a device on it.
    pub(crate) fn path_mtu_for(&self, port: &PortInfo, otherwise: Mtu) -> Result<Mtu, Failure> {
        let name = port.interface.as_deref().unwrap_or(&port.name);
        let largest = Mtu::largest_for_link(port.largest_packet())
            .ok_or_else(|| Failure::Device(format!("{name}: {}", DeviceError::LinkMtu(port.mtu))))?;
        match self.mtu {
            Some(mtu) if mtu > largest => Err(Failure::Usage(format!(
                "path MTU {} does not fit: the link MTU of {name} is {}, it takes {} at least; the largest path MTU \
                 that fits is {}",
                mtu.bytes(),
                port.mtu,
                mtu.bytes() + Mtu::OVERHEAD,
                largest.bytes()
            ))),
            Some(mtu) => Ok(mtu),
            None => Ok(otherwise.min(largest)),
        }
    }

    /// Waits until the capture is in its file; nothing if there is none.
    ///
    /// # Errors
    /// If it is not whole.
    pub(crate) fn finish_capture(&self, device: &Device) -> Result<(), Failure> {
        /// A file that takes nothing for so long takes no more.
        const STANDSTILL: Duration = Duration::from_secs(2);
        let Some(path) = &self.capture else { return Ok(()) };
        let broken =
            |why: String| Err(Failure::Run(format!("the capture {} is not whole: {why}", path.display())));
        let (mut left, mut moved) = (u64::MAX, Instant::now());
        loop {
            let now = device.counter("pcap_unwritten_bytes");
            match device.counter("pcap_write_errors") {
                0 => {}
                n => return broken(format!("{n} frames or more could not be written; is the disk full?")),
            }
            if now == 0 {
                break;
            }
            if now < left {
                (left, moved) = (now, Instant::now());
            } else if moved.elapsed() > STANDSTILL {
                return broken(format!(
                    "{now} bytes are left and it takes nothing: is anybody reading the pipe?"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match device.counter("pcap_skipped") {
            0 => Ok(()),
            n => broken(format!(
                "{n} frames were left out, since its disk or reader was slower than the traffic"
            )),
        }
    }

    /// How QPs are connected.
    pub(crate) fn connect_options(&self, path_mtu: Mtu) -> ConnectOptions {
        ConnectOptions {
            path_mtu: Some(path_mtu),
            timeout: self.timeout,
            retry_cnt: self.retry,
            ..ConnectOptions::default()
        }
    }

    /// What a failed completion means here, and what to do.
    pub(crate) fn explain(&self, wc: &Wc) -> String {
        let advice = match wc.status {
            WcStatus::RetryExc => format!(
                " ({} retries, {} each at least). Is the peer still running, and may UDP port 4791 pass between \
                 the two? `--capture FILE` and `roxie decode FILE` show what was sent and what came back",
                self.retry,
                match self.timeout {
                    0 => "no timeout".to_owned(),
                    code => format!("{:.1} ms", (4_096u64 << code) as f64 / 1e6),
                }
            ),
            WcStatus::RnrRetryExc => ". Does the peer still post receives?".into(),
            WcStatus::LocLen | WcStatus::RemInvReq => ". Do both ends use the same message size?".into(),
            _ => String::new(),
        };
        format!("{}{advice}", wc.status)
    }
}

/// What is said about a GID index that an interface with this table does not have.
pub(crate) fn no_gid(interface: &str, table: &GidTable, index: Option<usize>) -> Failure {
    DeviceError::NoGid { device: interface.into(), index: index.unwrap_or(0), available: table.listed() }
        .into()
}

/// The one that is used unless the user says otherwise: the first IPv4 one.
pub(crate) fn first_gid(table: &GidTable) -> Option<GidEntry> {
    let assigned = || table.iter().filter(|entry| entry.assigned);
    assigned().find(|entry| entry.gid.is_ipv4()).or_else(|| assigned().next())
}

/// True if frames to `ip` come to this interface: the whole of 127.0.0.0/8 belongs to the loopback.
fn is_own(interface: &Interface, ip: IpAddr) -> bool {
    let own = &interface.addresses;
    own.iter().any(|a| a.ip == ip) || ip.is_loopback() && own.iter().any(|a| a.ip.is_loopback())
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes: usize = text.parse().map_err(|e| format!("{e}"))?;
    Mtu::from_bytes(bytes).ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".into())
}

/// A thread that spins for a while before it sleeps.
pub(crate) const THREAD: Drive = Drive::Thread { core: None, spin: SPIN };
const SPIN: Nanos = Nanos::from_micros(50);

fn parse_drive(text: &str) -> Result<Drive, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match text.split_once(':') {
        None if text == "caller" => Ok(Drive::default()),
        None if text == "thread" => Ok(THREAD),
        Some(("thread", core)) => match core.parse() {
            Ok(core) if core < cores => Ok(Drive::Thread { core: Some(core), spin: SPIN }),
            _ => Err(format!("core {core:?}: there are cores 0 to {}", cores - 1)),
        },
        _ => Err("it is caller, thread or thread:CORE".into()),
    }
}

/// Lets others run when there has been nothing to do for a while: on few cores it is the peer that waits for one.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    idle: u32,
}

impl Patience {
    /// Looks in vain before the processor is offered to others: some tens of microseconds.
    const SPINS: u32 = 128;

    /// Tells whether a look found something.
    pub(crate) fn found(&mut self, something: bool) {
        self.idle = if something { 0 } else { self.idle + 1 };
        if self.idle >= Self::SPINS {
            self.idle = 0;
            std::thread::yield_now();
        }
    }
}

/// Turns the device until nothing has arrived for a while: a peer that lost our last acknowledgement asks again.
pub(crate) fn linger(device: &Device, timeout_code: u8) {
    // The peer asks again after one to four times its timeout, which we take to be ours.
    let quiet = Duration::from_nanos(4 * (4_096u64 << timeout_code.min(17))).max(Duration::from_millis(50));
    let (mut seen, mut since) = (device.counter("rcvd_pkts"), Instant::now());
    while since.elapsed() < quiet {
        if !device.poll() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let now = device.counter("rcvd_pkts");
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_read_and_a_wrong_one_says_what_there_is() {
        assert_eq!(parse_drive("caller"), Ok(Drive::default()));
        assert!(matches!(parse_drive("thread:0"), Ok(Drive::Thread { core: Some(0), .. })));
        assert!(parse_drive("thread:99999").unwrap_err().contains("cores 0 to"));
        assert!(parse_drive("nobody").unwrap_err().contains("thread:CORE"));
    }

    #[test]
    fn only_the_five_path_mtus_are_taken() {
        assert_eq!(parse_mtu("1024"), Ok(Mtu::Mtu1024));
        assert!(parse_mtu("1500").unwrap_err().contains("256, 512, 1024, 2048 or 4096"));
    }
}
