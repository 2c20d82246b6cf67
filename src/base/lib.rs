//! What the ports and the NIC of Roxie share, and neither defines.
//!
//! ```
//! use roxie_base::time::{Clock, Nanos};
//!
//! let clock = Clock::new();
//! let deadline = clock.now() + Nanos::from_millis(5);
//! assert!(deadline.since(clock.now()) <= Nanos::from_millis(5));
//! ```
//!
//! [`time`] is the clock that callers read, [`limits`] the sizes of a NIC, [`flow`] selects frames of other protocols.
//! [`descriptors`] passes file descriptors between processes, [`roster`] assigns them their parts of a shared device,
//! and [`protocol`] compares the versions of what they send each other. [`text`] is for text that others have chosen,
//! [`tcp`] for servers of hostile clients, [`names`] for values that are read by name. Ports know frames, captures and
//! addressees by this crate alone: they do not depend on `roxie-wire`, so they cannot name its headers.
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub use roxie_wire::{addressee, capture, frame};

pub mod allocator;
pub mod descriptors;
pub mod flow;
pub mod limits;
pub mod names;
pub mod protocol;
pub mod random;
pub mod roster;
pub mod tcp;
pub mod text;
pub mod threads;
pub mod time;
