//! Messages of storage protocols over RDMA, as types: what their products speak, and what decoders of captures name.
//!
//! Nothing here does I/O, and the crate depends on nothing of Roxie. Parsing is total, so that no input panics or
//! allocates more than its own length, and what is built parses to itself.

#![deny(unsafe_code)]

pub mod nfs;
pub mod nvme;
