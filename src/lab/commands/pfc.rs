//! `roxie lab pfc`: the headroom that a pause needs, computed and tried.

use clap::Args;
use roxie::time::Nanos;
use roxie::wire::mac_control::response_quanta;
use roxie_lab_theory::headroom::Sum;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{
    DropReason, Fabric, FabricConfig, LinkConfig, LinkRate, PfcConfig, PortConfig, SonicHeadroom,
    SwitchConfig, Threshold,
};
use serde_json::Value;

use super::document::{About, Bar, Bars, Block, Chart, Choice, Facts, Level, Part, Run, Series, Table, axis};
use super::frames::{frame, refused, station};
use super::stage::{cable, micros};

pub(super) const ABOUT: About = About {
    name: "pfc",
    line: "threshold and headroom of a lossless priority, computed and tested",
    see: &[
        "The number of bytes that arrive after a switch has decided to pause its neighbour: a sum of five times and \
         two frames, for your link.",
        "A run of the worst case. With the computed headroom nothing is lost; with one byte less, a frame is.",
        "The rule of thumb, XOFF at 80 % of the buffer, on cables of several lengths: from some length on frames are \
         lost, without an error message.",
    ],
    change: &[
        "`--metres 1`: the rule wastes buffer. `--metres 2000`: a fifth of the buffer is not enough.",
        "`--rate 400`: the same cable holds four times as many bytes, and the response takes longer, too.",
        "`--mtu 9216`: jumbo frames are in the sum three times.",
        "`--share 50`: a rule of thumb that suffices here, and wastes half of the buffer.",
    ],
};

/// Compute threshold and headroom for priority flow control, and try them
#[derive(Debug, Args)]
#[command(
    long_about = "Computes the headroom of one lossless priority of a switch port: the bytes that still arrive after \
        the switch has decided to pause its neighbour. Then runs the worst case with this headroom, with one byte \
        less, with that of a network operating system (SONiC's formula), and with the rule of thumb that sets XOFF to \
        a share of the buffer.",
    after_help = "Examples:\n  roxie lab pfc                            100 Gb/s, 300 m\n  roxie lab pfc --rate 400 --metres 2000 --mtu 9216\n  \
    roxie lab pfc --response 500             a peer that is silent after 500 ns\n  roxie lab pfc --html pfc.html"
)]
pub(super) struct Arguments {
    /// Rate of the link in Gb/s, 1 to 800
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=800))]
    rate: u64,
    /// Length of the cable in metres, 0 to 100000; 5 ns a metre
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    metres: u64,
    /// Longest frame in bytes, without FCS, 128 to 9600
    #[arg(long, default_value_t = 4200, value_parser = clap::value_parser!(u32).range(128..=9600))]
    mtu: u32,
    /// Time in ns from the end of the PFC frame until the peer is silent [default: what 802.3 allows at the rate]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    response: Option<u64>,
    /// Bytes of buffer for this port and priority, XOFF and headroom together
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(20_000..=100_000_000))]
    buffer: u64,
    /// Rule of thumb: XOFF at this percentage of the buffer, 1 to 99
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(1..=99))]
    share: u64,
}

/// Cable lengths for comparison: a rack, a row, a hall, a campus.
const CABLES: [u64; 5] = [5, 100, 300, 1000, 2000];

impl Arguments {
    fn link(&self, metres: u64) -> LinkConfig {
        LinkConfig::new(LinkRate::from_gbps(self.rate), cable(metres))
    }

    fn response(&self) -> Nanos {
        self.response.map_or(LinkRate::from_gbps(self.rate).pause_response(), Nanos)
    }

    fn sum(&self, metres: u64) -> Sum {
        Sum::of(&self.link(metres), self.response(), self.mtu)
    }

    fn sonic(&self, metres: u64) -> u64 {
        SonicHeadroom {
            lossless_mtu: self.mtu.into(),
            port_mtu: self.mtu.into(),
            gbps: self.rate as f64,
            cable: metres as f64,
            gearbox: 0.0,
            mac_phy: 0.8 * 1024.0,
            response_quanta: f64::from(response_quanta(self.rate * 1_000_000_000)),
            cell: 144.0,
        }
        .xoff()
    }

