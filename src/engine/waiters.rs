//! State shared by callers that wait.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::wait_policy::WaitPolicy;

/// A number that identifies the calling thread.
pub(super) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The threads that wait.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The last thread that began to wait, and when.
    last: AtomicUsize,
    last_at: AtomicU64,
    /// When two threads last waited within [`WaitPolicy::RECENT_NS`] of one another.
    crowd_at: AtomicU64,
}

impl Waiters {
    /// Records that a thread waits. True if no other thread does.
    pub(super) fn is_alone(&self, thread: usize, now: u64) -> bool {
        let (last, last_at) = (self.last.swap(thread, Relaxed), self.last_at.swap(now, Relaxed));
        if last != thread && last != 0 && now.saturating_sub(last_at) < WaitPolicy::RECENT_NS {
            self.crowd_at.store(now, Relaxed);
            return false;
        }
        let crowd_at = self.crowd_at.load(Relaxed);
        crowd_at == 0 || now.saturating_sub(crowd_at) > WaitPolicy::SEVERAL_WAITERS_NS
    }
}
