//! Signals that end a command, as a descriptor.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::Failure;

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those that it starts, and returns a descriptor that is readable
/// when one is pending. Call it before any other thread runs: a thread that does not block them would be ended by them.
///
/// # Errors
///
/// If the system has no descriptor left.
pub fn catch() -> io::Result<SignalFd> {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// As [`catch`], with the failure of a command.
pub fn catch_in_command() -> Result<SignalFd, Failure> {
    catch().map_err(|error| Failure::Run(format!("catching signals: {error}")))
}

/// Waits for the next signal. `None`: none came within this time.
pub fn next(signals: &SignalFd, within: Duration) -> Option<Signal> {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX));
    let told = signals.read_signal().ok().flatten()?;
    Signal::try_from(told.ssi_signo as i32).ok()
}
