//! Captures: pcap and pcapng files in, pcapng files out.
//!
//! [`PcapngWriter`] is what a port's tee writes with: a comment on every packet says what the
//! NIC did with it and why.

mod writer;

pub use writer::{Direction, PcapngWriter};

/// Block types of pcapng (draft-ietf-opsawg-pcapng, section 11.1).
mod block {
    pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

/// The byte-order magic of a section header.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Option codes of pcapng: the common ones, then those of a section, an interface, a packet.
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SECTION_USER_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_TSRESOL: u16 = 9;
    pub(super) const PACKET_FLAGS: u16 = 2;
}

/// LINKTYPE_ETHERNET of the link-layer types that captures name.
const LINKTYPE_ETHERNET: u16 = 1;
