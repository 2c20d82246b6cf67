//! What a lab works out beside a run: where the fields of a frame are, what a buffer has to hold, how other protocols frame the
//! same bytes.
//!
//! `roxie lab` shows it. Nothing here sends, and nothing keeps a state: each function is one of its arguments.

pub mod crc;
pub mod dcbx;
pub mod headroom;
pub mod infiniband;
pub mod iwarp;
pub mod layout;
pub mod nvme;
