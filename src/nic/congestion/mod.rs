//! Congestion control: the rate at which a QP may send, and the notifications by which a receiver reports
//! congestion.
//!
//! A [`Control`] is the reaction point of one QP. Its inputs are notifications, departures and
//! acknowledgements; its output is a rate. A control has no tick: when asked for the rate, it computes in
//! closed form what happened since the last call. The transport paces each QP by that rate, with a [`Pacer`].
//!
//! [`Settings`] are the user's configuration, and create controls: [`Dcqcn`] reacts to notifications,
//! [`Swift`] to delay, [`Fixed`] to nothing. [`Moderation`] is the notification point: it selects the marked
//! packets that a receiver answers with a notification.
//!
//! Architecture invariant: no clock and no randomness. `now` never decreases, and equal calls give equal
//! rates.

use serde::{Deserialize, Serialize};
use std::fmt;

use roxie_base::time::Nanos;

mod dcqcn;
mod fixed;
pub mod knobs;
mod nearest;
mod notification;
mod pacer;
mod settings;
mod settings_error;
mod shared_rate;
mod swift;
pub mod swift_knobs;

pub use dcqcn::Dcqcn;
pub use fixed::Fixed;
pub use knobs::{Knob, KnobError, Knobs, Preset, Scope};
pub use notification::{LastNotification, Moderation};
pub use pacer::Pacer;
pub use settings::Settings;
pub use settings_error::SettingsError;
pub use shared_rate::SharedRate;
pub use swift::Swift;

/// A rate in bits per second, counting frames as the port carries them: from the Ethernet header to the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(pub f64);

impl Rate {
    /// Returns a rate of `mbps` Mb/s.
    pub const fn from_mbps(mbps: f64) -> Rate {
        Rate(mbps * 1e6)
    }

    /// Returns a rate of `gbps` Gb/s.
    pub const fn from_gbps(gbps: f64) -> Rate {
        Rate(gbps * 1e9)
    }

    /// Returns the rate in Mb/s.
    pub fn mbps(self) -> f64 {
        self.0 / 1e6
    }

    /// Returns the time to send `bytes`, in nanoseconds, not rounded.
    pub fn nanos_for(self, bytes: u64) -> f64 {
        bytes as f64 * 8e9 / self.0
    }
}

impl fmt::Display for Rate {
    /// Prints the largest unit that keeps the value at 1 or more: `40 Gb/s`, `1.25 Mb/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            r if r >= 1e9 => (r / 1e9, "Gb/s"),
            r if r >= 1e6 => (r / 1e6, "Mb/s"),
            r => (r / 1e3, "kb/s"),
        };
        write!(f, "{} {unit}", (value * 1e3).round() / 1e3)
    }
}

/// Measurement that an acknowledgement gives a reaction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time from the packet's departure to the arrival of its acknowledgement at the port.
    pub round_trip: Nanos,
    /// Bytes newly acknowledged since the last sample.
    pub bytes: u64,
}

/// The reaction point of one QP. `now` must not decrease from one call to the next.
pub trait Control: fmt::Debug + Send {
    /// Handles a congestion notification of the peer. Returns true if it lowered the rate.
    fn notified(&mut self, now: Nanos) -> bool;

    /// Records that a frame of `bytes` was sent.
    fn sent(&mut self, now: Nanos, bytes: u64);

    /// Handles an acknowledgement with a known round trip. Returns true if it lowered the rate.
    fn acknowledged(&mut self, now: Nanos, sample: Sample) -> bool {
        let _ = (now, sample);
        false
    }

    /// True if the control uses [`Control::acknowledged`]. Otherwise, round trips are not measured.
    fn wants_round_trips(&self) -> bool {
        false
    }

    /// Returns the rate at `now`.
    fn rate(&mut self, now: Nanos) -> Rate;

    /// Returns when the rate rises next without further input, as of the last call; `Nanos::MAX` if never. A
    /// QP with a long wait until its next frame asks for the rate again at this time.
    fn rises_at(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns the state for display, as of the last call.
    fn state(&self) -> State;

    /// Applies other settings. The rate is kept, within the new bounds. Returns false without a change if the
    /// settings are of another algorithm.
    fn set(&mut self, now: Nanos, settings: &Settings) -> bool {
        let _ = (now, settings);
        false
    }
}

/// State of a reaction point, for display.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Current rate.
    pub rate: Rate,
    /// Target rate of the recovery (DCQCN).
    pub target: Option<Rate>,
    /// Estimate of congestion on the path, 0 to 1 (DCQCN).
    pub alpha: Option<f64>,
    /// Mean round trip (Swift).
    pub round_trip: Option<Nanos>,
}

impl Settings {
    /// Creates a reaction point for a QP on a link of `line_rate`; `None` if congestion control is off.
    pub fn control(&self, line_rate: Rate, now: Nanos) -> Option<Box<dyn Control>> {
        // Controls start with the first packet, so none needs the time of creation.
        let _ = now;
        match self {
            Settings::Off => None,
            Settings::Dcqcn(knobs) => Some(Box::new(Dcqcn::new(knobs, line_rate))),
            Settings::Swift(knobs) => Some(Box::new(Swift::new(knobs, line_rate))),
            Settings::Fixed(rate) => Some(Box::new(Fixed::new(*rate, line_rate))),
        }
    }
}
