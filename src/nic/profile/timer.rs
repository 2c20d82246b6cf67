//! The ACK timer of an adapter, as it was measured against a silent peer.
//!
//! ```text
//! two phases   the adaptive phase has a list of steps. It costs one retry, and ends before the first step that is
//!              longer than the ACK timeout, which counts at least as `floor`. Then come regular timeouts at one
//!              interval, one less than there are retries. At the last one, the QP fails.
//! spaced       a first timeout, which may send nothing, then timeouts at one interval
//! ```

use roxie_base::random::splitmix;
use roxie_base::time::Nanos;
use serde::{Deserialize, Serialize};

/// Largest code of a step: QPs have codes up to 31, and the step that ends an adaptive phase is longer.
const LONGEST_CODE: u8 = 40;

/// Returns the ACK timeout of a code: 4.096 us * 2^code (IBTA 9.7.6.1.3). Codes beyond those of QPs go on doubling, up
/// to 40.
pub fn nominal(code: u8) -> Nanos {
    Nanos(4_096 << code.min(LONGEST_CODE))
}

/// A time as a multiple of an ACK timeout.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The code of the ACK timeout.
    pub code: u8,
    /// The multiple.
    pub share: f64,
}

impl Step {
    /// Returns the step's duration.
    pub fn duration(self) -> Nanos {
        Nanos((nominal(self.code).0 as f64 * self.share).round() as u64)
    }
}

/// The adaptive phase after some history of the adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adaptive {
    /// Time of the first point.
    pub start: Nanos,
    /// The first retransmission is at any of this many points.
    pub first_of: u8,
    /// From each point to the next. Behind the last, steps double.
    pub steps: Vec<Step>,
}

impl Adaptive {
    /// Returns the step behind point `index`.
    fn step(&self, index: usize) -> Nanos {
        let last = self.steps.len().saturating_sub(1);
        match (self.steps.get(index), self.steps.last()) {
            (Some(step), _) => step.duration(),
            (None, Some(step)) => {
                nominal(step.code.saturating_add(u8::try_from(index - last).unwrap_or(u8::MAX)))
            }
            (None, None) => nominal(LONGEST_CODE),
        }
    }

    /// Returns the time of point `index`.
    fn point(&self, index: usize) -> Nanos {
        (0..index).fold(self.start, |at, index| at + self.step(index))
    }
}

/// How an adapter's ACK timer runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AckTimer {
    /// An adaptive phase, then regular timeouts.
    TwoPhase {
        /// A smaller code counts as this one.
        floor: u8,
        /// Interval of regular timeouts, in ACK timeouts.
        factor: f64,
        /// The number of retries that `retry_cnt` 0 stands for.
        zero_as: u8,
        /// The adaptive phase.
        adaptive: Adaptive,
    },
    /// Timeouts at one interval.
    Spaced {
        /// Time of the first timeout, in ACK timeouts, by code; between two codes that of the smaller one.
        first: Vec<Step>,
        /// The first timeout sends nothing, and costs no retry.
        first_is_silent: bool,
        /// Interval, in ACK timeouts.
        spacing: f64,
    },
}

/// What an expiry of the timer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A retransmission of the adaptive phase, not counted as a timeout.
    Adaptive,
    /// A timeout and a retransmission.
    Regular,
    /// A timeout that sends nothing.
    Silent,
    /// A timeout at which the QP fails.
    Exceeded,
    /// The end of the adaptive phase, at which the QP fails without a timeout.
    AdaptiveExceeded,
}

/// Where a timer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next expiry is the point with this number.
    Adaptive(usize),
    /// The next expiry is a regular timeout, with this many to come, itself included.
    Regular(u8),
    /// The next expiry sends nothing, with this many to come after it.
    Silent(u8),
}

/// A running timer.
#[derive(Clone, Copy, Debug)]
pub struct AckTimerRun {
    timer: &'static AckTimer,
    code: u8,
    retry_cnt: u8,
    /// Number from which the first point is chosen.
    draw: u64,
    phase: Phase,
}

impl AckTimerRun {
    /// Starts a timer with a QP's attributes. `draw`: any number, from which the first point is chosen. Returns the
    /// timer and the time to its first expiry.
    pub fn start(timer: &'static AckTimer, code: u8, retry_cnt: u8, draw: u64) -> (AckTimerRun, Nanos) {
        let (phase, wait) = match timer {
            AckTimer::TwoPhase { adaptive, .. } => {
                let index = (draw % u64::from(adaptive.first_of.max(1))) as usize;
                (Phase::Adaptive(index), adaptive.point(index))
            }
            AckTimer::Spaced { first, first_is_silent, .. } => {
                let share = first.iter().rev().find(|step| step.code <= code).or(first.first());
                let wait = Step { code, share: share.map_or(1.0, |step| step.share) }.duration();
                match first_is_silent {
                    true => (Phase::Silent(retry_cnt + 1), wait),
                    false => (Phase::Regular(retry_cnt + 1), wait),
                }
            }
        };
        (AckTimerRun { timer, code, retry_cnt, draw, phase }, wait)
    }

    /// Starts anew, with the next draw. Returns the time to the first expiry.
    pub fn restart(&mut self) -> Nanos {
        splitmix(&mut self.draw);
        let (run, wait) = AckTimerRun::start(self.timer, self.code, self.retry_cnt, self.draw);
        *self = run;
        wait
    }

    /// Handles an expiry. Returns what it leads to, and the time to the next.
    pub fn expire(&mut self) -> (Expiry, Nanos) {
        let interval = self.interval();
        match self.phase {
            Phase::Adaptive(index) => self.expire_adaptive(index, interval),
            Phase::Silent(timeouts) => {
                self.phase = Phase::Regular(timeouts);
                (Expiry::Silent, interval)
            }
            Phase::Regular(..=1) => (Expiry::Exceeded, interval),
            Phase::Regular(timeouts) => {
                self.phase = Phase::Regular(timeouts - 1);
                (Expiry::Regular, interval)
            }
        }
    }

    fn expire_adaptive(&mut self, index: usize, interval: Nanos) -> (Expiry, Nanos) {
        let AckTimer::TwoPhase { floor, zero_as, adaptive, .. } = self.timer else {
            return (Expiry::Exceeded, interval);
        };
        let step = adaptive.step(index);
        if step <= nominal(self.code.max(*floor)) {
            self.phase = Phase::Adaptive(index + 1);
            return (Expiry::Adaptive, step);
        }
        let retries = if self.retry_cnt == 0 { *zero_as } else { self.retry_cnt };
        if retries <= 1 {
            return (Expiry::AdaptiveExceeded, interval);
        }
        self.phase = Phase::Regular(retries - 1);
        (Expiry::Adaptive, step.min(interval))
    }

    /// Returns the interval of regular timeouts.
    fn interval(&self) -> Nanos {
        let (code, share) = match self.timer {
            AckTimer::TwoPhase { floor, factor, .. } => (self.code.max(*floor), *factor),
            AckTimer::Spaced { spacing, .. } => (self.code, *spacing),
        };
        Step { code, share }.duration()
    }
}
