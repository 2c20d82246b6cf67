//! The reaction point of DCQCN: a notification cuts the rate by alpha; time and bytes without a notification
//! restore it.
//!
//! Source: Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 3. For
//! differences of adapters see [`super::knobs`]. Choices where the sources leave one:
//!
//! * The QP starts at line rate with the initial alpha. No timer runs and no byte counts before the first
//!   notification.
//! * A decrease multiplies the rate by `1 - 1024 alpha / 2^rpg_gd`, with alpha before its update. The two
//!   stages and the byte counter restart at zero, and the increase timer restarts.
//! * An increase compares the stages with the threshold F, then increments its own. Fast recovery, if no
//!   stage has reached F: the gap to the target halves. Hyper increase, if each stage is above F, else
//!   additive increase: the target rises before the gap halves. F is thus the number of fast-recovery steps.
//! * Timers due at an instant run before an event at that instant.
//! * Preset `paper`: each notification updates alpha and restarts the alpha timer. Preset `connectx`: the
//!   alpha timer runs from the first notification on, and each expiry checks whether a notification arrived
//!   since the last one.
//! * A notification within `rate_reduce_monitor_period` of a decrease updates alpha, but does not decrease
//!   the rate. (The firmware's manual places the decrease at the beginning of the next period instead of at
//!   the notification. In each case, decreases are a period apart.)
//! * The limiter is never released. Adapters reset alpha when a flow is back at the highest rate; the paper
//!   does not mention it.
//!
//! No timer ticks: the expiries since the last call are computed in closed form, for any number of periods.
//! n updates of alpha without a notification multiply alpha by the n-th power of the update factor. Increases
//! of one kind are a geometric series of the gap, until the target reaches the highest rate; from then on
//! the gap halves. A sequence of increases has at most three kinds, in this order: fast recovery, additive,
//! hyper.

use super::knobs::{Knob, Knobs, Preset};
use super::{Control, Rate, Settings, State};
use roxie_base::time::Nanos;

/// The knobs in units for arithmetic: rates in bits per second, times in nanoseconds, fractions of one.
#[derive(Clone, Debug)]
struct Parameters {
    preset: Preset,
    additive: f64,
    hyper: f64,
    /// Bounds of the rate, `0 < lowest <= highest`.
    lowest: f64,
    highest: f64,
    first: Option<f64>,
    increase_period: Nanos,
    /// Bytes between two increases; 0: no byte counter.
    byte_reset: u64,
    threshold: u64,
    /// Factor of alpha per update, below 1.
    keep: f64,
    alpha_period: Nanos,
    initial_alpha: f64,
    /// Part of alpha by which a decrease cuts the rate.
    cut: f64,
    /// Lower bound of the factor of one decrease.
    lowest_factor: f64,
    monitor_period: Nanos,
    clamp: bool,
    clamp_after_timer: bool,
}

impl Parameters {
    fn new(knobs: &Knobs, line_rate: Rate) -> Parameters {
        let mbps = |knob| knobs.value(knob) * 1e6;
        let micros = |knob| Nanos::from_micros(knobs.value(knob) as u64);
        // An invalid line rate is replaced, so that all other values stay valid.
        let line = if line_rate.0 >= 1.0 { line_rate.0.min(f64::MAX / 4.0) } else { 1.0 };
        let highest = match mbps(Knob::MaxRate) {
            0.0 => line,
            max => max.min(line),
        };
        let first = mbps(Knob::RateOnFirstCnp);
        Parameters {
            preset: knobs.preset(),
            additive: mbps(Knob::AiRate),
            hyper: mbps(Knob::HaiRate),
            lowest: mbps(Knob::MinRate).min(highest),
            highest,
            first: (first > 0.0).then_some(first),
            increase_period: micros(Knob::TimeReset),
            byte_reset: knobs.value(Knob::ByteReset) as u64,
            threshold: knobs.value(Knob::Threshold) as u64,
            keep: knobs.value(Knob::DceTcpG) / 1024.0,
            alpha_period: micros(Knob::DceTcpRtt),
            initial_alpha: knobs.value(Knob::InitialAlpha) / 1024.0,
            cut: 1024.0 / knobs.value(Knob::Gd).exp2(),
            lowest_factor: knobs.value(Knob::MinDecFac) / 100.0,
            monitor_period: micros(Knob::MonitorPeriod),
            clamp: knobs.value(Knob::ClampTgtRate) != 0.0,
            clamp_after_timer: knobs.value(Knob::ClampTgtRateAfterTimeInc) != 0.0,
        }
    }
}

