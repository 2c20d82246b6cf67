//! Looking on for a moment, before a program that waits goes to sleep.
//!
//! To be woken costs more than an answer takes, if both ends have a processor: 15 to 20 us on a virtual machine, against 10. So a program that
//! waits, and has just posted something, looks on for a moment in the poll that finds nothing: if answers tend to come within it. On
//! one processor none does, because whoever answers cannot run meanwhile, and this ends after a few vain tries.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::{Engine, Progress};
use crate::time::Nanos;

/// How long. Twice what an answer takes of a peer that has to be woken, or two that both look on would never find out.
const MOMENT: Nanos = Nanos::from_micros(50);
/// How many tries may be in vain, after as many that were not.
const CREDIT: u32 = 8;
/// Credit to begin with.
const FIRST: u32 = 4;
/// Chances that are let go by when there is none left, before the next try.
const PAUSE: u32 = 64;

/// Whether to look on.
#[derive(Debug)]
pub(super) struct LookOn {
    /// Something was posted, and nobody has looked on since.
    due: AtomicBool,
    credit: AtomicU32,
    /// Chances to let go by.
    pause: AtomicU32,
}

impl Default for LookOn {
    fn default() -> LookOn {
        LookOn { due: AtomicBool::new(false), credit: AtomicU32::new(FIRST), pause: AtomicU32::new(0) }
    }
}

impl LookOn {
    /// Something was posted: an answer may come.
    pub(super) fn posted(&self) {
        self.due.store(true, Relaxed);
    }

    /// True if there is reason to look on.
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// The same, once after each post, and only if it tends to be worth it. Callers that ask at the same time lose a count.
    fn takes_chance(&self) -> bool {
        if !self.due.swap(false, Relaxed) {
            return false;
        }
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
        }
        pause == 0
    }

    fn note(&self, worth_it: bool) {
        let credit = self.credit.load(Relaxed);
        if worth_it {
            self.credit.store((credit + 1).min(CREDIT), Relaxed);
        } else if credit > 1 {
            self.credit.store(credit / 2, Relaxed);
        } else {
            self.pause.store(PAUSE, Relaxed);
        }
    }
}

impl Engine {
    /// Looks on until something completes, or a moment is over. `None`: nothing did.
    pub(super) fn look_on(&self, now: Nanos) -> Option<Progress> {
        let look_on = &self.shared.look_on;
        if !self.shared.said_to_wait_lately(now) || !look_on.takes_chance() {
            return None;
        }
        let until = now + MOMENT;
        loop {
            let now = self.now();
            if now >= until {
                look_on.note(false);
                return None;
            }
            self.shared.watch.passed(now.0);
            let mut worker = self.shared.try_turn()?;
            let came = worker.take_in(now);
            if came.is_idle() {
                drop(worker);
                std::hint::spin_loop();
                continue;
            }
            self.shared.note(now, &came);
            if !self.may_owe(&worker, now, &came) {
                let left = self.shared.send_out(&mut worker, now);
                self.shared.rouse(&worker, came.more || left.more);
            }
            if came.completions > 0 {
                look_on.note(true);
                self.shared.goes_on_waiting(now);
                return Some(came);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chance_comes_with_each_post() {
        let look_on = LookOn::default();
        assert!(!look_on.takes_chance());
        look_on.posted();
        look_on.posted();
        assert!(look_on.takes_chance() && !look_on.takes_chance());
    }

    #[test]
    fn vain_tries_end_it_and_it_is_tried_again_later() {
        let look_on = LookOn::default();
        let tries = |chances: u32| {
            let worth = (0..chances).filter(|_| {
                look_on.posted();
                let takes = look_on.takes_chance();
                if takes {
                    look_on.note(false);
                }
                takes
            });
            worth.count()
        };
        assert_eq!(tries(10), 3);
        assert_eq!(tries(PAUSE * 2), 2, "one in so many");
        look_on.pause.store(0, Relaxed);
        (0..20).for_each(|_| look_on.note(true));
        assert_eq!(tries(10), 4, "it has proved worth it");
    }
}
