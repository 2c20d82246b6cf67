//! `roxie demo`: two NICs on this machine, verified data between them, and their speed beside the floor.
//!
//! Read [`run`] and [`measure`] first. `site` makes the network. `connection` holds the QPs and the measurements on
//! them. `verify` compares data. `recovery` loses a packet and draws the ladder. `report` prints the table.

mod congestion;
mod connection;
mod figures;
mod interrupt;
mod programs;
mod recovery;
mod report;
mod site;
mod verify;

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use hdrhistogram::Histogram;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access, mkdtemp};
use roxie::host::{DeviceError, OpenError, Stack};
use roxie::netdev::NetdevError;
use roxie::port::fault::FaultConfig;
use roxie::shared::PostError;
use roxie::text::Plain;
use roxie::verbs::WcStatus;
use roxie_report::formats;
use roxie_report::output;

use crate::floor::{Floor, Threads};
use connection::{Connection, SMALL};
use figures::median;
use interrupt::Interrupt;
use programs::Programs;
use report::{Report, Row, Skipped};
use site::{Kind, Link, Site};
use verify::Verified;

/// Pairs of rounds (floor, then Roxie) of each measurement.
const PAIRS: usize = 5;
/// Rounds of the bandwidth under loss.
const LOSSY_ROUNDS: usize = 3;
/// Rounds of one port in all, with half a round for each number of frames in flight that is tried.
const ROUNDS_PER_PORT: f64 = (3 * 2 * PAIRS + LOSSY_ROUNDS + 4) as f64;
/// Shortest round with a thread for each NIC: many time slices, in case both threads share a core.
const SHORTEST_WITH_TWO: Duration = Duration::from_millis(60);
/// Local ACK timeout code without loss: 67 ms.
const TIMEOUT: u8 = 14;
/// Local ACK timeout code with loss: 8.4 ms, so that a lost last packet does not cost a third of a round.
const LOSSY_TIMEOUT: u8 = 11;
/// Largest verified message, in bytes.
const LARGEST: usize = 1 << 20;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 a requested port or the directory \
    for captures is not available, 128 plus the number of the signal that interrupted it.";

/// Show RDMA at work on this machine, and measure it against its floor.
#[derive(Debug, Args)]
#[command(long_about = "\
Shows RDMA at work on this machine, and measures it against its floor.

Makes two network namespaces, joins them by veth pairs, runs a NIC in each, and drives RC SEND, WRITE, READ and \
ATOMIC between them. All data is compared, byte for byte, in sizes around the path MTU and up to 1 MiB. Then three \
numbers, each with its floor:

  RC WRITE      goodput of 1 MiB messages in Gb/s, against raw frames whose payload is copied once at each end
  RC SEND 64 B  messages a second, 256 outstanding, against such frames with 64 bytes of payload
  round trip    8-byte WRITEs answered by WRITEs, median, against a raw frame sent back and forth

The floor is the same kind of port on a second veth pair between the same namespaces, in the same run, without a \
transport: it shows the cost of the kernel's path. Floor and Roxie alternate, five times. The demo prints medians of \
rates and of ratios. Next are the same WRITEs with 1 % of the packets lost at each end, and the recovery from one lost packet, \
as a sequence diagram drawn from the captures of both ends. Last are unmodified programs: ib_write_bw and \
ib_send_lat of perftest under `roxie run`, in turn with `roxie perf`, which does the same without the verbs library.

The demo runs over AF_XDP (`xdp`, as root), packet sockets (`packet`, between network namespaces) and UDP sockets (`udp`, any \
user: in a user namespace, else between loopback addresses). `memory` joins the NICs inside this process, and is the last resort if sockets are refused. The demo \
leaves nothing behind but its captures.

Expect AF_XDP on veth to copy each frame inside a system call, at a few Gb/s with 4 KiB packets: that is the veth, \
not the transport. Packet and UDP sockets pass trains of frames, and are several times faster there.",
    after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    scene: Option<Scene>,
    /// Print one JSON object as the last line, and all other output to standard error
    #[arg(long)]
    json: bool,
    /// Approximate duration of the measurements in seconds, for all ports together
    #[arg(long, default_value_t = 16.0, value_parser = positive)]
    seconds: f64,
    /// Ports to use, separated by commas [default: xdp, packet and udp, if available]
    #[arg(long, value_delimiter = ',', value_enum)]
    port: Vec<Kind>,
    /// Threads that run the NICs. 1: one thread runs both, best on few cores; 2: one thread each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: u8,
    /// Skip the unmodified programs
    #[arg(long)]
    no_programs: bool,
    /// Folder for the captures [default: a new folder in the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    capture: Option<PathBuf>,
    /// Seed of the data and of the packet losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Other demos.
