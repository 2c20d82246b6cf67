//! `roxie cc`: congestion control without a network. Lists its knobs, and runs the reaction point over a list of
//! events.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie::congestion::knobs::{Description, TABLE};
use roxie::congestion::{Dcqcn, Knobs, Preset, Rate};
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

mod replay;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the events cannot be read or run, 2 wrong usage.";

/// Inspect congestion control by itself: its knobs, and the rate after each of a list of events.
#[derive(Debug, Args)]
#[command(
    long_about = "Congestion control without a network.\n\nDCQCN has two ends. A switch marks packets while its queue \
        is long. The receiver of a marked packet sends a congestion notification (CNP) to the sender, at most one per \
        min_time_between_cnps. The sender (the reaction point) cuts its rate. The cut is deeper the higher alpha is, a \
        moving average of how often notifications arrive. Later the rate rises again, by timer and by bytes sent: \
        first half of the way back to the old rate (fast recovery), then beyond it (additive, then hyper \
        increase).\n\n`knobs` lists the parameters. `replay` runs the reaction point over a list of events and prints \
        its state after each.",
    after_help = EXIT_CODES
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the knobs of DCQCN: names, unit, range, the default of each preset, and what each does
    #[command(
        long_about = "Prints the knobs of DCQCN. Each knob has several names: OFED's in sysfs \
            (/sys/class/net/DEV/ecn/...) in the first column, mlx5's in debugfs (.../cc_params/) in the second, and \
            that of the firmware's configuration, which is the first in capitals. Options that set a knob accept each \
            of them. Unlike on adapters, rates may have fractions: a step of whole Mb/s is too large for slow links.",
        after_help = format!(
            "Examples:\n  roxie cc knobs                                lists them\n  roxie cc knobs --json | jq \
             '.knobs[] | select(.unit == \"us\")'\n  roxie cc replay --set rpg_ai_rate=40 --line-rate 40 -    sets one\n\n{EXIT_CODES}"
        )
    )]
    Knobs {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Compute the rate after each event of a list
    #[command(
        long_about = "Runs DCQCN's reaction point over a list of events, and prints its state after each as a JSON \
            object a line: version, us, rc_gbps (the rate), rt_gbps (the target of recovery), alpha, byte_stage and timer_stage \
            (increases since the last decrease, by the byte counter and by the timer).\n\nEVENTS.json is an array of \
            objects, or one object a line:\n\n  \
            {\"us\": 0, \"cnp\": true}          a congestion notification arrives\n  \
            {\"us\": 12.5, \"bytes\": 150000}   bytes sent since the last event with bytes\n  \
            {\"us\": 55}                      no event: prints the rate\n\nTimes are in microseconds, with a \
            resolution of 1 ns, and must not decrease. The rate starts at line rate with the initial alpha. Timers \
            start with the first notification; a timer that is due at the time of an event runs before it. Bytes count \
            as sent at the time of their event; a remainder after a step of the byte counter is kept. A decrease uses \
            alpha before its update. An increase compares the stages before it raises its own, so that rpg_threshold \
            is the number of steps of fast recovery. The target never exceeds the line rate. All arithmetic is in \
            floating point.\n\nWith the preset `paper`, each notification decreases the rate, sets the target to the \
            old rate, updates alpha, and restarts both timers. With `connectx`, alpha is updated every dce_tcp_rtt \
            from the first notification on, by whether a notification arrived in between; a notification within \
            rate_reduce_monitor_period of a decrease does not decrease the rate.",
        after_help = format!(
            "Examples:\n  echo '[{{\"us\":0,\"cnp\":true}},{{\"us\":55}}]' | roxie cc replay --preset paper --line-rate 40 \
            -\n  roxie cc replay --set rpg_ai_rate=40 --set rp_threshold=5 --line-rate 100 events.json\n  \
             roxie cc replay --line-rate 25 events.json | jq -r '[.us, .rc_gbps] | @tsv'      for a plot\n\n{EXIT_CODES}"
        )
    )]
    Replay(ReplayArguments),
}

