//! Progress of the worker thread's copies from and to remote memory ([`super::remote_pass`]).

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// State shared by the worker thread and the standby thread.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Number of starts and ends of copies: odd while a batch is being copied. Changes under the worker's lock.
    pub(super) copies: AtomicU64,
    /// Thread ID of the worker thread (`gettid`).
    pub(super) thread: AtomicI32,
    /// Number of replacements of the worker thread, which is the current term. Changes under the worker's lock.
    pub(super) term: AtomicU64,
}

impl Copying {
    pub(super) fn thread_is_running(&self) -> bool {
        // proc_pid_stat(5): the state follows the name in parentheses. R is running or runnable.
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread.load(Relaxed)));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R')))
    }
}