#[derive(Debug, Subcommand)]
enum Scene {
    Congestion(congestion::Arguments),
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err(format!("`{text}` is no time: give seconds above 0, at most 3600")),
    }
}

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Network(#[from] NetdevError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error("{what} completed with an error: {status} (syndrome {syndrome:#04x})")]
    Completion { what: String, status: WcStatus, syndrome: u8 },
    #[error(
        "{what} did not end within {seconds} s; `roxie demo --port memory` shows whether the kernel's path is the \
         cause"
    )]
    Stalled { what: String, seconds: u64 },
    #[error("{0}")]
    Wrong(String),
    #[error("capture {path}: {why}", path = path.display())]
    Capture { path: PathBuf, why: String },
    #[error("captures cannot go to {path}: {source}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("the link: {0}")]
    Link(#[from] io::Error),
    #[error("interrupted by {0}; the network namespaces are removed")]
    Interrupted(Signal),
    #[error("no port could be used: {0}")]
    NoPort(String),
    #[error("the picture cannot go to {path}: {source}", path = path.display())]
    Picture { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Scenario(#[from] roxie_sim::scenario::ScenarioError),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// Returns the exit code: as other commands', or 128 plus the signal's number, as shells report it.
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Open(_) | Failure::Network(_) | Failure::NoPort(_) => 3,
            Failure::Directory { .. } | Failure::Picture { .. } => 3,
            Failure::Scenario(_) => 2,
            Failure::Interrupted(signal) => 128 + *signal as u8,
            _ => 1,
        }
    }
}

/// Runs the demo.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Some(Scene::Congestion(arguments)) = &arguments.scene {
        return congestion::run(arguments);
    }
    // Do both before any thread starts: only a single-threaded process can enter a user namespace, and threads inherit
    // the mask of blocked signals.
    let console = Console { json: arguments.json, failed: Cell::new(None) };
    let outcome = Interrupt::catch().and_then(|interrupt| {
        // Check the directory before entering a user namespace, where every user is root.
        let directory = capture_directory(arguments.capture.as_deref())?;
        Demo { arguments, console: &console, interrupt, site: find_site(arguments), directory }.run()
    });
    match outcome.and_then(|report| conclude(&report, &console)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain("demo", &failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints the JSON object, and fails if any data was wrong.
fn conclude(report: &Report, console: &Console) -> Result<(), Failure> {
    if console.json {
        console.print(formats::versioned(formats::DEMO, report));
    }
    let (bytes, corrupt) = report.compared();
    if corrupt > 0 {
        return Err(Failure::Wrong(format!("{corrupt} of {bytes} bytes that were compared are wrong")));
    }
    console.failed.take().map_or(Ok(()), |e| Err(Failure::Output(e)))
}

fn find_site(arguments: &Arguments) -> Site {
    let only_memory = !arguments.port.is_empty() && arguments.port.iter().all(|kind| *kind == Kind::Memory);
    if only_memory { Site::memory() } else { Site::find() }
}

/// Returns an existing, writable directory for the captures.
fn capture_directory(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let usable = |directory: &Path| {
        std::fs::create_dir_all(directory)
            .and_then(|()| Ok(access(directory, AccessFlags::W_OK | AccessFlags::X_OK)?))
            .map_err(|source| Failure::Directory { path: directory.to_owned(), source })
            .map(|()| directory.to_owned())
    };
    if let Some(directory) = asked {
        return usable(directory);
    }
    // A new folder, private to this user: in a folder with a known name, another user may have planted links.
    let template = std::env::temp_dir().join(format!("roxie-demo-{}", "X".repeat(6)));
    mkdtemp(&template).map_err(|error| Failure::Directory { path: template, source: error.into() })
}

/// Prints lines for people.
struct Console {
    json: bool,
    /// The first error of standard output. The measurement continues, because its network must be removed.
    failed: Cell<Option<io::Error>>,
}

impl Console {
    /// Prints a line: to standard output, or to standard error if that is for JSON.
    fn say(&self, line: impl std::fmt::Display) {
        for line in line.to_string().split('\n') {
            if self.json {
                let _ = writeln!(io::stderr(), "{}", Plain(line));
            } else {
                self.print(line);
            }
        }
    }

    /// Prints a line to standard output.
    fn print(&self, line: impl std::fmt::Display) {
        self.keep(writeln!(io::stdout(), "{}", Plain(line)));
    }

    /// Keeps an error of standard output. A closed pipe is no error.
    fn keep(&self, written: io::Result<()>) {
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.failed.set(Some(error));
        }
    }
}

/// One run.
struct Demo<'a> {
    arguments: &'a Arguments,
    console: &'a Console,
    interrupt: Interrupt,
    site: Site,
    /// Folder of the captures.
    directory: PathBuf,
}

