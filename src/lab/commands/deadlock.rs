//! `roxie lab deadlock`: a ring of switches in which each waits for the next.

use clap::Args;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{
    Fabric, FabricConfig, Hop, LinkConfig, LinkRate, PfcConfig, PortConfig, Routing, Shape, StationConfig,
    SwitchConfig, Threshold, WatchdogConfig,
};

use super::document::{About, Block, Chart, Choice, Facts, Run, Series, Step, Steps, Table, axis, round};
use super::frames::{frame, refused, station};
use super::stage::{cable, micros};

pub(super) const ABOUT: About = About {
    name: "deadlock",
    line: "a ring of lossless switches, each waiting for the next for ever",
    see: &[
        "Switches in a ring, a host at each. Every host sends to the host two switches on, so that each trunk carries \
         its own host's frames and its neighbour's. No frame may be lost, so a full switch pauses the previous one.",
        "Step by step: one trunk stops, then the next. When all have stopped, each buffer is full of frames that wait \
         for the next buffer, and no frame ever moves again, even if all hosts stop sending.",
        "Two remedies: a watchdog that drops frames that were paused for too long, and up-down routes, which have no \
         cycle.",
    ],
    change: &[
        "`--switches 3`: the host two switches on is the neighbour in the other direction, so there is no cycle.",
        "`--load 40`: trunks that are never full never pause.",
        "`--detect 50`: a watchdog with a short limit. See which frames it drops.",
        "`--xoff 400000`: deep buffers only delay the deadlock.",
    ],
};

/// Fill a ring of lossless switches until each waits for the next
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab deadlock\n  roxie lab deadlock --switches 8\n  roxie lab deadlock --html deadlock.html"
)]
pub(super) struct Arguments {
    /// Number of switches in the ring, 3 to 12
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(3..=12))]
    switches: u16,
    /// Rate of every link in Gb/s, 1 to 400
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,
    /// Load of each host, in percent of its link
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
    load: u64,
    /// Bytes that a port may occupy in a switch before its neighbour is told to pause
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(10_000..=10_000_000))]
    xoff: u64,
    /// Time in us after which the watchdog regards a paused queue as stuck; real switches have some 200,000
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    detect: u64,
    /// Time in us for which hosts send; the run continues for as long again
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=10_000))]
    us: u64,
}

const LENGTH: usize = 1500;
const PRIORITY: usize = 3;
/// Number of moments that are sampled.
const LOOKS: u64 = 1_000;
/// Time between the starts of two hosts.
const STAGGER: Nanos = Nanos::from_micros(12);
/// Most steps that are shown.
const MOST_STEPS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cure {
    None,
    Watchdog,
    UpDown,
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let cures =
        [(Cure::None, "nothing"), (Cure::Watchdog, "a watchdog"), (Cure::UpDown, "ways up, then down")];
    let runs =
        cures.iter().map(|(cure, name)| play(arguments, *cure, name)).collect::<Result<Vec<_>, _>>()?;
    let facts = [
        ("links of the cycle", "cycle_links"),
        ("all silent after us", "silent_at_us"),
        ("frames delivered", "delivered"),
        ("left behind", "left_behind"),
        ("thrown away", "thrown_away"),
    ];
    let table = Table::of_runs("Side by side", &["what is done"], &facts, &runs);
    Ok((runs, vec![Block::Table(table)]))
}

/// Returns the ring, and the hops of those trunks that lead to the next switch.
fn ring(arguments: &Arguments, cure: Cure) -> Result<(FabricConfig, Vec<Hop>), Failure> {
    let count = usize::from(arguments.switches);
    let link = LinkConfig::new(LinkRate::from_gbps(arguments.rate), cable(10));
    let shape = Shape::ring(count, 1, link, link);
    let watchdog = (cure == Cure::Watchdog).then(|| WatchdogConfig {
        detect: Nanos::from_micros(arguments.detect),
        restore: Nanos::from_micros(arguments.detect),
    });
    let switch = SwitchConfig {
        lossless: Threshold::Static(arguments.xoff),
        longest_frame: LENGTH as u32,
        buffer: 1 << 30,
        pfc: Some(PfcConfig { watchdog, ..PfcConfig::new(&[PRIORITY as u8]).map_err(|e| refused(&e))? }),
        ..SwitchConfig::new(vec![PortConfig::new(link)])
    };
    let routing = if cure == Cure::UpDown { Routing::UpDown } else { Routing::ShortestPath };
    let config = shape.fabric(routing, &switch, &PortConfig::new(link), |n, link| StationConfig {
        slots: 64,
        ..station(n, link, None)
    });
    let onward = |switch: usize| {
        let next = (switch + 1) % count;
        let to_next = |port: &u16| matches!(shape.peer(switch, *port), Some(roxie_sim::fabric::End::Switch { switch, .. }) if switch == next);
        let port = (0..shape.switches[switch].ports).find(to_next).unwrap_or(0);
        Hop { switch, port }
    };
    Ok((config, (0..count).map(onward).collect()))
}

