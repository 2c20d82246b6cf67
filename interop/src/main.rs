//! `interop`: the command line of the runner.

#![deny(unsafe_code)]

mod runner;

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use interop::distro::SUITES;
use interop::end::End;
use interop::error::Error;
use interop::guest::{self, Adapter, Files, Guest, Image, Kernel};
use interop::local::{self, Site};
use interop::network::{INTERFACE, Namespace, address};
use interop::pyverbs;
use interop::rows::{self, Case, Family, PortKind, Row};
use runner::Links;

/// Runs Roxie against real RoCE peers.
///
/// Exit codes: 0 all rows passed or were skipped for a known reason, 1 a row failed or is missing, 77 this host cannot
/// run the guest (no root, no QEMU), 2 any other failure.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the matrix against rdma_rxe in a guest, or against a hardware peer.
    Run(RunArguments),
    /// Run the verbs rows between two sessions of one guest: rxe against itself.
    SelfCheck {
        #[command(flatten)]
        selection: Selection,
        /// The guest's kernel.
        #[arg(long, value_enum, default_value_t)]
        kernel: KernelArgument,
    },
    /// Print the names of the rows.
    List(Selection),
    /// Print the tables of invalid packets, as in `wrong.md`.
    Wrong,
    /// Run rdma-core's own Python tests on rdma_rxe, and compare the results with its column in tests/verbs/pyverbs.txt
    /// (of kernel 6.1).
    Pyverbs {
        /// The guest's kernel.
        #[arg(long, value_enum, default_value_t)]
        kernel: KernelArgument,
        /// Rewrite the column.
        #[arg(long, conflicts_with = "kernel")]
        write: bool,
    },
    /// Run the programs of other releases of Debian, each in a folder with a Roxie built there, with Roxie at both
    /// ends, over both ports. Prints a table, and writes it to target/interop/distros.txt.
    ///
    /// The folders stay in .cache/distros (or $ROXIE_CACHE/distros) for the next run; --remove removes them. A release
    /// that the mirror cannot supply is skipped. $ROXIE_DEBIAN_MIRROR names another mirror.
    Distro(DistroArguments),
    /// Run stock programs on Roxie in a guest with zero-copy AF_XDP, against Roxie on this host and against rdma_rxe in
    /// a second guest, as server and as client. Prints figures of copy and zero-copy mode side by side.
    ZeroCopy {
        /// Only rows with this in the name. If given several times, the name must contain all.
        #[arg(long)]
        filter: Vec<String>,
        /// Measure figures only, run no rows.
        #[arg(long, conflicts_with = "filter")]
        figures: bool,
    },
    /// Measure perftest on Roxie, over AF_XDP and over sockets, and on rdma_rxe: two emulated guests of one kernel,
    /// with the same adapter. Prints medians of three rounds that measure all three in turn.
    Versus {
        /// Instead, measure a disk: the kernel's NVMe/TCP target, its nvmet-rdma and Roxie's target in one guest, by
        /// the kernel's host in the other.
        #[arg(long)]
        disks: bool,
    },
    /// Build the guest, or open a shell in it.
    #[command(subcommand)]
    Guest(GuestCommand),
}

#[derive(Subcommand)]
enum GuestCommand {
    /// Build the guest, or find it in the cache. Prints its folder.
    Build {
        /// Ask the mirror for newer packages.
        #[arg(long)]
        refresh: bool,
        /// The guest's kernel.
        #[arg(long, value_enum, default_value_t)]
        kernel: KernelArgument,
    },
    /// Start the guest with a shell on this terminal.
    Shell {
        /// The guest's kernel.
        #[arg(long, value_enum, default_value_t)]
        kernel: KernelArgument,
        /// Show this host's files, read-only, below /host: `chroot /host` runs its programs.
        #[arg(long)]
        host_files: bool,
    },
}

/// Selection of rows.
#[derive(Args, Clone, Debug)]
struct Selection {
    /// Only rows with this in the name. If given several times, the name must contain all.
    #[arg(long)]
    filter: Vec<String>,
    /// Only one row of each kind.
    #[arg(long, conflicts_with = "thorough")]
    short: bool,
    /// Transfers under faults in the full product as well, instead of a pairwise cover.
    #[arg(long)]
    thorough: bool,
    /// Only rows over this port.
    #[arg(long)]
    port: Option<PortArgument>,
    /// Only one of so many parts of these rows, such as 2/6: each row is in one part, and each part has rows of all
    /// kinds.
    #[arg(long, value_name = "PART/PARTS")]
    part: Option<Part>,
}

