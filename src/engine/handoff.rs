//! The handoff of polling between callers and the engine thread.
//!
//! Callers run the worker in their own calls, the engine thread runs it in between. One word holds the engine thread's
//! state:
//!
//! | state | wakes when | reason for the state |
//! |---|---|---|
//! | awake | | the thread runs the worker, or is about to read this word again |
//! | backoff sleep | its time (callers postpone it) is over, or woken | a caller polls, or blocks and polled recently |
//! | until woken | woken | a caller has blocked on the link for longer than [`WaitPolicy::RECENT_NS`] |
//! | blocked | a frame, doorbell, command or timer, or woken | no caller polls or blocks on the link |
//!
//! A caller's past decides how long it is trusted to poll again. A backoff sleep lasts a quarter of the time for which
//! it has polled without a gap, within [`WaitPolicy::SHORTEST_BACKOFF_NS`] and [`WaitPolicy::LONGEST_BACKOFF_NS`]. Work
//! left behind when a program stops polling therefore waits a quarter of that time, and 1 ms at most. A program that
//! arms a completion queue announces that it will wait, and is not trusted: before the arming call returns, the engine
//! thread blocks on the link, or was woken to do so.
//!
//! Callers and the engine thread write before they read, with a fence in between, so one of them sees the other:
//! `caller_waits` against `back_off`, `end_substituting` against `until_woken`. The caller that changes the word from
//! asleep to awake owes the one wake-up. The tests in `tests/handoff` check every interleaving.

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
const BACKOFF: u64 = 1;
const UNTIL_WOKEN: u64 = 2;
const BLOCKED: u64 = 3;

/// The engine thread's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextSleep {
    /// Sleep until this time, in ns, or until woken.
    Until(u64),
    /// Sleep until woken: a caller blocks on the link.
    UntilWoken,
    /// Run the worker, then block on the link.
    None,
}

/// State of the handoff. Times are in ns on the engine's clock.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// State of the engine thread, and when it wakes by itself, in units of 4 ns.
    thread_state: AtomicU64,
    /// When a caller last ran a pass.
    last_pass: AtomicU64,
    /// When a caller last stopped polling: it returned after a gap, or began to wait.
    broke_at: AtomicU64,
    /// 1: a caller blocks on the link inside a call, in the engine thread's place.
    substitute: AtomicU64,
    /// When a caller last began to block on the link.
    substitute_since: AtomicU64,
    /// For how long callers must have polled without a gap to be trusted.
    trust_after: AtomicU64,
}

