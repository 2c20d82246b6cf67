//! `roxie lab doorbell`: a work request's way from posting to the peer's completion.

use clap::{Args, ValueEnum};
use roxie::time::Nanos;
use roxie::verbs::{RKey, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::Payload;
use roxie_sim::fabric::{LinkConfig, LinkRate};

use super::document::{About, Bar, Bars, Block, Choice, Facts, Part, Run, Span, Timeline};
use super::stage::{Scene, Stage, block, cable, micros};

pub(super) const ABOUT: About = About {
    name: "doorbell",
    line: "a work request, from post_send to the peer's completion",
    see: &[
        "The stages of one work request: the doorbell, the pass of the engine that fetches it, the line, the switch, \
         the peer's pass, the acknowledgement, the completion; with the virtual time of each.",
        "The parts of the time due to the engine's passes (500 ns each in virtual time), the cables, and the length.",
    ],
    change: &[
        "`--bytes 65536`: 16 packets follow one another, and take most of the time on the line.",
        "`--metres 10000`: the cable takes nearly all of the time. `--rate 1`: the bytes do.",
        "`--operation read`: the bytes come in the other direction, without an acknowledgement.",
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Send,
    Write,
    Read,
}

/// Follow a work request through the stages of the engine, with virtual times
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab doorbell\n  roxie lab doorbell --operation read --bytes 4096\n  roxie lab doorbell --metres 10000 --rate 10"
)]
pub(super) struct Arguments {
    /// Operation to post
    #[arg(long, value_enum, default_value = "send")]
    operation: Operation,
    /// Message size in bytes, 1 to 65536
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Rate of both links in Gb/s, 1 to 800
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=800))]
    rate: u64,
    /// Length of each cable in metres, 0 to 100000; 5 ns a metre
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    metres: u64,
}

/// When the work request is posted. The first passes of an idle NIC have nothing to do.
const POSTED: Nanos = Nanos::from_micros(10);

/// Returns the time since posting in us.
fn since(time: Nanos) -> f64 {
    micros(Nanos(time.since(POSTED).0))
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut operations = vec![arguments.operation];
    operations.extend(Operation::value_variants().iter().filter(|other| **other != arguments.operation));
    let runs =
        operations.iter().map(|operation| play(arguments, *operation)).collect::<Result<Vec<_>, _>>()?;
    let bar = |run: &Run| Bar {
        name: run.choice[0].value.clone(),
        parts: [("to the peer's memory", "one_way_us"), ("back to the completion", "back_us")]
            .map(|(name, fact)| Part::new(name, run.facts.number(fact).unwrap_or(0.0)))
            .into(),
    };
    let bars =
        Bars { title: "From posting to completion".into(), unit: "us", bars: runs.iter().map(bar).collect() };
    Ok((runs, vec![Block::Bars(bars)]))
}

/// Observable events, as counters that never decrease. Arrays are indexed by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    begun: [u64; 2],
    at_switch: [u64; 2],
    left_switch: [u64; 2],
    delivered: [u64; 2],
}

impl Seen {
    fn of(stage: &Stage) -> Seen {
        let fabric = &stage.fabric;
        let (switch, station) = (fabric.switch(0), |n| fabric.station(n));
        let sent = |port| (0..8).map(|priority| switch.queue(port, priority).sent).sum();
        Seen {
            begun: [0, 1].map(|n| station(n).sent),
            at_switch: [0, 1].map(|n| switch.ingress(n).frames),
            // Frames sent by port 1 came from station 0.
            left_switch: [1, 0].map(sent),
            delivered: [1, 0].map(|n| station(n).delivered),
        }
    }
}

/// First and last time of each event, by direction.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: [Option<(Nanos, Nanos)>; 2],
    at_switch: [Option<(Nanos, Nanos)>; 2],
    left_switch: [Option<(Nanos, Nanos)>; 2],
    delivered: [Option<(Nanos, Nanos)>; 2],
}

impl Times {
    fn note(&mut self, now: Nanos, before: &Seen, after: &Seen) {
        for way in 0..2 {
            let pairs = [
                (&mut self.begun, before.begun, after.begun),
                (&mut self.at_switch, before.at_switch, after.at_switch),
                (&mut self.left_switch, before.left_switch, after.left_switch),
                (&mut self.delivered, before.delivered, after.delivered),
            ];
            for (times, was, is) in pairs {
                if is[way] > was[way] {
                    times[way] = Some((times[way].map_or(now, |(first, _)| first), now));
                }
            }
        }
    }
}

fn play(arguments: &Arguments, operation: Operation) -> Result<Run, Failure> {
    let rate = LinkRate::from_gbps(arguments.rate);
    let scene = Scene { rate, metres: arguments.metres, timeout: 18, ..Scene::default() };
    let mut stage = Stage::new(&scene)?;
    let opcode = match operation {
        Operation::Send => WrOpcode::Send,
        Operation::Write => WrOpcode::Write,
        Operation::Read => WrOpcode::Read,
    };
    let [near, far] = [0, 1].map(|n| stage.regions[n].sge(0, arguments.bytes));
    if operation == Operation::Send {
        let Stage { fabric, qps, .. } = &mut stage;
        fabric.host(1).post_recv(&qps[1], 7, &[far])?;
    }
    stage.run(POSTED);
    let wr = SendWr {
        opcode,
        remote_addr: stage.regions[1].address,
        rkey: RKey(stage.regions[1].key),
        ..SendWr::default()
    };
    stage.post(&wr, Payload::Sges(&[near]))?;
    let course = Course::of(&mut stage, operation)?;
    let name = format!("{operation:?}").to_lowercase();
    let spans = spans(&course, &stage, &name);
    let link = LinkConfig::new(rate, cable(arguments.metres));
    let facts = facts(&course, &stage, link, arguments.metres);
    stage.run(course.done + Nanos::from_micros(10));
    let (ladder, _) = stage.end()?;
    let timeline = Timeline { title: format!("A {name} of {} bytes", arguments.bytes), unit: "us", spans };
    let blocks = vec![Block::Timeline(timeline), block("The captures of both ends", ladder)];
    Ok(Run { choice: vec![Choice::new("operation", name)], facts, blocks })
}

