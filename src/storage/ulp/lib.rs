//! What upper-layer protocols of storage share: messages over a reliable connection, and data that moves to and from
//! keyed memory.
//!
//! NVMe over Fabrics, NFS over RDMA and the example `smb_direct` stand on this crate. A connection is an [`Endpoint`]:
//! its receives are posted, and posted again as messages are taken. An [`UpperLayer`] says what a protocol does with
//! each kind of completion; a kind that it does not post ends the connection. A server's end sends by a [`SendQueue`],
//! from memory in [`Slots`], and [`Server`] accepts its connections. A client's end is a [`Requester`], whose requests
//! lend memory to the peer.

#![deny(unsafe_code)]

mod ended;
mod endpoint;
mod requester;
mod send_queue;
mod server;
mod slots;
mod upper_layer;

pub use ended::Ended;
pub use endpoint::{Endpoint, Sizes};
pub use requester::{Finished, Lent, Replies, Requester, RequesterSizes};
pub use send_queue::{Payload, SendQueue, send};
pub use server::{Answer, Server, ServerConfig, Service};
pub use slots::Slots;
pub use upper_layer::{UpperLayer, step, wait};
