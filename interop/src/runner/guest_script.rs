//! Rows in which the guest's kernel is one end of a storage protocol, driven by a script of the guest.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use interop::end::{Ended, Local};
use interop::error::Error;
use interop::guest::output_folder;
use interop::network::run;
use interop::peer::Peer;
use interop::report::Outcome;
use interop::skip::SkipReason;

use super::programs::NO_SUCH_PROGRAM;

/// Time for a program, in an emulated guest on a busy host.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// Why a row did not pass.
pub(super) enum Failed {
    Error(Error),
    Program(&'static str, Ended),
    Other(String),
    /// The peer has no script.
    Missing,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Error(error)
    }
}

/// Returns the outcome of a played row. Ends a program of Roxie's that a failed row has left: it must not keep the
/// interface.
pub(super) fn outcome(played: Result<(), Failed>, roxie: &mut dyn Local) -> Outcome {
    if played.is_err() {
        roxie.end_program();
    }
    match played {
        Ok(()) => Outcome::Pass,
        Err(Failed::Error(error)) => Outcome::Fail(error.to_string()),
        Err(Failed::Program(what, ended)) => Outcome::Fail(format!("{what}: {ended:?}")),
        Err(Failed::Other(why)) => Outcome::Fail(why),
        Err(Failed::Missing) => Outcome::Skip(SkipReason::ProgramMissing),
    }
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Runs a script of the guest to its end.
pub(super) fn script(peer: &mut Peer, name: &str, line: &str) -> Result<Ended, Failed> {
    let job = peer.spawn(name, &words(line))?;
    ended(peer.wait(job, ENDS_WITHIN)?)
}

/// Checks that a script of the guest has ended well.
pub(super) fn ended(ended: Ended) -> Result<Ended, Failed> {
    match ended.code {
        Some(0) => Ok(ended),
        Some(NO_SUCH_PROGRAM) => Err(Failed::Missing),
        _ => Err(Failed::Program("the guest", ended)),
    }
}

/// Runs a command of Roxie's to its end, which must have this code.
pub(super) fn command(
    roxie: &mut dyn Local,
    name: [&str; 2],
    line: &str,
    code: i32,
) -> Result<Ended, Failed> {
    roxie.command(name, &words(line))?;
    let ended = roxie.wait(ENDS_WITHIN)?;
    match ended.code {
        Some(is) if is == code => Ok(ended),
        _ => Err(Failed::Program("roxie's end", ended)),
    }
}

/// Bytes that differ from block to block.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 512 * 31 + n * 7 + length) as u8).collect()
}

/// Returns a file's MD5 sum.
pub(super) fn md5_sum(path: &Path) -> Result<String, Failed> {
    let output = run(Command::new("md5sum").arg(path))?;
    Ok(output.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Compares bytes with the kernel's disk, by the MD5 sum that a script of the guest prints.
pub(super) fn same_as_kernel(bytes: &[u8], peer: &mut Peer, name: &str, what: &str) -> Result<(), Failed> {
    let there = script(peer, name, "sum")?.output;
    let own = output_folder().join("disk-sum");
    fs::write(&own, bytes).map_err(Error::file(&own))?;
    let here = md5_sum(&own)?;
    fs::remove_file(&own).map_err(Error::file(&own))?;
    if here == there.trim() {
        Ok(())
    } else {
        Err(Failed::Other(format!("{what} bytes are others: {here} here, {there} there")))
    }
}
