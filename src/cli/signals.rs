//! Signals that end a command, as a descriptor.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those that it starts, and returns a descriptor that is readable when one is
/// pending. Call it before any other thread runs: a thread that does not block them would be ended by them.
///
/// # Errors
///
/// If the system has no descriptor left.
pub(crate) fn catch() -> io::Result<SignalFd> {
    let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
