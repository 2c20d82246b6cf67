//! Conversion between bytes and types: Ethernet, IP and UDP around the InfiniBand transport headers, and the
//! ICRC.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use roxie_wire::frame::{Frame, FrameMut};
//! use roxie_wire::{Bth, Ext, FlowSpec, Gid, Icrc, MAX_HEADERS, Opcode, Psn, Qpn, RoceVersion, Template, parse};
//!
//! let template = Template::new(&FlowSpec {
//!     src_mac: [2, 0, 0, 0, 0, 1],
//!     dst_mac: [2, 0, 0, 0, 0, 2],
//!     vlan: None,
//!     src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
//!     dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
//!     traffic_class: 0,
//!     flow_label: 0,
//!     hop_limit: 64,
//!     source_port: 0xc000,
//!     version: RoceVersion::V2,
//! });
//! let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: Qpn::new(18), psn: Psn::new(7), ..Bth::default() };
//!
//! // Headers, then the payload, then the ICRC.
//! let mut frame = vec![0; template.frame_len(bth.opcode, 8)];
//! let mut headers = [0; MAX_HEADERS];
//! let length = template.write_headers(&mut headers, &bth, &Ext::None, 8);
//! frame[..length].copy_from_slice(&headers[..length]);
//! frame[length..length + 8].copy_from_slice(b"8 bytes!");
//! template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
//!
//! let frame = Frame::whole(&frame);
//! let packet = parse(&frame)?;
//! assert_eq!((packet.bth.opcode, packet.bth.dest_qp), (Opcode::RC_SEND_ONLY, Qpn::new(18)));
//! assert_eq!(packet.check_icrc(&frame), Icrc::Ok);
//! println!("{packet}");
//! # Ok::<(), roxie_wire::Drop>(())
//! ```
//!
//! Receive: [`parse()`] turns a frame into a [`Packet`] or a counted [`Drop`], then [`Envelope::check_icrc`]
//! verifies its ICRC. Send: a [`Template`] holds the headers below the transport, [`Template::write_headers`]
//! writes all headers of a packet, and [`Template::seal`] computes the ICRC.
//!
//! Read `opcode` first, the table of the headers that follow a BTH, then `headers`. The messages of QP1 are
//! in [`mad`] and [`cm`].
//!
//! [`capture`] reads and writes pcap and pcapng. With the features off, the crate takes `core` and `alloc` alone:
//! `capture` adds captures, `std` the detection of the processor's CRC instructions at run time, `serde` serialization
//! of numbers and addresses.
//!
//! Architecture invariant: the path of a packet (parse, build, ICRC) does not allocate. The crate reads no clock, and
//! no received bytes make it panic.
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

extern crate alloc;

pub mod addressee;
mod build;
#[cfg(feature = "capture")]
pub mod capture;
pub mod cm;
pub mod display;
mod drop_reason;
mod encapsulation;
pub mod frame;
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
mod sack;
pub mod service_id;

pub use build::{Ext, FlowSpec, MAX_HEADERS, Template, datagram_port, entropy_port, flow_port, seal};
pub use encapsulation::{Encapsulation, RoceVersion};
pub use gid::Gid;
pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, NakCode, Reth, Syndrome, XrcEth, credits, rnr_timer_ns};
pub use icrc::Icrc;
pub use mac_control::MacControl;
pub use net::{Ipv4Header, Ipv6Header, NetHeader, ROCE_V2_PORT, UdpHeader};
pub use opcode::{Headers, Opcode, OpcodeInfo, Operation, Position, Service};
pub use parse::{Drop, Envelope, Packet, parse};
pub use parse::{Ends, FastPacket, HEADERS};
pub use psn::Psn;
pub use qpn::Qpn;
pub use sack::Sack;
pub use service_id::{CmaHeader, PortSpace, ServiceId};

#[cfg(test)]
mod tests;
