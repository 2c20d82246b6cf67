//! Spin, then sleep: a program that waits polls for a moment before it blocks.
//!
//! A wake-up takes 15 to 20 us on a virtual machine, a reply 5 to 10 us. A program that has just posted therefore keeps
//! polling for up to [`WaitPolicy::SPIN_BEFORE_SLEEP_NS`] in the poll that finds nothing, if replies tend to arrive
//! within that time. The program yields the processor between polls, since the thread that is to reply may need it.
//! Both ends of an exchange then stay awake, on two processors or taking turns on one. After a few unsuccessful spins
//! the next [`WaitPolicy::SKIPPED_SPINS`] chances are skipped.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::thread;

use super::wait_policy::WaitPolicy;
use super::{Engine, Progress};
use roxie_base::time::Nanos;
use roxie_nic::nic::Published;

/// The completion that a caller may spin for. Success is counted for each separately: a program that waits only for its
/// WRITEs gets one completion and no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Expected {
    /// The first completion after a post: often the completion of the posted request.
    First = 1,
    /// The completion after that: often the reply.
    Next = 2,
}

/// Decides whether a caller spins before it sleeps.
#[derive(Debug, Default)]
pub(super) struct SpinThenSleep {
    /// The next [`Expected`] as a number, or 0 for none.
    expected: AtomicU8,
    credits: [SpinCredit; 2],
}

impl SpinThenSleep {
    /// A caller has posted work requests: a reply may come.
    pub(super) fn note_post(&self) {
        self.expected.store(Expected::First as u8, Relaxed);
    }

    /// True if a completion is expected.
    pub(super) fn is_due(&self) -> bool {
        self.expected.load(Relaxed) != 0
    }

    /// Takes the expectation, and returns it if spinning for it tends to succeed. Callers that ask at the same time may
    /// lose a count.
    fn take_chance(&self) -> Option<Expected> {
        let expected = match self.expected.swap(0, Relaxed) {
            0 => return None,
            1 => Expected::First,
            _ => Expected::Next,
        };
        self.credits[expected as usize - 1].take_chance().then_some(expected)
    }

    fn note(&self, expected: Expected, came: Option<Completed>) {
        self.credits[expected as usize - 1].note(came.is_some());
        if came == Some(Completed::SendsAlone) {
            self.expected.store(Expected::Next as u8, Relaxed);
        }
    }
}

/// Success of past spins.
#[derive(Debug)]
struct SpinCredit {
    credit: AtomicU32,
    /// Number of chances to skip.
    pause: AtomicU32,
}

impl Default for SpinCredit {
    fn default() -> SpinCredit {
        SpinCredit { credit: AtomicU32::new(WaitPolicy::FIRST_SPIN_CREDIT), pause: AtomicU32::new(0) }
    }
}

impl SpinCredit {
    fn take_chance(&self) -> bool {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
        }
        pause == 0
    }

    fn note(&self, worth_it: bool) {
        let credit = self.credit.load(Relaxed);
        debug_assert!((1..=WaitPolicy::SPIN_CREDIT).contains(&credit), "{credit} credits for spinning");
        if worth_it {
            self.credit.store((credit + 1).min(WaitPolicy::SPIN_CREDIT), Relaxed);
        } else if credit > 1 {
            self.credit.store(credit / 2, Relaxed);
        } else {
            self.pause.store(WaitPolicy::SKIPPED_SPINS, Relaxed);
        }
    }
}

/// The kind of completions that were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completed {
    /// Sends only: the reply, if any, is still to come.
    SendsAlone,
    /// At least one receive.
    Receives,
}

impl Completed {
    fn since(before: Published, now: Published) -> Option<Completed> {
        if now.receives != before.receives {
            Some(Completed::Receives)
        } else if now.completions != before.completions {
            Some(Completed::SendsAlone)
        } else {
            None
        }
    }
}

