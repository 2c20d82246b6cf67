//! NFS version 3 over RDMA: the messages, and a client and a read-only server on a Roxie device.
//!
//! Read [`rpcrdma`] first: each message of a connection begins with its header, which names the memory that data moves
//! to or from. Behind the header is an [`rpc`] message, and in it a call or a reply of [`nfs3`]. [`mount`] is the
//! protocol by which a client gets the handle of the exported folder, over TCP. Sources: RFC 8166 (RPC-over-RDMA
//! version 1), RFC 8797 (private data), RFC 5531 (RPC), RFC 4506 (XDR), RFC 1813 (NFS version 3 and MOUNT), RFC 8267
//! (which data items move by RDMA), RFC 1833 (port mapper).
//!
//! The messages are those of `roxie-messages`, and do no I/O. Client and server (feature `rdma`) stand on `roxie-ulp`.

#![deny(unsafe_code)]

pub mod placement;
pub mod private;

#[cfg(feature = "rdma")]
pub mod client;
#[cfg(feature = "rdma")]
pub mod server;

#[cfg(test)]
mod hostile;

pub use roxie_messages::nfs::{PORT, mount, nfs3, rpc, rpcrdma, xdr};

/// TCP port at which the server answers MOUNT (IANA: mountd).
pub const MOUNT_PORT: u16 = 20048;
