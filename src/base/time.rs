//! Time in nanoseconds, on a clock that the caller reads.
//!
//! `transport`, `congestion`, `nic` and `sim` never read a clock: every entry point takes `now`. Only
//! [`Clock`] and `monotonic` read one. Their users are `engine`, `host`, `remote`, `daemon` and the command
//! line.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time, or a duration, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Start of the clock.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than every deadline.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Returns a duration of `us` microseconds.
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// Returns a duration of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// Returns the duration from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Converts to a standard duration.
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Converts to seconds.
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
    /// Prints the largest unit that keeps the value at 1 or more: `4.096 us`, `16.800 ms`.
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

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static VIRTUAL: std::cell::Cell<Option<Nanos>> = const { std::cell::Cell::new(None) };
}

/// Sets the time that all clocks of the thread read. `None` lets them run again.
#[cfg(any(test, feature = "testing"))]
pub fn set_virtual_time(now: Option<Nanos>) {
    VIRTUAL.set(now);
}

/// The monotonic clock, with its zero at creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Creates a clock that reads zero now.
    pub fn new() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Returns the time since the clock's creation.
    pub fn now(&self) -> Nanos {
        #[cfg(any(test, feature = "testing"))]
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

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
