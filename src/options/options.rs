//! Options that select and configure a device.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use roxie::engine::Drive;
use roxie::host::{
    AckRequestPolicy, ConnectOptions, Device, DeviceError, DeviceName, PacketRule, SelectiveRepeat,
};
use roxie::port::PortInfo;
use roxie::port::fault::FaultConfig;
use roxie::port::xdp::Mode;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Wc, WcStatus};
use roxie_report::failure::Failure;

use super::congestion::CongestionOptions;
use super::profile::ChosenProfile;

/// The port that moves frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortKind {
    /// AF_XDP: frames below the kernel's network stack; needs CAP_NET_RAW, CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN
    Xdp,
    /// Packet sockets: trains of frames beside the kernel's network stack; needs CAP_NET_RAW
    Packet,
    /// UDP sockets: no privilege, any interface
    Udp,
    /// Memory between both ends in this process: no network at all
    Memory,
}

/// A mode of AF_XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
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
pub struct DeviceOptions {
    /// Port that moves frames [default: xdp if permitted, else udp; --mode implies xdp, --no-gso implies udp]
    #[arg(long, value_name = "PORT")]
    pub port: Option<PortKind>,
    /// The interface [default: the only one besides loopback that has an address]
    #[arg(short, long, alias = "ib-dev", value_name = "IFACE")]
    pub dev: Option<String>,
    /// Receive on this address only; repeatable [default: all addresses of the interface]
    #[arg(long, value_name = "IP")]
    pub address: Vec<IpAddr>,
    /// Index of the GID to use, as `roxie show gids` lists them [default: the first IPv4 one]
    #[arg(short, long, visible_alias = "gid-idx", value_name = "N")]
    pub gid_index: Option<usize>,
    /// Make each address a RoCE v1 GID as well (EtherType 0x8915), behind the RoCE v2 ones; not over UDP sockets
    #[arg(long)]
    pub(crate) roce_v1: bool,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 bytes of payload a packet
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<Mtu>,
    /// Inject faults: drop=0.01,reorder=0.02,delay=1%:200us,corrupt=nth3,seed=7,dir=tx
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<FaultConfig>,
    /// Inject a fault for chosen packets, as `roxie wire` does; repeatable: 'drop opcode=SEND_LAST from=peer once'
    #[arg(long = "rule", value_name = "RULE")]
    pub(crate) rules: Vec<PacketRule>,
    /// Write a pcapng of both directions; each packet's comment says what the NIC did with it, and why
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Send one datagram a system call, without segmentation offload (GSO); implies --port udp
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Mode of AF_XDP; implies --port xdp
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeName>,
    /// Thread that runs the NIC: `caller` (the command's own polling; best on few cores), `thread` or `thread:CORE`
    /// [default: caller, or thread if the command sleeps on events]
    #[arg(long, value_name = "WHO", value_parser = parse_drive)]
    pub drive: Option<Drive>,
    /// Local ACK timeout code, 0 to 31: 4.096 us * 2^code; 0 disables the timeout
    #[arg(long, default_value_t = 14, value_name = "CODE", value_parser = clap::value_parser!(u8).range(0..=31))]
    pub timeout: u8,
    /// Number of retransmissions of a packet before the connection fails, 0 to 7
    #[arg(long, default_value_t = 7, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(crate) retry: u8,
    /// Send lost packets alone again, where both ends can: off, agree (the ends of the connection ask each other) or
    /// assume (the peer is known to)
    #[arg(long, value_name = "WHEN", default_value = "off", default_missing_value = "agree", num_args = 0..=1, require_equals = true)]
    pub selective_repeat: SelectiveRepeat,
    /// When unsignaled messages ask for an acknowledgement: always (as adapters do), shown (late, once the peer has
    /// answered two probes) or late (the peer is known to answer probes) [default: shown]
    #[arg(long, value_name = "WHEN", conflicts_with = "profile")]
    pub ask: Option<AckRequestPolicy>,
    /// Behave as this adapter was measured to: a name of `roxie profile list`, or a file
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<ChosenProfile>,
    #[command(flatten)]
    pub(crate) congestion: CongestionOptions,
    /// True if the device serves other processes.
    #[arg(skip)]
    pub serves: bool,
    /// The device's name, for programs.
    #[arg(skip)]
    pub name: DeviceName,
}

impl DeviceOptions {
    /// Returns the requested port: by name, or by an option that only one port has.
    pub fn asked_port(&self) -> Option<PortKind> {
        match self.port {
            None if self.mode.is_some() => Some(PortKind::Xdp),
            None if self.no_gso => Some(PortKind::Udp),
            port => port,
        }
    }

    /// Rejects contradictory options before anything is opened.
    pub fn check(&self) -> Result<(), Failure> {
        if self.no_gso && self.mode.is_some() {
            return Err(Failure::Usage(
                "--mode is for --port xdp and --no-gso for --port udp: leave one of the two out".into(),
            ));
        }
        let misplaced = [
            (
                self.no_gso && matches!(self.port, Some(PortKind::Xdp | PortKind::Packet | PortKind::Memory)),
                "--no-gso",
                "udp",
            ),
            (
                self.mode.is_some()
                    && matches!(self.port, Some(PortKind::Packet | PortKind::Udp | PortKind::Memory)),
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
                "--cc @FILE is read again while an interface is followed, and --port memory has none: give the \
                 contents of the file"
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

    /// Returns the path MTU where the peer has no say: the requested one, else `otherwise` or the largest that fits the
    /// link.
    ///
    /// # Errors
    ///
    /// If the requested path MTU does not fit the link.
    pub fn path_mtu(&self, device: &Device, otherwise: Mtu) -> Result<Mtu, Failure> {
        self.path_mtu_for(&device.port(), otherwise)
    }

    /// Returns the path MTU for a port without a device.
    pub fn path_mtu_for(&self, port: &PortInfo, otherwise: Mtu) -> Result<Mtu, Failure> {
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

    /// Returns the options for connecting QPs.
    pub fn connect_options(&self, path_mtu: Mtu) -> ConnectOptions {
        ConnectOptions {
            path_mtu: Some(path_mtu),
            timeout: self.timeout,
            retry_cnt: self.retry,
            ..ConnectOptions::default()
        }
    }

    /// Explains a failed completion, and what to do.
    pub fn explain(&self, wc: &Wc) -> String {
        let advice = match wc.status {
            WcStatus::RetryExc => format!(
                " ({} retries, {} each at least). Is the peer still running, and can UDP port 4791 pass in both \
                 directions? `--capture FILE` and `roxie decode FILE` show sent and received packets",
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

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes: usize = text.parse().map_err(|e| format!("{e}"))?;
    Mtu::from_bytes(bytes).ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".into())
}

/// An engine thread that spins for 50 us before it sleeps.
pub const THREAD: Drive = Drive::Thread { core: None, spin: SPIN };
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
        _ => Err("give caller, thread or thread:CORE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_is_parsed_and_errors_list_choices() {
        assert_eq!(parse_drive("caller"), Ok(Drive::default()));
        assert!(matches!(parse_drive("thread:0"), Ok(Drive::Thread { core: Some(0), .. })));
        assert!(parse_drive("thread:99999").unwrap_err().contains("cores 0 to"));
        assert!(parse_drive("nobody").unwrap_err().contains("thread:CORE"));
    }

    #[test]
    fn only_five_path_mtus_are_accepted() {
        assert_eq!(parse_mtu("1024"), Ok(Mtu::Mtu1024));
        assert!(parse_mtu("1500").unwrap_err().contains("256, 512, 1024, 2048 or 4096"));
    }
}
