//! `roxie demo congestion`: more senders than a link can carry, in virtual time and with real frames.
//!
//! [`scenario`] holds what both runs share. [`simulated`] plays it with simulated hosts, [`real`] with unmodified
//! programs and a forwarder that takes their frames through the same switch. [`trace`] samples a run, [`report`] and
//! [`chart`] show it.

mod chart;
mod real;
mod report;
mod scenario;
mod simulated;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use roxie::congestion::Settings;
use roxie_report::formats;
use roxie_report::output;

use super::site::Kind;
use super::{Console, Failure, Interrupt};
use report::Report;
use scenario::Scenario;

/// Watch a congested link: queue, marks, losses and the rate of each sender over time.
#[derive(Debug, Args)]
#[command(long_about = "\
Shows a congested link: queue, marks, losses and the rate of each sender over time.

Senders at one switch write to as many receivers at another, each as fast as its own link allows. The link between the \
switches is no faster than one of theirs. The switch in front of it has a queue. It marks frames (ECN) by the depth of the \
queue, and drops \
frames that do not fit.

By default (`--cc dcqcn,…`) the senders slow down when they are notified of marks. With `--cc off` they do not: the queue is \
always full, frames are lost, and go-back-N retransmits each of them, and everything behind it.

The scenario runs twice, with the same parameters. First in virtual time, between simulated hosts, where the seed decides \
everything. \
Then, as root, with real frames: each sender and receiver is an `ib_write_bw` of perftest under `roxie run` in a network \
namespace of its own, and a thread forwards their frames through the same switch, whose queues and marks are computed at exact \
times. The demo measures how late frames reach their interfaces, and prints it.

The demo leaves nothing behind but the picture, if you ask for one.",
    after_help = super::EXIT_CODES)]
pub(crate) struct Arguments {
    /// Number of senders, and of receivers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    senders: u8,
    /// Rate of every link, in Mb/s
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=400_000))]
    rate: u64,
    /// Delay of every link, in us
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    delay: u64,
    /// Seconds for which the senders send
    #[arg(long, default_value_t = 4.0, value_parser = super::positive)]
    seconds: f64,
    /// Size of the queue in front of the link, in bytes [default: what the link carries in 16 ms]
    #[arg(long)]
    buffer: Option<u64>,
    /// Bytes in the queue at which marking begins [default: what the link carries in 0.4 ms]
    #[arg(long)]
    kmin: Option<u64>,
    /// Bytes in the queue above which every frame is marked [default: what the link carries in 8 ms]
    #[arg(long)]
    kmax: Option<u64>,
    /// Share of frames marked at Kmax, 0 to 1
    #[arg(long, default_value_t = 0.3)]
    pmax: f64,
    /// Congestion control of the senders: off, dcqcn, swift or fixed,rate=RATE, with optional knobs, as for `roxie run`
    /// [default: dcqcn with the constants of its paper, which are for 40 Gb/s, scaled to this network and printed]
    #[arg(long, value_name = "SPEC", value_parser = settings)]
    cc: Option<Settings>,
    /// Seed of the random marks in virtual time
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run in virtual time only, without programs; needs no privilege
    #[arg(long)]
    no_programs: bool,
    /// Port of the programs
    #[arg(long, value_enum, default_value_t = Kind::Udp)]
    port: Kind,
    /// Draw queue depth and rates as SVG to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object as the last line, and all other output to standard error
    #[arg(long)]
    json: bool,
}

fn settings(text: &str) -> Result<Settings, String> {
    text.parse().map_err(|error: roxie::congestion::SettingsError| error.to_string())
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let console = Console { json: arguments.json, failed: None.into() };
    let outcome = Interrupt::catch().and_then(|interrupt| play(arguments, &console, &interrupt));
    match outcome.and_then(|report| conclude(arguments, &report, &console)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain("demo congestion", &failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn play(arguments: &Arguments, console: &Console, interrupt: &Interrupt) -> Result<Report, Failure> {
    let scenario = Scenario::of(arguments)?;
    console.say(&scenario);
    let simulated = simulated::play(&scenario, interrupt)?;
    let real = match real::missing(arguments) {
        Some(why) => {
            console.say(format_args!("Real frames: skipped: {why}."));
            None
        }
        None => Some(real::play(&scenario, arguments.port, interrupt)?),
    };
    Ok(Report { scenario, simulated, real })
}

fn conclude(arguments: &Arguments, report: &Report, console: &Console) -> Result<(), Failure> {
    console.say(report);
    if let Some(path) = &arguments.svg {
        std::fs::write(path, chart::draw(report))
            .map_err(|source| Failure::Picture { path: path.clone(), source })?;
        console.say(format_args!("Drawn to {}.", path.display()));
    }
    if arguments.json {
        console.print(formats::versioned(formats::DEMO, report.summary()));
    }
    console.failed.take().map_or(Ok(()), |e| Err(Failure::Output(e)))
}
