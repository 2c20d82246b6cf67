//! The process that tells users apart for programs in the user namespace of `roxie run`.
//!
//! Most users need none: there, the number of any other user is not theirs. The user with the number that stands for
//! all others, 65534, does.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd;

use nix::unistd::geteuid;
use roxie::descriptors::{CREDENTIALS, CredentialServer, overflow_uid, set_credential_server};

use super::child;

/// The process, which ends when no copy of this is left: the launcher and the watcher have one each.
#[derive(Debug)]
pub(super) struct Credentials {
    _stop: PipeWriter,
    variable: String,
}

impl Credentials {
    /// Starts the process if this user needs it. To be called outside the user namespace.
    ///
    /// # Errors
    /// If the system is out of memory, descriptors or processes.
    pub(super) fn start() -> io::Result<Option<Credentials>> {
        if geteuid().as_raw() != overflow_uid() {
            return Ok(None);
        }
        let server = CredentialServer::new()?;
        let variable = server.variable();
        let stop = child::detach_until_closed(|stopped| server.serve(stopped.as_fd()))?;
        set_credential_server(variable.clone());
        Ok(Some(Credentials { _stop: stop, variable }))
    }

    /// Returns the variable for programs.
    pub(super) fn environment(&self) -> (&'static str, &str) {
        (CREDENTIALS, &self.variable)
    }
}