impl Demo<'_> {
    fn run(&self) -> Result<Report, Failure> {
        let Arguments { threads, seed, .. } = *self.arguments;
        self.console.say(format_args!("Network: {}.", self.site.description));
        let asked = !self.arguments.port.is_empty();
        let kinds =
            if asked { self.arguments.port.clone() } else { vec![Kind::Xdp, Kind::Packet, Kind::Udp] };
        let mut report = Report {
            rows: Vec::new(),
            programs: Vec::new(),
            skipped: Vec::new(),
            network: self.site.description.clone(),
            threads,
            seed,
        };
        let share = Duration::from_secs_f64(self.arguments.seconds / ROUNDS_PER_PORT / kinds.len() as f64);
        let round = if threads == 2 { share.max(SHORTEST_WITH_TWO) } else { share };
        let mut ladder = None;
        for kind in kinds {
            self.one(kind, asked, round, &mut report, &mut ladder)?;
        }
        if report.rows.is_empty() && !asked {
            self.one(Kind::Memory, true, round, &mut report, &mut ladder)?;
        }
        self.conclude(&report, ladder.as_deref())?;
        Ok(report)
    }

    /// Measures one port. An unavailable port is skipped, unless it was requested by name.
    fn one(
        &self,
        kind: Kind,
        asked: bool,
        round: Duration,
        report: &mut Report,
        ladder: &mut Option<String>,
    ) -> Result<(), Failure> {
        let opened = match self.site.rules_out(kind) {
            Some(reason) => Err(Failure::NoPort(reason.into())),
            None => self.open(kind),
        };
        let (link, connection, floor) = match opened {
            Ok(all) => all,
            Err(failure) if asked => return Err(failure),
            Err(failure) => {
                let reason = match failure {
                    Failure::NoPort(reason) => reason,
                    other => other.to_string(),
                };
                self.console.say(format_args!("{kind}: skipped: {reason}"));
                report.skipped.push(Skipped { port: kind, reason });
                return Ok(());
            }
        };
        let (row, drawing) = self.measure(&link, connection, floor, round)?;
        report.rows.push(row);
        ladder.get_or_insert(drawing);
        if !self.arguments.no_programs {
            report.programs.extend(self.programs(&link)?);
        }
        Ok(())
    }

    /// Measures unmodified programs, if they can run here.
    fn programs(&self, link: &Link) -> Result<Option<Programs>, Failure> {
        if let Some(why) = programs::missing(link) {
            self.console.say(format_args!("{:>8} unmodified programs: skipped: {why}", ""));
            return Ok(None);
        }
        let found = programs::measure(link, &self.interrupt, self.arguments.seconds)?;
        let Programs {
            perf_gbps,
            ib_write_bw_gbps,
            bandwidth_ratio,
            perf_us,
            ib_send_lat_us,
            latency_ratio,
            ..
        } = found;
        self.console.say(format_args!(
            "{:>8} {:<14} {ib_write_bw_gbps:>8.2} Gb/s, roxie perf {perf_gbps:.2} Gb/s (64 KiB WRITEs), ratio {bandwidth_ratio:.2}",
            "", "ib_write_bw"
        ));
        self.console.say(format_args!(
            "{:>8} {:<14} {ib_send_lat_us:>8.2} us, roxie perf {perf_us:.2} us (8 B, half a round trip), ratio {latency_ratio:.2}",
            "", "ib_send_lat"
        ));
        Ok(Some(found))
    }

    fn threads(&self) -> Threads {
        if self.arguments.threads == 2 { Threads::Two } else { Threads::One }
    }

    fn open(&self, kind: Kind) -> Result<(Link, Connection, Floor), Failure> {
        let link = self.site.link(kind)?;
        let plain = Stack::default();
        let connection = Connection::open(&link, [&plain, &plain], TIMEOUT, self.threads())?;
        let floor = Floor::new(link.floor_ports()?, self.threads());
        Ok((link, connection, floor))
    }

    /// Takes all measurements on one port.
    fn measure(
        &self,
        link: &Link,
        connection: Connection,
        mut floor: Floor,
        round: Duration,
    ) -> Result<(Row, String), Failure> {
        let kind = link.kind;
        let mode = connection.near.device.port().mode.clone();
        let payload_bytes = connection.path_mtu();
        self.console.say(format_args!("{kind}: {mode}; path MTU {payload_bytes}"));
        let mut verified = self.verified(kind, "", &connection)?;
        let write = self.write(&connection, &mut floor, round, &mut verified)?;
        let send = self.send(&connection, &mut floor, round)?;
        let rtt = self.round_trip(&connection, &mut floor, round)?;
        drop((connection, floor));
        let lossy = self.lossy(link, round)?;
        verified += lossy.verified;
        let recovery = recovery::recover(link, &self.directory, self.arguments.seed)?;
        verified += recovery.verified;
        let row = Row {
            port: kind,
            mode,
            payload_bytes,
            floor_gbps: write.floor,
            write_gbps: write.ours,
            write_ratio: write.ratio,
            floor_mpps: send.floor,
            send64_mpps: send.ours,
            send64_ratio: send.ratio,
            floor_rtt_us: rtt.floor,
            rtt_us: rtt.ours,
            rtt_ratio: rtt.ratio,
            lossy_write_gbps: lossy.gbps,
            retransmitted_packets: lossy.retransmitted + recovery.retransmitted,
            verified_bytes: verified.bytes,
            corrupt_bytes: verified.corrupt,
            capture: recovery.captures[0].display().to_string(),
        };
        let title = format!(
            "One lost packet over {kind}, from {} and {}:",
            row.capture,
            recovery.captures[1].display()
        );
        Ok((row, format!("{title}\n\n{}", recovery.ladder)))
    }

    fn verified(&self, kind: Kind, with: &str, connection: &Connection) -> Result<Verified, Failure> {
        let verified = verify::verify(connection, self.arguments.seed, LARGEST)?;
        self.console.say(format_args!(
            "{kind}: SEND, WRITE, READ, ATOMIC{with}: {} bytes compared, {} wrong",
            verified.bytes, verified.corrupt
        ));
        Ok(verified)
    }

    fn write(
        &self,
        connection: &Connection,
        floor: &mut Floor,
        round: Duration,
        verified: &mut Verified,
    ) -> Result<Compared, Failure> {
        let payload = connection.path_mtu();
        let in_flight = floor.best_in_flight(payload, round)?;
        verify::fill(connection, self.arguments.seed)?;
        let mut touched = 0;
        let compared = self.compare(
            || Ok(floor.stream(payload, in_flight, round)? * payload as f64 * 8e-9),
            || {
                let (rate, bytes) = connection.write_bandwidth(round)?;
                touched = touched.max(bytes);
                Ok(rate * 8e-9)
            },
        )?;
        *verified += verify::filled(connection, self.arguments.seed, touched)?;
        self.console.say(compared.line("RC WRITE", "Gb/s", &format!("{in_flight} frames in flight")));
        Ok(compared)
    }

    fn send(&self, connection: &Connection, floor: &mut Floor, round: Duration) -> Result<Compared, Failure> {
        let in_flight = floor.best_in_flight(SMALL, round)?;
        let compared = self.compare(
            || Ok(floor.stream(SMALL, in_flight, round)? * 1e-6),
            || Ok(connection.send_rate(round)? * 1e-6),
        )?;
        self.console.say(compared.line("RC SEND 64 B", "M/s", &format!("{in_flight} frames in flight")));
        Ok(compared)
    }

    fn round_trip(
        &self,
        connection: &Connection,
        floor: &mut Floor,
        round: Duration,
    ) -> Result<Compared, Failure> {
        let compared = self.compare(
            || median_of(|record| Ok(floor.echo(8, round, record)?)),
            || median_of(|record| connection.round_trips(round, record)),
        )?;
        self.console.say(compared.line("round trip 8 B", "us", "one frame in flight"));
        Ok(compared)
    }

    /// Alternates rounds of floor and Roxie.
    fn compare(
        &self,
        mut floor: impl FnMut() -> Result<f64, Failure>,
        mut ours: impl FnMut() -> Result<f64, Failure>,
    ) -> Result<Compared, Failure> {
        let (mut floors, mut all_ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            self.interrupt.check()?;
            let (f, o) = (something(&mut floor)?, something(&mut ours)?);
            floors.push(f);
            all_ours.push(o);
            ratios.push(o / f);
        }
        Ok(Compared { floor: median(floors), ours: median(all_ours), ratio: median(ratios) })
    }

    /// Verifies data and measures bandwidth while each end drops 1 % of arriving packets.
    fn lossy(&self, link: &Link, round: Duration) -> Result<Lossy, Failure> {
        let stack = |seed: u64| -> Result<Stack, Failure> {
            let text = format!("drop=0.01,dir=rx,seed={seed}");
            let fault = FaultConfig::parse(&text).map_err(|e| Failure::Wrong(e.to_string()))?;
            Ok(Stack { fault: Some(fault), ..Stack::default() })
        };
        let seed = self.arguments.seed;
        let stacks = [&stack(seed)?, &stack(seed.wrapping_add(1))?];
        let connection = Connection::open(link, stacks, LOSSY_TIMEOUT, self.threads())?;
        let mut verified = self.verified(link.kind, " with 1 % loss", &connection)?;
        verify::fill(&connection, seed)?;
        let (mut rates, mut touched) = (Vec::new(), 0);
        for _ in 0..LOSSY_ROUNDS {
            self.interrupt.check()?;
            let (rate, bytes) = connection.write_bandwidth(round)?;
            rates.push(rate * 8e-9);
            touched = touched.max(bytes);
        }
        verified += verify::filled(&connection, seed, touched)?;
        let (gbps, retransmitted) = (median(rates), connection.counter("retransmitted_packets"));
        self.console.say(format_args!(
            "{:>8} {:<14} {gbps:>8.2} Gb/s with 1 % loss, {retransmitted} packets sent again",
            "", "RC WRITE"
        ));
        Ok(Lossy { gbps, verified, retransmitted })
    }

    fn conclude(&self, report: &Report, ladder: Option<&str>) -> Result<(), Failure> {
        let say = |line: &dyn std::fmt::Display| self.console.say(line);
        self.interrupt.check()?;
        say(&"");
        if let Some(ladder) = ladder {
            say(&ladder);
        }
        say(&report::table(&report.rows));
        say(
            &"floor: raw frames of the same sizes through the same kind of port, payload copied, no transport, in the same run.",
        );
        let how = if report.threads == 1 { "one thread turns both NICs" } else { "a thread for each NIC" };
        say(&format_args!("Medians of {PAIRS} rounds, floor and roxie in turn; {how}.\n"));
        if let Some(row) = report.rows.first() {
            say(&"Next:");
            say(&format_args!("  roxie decode {}", row.capture));
            say(&format_args!("  roxie decode --ladder {}", row.capture));
            say(&"  roxie demo --threads 2        a thread for each NIC");
            say(&"  roxie demo --help             what is measured, and how");
        }
        Ok(())
    }
}

