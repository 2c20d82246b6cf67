//! State shared by callers that poll.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::handoff::{NOTHING, is_within};
use super::wait_policy::WaitPolicy;

/// The polling threads and their success.
#[derive(Debug)]
pub(super) struct Pollers {
    /// Since when callers have found nothing and not yielded, and in how many passes.
    pub(super) empty_since: AtomicU64,
    pub(super) empty: AtomicU32,
    /// The thread that polled last; 0: none yet.
    poller: AtomicUsize,
    /// When a poll last followed one of another thread.
    others_at: AtomicU64,
    /// Pollers in a short sleep on the link, and the eventfd that wakes them when another thread's pass publishes
    /// completions.
    pub(super) asleep: AtomicU32,
    pub(super) wake: EventFd,
}

impl Pollers {
    pub(super) fn new() -> io::Result<Pollers> {
        Ok(Pollers {
            empty_since: AtomicU64::new(NOTHING),
            empty: AtomicU32::new(0),
            poller: AtomicUsize::new(0),
            others_at: AtomicU64::new(NOTHING),
            asleep: AtomicU32::new(0),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
        })
    }

    /// Records a poll by `thread`.
    pub(super) fn note_thread(&self, now: u64, thread: usize) {
        let last = self.poller.load(Relaxed);
        if last != thread {
            self.poller.store(thread, Relaxed);
            if last != 0 {
                self.others_at.store(now, Relaxed);
            }
        }
    }

    /// True if several threads have polled within [`WaitPolicy::RECENT_NS`].
    pub(super) fn several(&self, now: u64) -> bool {
        is_within(self.others_at.load(Relaxed), now, WaitPolicy::RECENT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_never_counts_as_several() {
        let pollers = Pollers::new().unwrap();
        assert!(!pollers.several(0));
        pollers.note_thread(1, 7);
        pollers.note_thread(2, 7);
        assert!(!pollers.several(3));
        pollers.note_thread(4, 8);
        assert!(pollers.several(5) && !pollers.several(4 + WaitPolicy::RECENT_NS));
    }
}
