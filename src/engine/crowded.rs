//! Whether the processors are crowded: shared with programs that only compute.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::time::{Clock, Nanos};

/// Who is kept off its processor for longer, in ns, shares it with a program that only computes. Who reacts to others takes less.
pub(super) const LONG_TURN: u64 = 500_000;
/// How long the processors are taken to be crowded, in ns: at first, and at most.
const SHORTEST: u64 = 50_000_000;
const LONGEST: u64 = 1_000_000_000;

/// What somebody has found out lately.
#[derive(Debug, Default)]
pub(super) struct Crowded {
    until: AtomicU64,
    /// For how long they were taken to be so at last.
    time: AtomicU64,
}

impl Crowded {
    /// They were found crowded. They are taken to be so for a moment, and for longer each time that this turns out to be so right after:
    /// two that share a processor only because both have just begun are parted by the scheduler, if neither sleeps meanwhile.
    pub(super) fn found(&self, now: u64) {
        let lately = now < self.until.load(Relaxed) + LONGEST;
        let before = if lately { self.time.load(Relaxed) } else { 0 };
        let time = (2 * before).clamp(SHORTEST, LONGEST);
        self.time.store(time, Relaxed);
        self.until.store(now + time, Relaxed);
    }

    /// Whoever wants the processor may have it, now and at once: others that react give it back soon. A program that only computes keeps
    /// it for milliseconds, and then this is found so.
    pub(super) fn offer_processor(&self, clock: &Clock, now: Nanos) {
        thread::yield_now();
        let after = clock.now();
        if (after - now).0 > LONG_TURN {
            self.found(after.0);
        }
    }

    /// True if they were found so a moment ago.
    pub(super) fn is_so(&self, now: u64) -> bool {
        now < self.until.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kept_off::happens_beside_a_spinner;

    #[test]
    fn who_offers_the_processor_to_a_program_that_computes_notices() {
        let (crowded, clock) = (Crowded::default(), Clock::new());
        assert!(happens_beside_a_spinner(|| {
            crowded.offer_processor(&clock, clock.now());
            crowded.is_so(clock.now().0)
        }));
    }

    #[test]
    fn processors_that_stay_crowded_are_taken_to_be_so_for_longer_each_time() {
        let crowded = Crowded::default();
        assert!(!crowded.is_so(0));
        let (mut now, mut last) = (7, 0);
        for times in 0..8 {
            crowded.found(now);
            let began = now;
            while crowded.is_so(now) {
                now += SHORTEST / 4;
            }
            let time = now - began;
            assert!(times == 0 || time == (2 * last).min(LONGEST), "{time} after {last}");
            last = time;
        }
        assert_eq!(last, LONGEST);
        // They were not for a while: it begins anew.
        now += LONGEST;
        crowded.found(now);
        assert!(crowded.is_so(now + SHORTEST - 1) && !crowded.is_so(now + SHORTEST));
    }
}