    /// Returns the headroom that the rule of thumb leaves above XOFF.
    fn rule(&self) -> u64 {
        self.buffer - self.buffer * self.share / 100
    }
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut cables = vec![arguments.metres];
    cables.extend(CABLES.iter().filter(|metres| **metres != arguments.metres));
    let mut runs = Vec::new();
    for metres in &cables {
        let (computed, less) = (arguments.sum(*metres).total, rounding(arguments, *metres)?);
        let needed = worst_moment(arguments, *metres, computed, less)?.used;
        for (name, headroom) in [
            ("as computed".to_owned(), computed),
            ("one byte less than necessary".to_owned(), needed - 1),
            (format!("XOFF at {} %", arguments.share), arguments.rule()),
            ("SONiC's formula".to_owned(), arguments.sonic(*metres)),
        ] {
            runs.push(play(arguments, *metres, &name, headroom, less)?);
        }
    }
    let rows = cables.iter().zip(runs.chunks(4)).map(|(metres, runs)| {
        let dropped = |run: &Run| run.facts.number("dropped").unwrap_or(0.0) as u64;
        let verdict = if dropped(&runs[2]) > 0 { "drops" } else { "holds" };
        let headroom = |run: &Run| Value::from(run.facts.number("headroom").map(|n| n as u64));
        vec![
            Value::from(*metres),
            headroom(&runs[0]),
            headroom(&runs[2]),
            Value::from(verdict),
            headroom(&runs[3]),
            Value::from(if dropped(&runs[3]) > 0 { "drops" } else { "holds" }),
        ]
    });
    let mut rows: Vec<Vec<Value>> = rows.collect();
    rows.sort_by_key(|row| row[0].as_u64());
    let table = Table {
        title: format!("Bytes of headroom at {} Gb/s, and the result of the worst case", arguments.rate),
        columns: vec!["metres", "computed", "rule of thumb", "it", "SONiC", "that"],
        rows,
        sum: false,
    };
    Ok((runs, vec![Block::Table(table)]))
}

/// Effects of the worst moment on a switch.
struct Moment {
    xoff: u64,
    used: u64,
    dropped: u64,
    told: f64,
    /// Time in us, and bytes in the buffer.
    points: Vec<(f64, f64)>,
}

/// Plays the worst case: the neighbour sends the worst possible frames, shortened by `less` bytes in all.
fn worst_moment(arguments: &Arguments, metres: u64, headroom: u64, less: u64) -> Result<Moment, Failure> {
    let (link, sum, response) = (arguments.link(metres), arguments.sum(metres), arguments.response());
    let longest = arguments.mtu as usize;
    // Fill up to the threshold with whole frames.
    let below = (arguments.buffer.saturating_sub(headroom) / u64::from(arguments.mtu)).max(1);
    let xoff = below * u64::from(arguments.mtu);
    let pfc = PfcConfig {
        headroom: Some(headroom),
        response: Some(response),
        ..PfcConfig::new(&[3]).map_err(|e| refused(&e))?
    };
    let mut ports = FabricConfig::ports(2, &PortConfig::new(link));
    // The egress is blocked: at 1 kb/s, a frame of another priority occupies it, and lossless frames stay in the
    // buffer.
    ports[1].link.rate = LinkRate(1_000);
    let switch = SwitchConfig {
        lossless: Threshold::Static(xoff),
        longest_frame: arguments.mtu,
        buffer: 1 << 30,
        pfc: Some(pfc),
        ..SwitchConfig::new(ports)
    };
    let stations = vec![station(0, link, Some(response)), station(1, link, Some(response))];
    let mut fabric = Fabric::new(FabricConfig::star(stations, switch)).map_err(|e| refused(&e))?;
    fabric.send(Nanos(0), 0, &frame(0, 1, 60, 0));
    let full = link.wire_bytes(longest);
    for _ in 0..below {
        fabric.send(Nanos(0), 0, &frame(0, 1, longest, 3));
    }
    // All frames have arrived, and the line is idle.
    let crosses = Nanos(2 * link.delay.0 + link.rate.nanos_for((below + 2) * full).0 + 1_000);
    fabric.run(Nanos(crosses.0 - 1));
    // When the frame that crosses the threshold begins, a longest frame has just begun in the reverse direction.
    fabric.send(crosses, 1, &frame(1, 0, longest, 0));
    let mut lengths = sum.worst_frames(&link, less);
    lengths.extend([longest; 8]);
    for length in &lengths {
        fabric.send(crosses, 0, &frame(0, 1, *length, 3));
    }
    let end = crosses + Nanos(response.0 + 4 * link.delay.0 + 8 * link.rate.nanos_for(full).0 + 2_000);
    // Time 0 is the crossing of the threshold.
    let since = |time: Nanos| {
        time.0 as f64 / 1e3 - (crosses.0 + link.delay.0 + link.rate.nanos_for(full).0) as f64 / 1e3
    };
    let first = since(fabric.now());
    let mut points = vec![(0.0, fabric.switch(0).used().0 as f64)];
    let mut told = None;
    while fabric.step(end).is_some() {
        let at = since(fabric.now());
        let used = fabric.switch(0).used().0 as f64;
        if points.last().is_none_or(|(_, before)| (*before - used).abs() > 0.5) {
            points.push((at - first, used));
        }
        if told.is_none() && fabric.switch(0).queue(0, 3).xoff_sent > 0 {
            told = Some(at - first);
        }
    }
    let (inward, outward) = (fabric.switch(0).queue(0, 3), fabric.switch(0).queue(1, 3));
    let dropped = outward.drops.by(DropReason::Headroom);
    Ok(Moment { xoff, used: inward.headroom_peak, dropped, told: told.unwrap_or(0.0), points })
}

