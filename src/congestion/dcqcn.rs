//! DCQCN's reaction point: a notification cuts the rate by alpha, time and bytes without one bring it back.
//!
//! Source: Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 3; for what
//! adapters do otherwise [`super::knobs`]. The rules, where the sources leave a choice:
//!
//! * It starts at line rate with the initial alpha. Nothing runs and no byte counts before the first notification.
//! * A decrease multiplies the rate by `1 - 1024 alpha / 2^rpg_gd`, with alpha before its update, sets both stages and
//!   the byte counter to zero and restarts the increase timer.
//! * An increase compares the stages, then raises its own. Both below F: fast recovery, the gap to the target halves. Both
//!   above F: hyper, else additive increase: the target rises first. So F is the number of steps of fast recovery.
//! * What is due at an instant runs before what happens at it.
//! * The paper's preset: each notification updates alpha and restarts alpha's timer. ConnectX's: alpha's timer runs from
//!   the first notification on, and each expiry looks whether a notification came since the last.
//! * A notification within `rate_reduce_monitor_period` of a decrease counts for alpha and decreases nothing. (The firmware's
//!   manual has the decrease at the beginning of the next period instead of at the notification; both keep them a period apart.)
//! * The limiter is never released: adapters forget alpha when a flow is back at the highest rate, the paper does not say so.
//!
//! Nothing here ticks: what was due since the last call is made up for in closed form, whatever the number of periods.
//! Updates of alpha without a notification are a power of g. Increases of one kind are a geometric series of the gap,
//! until the target is at the highest rate; then the gap halves. A sequence of increases has three kinds at most,
//! in this order: fast recovery, additive, hyper.

use super::knobs::{Knob, Knobs, Preset};
use super::{Control, Rate, Settings, State};
use crate::time::Nanos;

/// The knobs as the arithmetic wants them: rates in bits per second, times in nanoseconds, fractions of one.
#[derive(Clone, Debug)]
struct Parameters {
    preset: Preset,
    additive: f64,
    hyper: f64,
    /// The lowest rate and the highest, `0 < lowest <= highest`.
    lowest: f64,
    highest: f64,
    first: Option<f64>,
    increase_period: Nanos,
    /// 0: no byte counter.
    byte_reset: u64,
    threshold: u64,
    /// What an update leaves of alpha: below 1.
    keep: f64,
    alpha_period: Nanos,
    initial_alpha: f64,
    /// How much of alpha a decrease takes.
    cut: f64,
    /// What a decrease leaves of the rate at least.
    left: f64,
    monitor_period: Nanos,
    clamp: bool,
    clamp_after_timer: bool,
}

impl Parameters {
    fn new(knobs: &Knobs, line_rate: Rate) -> Parameters {
        let mbps = |knob| knobs.value(knob) * 1e6;
        let micros = |knob| Nanos::from_micros(knobs.value(knob) as u64);
        // A line rate that makes no sense shall not make nonsense of the rest.
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
            left: knobs.value(Knob::MinDecFac) / 100.0,
            monitor_period: micros(Knob::MonitorPeriod),
            clamp: knobs.value(Knob::ClampTgtRate) != 0.0,
            clamp_after_timer: knobs.value(Knob::ClampTgtRateAfterTimeInc) != 0.0,
        }
    }
}

/// The reaction point of a QP. See the module's page.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: Parameters,
    line_rate: Rate,
    /// Bits per second: `lowest <= current <= target <= highest`.
    current: f64,
    target: f64,
    alpha: f64,
    byte_stage: u64,
    timer_stage: u64,
    /// Sent since the byte counter last expired.
    bytes: u64,
    /// `None` before the first notification.
    running: Option<Running>,
}

/// What runs from the first notification on.
#[derive(Clone, Copy, Debug)]
struct Running {
    increase_at: Nanos,
    alpha_at: Nanos,
    decreased_at: Nanos,
    /// A notification came since alpha's timer last expired (ConnectX).
    notified: bool,
    /// What raised the rate since the last decrease.
    raised_by_bytes: bool,
    raised_by_timer: bool,
}

impl Dcqcn {
    /// A reaction point at line rate.
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

    /// The rate that it recovers to, as of the last call.
    pub fn target(&self) -> Rate {
        Rate(self.target)
    }

    /// How congested it takes the way to be, 0 to 1, as of the last call.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Increases by the byte counter since the last decrease, as of the last call.
    pub fn byte_stage(&self) -> u64 {
        self.byte_stage
    }

    /// Increases by the timer since the last decrease, as of the last call.
    pub fn timer_stage(&self) -> u64 {
        self.timer_stage
    }

    /// Other knobs. The rate stays, as far as the new bounds let it; a timer that runs expires when it would have, or
    /// after a new period if that is sooner.
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

    /// Makes up for the timers that were due at `now` or before.
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

    /// `steps` increases of the counter whose stage is `own`, while the other's stays.
    fn increase(&mut self, steps: u64, own: u64, other: u64) {
        let Parameters { threshold, additive, hyper, .. } = self.parameters;
        let fast = if other < threshold { steps.min(threshold.saturating_sub(own)) } else { 0 };
        self.recover(fast, 0.0);
        let (steps, own) = (steps - fast, own.saturating_add(fast));
        let slow = if other > threshold { steps.min((threshold + 1).saturating_sub(own)) } else { steps };
        self.recover(slow, additive);
        self.recover(steps - slow, hyper);
    }

    /// `steps` times: the target rises by `rise`, then the rate goes half the way to it.
    fn recover(&mut self, mut steps: u64, rise: f64) {
        let Parameters { lowest, highest, .. } = self.parameters;
        if steps == 0 || self.current == highest {
            return;
        }
        let mut gap = self.target - self.current;
        if rise > 0.0 && self.target < highest {
            // Gap n+1 = (gap n + rise) / 2, whose fixed point is the rise itself.
            let free = steps.min(((highest - self.target) / rise) as u64);
            self.target += free as f64 * rise;
            gap = rise + (gap - rise) * power(0.5, free);
            steps -= free;
            if steps > 0 {
                // The step that comes up against the bound.
                gap = (gap + (highest - self.target).max(0.0)) / 2.0;
                self.target = highest;
                steps -= 1;
            }
        }
        gap *= power(0.5, steps);
        self.target = self.target.min(highest);
        self.current = (self.target - gap).clamp(lowest, self.target);
    }

    /// Cuts the rate.
    fn decrease(&mut self, clamp: bool) {
        if clamp {
            self.target = self.current;
        }
        let left = (1.0 - self.alpha * self.parameters.cut).max(self.parameters.left);
        // Never up: rounding could.
        self.current = (self.current * left).max(self.parameters.lowest).min(self.current);
    }
}

/// How often a timer of this period that is due has expired at `now`; sets it to the next time.
fn expiries(at: &mut Nanos, period: Nanos, now: Nanos) -> u64 {
    let n = (now - *at).0 / period.0 + 1;
    *at = Nanos(at.0.saturating_add(n.saturating_mul(period.0)));
    n
}

/// `base^n`, for a base below 1: zero long before the exponent is at its bound.
fn power(base: f64, n: u64) -> f64 {
    base.powi(i32::try_from(n).unwrap_or(i32::MAX))
}

/// Alpha after an update with a notification.
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
