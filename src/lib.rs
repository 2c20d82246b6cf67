//! Roxie: a RoCE v2 NIC in software.
//!
//! Modules in the order in which data flows, from the wire up.

#![deny(unsafe_code)]

pub mod capture;
pub mod frame;
pub mod netdev;
pub mod port;
pub mod time;
pub mod wire;