fn play(arguments: &Arguments, cure: Cure, name: &'static str) -> Result<Run, Failure> {
    let (config, trunks) = ring(arguments, cure)?;
    let count = trunks.len();
    let cycle = config.cycle().map_err(|e| refused(&e))?.map_or(0, |hops| hops.len());
    let link = config.stations[0].link;
    let mut fabric = Fabric::new(config).map_err(|e| refused(&e))?;
    let mut watch = Watch {
        trunks: &trunks,
        told: None,
        steps: Vec::new(),
        silent: None,
        points: Vec::new(),
        waits: Vec::new(),
    };
    let offered = run_hosts(arguments, link, &mut fabric, &mut watch);
    let mut facts = Facts::default();
    facts.tell("cycle_links", cycle, "", "links of a cycle that the routes allow; 0: there is none");
    facts.tell(
        "silent_at_us",
        watch.silent.map_or(0.0, micros),
        "us",
        "when all trunks of the ring had stopped; 0: never",
    );
    facts.tell("offered", offered, "frames", "hosts sent");
    tell_of_fabric(&mut facts, &fabric, count);
    Ok(Run { choice: vec![Choice::new("what is done", name)], facts, blocks: watch.blocks(count) })
}

/// Lets all hosts send for half of the run. Returns the number of frames that they sent.
fn run_hosts(arguments: &Arguments, link: LinkConfig, fabric: &mut Fabric, watch: &mut Watch<'_>) -> u64 {
    let count = watch.trunks.len();
    let sending = Nanos::from_micros(arguments.us);
    let end = Nanos(2 * sending.0);
    // Each host sends a frame per turn, at its share of the line rate.
    let gap = link.rate.nanos_for(link.wire_bytes(LENGTH) * 100 / arguments.load).0;
    let look = Nanos((end.0 / LOOKS).max(1));
    let frames: Vec<Vec<u8>> =
        (0..count).map(|n| frame(n, (n + 2) % count, LENGTH, PRIORITY as u8)).collect();
    let (mut next, mut offered) = (0, 0u64);
    while fabric.now() < end {
        let until = (fabric.now() + look).min(end);
        while next <= until.0 && next < sending.0 {
            fabric.run(Nanos(next));
            // Hosts start one after the other.
            let begun = frames.iter().enumerate().filter(|(n, _)| next >= *n as u64 * STAGGER.0);
            for (n, frame) in begun {
                offered += u64::from(fabric.send(Nanos(next), n, frame));
            }
            next += gap;
        }
        fabric.run(until);
        watch.look(fabric, count);
    }
    offered
}

/// Adds the fate of all frames.
fn tell_of_fabric(facts: &mut Facts, fabric: &Fabric, count: usize) {
    let delivered: u64 = (0..count).map(|n| fabric.station(n).delivered).sum();
    let queues = |of: &dyn Fn(&roxie_sim::fabric::QueueStats) -> u64| {
        let ports = |switch: usize| 0..fabric.switch(switch).config().ports.len();
        (0..count)
            .flat_map(|switch| ports(switch).map(move |port| (switch, port)))
            .map(|(switch, port)| of(&fabric.switch(switch).queue(port, PRIORITY)))
            .sum::<u64>()
    };
    let thrown = queues(&|queue| queue.flushed + queue.drops.all());
    facts.tell("delivered", delivered, "frames", "arrived");
    facts.tell(
        "left_behind",
        queues(&roxie_sim::fabric::QueueStats::queued),
        "frames",
        "still in switches long after hosts had finished",
    );
    facts.tell("thrown_away", thrown, "frames", "of a lossless priority");
    facts.tell("bites", queues(&|queue| queue.storms), "", "times that the watchdog found a queue stuck");
}

