//! Who waits: what callers that wait tell one another.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::wait_policy::WaitPolicy;

/// A number of the calling thread.
pub(super) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The thread that was last to wait, and when.
    last: AtomicUsize,
    last_at: AtomicU64,
    /// When two were seen to wait within a short time of one another.
    crowd_at: AtomicU64,
}

impl Waiters {
    /// `who` waits. True if it is the only one who does.
    pub(super) fn is_alone(&self, who: usize, now: u64) -> bool {
        let (last, last_at) = (self.last.swap(who, Relaxed), self.last_at.swap(now, Relaxed));
        if last != who && last != 0 && now.saturating_sub(last_at) < WaitPolicy::RECENT_NS {
            self.crowd_at.store(now, Relaxed);
            return false;
        }
        let crowd_at = self.crowd_at.load(Relaxed);
        crowd_at == 0 || now.saturating_sub(crowd_at) > WaitPolicy::SEVERAL_WAITERS_NS
    }
}
