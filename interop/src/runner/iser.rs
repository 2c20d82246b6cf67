//! Rows of iSCSI over RDMA (iSER), with unmodified programs here: the kernel's ib_iser on tgtd, and libiscsi on the
//! kernel's ib_isert.
//!
//! The guest's end is the script `interop/guest/iser`, tgtd is started by `interop/tgt`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use interop::disk;
use interop::end::{End, Ended, Local};
use interop::error::Error;
use interop::guest::{output_folder, sources};
use interop::local::program::wait_until;
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{Impairment, Row, Side};

use super::guest_script::{self, ENDS_WITHIN, Failed, outcome, pattern, same_as_kernel, words};
use super::programs::{LISTENS_WITHIN, NO_SUCH_PROGRAM};

const SCRIPT: &str = "roxie-iser";
const IQN: &str = "iqn.2026-11.example:interop";
/// The kernel's name, as the guest's script has it.
const INITIATOR: &str = "iqn.2026-11.example:guest";
const SERVICE: u16 = 3260;
/// jemalloc, in the C library's place.
const ALLOCATOR: &str = "libjemalloc.so.2";
/// Length of the kernel's disk in memory.
const KERNEL_LENGTH: usize = 4 << 20;

/// Runs a row of either side. The requester is the initiator.
pub(super) fn units(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let played = match row.requester {
        Side::Peer => kernel_is_initiator(row, roxie, peer),
        Side::Roxie => kernel_is_target(row, roxie, peer),
    };
    outcome(played, roxie)
}

/// Runs the guest's script to its end.
fn script(peer: &mut Peer, line: &str) -> Result<Ended, Failed> {
    guest_script::script(peer, SCRIPT, line)
}

/// Makes a file system on a disk of tgtd's, with the kernel as initiator. Then tgtd ends by SIGTERM, and its file has a
/// file system.
fn kernel_is_initiator(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let disk = output_folder().join("iser.img");
    disk::create(&disk)?;
    let here = roxie.address(row.family)?;
    start_tgtd(&disk, roxie)?;
    script(peer, &format!("connect {here} {SERVICE} {IQN}"))?;
    let kib = if row.fault() == Impairment::None { 4096 } else { 128 };
    script(peer, &format!("use {kib}"))?;
    roxie.terminate()?;
    let target = roxie.wait(ENDS_WITHIN)?;
    if target.code != Some(0) {
        return Err(not_well("tgtd", target));
    }
    disk::has_file_system(&disk)?;
    fs::remove_file(&disk).map_err(Error::file(&disk))?;
    Ok(())
}

fn start_tgtd(disk: &Path, roxie: &mut dyn Local) -> Result<(), Failed> {
    let ready = PathBuf::from(format!("{}.ready", disk.display()));
    let _ = fs::remove_file(&ready);
    let start = sources().join("tgt");
    roxie.program(&start.to_string_lossy(), &words(&format!("{} {IQN} {INITIATOR}", disk.display())))?;
    match wait_until(LISTENS_WITHIN, || Ok(ready.exists()))? {
        true => Ok(()),
        false => Err(not_well("tgtd does not start", roxie.wait(Duration::ZERO)?)),
    }
}

/// Writes and reads a disk of the kernel's target with QEMU's libiscsi, and compares both with the kernel's own view.
fn kernel_is_target(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let there = peer.address(row.family)?;
    script(peer, &format!("serve {there} {SERVICE} {IQN} {}", KERNEL_LENGTH >> 10))?;
    let result = use_kernel_target(&unit(there), roxie, peer);
    // The next row finds no target.
    let stopped = script(peer, "stop");
    result.and(stopped.map(drop))
}

/// Returns QEMU's options for the kernel's unit 0. libiscsi before 1.20 has buffers of 256 KiB, and waits for ever with
/// a longer command.
fn unit(there: IpAddr) -> String {
    let portal = SocketAddr::new(there, SERVICE);
    let iscsi = [
        ("driver", "iscsi"),
        ("transport", "iser"),
        ("portal", &portal.to_string()),
        ("target", IQN),
        ("lun", "0"),
    ];
    let below = iscsi.map(|(name, value)| format!("file.image.{name}={value}")).join(",");
    format!("driver=raw,file.driver=blkdebug,file.max-transfer=262144,{below}")
}

fn use_kernel_target(unit: &str, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let folder = output_folder();
    let (sent, received) = (folder.join("iser-sent"), folder.join("iser-received"));
    let bytes = pattern(KERNEL_LENGTH);
    fs::write(&sent, &bytes).map_err(Error::file(&sent))?;
    qemu_img(roxie, &format!("convert -n -f raw --target-image-opts {} {unit}", sent.display()))?;
    same_as_kernel(&bytes, peer, SCRIPT, "written")?;
    script(peer, "fill")?;
    qemu_img(roxie, &format!("convert --image-opts -O raw {unit} {}", received.display()))?;
    let back = fs::read(&received).map_err(Error::file(&received))?;
    same_as_kernel(&back, peer, SCRIPT, "read")?;
    for path in [&sent, &received] {
        fs::remove_file(path).map_err(Error::file(path))?;
    }
    Ok(())
}

/// Runs `qemu-img`, which must end well. libiscsi before 1.20 needs an allocator that clears memory, and leaves freed
/// memory as it is: it does not clear its connection when it makes one, and its thread posts the connection's semaphore
/// after it was freed. glibc's `MALLOC_PERTURB_` overwrites freed memory, and such a semaphore ends the program.
fn qemu_img(roxie: &mut dyn Local, line: &str) -> Result<(), Failed> {
    let script = format!("LD_PRELOAD={ALLOCATOR}:$LD_PRELOAD MALLOC_CONF=zero:true exec qemu-img {line}");
    roxie.program("sh", &["-c".to_owned(), script])?;
    let ended = roxie.wait(ENDS_WITHIN)?;
    match ended.code {
        Some(0) => Ok(()),
        _ => Err(not_well("qemu-img", ended)),
    }
}

/// Returns why a program did not do its work. Debian has QEMU's part for iSER in a package of its own,
/// `qemu-block-extra`.
fn not_well(what: &'static str, ended: Ended) -> Failed {
    match ended.code {
        Some(NO_SUCH_PROGRAM) => Failed::Missing,
        _ if ended.output.contains("Unknown protocol 'iser'") => Failed::Missing,
        _ => Failed::Program(what, ended),
    }
}