/// Samples the trunks of the ring.
struct Watch<'a> {
    trunks: &'a [Hop],
    /// Number of silent trunks at the last recorded step.
    told: Option<usize>,
    steps: Vec<Step>,
    silent: Option<Nanos>,
    /// Time in us, and frames received so far.
    points: Vec<(f64, f64)>,
    waits: Vec<(f64, f64)>,
}

impl Watch<'_> {
    fn look(&mut self, fabric: &mut Fabric, hosts: usize) {
        let now = fabric.now();
        // Delivered frames are counted by the station; their bytes are not needed.
        for n in 0..hosts {
            while let Some((_, bytes)) = fabric.take(n) {
                fabric.recycle(bytes);
            }
        }
        let delivered: u64 = (0..hosts).map(|n| fabric.station(n).delivered).sum();
        self.points.push((micros(now), delivered as f64));
        let waits: u64 = (0..hosts).map(|switch| fabric.switch(switch).used().0).sum();
        self.waits.push((micros(now), waits as f64));
        let stuck =
            |hop: &Hop| fabric.switch(hop.switch).stuck_since(now, hop.port.into(), PRIORITY).is_some();
        let silent: Vec<bool> = self.trunks.iter().map(stuck).collect();
        let all = silent.iter().all(|silent| *silent);
        if all {
            self.silent.get_or_insert(now);
        }
        let count = silent.iter().filter(|silent| **silent).count();
        // Record each new maximum of silent trunks, and the end of a deadlock.
        let was = self.told;
        let again = was == Some(silent.len()) && count == 0;
        if again || was.is_none_or(|most| count > most) {
            self.told = Some(count);
        } else {
            return;
        }
        if self.steps.len() >= MOST_STEPS {
            return;
        }
        let says = match (count, all) {
            (0, _) if again => "All trunks move again: the stuck frames were dropped.".to_owned(),
            (0, _) => "All trunks move.".to_owned(),
            (_, true) => {
                "All trunks are silent, and each waits for the next: a deadlock, unless frames are dropped."
                    .to_owned()
            }
            (1, _) => "One trunk is silent: the switch behind it is full.".to_owned(),
            (n, _) => format!("{n} of {} trunks are silent.", silent.len()),
        };
        let state = |(hop, stuck): (&Hop, &bool)| {
            let waits = round(fabric.switch(hop.switch).depth(hop.port.into()) as f64 / 1e3);
            let word = if *stuck { "paused" } else { "moves" };
            (format!("{word}, {waits} KB wait"), if all { 2 } else { u8::from(*stuck) })
        };
        let states = self.trunks.iter().zip(&silent).map(state).collect();
        self.steps.push(Step { at: format!("{} us", round(micros(now))), says, states });
    }
    /// Returns the steps, and charts of throughput and of occupied buffers.
    fn blocks(self, count: usize) -> Vec<Block> {
        let places = (0..count).map(|n| format!("{n} to {}", (n + 1) % count)).collect();
        let steps = Steps { title: "The trunks of the ring".into(), places, steps: self.steps };
        // Average over ten samples each.
        let points: Vec<(f64, f64)> = self.points.into_iter().step_by(10).collect();
        let rates = points.windows(2).map(|pair| {
            let ((a, was), (b, is)) = (pair[0], pair[1]);
            (b, (is - was) * LENGTH as f64 * 8.0 / (b - a) / 1e3)
        });
        let rates = Chart {
            title: "Throughput of all hosts".into(),
            x: axis("time", "us"),
            y: axis("rate", "Gb/s"),
            series: vec![Series::new("received", rates)],
            levels: vec![],
        };
        let waiting = Chart {
            title: "Bytes that wait in all switches".into(),
            x: axis("time", "us"),
            y: axis("bytes", "bytes"),
            series: vec![Series::new("waits", self.waits.into_iter().step_by(5))],
            levels: vec![],
        };
        vec![Block::Steps(steps), Block::Chart(rates), Block::Chart(waiting)]
    }
}
