//! Rows of the conformance bench: `roxie conform` here, its agent at the peer. The rules that rdma_rxe breaks are
//! recorded.

use std::fs;
use std::time::Duration;

use interop::end::{End, Local};
use interop::error::Error;
use interop::exec::broken;
use interop::guest::output_folder;
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{PortKind, Row};
use interop::skip::SkipReason;
use roxie_conform_bench::agent::PORT;
use roxie_conform_bench::report::Report;

use super::programs::{LISTENS_WITHIN, NO_SUCH_PROGRAM};

/// Name of the agent in the guest.
const AGENT: &str = "roxie-conform-agent";
/// Time for all checks, which take 40 s on a busy host.
const ENDS_WITHIN: Duration = Duration::from_secs(180);
/// Exit codes of a run that judged all checks: the target keeps all rules, or breaks some.
const JUDGED: [i32; 2] = [0, 1];

/// Runs all checks of the bench against the peer, and compares the broken rules with the recorded ones.
pub(super) fn bench(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    judged(row, roxie, peer).unwrap_or_else(|error| Outcome::Fail(error.to_string()))
}

fn judged(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<Outcome, Error> {
    let device = peer.about().device.clone();
    let agent = peer.spawn(AGENT, &["-d".to_owned(), device])?;
    if !peer.wait_for_listener(PORT, LISTENS_WITHIN)? {
        let ended = peer.wait(agent, Duration::ZERO)?;
        return Ok(match ended.code {
            Some(NO_SUCH_PROGRAM) => Outcome::Skip(SkipReason::ProgramMissing),
            _ => Outcome::Fail(format!("the agent does not listen: {ended:?}")),
        });
    }
    let played = play(row, roxie, peer);
    // An agent serves client after client, until it is killed here.
    let agent = peer.wait(agent, Duration::ZERO)?;
    Ok(match played? {
        Outcome::Fail(why) => Outcome::Fail(format!("{why}; the agent: {agent:?}")),
        other => other,
    })
}

fn play(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<Outcome, Error> {
    let folder = output_folder();
    fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    let path = folder.join(row.to_string().replace('/', "-") + ".json");
    let link = if row.port == PortKind::Udp { "socket" } else { "raw" };
    let there = peer.address(row.family)?.to_string();
    let file = path.display().to_string();
    roxie.bench(&["--target", &there, "--link", link, "--json", &file].map(String::from))?;
    let ended = roxie.wait(ENDS_WITHIN)?;
    if !ended.code.is_some_and(|code| JUDGED.contains(&code)) {
        return Ok(Outcome::Fail(format!("the bench: {ended:?}")));
    }
    let json = fs::read_to_string(&path).map_err(Error::file(&path))?;
    let differences = Report::read(&json).map(|report| broken::differences(&report, &peer.about().kernel));
    Ok(match differences {
        Ok(differences) if differences.is_empty() => Outcome::Pass,
        Ok(differences) => Outcome::Fail(format!("{}; report {file}", differences.join("; "))),
        Err(why) => Outcome::Fail(format!("{file}: {why}")),
    })
}
