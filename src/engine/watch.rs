//! The handoff of polling between callers and the engine thread ("the keeper" in names).
//!
//! Callers run the worker in their own calls, the engine thread runs it in between. One word holds the engine thread's state:
//!
//! | state | wakes when | reason for the state |
//! |---|---|---|
//! | awake | | the thread runs the worker, or is about to read this word again |
//! | nap (backoff sleep) | its time (callers postpone it) is over, or woken | a caller polls, or blocks on the link and polled recently |
//! | deep | woken | a caller has blocked on the link for longer than [`WaitPolicy::RECENT_NS`] |
//! | watch (armed) | a frame, doorbell, command or timer, or woken | no caller polls or blocks on the link |
//!
//! A caller's past decides how long it is trusted to poll again. A backoff sleep lasts a quarter of the time for which it has
//! polled without a gap, within [`WaitPolicy::SHORTEST_NAP_NS`] and [`WaitPolicy::LONGEST_NAP_NS`]. Work left behind when a
//! program stops polling therefore waits a quarter of that time, and 1 ms at most. A program that arms a completion queue announces that
//! it will wait, and is not trusted: before the arming call returns, the engine thread is armed, or was woken to be.
//!
//! Callers and the engine thread write before they read, with a fence in between, so one of them sees the other: `caller_waits`
//! against `nap`, `stop_watching` against `deep`. The caller that changes the word from asleep to awake owes the one wake-up. The
//! tests in `tests/handoff` check every interleaving.

use super::sync::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use super::wait_policy::WaitPolicy;

/// Time of an event that never happened.
pub(crate) const NOTHING: u64 = u64::MAX;

/// True if something happened at `at`, less than `time` before `now`. Times in ns.
pub(crate) fn is_within(at: u64, now: u64, time: u64) -> bool {
    at != NOTHING && now.saturating_sub(at) < time
}

const KIND: u64 = 3;
const AWAKE: u64 = 0;
const NAP: u64 = 1;
const DEEP: u64 = 2;
const WATCH: u64 = 3;

/// The engine thread's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Sleep until this time, in ns, or until woken.
    Until(u64),
    /// Sleep until woken: a caller blocks on the link.
    Deep,
    /// Run the worker, then arm.
    None,
}

