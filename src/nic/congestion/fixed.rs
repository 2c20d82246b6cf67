//! A constant rate, as set by `ibv_modify_qp_rate_limit` or by the static rate of an address.

use super::{Control, Rate, Settings, State};
use roxie_base::time::Nanos;

/// A fixed rate, or the line rate if that is lower.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    rate: Rate,
    line_rate: Rate,
}

impl Fixed {
    /// Creates a control that sends at `rate`, or at `line_rate` if lower.
    pub fn new(rate: Rate, line_rate: Rate) -> Fixed {
        Fixed { rate, line_rate }
    }

    fn bounded(&self) -> Rate {
        Rate(self.rate.0.min(self.line_rate.0))
    }
}

impl Control for Fixed {
    /// Ignored.
    fn notified(&mut self, _now: Nanos) -> bool {
        false
    }

    fn sent(&mut self, _now: Nanos, _bytes: u64) {}

    fn rate(&mut self, _now: Nanos) -> Rate {
        self.bounded()
    }

    fn state(&self) -> State {
        State { rate: self.bounded(), target: None, alpha: None, round_trip: None }
    }

    fn set(&mut self, _now: Nanos, settings: &Settings) -> bool {
        let Settings::Fixed(rate) = settings else { return false };
        self.rate = *rate;
        true
    }
}
