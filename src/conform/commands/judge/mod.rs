//! `roxie judge`: what a capture says about the two ends.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use roxie::capture::{CaptureError, Direction, Reader, Record};
use roxie::time::Nanos;
use roxie::wire::{Icrc, Packet, Service};
use roxie_conform_bench::report::{junit, page};
use roxie_conform_bench::through::WireJudge;
use roxie_report::decoded::layers::{Found, find};
use roxie_report::decoded::{Decoded, Protocols, Verdict as IcrcVerdict};
use roxie_report::failure::Failure;
use roxie_report::{formats, output, source};

use super::write_reports;

mod report;

use report::{Judged, Judgement};

const EXAMPLES: &str = "\
Examples:
  tcpdump -i mlx5_0 -w card.pcap 'udp port 4791'; roxie judge card.pcap
  roxie judge requester.pcapng responder.pcapng --html judge.html
  roxie judge trace.pcap.gz --json

Exit codes: 0 no rule is broken, 1 one is, or the capture cannot be read to its end, 2 wrong usage";

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(500);
/// Largest capture of which ladders are drawn, in bytes: each breach takes another reading.
const LARGEST_DRAWN: u64 = 1 << 30;
/// Rules about time.
const TIMED: [&str; 2] = ["waits_after_rnr", "recovers"];

/// Judge the packets in a capture by the rules of the specification
#[derive(Debug, Args)]
#[command(
    long_about = "\
Judges the reliable connections in a capture, of any RoCE v2 devices, by the rules of the specification: PSNs, opcodes and \
lengths, NAKs, what is sent again, READ responses, atomics, message sequence numbers, waits; of UC and UD lengths and the order \
of opcodes, and the form of congestion notifications.\n\n\
One capture is enough, made at either end or between the ends; of two, each is judged. Packets that were lost behind the \
place of the capture make no rule stricter. What a capture cannot decide is said: packets that it lacks, a start in the middle \
of a connection, no times. Input is as that of `roxie decode`. Packets with a wrong ICRC are counted, and not judged: \
receivers drop them.\n\n\
A rule that is broken is shown with the address of the end that broke it, the numbers of the frames, and their ladder. A rule that \
is tested by nothing in the capture is left out (-v: listed).",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// The capture, or - for standard input; a second one of the other end
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the verdicts as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the verdicts as a page that needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The peers have agreed to selective repeat, as two Roxies may: what is missing is sent again alone
    #[arg(long)]
    selective_repeat: bool,
    /// List the rules that nothing in the capture tests
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match judge(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report("judge"),
    }
}