#[derive(Debug, Args)]
struct ReplayArguments {
    /// Preset of rules and defaults
    #[arg(long, value_name = "PRESET", default_value_t = Preset::ConnectX, value_parser = preset)]
    preset: Preset,
    /// Turn a knob, repeatable: see `roxie cc knobs`
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    sets: Vec<String>,
    /// The link's rate, in Gb/s
    #[arg(long, value_name = "GBPS", value_parser = line_rate)]
    line_rate: Rate,
    /// File with the events, or - for standard input
    #[arg(value_name = "EVENTS.json")]
    events: PathBuf,
}

fn preset(text: &str) -> Result<Preset, String> {
    Preset::from_name(text).map_err(|e| e.to_string())
}

fn line_rate(text: &str) -> Result<Rate, String> {
    /// 1 kb/s to 10 Tb/s, in Gb/s. Fixed rates have the same bounds.
    const GBPS: std::ops::RangeInclusive<f64> = 1e-6..=1e4;
    match text.parse::<f64>() {
        Ok(gbps) if GBPS.contains(&gbps) => Ok(Rate::from_gbps(gbps)),
        _ => Err("a line rate is a number of Gb/s from 0.000001 to 10000, such as 40 or 0.25".into()),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.what {
        What::Knobs { json: true } => {
            let knobs: Vec<_> = TABLE.iter().map(as_json).collect();
            formats::print(formats::CC, json!({ "knobs": knobs }))
        }
        What::Knobs { json: false } => table(),
        What::Replay(arguments) => replay(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("cc"),
    }
}

fn replay(arguments: &ReplayArguments) -> Result<(), Failure> {
    let mut control = Dcqcn::new(&knobs(arguments)?, arguments.line_rate);
    let name = match arguments.events.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => arguments.events.display().to_string(),
    };
    let text = read(&arguments.events).map_err(|e| Failure::Run(format!("cannot read {name}: {e}")))?;
    // Parse every event before running the first, so that a bad list prints no partial table.
    let events = replay::read(&text).map_err(|e| Failure::Run(format!("{name}: {e}")))?;
    events.iter().try_for_each(|event| output::line(event.run(&mut control)))
}

fn knobs(arguments: &ReplayArguments) -> Result<Knobs, Failure> {
    let mut knobs = Knobs::new(arguments.preset);
    for set in &arguments.sets {
        let Some((name, value)) = set.split_once('=') else {
            let why = format!("--set {set}: write KNOB=VALUE, such as rpg_ai_rate=40");
            return Err(Failure::Usage(why));
        };
        knobs.set(name.trim(), value.trim()).map_err(|e| Failure::Usage(format!("--set: {e}")))?;
    }
    knobs.check().map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(knobs)
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    match file.as_os_str() == "-" {
        true => io::stdin().lock().read_to_string(&mut text)?,
        false => File::open(file)?.read_to_string(&mut text)?,
    };
    Ok(text)
}

fn as_json(row: &Description) -> Value {
    json!({
        "name": row.name, "alias": row.alias, "unit": row.unit.to_string(), "range": row.range(),
        "connectx": row.text(row.connectx), "paper": row.text(row.paper), "help": row.help,
    })
}

fn table() -> Result<(), Failure> {
    let columns = |row: &Description| {
        let alias = if row.alias.is_empty() { "-" } else { row.alias };
        [
            row.name.to_owned(),
            alias.to_owned(),
            row.unit.to_string(),
            row.range(),
            row.text(row.connectx),
            row.text(row.paper),
            row.help.to_owned(),
        ]
    };
    let head = ["knob", "alias", "unit", "range", "connectx", "paper", "what it does"].map(str::to_owned);
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(TABLE.iter().map(columns)).collect();
    let widths: [usize; 7] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
    rows.iter().try_for_each(|row| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        output::line(cells.collect::<Vec<_>>().join("  ").trim_end())
    })
}
