//! Configuration of congestion control.

use super::classes::{EcnPolicy, TrafficClasses};
use crate::congestion::{Rate, Settings};

/// A NIC's congestion control, notifications, and traffic classes.
#[derive(Clone, Debug, PartialEq)]
pub struct CongestionConfig {
    /// Congestion control of connected QPs. Settings of DCQCN include the settings of the notification point.
    pub control: Settings,
    /// Which data packets are ECN-capable; `None`: all if `control` is DCQCN, else none.
    pub ecn: Option<EcnPolicy>,
    /// Priorities of packets, and their service by the arbiter.
    pub classes: TrafficClasses,
    /// The port's rate: initial rate of QPs, and unit of PAUSE quanta. `None`: the interface's, or 10 Gb/s.
    pub line_rate: Option<Rate>,
}

impl Default for CongestionConfig {
    /// No pacing and no marking. Senders of marked packets are notified.
    fn default() -> CongestionConfig {
        CongestionConfig {
            control: Settings::Off,
            ecn: None,
            classes: TrafficClasses::default(),
            line_rate: None,
        }
    }
}

impl CongestionConfig {
    /// Returns the port's rate.
    pub fn line_rate(&self) -> Rate {
        self.line_rate.unwrap_or(Rate::from_gbps(10.0))
    }

    /// Returns which data packets are ECN-capable.
    pub fn ecn_policy(&self) -> EcnPolicy {
        let by_control =
            if matches!(self.control, Settings::Dcqcn(_)) { EcnPolicy::On } else { EcnPolicy::Off };
        self.ecn.unwrap_or(by_control)
    }
}
