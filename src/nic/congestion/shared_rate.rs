//! A rate limit shared by several QPs, for a program or a user.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Pacer, Rate};
use roxie_base::time::Nanos;

/// A rate limit shared by several QPs, in addition to the limit of each. Clones share the limit.
///
/// Each frame sent adds to a common debt. A QP that has sent may send again once the debt at that time is
/// paid. Backlogged QPs thus alternate frame by frame, and the mean rate is exact. In any interval, the QPs
/// send at most what the rate allows, [`Pacer::MAX_BURST`], and one frame of each QP that was idle.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Account>);

#[derive(Debug)]
struct Account {
    rate: Rate,
    pacer: Mutex<Pacer>,
}

impl SharedRate {
    /// Creates a limit. All its clones share it.
    pub fn new(rate: Rate) -> SharedRate {
        SharedRate(Arc::new(Account { rate, pacer: Mutex::new(Pacer::new()) }))
    }

    /// Returns the limit.
    pub fn rate(&self) -> Rate {
        self.0.rate
    }

    fn pacer(&self) -> std::sync::MutexGuard<'_, Pacer> {
        self.0.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a QP sent a frame of `bytes`. Returns when the QP may send again.
    pub fn sent(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut pacer = self.pacer();
        pacer.sent(now, bytes, self.0.rate);
        pacer.ready_at()
    }

    /// Returns when the debt of all frames sent so far is paid.
    pub fn ready_at(&self) -> Nanos {
        self.pacer().ready_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1250;

    #[test]
    fn backlogged_qps_alternate_at_the_exact_rate() {
        // 10 us per frame.
        let rate = SharedRate::new(Rate::from_gbps(1.0));
        let mut next = [Nanos::ZERO; 3];
        let mut sent = [0u64; 3];
        let end = Nanos::from_millis(100);
        loop {
            let (qp, at) = next.into_iter().enumerate().min_by_key(|(_, at)| *at).expect("three");
            if at >= end {
                break;
            }
            next[qp] = rate.clone().sent(at, FRAME);
            sent[qp] += 1;
        }
        let sum = sent.iter().sum::<u64>();
        assert!((10_000..=10_003).contains(&sum), "{sent:?}");
        assert!(sent.iter().all(|count| count.abs_diff(sum / 3) <= 1), "{sent:?}");
    }

    #[test]
    fn idle_time_earns_at_most_one_burst() {
        let rate = SharedRate::new(Rate::from_gbps(1.0));
        rate.sent(Nanos::ZERO, FRAME);
        assert_eq!(rate.ready_at(), Nanos::from_micros(10));
        let now = Nanos::from_millis(50);
        let at_once = (0..100).take_while(|_| rate.sent(now, FRAME) <= now).count();
        assert_eq!(at_once as u64, u64::from(Pacer::MAX_BURST) / FRAME);
    }
}
