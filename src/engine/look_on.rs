//! Looking on for a moment, before a program that waits goes to sleep.
//!
//! To be woken costs more than an answer takes: 15 to 20 us on a virtual machine, against 5 to 10. So a program that waits, and has
//! just posted something, looks on for a moment in the poll that finds nothing: if answers tend to come within it. Between looks it offers
//! its processor to others, since whoever is to answer may be waiting for this very one. Both ends of an exchange then stay awake, on
//! two processors or taking turns on one. Where nothing comes this ends after a few vain tries, and is tried again now and then.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::thread;

use super::wait_policy::WaitPolicy;
use super::{Engine, Progress};
use crate::nic::Published;
use crate::time::Nanos;

/// What a caller may look on for. Each is worth it or not by itself: a program that waits for its WRITEs alone has nothing to hope
/// for after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Hope {
    /// What comes first after a post: often the completion of what was posted.
    First = 1,
    /// What comes after that: often the answer.
    Next = 2,
}

/// Whether to look on.
#[derive(Debug, Default)]
pub(super) struct LookOn {
    /// A [`Hope`]; 0 if there is none.
    hope: AtomicU8,
    worth: [Worth; 2],
}

impl LookOn {
    /// Something was posted: an answer may come.
    pub(super) fn posted(&self) {
        self.hope.store(Hope::First as u8, Relaxed);
    }

    /// True if there is reason to look on.
    pub(super) fn is_due(&self) -> bool {
        self.hope.load(Relaxed) != 0
    }

    /// What to look on for, if it tends to be worth it. Callers that ask at the same time lose a count.
    fn takes_chance(&self) -> Option<Hope> {
        let hope = match self.hope.swap(0, Relaxed) {
            0 => return None,
            1 => Hope::First,
            _ => Hope::Next,
        };
        self.worth[hope as usize - 1].takes_chance().then_some(hope)
    }

    fn note(&self, hope: Hope, came: Option<Came>) {
        self.worth[hope as usize - 1].note(came.is_some());
        if came == Some(Came::SendsAlone) {
            self.hope.store(Hope::Next as u8, Relaxed);
        }
    }
}

/// Whether it tends to be worth it.
#[derive(Debug)]
struct Worth {
    credit: AtomicU32,
    /// Chances to let go by.
    pause: AtomicU32,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth { credit: AtomicU32::new(WaitPolicy::FIRST_SPIN_CREDIT), pause: AtomicU32::new(0) }
    }
}

impl Worth {
    fn takes_chance(&self) -> bool {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
        }
        pause == 0
    }

    fn note(&self, worth_it: bool) {
        let credit = self.credit.load(Relaxed);
        if worth_it {
            self.credit.store((credit + 1).min(WaitPolicy::SPIN_CREDIT), Relaxed);
        } else if credit > 1 {
            self.credit.store(credit / 2, Relaxed);
        } else {
            self.pause.store(WaitPolicy::SKIPPED_SPINS, Relaxed);
        }
    }
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// What was posted: the answer is still to come, if there is one.
    SendsAlone,
    /// A receive.
    Receives,
}

impl Came {
    fn since(before: Published, now: Published) -> Option<Came> {
        if now.receives != before.receives {
            Some(Came::Receives)
        } else if now.completions != before.completions {
            Some(Came::SendsAlone)
        } else {
            None
        }
    }
}

impl Engine {
    /// Looks on until something completes that is not among what was `published` when the caller looked, or a moment is over.
    /// `None`: nothing did.
    pub(super) fn look_on(
        &self,
        now: Nanos,
        published: Published,
        has_come: impl Fn() -> bool,
    ) -> Option<Progress> {
        let look_on = &self.shared.look_on;
        if !self.shared.said_to_wait_lately(now) || self.shared.is_crowded(now) {
            return None;
        }
        let hope = look_on.takes_chance()?;
        let came = self.shared.while_watching(now, || {
            self.look_until(now + Nanos(WaitPolicy::SPIN_BEFORE_SLEEP_NS), published, has_come)
        });
        look_on.note(hope, came);
        came?;
        self.shared.goes_on_waiting(now);
        Some(Progress { completions: 1, ..Progress::default() })
    }

    fn look_until(&self, until: Nanos, published: Published, has_come: impl Fn() -> bool) -> Option<Came> {
        loop {
            let now = self.now();
            if now >= until {
                return None;
            }
            self.shared.goes_on_passing(now);
            if let Some(mut worker) = self.shared.try_turn() {
                let progress = worker.take_in(now);
                let came = Came::since(published, worker.nic().published());
                if !progress.is_idle() {
                    self.shared.note(now, &progress);
                    if !self.may_owe(&worker, now, &progress) {
                        let left = self.shared.send_out(&mut worker, now);
                        self.shared.rouse(&worker, progress.more || left.more);
                    }
                }
                if came.is_some() {
                    return came;
                }
            }
            if has_come() {
                // The keeper published it between the caller's look at the queue and its pass.
                return Some(Came::Receives);
            }
            // Whoever is to answer may wait for this very processor.
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chance_comes_with_each_post() {
        let look_on = LookOn::default();
        assert!(!look_on.is_due() && look_on.takes_chance().is_none());
        look_on.posted();
        look_on.posted();
        assert!(look_on.is_due());
        assert_eq!(look_on.takes_chance(), Some(Hope::First));
        assert!(!look_on.is_due() && look_on.takes_chance().is_none());
    }

    #[test]
    fn what_was_posted_completes_before_the_answer_comes() {
        let look_on = LookOn::default();
        look_on.posted();
        let first = look_on.takes_chance().unwrap();
        look_on.note(first, Some(Came::SendsAlone));
        assert_eq!(look_on.takes_chance(), Some(Hope::Next));
        look_on.note(Hope::Next, Some(Came::Receives));
        assert_eq!(look_on.takes_chance(), None, "there is the answer");
    }

    #[test]
    fn vain_tries_end_it_and_it_is_tried_again_later() {
        let look_on = LookOn::default();
        let tries = |chances: u32, came: Option<Came>| {
            let worth = (0..chances).filter(|_| {
                look_on.posted();
                let taken = look_on.takes_chance();
                if let Some(hope) = taken {
                    look_on.note(hope, came);
                }
                taken.is_some()
            });
            worth.count()
        };
        assert_eq!(tries(10, None), 3);
        assert_eq!(tries(2 * WaitPolicy::SKIPPED_SPINS, None), 2, "one in so many");
        tries(2 * WaitPolicy::SKIPPED_SPINS, Some(Came::Receives));
        assert_eq!(tries(10, None), 4, "it has proved worth it");
    }

    #[test]
    fn to_hope_in_vain_for_more_does_not_spoil_what_comes_first() {
        let look_on = LookOn::default();
        for _ in 0..100 {
            look_on.posted();
            let first = look_on.takes_chance().expect("it always comes");
            look_on.note(first, Some(Came::SendsAlone));
            if let Some(next) = look_on.takes_chance() {
                look_on.note(next, None);
            }
        }
    }
}