/// The reaction point of a QP. See the module.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: Parameters,
    line_rate: Rate,
    /// Rates in bits per second: `lowest <= current <= target <= highest`.
    current: f64,
    target: f64,
    alpha: f64,
    byte_stage: u64,
    timer_stage: u64,
    /// Bytes sent since the byte counter last expired.
    bytes: u64,
    /// Timers; `None` before the first notification.
    running: Option<Running>,
}

/// State that exists from the first notification on.
#[derive(Clone, Copy, Debug)]
struct Running {
    increase_at: Nanos,
    alpha_at: Nanos,
    decreased_at: Nanos,
    /// True if a notification arrived since the alpha timer last expired (ConnectX).
    notified: bool,
    /// True if the byte counter (the timer) has raised the rate since the last decrease.
    raised_by_bytes: bool,
    raised_by_timer: bool,
}

impl Dcqcn {
    /// Creates a reaction point at line rate.
    pub fn new(knobs: &Knobs, line_rate: Rate) -> Dcqcn {
        let parameters = Parameters::new(knobs, line_rate);
        Dcqcn {
            line_rate,
            current: parameters.highest,
            target: parameters.highest,
            alpha: parameters.initial_alpha,
            byte_stage: 0,
            timer_stage: 0,
            bytes: 0,
            running: None,
            parameters,
        }
    }

    /// Returns the target rate of the recovery, as of the last call.
    pub fn target(&self) -> Rate {
        Rate(self.target)
    }

    /// Returns alpha, the estimate of congestion, 0 to 1, as of the last call.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Returns the number of increases by the byte counter since the last decrease, as of the last call.
    pub fn byte_stage(&self) -> u64 {
        self.byte_stage
    }

    /// Returns the number of increases by the timer since the last decrease, as of the last call.
    pub fn timer_stage(&self) -> u64 {
        self.timer_stage
    }

    /// Applies other knobs. The rate is kept, within the new bounds. A running timer expires at its old time,
    /// or after a new period if that is earlier.
    pub fn change(&mut self, now: Nanos, knobs: &Knobs) {
        self.advance(now);
        self.parameters = Parameters::new(knobs, self.line_rate);
        let p = &self.parameters;
        match &mut self.running {
            Some(running) => {
                running.increase_at = running.increase_at.min(now + p.increase_period);
                running.alpha_at = running.alpha_at.min(now + p.alpha_period);
                self.current = self.current.clamp(p.lowest, p.highest);
                self.target = self.target.clamp(self.current, p.highest);
            }
            None => *self = Dcqcn::new(knobs, self.line_rate),
        }
    }

    /// Handles the expiries of timers up to `now`.
    fn advance(&mut self, now: Nanos) {
        let Some(running) = &mut self.running else { return };
        if now >= running.alpha_at {
            let mut updates = expiries(&mut running.alpha_at, self.parameters.alpha_period, now);
            if std::mem::take(&mut running.notified) {
                self.alpha = raised(self.alpha, self.parameters.keep);
                updates -= 1;
            }
            self.alpha *= power(self.parameters.keep, updates);
        }
        if now >= running.increase_at {
            let steps = expiries(&mut running.increase_at, self.parameters.increase_period, now);
            running.raised_by_timer = true;
            self.increase(steps, self.timer_stage, self.byte_stage);
            self.timer_stage = self.timer_stage.saturating_add(steps);
        }
    }

    /// Applies `steps` increases of the counter with stage `own`, while the other counter's stage stays.
    fn increase(&mut self, steps: u64, own: u64, other: u64) {
        let Parameters { threshold, additive, hyper, .. } = self.parameters;
        let fast = if other < threshold { steps.min(threshold.saturating_sub(own)) } else { 0 };
        self.recover(fast, 0.0);
        let (steps, own) = (steps - fast, own.saturating_add(fast));
        let slow = if other > threshold { steps.min((threshold + 1).saturating_sub(own)) } else { steps };
        self.recover(slow, additive);
        self.recover(steps - slow, hyper);
    }

