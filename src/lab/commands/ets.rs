//! `roxie lab ets`: a priority plan for one port, as a switch applies it and as DCBX announces it.

use clap::{Args, ValueEnum};
use roxie::time::Nanos;
use roxie::wire::MacControl;
use roxie_lab_theory::dcbx::{CLASSES, Plan, Selection, Selector, applications};
use roxie_report::failure::Failure;
use roxie_sim::Host;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PfcConfig, PortConfig, Schedule, SwitchConfig, Threshold,
};
use serde_json::Value;

use super::document::{
    About, Block, ByteField, Bytes, Chart, Choice, Facts, Run, Series, Table, axis, hex, round,
};
use super::frames::{frame, refused, station};
use super::stage::{cable, micros};

pub(super) const ABOUT: About = About {
    name: "ets",
    line: "a plan for priorities: shares, a lossless set, pauses, and DCBX in bytes",
    see: &[
        "A port with a sender for each priority, with more traffic than the link carries. Strict priorities are served \
         first; the others share the rest according to the plan.",
        "In the second third of the run the receiver pauses a priority. The others continue, and share its bandwidth. \
         A PAUSE frame of IEEE 802.3x stops all priorities.",
        "The plan as TLVs for the neighbouring port (LLDP, IEEE 802.1Q annex D), byte by byte.",
    ],
    change: &[
        "`--share 0=20,3=80`: the lossless priority gets four fifths while both are busy.",
        "`--share 0=34,3=33,4=33 --lossless 3,4`: three that share.",
        "`--pause global`: all priorities stop, although only one was congested.",
        "`--strict-load 60`: strict priorities are not in the plan, and take what they need.",
    ],
};

/// Pause frames that the receiver sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pause {
    /// PFC for the first lossless priority
    Lossless,
    /// PFC for the first lossy priority
    Lossy,
    /// PAUSE for all priorities (802.3 annex 31B)
    Global,
    /// None
    None,
}

/// Share a port among priorities, pause one, and see the plan in DCBX's bytes
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab ets\n  roxie lab ets --share 0=20,3=80 --pause lossy\n  roxie lab ets --json | jq '.runs[0].blocks[2].hex'"
)]
pub(super) struct Arguments {
    /// Shares of priorities in percent, 100 together
    #[arg(long, default_value = "0=50,3=50", value_parser = shares)]
    share: Shares,
    /// The strict priority, 0 to 7, which carries notifications
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..8))]
    strict: u8,
    /// Load of the strict priority, in percent of the link
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=100))]
    strict_load: u64,
    /// Lossless priorities
    #[arg(long, value_delimiter = ',', default_value = "3", value_parser = clap::value_parser!(u8).range(0..8))]
    lossless: Vec<u8>,
    /// Pause frames that the receiver sends in the second third of the run
    #[arg(long, value_enum, default_value = "lossless")]
    pause: Pause,
    /// Rate of every link in Gb/s, 1 to 400
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shares(Vec<(u8, u8)>);

fn shares(text: &str) -> Result<Shares, String> {
    let one = |part: &str| {
        let (priority, share) =
            part.split_once('=').ok_or_else(|| format!("`{part}`: write PRIORITY=SHARE, such as 3=50"))?;
        match (priority.trim().parse(), share.trim().parse()) {
            (Ok(priority @ 0..8), Ok(share @ 1..=100)) => Ok((priority, share)),
            _ => Err(format!("`{part}`: priorities are 0 to 7, shares 1 to 100")),
        }
    };
    let all = text.split(',').map(one).collect::<Result<Vec<(u8, u8)>, String>>()?;
    let sum: u32 = all.iter().map(|(_, share)| u32::from(*share)).sum();
    let mut priorities: Vec<u8> = all.iter().map(|(priority, _)| *priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    match (sum, priorities.len() == all.len()) {
        (100, true) => Ok(Shares(all)),
        (100, false) => Err("a priority has two shares".into()),
        _ => Err(format!("the shares are {sum} % together: they have to be 100")),
    }
}

/// Bytes of a frame.
const LENGTH: usize = 1500;
/// Duration of each third of the run.
const THIRD: Nanos = Nanos::from_micros(300);

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    if arguments.share.0.iter().any(|(priority, _)| *priority == arguments.strict) {
        let why = format!("priority {} is strict (--strict): it has no share", arguments.strict);
        return Err(Failure::Usage(why));
    }
    let mut pauses = vec![arguments.pause];
    pauses.extend(Pause::value_variants().iter().filter(|other| **other != arguments.pause));
    let runs = pauses.iter().map(|pause| play(arguments, *pause)).collect::<Result<Vec<_>, _>>()?;
    Ok((runs, tlvs(arguments)))
}

