//! Congestion control: how fast a QP may send, and when a receiver says that it is too fast.
//!
//! A [`Control`] is the reaction point of one QP: notifications, departures and acknowledgements go in, a rate comes out. It is
//! asked for the rate, and evaluates then in closed form what has happened since: there is no tick. Who paces by that rate is the
//! transport, with a [`Pacer`] for each QP.
//!
//! [`Settings`] are the text that a user writes, and make controls: [`Dcqcn`] goes by notifications, [`Swift`] by delay, [`Fixed`] by
//! nothing. [`Moderation`] is the other end: which marked packets a receiver answers with a notification.
//!
//! Architecture invariant: no clock and no randomness; `now` never goes back, and the same calls give the same rates.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::time::Nanos;

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

/// Bits per second, of frames as the port carries them: from the Ethernet header to the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(pub f64);

impl Rate {
    /// `mbps` million bits per second.
    pub const fn from_mbps(mbps: f64) -> Rate {
        Rate(mbps * 1e6)
    }

    /// `gbps` thousand million bits per second.
    pub const fn from_gbps(gbps: f64) -> Rate {
        Rate(gbps * 1e9)
    }

    /// In million bits per second.
    pub fn mbps(self) -> f64 {
        self.0 / 1e6
    }

    /// How long `bytes` take, in nanoseconds, not rounded.
    pub fn nanos_for(self, bytes: u64) -> f64 {
        bytes as f64 * 8e9 / self.0
    }
}

impl fmt::Display for Rate {
    /// With the unit that reads best: `40 Gb/s`, `1.25 Mb/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            r if r >= 1e9 => (r / 1e9, "Gb/s"),
            r if r >= 1e6 => (r / 1e6, "Mb/s"),
            r => (r / 1e3, "kb/s"),
        };
        write!(f, "{} {unit}", (value * 1e3).round() / 1e3)
    }
}

/// What an acknowledgement tells a reaction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From the packet's departure to the arrival of its acknowledgement, by the time that the port saw it.
    pub round_trip: Nanos,
    /// Bytes newly acknowledged since the last sample.
    pub bytes: u64,
}

/// The reaction point of one QP. Each call says `now`, which never goes back.
pub trait Control: fmt::Debug + Send {
    /// A congestion notification of the peer came. True: the rate fell because of it.
    fn notified(&mut self, now: Nanos) -> bool;

    /// A frame of `bytes` left.
    fn sent(&mut self, now: Nanos, bytes: u64);

    /// An acknowledgement came whose round trip is known. True: the rate fell because of it.
    fn acknowledged(&mut self, now: Nanos, sample: Sample) -> bool {
        let _ = (now, sample);
        false
    }

    /// True if it wants [`Control::acknowledged`]: otherwise nobody measures.
    fn wants_round_trips(&self) -> bool {
        false
    }

    /// The rate at `now`.
    fn rate(&mut self, now: Nanos) -> Rate;

    /// When the rate rises by itself next, as of the last call; `Nanos::MAX`: it does not. Who waits long for the next frame asks
    /// for the rate again then, and waits less.
    fn rises_at(&self) -> Nanos {
        Nanos::MAX
    }

    /// What it knows, for people: as of the last call.
    fn state(&self) -> State;

    /// Takes other knobs and keeps its rate, as far as they let it. False, and nothing has changed, if these are the
    /// settings of another algorithm.
    fn set(&mut self, now: Nanos, settings: &Settings) -> bool {
        let _ = (now, settings);
        false
    }
}

/// What a reaction point knows, for people to look at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The rate that it allows now.
    pub rate: Rate,
    /// The rate to which it recovers (DCQCN).
    pub target: Option<Rate>,
    /// How congested it takes the way to be, 0 to 1 (DCQCN).
    pub alpha: Option<f64>,
    /// The last round trip, or its mean (those that go by delay).
    pub round_trip: Option<Nanos>,
}

impl Settings {
    /// A reaction point with these settings, for a QP on a link of `line_rate`; `None` if it is off.
    pub fn control(&self, line_rate: Rate, now: Nanos) -> Option<Box<dyn Control>> {
        // Nothing of them begins before a packet does.
        let _ = now;
        match self {
            Settings::Off => None,
            Settings::Dcqcn(knobs) => Some(Box::new(Dcqcn::new(knobs, line_rate))),
            Settings::Swift(knobs) => Some(Box::new(Swift::new(knobs, line_rate))),
            Settings::Fixed(rate) => Some(Box::new(Fixed::new(*rate, line_rate))),
        }
    }
}
