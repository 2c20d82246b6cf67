//! Roxie: a RoCE v2 NIC in software.
//!
//! Modules in the order in which data flows, from the wire up; each may use those before it, and
//! `tests/tidy.rs` holds it to that.
#![doc = include_str!("ARCHITECTURE.md")]
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

// What everything stands on.
pub mod descriptors;
pub mod flow;
pub mod frame;
pub mod limits;
pub mod random;
pub mod threads;
pub mod time;
pub mod timer;

// Bytes.
pub mod capture;
pub mod netdev;
pub mod port;
pub mod wire;

// The NIC.
pub mod verbs;

pub mod shared;

pub mod congestion;

pub mod transport;

pub mod nic;

pub mod cm;

// Who runs it, and what an application sees.
pub mod engine;

pub mod sim;

pub mod forward;

pub mod host;
