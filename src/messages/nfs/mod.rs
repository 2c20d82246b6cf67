//! NFS version 3 over RDMA.
//!
//! Read [`rpcrdma`] first: each message of a connection begins with its header, which names the memory that data moves
//! to or from. Behind the header is an [`rpc`] message, and in it a call or a reply of [`nfs3`]. [`mount`] is the
//! protocol by which a client gets the handle of the exported folder, over TCP. Sources: RFC 8166 (RPC-over-RDMA
//! version 1), RFC 5531 (RPC), RFC 4506 (XDR), RFC 1813 (NFS version 3 and MOUNT).

pub mod xdr;

pub mod rpc;
pub mod rpcrdma;

pub mod mount;
pub mod nfs3;

/// Port of NFS over RDMA (IANA: nfsrdma).
pub const PORT: u16 = 20049;
