//! What upper-layer protocols of storage share: messages over a reliable connection, and data that moves to and from
//! keyed memory.

#![deny(unsafe_code)]

mod ended;
mod endpoint;
mod send_queue;
mod server;
mod slots;
mod upper_layer;

pub use ended::Ended;
pub use endpoint::{Endpoint, Sizes};
pub use send_queue::{Payload, SendQueue, send};
pub use server::{Answer, Server, ServerConfig, Service};
pub use slots::Slots;
pub use upper_layer::{UpperLayer, step, wait};
