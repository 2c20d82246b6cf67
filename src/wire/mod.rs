//! Bytes <-> types: Ethernet, IP and UDP around the InfiniBand transport headers, and the ICRC.
//!
//! Receiving: [`parse()`] turns a frame into a [`Packet`] or a counted [`Drop`], then
//! [`Envelope::check_icrc`] decides whether to believe it. Sending: a [`Template`] holds the
//! headers below the transport, [`Template::write_headers`] puts a packet's in front of its
//! payload and [`Template::seal`] computes the ICRC.
//!
//! Read first: `opcode`, the one table of what follows a BTH, then `headers`. What QP1 carries is in [`mad`] and [`cm`].
//!
//! Architecture invariant: nothing here depends on the rest of the crate but
//! [`crate::frame`]; nothing here allocates or reads a clock; no input panics.

mod build;
pub mod cm;
pub mod display;
mod drop_reason;
mod gid;
mod headers;
pub mod icrc;
pub mod mac_control;
pub mod mad;
pub mod net;
mod opcode;
pub mod parse;
mod psn;
mod qpn;
pub mod service_id;

pub use build::{
    Ext, FlowSpec, MAX_HEADERS, RoceVersion, Template, datagram_port, entropy_port, flow_port, seal,
};
pub use gid::Gid;
pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, NakCode, Reth, Syndrome, XrcEth, credits, rnr_timer_ns};
pub use icrc::Icrc;
pub use mac_control::MacControl;
pub use net::{Ipv4Header, Ipv6Header, NetHeader, ROCE_V2_PORT, UdpHeader};
pub use opcode::{Headers, Opcode, OpcodeInfo, Operation, Position, Service};
pub use parse::{Drop, Envelope, Packet, parse};
pub(crate) use parse::{Ends, HEADERS, Usual};
pub use psn::Psn;
pub use qpn::Qpn;
pub use service_id::{CmaHeader, PortSpace, ServiceId};

#[cfg(test)]
mod tests;