/// Returns by how many bytes the arrivals must stay below the sum, so that the last frame is in time: the simulation
/// counts whole nanoseconds.
fn rounding(arguments: &Arguments, metres: u64) -> Result<u64, Failure> {
    let total = arguments.sum(metres).total;
    let fits =
        |less: u64| Ok::<_, Failure>(worst_moment(arguments, metres, total, less)?.used + less + 64 >= total);
    // At most four nanoseconds.
    let (mut low, mut high) = (0, arguments.link(metres).rate.bytes_in(Nanos(4)) + 1);
    while low < high {
        let middle = (low + high) / 2;
        if fits(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}

fn play(arguments: &Arguments, metres: u64, name: &str, headroom: u64, less: u64) -> Result<Run, Failure> {
    let sum = arguments.sum(metres);
    let Moment { xoff, used, dropped, told, points } = worst_moment(arguments, metres, headroom, less)?;
    let mut facts = Facts::default();
    facts.tell("needed", sum.total, "bytes", "of headroom, by the sum");
    facts.tell("headroom", headroom, "bytes", "of headroom in this run");
    facts.tell("headroom_used", used, "bytes", "of it that were used at most");
    facts.tell("rounding", less, "bytes", "that the sum is above what a line of whole nanoseconds can do");
    facts.tell("xoff", xoff, "bytes", "above which the peer is paused");
    facts.tell("dropped", dropped, "frames", "of the lossless priority, lost for want of headroom");
    facts.tell("told_at_us", told, "us", "on the chart: the pause was decided");
    facts.tell(
        "silence_us",
        micros(Nanos(sum.terms.iter().map(|term| term.time.0).sum())),
        "us",
        "from crossing the threshold to the peer's silence",
    );
    facts.tell(
        "response_us",
        micros(arguments.response()),
        "us",
        "of it until a PFC frame takes effect at the peer",
    );
    let chart = Chart {
        title: "The buffer while the neighbour is being stopped".into(),
        x: axis("time", "us"),
        y: axis("bytes in the buffer", "bytes"),
        series: vec![Series::new("in the buffer", steps(&points))],
        levels: vec![
            Level { name: "XOFF", value: xoff as f64 },
            Level { name: "end of headroom", value: (xoff + headroom) as f64 },
        ],
    };
    Ok(Run {
        choice: vec![Choice::new("headroom", name), Choice::new("cable", format!("{metres} m"))],
        facts,
        blocks: vec![worked_out(&sum), Block::Bars(times(&sum)), Block::Chart(chart)],
    })
}

/// Converts points to a staircase.
pub(super) fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut all = Vec::with_capacity(2 * points.len());
    for (i, (x, y)) in points.iter().enumerate() {
        if i > 0 {
            all.push((*x, points[i - 1].1));
        }
        all.push((*x, *y));
    }
    all
}

/// Returns the sum as a table.
fn worked_out(sum: &Sum) -> Block {
    let row = |what: &str, how: String, ns: Value, wire: Value, bytes: Value| {
        vec![what.into(), how.into(), ns, wire, bytes]
    };
    let mut rows = vec![row(
        "the frame that crosses",
        "one of the longest".into(),
        Value::Null,
        Value::Null,
        sum.longest.into(),
    )];
    for term in &sum.terms {
        rows.push(row(term.what, term.how.clone(), term.time.0.into(), term.wire.into(), Value::Null));
    }
    let how = format!(
        "{} of the longest begin in that time, and {} bytes of wire are left for a shorter one; less preambles and gaps",
        sum.whole, sum.rest
    );
    rows.push(row("frames that begin in it", how, Value::Null, Value::Null, sum.begun.into()));
    rows.push(row(
        "the last frame",
        "it begins just before the silence".into(),
        Value::Null,
        Value::Null,
        sum.longest.into(),
    ));
    rows.push(row(
        "headroom",
        String::new(),
        sum.terms.iter().map(|term| term.time.0).sum::<u64>().into(),
        Value::Null,
        sum.total.into(),
    ));
    Block::Table(Table {
        title: "The sum worked out".into(),
        columns: vec!["what", "how", "ns", "on the wire", "bytes"],
        rows,
        sum: true,
    })
}

fn times(sum: &Sum) -> Bars {
    let parts = sum.terms.iter().map(|term| Part::new(term.what, term.time.0 as f64)).collect();
    Bars {
        title: "Parts of the time".into(),
        unit: "ns",
        bars: vec![Bar { name: "until silence".into(), parts }],
    }
}
