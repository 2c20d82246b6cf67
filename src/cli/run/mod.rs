//! `roxie run` starts an unmodified verbs program with a Roxie device. `roxie env` prints the environment for other
//! launchers.
//!
//! The program gets Roxie's `libibverbs.so.1` by `LD_PRELOAD` and `LD_LIBRARY_PATH`. A mount namespace shows it what a
//! kernel with an RDMA device has in `/sys/class/infiniband` and `/dev/infiniband` ([`overlay`], [`view`]), kept up to
//! date ([`live`]). The device itself lives in the program's process. The launcher waits and forwards signals
//! ([`child`]), and reports what the device refused to a program that failed ([`EventLog`]). A process of its own keeps
//! the view, and ends the connections that programs leave open ([`watcher`]). Another one tells users apart where the
//! programs cannot ([`credentials`]).
//!
//! [`enable`](mod@enable) gives library and view to all programs of a machine.

mod child;
mod counts;
mod credentials;
mod enable;
pub(crate) mod hint;
mod library;
mod live;
mod overlay;
mod preflight;
mod tree;
mod view;
mod watcher;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};
use roxie::host::inspect::CounterReader;
use roxie::host::{
    AckRequestPolicy, Device, DeviceConfig, DeviceName, EVENTS, EventLog, LoggedEvent, OpenError, PacketRule,
    PacketRules, PortPlan, RuleError, SelectiveRepeat, Stack,
};
use roxie::netdev::{Interface, Vlans};
use roxie::port::fault::FaultConfig;
use roxie::port::xdp::Mode;
use roxie::profile::Profile;
use roxie::remote::{TRUSTED_NIC, device_name_of, trusted_nic};
use roxie_options::ModeName;
use roxie_options::congestion::CongestionOptions;
use roxie_options::interface::{Without, usable_interface};
use roxie_options::profile::ChosenProfile;
use roxie_report::failure::Failure;
use roxie_report::output;

use credentials::Credentials;
pub(crate) use enable::{DisableArguments, EnableArguments, disable, enable};
pub(crate) use library::Library;
use preflight::Preflight;
use view::View;
use watcher::Watcher;

/// Most refusals that are reported of a failed program; older ones are left out.
const REFUSALS: usize = 8;
/// Exit codes after SIGINT and SIGTERM: ended by a user, not failed.
const INTERRUPTED: [u8; 2] = [130, 143];
/// Smallest message that UCX moves by one READ, unless the user sets another. UCX expects copies to cost less than the
/// link, so it splits all but the largest messages into SENDs of 8 KiB. Here each SEND is a system call, or three
/// frames, and a READ is faster from this size on: docs/performance.md.
const UCX_RENDEZVOUS: (&str, &str) = ("UCX_RNDV_THRESH", "32k");

/// The difference of `roxie env` from `roxie run`.
const WITHOUT_VIEW: &str = "the environment alone gives no /sys/class/infiniband and no /dev/infiniband: UCX, NCCL and readers of counters \
    need `roxie run`. The state of the link, GIDs and counters are in `roxie show device`, `roxie show gids`, `roxie show counters` and \
    `roxie metrics`";

/// The device's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Port {
    /// AF_XDP: frames below the kernel's network stack, for one program at a time; needs CAP_NET_RAW, CAP_BPF,
    /// CAP_PERFMON and CAP_NET_ADMIN
    Xdp,
    /// Packet sockets: trains of frames beside the kernel's network stack, up to 128 processes of one user; needs
    /// CAP_NET_RAW
    Packet,
    /// UDP sockets: up to 128 processes of one user, no privilege, any interface
    Udp,
    /// The NIC process that serves the interface (`roxie nic`): up to 255 programs
    Nic,
}

impl Port {
    fn name(self) -> &'static str {
        match self {
            Port::Xdp => "xdp",
            Port::Packet => "packet",
            Port::Udp => "udp",
            Port::Nic => "nic",
        }
    }
}

