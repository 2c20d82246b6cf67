//! A rate that several QPs have together: what a program, or a user, may send.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Pacer, Rate};
use crate::time::Nanos;

/// A rate that several QPs have together, on top of what each of them may have. A copy is the same one.
///
/// Each frame that leaves is a debt of all. The QP that sent it takes its place behind those who sent before, and goes on when all is
/// paid that was owed by then. So QPs that have enough to send take turns, frame by frame, and the mean is exact. In any span of
/// time leaves what the rate gives, [`Pacer::MAX_BURST`] and a frame of each QP that was idle.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Account>);

#[derive(Debug)]
struct Account {
    rate: Rate,
    pacer: Mutex<Pacer>,
}

impl SharedRate {
    /// Of all to which copies of it are given.
    pub fn new(rate: Rate) -> SharedRate {
        SharedRate(Arc::new(Account { rate, pacer: Mutex::new(Pacer::new()) }))
    }

    /// What it is.
    pub fn rate(&self) -> Rate {
        self.0.rate
    }

    fn pacer(&self) -> std::sync::MutexGuard<'_, Pacer> {
        self.0.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame of `bytes` left: when the QP that sent it may go on.
    pub fn sent(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut pacer = self.pacer();
        pacer.sent(now, bytes, self.0.rate);
        pacer.ready_at()
    }

    /// When what has left by now is paid for.
    pub fn ready_at(&self) -> Nanos {
        self.pacer().ready_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1250;

    #[test]
    fn who_has_enough_to_send_takes_turns_and_the_mean_is_exact() {
        // 10 us a frame.
        let rate = SharedRate::new(Rate::from_gbps(1.0));
        let mut next = [Nanos::ZERO; 3];
        let mut sent = [0u64; 3];
        let end = Nanos::from_millis(100);
        loop {
            let (who, at) = next.into_iter().enumerate().min_by_key(|(_, at)| *at).expect("three");
            if at >= end {
                break;
            }
            next[who] = rate.clone().sent(at, FRAME);
            sent[who] += 1;
        }
        let sum = sent.iter().sum::<u64>();
        assert!((10_000..=10_003).contains(&sum), "{sent:?}");
        assert!(sent.iter().all(|count| count.abs_diff(sum / 3) <= 1), "{sent:?}");
    }

    #[test]
    fn an_idle_time_saves_a_burst_up_and_no_more() {
        let rate = SharedRate::new(Rate::from_gbps(1.0));
        rate.sent(Nanos::ZERO, FRAME);
        assert_eq!(rate.ready_at(), Nanos::from_micros(10));
        let now = Nanos::from_millis(50);
        let at_once = (0..100).take_while(|_| rate.sent(now, FRAME) <= now).count();
        assert_eq!(at_once as u64, u64::from(Pacer::MAX_BURST) / FRAME);
    }
}
