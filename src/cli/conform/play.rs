//! A run against a target: connects, plays each check, shows progress, writes reports.

use std::fs;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use roxie_conform::agent::Agent;
use roxie_conform::bench::Bench;
use roxie_conform::report::{Report, junit, page};
use roxie_conform::run::{Outcome, run as play};
use roxie_conform::verdict::{Stop, Verdict};
use roxie_conform::wire::{Access, Wire};

use super::{BROKEN, CANNOT_RUN, Ended, Link, PlayArguments, USAGE};
use crate::ladder::{self, Ladder, Style};
use crate::output;

/// Time in which an agent takes a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Times that a lost agent is connected again in a run.
const COMEBACKS: u32 = 3;

/// Runs the chosen checks. Returns the exit code.
pub(super) fn run(arguments: &PlayArguments) -> Result<u8, Ended> {
    let Some(target) = arguments.target else {
        return Err(Ended(USAGE, "--target names the peer: see `roxie conform --help`".into()));
    };
    let checks = arguments.selection.checks();
    if checks.is_empty() {
        return Err(Ended(USAGE, "no check has such a name: see `roxie conform list`".into()));
    }
    let at = SocketAddr::new(arguments.agent.unwrap_or(target), arguments.agent_port);
    let access = arguments.link.map(|link| match link {
        Link::Raw => Access::Raw,
        Link::Socket => Access::Socket,
    });
    let cannot = |why: String| Ended(CANNOT_RUN, why);
    let wire =
        Wire::open(target, arguments.interface.as_deref(), access).map_err(|e| cannot(e.to_string()))?;
    let agent = Agent::connect(at, PATIENCE).map_err(|e| {
        cannot(format!(
            "no agent at {at}: {e}. At the target: `roxie conform agent > agent.c; cc agent.c -libverbs -lrdmacm -o agent; ./agent`"
        ))
    })?;
    let mut bench = Bench::new(agent, wire).map_err(|stop| cannot(cannot_begin(&stop, target)))?;
    if let Some(folder) = &arguments.captures {
        fs::create_dir_all(folder).map_err(|e| cannot(format!("{}: {e}", folder.display())))?;
    }
    let access = match bench.wire.access() {
        Access::Raw => "raw",
        Access::Socket => "socket",
    };
    let mut report =
        Report::new(target.to_string(), bench.wire.here().to_string(), access, bench.device.clone());
    output::line(format_args!(
        "target {target}: {}; bench {} ({access}), {} checks",
        report.device_in_words(),
        report.from,
        checks.len()
    ))?;
    let mut left = COMEBACKS;
    let mut again = || {
        left = left.checked_sub(1)?;
        Agent::connect(at, PATIENCE).ok()
    };
    for (n, check) in checks.iter().enumerate() {
        progress(n, checks.len(), &check.name);
        let mut outcome = play(check, &mut bench, &mut again);
        outcome.ladder = drawn(&outcome);
        progress(0, 0, "");
        if let Some(folder) = &arguments.captures {
            let file = folder.join(outcome.name.replace('/', "-") + ".pcapng");
            write(&file, &outcome.capture)?;
        }
        tell(&outcome, arguments.verbose)?;
        report.checks.push(outcome);
    }
    finish(arguments, &report)
}

/// Returns why a run cannot begin, and what to do.
fn cannot_begin(stop: &Stop, target: std::net::IpAddr) -> String {
    match stop {
        Stop::Silent(why) => format!(
            "{target} answers no RoCE packet, though its agent made a QP: {why}. Check the path for UDP port 4791, and that the device \
             of the agent has this address"
        ),
        other => format!("the agent cannot be used: {}", other.reason()),
    }
}

/// Prints a line for what is not kept, or for each outcome.
fn tell(outcome: &Outcome, verbose: bool) -> Result<(), Ended> {
    if outcome.verdict == Verdict::Keeps && !verbose {
        return Ok(());
    }
    output::line(format_args!("{:<10} {} ({})", outcome.verdict.words(), outcome.name, outcome.clause))?;
    if !outcome.came.is_empty() {
        output::line(format_args!("           {}", outcome.came))?;
    }
    if outcome.verdict == Verdict::Breaks {
        output::line(format_args!("           sent: {}", outcome.stimulus))?;
        output::line(format_args!("           asked: {}", outcome.asks))?;
        for line in outcome.ladder.lines() {
            output::line(format_args!("    {line}"))?;
        }
    }
    Ok(())
}

/// Shows what runs, on a terminal; nothing with an empty name.
fn progress(n: usize, all: usize, name: &str) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let text = if name.is_empty() { String::new() } else { format!("{}/{all} {name}", n + 1) };
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}

/// Draws the packets of a check.
fn drawn(outcome: &Outcome) -> String {
    let Ok(reading) = ladder::read(&outcome.capture[..]) else { return String::new() };
    if reading.seen.is_empty() {
        return String::new();
    }
    let Ok(passages) = ladder::meet(vec![reading.seen]) else { return String::new() };
    let style = Style { names: None, every: true };
    let ladders = ladder::pair(passages);
    let text: Vec<String> =
        ladders.iter().map(|connection| ladder::draw_text(&Ladder::of(connection, &style))).collect();
    text.join("\n")
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Ended> {
    fs::write(file, bytes).map_err(|e| Ended(CANNOT_RUN, format!("{}: {e}", file.display())))
}

/// Writes the reports, and prints verdicts by chapter. Returns the exit code.
fn finish(arguments: &PlayArguments, report: &Report) -> Result<u8, Ended> {
    output::line("")?;
    output::line(format_args!(
        "{:<30} {:>6} {:>7} {:>8} {:>11}",
        "chapter", "keeps", "breaks", "lenient", "not tested"
    ))?;
    for (chapter, [keeps, breaks, lenient, not_tested]) in report.chapters() {
        output::line(format_args!("{chapter:<30} {keeps:>6} {breaks:>7} {lenient:>8} {not_tested:>11}"))?;
    }
    output::line(report.summary())?;
    for (file, text) in
        [(&arguments.json, report.json()), (&arguments.junit, junit(report)), (&arguments.html, page(report))]
    {
        if let Some(file) = file {
            write(file, text.as_bytes())?;
        }
    }
    let tested = report.checks.len() - report.count(Verdict::NotTested);
    if tested == 0 {
        return Err(Ended(CANNOT_RUN, "no check could be run".into()));
    }
    Ok(if report.count(Verdict::Breaks) > 0 { BROKEN } else { 0 })
}