/// One of several parts of the rows, counted from 1.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: usize,
    of: usize,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let part = text
            .split_once('/')
            .and_then(|(number, of)| Some(Part { number: number.parse().ok()?, of: of.parse().ok()? }));
        part.filter(|part| (1..=part.of).contains(&part.number))
            .ok_or_else(|| "a part is 1/6 to 6/6, for example".to_owned())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PortArgument {
    Xdp,
    Packet,
    Udp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum KernelArgument {
    /// Debian 12's.
    #[default]
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's.
    #[value(name = "6.12")]
    V6_12,
    /// The newest of Debian's, with the rdma-core of its suite.
    Newest,
}

impl From<KernelArgument> for Kernel {
    fn from(argument: KernelArgument) -> Kernel {
        match argument {
            KernelArgument::V6_1 => Kernel::V6_1,
            KernelArgument::V6_12 => Kernel::V6_12,
            KernelArgument::Newest => Kernel::Newest,
        }
    }
}

#[derive(Args, Clone, Debug)]
struct DistroArguments {
    /// A release: bookworm, trixie, sid … May be given several times; default: these three.
    #[arg(long)]
    suite: Vec<String>,
    /// Only programs with this in the name. If given several times, the name must contain all.
    #[arg(long)]
    filter: Vec<String>,
    /// Use the Roxie built in this release for all: bookworm's, with the oldest headers, runs in all.
    #[arg(long)]
    built_in: Option<String>,
    /// Do not build: use the existing build.
    #[arg(long)]
    no_build: bool,
    /// Remove the folders of the releases instead.
    #[arg(long, conflicts_with_all = ["filter", "built_in", "no_build"])]
    remove: bool,
}

fn run_distros(arguments: DistroArguments) -> Result<bool, Error> {
    let DistroArguments { suite, filter, built_in, no_build, remove } = arguments;
    let suites = if suite.is_empty() { SUITES.map(str::to_owned).to_vec() } else { suite };
    if remove {
        return runner::remove(&suites);
    }
    if let Some(lack) = guest::host_lacks_root() {
        return Err(Error::Host(lack));
    }
    runner::distros(&runner::Wanted { suites, filter, built_in, no_build })
}

#[derive(Args, Clone, Debug)]
struct RunArguments {
    #[command(flatten)]
    selection: Selection,
    /// The guest's kernel.
    #[arg(long, value_enum, default_value_t, conflicts_with = "peer_host")]
    kernel: KernelArgument,
    /// In rows nvme/clean and nvme/loss1 with the kernel as host, write and verify blocks for so many minutes at each
    /// of the path MTUs 1024 and 4096, over 4 queues, instead of some seconds of work with a file system. Prints how
    /// much was verified.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1440), conflicts_with = "peer_host")]
    minutes: Option<u32>,
    /// Write the report to this file instead of target/interop/report.json (or report-newest.json).
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the captures of rows that passed as well.
    #[arg(long)]
    keep: bool,
    /// A hardware peer: its host for ssh.
    #[arg(long, requires_all = ["device", "interface", "address"])]
    peer_host: Option<String>,
    /// The user on that host.
    #[arg(long, default_value = "root")]
    user: String,
    /// The RDMA device of that host, e.g. mlx5_0.
    #[arg(long)]
    device: Option<String>,
    /// Use this entry of its GID table instead of the first routable RoCE v2 ones.
    #[arg(long)]
    gid_index: Option<u32>,
    /// The interface of this host towards the peer.
    #[arg(long)]
    interface: Option<String>,
    /// Addresses of this host on that interface.
    #[arg(long)]
    address: Vec<IpAddr>,
}

impl RunArguments {
    /// Returns the file of the report.
    fn report(&self) -> PathBuf {
        let name = match self.kernel {
            KernelArgument::V6_1 => "report.json",
            KernelArgument::V6_12 => "report-6.12.json",
            KernelArgument::Newest => "report-newest.json",
        };
        self.json.clone().unwrap_or_else(|| guest::output_folder().join(name))
    }
}

impl Selection {
    fn rows(&self) -> Result<Vec<Row>, Error> {
        let port = self.port.map(|p| match p {
            PortArgument::Xdp => PortKind::Xdp,
            PortArgument::Packet => PortKind::Packet,
            PortArgument::Udp => PortKind::Udp,
        });
        let named = |row: &Row| {
            let name = row.to_string();
            self.filter.iter().all(|part| name.contains(part.as_str()))
        };
        let all = match (self.short, self.thorough) {
            (true, _) => rows::short(),
            (_, true) => rows::thorough(),
            _ => rows::all(),
        };
        let wanted = |row: &Row| named(row) && port.is_none_or(|p| p == row.port);
        let Part { number, of } = self.part.unwrap_or(Part { number: 1, of: 1 });
        let rows: Vec<Row> = all.into_iter().filter(wanted).skip(number - 1).step_by(of).collect();
        match rows.len() {
            0 => Err(Error::NoRow(self.filter.clone())),
            _ => Ok(rows),
        }
    }
}

/// Starts the namespace and the guest; its log is `target/interop/guest.log`.
fn start_guest(kernel: Kernel, files: Files, processors: u8) -> Result<(Namespace, Guest), Error> {
    if let Some(lack) = guest::host_lacks() {
        return Err(Error::Host(lack));
    }
    let image = Image::build(kernel, false)?.with_processors(processors);
    let namespace = Namespace::create()?;
    let log = guest::output_folder().join("guest.log");
    let guest = Guest::start_with(&image, &namespace, 2, &log, files, Adapter::Plain)?;
    println!("the guest answers after {:.1} s", guest.booted_in().as_secs_f64());
    Ok((namespace, guest))
}

fn run(arguments: &RunArguments) -> Result<bool, Error> {
    let mut rows = arguments.selection.rows()?;
    if arguments.peer_host.is_none() && arguments.kernel == KernelArgument::V6_1 {
        rows.retain(|row| !row.is_placement());
        if rows.is_empty() {
            return Err(Error::NeedsNewest);
        }
    }
    let is_unmodified = |row: &Row| {
        let is_program = matches!(row.case, Case::Program(_) | Case::Fallback(_) | Case::Profiled(..));
        is_program || matches!(row.case, Case::Iser(_) | Case::Bond(_))
    };
    let unmodified = rows.iter().any(is_unmodified);
    let own =
        |row: &Row| matches!(row.case, Case::Pingpong(_) | Case::Nvme(_) | Case::Nfs(_) | Case::Conform);
    if unmodified || rows.iter().any(own) {
        local::build_roxie()?;
    }
    if unmodified {
        local::build_library()?;
    }
    if let Some(host) = &arguments.peer_host {
        let mut peer = runner::hardware_peer(
            &format!("{}@{host}", arguments.user),
            arguments.device.as_deref().unwrap_or_default(),
            arguments.gid_index,
        )?;
        let interface = arguments.interface.as_deref().unwrap_or_default();
        let rxe_flush_icrc = peer.quirks().flush_has_wrong_icrc;
        let site = Site { namespace: None, interface, addresses: &arguments.address, rxe_flush_icrc };
        let mut roxie = local::open(&site);
        let links = Links::new(None, None);
        let ends = runner::Ends { roxie: roxie.as_mut(), peer: &mut peer, links, minutes: None };
        return runner::matrix(&rows, ends, arguments.keep, &arguments.report());
    }
    // Roxie runs in the guest if it has bonds.
    let has_bonds = rows.iter().any(|row| matches!(row.case, Case::Bond(_)));
    let files = if has_bonds { Files::Host } else { Files::Own };
    let processors = arguments.minutes.map_or(1, |_| runner::QUEUES);
    let (namespace, guest) = start_guest(arguments.kernel.into(), files, processors)?;
    let pair = runner::namespaces(&rows)?;
    let mut peer = guest.peer(&namespace)?;
    let addresses = [address(1, Family::V4), address(1, Family::V6)];
    let rxe_flush_icrc = peer.quirks().flush_has_wrong_icrc;
    let site =
        Site { namespace: Some(&namespace), interface: INTERFACE, addresses: &addresses, rxe_flush_icrc };
    let mut roxie = local::open(&site);
    let links = Links::new(Some(&namespace), pair.as_ref());
    let ends = runner::Ends { roxie: roxie.as_mut(), peer: &mut peer, links, minutes: arguments.minutes };
    runner::matrix(&rows, ends, arguments.keep, &arguments.report())
}

/// Checks that the host can run guests, and builds the programs that run in them.
fn ready_for_roxie_in_guests() -> Result<(), Error> {
    if let Some(lack) = guest::host_lacks() {
        return Err(Error::Host(lack));
    }
    local::build_roxie()?;
    local::build_library()
}

fn zero_copy(filter: &[String], figures: bool) -> Result<bool, Error> {
    ready_for_roxie_in_guests()?;
    runner::zero_copy(filter, figures)
}

/// Prints the comparison, which never fails.
fn versus(disks: bool) -> Result<bool, Error> {
    ready_for_roxie_in_guests()?;
    let compare = if disks { runner::disks } else { runner::versus };
    compare().map(|()| true)
}

fn self_check(selection: &Selection, kernel: Kernel) -> Result<bool, Error> {
    let rows = selection.rows()?;
    let (namespace, guest) = start_guest(kernel, Files::Own, 1)?;
    runner::self_check(&rows, &mut guest.peer(&namespace)?, &mut guest.peer(&namespace)?)
}

/// Prints each test's result. True if the results equal the table's, or, on another kernel, are no worse.
fn run_pyverbs(kernel: Kernel, write: bool) -> Result<bool, Error> {
    if let Some(lack) = pyverbs::host_lacks() {
        return Err(Error::Host(lack));
    }
    let (namespace, guest) = start_guest(kernel, Files::Host, 1)?;
    let mut peer = guest.peer(&namespace)?;
    println!("peer: {} on kernel {}", peer.about().device, peer.about().kernel);
    let outcomes = pyverbs::outcomes(&mut peer)?;
    for (test, outcome) in &outcomes {
        println!("{test} {outcome}");
    }
    let path = pyverbs::table_path();
    let table = fs::read_to_string(&path).map_err(Error::file(&path))?;
    if write {
        fs::write(&path, pyverbs::with_column(&table, &outcomes)).map_err(Error::file(&path))?;
    }
    let differences = pyverbs::differences(&table, &outcomes);
    for (difference, _) in &differences {
        println!("differs: {difference}");
    }
    let count = |wanted: &str| outcomes.values().filter(|outcome| *outcome == wanted).count();
    println!("{} pass, {} skip, {} fail", count("pass"), count("skip"), count("fail"));
    let bad = differences.iter().any(|(_, less)| *less || kernel == Kernel::V6_1);
    Ok(write || !bad)
}

fn dispatch(command: &Command) -> Result<bool, Error> {
    match command {
        Command::Run(arguments) => run(arguments),
        Command::SelfCheck { selection, kernel } => self_check(selection, (*kernel).into()),
        Command::List(selection) => {
            for row in selection.rows()? {
                println!("{row}");
            }
            Ok(true)
        }
        Command::Wrong => {
            print!("{}", interop::exec::table::page());
            Ok(true)
        }
        Command::Pyverbs { kernel, write } => run_pyverbs((*kernel).into(), *write),
        Command::ZeroCopy { filter, figures } => zero_copy(filter, *figures),
        Command::Versus { disks } => versus(*disks),
        Command::Distro(arguments) => run_distros(arguments.clone()),
        Command::Guest(GuestCommand::Build { refresh, kernel }) => {
            println!("{}", Image::build((*kernel).into(), *refresh)?.folder().display());
            Ok(true)
        }
        Command::Guest(GuestCommand::Shell { kernel, host_files }) => {
            if let Some(lack) = guest::host_lacks() {
                return Err(Error::Host(lack));
            }
            let image = Image::build((*kernel).into(), false)?;
            let namespace = Namespace::create()?;
            println!("the guest is {} in the namespace {}", address(2, Family::V4), namespace.name());
            image.shell(&namespace, 2, if *host_files { Files::Host } else { Files::Own })?;
            Ok(true)
        }
    }
}

/// Exit code of a test that this host cannot run, as in automake.
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    roxie::stderr_log::install();
    match dispatch(&Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Error::Host(lack)) => {
            println!("SKIP interop: {lack}");
            ExitCode::from(SKIPPED)
        }
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_in_one_part() {
        let rows = |part: Option<&str>| {
            let part = part.map(|text| text.parse().unwrap());
            let selection = Selection { filter: Vec::new(), short: true, thorough: false, port: None, part };
            selection.rows().unwrap().iter().map(Row::to_string).collect::<Vec<_>>()
        };
        let mut parts = ["1/3", "2/3", "3/3"].map(|part| rows(Some(part))).concat();
        let mut all = rows(None);
        parts.sort();
        all.sort();
        assert_eq!(parts, all);
        for text in ["0/3", "4/3", "1", "1/0", "a/3"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }
}