/// Options of the program's device.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct Options {
    /// The interface [default: the only one besides loopback that has an address]
    #[arg(short, long, value_name = "IFACE")]
    dev: Option<String>,
    /// Name of the device, for programs that look for one: mlx5_0, rxe0 [default: that of the NIC that serves the
    /// interface, else roxie0]
    #[arg(long, value_name = "NAME")]
    name: Option<DeviceName>,
    /// Behave as this adapter was measured to: a name of `roxie profile list`, or a file
    #[arg(long, value_name = "NAME")]
    profile: Option<ChosenProfile>,
    /// Say that the device is this adapter: vendor, part, firmware, board. A program that knows it may then want more
    /// of it than verbs
    #[arg(long, requires = "profile")]
    identity: bool,
    /// Port that moves frames [default: nic if one serves the interface, else packet if possible, else udp]
    #[arg(long, value_name = "PORT")]
    port: Option<Port>,
    /// Mode of AF_XDP; implies --port xdp
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeName>,
    /// Run the NIC on threads of its own instead of in the program's polling calls: a worker on each of these cores,
    /// 2,3 or 2-5, among which QPs are distributed; over AF_XDP not more than the interface has receive queues
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Inject faults: drop=0.01,reorder=0.02,delay=1%:200us,corrupt=nth3,seed=7,dir=tx
    #[arg(long, value_name = "SPEC", value_parser = parse_fault)]
    fault: Option<String>,
    /// Inject a fault for chosen packets, as `roxie wire` does; repeatable: 'drop opcode=SEND_LAST from=peer once'
    #[arg(long = "rule", value_name = "RULE", value_parser = parse_rule)]
    rules: Vec<PacketRule>,
    /// Write a pcapng of both directions; each packet's comment says what the NIC did with it, and why
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
    /// Type of service (traffic class) of rdma_cm connections, unless the program sets one
    #[arg(long, value_name = "TOS")]
    tos: Option<u8>,
    /// Send lost packets alone again, where both ends can: off, agree (on connections of rdma_cm, whose ends ask each
    /// other) or assume (on all RC connections: the peer is known to)
    #[arg(long, value_name = "WHEN", default_value = "off", default_missing_value = "agree", num_args = 0..=1, require_equals = true)]
    selective_repeat: SelectiveRepeat,
    /// When unsignaled messages ask for an acknowledgement: always (as adapters do), shown (late, once the peer has
    /// answered two probes) or late (the peer is known to answer probes) [default: shown]
    #[arg(long, value_name = "WHEN", conflicts_with = "profile")]
    ask: Option<AckRequestPolicy>,
    /// Make each address a RoCE v1 GID as well (EtherType 0x8915), behind the RoCE v2 ones; not over UDP sockets
    #[arg(long)]
    roce_v1: bool,
    #[command(flatten)]
    congestion: CongestionOptions,
}

fn parse_fault(spec: &str) -> Result<String, String> {
    spec.parse::<FaultConfig>().map_err(|e| e.to_string()).map(|_| spec.to_owned())
}

fn parse_rule(text: &str) -> Result<PacketRule, RuleError> {
    let rule: PacketRule = text.parse()?;
    rule.directions().map(|_| rule)
}

/// Run an unmodified verbs program on a Roxie device
#[derive(Debug, Args)]
#[command(
    long_about = "Runs an unmodified program of the verbs API (ibv_rc_pingpong, ib_write_bw, anything on libibverbs) \
        with an RDMA device on an ordinary interface, named roxie0 or as --name says: no RDMA adapter, no kernel module.\n\nThe program \
        loads Roxie's libibverbs.so.1 in place of the system's. The NIC lives in the program's process, and claims the \
        interface when the program creates its first queue pair.\n\nOver packet or UDP sockets, any number of \
        programs of one user share the device: ranks of MPI, servers and their clients, however they are started. With \
        --port xdp, one program at a time has the interface; a second one gets an error that names the first. Programs \
        that only query the device, such as ibv_devinfo, work beside it.\n\nThe other end may be another roxie, an \
        RDMA adapter with RoCE v2, or Linux's rdma_rxe. Use GID index 1, the first IPv4 address: `-x 1` for perftest, \
        `-g 1` for the ibv_*_pingpong; `roxie show gids` lists all.\n\nUDP sockets need no privilege. Packet sockets and \
        AF_XDP do, and answer sooner.",
    after_help = "Examples:\n  \
        roxie run -- ibv_devinfo -v\n  \
        roxie run --dev eth0 -- ibv_rc_pingpong -g 1              on one host\n  \
        roxie run --dev eth0 -- ibv_rc_pingpong -g 1 192.0.2.1    on the other\n  \
        roxie run --dev eth0 --port xdp -- ib_write_bw -x 1 -F\n  \
        roxie run -- mpirun -n 4 PROGRAM                          four ranks on one device\n  \
        ROXIE_LOG=info roxie run -- PROGRAM                       names the attribute that a failed call rejected, and why\n\n\
        Without ROXIE_LOG, `roxie run` prints that only for a program that has failed.\n\n\
        Programs that are linked statically, or run with more rights than you (setuid), do not load the library.\n\n\
        Exit codes: the program's own; 128 + n if signal n ended it; 126 and 127 if it cannot be started or found; 2 wrong \
        usage, 3 the device is not available."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Print the environment for a program that `roxie run` cannot start
