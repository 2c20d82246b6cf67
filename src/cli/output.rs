//! Standard output and standard error without the panics of `println!`: a pipe may close, a disk may be full.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::failure::Failure;

/// Writes a line to standard output.
///
/// # Errors
///
/// The system's error. [`Failure::report`] treats a closed pipe as success.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}").map_err(Failure::Output)
}

/// Writes a note to standard error. Ignores errors.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "roxie: {text}");
}

/// Writes why a command failed to standard error.
pub(crate) fn complain(command: &str, text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "roxie {command}: {text}");
}

impl Failure {
    /// Reports the failure on standard error, and returns the exit code.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        if matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe) {
            // A closed pipe is no failure: the reader has seen enough.
            return ExitCode::SUCCESS;
        }
        complain(command, self);
        ExitCode::from(self.exit_code())
    }
}
