//! A RoCE v2 NIC without a port and without a clock: frames and times come in, frames and completions come out.
//!
//! ```
//! use roxie_base::time::Nanos;
//! use roxie_nic::congestion::{Knobs, Rate, Settings};
//! use roxie_nic::verbs::{Access, QpCaps};
//!
//! // The reaction point of one queue pair, on a link of 40 Gb/s.
//! let line_rate = Rate::from_gbps(40.0);
//! let mut control = Settings::Dcqcn(Knobs::default()).control(line_rate, Nanos::ZERO).expect("DCQCN");
//! assert_eq!(control.rate(Nanos::ZERO), line_rate);
//! control.notified(Nanos::from_micros(1));
//! assert!(control.rate(Nanos::from_micros(2)) < line_rate);
//!
//! assert!(Access::READ_WRITE.contains(Access::REMOTE_READ));
//! assert!(QpCaps::default().max_send_sge > 0);
//! ```
//!
//! From the ground up: [`verbs`] has the types of the API; [`shared`] the memory that application and NIC touch;
//! [`congestion`] computes rates; [`transport`] is one queue pair; [`nic::Nic`] has the object tables, the arbiter and
//! the dma stage; [`cm`] manages connections over QP1. `roxie-engine` runs a NIC on a port, and `roxie-sim` in virtual
//! time.
//!
//! Architecture invariant: no I/O, clock, randomness or logging in `transport` and `nic`. Every entry takes `now`, and
//! secrets are seeds.
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

/// Asserts what holds at one place of the NIC, in debug builds.
macro_rules! invariant {
    ($condition:expr, $($message:tt)+) => {
        debug_assert!($condition, "invariant: {}", format_args!($($message)+))
    };
}

// A module uses those before it only (`tests/repository/tidy/mod.rs`).
pub mod timer;
pub mod verbs;

pub mod profile;

pub mod shared;

pub mod congestion;

pub mod transport;

pub mod nic;

pub mod cm;
