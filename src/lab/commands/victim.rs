//! `roxie lab victim`: the effect of a pause on a bystander.

use clap::Args;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{EcnConfig, End, FabricConfig, LinkConfig, LinkRate};

use super::dcqcn::settings;
use super::document::{About, Bar, Bars, Block, Chart, Choice, Facts, Part, Run, Series, Table, axis};
use super::stage::cable;
use super::traffic::{DATA, Flow, Mode, Play, Played, play, station, switch};

pub(super) const ABOUT: About = About {
    name: "victim",
    line: "a flow that shares nothing with the congestion but a paused trunk",
    see: &[
        "Two switches and a trunk. Several senders on the left write to one receiver on the right, whose link is too \
         slow for them. A bystander on the left writes to another receiver on the right, whose link is idle.",
        "With PFC alone the right switch pauses the trunk. A pause does not distinguish flows: the bystander's frames \
         wait in the same queue, and the bystander gets as much as one of the senders.",
        "With DCQCN the senders slow down, the trunk is paused only at the start, and the bystander gets its full rate \
         again. In another priority it is never affected.",
    ],
    change: &[
        "`--senders 8`: the bystander gets an eighth instead of a fourth.",
        "`--trunk 40`: now the trunk itself is a bottleneck, and the bystander is one of its causes.",
        "`--ms 5`: too short for rates to settle: with DCQCN, too, there are pauses at the start.",
    ],
};

/// Pause a trunk, and see which other flow suffers
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab victim\n  roxie lab victim --senders 8\n  roxie lab victim --html victim.html"
)]
pub(super) struct Arguments {
    /// Number of senders to the congested receiver, 2 to 32
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=32))]
    senders: u8,
    /// Rate of the hosts' links in Gb/s, 1 to 400
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,
    /// Rate of the trunk in Gb/s
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=800))]
    trunk: u64,
    /// Virtual time in milliseconds, 2 to 100
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=100))]
    ms: u64,
    /// Set a knob of DCQCN; repeatable
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    sets: Vec<String>,
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let time = Nanos::from_millis(arguments.ms);
    // Reference: the bystander without other flows.
    let alone = stage(arguments, Mode::Pfc, DATA as u8, 0, time)?.goodput(0, Nanos(time.0 / 2));
    let mut runs = Vec::new();
    for priority in [DATA as u8, 0] {
        for mode in [Mode::Pfc, Mode::Both, Mode::Nothing] {
            runs.push(one(arguments, mode, priority, alone)?);
        }
    }
    let number = |run: &Run, name: &str| run.facts.number(name).unwrap_or(0.0);
    let bars = runs.iter().map(|run| Bar {
        name: format!("{}, {}", run.choice[0].value, run.choice[1].value),
        parts: vec![Part::new("bystander", number(run, "victim_gbps"))],
    });
    let bars = Bars {
        title: format!("Throughput of the bystander (alone: {alone})"),
        unit: "Gb/s",
        bars: bars.collect(),
    };
    let facts = [
        ("bystander Gb/s", "victim_gbps"),
        ("of alone", "victim_share"),
        ("senders Gb/s", "senders_gbps"),
        ("trunk paused us", "trunk_paused_us"),
        ("drops", "dropped"),
    ];
    let table =
        Table::of_runs("Side by side, second half", &["held back by", "bystander's priority"], &facts, &runs);
    Ok((runs, vec![Block::Bars(bars), Block::Table(table)]))
}

/// Flow 0 is the bystander. Left: the senders, then the bystander; right: the receiver, then the bystander's receiver.
fn stage(
    arguments: &Arguments,
    mode: Mode,
    priority: u8,
    senders: usize,
    time: Nanos,
) -> Result<Played, Failure> {
    let link = LinkConfig::new(LinkRate::from_gbps(arguments.rate), cable(20));
    let trunk = LinkConfig::new(LinkRate::from_gbps(arguments.trunk), cable(100));
    let ecn = EcnConfig { kmin: 5_000, kmax: 200_000, pmax: 0.01 };
    let left = senders + 1;
    let mut config = FabricConfig::star(vec![], switch(&[link], mode, ecn, 4_000_000)?);
    config.stations = (0..left + 2).map(|n| station(n, link)).collect();
    let ports = |hosts: usize| [vec![link; hosts], vec![trunk]].concat();
    config.switches =
        vec![switch(&ports(left), mode, ecn, 4_000_000)?, switch(&ports(2), mode, ecn, 4_000_000)?];
    let at = |switch: usize, port: usize| End::Switch { switch, port: port as u16 };
    config.links = vec![[at(0, left), at(1, 2)]];
    config.links.extend((0..left).map(|n| [End::Station(n), at(0, n)]));
    config.links.extend((0..2).map(|n| [End::Station(left + n), at(1, n)]));
    let flow = |from, to, priority| Flow { from, to, message: 65_536, messages: None, depth: 16, priority };
    let mut flows = vec![flow(senders, left + 1, priority)];
    flows.extend((0..senders).map(|n| flow(n, left, DATA as u8)));
    play(Play {
        config,
        flows,
        mode,
        settings: settings("paper", &arguments.sets)?,
        time,
        samples: 250,
        pauses: vec![(1, 2)],
    })
}

fn one(arguments: &Arguments, mode: Mode, priority: u8, alone: f64) -> Result<Run, Failure> {
    let senders = usize::from(arguments.senders);
    let time = Nanos::from_millis(arguments.ms);
    let half = Nanos(time.0 / 2);
    let played = stage(arguments, mode, priority, senders, time)?;
    let [trunk_first, trunk_settled] = played.paused_around(half);
    let victim = played.goodput(0, half);
    let mut facts = Facts::default();
    facts.tell("alone_gbps", alone, "Gb/s", "that the bystander gets without other traffic");
    facts.tell("victim_gbps", victim, "Gb/s", "that it gets here, second half");
    facts.tell("victim_share", victim / alone, "", "of what it gets alone");
    facts.tell(
        "senders_gbps",
        (1..=senders).map(|n| played.goodput(n, half)).sum::<f64>(),
        "Gb/s",
        "that all senders together send to their receiver",
    );
    facts.tell("trunk_paused_first_us", trunk_first, "us", "that the trunk was paused, first half");
    facts.tell("trunk_paused_us", trunk_settled, "us", "the same, second half");
    facts.tell(
        "hosts_paused_us",
        played.paused_us(&[0]),
        "us",
        "that the left switch paused its hosts, all together",
    );
    facts.tell("dropped", played.dropped(), "frames", "lost");
    facts.tell("sent_again", played.retransmitted, "packets", "retransmitted because of that");
    let names: Vec<String> =
        std::iter::once("bystander".to_owned()).chain((1..=senders).map(|n| format!("sender {n}"))).collect();
    let chart = |title: &str, y, series: Vec<Series>| {
        Block::Chart(Chart { title: title.into(), x: axis("time", "us"), y, series, levels: vec![] })
    };
    let blocks = vec![
        chart("What each sends", axis("rate", "Gb/s"), played.rates(&names)),
        chart(
            "The queue in front of the congested receiver",
            axis("bytes", "bytes"),
            vec![played.depth((1, 0))],
        ),
        chart(
            "The queue in front of the trunk",
            axis("bytes", "bytes"),
            vec![played.depth((0, senders + 1))],
        ),
    ];
    let same = if usize::from(priority) == DATA { "the same" } else { "another" };
    let choice = vec![Choice::new("held back by", mode.name()), Choice::new("bystander's priority", same)];
    Ok(Run { choice, facts, blocks })
}