impl Engine {
    /// Spins until a completion is published that is not counted in `published`, or
    /// [`WaitPolicy::SPIN_BEFORE_SLEEP_NS`] is over. `published` is the count at the caller's last poll. `None`: no
    /// completion came.
    pub(super) fn spin_for_completion(
        &self,
        now: Nanos,
        published: Published,
        has_come: impl Fn() -> bool,
    ) -> Option<Progress> {
        let spinning = &self.shared.spinning;
        if !self.shared.announced_wait_recently(now) || self.shared.is_crowded(now) {
            return None;
        }
        let expected = spinning.take_chance()?;
        let completed = self.shared.while_substituting(now, || {
            self.spin_until(now + Nanos(WaitPolicy::SPIN_BEFORE_SLEEP_NS), published, has_come)
        });
        spinning.note(expected, completed);
        completed?;
        self.shared.keeps_waiting(now);
        Some(Progress { completions: 1, ..Progress::default() })
    }

    fn spin_until(
        &self,
        until: Nanos,
        published: Published,
        has_come: impl Fn() -> bool,
    ) -> Option<Completed> {
        loop {
            let now = self.now();
            if now >= until {
                return None;
            }
            self.shared.keeps_polling(now);
            if let Some(mut worker) = self.shared.try_turn() {
                let progress = worker.take_in(now);
                let completed = Completed::since(published, worker.nic().published());
                if !progress.is_idle() {
                    self.shared.note(now, &progress);
                    if !self.defer_replies(&worker, now, &progress) {
                        let sent = self.shared.send_out(&mut worker, now);
                        self.shared.wake_if_needed(&worker, progress.more || sent.more);
                    }
                }
                if completed.is_some() {
                    return completed;
                }
            }
            if has_come() {
                // The engine thread published a completion between the caller's poll of the queue and its pass.
                return Some(Completed::Receives);
            }
            // The thread that is to reply may need this processor.
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_post_gives_one_chance_to_spin() {
        let spinning = SpinThenSleep::default();
        assert!(!spinning.is_due() && spinning.take_chance().is_none());
        spinning.note_post();
        spinning.note_post();
        assert!(spinning.is_due());
        assert_eq!(spinning.take_chance(), Some(Expected::First));
        assert!(!spinning.is_due() && spinning.take_chance().is_none());
    }

    #[test]
    fn reply_is_expected_after_the_posted_request_completes() {
        let spinning = SpinThenSleep::default();
        spinning.note_post();
        let first = spinning.take_chance().unwrap();
        spinning.note(first, Some(Completed::SendsAlone));
        assert_eq!(spinning.take_chance(), Some(Expected::Next));
        spinning.note(Expected::Next, Some(Completed::Receives));
        assert_eq!(spinning.take_chance(), None, "the reply has come");
    }

    #[test]
    fn unsuccessful_spins_are_skipped_then_tried_again() {
        let spinning = SpinThenSleep::default();
        let tries = |chances: u32, came: Option<Completed>| {
            let worth = (0..chances).filter(|_| {
                spinning.note_post();
                let taken = spinning.take_chance();
                if let Some(expected) = taken {
                    spinning.note(expected, came);
                }
                taken.is_some()
            });
            worth.count()
        };
        assert_eq!(tries(10, None), 3);
        assert_eq!(tries(2 * WaitPolicy::SKIPPED_SPINS, None), 2, "one chance in SKIPPED_SPINS");
        tries(2 * WaitPolicy::SKIPPED_SPINS, Some(Completed::Receives));
        assert_eq!(tries(10, None), 4, "spinning was successful before");
    }

    #[test]
    fn failed_second_spin_does_not_discredit_the_first() {
        let spinning = SpinThenSleep::default();
        for _ in 0..100 {
            spinning.note_post();
            let first = spinning.take_chance().expect("the first spin always succeeds");
            spinning.note(first, Some(Completed::SendsAlone));
            if let Some(next) = spinning.take_chance() {
                spinning.note(next, None);
            }
        }
    }
}