fn judge(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let captures = arguments
        .files
        .iter()
        .map(|file| judged(file, arguments.selective_repeat))
        .collect::<Result<Vec<_>, _>>()?;
    let judgement = Judgement { captures };
    let report = judgement.report();
    write_reports(&report, &[(&arguments.junit, junit), (&arguments.html, page)]).map_err(Failure::Run)?;
    if arguments.json {
        formats::print(formats::JUDGE, &judgement)?;
    } else {
        output::lines(&judgement.text(arguments.verbose))?;
    }
    Ok(if judgement.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    source::open(file).map_err(|error| Failure::Run(format!("{}: {error}", file.display())))
}

/// Judges a capture.
fn judged(file: &Path, is_selective: bool) -> Result<Judged, Failure> {
    let failed = |error: CaptureError| Failure::Run(format!("{}: {error}", file.display()));
    let mut reader = Reader::new(open(file)?).map_err(failed)?;
    let mut bench = Bench::new(is_selective);
    let broken = loop {
        match reader.next() {
            Ok(Some(record)) => bench.take(&record),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    output::progress("");
    let mut judged = bench.conclude(file.display().to_string(), broken);
    // A second reading takes a regular file, and no hours.
    if file.metadata().is_ok_and(|file| file.is_file() && file.len() <= LARGEST_DRAWN) {
        judged.draw(|| open(file))?;
    }
    Ok(judged)
}

/// A judge, and what of a capture it does not take.
struct Bench {
    judge: WireJudge,
    protocols: Protocols,
    frames: u64,
    /// RoCE packets of any service.
    packets: u64,
    /// Packets of other services, which are not judged.
    others: BTreeMap<&'static str, u64>,
    damaged: u64,
    unread: u64,
    now: Nanos,
    has_times: bool,
    shown: Instant,
}

impl Bench {
    fn new(is_selective: bool) -> Bench {
        Bench {
            judge: WireJudge::of_capture(is_selective),
            protocols: Protocols::default(),
            frames: 0,
            packets: 0,
            others: BTreeMap::new(),
            damaged: 0,
            unread: 0,
            now: Nanos::ZERO,
            has_times: true,
            shown: Instant::now(),
        }
    }

    fn take(&mut self, record: &Record<'_>) {
        self.frames = record.number;
        if self.frames.is_multiple_of(4096) && self.shown.elapsed() > PROGRESS {
            output::progress(format_args!("{} frames, {} packets", self.frames, self.packets));
            self.shown = Instant::now();
        }
        match record.timestamp_ns {
            Some(ns) => self.now = Nanos(ns),
            None => self.has_times = false,
        }
        match find(record) {
            Some(Found::Packet(inside)) => {
                let decoded = Decoded::new(record, &inside, &mut self.protocols);
                self.take_packet(&decoded);
            }
            Some(Found::Malformed(_)) => self.damaged += 1,
            Some(Found::Other) => {}
            Some(Found::Unread(_)) | None => self.unread += 1,
        }
    }

    fn take_packet(&mut self, decoded: &Decoded<'_>) {
        let number = decoded.record.number;
        let is_own = decoded.record.direction == Some(Direction::Out);
        let has_bad_icrc = matches!(decoded.icrc, IcrcVerdict::Checked(Icrc::Bad { .. }));
        // Sockets do not show the IPv4 identification, which the ICRC covers: Roxie's comment says what explains it.
        let comment = decoded.record.comment.unwrap_or_default();
        let is_dropped = comment.starts_with("dropped") || has_bad_icrc && !comment.contains("(ICRC good");
        let is_damaged = decoded.problem.is_some() || is_dropped;
        let Some(packet) = decoded.packet.as_ref().filter(|_| !is_damaged) else {
            self.packets += 1;
            self.damaged += 1;
            return;
        };
        if let Some(mad) = decoded.mad()
            && let Some(message) = mad.message()
        {
            let (from, to) = (packet.source_gid().to_ip(), packet.dest_gid().to_ip());
            self.judge.connected(from, to, message);
        }
        match &decoded.segments {
            Some(segments) => {
                let all = segments.packets(&decoded.envelope, &decoded.frame);
                all.iter().for_each(|packet| self.show(packet, number, is_own));
            }
            None => self.show(packet, number, is_own),
        }
    }

    fn show(&mut self, packet: &Packet, number: u64, is_own: bool) {
        self.packets += 1;
        self.judge.captured(packet, number, self.now, is_own);
        match packet.info().service {
            Service::Rc | Service::Xrc => {}
            other => *self.others.entry(other.name()).or_default() += 1,
        }
    }

    fn conclude(mut self, file: String, broken: Option<String>) -> Judged {
        let mut rulings = self.judge.rulings(self.now);
        if !self.has_times {
            rulings.retain(|ruling| !TIMED.contains(&ruling.rule));
        }
        let (of_connections, unjudged) = self.judge.packets();
        Judged {
            file,
            frames: self.frames,
            packets: self.packets,
            of_connections,
            unjudged,
            damaged: self.damaged,
            unread: self.unread,
            others: self.others,
            has_times: self.has_times,
            broken,
            rulings,
            ladders: BTreeMap::new(),
        }
    }
}
