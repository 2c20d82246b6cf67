//! Rows of NVMe over Fabrics: the kernel's nvme-rdma on Roxie's target, and Roxie's initiator on the kernel's
//! nvmet-rdma.
//!
//! The guest's end is the script `interop/guest/nvme`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use interop::disk;
use interop::end::{End, Ended, Local};
use interop::error::Error;
use interop::guest::output_folder;
use interop::local::program::{roxie as roxie_program, wait_until};
use interop::network::{LINK_MTU, Namespace, run};
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{Blocks, Impairment, Row, Side};
use serde_json::Value;

use super::guest_script::{self, ENDS_WITHIN, Failed, ended, outcome, pattern, same_as_kernel, words};
use super::programs::LISTENS_WITHIN;

const SCRIPT: &str = "roxie-nvme";
const NQN: &str = "nqn.2026-11.example:interop";
const SERVICE: &str = "4420";
/// Length of the kernel's disk in memory.
const KERNEL_LENGTH: usize = 4 << 20;

/// Runs a row of either side.
pub(super) fn blocks(test: Blocks, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let played = match row.requester {
        Side::Peer => kernel_is_host(test, row, roxie, peer),
        Side::Roxie => kernel_is_target(row, roxie, peer),
    };
    outcome(played, roxie)
}

/// Length of the guest's link for each path MTU of a long row.
const LINKS: [(usize, u64); 2] = [(1500, 1024), (LINK_MTU, 4096)];
/// I/O queues of a long row, for as many processors of the guest.
pub(crate) const QUEUES: u8 = 4;

/// Runs a row for `minutes` at each path MTU, with the kernel as host: 4 jobs of depth 32 write and verify blocks of 4
/// KiB to 1 MiB.
pub(super) fn for_minutes(
    minutes: u32,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
    site: &Namespace,
) -> Outcome {
    let disk = output_folder().join("nvme.img");
    let played = verify(minutes, &disk, row, roxie, peer, site);
    // The next row has the site's MTU again.
    let restored = script(peer, &format!("mtu {LINK_MTU}"));
    outcome(played.and(restored.map(drop)), roxie)
}

fn verify(
    minutes: u32,
    disk: &Path,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
    site: &Namespace,
) -> Result<(), Failed> {
    disk::create(disk)?;
    let here = roxie.address(row.family)?;
    start_target(disk, row, roxie)?;
    // Each lost packet costs the kernel half a second, so that a round of the whole disk would take too long.
    let kib = if row.fault() == Impairment::None { disk::LENGTH >> 10 } else { 8192 };
    let seconds = u64::from(minutes) * 60;
    let mut has_reconnected = false;
    for (link, path) in LINKS {
        script(peer, &format!("mtu {link}"))?;
        script(peer, &format!("connect {here} {SERVICE} {NQN} 1 rdma {QUEUES}"))?;
        have_path_mtu(path, site)?;
        let job = peer.spawn(SCRIPT, &words(&format!("verify {seconds} {kib}")))?;
        // The last round begins before the time is over.
        let done = ended(peer.wait(job, Duration::from_secs(seconds) + 5 * ENDS_WITHIN)?)?;
        println!("{row}: path MTU {path}: {}", done.output.trim());
        has_reconnected |= !done.output.contains(" 0 reconnections");
    }
    let target = end_target(roxie)?;
    if has_reconnected {
        println!("{row}: the target: {}", target.output.trim());
    }
    Ok(fs::remove_file(disk).map_err(Error::file(disk))?)
}

/// Waits until the target has the queue pairs of the admin queue and of [`QUEUES`] I/O queues, all with this path MTU.
fn have_path_mtu(path: u64, site: &Namespace) -> Result<(), Failed> {
    let program = roxie_program()?;
    let path_mtus = || -> Result<Vec<u64>, Error> {
        let mut show = site.command(&program.to_string_lossy());
        let text = run(show.args(["show", "qps", "--json"]))?;
        let all: Value = serde_json::from_str(&text).map_err(|e| Error::Local(format!("roxie show: {e}")))?;
        let connected = all["qps"].as_array().into_iter().flatten().filter(|qp| qp["type"] == "RC");
        Ok(connected.filter_map(|qp| qp["path_mtu"].as_u64()).collect())
    };
    let wanted = vec![path; usize::from(QUEUES) + 1];
    if wait_until(LISTENS_WITHIN, || Ok(path_mtus()? == wanted))? {
        return Ok(());
    }
    Err(Failed::Other(format!(
        "the target's queue pairs have the path MTUs {:?}, not {wanted:?}",
        path_mtus()?
    )))
}

/// Runs the guest's script to its end.
fn script(peer: &mut Peer, line: &str) -> Result<Ended, Failed> {
    guest_script::script(peer, SCRIPT, line)
}

