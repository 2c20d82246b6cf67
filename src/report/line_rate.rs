//! Rate limit for log lines that other processes can cause, with a count of suppressed lines.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A token bucket for log lines of one kind.
#[derive(Debug)]
pub struct LineRate {
    per_second: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Lines that may be printed now.
    room: f64,
    counted: Instant,
    left_out: u64,
}

impl LineRate {
    /// Makes a full bucket of `burst` lines, which refills at `per_second`.
    pub fn new(per_second: u32, burst: u32) -> LineRate {
        let (per_second, burst) = (f64::from(per_second), f64::from(burst));
        let state = State { room: burst, counted: Instant::now(), left_out: 0 };
        LineRate { per_second, burst, state: Mutex::new(state) }
    }

    /// True if a line may be printed now. Counts a suppressed line.
    pub fn takes(&self, now: Instant) -> bool {
        let mut state = self.at(now);
        let takes = state.room >= 1.0;
        if takes {
            state.room -= 1.0;
        } else {
            state.left_out += 1;
        }
        takes
    }

    /// Returns the number of lines suppressed since the last call; `None` if there are none, or a line about them would
    /// exceed the rate.
    pub fn left_out(&self, now: Instant) -> Option<u64> {
        let mut state = self.at(now);
        if state.left_out == 0 || state.room < 1.0 {
            return None;
        }
        state.room -= 1.0;
        Some(std::mem::take(&mut state.left_out))
    }

    fn at(&self, now: Instant) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.counted).as_secs_f64();
        state.room = (state.room + passed * self.per_second).min(self.burst);
        state.counted = state.counted.max(now);
        state
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let rate = LineRate::new(5, 20);
        let start = Instant::now() + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| rate.takes(start)).count(), 20);
        assert_eq!(rate.left_out(start), None, "no room for that either");
        let later = start + Duration::from_secs(1);
        assert_eq!(rate.left_out(later), Some(980));
        assert_eq!((0..1000).filter(|_| rate.takes(later)).count(), 4);
        assert_eq!(rate.left_out(later + Duration::from_secs(60)), Some(996));
        assert_eq!(rate.left_out(later + Duration::from_secs(60)), None, "it was said");
        assert_eq!((0..1000).filter(|_| rate.takes(later + Duration::from_secs(3600))).count(), 20);
    }
}
