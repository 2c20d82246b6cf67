//! Standard output and standard error, without the panics of `println!`: a reader may leave, a disk may be full.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::failure::Failure;

/// Writes a line to standard output.
///
/// # Errors
/// What the system says. A reader that left ends the command without a word and with exit code 0.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}").map_err(Failure::Output)
}

/// Writes a word about what goes on to standard error. Nobody has to listen.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "roxie: {text}");
}

/// Writes what is wrong with what a command did to standard error.
pub(crate) fn complain(command: &str, text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "roxie {command}: {text}");
}

impl Failure {
    /// Says so on standard error, and how the process shall end.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        if matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe) {
            // The reader of our output has seen enough.
            return ExitCode::SUCCESS;
        }
        complain(command, self);
        ExitCode::from(self.exit_code())
    }
}