#[derive(Debug, Args)]
#[command(
    long_about = "Prints the environment that `roxie run` gives to a program, as lines for a shell: for job \
        schedulers, containers and debuggers that start programs themselves. The environment cannot give the view of \
        /sys/class/infiniband, which some libraries read (UCX, NCCL); programs that use libibverbs alone do not need \
        it. Put a program's own LD_PRELOAD in front of the printed one, not in its place.\n\nUCX_RNDV_THRESH makes UCX \
        send messages of 32 KiB and more by one READ, which is faster here than the SENDs that UCX would choose. A \
        value that you have set is kept.",
    after_help = "Examples:\n  eval \"$(roxie env --dev eth0)\"; ibv_devinfo\n  \
        eval \"$(roxie env --dev eth0)\"; LD_PRELOAD=x.so:$LD_PRELOAD PROGRAM"
)]
pub(crate) struct EnvArguments {
    #[command(flatten)]
    options: Options,
}

/// Runs the program.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match prepare(&arguments.options, |_| None).and_then(|prepared| start(arguments, &prepared)) {
        Ok(code) => code,
        Err(failure) => failure.report("run"),
    }
}

/// Prints the environment.
pub(crate) fn env(arguments: &EnvArguments) -> ExitCode {
    let printed = prepare(&arguments.options, |_| None).and_then(|prepared| {
        if !arguments.options.quiet {
            output::note(WITHOUT_VIEW);
        }
        for (name, value) in prepared.environment(&arguments.options) {
            output::exact(&format!("export {name}={}\n", quoted(&value.to_string_lossy())))?;
        }
        Ok(())
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("env"),
    }
}

/// The program's library and port.
struct Prepared {
    library: Library,
    name: DeviceName,
    profile: Option<Profile>,
    interface: Interface,
    port: Port,
    mode: Mode,
    /// The NIC to connect to, found before the user namespace is entered, in which users cannot be told apart.
    nic: Option<String>,
}

/// `default`: the port, unless the user has named one; `None` leaves the choice to the preflight.
fn prepare(options: &Options, default: impl FnOnce(&Interface) -> Option<Port>) -> Result<Prepared, Failure> {
    let library = Library::find()?;
    let interface = usable_interface(options.dev.as_deref(), Without::Nothing)?;
    let asked = options.port.or(options.mode.map(|_| Port::Xdp));
    if let (Some(port @ (Port::Packet | Port::Udp | Port::Nic)), Some(_)) = (options.port, options.mode) {
        let why =
            format!("--mode is for --port xdp, and not for --port {}: leave one of the two out", port.name());
        return Err(Failure::Usage(why));
    }
    let preflight = Preflight::of(&interface, asked.or_else(|| default(&interface)));
    if !options.quiet {
        for remark in &preflight.remarks {
            output::note(remark);
        }
    }
    if let Some(chosen) = options.profile.as_ref().filter(|_| !options.quiet) {
        chosen.report();
    }
    let profile = options.profile.as_ref().map(|chosen| match options.identity {
        true => chosen.with_identity(),
        false => Ok(chosen.profile.clone()),
    });
    let profile = profile.transpose().map_err(Failure::Usage)?;
    let mode = options.mode.map_or(Mode::Auto, Mode::from);
    let (mut nic, mut name) = (None, options.name.clone());
    if preflight.port == Port::Nic {
        nic = trusted_nic(&interface.name);
        name = name.or_else(|| device_name_of(&interface.name)?.parse().ok());
    }
    let name = name.unwrap_or_default();
    Ok(Prepared { library, name, profile, interface, port: preflight.port, mode, nic })
}

impl Prepared {
    /// Opens the device as the program had it.
    fn device(&self) -> Result<Device, OpenError> {
        let plan = match self.port {
            Port::Xdp => PortPlan::Xdp(self.mode),
            Port::Packet => PortPlan::Packet,
            Port::Udp => PortPlan::Udp,
            Port::Nic => PortPlan::Nic,
        };
        let config = DeviceConfig { name: self.name.clone(), ..DeviceConfig::default() };
        Device::open_unclaimed(&self.interface.name, plan, Stack::default(), &config)
    }

    /// Returns the device as files, and its VLAN interfaces, which the files follow. Over UDP sockets a device has no
    /// VLANs, and no RoCE v1.
    fn view(&self, options: &Options) -> (View, Option<Vlans>) {
        let frames = self.port != Port::Udp;
        let identity = self.profile.as_ref().and_then(|profile| profile.identity.clone());
        let mut view =
            View::of(self.name.clone(), &self.interface, frames && options.roce_v1).with_identity(identity);
        let mut vlans = if frames { Vlans::on(self.interface.index).ok() } else { None };
        if let Some(vlans) = &mut vlans {
            view.follow_vlans(vlans.links().unwrap_or_default());
        }
        (view, vlans)
    }

    fn environment(&self, options: &Options) -> Vec<(&'static str, OsString)> {
        let mut all = self.library.environment();
        all.push(("ROXIE_DEV", self.interface.name.clone().into()));
        all.push(("ROXIE_NAME", self.name.to_string().into()));
        all.push(("ROXIE_PORT", self.port.name().into()));
        all.extend(self.nic.as_ref().map(|nic| (TRUSTED_NIC, nic.into())));
        let rules =
            (!options.rules.is_empty()).then(|| PacketRules(options.rules.clone()).to_string().into());
        let more = [
            ("ROXIE_MODE", options.mode.map(|_| self.mode.name().into())),
            ("ROXIE_CORES", options.cores.clone().map(OsString::from)),
            ("ROXIE_FAULT", options.fault.clone().map(OsString::from)),
            ("ROXIE_RULES", rules),
            ("ROXIE_CAPTURE", options.capture.clone().map(OsString::from)),
        ];
        all.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let profile = self.profile.as_ref().and_then(|profile| serde_json::to_string(profile).ok());
        all.extend(profile.map(|profile| ("ROXIE_PROFILE", profile.into())));
        all.extend(options.tos.map(|tos| ("ROXIE_TOS", tos.to_string().into())));
        if options.roce_v1 {
            all.push(("ROXIE_ROCE_V1", "on".into()));
        }
        if options.selective_repeat != SelectiveRepeat::Off {
            all.push(("ROXIE_SELECTIVE_REPEAT", options.selective_repeat.to_string().into()));
        }
        all.extend(options.ask.map(|policy| ("ROXIE_ASK", policy.to_string().into())));
        all.extend(options.congestion.environment());
        let (name, value) = UCX_RENDEZVOUS;
        all.extend(std::env::var_os(name).is_none().then(|| (name, value.into())));
        all
    }
}

fn start(arguments: &Arguments, prepared: &Prepared) -> Result<ExitCode, Failure> {
    let [program, rest @ ..] = &arguments.program[..] else {
        return Err(Failure::Usage("which program? roxie run -- PROGRAM ARGUMENTS".into()));
    };
    let (view, vlans) = prepared.view(&arguments.options);
    let credentials = Credentials::start().unwrap_or_else(|error| {
        output::note(format_args!(
            "programs of this user do not find each other, because other users have its number in a user namespace, and no \
             process tells them apart: {error}"
        ));
        None
    });
    let missing = overlay::enter(&view, matches!(prepared.port, Port::Xdp | Port::Packet))
        .map_err(|e| Failure::Run(format!("returning to the chroot: {e}")))?;
    for part in missing.iter().filter(|_| !arguments.options.quiet) {
        output::note(part);
    }
    let has_view = !missing.iter().any(overlay::NoView::is_of_sysfs);
    let keep = || match has_view {
        true => live::keep(view, vlans, Path::new(overlay::CLASS), CounterReader::default()),
        false => Ok(()),
    };
    let watcher = Watcher::start(keep, || prepared.device());
    match &watcher {
        Ok(Watcher { stale: Some(error), .. }) => {
            output::note(format_args!("/sys/class/infiniband stays as it is now, without counters: {error}"));
        }
        Ok(_) => {}
        Err(error) => output::note(format_args!(
            "no process outlives the program: if it is killed, its peers wait for their timeouts, and /sys/class/infiniband stays as it is \
             now: {error}"
        )),
    }
    let mut command = Command::new(program);
    command.args(rest).envs(prepared.environment(&arguments.options));
    command.envs(watcher.iter().map(|watcher| (watcher::ORPHANS, &watcher.name)));
    command.envs(credentials.iter().map(Credentials::environment));
    // Without this memory, only ROXIE_LOG reports refusals.
    let log = EventLog::create().ok();
    command.envs(log.iter().map(|(_, path)| ("ROXIE_EVENTS", path.path())));
    let ended = child::run(command, program);
    let untold = watcher.ok().and_then(Watcher::finish);
    let code = ended?;
    if !arguments.options.quiet {
        if let Some(error) = untold {
            output::note(format_args!(
                "the program left connections, and their peers could not be told that it has ended: {error}"
            ));
        }
        if let Some((log, _)) = log {
            tell_refusals(&program.to_string_lossy(), code, &log.newest(EVENTS));
        }
    }
    Ok(ExitCode::from(code))
}

/// Reports what the device refused to a program that failed, unless it was reported before.
fn tell_refusals(program: &str, code: u8, events: &[LoggedEvent]) {
    let unsaid: Vec<_> = events.iter().filter(|event| !event.printed).collect();
    if code == 0 || INTERRUPTED.contains(&code) || unsaid.is_empty() {
        return;
    }
    output::note(format_args!("{program} ended with {code}. The device had refused it:"));
    for event in &unsaid[unsaid.len().saturating_sub(REFUSALS)..] {
        output::note(format_args!("  {}", event.text));
    }
}

/// Quotes a value for a shell.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,+@".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_for_shells() {
        assert_eq!(quoted("/usr/lib/libibverbs.so.1"), "/usr/lib/libibverbs.so.1");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
