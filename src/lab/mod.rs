//! Computations behind `roxie lab`: the fields of a frame, buffer headroom, and the framing of the same bytes by other protocols.
//!
//! Functions here are pure: they send nothing and keep no state.

pub mod crc;
pub mod dcbx;
pub mod headroom;
pub mod infiniband;
pub mod iwarp;
pub mod layout;
pub mod nvme;
