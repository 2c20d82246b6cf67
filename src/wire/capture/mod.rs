//! Captures: reads pcap and pcapng, writes pcapng.
//!
//! [`Reader`] reads both formats as a stream, from a file or a pipe. A port's tee writes with
//! [`PcapngWriter`]; the comment of each packet says how the NIC handled it and why. `roxie-port` writes
//! the file in a thread of its own, so that a full pipe does not block the NIC.
//!
//! Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, and the registry of link types at tcpdump.org.

mod pcapng;
mod reader;
mod source;
mod writer;

pub use reader::Reader;
pub use source::{CaptureError, Direction, Record};
pub use writer::{PcapngWriter, read_statistics, statistics_block};

/// Block types of pcapng (draft-ietf-opsawg-pcapng, section 11.1).
pub mod block {
    /// Section header.
    pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    /// Interface description.
    pub const INTERFACE: u32 = 1;
    /// Obsolete; read, never written.
    pub const PACKET: u32 = 2;
    /// Simple packet.
    pub const SIMPLE_PACKET: u32 = 3;
    /// Interface statistics.
    pub const STATISTICS: u32 = 5;
    /// Enhanced packet.
    pub const ENHANCED_PACKET: u32 = 6;
}

/// The byte-order magic of a section header.
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Option codes of pcapng: common ones, then options of a section, an interface, a packet and of statistics.
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SECTION_USER_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_TSRESOL: u16 = 9;
    pub(super) const INTERFACE_TSOFFSET: u16 = 14;
    pub(super) const PACKET_FLAGS: u16 = 2;
    pub(super) const STATISTICS_RECEIVED: u16 = 4;
    pub(super) const STATISTICS_DROPPED: u16 = 5;
}

/// Link-layer types of captures (registry at tcpdump.org).
pub mod link_type {
    /// BSD loopback: an address family in host byte order of the writer.
    pub const NULL: u32 = 0;
    /// Ethernet.
    pub const ETHERNET: u32 = 1;
    /// IPv4 or IPv6, as some BSDs number [`RAW`].
    pub const RAW_BSD: u32 = 12;
    /// IPv4 or IPv6.
    pub const RAW: u32 = 101;
    /// OpenBSD loopback: an address family, big-endian.
    pub const LOOP: u32 = 108;
    /// Linux cooked capture, version 1, as `-i any` writes it.
    pub const LINUX_SLL: u32 = 113;
    /// Endace ERF records.
    pub const ERF: u32 = 197;
    /// IPv4.
    pub const IPV4: u32 = 228;
    /// IPv6.
    pub const IPV6: u32 = 229;
    /// InfiniBand, beginning with the LRH.
    pub const INFINIBAND: u32 = 247;
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: u32 = 276;
}

#[cfg(test)]
mod tests;
