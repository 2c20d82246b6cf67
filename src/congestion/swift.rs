//! Swift: a window that grows until the round trip takes longer than a target, carried here as a rate.
//!
//! Source: Kumar et al., Swift: Delay is Simple and Effective for Congestion Control in the Datacenter, SIGCOMM 2020,
//! sections 3.1 to 3.5 (target delay with flow scaling, additive increase, decrease in proportion to the excess at most
//! once a round trip). Why not TIMELY, which is a rate by birth: its gradient has no single fixed point, so that flows
//! need not become equal (Zhu et al., ECN or Delay, CoNEXT 2016).
//!
//! The window is kept in packets, and the rate is window / mean round trip. What differs from a sender that counts
//! packets in flight: when acknowledgements stop, this keeps its rate, and the transport's own window is what stops it.
//! There is no endpoint delay to take apart from the fabric's: `base_target` holds both, and hops are not counted.

use std::fmt;

use super::nearest::nearest;
use super::{Control, Rate, Sample, Settings, SettingsError, State};
use crate::time::Nanos;

/// What can be turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knob {
    BaseTarget,
    FsRange,
    FsMinCwnd,
    FsMaxCwnd,
    Ai,
    Beta,
    MaxMdf,
    Packet,
    MinRate,
}

/// A row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    knob: Knob,
    /// Its name.
    pub name: &'static str,
    /// What a value counts.
    pub unit: &'static str,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// The value unless another is set.
    pub default: f64,
    /// What it does.
    pub help: &'static str,
}

const COUNT: usize = 9;

/// All knobs of Swift.
#[rustfmt::skip]
pub static TABLE: [Description; COUNT] = [
    Description { knob: Knob::BaseTarget, name: "base_target", unit: "us", least: 1.0, most: 1e6, default: 50.0,
        help: "round trip that a large window aims at" },
    Description { knob: Knob::FsRange, name: "fs_range", unit: "us", least: 0.0, most: 1e6, default: 100.0,
        help: "how much longer a small window may take: many flows at a bottleneck queue more" },
    Description { knob: Knob::FsMinCwnd, name: "fs_min_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 0.1,
        help: "window at which the whole of fs_range is granted" },
    Description { knob: Knob::FsMaxCwnd, name: "fs_max_cwnd", unit: "packets", least: 1e-3, most: 1e6, default: 100.0,
        help: "window from which on nothing of it is" },
    Description { knob: Knob::Ai, name: "ai", unit: "packets", least: 1e-6, most: 1e3, default: 1.0,
        help: "how far the window grows in a round trip below the target" },
    Description { knob: Knob::Beta, name: "beta", unit: "", least: 1e-3, most: 1.0, default: 0.8,
        help: "decrease for an excess over the target, as a part of the round trip" },
    Description { knob: Knob::MaxMdf, name: "max_mdf", unit: "", least: 1e-3, most: 0.99, default: 0.5,
        help: "the most that one decrease takes" },
    Description { knob: Knob::Packet, name: "packet", unit: "bytes", least: 64.0, most: 65_536.0, default: 1024.0,
        help: "bytes of a packet in which windows are counted" },
    Description { knob: Knob::MinRate, name: "min_rate", unit: "Mb/s", least: 1e-3, most: 1e7, default: 1.0,
        help: "the lowest rate" },
];

/// A value for each knob of Swift, all in their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftKnobs {
    values: [f64; COUNT],
}

impl Default for SwiftKnobs {
    fn default() -> SwiftKnobs {
        SwiftKnobs { values: TABLE.map(|row| row.default) }
    }
}

impl SwiftKnobs {
    fn value(&self, knob: Knob) -> f64 {
        self.values[knob as usize]
    }

    /// Sets one knob by name. Whether it fits the others says [`SwiftKnobs::check`].
    ///
    /// # Errors
    /// An unknown name, or a value that it does not take: then nothing has changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let Some(row) = TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name)) else {
            let names = TABLE.iter().map(|row| row.name);
            return Err(SettingsError::NoKnob {
                of: "swift",
                name: name.to_owned(),
                nearest: nearest(name, names),
                known: TABLE.map(|row| row.name).join(", "),
            });
        };
        match value.parse::<f64>() {
            Ok(v) if (row.least..=row.most).contains(&v) => self.values[row.knob as usize] = v,
            _ => {
                let (Description { least, most, .. }, unit) = (row, row.unit);
                let takes = format!("{least}..{most} {unit}").trim_end().to_owned();
                return Err(SettingsError::Value { knob: row.name, text: value.to_owned(), takes });
            }
        }
        Ok(())
    }

    /// Whether the values fit one another.
    ///
    /// # Errors
    /// If the windows of flow scaling are the wrong way round.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (min, max) = (self.value(Knob::FsMinCwnd), self.value(Knob::FsMaxCwnd));
        if min < max { Ok(()) } else { Err(SettingsError::FlowScaling { min, max }) }
    }
}

impl fmt::Display for SwiftKnobs {
    /// What differs from the defaults: `,base_target=30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differing = TABLE.iter().filter(|row| self.value(row.knob) != row.default);
        differing.into_iter().try_for_each(|row| write!(f, ",{}={}", row.name, self.value(row.knob)))
    }
}

/// Swift's reaction point.
#[derive(Clone, Debug)]
pub struct Swift {
    knobs: SwiftKnobs,
    line_rate: f64,
    /// Packets; `None` before the first sample, while it sends at line rate.
    window: Option<f64>,
    /// Mean round trip in nanoseconds, 1 at least.
    round_trip: f64,
    decreased_at: Option<Nanos>,
}

impl Swift {
    /// How much of a sample the mean takes.
    const GAIN: f64 = 1.0 / 8.0;

    /// A reaction point at line rate.
    pub fn new(knobs: &SwiftKnobs, line_rate: Rate) -> Swift {
        let line_rate = if line_rate.0 >= 1.0 { line_rate.0.min(f64::MAX / 4.0) } else { 1.0 };
        Swift { knobs: knobs.clone(), line_rate, window: None, round_trip: 1.0, decreased_at: None }
    }

    /// The round trip that it aims at with a window, in nanoseconds (section 3.5).
    fn target(&self, window: f64) -> f64 {
        let of = |knob| self.knobs.value(knob);
        let (range, most) = (of(Knob::FsRange), of(Knob::FsMaxCwnd).sqrt().recip());
        let slope = range / (of(Knob::FsMinCwnd).sqrt().recip() - most);
        let scaled = (slope * (window.sqrt().recip() - most)).clamp(0.0, range);
        (of(Knob::BaseTarget) + scaled) * 1e3
    }

    /// The window that gives a rate at the mean round trip.
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
    /// Delay is all that it goes by.
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
            // A round trip acknowledges a window, and gains ai however few acknowledgements tell of it.
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