/// State of the handoff. Times are in ns on the engine's clock.
#[derive(Debug)]
pub(crate) struct Watch {
    /// State of the engine thread, and when it wakes by itself, in units of 4 ns.
    keeper: AtomicU64,
    /// When a caller last ran a pass.
    last_pass: AtomicU64,
    /// When a caller last stopped polling: it returned after a gap, or began to wait.
    broke_at: AtomicU64,
    /// 1: a caller blocks on the link inside a call, in the engine thread's place.
    relief: AtomicU64,
    /// When a caller last began to block on the link.
    relieved_at: AtomicU64,
    /// For how long callers must have polled without a gap to be trusted.
    trust_after: AtomicU64,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            keeper: AtomicU64::new(AWAKE),
            last_pass: AtomicU64::new(0),
            broke_at: AtomicU64::new(0),
            relief: AtomicU64::new(0),
            relieved_at: AtomicU64::new(NOTHING),
            trust_after: AtomicU64::new(WaitPolicy::TRUST_AFTER_NS),
        }
    }

    /// Records that a caller runs a pass, or found another thread running one.
    pub(crate) fn passed(&self, now: u64) {
        let before = self.last_pass.load(Relaxed);
        self.last_pass.store(now, Relaxed);
        if now.saturating_sub(before) > WaitPolicy::POLL_GAP_NS {
            self.broke_at.store(now, Relaxed);
        }
    }

    /// Records the end of a caller's pass. The duration of a pass is no gap.
    pub(crate) fn pass_ended(&self, now: u64) {
        self.last_pass.store(now, Relaxed);
    }

    /// Returns the time since a caller last ran a pass.
    pub(crate) fn away(&self, now: u64) -> u64 {
        now.saturating_sub(self.last_pass.load(Relaxed))
    }

    /// Returns when a caller last began to wait, or returned after a gap.
    pub(crate) fn broke_at(&self) -> u64 {
        self.broke_at.load(Relaxed)
    }

    /// Records that a caller begins to wait, and blocks on the link itself or is about to.
    pub(crate) fn began_to_wait(&self, now: u64) {
        self.broke_at.store(now, Relaxed);
    }

    /// Records that a caller is about to wait for the NIC without blocking on the link. True: wake the engine thread.
    #[must_use]
    pub(crate) fn caller_waits(&self, now: u64) -> bool {
        self.broke_at.store(now, Relaxed);
        // Against `nap`: either `nap` sees the new `broke_at`, or the load below sees the nap.
        fence(SeqCst);
        let keeper = self.keeper.load(Relaxed);
        let watched = keeper & KIND == WATCH || self.is_relieved();
        !watched && self.rouse_from(keeper)
    }

    /// Work is due at `needed_by`, and no caller is certain to do it. True: wake the engine thread.
    #[must_use]
    pub(crate) fn needs_by(&self, needed_by: u64) -> bool {
        let keeper = self.keeper.load(Relaxed);
        needed_by >> 2 < keeper >> 2 && self.rouse_from(keeper)
    }

    /// True if the engine thread is in a backoff sleep: it trusts callers to poll, and wakes within
    /// [`WaitPolicy::LONGEST_NAP_NS`].
    pub(crate) fn naps(&self) -> bool {
        self.keeper.load(Relaxed) & KIND == NAP
    }

    /// Sets the state to awake. Returns true to one caller only for each sleep.
    fn rouse_from(&self, mut keeper: u64) -> bool {
        while keeper & KIND != AWAKE {
            match self.keeper.compare_exchange(keeper, AWAKE, SeqCst, Relaxed) {
                Ok(_) => return true,
                // Another caller woke the thread, or its sleep was extended meanwhile.
                Err(now) => keeper = now,
            }
        }
        false
    }

    /// Extends the engine thread's backoff sleep when a caller polls in its last quarter. Returns the new end. A poller thus keeps
    /// the thread asleep: a wake-up takes the poller's processor, and costs it ten times as much as setting the
    /// timer.
    #[must_use]
    pub(crate) fn lengthen(&self, now: u64) -> Option<u64> {
        let keeper = self.keeper.load(Relaxed);
        let left = (keeper & !KIND).saturating_sub(now);
        if keeper & KIND != NAP || left > WaitPolicy::LONGEST_NAP_NS / 4 {
            return None;
        }
        let nap = self
            .earned(now)
            .or_else(|| self.relieved_lately(now).then_some(WaitPolicy::BLOCKED_CALLER_NAP_NS))?;
        if left > nap / 4 {
            return None;
        }
        let until = now + nap;
        self.keeper.compare_exchange(keeper, until & !KIND | NAP, SeqCst, Relaxed).ok()?;
        self.regain();
        Some(until)
    }

    /// Returns how long the engine thread may sleep because callers have polled without a gap.
    fn earned(&self, now: u64) -> Option<u64> {
        let polled = now.saturating_sub(self.broke_at.load(Relaxed));
        (polled >= self.trust_after.load(Relaxed)).then(|| (polled / 4).min(WaitPolicy::LONGEST_NAP_NS))
    }

    /// Shortens the time after which callers are trusted, once they have kept polling.
    fn regain(&self) {
        let trust_after = self.trust_after.load(Relaxed);
        if trust_after > WaitPolicy::TRUST_AFTER_NS {
            self.trust_after.store(trust_after / 2, Relaxed);
        }
    }

    /// True if a caller blocks on the link.
    pub(crate) fn is_relieved(&self) -> bool {
        self.relief.load(Relaxed) != 0
    }

    /// Records that a caller blocks on the link. False: another one already does.
    pub(crate) fn begin_watching(&self, now: u64) -> bool {
        self.relieved_at.store(now, Relaxed);
        self.relief.compare_exchange(0, 1, SeqCst, Relaxed).is_ok()
    }

    /// True if a caller blocks on the link, or did within [`WaitPolicy::RECENT_NS`].
    pub(crate) fn relieved_lately(&self, now: u64) -> bool {
        is_within(self.relieved_at.load(Relaxed), now, WaitPolicy::RECENT_NS)
    }

    /// Stops trusting callers that blocked on the link to do so again: several threads wait.
    pub(crate) fn forget_relief(&self) {
        self.relieved_at.store(NOTHING, Relaxed);
    }

    /// Records that the caller no longer blocks on the link. True: wake the engine thread.
    #[must_use]
    pub(crate) fn stop_watching(&self) -> bool {
        self.relief.store(0, Relaxed);
        // Against `deep`: either `deep` sees that `relief` is 0, or the load below sees the sleep.
        fence(SeqCst);
        let keeper = self.keeper.load(Relaxed);
        keeper & KIND == DEEP && self.rouse_from(keeper)
    }

    /// Called by the engine thread: returns what it may do at `now`. Unless that is `None`, its state is already asleep, and it
    /// must sleep or call `wakes`.
    pub(crate) fn rest(&self, now: u64) -> Rest {
        let broke_at = self.broke_at.load(Relaxed);
        let away = self.away(now);
        if self.is_relieved() {
            return if away >= WaitPolicy::RECENT_NS {
                self.deep()
            } else {
                self.nap(broke_at, now + WaitPolicy::BLOCKED_CALLER_NAP_NS)
            };
        }
        if away > WaitPolicy::SHORTEST_NAP_NS {
            return Rest::None;
        }
        if let Some(nap) = self.earned(now) {
            return self.nap(broke_at, now + nap);
        }
        // A caller that blocked on the link a moment ago is about to do so again.
        if self.relieved_lately(now) {
            return self.nap(broke_at, now + WaitPolicy::SHORTEST_NAP_NS);
        }
        Rest::None
    }

    /// Called by an engine thread that found a caller in a pass, which may poll on or do something else. Returns a backoff sleep
    /// until the caller may be trusted, or the shortest one if that takes longer than [`WaitPolicy::TRUST_AFTER_NS`].
    pub(crate) fn rest_beside(&self, now: u64) -> Rest {
        let broke_at = self.broke_at.load(Relaxed);
        let trusted_at = broke_at.saturating_add(self.trust_after.load(Relaxed));
        let nap = trusted_at.saturating_sub(now);
        let nap = if nap > WaitPolicy::TRUST_AFTER_NS {
            WaitPolicy::SHORTEST_NAP_NS
        } else {
            nap.max(WaitPolicy::SHORTEST_NAP_NS)
        };
        self.nap(broke_at, now + nap)
    }

    /// Called by the engine thread after a backoff sleep. `missed`: work waits that a polling caller would have done. A program
    /// that polls only now and then, and reads its memory in between, causes misses. Each miss multiplies by four the time it must
    /// poll before it is trusted.
    pub(crate) fn napped(&self, now: u64, missed: bool) {
        if missed {
            self.broke_at.store(now, Relaxed);
            let trust_after = 4 * self.trust_after.load(Relaxed);
            self.trust_after.store(trust_after.min(WaitPolicy::LONGEST_TRUST_AFTER_NS), Relaxed);
        } else {
            self.regain();
        }
    }

    fn nap(&self, broke_at: u64, until: u64) -> Rest {
        self.keeper.store(until & !KIND | NAP, Relaxed);
        fence(SeqCst);
        if self.broke_at.load(Relaxed) != broke_at && !self.is_relieved() {
            self.wakes();
            return Rest::None;
        }
        Rest::Until(until)
    }

    fn deep(&self) -> Rest {
        self.keeper.store(!KIND | DEEP, Relaxed);
        fence(SeqCst);
        if !self.is_relieved() {
            self.wakes();
            return Rest::None;
        }
        Rest::Deep
    }

    /// Called by the engine thread: it is about to sleep on all descriptors until `until`. The thread has made doorbells write their
    /// eventfd before, and checks for work again afterwards.
    pub(crate) fn watches(&self, until: u64) {
        self.keeper.store(until & !KIND | WATCH, SeqCst);
        fence(SeqCst);
    }

    /// Called by the engine thread: it is awake. Returns when its sleep was to end; `None` if it was woken.
    pub(crate) fn wakes(&self) -> Option<u64> {
        let before = self.keeper.swap(AWAKE, SeqCst);
        (before & KIND != AWAKE).then_some(before & !KIND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: u64 = 10_000;

    #[test]
    fn event_that_never_happened_is_not_recent() {
        // The clock of an engine starts at 0.
        assert!(!is_within(NOTHING, 0, TIME) && !is_within(NOTHING, 5, TIME));
        assert!(is_within(0, 5, TIME) && !is_within(0, TIME, TIME));
        // Recorded by a thread that read the clock a little later.
        assert!(is_within(6, 5, TIME));
    }
}