/// A priority, and its share in percent; the strict one has none.
type Share = (u8, Option<u8>);

fn play(arguments: &Arguments, pause: Pause) -> Result<Run, Failure> {
    let mut priorities: Vec<Share> = arguments.share.0.iter().map(|(p, share)| (*p, Some(*share))).collect();
    priorities.push((arguments.strict, None));
    let link = LinkConfig::new(LinkRate::from_gbps(arguments.rate), cable(5));
    let mut fabric = network(arguments, &priorities, link)?;
    let target = match pause {
        Pause::Lossless => arguments.lossless.first().copied(),
        Pause::Lossy => arguments.share.0.iter().map(|(p, _)| *p).find(|p| !arguments.lossless.contains(p)),
        Pause::Global | Pause::None => None,
    };
    let receiver = Receiver { station: priorities.len(), pause, target };
    let samples = Samples::of(&mut fabric, arguments, &priorities, link, &receiver);
    let mut facts = Facts::default();
    for (n, (priority, _)) in priorities.iter().enumerate() {
        let [first, second, _] = samples.thirds_gbps(n);
        let names = NAMES[usize::from(*priority)];
        facts.tell(names[0], first, "Gb/s", names[1]);
        facts.tell(names[2], second, "Gb/s", names[3]);
    }
    let table = table(arguments, &priorities, &samples, &fabric, &receiver);
    let blocks = vec![Block::Chart(samples.chart(&priorities)), Block::Table(table)];
    Ok(Run { choice: vec![Choice::new("pause", receiver.pauses())], facts, blocks })
}

/// Returns a switch that applies the plan, with a station for each priority and one that receives. The stations of
/// priorities with a share have as many frames queued as the link carries in the whole run.
fn network(arguments: &Arguments, priorities: &[Share], link: LinkConfig) -> Result<Fabric, Failure> {
    let mut port = PortConfig::new(link);
    for (priority, share) in priorities {
        port.schedule[usize::from(*priority)] = share.map_or(Schedule::Strict, Schedule::Ets);
    }
    let receiver = priorities.len();
    let switch = SwitchConfig {
        longest_frame: LENGTH as u32,
        lossy: Threshold::Static(200_000),
        lossless: Threshold::Static(200_000),
        pfc: Some(PfcConfig::new(&arguments.lossless).map_err(|e| refused(&e))?),
        ..SwitchConfig::new(FabricConfig::ports(receiver + 1, &port))
    };
    let stations = (0..=receiver).map(|n| station(n, link, None)).collect();
    let mut fabric = Fabric::new(FabricConfig::star(stations, switch)).map_err(|e| refused(&e))?;
    let frames = link.rate.bytes_in(Nanos(3 * THIRD.0)) / link.wire_bytes(LENGTH) + 1;
    for (n, (priority, _)) in priorities.iter().enumerate().filter(|(_, (_, share))| share.is_some()) {
        let bytes = frame(n, receiver, LENGTH, *priority);
        (0..frames).for_each(|_| {
            fabric.send(Nanos(0), n, &bytes);
        });
    }
    Ok(fabric)
}

/// The station that receives, and what it pauses in the second third of the run.
struct Receiver {
    station: usize,
    pause: Pause,
    target: Option<u8>,
}

impl Receiver {
    fn send_pause(&self, fabric: &mut Fabric, quanta: u16) {
        let control = match (self.pause, self.target) {
            (Pause::Global, _) => MacControl::Pause { quanta },
            (_, Some(priority)) => {
                let mut all = [0; 8];
                all[usize::from(priority)] = quanta;
                MacControl::Pfc { enable: 1 << priority, quanta: all }
            }
            _ => return,
        };
        let frame = control.build(Host::mac(self.station as u16 + 1));
        fabric.send(fabric.now(), self.station, &frame);
    }

    /// Describes the pause frames.
    fn pauses(&self) -> String {
        match (self.pause, self.target) {
            (Pause::Global, _) => "PAUSE of everything".to_owned(),
            (_, Some(priority)) => format!("PFC on {priority}"),
            _ => "none".to_owned(),
        }
    }
}

/// Times of a run, and the bytes that each priority had sent by then.
struct Samples(Vec<(Nanos, Vec<u64>)>);

