//! Backoff of a link that accepts no frames.

use super::wait_policy::WaitPolicy;
use roxie_base::time::Nanos;

/// Backoff of a link that accepts no frames because its queue is full or the kernel is out of buffers. Retrying without
/// a pause would occupy a processor.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Number of consecutive passes that had something to send and could not.
    passes: u32,
    /// When to try again; zero: immediately.
    until: Nanos,
}

impl Stall {
    /// Records whether a pass had something to send and could not.
    pub(super) fn note(&mut self, now: Nanos, is_stalled: bool) {
        if is_stalled {
            let wait = WaitPolicy::FIRST_STALL_NS << self.passes.min(16);
            self.until = now + Nanos(wait.min(WaitPolicy::LONGEST_STALL_NS));
            self.passes = self.passes.saturating_add(1);
        } else {
            *self = Stall::default();
        }
    }

    /// When to try again; zero: immediately.
    pub(super) fn until(&self) -> Nanos {
        self.until
    }
}
