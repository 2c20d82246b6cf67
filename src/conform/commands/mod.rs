//! The commands of the program.

pub(crate) mod conform;
pub(crate) mod judge;
pub(crate) mod wire;