impl Samples {
    /// Runs the fabric, and takes 30 samples in each third.
    fn of(
        fabric: &mut Fabric,
        arguments: &Arguments,
        priorities: &[Share],
        link: LinkConfig,
        receiver: &Receiver,
    ) -> Samples {
        // The strict priority's frames arrive evenly, at their own rate.
        let sender = receiver.station - 1;
        let strict = frame(sender, receiver.station, LENGTH, arguments.strict);
        let gap = (arguments.strict_load > 0)
            .then(|| link.rate.nanos_for(link.wire_bytes(LENGTH) * 100 / arguments.strict_load).0);
        let second = THIRD..Nanos(2 * THIRD.0);
        let (mut next, mut paused) = (0, Nanos(0));
        let sent = |fabric: &Fabric, priority: u8| {
            fabric.switch(0).queue(receiver.station, priority.into()).sent_bytes
        };
        let mut samples = Vec::new();
        for sample in 0..=90 {
            let until = Nanos(sample * (THIRD.0 / 30));
            while fabric.now() < until {
                let strict_at = gap.map_or(until, |_| Nanos(next)).min(until);
                fabric.run(strict_at);
                if let Some(gap) = gap.filter(|_| next <= fabric.now().0) {
                    fabric.send(fabric.now(), sender, &strict);
                    next += gap;
                }
                // Repeat the pause every 30 us, as a congested receiver does.
                if second.contains(&fabric.now()) && fabric.now() >= paused {
                    receiver.send_pause(fabric, 0xffff);
                    paused = fabric.now() + Nanos::from_micros(30);
                }
            }
            if until == second.end {
                receiver.send_pause(fabric, 0);
            }
            samples.push((until, priorities.iter().map(|(priority, _)| sent(fabric, *priority)).collect()));
        }
        Samples(samples)
    }

    /// Returns the rate of the `n`th priority between two samples in Gb/s.
    fn gbps(&self, from: usize, to: usize, n: usize) -> f64 {
        let (a, b) = (&self.0[from], &self.0[to]);
        (b.1[n] - a.1[n]) as f64 * 8.0 / b.0.since(a.0).0 as f64
    }

    /// Returns the rates of the `n`th priority in each third in Gb/s, without its first 60 us, which show the
    /// transition.
    fn thirds_gbps(&self, n: usize) -> [f64; 3] {
        [(6, 30), (36, 60), (66, 90)].map(|(from, to)| self.gbps(from, to, n))
    }

    fn chart(&self, priorities: &[Share]) -> Chart {
        let series = |n: usize, priority: u8| {
            let steps = 1..self.0.len();
            let rate = steps.map(|to| (micros(self.0[to].0), self.gbps(to - 1, to, n)));
            Series::new(format!("priority {priority}"), rate.collect::<Vec<_>>())
        };
        Chart {
            title: "Throughput of the port".into(),
            x: axis("time", "us"),
            y: axis("rate", "Gb/s"),
            series: priorities.iter().enumerate().map(|(n, (priority, _))| series(n, *priority)).collect(),
            levels: vec![],
        }
    }
}

fn table(
    arguments: &Arguments,
    priorities: &[Share],
    samples: &Samples,
    fabric: &Fabric,
    receiver: &Receiver,
) -> Table {
    let all = (0..priorities.len()).map(|n| samples.thirds_gbps(n)[0]).sum::<f64>();
    let shared = all - samples.thirds_gbps(priorities.len() - 1)[0];
    let row = |(n, (priority, share)): (usize, &Share)| {
        let thirds = samples.thirds_gbps(n);
        let measured = share.map(|_| 100.0 * thirds[0] / shared);
        let drops = fabric.switch(0).queue(receiver.station, (*priority).into()).drops.all();
        vec![
            Value::from(*priority),
            share.map_or(Value::from("strict"), Value::from),
            measured.map_or(Value::Null, |share| round(share).into()),
            round(thirds[0]).into(),
            round(thirds[1]).into(),
            round(thirds[2]).into(),
            drops.into(),
            if arguments.lossless.contains(priority) { "yes" } else { "no" }.into(),
        ]
    };
    Table {
        title: format!("Gb/s by priority; in the second third: {}", receiver.pauses()),
        columns: vec![
            "priority",
            "share %",
            "measured %",
            "first third",
            "second",
            "last",
            "drops",
            "lossless",
        ],
        rows: priorities.iter().enumerate().map(row).collect(),
        sum: false,
    }
}

/// Names and descriptions of each priority's facts.
const NAMES: [[&str; 4]; 8] = {
    macro_rules! names {
        ($($n:literal)*) => {
            [$([
                concat!("priority_", $n, "_gbps"),
                concat!("priority ", $n, ", without a pause"),
                concat!("priority_", $n, "_paused_gbps"),
                concat!("priority ", $n, ", in the second third"),
            ]),*]
        };
    }
    names!(0 1 2 3 4 5 6 7)
};

