//! How commands report: what the programs above the NIC have in common.
//!
//! [`output`] writes all text of a command, [`failure`] has its exit codes, and [`formats`] the versions of its JSON.
//! [`source`] opens captures, [`decoded`] reads the packets of captures, with the storage protocols in them, and
//! [`ladder`] draws packets as sequence diagrams. By [`described`] a program tells another its commands. Nothing here
//! opens a device; [`http`] alone has sockets, of TCP.

#![deny(unsafe_code)]

pub mod chart;
pub mod decoded;
pub mod described;
pub mod failure;
pub mod formats;
pub mod http;
pub mod ladder;
pub mod line_rate;
pub mod output;
pub mod signals;
pub mod source;
pub mod svg;
pub mod words;
