//! Rows in which the guest's kernel is one end of a storage protocol, driven by a script of the guest.

use std::time::Duration;

use interop::end::{Ended, Local};
use interop::error::Error;
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

/// Returns the outcome of a played row. Ends a program of Roxie's that a failed row has left: it must not keep the interface.
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
