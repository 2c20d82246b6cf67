//! Time as the NIC sees it: nanoseconds on a clock that somebody else reads.
//!
//! `transport`, `congestion`, `nic` and `sim` never read a clock: every entry takes
//! `now`. [`Clock`] and `monotonic` are the only places that do, and only `engine`, `host`, `remote`,
//! `daemon` and the command line use one.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time, or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The start of the clock.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than every deadline.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// The span from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// As a standard duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// In seconds, for rates.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(rhs.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, rhs: Nanos) -> Nanos {
        self.since(rhs)
    }
}

impl From<Duration> for Nanos {
    fn from(d: Duration) -> Nanos {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Nanos {
    /// With the unit that reads best: `4.096 us`, `16.8 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.3} us", n / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.3} ms", n / 1e6),
            _ => write!(f, "{:.3} s", n / 1e9),
        }
    }
}

#[cfg(test)]
thread_local! {
    static VIRTUAL: std::cell::Cell<Option<Nanos>> = const { std::cell::Cell::new(None) };
}

/// Sets what all clocks read in this thread; `None`: they run.
#[cfg(test)]
pub(crate) fn set_virtual_time(now: Option<Nanos>) {
    VIRTUAL.set(now);
}

/// The monotonic clock, counted from its creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn new() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Nanoseconds since the clock was made.
    pub fn now(&self) -> Nanos {
        #[cfg(test)]
        if let Some(now) = VIRTUAL.get() {
            return now;
        }
        self.start.elapsed().into()
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host have in common.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