    /// Raises the target by `rise`, then halves the gap to it, `steps` times.
    fn recover(&mut self, mut steps: u64, rise: f64) {
        let Parameters { lowest, highest, .. } = self.parameters;
        if steps == 0 || self.current == highest {
            return;
        }
        let mut gap = self.target - self.current;
        if rise > 0.0 && self.target < highest {
            // gap(n+1) = (gap(n) + rise) / 2, with fixed point rise.
            let free = steps.min(((highest - self.target) / rise) as u64);
            self.target += free as f64 * rise;
            gap = rise + (gap - rise) * power(0.5, free);
            steps -= free;
            if steps > 0 {
                // The step at which the target reaches the bound.
                gap = (gap + (highest - self.target).max(0.0)) / 2.0;
                self.target = highest;
                steps -= 1;
            }
        }
        gap *= power(0.5, steps);
        self.target = self.target.min(highest);
        self.current = (self.target - gap).clamp(lowest, self.target);
    }

    /// Applies one decrease.
    fn decrease(&mut self, clamp: bool) {
        if clamp {
            self.target = self.current;
        }
        let factor = (1.0 - self.alpha * self.parameters.cut).max(self.parameters.lowest_factor);
        // Rounding must not raise the rate.
        self.current = (self.current * factor).max(self.parameters.lowest).min(self.current);
    }
}

/// Returns how often a due timer of this period has expired by `now`, and sets `at` to its next expiry.
fn expiries(at: &mut Nanos, period: Nanos, now: Nanos) -> u64 {
    let n = (now - *at).0 / period.0 + 1;
    *at = Nanos(at.0.saturating_add(n.saturating_mul(period.0)));
    n
}

/// Returns `base^n` for a base below 1. The result is zero long before the exponent saturates.
fn power(base: f64, n: u64) -> f64 {
    base.powi(i32::try_from(n).unwrap_or(i32::MAX))
}

/// Returns alpha after an update with a notification.
fn raised(alpha: f64, keep: f64) -> f64 {
    alpha * keep + (1.0 - keep)
}

impl Control for Dcqcn {
    fn notified(&mut self, now: Nanos) -> bool {
        self.advance(now);
        let p = &self.parameters;
        let before = self.current;
        let decreases = match &self.running {
            None => true,
            Some(running) => now - running.decreased_at >= p.monitor_period,
        };
        if decreases {
            match (&self.running, p.first) {
                (None, Some(first)) => {
                    self.current = first.clamp(p.lowest, p.highest);
                    self.target = self.current;
                }
                (None, None) => self.decrease(true),
                (Some(r), _) => {
                    self.decrease(p.clamp || r.raised_by_bytes || p.clamp_after_timer && r.raised_by_timer);
                }
            }
            (self.byte_stage, self.timer_stage, self.bytes) = (0, 0, 0);
        }
        let p = &self.parameters;
        let running = self.running.get_or_insert(Running {
            increase_at: Nanos::ZERO,
            alpha_at: now + p.alpha_period,
            decreased_at: now,
            notified: false,
            raised_by_bytes: false,
            raised_by_timer: false,
        });
        if decreases {
            running.increase_at = now + p.increase_period;
            running.decreased_at = now;
            (running.raised_by_bytes, running.raised_by_timer) = (false, false);
        }
        match p.preset {
            Preset::Paper => {
                self.alpha = raised(self.alpha, p.keep);
                running.alpha_at = now + p.alpha_period;
            }
            Preset::ConnectX => running.notified = true,
        }
        self.current < before
    }

    fn sent(&mut self, now: Nanos, bytes: u64) {
        self.advance(now);
        let reset = self.parameters.byte_reset;
        let Some(running) = &mut self.running else { return };
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= reset && reset != 0 {
            let steps = self.bytes / reset;
            self.bytes %= reset;
            running.raised_by_bytes = true;
            self.increase(steps, self.byte_stage, self.timer_stage);
            self.byte_stage = self.byte_stage.saturating_add(steps);
        }
    }

    fn rate(&mut self, now: Nanos) -> Rate {
        self.advance(now);
        Rate(self.current)
    }

    fn rises_at(&self) -> Nanos {
        let below = self.current < self.parameters.highest;
        self.running.filter(|_| below).map_or(Nanos::MAX, |running| running.increase_at)
    }

    fn state(&self) -> State {
        State {
            rate: Rate(self.current),
            target: Some(Rate(self.target)),
            alpha: Some(self.alpha),
            round_trip: None,
        }
    }

    fn set(&mut self, now: Nanos, settings: &Settings) -> bool {
        let Settings::Dcqcn(knobs) = settings else { return false };
        self.change(now, knobs);
        true
    }
}
