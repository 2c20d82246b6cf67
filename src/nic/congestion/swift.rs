//! Swift: a window that grows while the round trip is below a target, converted to a rate.
//!
//! Source: Kumar et al., Swift: Delay is Simple and Effective for Congestion Control in the Datacenter,
//! SIGCOMM 2020, sections 3.1 to 3.5: target delay with flow scaling, additive increase, decrease in
//! proportion to the excess at most once per round trip. TIMELY, which is rate-based, was not chosen: its
//! gradient has no unique fixed point, so flows need not become fair (Zhu et al., ECN or Delay, CoNEXT 2016).
//!
//! The window is in packets, and the rate is window / mean round trip. Two differences from the paper: (1) if
//! acknowledgements stop, the rate stays, and the transport's window stops the sender; (2) endpoint and
//! fabric delay are not separated: `base_target` covers the two, and hops are not counted.

use super::swift_knobs::{Knob, SwiftKnobs};
use super::{Control, Rate, Sample, Settings, State};
use roxie_base::time::Nanos;

/// The reaction point of Swift.
#[derive(Clone, Debug)]
pub struct Swift {
    knobs: SwiftKnobs,
    line_rate: f64,
    /// Window in packets; `None` before the first sample, when the QP sends at line rate.
    window: Option<f64>,
    /// Mean round trip in nanoseconds, at least 1.
    round_trip: f64,
    decreased_at: Option<Nanos>,
}

impl Swift {
    /// Weight of a sample in the mean.
    const GAIN: f64 = 1.0 / 8.0;

    /// Creates a reaction point at line rate.
    pub fn new(knobs: &SwiftKnobs, line_rate: Rate) -> Swift {
        let line_rate = if line_rate.0 >= 1.0 { line_rate.0.min(f64::MAX / 4.0) } else { 1.0 };
        Swift { knobs: knobs.clone(), line_rate, window: None, round_trip: 1.0, decreased_at: None }
    }

    /// Returns the target round trip of a window, in nanoseconds (section 3.5).
    fn target(&self, window: f64) -> f64 {
        let of = |knob| self.knobs.value(knob);
        let (range, most) = (of(Knob::FsRange), of(Knob::FsMaxCwnd).sqrt().recip());
        let slope = range / (of(Knob::FsMinCwnd).sqrt().recip() - most);
        let scaled = (slope * (window.sqrt().recip() - most)).clamp(0.0, range);
        (of(Knob::BaseTarget) + scaled) * 1e3
    }

    /// Returns the window that gives `rate` at the mean round trip.
    fn window_for(&self, rate: f64) -> f64 {
        rate * self.round_trip / (8e9 * self.knobs.value(Knob::Packet))
    }

    fn lowest(&self) -> f64 {
        (self.knobs.value(Knob::MinRate) * 1e6).min(self.line_rate)
    }

    fn bounded(&self, window: f64) -> f64 {
        window.clamp(self.window_for(self.lowest()), self.window_for(self.line_rate))
    }

    fn now(&self) -> Rate {
        let Some(window) = self.window else { return Rate(self.line_rate) };
        let rate = window * self.knobs.value(Knob::Packet) * 8e9 / self.round_trip;
        Rate(rate.clamp(self.lowest(), self.line_rate))
    }
}

impl Control for Swift {
    /// Ignored: Swift reacts to delay only.
    fn notified(&mut self, _now: Nanos) -> bool {
        false
    }

    fn sent(&mut self, _now: Nanos, _bytes: u64) {}

    fn acknowledged(&mut self, now: Nanos, sample: Sample) -> bool {
        let delay = (sample.round_trip.0 as f64).max(1.0);
        let before = self.now();
        self.round_trip = match self.window {
            Some(_) => self.round_trip + Self::GAIN * (delay - self.round_trip),
            None => delay,
        };
        let window = self.window.unwrap_or_else(|| self.window_for(self.line_rate));
        let target = self.target(window);
        let (ai, packet) = (self.knobs.value(Knob::Ai), self.knobs.value(Knob::Packet));
        let next = if delay < target {
            // A round trip acknowledges one window, and adds ai, whatever the number of acknowledgements.
            window + ai * (sample.bytes as f64 / packet / window.max(1.0)).min(1.0)
        } else if self.decreased_at.is_none_or(|at| (now - at).0 as f64 >= delay) {
            self.decreased_at = Some(now);
            let cut = self.knobs.value(Knob::Beta) * (delay - target) / delay;
            window * (1.0 - cut.min(self.knobs.value(Knob::MaxMdf)))
        } else {
            window
        };
        self.window = Some(self.bounded(next));
        self.now().0 < before.0
    }

    fn wants_round_trips(&self) -> bool {
        true
    }

    fn rate(&mut self, _now: Nanos) -> Rate {
        self.now()
    }

    fn state(&self) -> State {
        let round_trip = self.window.map(|_| Nanos(self.round_trip as u64));
        State { rate: self.now(), target: None, alpha: None, round_trip }
    }

    fn set(&mut self, _now: Nanos, settings: &Settings) -> bool {
        let Settings::Swift(knobs) = settings else { return false };
        let rate = self.now().0;
        self.knobs = knobs.clone();
        self.window = self.window.map(|_| self.bounded(self.window_for(rate)));
        true
    }
}
