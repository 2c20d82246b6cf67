//! `roxie lab incast`: many senders answer one receiver at once.

use clap::Args;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{EcnConfig, FabricConfig, LinkConfig, LinkRate};

use super::dcqcn::settings;
use super::document::{About, Block, Chart, Choice, Facts, Run, Series, Table, axis, round};
use super::stage::{cable, micros};
use super::traffic::{DATA, Flow, Mode, Play, play, station, switch};

pub(super) const ABOUT: About = About {
    name: "incast",
    line: "many senders, one receiver, all at the same moment",
    see: &[
        "Each sender has one message for the same receiver, and all start together, like responses to one request. \
         When is each message complete, and how long does the last one take?",
        "On a lossy network, frames that do not fit are lost, and go-back-N retransmits all later ones; a loss at the \
         end waits for a timer. With pauses nothing is lost: the last message is complete when the link has carried \
         everything.",
        "Rate control is too late for a burst that is over before the first CNP takes effect.",
    ],
    change: &[
        "`--kb 16`: everything fits the buffer, and needs no control.",
        "`--senders 48`: the buffer per sender shrinks, and losses multiply.",
        "`--buffer 8000`: a deep buffer instead of pauses. It costs memory and delay.",
        "`--kb 1024`: long enough for rates to matter.",
    ],
};

/// Have many senders answer one receiver at once
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab incast\n  roxie lab incast --senders 32 --kb 64\n  roxie lab incast --html incast.html"
)]
pub(super) struct Arguments {
    /// Number of senders, 2 to 64
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(2..=64))]
    senders: u8,
    /// Size of each message in kilobytes (1024), 1 to 4096
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    kb: u32,
    /// Rate of every link in Gb/s, 1 to 400
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,
    /// Buffer of the switch in kilobytes
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    buffer: u64,
    /// Set a knob of DCQCN; repeatable
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    sets: Vec<String>,
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let modes = [Mode::Nothing, Mode::Pfc, Mode::Dcqcn, Mode::Both];
    let runs = modes.iter().map(|mode| one(arguments, *mode)).collect::<Result<Vec<_>, _>>()?;
    let facts = [
        ("first us", "first_us"),
        ("median", "median_us"),
        ("last", "last_us"),
        ("last / ideal", "slowdown"),
        ("drops", "dropped"),
        ("again", "sent_again"),
        ("paused us", "paused_us"),
    ];
    let table = Table::of_runs("When the messages are complete", &["held back by"], &facts, &runs);
    Ok((runs, vec![Block::Table(table)]))
}

fn one(arguments: &Arguments, mode: Mode) -> Result<Run, Failure> {
    let senders = usize::from(arguments.senders);
    let link = LinkConfig::new(LinkRate::from_gbps(arguments.rate), cable(20));
    let ecn = EcnConfig { kmin: 5_000, kmax: 200_000, pmax: 0.01 };
    let message = arguments.kb * 1024;
    let flow = |from| Flow { from, to: senders, message, messages: Some(1), depth: 1, priority: DATA as u8 };
    let played = play(Play {
        config: FabricConfig::star(
            (0..=senders).map(|n| station(n, link)).collect(),
            switch(&vec![link; senders + 1], mode, ecn, arguments.buffer * 1000)?,
        ),
        flows: (0..senders).map(flow).collect(),
        mode,
        settings: settings("paper", &arguments.sets)?,
        time: Nanos::from_millis(4_000),
        // Sample every 20 us.
        samples: 200_000,
        pauses: vec![],
    })?;
    let mut ends: Vec<f64> = played.finished.iter().flatten().map(|at| micros(*at)).collect();
    ends.sort_by(f64::total_cmp);
    if ends.len() < senders {
        return Err(Failure::Run(format!("{} of {senders} messages were complete after 4 s", ends.len())));
    }
    // Bytes of headers per packet, Ethernet's own included.
    let packets = u64::from(message).div_ceil(4096);
    let headers = 14 + 20 + 8 + 12 + 4 + u64::from(link.overhead);
    let ideal = micros(link.rate.nanos_for(senders as u64 * (u64::from(message) + packets * headers + 16)));
    let queue = played.fabric.switch(0).queue(senders, DATA);
    let mut facts = Facts::default();
    facts.tell("ideal_us", ideal, "us", "that the receiver's link needs for all of it");
    facts.tell("first_us", ends[0], "us", "until the first message was complete");
    facts.tell("median_us", ends[senders / 2], "us", "until half of them were");
    facts.tell("last_us", ends[senders - 1], "us", "until all were");
    facts.tell("slowdown", ends[senders - 1] / ideal, "", "the last, relative to the ideal time");
    facts.tell("queue_peak", queue.depth.peak(), "bytes", "in the queue in front of the receiver at most");
    facts.tell("dropped", played.dropped(), "frames", "lost");
    facts.tell("sent_again", played.retransmitted, "packets", "retransmitted because of that");
    facts.tell("paused_us", played.paused_us(&[0]), "us", "that senders were paused, all together");
    facts.tell("notifications", played.notified, "", "congestion notifications sent by the receiver");
    let complete = ends.iter().enumerate().map(|(n, at)| (*at, (n + 1) as f64));
    let done = Chart {
        title: "Messages complete".into(),
        x: axis("time", "us"),
        y: axis("messages", "messages"),
        series: vec![Series::new(
            "complete",
            super::pfc::steps(&std::iter::once((0.0, 0.0)).chain(complete).collect::<Vec<_>>()),
        )],
        levels: vec![],
    };
    let until = ends[senders - 1];
    let mut depth = played.depth((0, senders));
    depth.points.retain(|[at, _]| *at <= round(until));
    let queue = Chart {
        title: "The queue in front of the receiver".into(),
        x: axis("time", "us"),
        y: axis("bytes", "bytes"),
        series: vec![depth],
        levels: vec![],
    };
    Ok(Run {
        choice: vec![Choice::new("held back by", mode.name())],
        facts,
        blocks: vec![Block::Chart(done), Block::Chart(queue)],
    })
}
