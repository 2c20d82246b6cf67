//! The commands of the program.

pub(crate) mod nfs;
pub(crate) mod nvme;
mod serve;
