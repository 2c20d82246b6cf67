//! Standard output and standard error, without the panics of `println!`: a reader may leave, a disk may be full.

use std::fmt;
use std::io::{self, Write};

use super::Failure;

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
