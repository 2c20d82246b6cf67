//! `roxie lab dcqcn`: rate, alpha and queue over time, with PFC, with DCQCN, and with both.

use clap::Args;
use roxie::congestion::Settings;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_sim::fabric::{EcnConfig, FabricConfig, LinkConfig, LinkRate};

use super::document::{About, Bar, Bars, Block, Chart, Choice, Facts, Level, Part, Run, Series, Table, axis};
use super::stage::cable;
use super::traffic::{Flow, Mode, Play, Played, fairness, play, station, switch};

pub(super) const ABOUT: About = About {
    name: "dcqcn",
    line: "senders that share a link: pauses, rates, or both",
    see: &[
        "Several senders write to one receiver through one switch, each as fast as its own link allows. Rate, alpha and queue over time.",
        "PFC alone loses nothing and holds the queue at its threshold: senders stop and start for ever. DCQCN alone \
         loses frames until the first CNPs take effect. With both, there are pauses at the start, and hardly any \
         later.",
        "The rate is cut by alpha at each CNP. It recovers half of the way first, then in steps.",
    ],
    change: &[
        "`--senders 16`: each cut frees less, each step adds more; the queue gets longer and the rates vary more.",
        "`--set rpg_ai_rate=400`: ten times the step. Recovery is fast, and rates never settle.",
        "`--set rp_dce_tcp_g=512`: alpha follows only the last moment. Cuts are deep.",
        "`--kmin 400 --kmax 1600`: marks are late, and pauses come first.",
        "`--preset connectx`: the defaults of adapters instead of the paper's constants.",
    ],
};

/// Share a link among senders with PFC, with DCQCN, and with both
#[derive(Debug, Args)]
#[command(
    long_about = "Several senders write to one receiver through one switch in virtual time, with the NIC's own \
        reaction and notification points. Three runs: with priority flow control alone, with DCQCN alone, and with \
        both.\n\n`roxie cc knobs` lists the knobs for --set.",
    after_help = "Examples:\n  roxie lab dcqcn\n  roxie lab dcqcn --senders 8 --set rpg_ai_rate=80 --set rpg_time_reset=100\n  \
    roxie lab dcqcn --html dcqcn.html"
)]
pub(super) struct Arguments {
    /// Number of senders, 2 to 64
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=64))]
    senders: u8,
    /// Rate of every link in Gb/s, 1 to 400
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,
    /// Length of each cable in metres
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    metres: u64,
    /// Virtual time in milliseconds, 1 to 100
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=100))]
    ms: u64,
    /// Queue depth at which marking begins, in kilobytes
    #[arg(long, default_value_t = 5)]
    kmin: u64,
    /// Queue depth above which every frame is marked, in kilobytes
    #[arg(long, default_value_t = 200)]
    kmax: u64,
    /// Share of frames marked at Kmax, 0 to 1
    #[arg(long, default_value_t = 0.01)]
    pmax: f64,
    /// Buffer of the switch in kilobytes
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    buffer: u64,
    /// Preset of rules and constants: paper or connectx
    #[arg(long, default_value = "paper")]
    preset: String,
    /// Set a knob; repeatable
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    sets: Vec<String>,
}

/// Returns the knobs of a preset, with some changed.
pub(super) fn settings(preset: &str, sets: &[String]) -> Result<Settings, Failure> {
    let text =
        std::iter::once(format!("dcqcn,preset={preset}")).chain(sets.iter().cloned()).collect::<Vec<_>>();
    text.join(",").parse().map_err(|e: roxie::congestion::SettingsError| Failure::Usage(e.to_string()))
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let settings = settings(&arguments.preset, &arguments.sets)?;
    let modes = [Mode::Both, Mode::Pfc, Mode::Dcqcn];
    let runs = modes.iter().map(|mode| one(arguments, *mode, &settings)).collect::<Result<Vec<_>, _>>()?;
    let facts = [
        ("Gb/s", "goodput_gbps"),
        ("Jain", "fairness"),
        ("queue mean", "queue_mean"),
        ("99 %", "queue_99"),
        ("paused us, 2nd half", "paused_settled_us"),
        ("drops", "dropped"),
        ("again", "sent_again"),
    ];
    let table = Table::of_runs("Side by side", &["held back by"], &facts, &runs);
    let bar = |run: &Run| Bar {
        name: run.choice[0].value.clone(),
        parts: [("first half", "paused_first_us"), ("second half", "paused_settled_us")]
            .map(|(name, fact)| Part::new(name, run.facts.number(fact).unwrap_or(0.0)))
            .into(),
    };
    let bars = Bars {
        title: "Pause time, all senders together".into(),
        unit: "us",
        bars: runs.iter().map(bar).collect(),
    };
    Ok((runs, vec![Block::Table(table), Block::Bars(bars)]))
}

