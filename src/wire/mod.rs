//! Conversion between bytes and types: Ethernet, IP and UDP around the InfiniBand transport headers, and the
//! ICRC.
//!
//! Receive: [`parse()`] turns a frame into a [`Packet`] or a counted [`Drop`], then [`Envelope::check_icrc`]
//! verifies its ICRC. Send: a [`Template`] holds the headers below the transport, [`Template::write_headers`]
//! writes all headers of a packet, and [`Template::seal`] computes the ICRC.
//!
//! Read `opcode` first, the table of the headers that follow a BTH, then `headers`. The messages of QP1 are
//! in [`mad`] and [`cm`].
//!
//! Architecture invariant: the module depends on no other of the crate but [`crate::frame`]. The path of a
//! packet (parse, build, ICRC) does not allocate. The module reads no clock, and no received bytes make it
//! panic.

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
pub(crate) use parse::{Ends, FastPacket, HEADERS};
pub use psn::Psn;
pub use qpn::Qpn;
pub use service_id::{CmaHeader, PortSpace, ServiceId};

#[cfg(test)]
mod tests;
