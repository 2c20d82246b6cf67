//! What upper-layer protocols of storage share: messages over a reliable connection, and data that moves to and from
//! keyed memory.

#![deny(unsafe_code)]

mod ended;
mod slots;

pub use ended::Ended;
pub use slots::Slots;
