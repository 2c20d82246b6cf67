//! Runs Roxie against real RoCE peers: a Linux kernel's rdma_rxe in QEMU, or hardware.
//!
//! [`rows`] is the matrix. [`exec`] runs a row between two [`end::End`]s, one of which is a [`peer::Peer`]. [`network`]
//! and [`guest`] make the emulated site, [`report`] records the outcomes.

#![deny(unsafe_code)]

pub mod disk;
pub mod distro;
pub mod end;
pub mod error;
pub mod exec;
pub mod guest;
pub mod local;
pub mod network;
pub mod pattern;
pub mod peer;
pub mod pyverbs;
pub mod report;
pub mod rows;
pub mod skip;
pub mod wire;
