//! `roxie lab headroom`: partition of a switch's buffer.

use clap::Args;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{
    ConfigError, Fabric, FabricConfig, LinkConfig, LinkRate, PRIORITIES, PfcConfig, PortConfig, SwitchConfig,
    Threshold,
};
use serde_json::Value;

use super::document::{About, Bar, Bars, Block, Choice, Facts, Part, Run, Table};
use super::frames::{frame, refused, station};
use super::stage::cable;

pub(super) const ABOUT: About = About {
    name: "headroom",
    line: "the buffer of a whole switch: reserved, headroom, and shared",
    see: &[
        "Headroom is reserved for each port and each lossless priority, whether or not it is ever used. The sum over a \
         whole switch, and the rest of the buffer for queues.",
        "The number of lossless priorities matters most, because each one needs headroom at all ports. A few long \
         cables matter as well.",
        "A run of the planned switch: all ports send to one, and the maximum headroom used is compared with the \
         reserved one.",
    ],
    change: &[
        "`--lossless 8`: eight lossless priorities. The buffer is too small for these.",
        "`--uplink-metres 10000`: four ports to another site need more than all others.",
        "`--cell 64`: small cells waste less on short frames.",
        "`--buffer 100`: a larger buffer instead.",
    ],
};

/// Plan the buffer of a whole switch, and try the plan
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab headroom\n  roxie lab headroom --lossless 4 --uplink-metres 2000\n  roxie lab headroom --ports 64 --rate 400 --buffer 128"
)]
pub(super) struct Arguments {
    /// Number of ports to hosts, 2 to 64
    #[arg(long, default_value_t = 28, value_parser = clap::value_parser!(u16).range(2..=64))]
    ports: u16,
    /// Rate of these ports in Gb/s, 1 to 800
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=800))]
    rate: u64,
    /// Length of their cables in metres
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    metres: u64,
    /// Number of uplinks, 0 to 32
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=32))]
    uplinks: u16,
    /// Rate of the uplinks in Gb/s
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=800))]
    uplink_rate: u64,
    /// Length of their cables in metres
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    uplink_metres: u64,
    /// Number of lossless priorities, 1 to 8
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    lossless: u8,
    /// Buffer in megabytes (1000000)
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    buffer: u64,
    /// Buffer cell in bytes
    #[arg(long, default_value_t = 208, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cell: u32,
    /// Bytes reserved for each port and priority
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    reserved: u64,
    /// Longest frame in bytes, without FCS
    #[arg(long, default_value_t = 4_200, value_parser = clap::value_parser!(u32).range(128..=9600))]
    mtu: u32,
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let asked = (arguments.lossless, arguments.uplink_metres);
    let mut all = vec![asked];
    let others = [1, 2, 4, 8]
        .into_iter()
        .flat_map(|lossless| [300, 2_000, 10_000, 40_000].map(|metres| (lossless, metres)));
    all.extend(others.filter(|other| *other != asked));
    let runs = all
        .iter()
        .map(|(lossless, metres)| one(arguments, *lossless, *metres))
        .collect::<Result<Vec<_>, _>>()?;
    let row = |run: &Run| {
        let names = ["headroom_hosts", "headroom_uplinks", "promised", "shared"];
        let choice = run.choice.iter().map(|choice| choice.value.clone().into());
        let fits = Value::from(if run.facts.number("shared") == Some(0.0) { "no" } else { "yes" });
        choice
            .chain(names.map(|name| run.facts.number(name).map(|n| n as u64).into()))
            .chain([fits])
            .collect()
    };
    let table = Table {
        title: format!("Plans for {} MB, bytes", arguments.buffer),
        columns: vec![
            "lossless",
            "uplinks",
            "hosts' headroom",
            "uplinks' headroom",
            "promised",
            "shared",
            "fits",
        ],
        rows: runs.iter().map(row).collect(),
        sum: false,
    };
    Ok((runs, vec![Block::Table(table)]))
}

fn config(arguments: &Arguments, lossless: u8, metres: u64) -> Result<SwitchConfig, Failure> {
    let port = |gbps, metres| PortConfig::new(LinkConfig::new(LinkRate::from_gbps(gbps), cable(metres)));
    let mut ports = vec![port(arguments.rate, arguments.metres); usize::from(arguments.ports)];
    ports.extend(vec![port(arguments.uplink_rate, metres); usize::from(arguments.uplinks)]);
    let priorities: Vec<u8> = [3, 4, 2, 5, 1, 6, 0, 7].into_iter().take(lossless.into()).collect();
    Ok(SwitchConfig {
        buffer: arguments.buffer * 1_000_000,
        cell: arguments.cell,
        reserved: arguments.reserved,
        lossless: Threshold::Dynamic(0.125),
        longest_frame: arguments.mtu,
        pfc: Some(PfcConfig::new(&priorities).map_err(|e| refused(&e))?),
        ..SwitchConfig::new(ports)
    })
}

