//! How far the worker's thread is with its copies from and to remote memory ([`super::remote_pass`]).

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// What the worker's thread and the stand-by thread share.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Beginnings and ends of copies: odd while some are being made. Changes under the worker's lock.
    pub(super) copies: AtomicU64,
    /// The number of the worker's thread in the system.
    pub(super) thread: AtomicI32,
    /// The worker's threads so far, without the first. Changes under the worker's lock.
    pub(super) term: AtomicU64,
}

impl Copying {
    pub(super) fn thread_is_running(&self) -> bool {
        // The state is behind the name in parentheses (proc_pid_stat(5)): R is running or waiting for a processor.
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread.load(Relaxed)));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R')))
    }
}