/// Medians of the floor and of Roxie, and of the ratios of neighbouring rounds.
struct Compared {
    floor: f64,
    ours: f64,
    ratio: f64,
}

/// Repeats a measurement until something arrived: on a busy host, a short round may end before this process gets a
/// processor.
fn something(measure: &mut impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    const ROUNDS: u32 = 20;
    for _ in 0..ROUNDS {
        let value = measure()?;
        if value > 0.0 {
            return Ok(value);
        }
    }
    Err(Failure::Wrong(format!("nothing arrived within {ROUNDS} rounds: give it more --seconds")))
}

impl Compared {
    fn line(&self, what: &str, unit: &str, how: &str) -> String {
        let Compared { floor, ours, ratio } = self;
        format!("{:>8} {what:<14} {ours:>8.2} {unit}, floor {floor:.2} {unit} ({how}), ratio {ratio:.2}", "")
    }
}

/// Results under loss.
struct Lossy {
    gbps: f64,
    verified: Verified,
    retransmitted: u64,
}

/// Returns the median, in microseconds, of the nanoseconds that `measure` records.
fn median_of(measure: impl FnOnce(&mut dyn FnMut(u64)) -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)
        .map_err(|e| Failure::Wrong(format!("latency histogram: {e}")))?;
    measure(&mut |ns| histogram.saturating_record(ns))?;
    if histogram.is_empty() {
        return Err(Failure::Wrong("no round trip was completed: give it more --seconds".into()));
    }
    Ok(histogram.value_at_quantile(0.5) as f64 / 1e3)
}