/// Makes a file system on a disk of Roxie's, with the kernel as host. Then the target ends by SIGTERM, and its file has
/// a file system.
fn kernel_is_host(test: Blocks, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let disk = output_folder().join("nvme.img");
    disk::create(&disk)?;
    let here = roxie.address(row.family)?;
    start_target(&disk, row, roxie)?;
    script(peer, &format!("connect {here} {SERVICE} {NQN}"))?;
    // Each lost packet costs the kernel half a second: its connection manager sets that timeout.
    let kib = if row.fault() == Impairment::None { 4096 } else { 128 };
    let job = peer.spawn(SCRIPT, &words(&format!("use {kib}")))?;
    if test == Blocks::Restarted {
        restart_under_load(&disk, row, roxie)?;
    }
    ended(peer.wait(job, ENDS_WITHIN)?)?;
    end_target(roxie)?;
    disk::has_file_system(&disk)?;
    fs::remove_file(&disk).map_err(Error::file(&disk))?;
    Ok(())
}

/// Ends the target by SIGTERM, after which its exit code must be 0.
fn end_target(roxie: &mut dyn Local) -> Result<Ended, Failed> {
    roxie.terminate()?;
    let target = roxie.wait(ENDS_WITHIN)?;
    if target.code == Some(0) { Ok(target) } else { Err(Failed::Program("the target", target)) }
}

fn start_target(disk: &Path, row: &Row, roxie: &mut dyn Local) -> Result<(), Failed> {
    roxie.command(["nvme", "target"], &words(&format!("--nqn {NQN} {}", disk.display())))?;
    match roxie.wait_for_claim(row.port, LISTENS_WITHIN)? {
        true => Ok(()),
        false => Err(Failed::Program("the target does not start", roxie.wait(Duration::ZERO)?)),
    }
}

/// Kills the target once the kernel has written some blocks, and starts it again. The kernel reconnects by itself.
fn restart_under_load(disk: &Path, row: &Row, roxie: &mut dyn Local) -> Result<(), Failed> {
    let writes = || Ok(fs::metadata(disk).map_err(Error::file(disk))?.blocks() > 0);
    if !wait_until(ENDS_WITHIN, writes)? {
        return Err(Failed::Other("the kernel writes nothing".into()));
    }
    roxie.end_program();
    start_target(disk, row, roxie)
}

/// Writes and reads a disk of the kernel's target with Roxie as host, and compares both with the kernel's own view.
fn kernel_is_target(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let there = peer.address(row.family)?;
    script(peer, &format!("serve {there} {SERVICE} {NQN} {}", KERNEL_LENGTH >> 10))?;
    let result = use_kernel_target(&there.to_string(), roxie, peer);
    // The next row finds no target.
    let stopped = script(peer, "stop");
    result.and(stopped.map(drop))
}

fn use_kernel_target(there: &str, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let folder = output_folder();
    let (sent, received) = (folder.join("nvme-sent"), folder.join("nvme-received"));
    let bytes = pattern(KERNEL_LENGTH);
    fs::write(&sent, &bytes).map_err(Error::file(&sent))?;
    let listed = host(roxie, "list", there, "", 0)?;
    if !listed.output.contains(NQN) {
        return Err(Failed::Program("the subsystem is not listed", listed));
    }
    let of = |path: &Path| path.display().to_string();
    host(roxie, "write", there, &format!("--nqn {NQN} -i {}", of(&sent)), 0)?;
    same_as_kernel(&bytes, peer, SCRIPT, "written")?;
    script(peer, "fill")?;
    host(roxie, "read", there, &format!("--nqn {NQN} -o {}", of(&received)), 0)?;
    let back = fs::read(&received).map_err(Error::file(&received))?;
    same_as_kernel(&back, peer, SCRIPT, "read")?;
    host(roxie, "bench", there, &format!("--nqn {NQN} --write --verify -D 2 -t 16"), 0)?;
    let refused = host(roxie, "read", there, &format!("--nqn {NQN} -n 2"), 4)?;
    if !refused.output.contains("namespace 2 is not active") {
        return Err(Failed::Program("namespace 2, which does not exist", refused));
    }
    let refused = host(roxie, "id", there, "--nqn nqn.2026-11.example:other", 4)?;
    if !refused.output.contains("connect invalid parameters") {
        return Err(Failed::Program("another subsystem, which does not exist", refused));
    }
    for path in [&sent, &received] {
        fs::remove_file(path).map_err(Error::file(path))?;
    }
    Ok(())
}

/// Runs `roxie nvme`, which must end with this code.
fn host(
    roxie: &mut dyn Local,
    command: &str,
    there: &str,
    options: &str,
    code: i32,
) -> Result<Ended, Failed> {
    let line = format!("{there} {options}");
    guest_script::command(roxie, ["nvme", command], line.trim_end(), code)
}
