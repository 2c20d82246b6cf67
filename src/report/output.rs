//! Standard output and standard error without the panics of `println!`: a pipe may close, a disk may be full.
//!
//! Text of commands may contain text of peers, of other users and of files. All of it is printed here, and no character
//! of it acts on a terminal ([`Plain`]): neither escape sequences nor newlines, by which one row could look like two.
//! `tests/repository/tidy` lists the files that write by themselves.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use roxie::text::Plain;

use crate::failure::Failure;

/// Maximum number of characters of a note, which may have a peer's text in it.
const LONGEST_NOTE: usize = 8192;

/// Writes a line to standard output.
///
/// # Errors
///
/// The system's error. [`Failure::report`] treats a closed pipe as success.
pub fn line(text: impl fmt::Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{}", Plain(text)).map_err(Failure::Output)
}

/// Writes lines to standard output. Text of others in them must be plain already, as far as newlines go.
///
/// # Errors
///
/// As [`line()`].
pub fn lines(text: &str) -> Result<(), Failure> {
    text.lines().try_for_each(line)
}

/// Writes a text for programs to standard output as it is: a page, a source, exports for a shell. No text of others.
///
/// # Errors
///
/// As [`line()`].
pub fn exact(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Writes a note to standard error. Ignores errors.
pub fn note(text: impl fmt::Display) {
    note_by("roxie", text);
}

/// Writes why a command failed to standard error.
pub fn complain(command: &str, text: impl fmt::Display) {
    note_by(&format!("roxie {command}"), text);
}

/// Replaces the progress on standard error, if that is a terminal; nothing with an empty text.
pub fn progress(text: impl fmt::Display) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{}", Plain(text));
        let _ = err.flush();
    }
}

fn note_by(whose: &str, text: impl fmt::Display) {
    let _ = io::stderr().lock().write_all(noted(whose, text).as_bytes());
}

/// Returns the lines of a note. Only the first begins at the left: the others cannot look like notes of their own.
fn noted(whose: &str, text: impl fmt::Display) -> String {
    let text: String = text.to_string().chars().take(LONGEST_NOTE).collect();
    let lines: Vec<_> = text.split('\n').map(|line| Plain(line).to_string()).collect();
    format!("{whose}: {}\n", lines.join("\n  "))
}

impl Failure {
    /// Reports the failure on standard error, and returns the exit code.
    pub fn report(&self, command: &str) -> ExitCode {
        if matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe) {
            // A closed pipe is no failure: the reader has seen enough.
            return ExitCode::SUCCESS;
        }
        complain(command, self);
        ExitCode::from(self.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_show_text_of_others_plain_and_bounded() {
        let said = noted("roxie perf", "the peer gave up: \u{1b}[2J\u{9b}x\nroxie: all is well");
        assert_eq!(said, "roxie perf: the peer gave up: \u{fffd}[2J\u{fffd}x\n  roxie: all is well\n");
        assert!(noted("roxie", "x".repeat(1 << 20)).len() < LONGEST_NOTE + 16);
    }
}
