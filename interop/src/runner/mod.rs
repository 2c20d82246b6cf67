//! Runs rows in order, reports them, and keeps captures of failures.

mod conform;
mod disks;
mod distros;
mod ends;
mod guest_script;
mod iser;
mod networks;
mod nfs;
mod nvme;
mod pair;
mod programs;
mod versus;
mod zero_copy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use interop::end::{End, Local, Setup, Unready};
use interop::error::Error;
use interop::exec;
use interop::guest::{output_folder, peer_sources};
use interop::network::{Namespace, command_line, run};
use interop::peer::{About, Peer};
use interop::report::{Outcome, Report};
use interop::rows::{
    Blocks, Case, ErrorCase, Family, Feature, Impairment, Network, Odd, Program, Row, Side, Wrong,
};
use interop::skip::SkipReason;
use interop::wire::Wire;

pub(crate) use disks::disks;
pub(crate) use distros::{Wanted, distros, remove};
pub(crate) use networks::{Links, namespaces};
pub(crate) use nvme::QUEUES;
pub(crate) use versus::versus;
pub(crate) use zero_copy::zero_copy;

/// Time limit of a run, before the time for its rows. Rows beyond the limit are missing, and fail the run.
const BUDGET: Duration = Duration::from_secs(20 * 60);
/// Time for each row: three times what a row takes on average on two processors.
const ROW_BUDGET: Duration = Duration::from_secs(1);

/// The ends of a run.
pub(crate) struct Ends<'a, 'b> {
    pub(crate) roxie: &'a mut (dyn Local + 'b),
    pub(crate) peer: &'a mut Peer,
    pub(crate) links: Links<'b>,
    /// How long rows of NVMe over Fabrics with the kernel as host verify blocks at each path MTU, if not only for
    /// seconds.
    pub(crate) minutes: Option<u32>,
}

impl Ends<'_, '_> {
    /// Returns the minutes and the site, if a row runs for minutes.
    fn minutes(&self, row: &Row) -> Option<(u32, &Namespace)> {
        let is_long = matches!(row.case, Case::Nvme(Blocks::Moved(_))) && row.requester == Side::Peer;
        self.minutes.zip(self.links.site).filter(|_| is_long)
    }
}

/// Runs the matrix between Roxie and the peer. True if the whole run is good.
pub(crate) fn matrix(rows: &[Row], mut ends: Ends<'_, '_>, keep: bool, report: &Path) -> Result<bool, Error> {
    let about = ends.peer.about().clone();
    let (device, kernel, rdma_core) = (&about.device, &about.kernel, &about.rdma_core);
    println!("peer: {device} on kernel {kernel}, rdma-core {rdma_core}, {} rows", rows.len());
    let captures = output_folder().join("captures");
    fs::create_dir_all(&captures).map_err(Error::file(&captures))?;
    // Two path MTUs, with as much time for the last rounds.
    let minutes: u32 =
        rows.iter().filter_map(|row| ends.minutes(row)).map(|(minutes, _)| 2 * minutes + 20).sum();
    in_order(rows, about, report, Duration::from_secs(60) * minutes, |row| {
        if ends.peer.is_lost() {
            return Outcome::Fail("the connection to the peer is lost: see an earlier row".into());
        }
        match ends.links.prepare(row, ends.peer) {
            Ok(()) => {}
            Err(Unready::Skip(reason)) => return Outcome::Skip(reason),
            Err(Unready::Failed(error)) => return Outcome::Fail(error.to_string()),
        }
        if let Some(reason) = peer_lacks(row, ends.peer) {
            return Outcome::Skip(reason);
        }
        match judged(row, &mut ends, &captures, keep) {
            Outcome::Fail(reason) => Outcome::Fail(format!("{reason} (seed {:#x})", row.seed())),
            other => other,
        }
    })
}

/// Runs a row; a failure leaves a capture. Faults come from a seed, but network timing does not, so rows with faults
/// are captured in the first run. Other rows can share an open port, and are run again for the capture; the second
/// outcome is reported but does not count.
fn judged(row: &Row, ends: &mut Ends<'_, '_>, captures: &Path, keep: bool) -> Outcome {
    if ends.minutes(row).is_some() {
        // A capture of minutes would fill the disk.
        return one(row, ends, None);
    }
    let file = captures.join(row.to_string().replace('/', "-") + ".pcapng");
    let path = file.display();
    if keep || row.fault() != Impairment::None {
        return match one(row, ends, Some(&file)) {
            Outcome::Fail(reason) => Outcome::Fail(format!("{reason}; capture {path}")),
            other => {
                if !keep {
                    // A skipped row has no capture.
                    let _ = fs::remove_file(&file);
                }
                other
            }
        };
    }
    match one(row, ends, None) {
        Outcome::Fail(reason) if !ends.peer.is_lost() => {
            let again = match one(row, ends, Some(&file)) {
                Outcome::Pass => "which passed".to_owned(),
                Outcome::Fail(again) => format!("with: {again}"),
                Outcome::Skip(why) => format!("which was skipped: {why}"),
            };
            Outcome::Fail(format!("{reason}; capture of a second run, {again}: {path}"))
        }
        other => other,
    }
}

