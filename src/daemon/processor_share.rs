//! The processor time of the NIC that a user takes.
//!
//! Threads of the NIC execute a client's requests and wake it. Most requests and wakes take some microseconds. A snapshot of thousands of QPs,
//! or a wake of thousands of threads, takes milliseconds. The time beyond [`FREE`] is charged to the user. Who has taken [`BURST`] at once pays
//! by pauses of these threads, and so has one [`PART`]th of a processor.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use roxie_base::threads::lock;

/// Processor time of a request or a wake that is not charged.
const FREE: Duration = Duration::from_micros(100);
/// The part of a processor that a user has for longer than a burst.
const PART: u32 = 4;
/// Processor time that a user may take at once after a long rest: thousands of queue pairs are created in it.
const BURST: Duration = Duration::from_secs(2);

/// What a user has taken: the time when everything is paid.
#[derive(Debug, Default)]
pub(super) struct ProcessorShare(Mutex<Option<Instant>>);

impl ProcessorShare {
    /// Executes a request or a wake, and charges its processor time.
    pub(super) fn charge_for<T>(&self, act: impl FnOnce() -> T) -> T {
        let (began, since) = (thread_time(), Instant::now());
        let result = act();
        // The clock of the thread costs a system call, and leaves out the time of other programs.
        if since.elapsed() > FREE {
            self.charge(thread_time().saturating_sub(began));
        }
        result
    }

    fn charge(&self, took: Duration) {
        let owed = took.saturating_sub(FREE) * PART;
        if owed > Duration::ZERO {
            let (mut paid, now) = (lock(&self.0), Instant::now());
            *paid = Some(paid.map_or(now, |paid| paid.max(now)) + owed);
        }
    }

    /// Pauses until the user has paid all but a burst, or the client has ended. `sleep` sleeps for this time at most, and returns false if the
    /// client has ended.
    pub(super) fn pay(&self, sleep: impl Fn(Duration) -> bool) {
        while let pause = self.pause()
            && !pause.is_zero()
            && sleep(pause)
        {}
    }

    fn pause(&self) -> Duration {
        let owed =
            lock(&self.0).map_or(Duration::ZERO, |paid| paid.saturating_duration_since(Instant::now()));
        owed.saturating_sub(BURST * PART)
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
            share.charge(FREE);
        }
        share.charge(FREE + BURST);
        assert_eq!(share.pause(), Duration::ZERO);
        share.charge(FREE + Duration::from_secs(10));
        share.charge(FREE + Duration::from_secs(1));
        let pause = share.pause();
        assert!(pause <= Duration::from_secs(44) && pause > Duration::from_secs(30), "{pause:?}");
        share.pay(|_| false);
    }

    #[test]
    fn waiting_costs_nothing() {
        let share = ProcessorShare::default();
        share.charge_for(|| std::thread::sleep(Duration::from_millis(5)));
        let owed =
            lock(&share.0).map_or(Duration::ZERO, |paid| paid.saturating_duration_since(Instant::now()));
        assert!(owed < Duration::from_millis(5), "{owed:?}");
    }
}
