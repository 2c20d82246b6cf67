//! The processor time of the NIC that a user takes.
//!
//! Threads of the NIC execute a client's requests, wake it, and copy from and to its memory. All time that requests
//! take there is charged to the user: a client may send as many as it likes. Their part in the worker's passes is not
//! charged; it is smaller than that of encoding the answer. Wakes and copies follow packets, of which each user has a
//! share, and take some microseconds, but a wake of thousands of threads and a copy to a huge page that has to be
//! zeroed take longer: their time beyond a free share is charged, apart from that of requests, so that a start of many
//! programs delays no data. After [`BURST`], these threads pause, so that a user has one [`PART`]th of a processor.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use roxie_base::threads::lock;

/// Processor time of a wake that is not charged.
pub(super) const FREE: Duration = Duration::from_micros(100);
/// The part of a processor that a user has for longer than a burst.
const PART: u32 = 4;
/// Processor time that a user may take in one go after a long rest: some thousand queue pairs are created in it.
const BURST: Duration = Duration::from_millis(500);

/// Longest sleep in a pause between two looks whether the client has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What a user takes of the processors.
#[derive(Debug, Default)]
pub(super) struct UserShares {
    /// By requests.
    pub(super) requests: ProcessorShare,
    /// By wakes and copies.
    pub(super) data: ProcessorShare,
}

impl UserShares {
    /// True if not everything is paid.
    pub(super) fn has_debt(&self) -> bool {
        [&self.requests, &self.data].iter().any(|share| !share.debt().is_zero())
    }
}

/// What a user has taken: the time when everything is paid.
#[derive(Debug, Default)]
pub(super) struct ProcessorShare(Mutex<Option<Instant>>);

impl ProcessorShare {
    /// Does some work, and charges its processor time, of which `free` costs nothing.
    pub(super) fn charge_for<T>(&self, free: Duration, act: impl FnOnce() -> T) -> T {
        let (began, since) = (thread_time(), Instant::now());
        let result = act();
        // The clock of the thread costs a system call, and leaves out the time of other programs.
        if since.elapsed() > free {
            self.charge(thread_time().saturating_sub(began), free);
        }
        result
    }

    /// Charges the processor time of the calling thread beyond `charged`, which was charged before.
    pub(super) fn charge_thread(&self, charged: &mut Duration) {
        let spent = thread_time();
        self.charge(spent.saturating_sub(*charged), Duration::ZERO);
        *charged = spent;
    }

    /// Charges work that took this much processor time, of which `free` costs nothing.
    fn charge(&self, took: Duration, free: Duration) {
        let debt = took.saturating_sub(free) * PART;
        if debt > Duration::ZERO {
            let (mut paid, now) = (lock(&self.0), Instant::now());
            *paid = Some(paid.map_or(now, |paid| paid.max(now)) + debt);
        }
    }

    /// As [`pay`](Self::pay), for a thread that looks now and then whether the client has ended.
    pub(super) fn pay_unless(&self, has_ended: impl Fn() -> bool) {
        self.pay(|time| {
            std::thread::sleep(time.min(LOOK));
            !has_ended()
        });
    }

    /// Pauses until the user has paid all but a burst, or the client has ended. `sleep` sleeps for this time at most,
    /// and returns false if the client has ended.
    pub(super) fn pay(&self, sleep: impl Fn(Duration) -> bool) {
        while let pause = self.pause()
            && !pause.is_zero()
            && sleep(pause)
        {}
    }

    /// Returns the time for which the user's threads are to pause.
    pub(super) fn pause(&self) -> Duration {
        self.debt().saturating_sub(BURST * PART)
    }

    /// Returns the time after which everything is paid.
    fn debt(&self) -> Duration {
        lock(&self.0).map_or(Duration::ZERO, |paid| paid.saturating_duration_since(Instant::now()))
    }
}

/// Returns the processor time of the calling thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_acts_beyond_a_burst_are_paid() {
        let share = ProcessorShare::default();
        for _ in 0..1000 {
            share.charge(FREE, FREE);
        }
        share.charge(FREE + BURST, FREE);
        assert_eq!(share.pause(), Duration::ZERO);
        share.charge(FREE + Duration::from_secs(10), FREE);
        share.charge(FREE + Duration::from_secs(1), FREE);
        let pause = share.pause();
        assert!(pause <= Duration::from_secs(44) && pause > Duration::from_secs(30), "{pause:?}");
        share.pay(|_| false);
    }

    #[test]
    fn short_requests_are_paid_too() {
        let share = ProcessorShare::default();
        for _ in 0..100_000 {
            share.charge(FREE / 2, Duration::ZERO);
        }
        assert!(share.pause() > Duration::from_secs(2), "{:?}", share.pause());
        let paid = || lock(&share.0).expect("there is a debt");
        let (begin, before) = (thread_time(), paid());
        while thread_time() == begin {}
        let mut charged = begin;
        share.charge_thread(&mut charged);
        assert!(charged > begin && paid() - before == PART * (charged - begin));
    }

    #[test]
    fn waiting_costs_nothing() {
        let share = ProcessorShare::default();
        share.charge_for(FREE, || std::thread::sleep(Duration::from_millis(5)));
        assert!(share.debt() < Duration::from_millis(5), "{:?}", share.debt());
    }
}
