//! Who looks after the NIC while nobody polls: the hand-off between callers and the keeper.
//!
//! Callers turn the worker in their own calls. The keeper is the engine's thread, for the time in between. What it does is in
//! one word, and these are its states:
//!
//! | state | it wakes when | because |
//! |---|---|---|
//! | awake | | it turns the worker, or is about to look at this word again |
//! | nap   | its time is over, which callers put off while they come, or it is roused | a caller polls without a break, or blocks on the link and was here a moment ago |
//! | deep  | it is roused | a caller blocks on the link, and has done so for a while |
//! | watch | a frame, a bell, a command, a timer comes, or it is roused | nobody else looks |
//!
//! A caller is trusted to come back for as long as its past bears out: a nap is a quarter of the time for which it has polled
//! without a break, within [`WaitPolicy::SHORTEST_NAP_NS`] and [`WaitPolicy::LONGEST_NAP_NS`]. So what a program leaves when it turns to something else waits
//! a quarter as long as it polled, and a millisecond at most. A program that says that it will wait, by arming a completion queue, is not
//! trusted at all: the keeper watches before the call returns to it, or is on its way to.
//!
//! Both sides write before they look, with a fence in between, so one of them sees the other: `caller_waits` against `nap`,
//! `stop_watching` against `deep`. A wake-up is due to whoever turns the word from asleep to awake, once. The tests in `tests/handoff`
//! check every interleaving.

use super::sync::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use super::wait_policy::WaitPolicy;

/// Never: of a time at which something happened.
pub(crate) const NOTHING: u64 = u64::MAX;

/// True if something happened at `at`, and no longer ago than this. Times in ns.
pub(crate) fn is_within(at: u64, now: u64, time: u64) -> bool {
    at != NOTHING && now.saturating_sub(at) < time
}

const KIND: u64 = 3;
const AWAKE: u64 = 0;
const NAP: u64 = 1;
const DEEP: u64 = 2;
const WATCH: u64 = 3;

/// What the keeper is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Sleep until this time, in ns; only a rouser ends it before.
    Until(u64),
    /// A caller blocks on the link, and the link is quiet: sleep until roused.
    Deep,
    /// Turn the worker, and watch.
    None,
}

/// The hand-off. Times are nanoseconds on the engine's clock.
#[derive(Debug)]
pub(crate) struct Watch {
    /// State of the keeper, and when it will look by itself, in units of 4 ns.
    keeper: AtomicU64,
    /// When a caller last ran a pass.
    last_pass: AtomicU64,
    /// When a caller last did something else than polling on: it came back from a break, or began to wait.
    broke_at: AtomicU64,
    /// 1: a caller blocks on the link inside a call, in the keeper's place.
    relief: AtomicU64,
    /// When a caller last began to watch.
    relieved_at: AtomicU64,
    /// For how long callers must have polled without a break to be trusted.
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

    /// A caller runs a pass, or found that somebody does.
    pub(crate) fn passed(&self, now: u64) {
        let before = self.last_pass.load(Relaxed);
        self.last_pass.store(now, Relaxed);
        if now.saturating_sub(before) > WaitPolicy::POLL_GAP_NS {
            self.broke_at.store(now, Relaxed);
        }
    }

    /// A caller's pass has ended, and took a while: that was no break.
    pub(crate) fn pass_ended(&self, now: u64) {
        self.last_pass.store(now, Relaxed);
    }

    /// How long ago a caller last ran a pass.
    pub(crate) fn away(&self, now: u64) -> u64 {
        now.saturating_sub(self.last_pass.load(Relaxed))
    }

    /// When a caller last began to wait, or came back.
    pub(crate) fn broke_at(&self) -> u64 {
        self.broke_at.load(Relaxed)
    }

    /// A caller is about to wait, and watches itself, or is going to.
    pub(crate) fn began_to_wait(&self, now: u64) {
        self.broke_at.store(now, Relaxed);
    }

    /// A caller is about to wait for something that the NIC will do, and nobody watches for it. True: wake the keeper.
    #[must_use]
    pub(crate) fn caller_waits(&self, now: u64) -> bool {
        self.broke_at.store(now, Relaxed);
        // Against `nap`: it sees the break, or this sees the nap.
        fence(SeqCst);
        let keeper = self.keeper.load(Relaxed);
        let watched = keeper & KIND == WATCH || self.is_relieved();
        !watched && self.rouse_from(keeper)
    }