fn stage(arguments: &Arguments, mode: Mode, settings: &Settings, time: Nanos) -> Result<Played, Failure> {
    let senders = usize::from(arguments.senders);
    let link = LinkConfig::new(LinkRate::from_gbps(arguments.rate), cable(arguments.metres));
    let ecn = EcnConfig { kmin: arguments.kmin * 1000, kmax: arguments.kmax * 1000, pmax: arguments.pmax };
    let stations = (0..=senders).map(|n| station(n, link)).collect();
    let switch = switch(&vec![link; senders + 1], mode, ecn, arguments.buffer * 1000)?;
    let flow = |from| Flow { from, to: senders, message: 65_536, messages: None, depth: 16, priority: 3 };
    play(Play {
        config: FabricConfig::star(stations, switch),
        flows: (0..senders).map(flow).collect(),
        mode,
        settings: settings.clone(),
        time,
        samples: 250,
        pauses: (0..senders).map(|port| (0, port)).collect(),
    })
}

fn one(arguments: &Arguments, mode: Mode, settings: &Settings) -> Result<Run, Failure> {
    let senders = usize::from(arguments.senders);
    let time = Nanos::from_millis(arguments.ms);
    let half = Nanos(time.0 / 2);
    let played = stage(arguments, mode, settings, time)?;
    let shares: Vec<f64> = (0..senders).map(|n| played.goodput(n, half)).collect();
    let queue = played.fabric.switch(0).queue(senders, 3);
    let [paused_first, paused_settled] = played.paused_around(half);
    let mut facts = Facts::default();
    facts.tell(
        "goodput_gbps",
        shares.iter().sum::<f64>(),
        "Gb/s",
        "of payload, all senders together, second half",
    );
    facts.tell(
        "least_gbps",
        shares.iter().copied().fold(f64::MAX, f64::min),
        "Gb/s",
        "the slowest sender of the second half",
    );
    facts.tell("most_gbps", shares.iter().copied().fold(0.0, f64::max), "Gb/s", "the fastest");
    facts.tell("fairness", fairness(&shares), "", "Jain's index of the second half; 1: all rates equal");
    facts.tell(
        "queue_mean",
        queue.depth.mean(),
        "bytes",
        "in the queue in front of the receiver, over all the time",
    );
    facts.tell("queue_99", queue.depth.quantile(0.99), "bytes", "not exceeded for 99 % of the time");
    facts.tell("queue_peak", queue.depth.peak(), "bytes", "the most");
    facts.tell("paused_first_us", paused_first, "us", "that senders were paused, all together, first half");
    facts.tell("paused_settled_us", paused_settled, "us", "the same, second half");
    facts.tell("marked", played.marked(), "frames", "marked by the switch");
    facts.tell("notifications", played.notified, "", "congestion notifications sent by the receiver");
    facts.tell("dropped", played.dropped(), "frames", "lost");
    facts.tell("sent_again", played.retransmitted, "packets", "retransmitted because of that");
    let names: Vec<String> = (1..=senders).map(|n| format!("sender {n}")).collect();
    let fair = arguments.rate as f64 / senders as f64;
    let chart = |title: &str, y, series: Vec<Series>, levels| {
        Block::Chart(Chart { title: title.into(), x: axis("time", "us"), y, series, levels })
    };
    let mut blocks = Vec::new();
    if mode.has_rates() {
        let levels = vec![Level { name: "fair share", value: super::document::round(fair) }];
        blocks.push(chart(
            "Rate limit of each sender",
            axis("rate", "Gb/s"),
            played.control(&names, false),
            levels,
        ));
        blocks.push(chart("Alpha of each sender", axis("alpha", ""), played.control(&names, true), vec![]));
    } else {
        let levels = vec![Level { name: "fair share", value: super::document::round(fair) }];
        blocks.push(chart("Throughput of each sender", axis("rate", "Gb/s"), played.rates(&names), levels));
    }
    let levels = vec![
        Level { name: "Kmin", value: arguments.kmin as f64 * 1e3 },
        Level { name: "Kmax", value: arguments.kmax as f64 * 1e3 },
    ];
    blocks.push(chart("The queue", axis("bytes", "bytes"), vec![played.depth((0, senders))], levels));
    Ok(Run { choice: vec![Choice::new("held back by", mode.name())], facts, blocks })
}
