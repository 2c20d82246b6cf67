//! Computations behind `roxie lab`: the fields of a frame, buffer headroom, and the framing of the same bytes by other
//! protocols.
//!
//! ```
//! use roxie_lab_theory::crc::{crc32c, vcrc};
//!
//! // The check value of CRC-32C (RFC 3720, B.4: 32 bytes of zeros).
//! assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
//! assert_ne!(vcrc(b"a packet"), vcrc(b"a racket"));
//! ```
//!
//! Functions here are pure: they send nothing and keep no state.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod crc;
pub mod dcbx;
pub mod headroom;
pub mod infiniband;
pub mod iwarp;
pub mod layout;
pub mod nvme;