/// Returns the plan as a port announces it.
fn tlvs(arguments: &Arguments) -> Vec<Block> {
    let mut plan = Plan {
        class_of: std::array::from_fn(|priority| priority as u8),
        share: [0; CLASSES],
        selection: [Selection::Ets; CLASSES],
        lossless: arguments.lossless.iter().fold(0, |set, priority| set | 1 << priority),
        pfc_capability: 8,
        willing: false,
    };
    for (priority, share) in &arguments.share.0 {
        plan.share[usize::from(*priority)] = *share;
    }
    plan.selection[usize::from(arguments.strict)] = Selection::Strict;
    let data = arguments.lossless.first().copied().unwrap_or(0);
    let table = [
        (data, Selector::Udp, roxie::wire::ROCE_V2_PORT),
        (data, Selector::EtherType, 0x8915),
        (arguments.strict, Selector::Dscp, 48),
    ];
    let block = |title: &str, bytes: Vec<u8>, body: Vec<ByteField>| {
        let mut fields = head(&bytes);
        fields.extend(body);
        Block::Bytes(Bytes { title: title.into(), hex: hex(&bytes), fields })
    };
    vec![
        block("ETS configuration, as LLDP carries it", plan.ets_configuration(), ets_fields(&plan)),
        block("Priority flow control", plan.pfc(), pfc_fields(&plan)),
        block(
            "Application priorities: RoCE v2, RoCE v1, notifications",
            applications(&table),
            application_fields(&table),
        ),
    ]
}

fn field(
    header: &str,
    name: impl Into<String>,
    bit: usize,
    bits: usize,
    value: impl ToString,
    about: &str,
) -> ByteField {
    let (name, value) = (name.into(), value.to_string());
    ByteField { header: header.into(), name, bit, bits, value, about: about.into(), uncovered: false }
}

fn head(bytes: &[u8]) -> Vec<ByteField> {
    let length = (usize::from(bytes[0] & 1) << 8) | usize::from(bytes[1]);
    vec![
        field("TLV", "type", 0, 7, bytes[0] >> 1, "what an organization defines"),
        field("TLV", "length", 7, 9, length, "bytes that follow"),
        field("TLV", "OUI", 16, 24, "00-80-C2", "IEEE 802.1"),
        field("TLV", "subtype", 40, 8, format!("{:#04x}", bytes[5]), ""),
    ]
}

fn ets_fields(plan: &Plan) -> Vec<ByteField> {
    let mut all = vec![
        field("ETS", "willing", 48, 1, u8::from(plan.willing), "takes its neighbour's word"),
        field("ETS", "CBS", 49, 1, 0, "no credit-based shaper"),
        field("ETS", "reserved", 50, 3, 0, ""),
        field("ETS", "classes", 53, 3, "0", "0 stands for 8"),
    ];
    for priority in 0..CLASSES {
        let class = plan.class_of[priority];
        all.push(field("class of", format!("priority {priority}"), 56 + 4 * priority, 4, class, ""));
    }
    for class in 0..CLASSES {
        all.push(field(
            "share of",
            format!("class {class}"),
            88 + 8 * class,
            8,
            format!("{} %", plan.share[class]),
            "",
        ));
    }
    for class in 0..CLASSES {
        let how = plan.selection[class];
        let value = format!("{} {how:?}", how as u8);
        all.push(field("service", format!("class {class}"), 152 + 8 * class, 8, value, ""));
    }
    all
}

fn pfc_fields(plan: &Plan) -> Vec<ByteField> {
    vec![
        field("PFC", "willing", 48, 1, u8::from(plan.willing), "takes its neighbour's word"),
        field("PFC", "MBC", 49, 1, 0, "MACsec bypass"),
        field("PFC", "reserved", 50, 2, 0, ""),
        field("PFC", "capability", 52, 4, plan.pfc_capability, "lossless classes at once"),
        field("PFC", "enable", 56, 8, format!("{:#04x}", plan.lossless), "bit n: priority n"),
    ]
}

fn application_fields(table: &[(u8, Selector, u16)]) -> Vec<ByteField> {
    let mut all = vec![field("application", "reserved", 48, 8, 0, "")];
    for (n, (priority, selector, id)) in table.iter().enumerate() {
        let bit = 56 + 24 * n;
        all.push(field("application", "priority", bit, 3, priority, ""));
        all.push(field("application", "reserved", bit + 3, 2, 0, ""));
        all.push(field(
            "application",
            "selector",
            bit + 5,
            3,
            format!("{} {selector:?}", *selector as u8),
            "what the number is",
        ));
        let number = if *selector == Selector::EtherType { format!("{id:#06x}") } else { id.to_string() };
        all.push(field("application", "protocol", bit + 8, 16, number, ""));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_total_100_of_valid_priorities() {
        assert_eq!(shares("0=50, 3=50").unwrap(), Shares(vec![(0, 50), (3, 50)]));
        for wrong in ["0=50", "8=100", "0=50,0=50", "3", "0=0,3=100"] {
            assert!(shares(wrong).is_err(), "{wrong}");
        }
    }
}