/// Course of a work request, up to its completion.
struct Course {
    times: Times,
    seen: Seen,
    /// Time of the peer's completion, which a SEND has.
    received: Option<Nanos>,
    done: Nanos,
}

impl Course {
    /// Runs until the requester has its completion.
    fn of(stage: &mut Stage, operation: Operation) -> Result<Course, Failure> {
        let (mut times, mut seen) = (Times::default(), Seen::of(stage));
        let mut received = None;
        let limit = POSTED + Nanos::from_millis(1_000);
        loop {
            if stage.fabric.step(limit).is_none() {
                return Err(Failure::Run("no completion in a second of virtual time".into()));
            }
            let now = stage.fabric.now();
            let after = Seen::of(stage);
            times.note(now, &seen, &after);
            seen = after;
            if operation == Operation::Send && received.is_none() {
                received = stage.fabric.hosts()[1].poll_cq(&stage.qps[1]).map(|_| now);
            }
            if let Some(wc) = stage.fabric.hosts()[0].poll_cq(&stage.qps[0]) {
                if wc.status != WcStatus::Success {
                    return Err(Failure::Run(format!("the work request ended with {}", wc.status)));
                }
                return Ok(Course { times, seen, received, done: now });
            }
        }
    }
}

fn facts(course: &Course, stage: &Stage, link: LinkConfig, metres: u64) -> Facts {
    let Course { times, seen, received, done } = course;
    let there = times.delivered[0].map_or(0.0, |(_, last)| since(last));
    let back_first = times.begun[1].map_or(0.0, |(first, _)| since(first));
    let executed = received.map_or(back_first, since);
    let mut facts = Facts::default();
    facts.tell("completed_us", since(*done), "us", "from posting to the completion");
    facts.tell("one_way_us", executed, "us", "from posting until the peer has executed it");
    facts.tell(
        "back_us",
        super::document::round(since(*done) - executed),
        "us",
        "from there until the requester's completion",
    );
    facts.tell(
        "fetched_us",
        times.begun[0].map_or(0.0, |(first, _)| since(first)),
        "us",
        "until the first bit is on the line",
    );
    facts.tell("arrived_us", there, "us", "until the last bit of the request is at the peer");
    facts.tell("cable_us", 4.0 * micros(cable(metres)), "us", "of it in cables: two in each direction");
    facts.tell("packets_there", seen.delivered[0], "packets", "to the peer");
    facts.tell("packets_back", seen.delivered[1], "packets", "back");
    let wire = |way: usize| stage.fabric.station(way).sent_bytes + u64::from(link.overhead) * seen.begun[way];
    facts.tell("wire_bytes", wire(0) + wire(1), "bytes", "on one of the links, in both directions");
    facts.tell(
        "line_us",
        super::document::round(2.0 * micros(link.rate.nanos_for(wire(0) + wire(1)))),
        "us",
        "that these bytes keep both links' lines busy",
    );
    facts
}

fn spans(course: &Course, stage: &Stage, name: &str) -> Vec<Span> {
    let Course { times, done, .. } = course;
    let mut spans = Vec::new();
    let mut add = |at: &'static str, from: Option<Nanos>, to: Option<Nanos>, what: String| {
        if let (Some(from), Some(to)) = (from, to) {
            let (from, to) = (super::document::round(since(from)), super::document::round(since(to)));
            spans.push(Span { at, what, from, to: to.max(from) });
        }
    };
    let first = |span: Option<(Nanos, Nanos)>| span.map(|(first, _)| first);
    let last = |span: Option<(Nanos, Nanos)>| span.map(|(_, last)| last);
    let posted = first(times.begun[0]).map(|_| POSTED);
    let packets = |way: usize| match stage.fabric.station(1 - way).delivered {
        1 => "the packet".to_owned(),
        n => format!("{n} packets"),
    };
    add(
        "requester",
        posted,
        first(times.begun[0]),
        format!("the doorbell rings; a pass fetches the {name}, plans and seals"),
    );
    add(
        "link",
        first(times.begun[0]),
        last(times.at_switch[0]),
        format!("{} to the switch, last bit included", packets(0)),
    );
    add("switch", first(times.at_switch[0]), last(times.left_switch[0]), "stored, then forwarded".into());
    add(
        "link",
        first(times.left_switch[0]),
        last(times.delivered[0]),
        format!("{} to the responder", packets(0)),
    );
    add(
        "responder",
        first(times.delivered[0]),
        first(times.begun[1]),
        "a pass parses, checks the ICRC, moves bytes, answers".into(),
    );
    add(
        "link",
        first(times.begun[1]),
        last(times.at_switch[1]),
        format!("{} back to the switch", packets(1)),
    );
    add("switch", first(times.at_switch[1]), last(times.left_switch[1]), "stored, then forwarded".into());
    add(
        "link",
        first(times.left_switch[1]),
        last(times.delivered[1]),
        format!("{} back to the requester", packets(1)),
    );
    add("requester", last(times.delivered[1]), Some(*done), "a pass completes the work request".into());
    spans
}
