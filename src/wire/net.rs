//! The headers below the transport: Ethernet, 802.1Q, IPv4, IPv6 (and the GRH, of the same layout), UDP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::frame::ROCE_V2_PORT;

/// Bytes that a frame takes on an Ethernet link in addition to those that a port carries: FCS (4), preamble
/// and start of frame (8), interframe gap (12).
pub const ETHERNET_OVERHEAD: u32 = 24;
/// The shortest frame without FCS, in bytes (802.3 4A.4.2). Shorter ones are padded on the link.
pub const SHORTEST_FRAME: usize = 60;

/// The EtherTypes used by the crate.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// RoCE v1: a GRH follows (IBTA annex A16).
    pub const ROCE_V1: u16 = 0x8915;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad service tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// MAC control: PAUSE and PFC.
    pub const MAC_CONTROL: u16 = 0x8808;
}

/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// GRH next header of an InfiniBand transport packet.
pub const NEXT_HEADER_IBA: u8 = 0x1b;

/// The IPv4 header without its options.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv4 {
    pub(super) version_ihl: u8,
    pub(super) tos: u8,
    pub(super) total_len: U16,
    pub(super) id: U16,
    pub(super) flags_fragment: U16,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) checksum: U16,
    pub(super) src: [u8; 4],
    pub(super) dst: [u8; 4],
}

/// The IPv6 header, and the GRH of RoCE v1 (IBTA 8.3), which has the same layout.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawIpv6 {
    pub(super) version_class_flow: U32,
    pub(super) payload_len: U16,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) src: [u8; 16],
    pub(super) dst: [u8; 16],
}

/// The Ethernet header, up to the first tag.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawEthernet {
    pub(super) dst: [u8; 6],
    pub(super) src: [u8; 6],
    pub(super) ether_type: U16,
}

/// The UDP header.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawUdp {
    pub(super) source_port: U16,
    pub(super) dest_port: U16,
    pub(super) len: U16,
    pub(super) checksum: U16,
}

/// An IPv4 header (RFC 791).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Header {
    /// Header length with options in bytes, 20 to 60.
    pub header_len: u8,
    /// DSCP in bits 7:2, ECN in bits 1:0. The verbs call it traffic class.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification, which the ICRC covers.
    pub id: u16,
    /// True if DF is set.
    pub dont_fragment: bool,
    /// Time to live, 0 to 255.
    pub ttl: u8,
    /// Header checksum, as received.
    pub checksum: u16,
    /// True if the header checksum is correct. The parser accepts an incorrect one, because the ICRC covers
    /// every field but TOS and TTL.
    pub checksum_ok: bool,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

/// An IPv6 header (RFC 8200), or the GRH of RoCE v1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Header {
    /// DSCP in bits 7:2, ECN in bits 1:0.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Hop limit, 0 to 255.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    pub(super) fn from_raw(raw: &RawIpv6) -> Ipv6Header {
        let word = raw.version_class_flow.get();
        Ipv6Header {
            traffic_class: (word >> 20 & 0xff) as u8,
            flow_label: word & 0x000f_ffff,
            payload_len: raw.payload_len.get(),
            hop_limit: raw.hop_limit,
            src: raw.src.into(),
            dst: raw.dst.into(),
        }
    }
}

/// The network header that carries the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetHeader {
    /// RoCE v2 over IPv4.
    Ipv4(Ipv4Header),
    /// RoCE v2 over IPv6.
    Ipv6(Ipv6Header),
    /// RoCE v1: the GRH.
    Grh(Ipv6Header),
}

/// A UDP header. The destination port is always [`ROCE_V2_PORT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    /// Source port, constant per flow for ECMP.
    pub source_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum as received; 0 means none.
    pub checksum: u16,
}

/// Returns the MAC address of a multicast group (RFC 1112 6.4, RFC 2464 7). `None` if the address is no
/// group's.
pub fn multicast_mac(group: IpAddr) -> Option<[u8; 6]> {
    match group {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

/// State of a frame's UDP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UdpChecksum {
    /// Zero: not computed by the sender.
    Zero,
    /// Correct.
    Valid,
    /// The sum of the pseudo header alone, to be completed by hardware (Linux's CHECKSUM_PARTIAL). Seen in
    /// captures on the sending host.
    Partial,
    /// Incorrect.
    Bad {
        /// The correct value.
        computed: u16,
    },
}

/// Returns the sum of big-endian 16-bit words (RFC 1071), not folded (see [`fold`]). An odd last byte counts
/// as a high byte.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let total: u64 = words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum();
    total + rest.first().map_or(0, |&b| u64::from(b) << 8)
}

/// True if the checksum of an IPv4 header without options is correct: the folded sum is all ones, in any byte
/// order (RFC 1071, 2 B). Sums native 32-bit words, which is faster.
pub(super) fn sums_up(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let total: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    // A sum folds to all ones if it is a positive multiple of 0xffff.
    total != 0 && total.is_multiple_of(0xffff)
}

/// Folds a sum into 16 bits with end-around carry, without complementing it.
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Returns the checksum of an IPv4 header. `sum` is the sum of the header with a checksum field of zero.
pub const fn ipv4_checksum(sum: u64) -> u16 {
    !fold(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_sum_agrees_with_halfword_sum() {
        let mut header: [u8; 20] =
            *b"\x45\x00\x00\x54\x12\x34\x40\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\xff\xfe\x02";
        let checksum = ipv4_checksum(sum(&header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert!(sums_up(&header));
        for bit in 0..160 {
            header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sums_up(&header), fold(sum(&header)) == 0xffff, "bit {bit}");
            assert!(!sums_up(&header), "bit {bit}");
            header[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!sums_up(&[0; 20]), "no header is all zeros");
    }

    #[test]
    fn multicast_mac_holds_low_bits_of_group() {
        for (group, mac) in [
            ("239.1.2.3", Some([0x01, 0x00, 0x5e, 1, 2, 3])),
            ("224.129.0.1", Some([0x01, 0x00, 0x5e, 1, 0, 1])),
            ("ff0e::1:2345:6789", Some([0x33, 0x33, 0x23, 0x45, 0x67, 0x89])),
            ("192.0.2.1", None),
            ("fd00::1", None),
        ] {
            assert_eq!(multicast_mac(group.parse().expect("an address")), mac, "{group}");
        }
    }
}