    /// Something is to be done at `needed_by`, and no caller is sure to do it. True: wake the keeper.
    #[must_use]
    pub(crate) fn needs_by(&self, needed_by: u64) -> bool {
        let keeper = self.keeper.load(Relaxed);
        needed_by >> 2 < keeper >> 2 && self.rouse_from(keeper)
    }

    /// True if the keeper naps: it trusts its callers to poll, and looks again within [`WaitPolicy::LONGEST_NAP_NS`].
    pub(crate) fn naps(&self) -> bool {
        self.keeper.load(Relaxed) & KIND == NAP
    }

    /// One wake-up for each sleep.
    fn rouse_from(&self, mut keeper: u64) -> bool {
        while keeper & KIND != AWAKE {
            match self.keeper.compare_exchange(keeper, AWAKE, SeqCst, Relaxed) {
                Ok(_) => return true,
                // Roused by another, or its nap was lengthened meanwhile.
                Err(now) => keeper = now,
            }
        }
        false
    }

    /// A caller runs a pass: a keeper that naps may nap on, until the time that this gives. A caller that polls winds its clock up
    /// again, so that it never wakes in vain: to wake costs the poller whose processor it takes ten times what winding costs.
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

    /// How long the keeper may nap because callers have polled without a break.
    fn earned(&self, now: u64) -> Option<u64> {
        let polled = now.saturating_sub(self.broke_at.load(Relaxed));
        (polled >= self.trust_after.load(Relaxed)).then(|| (polled / 4).min(WaitPolicy::LONGEST_NAP_NS))
    }

    /// Callers who misled the keeper have not done so for a while.
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

    /// A caller blocks on the link from now on. False: another one does already.
    pub(crate) fn begin_watching(&self, now: u64) -> bool {
        self.relieved_at.store(now, Relaxed);
        self.relief.compare_exchange(0, 1, SeqCst, Relaxed).is_ok()
    }

    /// True if a caller has watched a moment ago, or does.
    pub(crate) fn relieved_lately(&self, now: u64) -> bool {
        is_within(self.relieved_at.load(Relaxed), now, WaitPolicy::RECENT_NS)
    }

    /// Callers who watched a moment ago are not trusted to do so again: there are several who wait.
    pub(crate) fn forget_relief(&self) {
        self.relieved_at.store(NOTHING, Relaxed);
    }

    /// It does no more. True: wake the keeper.
    #[must_use]
    pub(crate) fn stop_watching(&self) -> bool {
        self.relief.store(0, Relaxed);
        // Against `deep`: it sees that the relief is over, or this sees it sleep.
        fence(SeqCst);
        let keeper = self.keeper.load(Relaxed);
        keeper & KIND == DEEP && self.rouse_from(keeper)
    }

    /// The keeper's: what it may do at `now`. It is asleep already when this says so, and must sleep or call `wakes`.
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
        // Who has watched until just now is about to do so again.
        if self.relieved_lately(now) {
            return self.nap(broke_at, now + WaitPolicy::SHORTEST_NAP_NS);
        }
        Rest::None
    }

    /// The keeper's: the same for one that has found a caller in a pass, which will go on polling or do something else. It is asleep for
    /// as long as the caller takes to be trusted, if that is not long.
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

    /// The keeper's: a nap is over, and `missed` is whether something waits that a caller who polls would have taken. A program that
    /// polls now and then, and looks at its memory in between, misleads it; it is not trusted again for ever longer.
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

    /// The keeper's: it sleeps on everything from now on, until this time. It has made bells ring aloud before, and looks once more
    /// after.
    pub(crate) fn watches(&self, until: u64) {
        self.keeper.store(until & !KIND | WATCH, SeqCst);
        fence(SeqCst);
    }

    /// The keeper's: it is awake. Gives the time at which its sleep was to end; `None` if it was roused.
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
    fn what_never_happened_was_not_a_moment_ago() {
        // A clock that has just begun, as that of an engine.
        assert!(!is_within(NOTHING, 0, TIME) && !is_within(NOTHING, 5, TIME));
        assert!(is_within(0, 5, TIME) && !is_within(0, TIME, TIME));
        // By a thread that asked the clock a little later.
        assert!(is_within(6, 5, TIME));
    }
}