fn one(arguments: &Arguments, lossless: u8, metres: u64) -> Result<Run, Failure> {
    let switch = config(arguments, lossless, metres)?;
    let (hosts, uplinks) = (usize::from(arguments.ports), usize::from(arguments.uplinks));
    let (per_host, per_uplink) = (switch.headroom(0), if uplinks > 0 { switch.headroom(hosts) } else { 0 });
    let classes = u64::from(lossless);
    let headroom = [per_host * classes * hosts as u64, per_uplink * classes * uplinks as u64];
    let reserved = switch.reserved * PRIORITIES as u64 * (hosts + uplinks) as u64;
    let (promised, buffer) = (switch.promised(), switch.buffer);
    let shared = buffer.saturating_sub(promised);
    let mut facts = Facts::default();
    facts.tell("buffer", buffer, "bytes", "of the switch");
    facts.tell(
        "per_host_port",
        per_host,
        "bytes",
        "of headroom for each lossless priority of a port to a host",
    );
    facts.tell("per_uplink", per_uplink, "bytes", "the same of an uplink");
    facts.tell("headroom_hosts", headroom[0], "bytes", "of headroom for all ports to hosts");
    facts.tell("headroom_uplinks", headroom[1], "bytes", "of headroom for all uplinks");
    facts.tell("reserved", reserved, "bytes", "reserved for each port and priority, lossless or not");
    facts.tell("promised", promised, "bytes", "promised in all");
    facts.tell("shared", shared, "bytes", "left to share between all queues");
    facts.tell("missing", promised.saturating_sub(buffer), "bytes", "missing in the buffer");
    let mut parts = vec![
        Part::new("reserved", reserved as f64),
        Part::new("headroom of hosts", headroom[0] as f64),
        Part::new("headroom of uplinks", headroom[1] as f64),
    ];
    if shared > 0 {
        parts.push(Part::new("shared", shared as f64));
    }
    let plan = Bar { name: "the plan".into(), parts };
    let there = Bar { name: "the buffer".into(), parts: vec![Part::new("there is", buffer as f64)] };
    let mut blocks = vec![Block::Bars(Bars {
        title: "Shares of the buffer".into(),
        unit: "bytes",
        bars: vec![plan, there],
    })];
    match try_out(arguments, switch, hosts, uplinks) {
        Ok([dropped, used]) => {
            facts.tell("dropped", dropped, "frames", "of a lossless priority, when all ports sent to one");
            facts.tell("headroom_used", used, "bytes", "of one port's headroom that were used at most then");
        }
        Err(ConfigError::Buffer { promised, buffer }) => blocks.push(Block::Prose {
            text: format!(
                "Not possible: {promised} bytes are reserved, and {buffer} exist. A switch that accepts this \
                configuration drops frames."
            ),
        }),
        Err(error) => return Err(refused(&error)),
    }
    Ok(Run {
        choice: vec![
            Choice::new("lossless priorities", lossless),
            Choice::new("uplinks' cables", format!("{metres} m")),
        ],
        facts,
        blocks,
    })
}

/// All other ports send to the first at once. Returns the frames lost, and the most headroom that a port used.
fn try_out(
    arguments: &Arguments,
    switch: SwitchConfig,
    hosts: usize,
    uplinks: usize,
) -> Result<[u64; 2], ConfigError> {
    let stations = switch.ports.iter().enumerate().map(|(n, port)| station(n, port.link, None)).collect();
    let mut fabric = Fabric::new(FabricConfig::star(stations, switch))?;
    let frames = 40_000_000 / (u64::from(arguments.mtu) * (hosts + uplinks) as u64);
    for from in 1..hosts + uplinks {
        let bytes = frame(from, 0, arguments.mtu as usize, 3);
        for _ in 0..frames.min(400) {
            fabric.send(Nanos(0), from, &bytes);
        }
    }
    fabric.run(Nanos::from_micros(400));
    let switch = fabric.switch(0);
    let used = (0..hosts + uplinks).map(|port| switch.queue(port, 3).headroom_peak).max().unwrap_or(0);
    Ok([switch.queue(0, 3).drops.all(), used])
}