impl Handoff {
    pub(crate) fn new() -> Handoff {
        Handoff {
            thread_state: AtomicU64::new(AWAKE),
            last_pass: AtomicU64::new(0),
            broke_at: AtomicU64::new(0),
            substitute: AtomicU64::new(0),
            substitute_since: AtomicU64::new(NOTHING),
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
        // Against `back_off`: either `back_off` sees the new `broke_at`, or the load below sees the sleep.
        fence(SeqCst);
        let state = self.thread_state.load(Relaxed);
        let blocks = state & KIND == BLOCKED || self.has_substitute();
        !blocks && self.wake_from(state)
    }

    /// Work is due at `needed_by`, and no caller is certain to do it. True: wake the engine thread.
    #[must_use]
    pub(crate) fn needs_by(&self, needed_by: u64) -> bool {
        let state = self.thread_state.load(Relaxed);
        needed_by >> 2 < state >> 2 && self.wake_from(state)
    }

    /// True if the engine thread is in a backoff sleep: it trusts callers to poll, and wakes within
    /// [`WaitPolicy::LONGEST_BACKOFF_NS`].
    pub(crate) fn is_in_backoff(&self) -> bool {
        self.thread_state.load(Relaxed) & KIND == BACKOFF
    }

    /// Sets the state to awake. Returns true to one caller only for each sleep.
    fn wake_from(&self, mut state: u64) -> bool {
        while state & KIND != AWAKE {
            match self.thread_state.compare_exchange(state, AWAKE, SeqCst, Relaxed) {
                Ok(_) => return true,
                // Another caller woke the thread, or its sleep was extended meanwhile.
                Err(now) => state = now,
            }
        }
        false
    }

    /// Extends the engine thread's backoff sleep when a caller polls in its last quarter. Returns the new end. A poller
    /// thus keeps the thread asleep: a wake-up takes the poller's processor, and costs it ten times as much as setting
    /// the timer.
    #[must_use]
    pub(crate) fn extend(&self, now: u64) -> Option<u64> {
        let state = self.thread_state.load(Relaxed);
        let remaining = (state & !KIND).saturating_sub(now);
        if state & KIND != BACKOFF || remaining > WaitPolicy::LONGEST_BACKOFF_NS / 4 {
            return None;
        }
        let backoff = self
            .earned(now)
            .or_else(|| self.had_substitute_recently(now).then_some(WaitPolicy::BLOCKED_CALLER_BACKOFF_NS))?;
        if remaining > backoff / 4 {
            return None;
        }
        let until = now + backoff;
        self.thread_state.compare_exchange(state, until & !KIND | BACKOFF, SeqCst, Relaxed).ok()?;
        self.regain();
        Some(until)
    }

    /// Returns how long the engine thread may sleep because callers have polled without a gap.
    pub(crate) fn earned(&self, now: u64) -> Option<u64> {
        self.assert_trust();
        let polled = now.saturating_sub(self.broke_at.load(Relaxed));
        (polled >= self.trust_after.load(Relaxed)).then(|| (polled / 4).min(WaitPolicy::LONGEST_BACKOFF_NS))
    }

    /// Asserts the bounds of the time after which callers are trusted.
    fn assert_trust(&self) {
        let after = self.trust_after.load(Relaxed);
        let bounds = WaitPolicy::TRUST_AFTER_NS..=WaitPolicy::LONGEST_TRUST_AFTER_NS;
        debug_assert!(bounds.contains(&after), "callers are trusted after {after} ns");
    }

    /// Asserts that the engine thread is awake: callers change its state from asleep to awake alone.
    fn assert_awake(&self) {
        let state = self.thread_state.load(Relaxed);
        debug_assert_eq!(state & KIND, AWAKE, "an engine thread that is asleep goes to sleep");
    }

    /// Shortens the time after which callers are trusted, once they have kept polling.
    fn regain(&self) {
        let trust_after = self.trust_after.load(Relaxed);
        if trust_after > WaitPolicy::TRUST_AFTER_NS {
            self.trust_after.store((trust_after / 2).max(WaitPolicy::TRUST_AFTER_NS), Relaxed);
        }
    }

    /// True if a caller blocks on the link.
    pub(crate) fn has_substitute(&self) -> bool {
        self.substitute.load(Relaxed) != 0
    }

    /// Records that a caller blocks on the link. False: another one already does.
    pub(crate) fn begin_substituting(&self, now: u64) -> bool {
        self.substitute_since.store(now, Relaxed);
        self.substitute.compare_exchange(0, 1, SeqCst, Relaxed).is_ok()
    }

    /// True if a caller blocks on the link, or did within [`WaitPolicy::RECENT_NS`].
    pub(crate) fn had_substitute_recently(&self, now: u64) -> bool {
        is_within(self.substitute_since.load(Relaxed), now, WaitPolicy::RECENT_NS)
    }

    /// Stops trusting callers that blocked on the link to do so again: several threads wait.
    pub(crate) fn distrust_substitutes(&self) {
        self.substitute_since.store(NOTHING, Relaxed);
    }

    /// Records that the caller no longer blocks on the link. True: wake the engine thread.
    #[must_use]
    pub(crate) fn end_substituting(&self) -> bool {
        self.substitute.store(0, Relaxed);
        // Against `until_woken`: either `until_woken` sees that `substitute` is 0, or the load below sees the sleep.
        fence(SeqCst);
        let state = self.thread_state.load(Relaxed);
        state & KIND == UNTIL_WOKEN && self.wake_from(state)
    }

    /// Called by the engine thread: returns what it may do at `now`. Unless that is `None`, its state is already
    /// asleep, and it must sleep or call `wakes`.
    pub(crate) fn rest(&self, now: u64) -> NextSleep {
        let broke_at = self.broke_at.load(Relaxed);
        let away = self.away(now);
        if self.has_substitute() {
            return if away >= WaitPolicy::RECENT_NS {
                self.until_woken()
            } else {
                self.back_off(broke_at, now + WaitPolicy::BLOCKED_CALLER_BACKOFF_NS)
            };
        }
        if away > WaitPolicy::SHORTEST_BACKOFF_NS {
            return NextSleep::None;
        }
        if let Some(backoff) = self.earned(now) {
            return self.back_off(broke_at, now + backoff);
        }
        // A caller that blocked on the link a moment ago is about to do so again.
        if self.had_substitute_recently(now) {
            return self.back_off(broke_at, now + WaitPolicy::SHORTEST_BACKOFF_NS);
        }
        NextSleep::None
    }

    /// Called by an engine thread that found a caller in a pass, which may poll on or do something else. Returns a
    /// backoff sleep until the caller may be trusted, or the shortest one if that takes longer than
    /// [`WaitPolicy::TRUST_AFTER_NS`].
    pub(crate) fn rest_while_caller_polls(&self, now: u64) -> NextSleep {
        let broke_at = self.broke_at.load(Relaxed);
        let trusted_at = broke_at.saturating_add(self.trust_after.load(Relaxed));
        let backoff = trusted_at.saturating_sub(now);
        let backoff = if backoff > WaitPolicy::TRUST_AFTER_NS {
            WaitPolicy::SHORTEST_BACKOFF_NS
        } else {
            backoff.max(WaitPolicy::SHORTEST_BACKOFF_NS)
        };
        self.back_off(broke_at, now + backoff)
    }

    /// Called by the engine thread after a backoff sleep. `missed`: work waits that a polling caller would have done. A
    /// program that polls only now and then, and reads its memory in between, causes misses. Each miss multiplies by
    /// four the time it must poll before it is trusted.
    pub(crate) fn backoff_ended(&self, now: u64, missed: bool) {
        if missed {
            self.broke_at.store(now, Relaxed);
            let trust_after = 4 * self.trust_after.load(Relaxed);
            self.trust_after.store(trust_after.min(WaitPolicy::LONGEST_TRUST_AFTER_NS), Relaxed);
        } else {
            self.regain();
        }
    }

    fn back_off(&self, broke_at: u64, until: u64) -> NextSleep {
        self.assert_awake();
        self.thread_state.store(until & !KIND | BACKOFF, Relaxed);
        fence(SeqCst);
        if self.broke_at.load(Relaxed) != broke_at && !self.has_substitute() {
            self.wakes();
            return NextSleep::None;
        }
        NextSleep::Until(until)
    }

    fn until_woken(&self) -> NextSleep {
        self.assert_awake();
        self.thread_state.store(!KIND | UNTIL_WOKEN, Relaxed);
        fence(SeqCst);
        if !self.has_substitute() {
            self.wakes();
            return NextSleep::None;
        }
        NextSleep::UntilWoken
    }

    /// Called by the engine thread: it is about to sleep on all descriptors until `until`. The thread has made
    /// doorbells write their eventfd before, and checks for work again afterwards.
    pub(crate) fn blocks(&self, until: u64) {
        self.assert_awake();
        self.thread_state.store(until & !KIND | BLOCKED, SeqCst);
        fence(SeqCst);
    }

    /// Called by the engine thread: it is awake. Returns when its sleep was to end; `None` if it was woken.
    pub(crate) fn wakes(&self) -> Option<u64> {
        let before = self.thread_state.swap(AWAKE, SeqCst);
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
