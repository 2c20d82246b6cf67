//! What can go wrong in a run, apart from a row that fails.

use std::io;

/// Why something outside the protocol under test did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that a run needs failed or is missing.
    #[error("`{command}` failed: {output}")]
    Command {
        /// The command line that was run.
        command: String,
        /// What it said, or why it could not be started.
        output: String,
    },
    /// The host cannot run the guest, and what would change that.
    #[error("this host cannot run the guest: {0}")]
    Host(String),
    /// The guest's packages could not be had from the mirror; the build script has told the reason.
    #[error("the packages of the guest of kernel {0} cannot be had: see above")]
    Packages(String),
    /// A distribution could not be had; the script has told the reason.
    #[error("the system of {0} cannot be had: see above")]
    Distribution(String),
    /// The selection is empty.
    #[error("no row matches {0:?}: see `interop list`")]
    NoRow(Vec<String>),
    /// All selected rows are of FLUSH and ATOMIC WRITE.
    #[error("kernel 6.1 has neither FLUSH nor ATOMIC WRITE: --kernel newest")]
    NeedsNewest,
    /// The guest did not come up.
    #[error("the guest did not come up: {0}")]
    Guest(String),
    /// The peer refused a command.
    #[error("the peer refused `{command}`: {message} (errno {code})")]
    Refused {
        /// The command, as sent.
        command: String,
        /// The errno, or 0.
        code: i32,
        /// The reason that it gave.
        message: String,
    },
    /// The peer's answer is not one that the protocol allows.
    #[error("the peer answered `{command}` with `{reply}`: {why}")]
    Protocol {
        /// The command, as sent.
        command: String,
        /// The line that came back.
        reply: String,
        /// What was wrong with it.
        why: &'static str,
    },
    /// The connection to the peer broke.
    #[error("the connection to the peer broke at `{command}`: {source}")]
    Connection {
        /// The command, as sent.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// Roxie's side refused.
    #[error("roxie: {0}")]
    Local(String),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file that could not be used.
        path: String,
        /// What the system said.
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