/// Runs the clean and the error rows between two sessions of one peer, which shows what rxe does with itself. Port and
/// requester make no difference then, so each distinct row runs once.
pub(crate) fn self_check(rows: &[Row], a: &mut Peer, b: &mut Peer) -> Result<bool, Error> {
    let of_verbs = |row: &&Row| {
        row.requester == Side::Peer
            && row.port == rows[0].port
            && match row.case {
                Case::Transfer { fault, .. } => fault == Impairment::None,
                Case::Error(_) => true,
                // FLUSH for persistence needs persistent memory.
                Case::Feature(feature) => {
                    feature != Feature::FlushPersistent || !a.quirks().wants_persistent_memory
                }
                _ => false,
            }
    };
    let rows: Vec<Row> = rows.iter().filter(of_verbs).copied().collect();
    let report = output_folder().join("self-check.json");
    in_order(&rows, a.about().clone(), &report, Duration::ZERO, |row| match peer_lacks(row, a) {
        Some(reason) => Outcome::Skip(reason),
        None => verbs(row, a, b),
    })
}

/// Runs rows until the time limit, which is `more` beside that of their number, and always writes the report.
fn in_order(
    rows: &[Row],
    about: About,
    path: &Path,
    more: Duration,
    mut one: impl FnMut(&Row) -> Outcome,
) -> Result<bool, Error> {
    let start = Instant::now();
    let budget = more + BUDGET + ROW_BUDGET * rows.len() as u32;
    let mut report = Report::new(about, rows.iter().map(Row::to_string).collect());
    for row in rows {
        if start.elapsed() > budget {
            eprintln!("the time limit of {} s is over", budget.as_secs());
            break;
        }
        let row_start = Instant::now();
        let outcome = one(row);
        report.add(&row.to_string(), &outcome, row_start.elapsed());
    }
    report.write(path)?;
    for (name, reason) in report.skips() {
        println!("SKIP interop {name}: {reason}");
    }
    let totals = report.totals();
    println!("{totals} in {:.1} s; {}", start.elapsed().as_secs_f64(), path.display());
    Ok(totals.good())
}

/// Returns why a row does not apply to the peer.
fn peer_lacks(row: &Row, peer: &Peer) -> Option<SkipReason> {
    let about = peer.about();
    if !peer.has_address(row.family) {
        return Some(SkipReason::PeerHasNoAddress);
    }
    if row.is_placement() && !peer.has_placement() {
        return Some(SkipReason::PeerHasNoPlacement);
    }
    match row.case {
        Case::Transfer { mtu, .. } if mtu > about.active_mtu => Some(SkipReason::PeerMtuTooSmall),
        Case::Over(Network::Vlan, of) if of.mtu > about.active_mtu => Some(SkipReason::PeerMtuTooSmall),
        Case::Transfer { op, .. } if op.is_atomic() && !about.atomics => Some(SkipReason::PeerHasNoAtomics),
        Case::Feature(Feature::FlushPersistent)
            if row.requester == Side::Roxie && peer.quirks().wants_persistent_memory =>
        {
            Some(SkipReason::PeerHasNoPersistentMemory)
        }
        Case::Error(ErrorCase::MisalignedAtomic | ErrorCase::MisalignedAtomicWrite)
            if row.requester == Side::Peer && peer.quirks().refuses_misaligned_atomics =>
        {
            Some(SkipReason::PeerRefusesToPost)
        }
        Case::Program(program) | Case::Fallback(program) | Case::Profiled(_, program) => {
            program_lacks(program, row, peer)
        }
        _ => None,
    }
}

/// Returns why a stock program's row does not apply to the peer.
fn program_lacks(program: Program, row: &Row, peer: &Peer) -> Option<SkipReason> {
    let quirks = peer.quirks();
    if program.is_xrc() && quirks.has_no_xrc {
        return Some(SkipReason::PeerHasNoXrc);
    }
    if program.names_no_gid() {
        return Some(SkipReason::ProgramNamesNoGid);
    }
    if program.is_of_a_group() && row.family == Family::V6 && quirks.joins_no_v6_group {
        return Some(SkipReason::PeerJoinsNoV6Group);
    }
    if program.is_of_a_group() && row.requester == Side::Peer && quirks.forgets_unsent {
        return Some(SkipReason::PeerForgetsUnsent);
    }
    None
}

