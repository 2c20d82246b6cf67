//! A run against a target: connects, plays each check, shows progress, writes reports.

use std::net::{IpAddr, SocketAddr};

use roxie_conform_bench::bench::Bench;
use roxie_conform_bench::report::Report;
use roxie_conform_bench::run::run as play;
use roxie_conform_bench::verdict::Stop;
use roxie_conform_bench::wire::{Access, Wire};
use roxie_report::output;

use super::expect::Expected;
use super::reach::Reach;
use super::report::{finish, make_folder, take};
use super::{BROKEN, CANNOT_RUN, Ended, Link, PlayArguments, USAGE, fuzz};

/// Times that a lost agent is connected again in a run.
const COMEBACKS: u32 = 3;

/// Runs the chosen checks, or fuzzes. Returns the exit code.
pub(super) fn run(arguments: &PlayArguments) -> Result<u8, Ended> {
    if let Some(through) = arguments.through.chosen() {
        return through.run(arguments);
    }
    let Some(target) = arguments.target else {
        return Err(Ended(
            USAGE,
            "--target names the peer, --through two ends of a wire: see `roxie conform --help`".into(),
        ));
    };
    let expected = arguments.expect.as_deref().map(Expected::find).transpose();
    let expected = expected.map_err(|error| Ended(USAGE, error.to_string()))?;
    let fuzzing = arguments.fuzz.chosen()?;
    let checks = arguments.selection.checks();
    if checks.is_empty() {
        return Err(Ended(USAGE, "no check has such a name: see `roxie conform list`".into()));
    }
    if let Some(expected) = &expected {
        expected.check(&checks)?;
    }
    let mut reach = match &arguments.ssh {
        Some(host) => Reach::Ssh { host: host.clone(), device: arguments.ssh_device.clone(), running: None },
        None => Reach::Port(SocketAddr::new(arguments.agent.unwrap_or(target), arguments.agent_port)),
    };
    let mut bench = open(arguments, target, &mut reach)?;
    let access = match bench.wire.access() {
        Access::Raw => "raw",
        Access::Socket => "socket",
    };
    let mut report =
        Report::new(target.to_string(), bench.wire.here().to_string(), access, bench.device.clone());
    let what = fuzzing.as_ref().map_or_else(|| format!("{} checks", checks.len()), fuzz::Fuzzing::words);
    output::line(format_args!(
        "target {target}: {}; bench {} ({access}), {what}",
        report.device_in_words(),
        report.from,
    ))?;
    if let Some(fuzzing) = fuzzing {
        fuzzing.run(arguments, &mut bench, &mut reach, &mut report)?;
        return finish(arguments, &report);
    }
    let mut left = COMEBACKS;
    let mut again = || {
        left = left.checked_sub(1)?;
        reach.connect().ok()
    };
    for (n, check) in checks.iter().enumerate() {
        output::progress(format_args!("{}/{} {}", n + 1, checks.len(), check.name));
        take(play(check, &mut bench, &mut again), arguments, &mut report)?;
    }
    let code = finish(arguments, &report)?;
    match expected {
        None => Ok(code),
        Some(expected) => Ok(if expected.compare(&report.checks)? { 0 } else { BROKEN }),
    }
}

/// Opens the link, connects to the agent, and makes the folder for captures.
fn open(arguments: &PlayArguments, target: IpAddr, reach: &mut Reach) -> Result<Bench, Ended> {
    let access = arguments.link.map(|link| match link {
        Link::Raw => Access::Raw,
        Link::Socket => Access::Socket,
    });
    let cannot = |why: String| Ended(CANNOT_RUN, why);
    let wire =
        Wire::open(target, arguments.interface.as_deref(), access).map_err(|e| cannot(e.to_string()))?;
    let agent = reach.connect().map_err(|e| {
        cannot(format!(
            "{}: {e}. At the target: `roxie conform agent > agent.c; cc agent.c -libverbs -lrdmacm -o agent; ./agent`",
            reach.words()
        ))
    })?;
    let bench = Bench::new(agent, wire).map_err(|stop| cannot(cannot_begin(&stop, target)))?;
    make_folder(arguments)?;
    Ok(bench)
}

/// Returns why a run cannot begin, and what to do.
fn cannot_begin(stop: &Stop, target: IpAddr) -> String {
    match stop {
        Stop::Silent(why) => format!(
            "{target} answers no RoCE packet, though its agent made a QP: {why}. Check the path for UDP port 4791, and that the device \
             of the agent has this address"
        ),
        other => format!("the agent cannot be used: {}", other.reason()),
    }
}
