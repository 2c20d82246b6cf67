//! How long a link that takes nothing is left alone.

use crate::time::Nanos;

/// A link that takes nothing: it is down, or the kernel has no room. To try again and again would keep a processor busy.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Passes in a row that had something to send and could not.
    passes: u32,
    /// When to try again; zero: at once.
    until: Nanos,
}

impl Stall {
    /// The first time to wait, and the longest, in ns. Each is twice the one before.
    const FIRST: u64 = 20_000;
    const LONGEST: u64 = 10_000_000;

    /// Notes whether a pass had something to send and could not.
    pub(super) fn note(&mut self, now: Nanos, is_stalled: bool) {
        if is_stalled {
            let wait = Stall::FIRST << self.passes.min(16);
            self.until = now + Nanos(wait.min(Stall::LONGEST));
            self.passes = self.passes.saturating_add(1);
        } else {
            *self = Stall::default();
        }
    }

    /// When to try again; zero: at once.
    pub(super) fn until(&self) -> Nanos {
        self.until
    }
}