fn one(row: &Row, ends: &mut Ends<'_, '_>, capture: Option<&Path>) -> Outcome {
    let minutes = ends.minutes.filter(|_| ends.minutes(row).is_some());
    let Ends { roxie, peer, links, .. } = ends;
    let (roxie, peer) = (&mut **roxie, &mut **peer);
    let setup = Setup {
        port: row.port,
        fault: row.fault(),
        seed: row.seed(),
        control: row.control(),
        network: row.network(),
        program_option: row.program_option(),
        capture: capture.map(Path::to_owned),
    };
    if row.network().is_between_devices() {
        return links.between(row, &setup);
    }
    if let Case::Bond(bond) = row.case {
        return networks::bond(bond, row.port, peer, links.site);
    }
    match roxie.prepare(&setup) {
        Ok(()) => {}
        Err(Unready::Skip(reason)) => return Outcome::Skip(reason),
        Err(Unready::Failed(error)) => return Outcome::Fail(error.to_string()),
    }
    let outcome = match (row.case, row.requester) {
        (Case::Pingpong(program), _) => programs::pingpong(program, row, roxie, peer),
        (Case::Program(program) | Case::Profiled(_, program), _) => {
            programs::unmodified(program, row, roxie, peer)
        }
        (Case::Fallback(program), _) => match programs::unmodified(program, row, roxie, peer) {
            Outcome::Pass => capture.and_then(networks::is_not_plain).map_or(Outcome::Pass, Outcome::Fail),
            other => other,
        },
        (Case::Conform, _) => conform::bench(row, roxie, peer),
        (Case::Iser(_), _) => iser::units(row, roxie, peer),
        (Case::Nfs(_), _) => nfs::files(row, roxie, peer),
        (Case::Nvme(test), _) => match minutes.zip(links.site) {
            Some((minutes, site)) => nvme::for_minutes(minutes, row, roxie, peer, site),
            None => nvme::blocks(test, row, roxie, peer),
        },
        (Case::Wrong(wrong), _) => play_wrong(wrong, row.family, roxie, peer),
        (Case::Odd(odd), _) => play_odd(odd, row.family, roxie, peer),
        (_, Side::Roxie) => verbs(row, roxie, peer),
        (_, Side::Peer) => verbs(row, peer, roxie),
    };
    match roxie.finish() {
        Err(error) if outcome == Outcome::Pass => Outcome::Fail(error.to_string()),
        _ => outcome,
    }
}

fn verbs(row: &Row, requester: &mut dyn End, responder: &mut dyn End) -> Outcome {
    match exec::run(row, requester, responder) {
        Ok(()) => Outcome::Pass,
        Err(failure) => Outcome::Fail(failure.to_string()),
    }
}

/// Plays a script of requests from a socket in place of Roxie.
fn play_wrong(wrong: Wrong, family: Family, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let want = wrong.rule().of_rxe(&peer.about().kernel);
    played(roxie, peer, family, |wire, peer| exec::wrong::run(wrong, family, wire, peer, want))
}

/// Plays a script of responses to the peer's requests.
fn play_odd(odd: Odd, family: Family, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let want = odd.rule().of_rxe(&peer.about().kernel);
    played(roxie, peer, family, |wire, peer| exec::odd::run(odd, family, wire, peer, want))
}

fn played(
    roxie: &mut dyn Local,
    peer: &mut Peer,
    family: Family,
    script: impl FnOnce(&mut Wire, &mut Peer) -> Result<(), exec::Failure>,
) -> Outcome {
    let played = roxie.replace_by_script(family).map_err(exec::Failure::End).and_then(|mut wire| {
        let result = script(&mut wire, peer);
        let cleaned = peer.reset();
        result?;
        Ok(cleaned?)
    });
    match played {
        Ok(()) => Outcome::Pass,
        Err(failure) => Outcome::Fail(failure.to_string()),
    }
}

/// Builds the peer program on a host with ssh and starts a session with it.
pub(crate) fn hardware_peer(target: &str, device: &str, gid_index: Option<u32>) -> Result<Peer, Error> {
    // One ssh call copies and builds the sources, one runs the session. Nothing listens on the network.
    const FOLDER: &str = ".cache/roxie-peer";
    let copy = format!(
        "tar -C {} -cf - . | ssh -o BatchMode=yes {target} 'mkdir -p {FOLDER} && tar -C {FOLDER} -xf - && \
         set -- $(pkg-config --modversion libibverbs | tr . \" \") && \
         gcc -std=gnu11 -D_GNU_SOURCE -DRDMA_CORE_MAJOR=$3 -DRDMA_CORE_MINOR=$4 -O2 {FOLDER}/*.c -o {FOLDER}/peer -libverbs'",
        quoted(&peer_sources())
    );
    run(Command::new("sh").args(["-c", &copy]))?;
    let mut session = Command::new("ssh");
    session.args(["-o", "BatchMode=yes", target, &format!("{FOLDER}/peer --device {device} --stdio")]);
    println!("peer: {}", command_line(&session));
    let mut peer = Peer::over_command(session)?;
    if let Some(index) = gid_index {
        peer.keep_gid(index)?;
    }
    Ok(peer)
}

/// Quotes a path as one word of the shell.
fn quoted(path: &Path) -> String {
    let path: PathBuf = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_quote_stays_one_word() {
        assert_eq!(quoted(Path::new("/no/such/it's")), r"'/no/such/it'\''s'");
    }
}
