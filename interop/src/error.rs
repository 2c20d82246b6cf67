//! Errors of a run, apart from failed rows.

use std::io;

/// A failure outside the protocol under test.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that a run needs failed or is missing.
    #[error("`{command}` failed: {output}")]
    Command {
        /// The command line that was run.
        command: String,
        /// Its error output, or why it could not be started.
        output: String,
    },
    /// The host cannot run the guest; the text says why, and what would help.
    #[error("this host cannot run the guest: {0}")]
    Host(String),
    /// The guest's packages are not available from the mirror; the build script has printed the reason.
    #[error("the packages of the guest of kernel {0} are not available: see above")]
    Packages(String),
    /// A distribution is not available; the script has printed the reason.
    #[error("the system of {0} is not available: see above")]
    Distribution(String),
    /// The filter selects no row.
    #[error("no row matches {0:?}: see `interop list`")]
    NoRow(Vec<String>),
    /// All selected rows need FLUSH or ATOMIC WRITE.
    #[error("kernel 6.1 has neither FLUSH nor ATOMIC WRITE: --kernel 6.12 or newest")]
    NeedsNewest,
    /// The guest did not boot.
    #[error("the guest did not boot: {0}")]
    Guest(String),
    /// The peer refused a command.
    #[error("the peer refused `{command}`: {message} (errno {code})")]
    Refused {
        /// The command, as sent.
        command: String,
        /// The errno, or 0.
        code: i32,
        /// The peer's reason.
        message: String,
    },
    /// The peer's answer violates the protocol.
    #[error("the peer answered `{command}` with `{reply}`: {why}")]
    Protocol {
        /// The command, as sent.
        command: String,
        /// The peer's answer.
        reply: String,
        /// Why it is invalid.
        why: &'static str,
    },
    /// The connection to the peer broke.
    #[error("the connection to the peer broke at `{command}`: {source}")]
    Connection {
        /// The command, as sent.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// Roxie's side failed.
    #[error("roxie: {0}")]
    Local(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file that could not be used.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Adds the file's name to an I/O error.
    pub fn file(path: &std::path::Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.display().to_string();
        move |source| Error::File { path, source }
    }
}
