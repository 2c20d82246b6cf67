//! Parsing: a frame becomes a packet or a counted drop reason.
//!
//! Three steps: the link layer gives the EtherType, [`Envelope`] is everything up to and including the BTH,
//! [`Packet`] adds the headers that the opcode table lists. Tools use the first two for RoCE frames that are
//! not valid packets, and for frames that a capture truncated.
//!
//! The parser accepts what real devices differ in: reserved bits, MigReq, TTL, DF, VLAN tags, IPv4 options,
//! trailing bytes and any UDP checksum. [`Envelope::check_icrc`] verifies the ICRC separately.

use alloc::vec;
use core::ops::{Deref, Range};

use super::drop_reason::is_ipv6_extension;
use super::net::{self, NEXT_HEADER_IBA, PROTOCOL_UDP, RawEthernet, RawIpv4, RawIpv6, RawUdp, ether_type};
use super::{
    Aeth, AtomicEth, Bth, Deth, Encapsulation, Feth, Gid, Headers, Icrc, Ipv4Header, Ipv6Header, NetHeader,
    OpcodeInfo, ROCE_V2_PORT, Reth, RoceVersion, Sack, UdpHeader, XrcEth, icrc,
};
use crate::frame::Frame;

pub use super::drop_reason::Drop;

mod fast_path;

pub use fast_path::{EXT as HEADERS, Ends, FastPacket};

/// Bytes of the longest header chain: Ethernet, two tags, IPv4 with all options, UDP, BTH, and the headers of
/// an RD atomic.
const MAX_CHAIN: usize = 14 + 2 * 4 + 60 + 8 + Bth::LEN + MAX_EXT;
/// Bytes of the longest headers behind a BTH: RDETH, DETH and AtomicETH.
const MAX_EXT: usize = 40;

/// Length of the ICRC in bytes.
pub const ICRC_LEN: usize = 4;

/// All headers up to and including the BTH, with the offsets of the parts. The opcode may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Destination MAC address; zero if the capture lacks it.
    pub dst_mac: [u8; 6],
    /// Source MAC address; zero if the capture lacks it.
    pub src_mac: [u8; 6],
    /// TCI of the outer tag of two.
    pub outer_vlan: Option<u16>,
    /// TCI of the inner or only tag: priority in bits 15:13, VLAN in bits 11:0.
    pub vlan: Option<u16>,
    /// IPv4, IPv6 or GRH.
    pub net: NetHeader,
    /// UDP header; `None` for RoCE v1.
    pub udp: Option<UdpHeader>,
    /// The base transport header.
    pub bth: Bth,
    /// Offset of the L3 header in the frame.
    pub l3_offset: usize,
    /// Offset of the BTH in the frame.
    pub bth_offset: usize,
    /// Offset of the ICRC in the frame. The packet ends four bytes later.
    pub icrc_offset: usize,
}

/// A packet with a known opcode and complete headers. A packet borrows nothing: its offsets refer to the
/// frame from which it was parsed. Dereferences to its [`Envelope`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    envelope: Envelope,
    info: &'static OpcodeInfo,
    ext: [u8; MAX_EXT],
    /// Range of the payload in the frame, without pad.
    pub payload: Range<usize>,
}

impl Deref for Packet {
    type Target = Envelope;
    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

/// Parses an Ethernet frame.
///
/// # Errors
/// A [`Drop`] says why the frame is not a valid RoCE packet. The ICRC is not checked.
pub fn parse(frame: &Frame<'_>) -> Result<Packet, Drop> {
    match FastPacket::of(frame, &mut [0; HEADERS]) {
        Some(fast) => Ok(fast.read()),
        None => parse_any(frame),
    }
}

/// Parses any frame, header by header.
#[inline(never)]
pub(super) fn parse_any(frame: &Frame<'_>) -> Result<Packet, Drop> {
    let mut store = [0; MAX_CHAIN];
    let chain = gather(frame, &mut store);
    let envelope = Envelope::read(chain, Link::read(chain)?, frame.len())?;
    Packet::read(chain, envelope)
}

/// Returns the first bytes of a frame as one slice; copies only if the frame is split within them.
fn gather<'a>(frame: &Frame<'a>, store: &'a mut [u8; MAX_CHAIN]) -> &'a [u8] {
    if frame.a.len() >= MAX_CHAIN || frame.b.is_empty() {
        return frame.a;
    }
    let n = frame.copy_to(0, store);
    &store[..n]
}

/// Returns the `N` bytes at `at`, or `Truncated` with `what`.
fn take<'a, const N: usize>(chain: &'a [u8], at: usize, what: &'static str) -> Result<&'a [u8; N], Drop> {
    chain.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Drop::Truncated {
        what,
        need: at + N,
        have: chain.len(),
    })
}

/// The link layer: addresses, tags, and the type and offset of L3.
struct Link {
    dst_mac: [u8; 6],
    src_mac: [u8; 6],
    outer_vlan: Option<u16>,
    vlan: Option<u16>,
    ether_type: u16,
    l3_offset: usize,
}

impl Link {
    fn read(chain: &[u8]) -> Result<Link, Drop> {
        let bytes: &[u8; 14] = take(chain, 0, "Ethernet header")?;
        let raw: &RawEthernet = zerocopy::transmute_ref!(bytes);
        let mut link = Link {
            dst_mac: raw.dst,
            src_mac: raw.src,
            outer_vlan: None,
            vlan: None,
            ether_type: raw.ether_type.get(),
            l3_offset: 14,
        };
        link.read_tags(chain)?;
        Ok(link)
    }

    /// Skips up to two VLAN tags.
    fn read_tags(&mut self, chain: &[u8]) -> Result<(), Drop> {
        for _ in 0..2 {
            if !matches!(self.ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN) {
                break;
            }
            let [c0, c1, t0, t1] = *take(chain, self.l3_offset, "802.1Q tag")?;
            self.outer_vlan = self.vlan;
            self.vlan = Some(u16::from_be_bytes([c0, c1]));
            self.ether_type = u16::from_be_bytes([t0, t1]);
            self.l3_offset += 4;
        }
        Ok(())
    }
}

/// Offset of L4, and end of the L3 packet.
struct Span {
    l4: usize,
    end: usize,
}

impl Envelope {
    /// Parses an Ethernet frame up to the BTH. `wire_len` is the original length of the frame; a capture may
    /// have truncated `frame`.
    ///
    /// # Errors
    /// As [`parse`], except for errors behind the BTH.
    pub fn from_ethernet(frame: &Frame<'_>, wire_len: usize) -> Result<Envelope, Drop> {
        let mut store = [0; MAX_CHAIN];
        let chain = gather(frame, &mut store);
        Envelope::read(chain, Link::read(chain)?, wire_len)
    }

    /// Parses a frame of another link layer. L3 of type `ether_type` begins at `l3_offset`.
    ///
    /// # Errors
    /// As [`from_ethernet`](Self::from_ethernet).
    pub fn from_network(
        frame: &Frame<'_>,
        ether_type: u16,
        l3_offset: usize,
        wire_len: usize,
    ) -> Result<Envelope, Drop> {
        let mut store = [0; MAX_CHAIN];
        let chain = gather(frame, &mut store);
        let mut link =
            Link { dst_mac: [0; 6], src_mac: [0; 6], outer_vlan: None, vlan: None, ether_type, l3_offset };
        link.read_tags(chain)?;
        Envelope::read(chain, link, wire_len)
    }

    fn read(chain: &[u8], link: Link, wire_len: usize) -> Result<Envelope, Drop> {
        let (net, span) = match link.ether_type {
            ether_type::IPV4 => read_ipv4(chain, link.l3_offset)?,
            ether_type::IPV6 => read_ipv6(chain, link.l3_offset)?,
            ether_type::ROCE_V1 => read_grh(chain, link.l3_offset)?,
            ether_type::MAC_CONTROL => return Err(Drop::MacControl),
            _ => return Err(Drop::NotRoce),
        };
        let (udp, bth_offset, end) = match net {
            NetHeader::Grh(_) => (None, span.l4, span.end),
            NetHeader::Ipv4(_) | NetHeader::Ipv6(_) => read_udp(chain, &span)?,
        };
        // Checked after UDP, so that only RoCE frames count as truncated.
        if span.end > wire_len {
            return Err(Drop::Truncated { what: "IP packet", need: span.end, have: wire_len });
        }
        let need = bth_offset + Bth::LEN + ICRC_LEN;
        if end < need {
            return Err(Drop::Truncated { what: "BTH and ICRC", need, have: end });
        }
        Ok(Envelope {
            dst_mac: link.dst_mac,
            src_mac: link.src_mac,
            outer_vlan: link.outer_vlan,
            vlan: link.vlan,
            net,
            udp,
            bth: Bth::read(take(chain, bth_offset, "BTH")?),
            l3_offset: link.l3_offset,
            bth_offset,
            icrc_offset: end - ICRC_LEN,
        })
    }

    /// Returns the source address as a GID.
    pub fn source_gid(&self) -> Gid {
        match self.net {
            NetHeader::Ipv4(h) => h.src.into(),
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => h.src.into(),
        }
    }

    /// Returns the destination address as a GID.
    pub fn dest_gid(&self) -> Gid {
        match self.net {
            NetHeader::Ipv4(h) => h.dst.into(),
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => h.dst.into(),
        }
    }

    /// True if the packet is from `from` to `to`. Compares IPv4 addresses without converting them to GIDs.
    pub fn is_between(&self, from: &Gid, to: &Gid) -> bool {
        match &self.net {
            NetHeader::Ipv4(h) => from.is(h.src) && to.is(h.dst),
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => from.0 == h.src.octets() && to.0 == h.dst.octets(),
        }
    }

    /// Returns RoCE version and VLAN, from the inner tag if there are two.
    pub fn encapsulation(&self) -> Encapsulation {
        let version = if self.is_roce_v1() { RoceVersion::V1 } else { RoceVersion::V2 };
        Encapsulation { vlan: self.vlan.unwrap_or(0) & Encapsulation::VLAN_BITS, version }
    }

    /// Returns the IPv4 TOS or the IPv6/GRH traffic class.
    pub fn traffic_class(&self) -> u8 {
        match self.net {
            NetHeader::Ipv4(h) => h.tos,
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => h.traffic_class,
        }
    }

    /// True if a switch marked the packet congestion experienced: ECN is 11 (RFC 3168 5). RoCE v1 has no ECN.
    pub fn is_ce(&self) -> bool {
        !self.is_roce_v1() && self.traffic_class() & 3 == 3
    }

    /// True for RoCE v1: a GRH directly behind the Ethernet header, without UDP.
    pub fn is_roce_v1(&self) -> bool {
        matches!(self.net, NetHeader::Grh(_))
    }

    /// True if `frame` holds the whole packet, not truncated by a capture.
    pub fn is_complete(&self, frame: &Frame<'_>) -> bool {
        frame.len() >= self.icrc_offset + ICRC_LEN
    }

    /// Verifies the ICRC. `frame` must be the frame from which the envelope was parsed.
    pub fn check_icrc(&self, frame: &Frame<'_>) -> Icrc {
        let computed = icrc::compute(frame, self.l3_offset, self.icrc_offset);
        match frame.array(self.icrc_offset).map(u32::from_le_bytes) {
            Some(stored) if stored == computed => Icrc::Ok,
            stored => Icrc::Bad { computed, stored: stored.unwrap_or_default() },
        }
    }

    /// Classifies the UDP checksum; `None` for RoCE v1 and for a truncated frame. Allocates.
    pub fn udp_checksum(&self, frame: &Frame<'_>) -> Option<net::UdpChecksum> {
        let udp = self.udp.filter(|_| self.is_complete(frame))?;
        if udp.checksum == 0 {
            return Some(net::UdpChecksum::Zero);
        }
        let addresses = match self.net {
            NetHeader::Ipv4(h) => net::sum(&h.src.octets()) + net::sum(&h.dst.octets()),
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => net::sum(&h.src.octets()) + net::sum(&h.dst.octets()),
        };
        let pseudo = addresses + u64::from(PROTOCOL_UDP) + u64::from(udp.len);
        let start = self.bth_offset - 8;
        let mut datagram = vec![0; usize::from(udp.len)];
        frame.copy_to(start, &mut datagram);
        let others = pseudo + net::sum(&datagram) - u64::from(udp.checksum);
        // RFC 768: a computed checksum of zero is transmitted as all ones.
        let computed = match !net::fold(others) {
            0 => 0xffff,
            sum => sum,
        };
        Some(if computed == udp.checksum {
            net::UdpChecksum::Valid
        } else if net::fold(pseudo) == udp.checksum {
            net::UdpChecksum::Partial
        } else {
            net::UdpChecksum::Bad { computed }
        })
    }
}

fn read_ipv4(chain: &[u8], l3: usize) -> Result<(NetHeader, Span), Drop> {
    let bytes: &[u8; 20] = take(chain, l3, "IPv4 header")?;
    let raw: &RawIpv4 = zerocopy::transmute_ref!(bytes);
    let (version, header_len) = (raw.version_ihl >> 4, usize::from(raw.version_ihl & 0x0f) * 4);
    let total_len = usize::from(raw.total_len.get());
    if version != 4 || header_len < 20 || total_len < header_len {
        return Err(Drop::BadIpHeader { version, header_len, total_len });
    }
    if raw.protocol != PROTOCOL_UDP {
        return Err(Drop::NotRoce);
    }
    let fragment = raw.flags_fragment.get();
    let (offset, more) = (usize::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    //= IBTA A17.4.5.1: roce-v2-is-never-fragmented
    if offset != 0 || more {
        return Err(Drop::Fragment { offset, more });
    }
    let covered = chain.get(l3..l3 + header_len).ok_or(Drop::Truncated {
        what: "IPv4 options",
        need: l3 + header_len,
        have: chain.len(),
    })?;
    let header = Ipv4Header {
        header_len: header_len as u8,
        tos: raw.tos,
        total_len: raw.total_len.get(),
        id: raw.id.get(),
        dont_fragment: fragment & 0x4000 != 0,
        ttl: raw.ttl,
        checksum: raw.checksum.get(),
        checksum_ok: if header_len == 20 {
            net::sums_up(bytes)
        } else {
            net::fold(net::sum(covered)) == 0xffff
        },
        src: raw.src.into(),
        dst: raw.dst.into(),
    };
    Ok((NetHeader::Ipv4(header), Span { l4: l3 + header_len, end: l3 + total_len }))
}

fn read_ipv6(chain: &[u8], l3: usize) -> Result<(NetHeader, Span), Drop> {
    let (header, next_header) = read_ipv6_like(chain, l3)?;
    match next_header {
        PROTOCOL_UDP => {}
        other if is_ipv6_extension(other) => return Err(Drop::Ipv6Extension(other)),
        _ => return Err(Drop::NotRoce),
    }
    let end = l3 + 40 + usize::from(header.payload_len);
    Ok((NetHeader::Ipv6(header), Span { l4: l3 + 40, end }))
}

fn read_grh(chain: &[u8], l3: usize) -> Result<(NetHeader, Span), Drop> {
    let (header, next_header) = read_ipv6_like(chain, l3)?;
    //= IBTA A16: roce-v1-has-a-grh
    if next_header != NEXT_HEADER_IBA {
        return Err(Drop::BadGrhNextHeader(next_header));
    }
    let end = l3 + 40 + usize::from(header.payload_len);
    Ok((NetHeader::Grh(header), Span { l4: l3 + 40, end }))
}

/// Reads the header layout shared by IPv6 and GRH. Returns the header and its next-header number.
fn read_ipv6_like(chain: &[u8], l3: usize) -> Result<(Ipv6Header, u8), Drop> {
    let bytes: &[u8; 40] = take(chain, l3, "IPv6 header or GRH")?;
    let raw: &RawIpv6 = zerocopy::transmute_ref!(bytes);
    let version = bytes[0] >> 4;
    if version != 6 {
        let total_len = 40 + usize::from(raw.payload_len.get());
        return Err(Drop::BadIpHeader { version, header_len: 40, total_len });
    }
    Ok((Ipv6Header::from_raw(raw), raw.next_header))
}

/// UDP header, offset of the UDP payload, and its end.
type Udp = (Option<UdpHeader>, usize, usize);

/// Reads the UDP header.
fn read_udp(chain: &[u8], span: &Span) -> Result<Udp, Drop> {
    let bytes: &[u8; 8] = take(chain, span.l4, "UDP header")?;
    let raw: &RawUdp = zerocopy::transmute_ref!(bytes);
    //= IBTA A17.4.3: roce-v2-has-its-udp-port
    if raw.dest_port.get() != ROCE_V2_PORT {
        return Err(Drop::NotRoce);
    }
    let (len, ip_payload) = (usize::from(raw.len.get()), span.end.saturating_sub(span.l4));
    if len < 8 || len > ip_payload {
        return Err(Drop::BadUdpLength { udp_len: len, ip_payload });
    }
    let udp =
        UdpHeader { source_port: raw.source_port.get(), len: raw.len.get(), checksum: raw.checksum.get() };
    Ok((Some(udp), span.l4 + 8, span.l4 + len))
}

impl Packet {
    /// Parses the rest of a packet from its envelope. `frame` must be the frame of the envelope.
    ///
    /// # Errors
    /// If the opcode or transport version is unknown, the headers are truncated, or the pad count exceeds the
    /// remaining bytes.
    pub fn from_envelope(frame: &Frame<'_>, envelope: Envelope) -> Result<Packet, Drop> {
        let mut store = [0; MAX_CHAIN];
        Packet::read(gather(frame, &mut store), envelope)
    }

    fn read(chain: &[u8], envelope: Envelope) -> Result<Packet, Drop> {
        let bth = &envelope.bth;
        //= IBTA 9.6.1: transport-version-is-zero
        if bth.tver != 0 {
            return Err(Drop::BadTransportVersion(bth.tver));
        }
        //= IBTA 9.2.1: opcode-has-service-and-operation
        let Some(info) = bth.opcode.info() else {
            return Err(Drop::UnknownOpcode(bth.opcode.0));
        };
        let ext_at = envelope.bth_offset + Bth::LEN;
        let start = ext_at + info.headers.len();
        //= IBTA 9.3: headers-follow-the-opcode
        if start > envelope.icrc_offset {
            let (need, have) = (start + ICRC_LEN, envelope.icrc_offset + ICRC_LEN);
            return Err(Drop::Truncated { what: "headers behind the BTH", need, have });
        }
        let available = envelope.icrc_offset - start;
        //= IBTA 9.6.1: packet-is-whole-words
        if usize::from(bth.pad) > available {
            return Err(Drop::BadPad { pad: bth.pad, available });
        }
        let have = chain.len();
        let Some(bytes) = chain.get(ext_at..start) else {
            return Err(Drop::Truncated { what: "headers behind the BTH", need: start, have });
        };
        let mut ext = [0; MAX_EXT];
        // Most packets have no extended header, and an empty copy would still be a call.
        if !bytes.is_empty() {
            ext[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(Packet { envelope, info, ext, payload: start..envelope.icrc_offset - usize::from(bth.pad) })
    }

    /// Returns the opcode's row of the opcode table.
    pub fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// Returns the RETH, if the opcode has one.
    pub fn reth(&self) -> Option<Reth> {
        self.ext(Headers::RETH).map(Reth::read)
    }

    /// Returns the AETH, if the opcode has one.
    pub fn aeth(&self) -> Option<Aeth> {
        self.ext(Headers::AETH).map(Aeth::read)
    }

    /// Returns the AtomicETH, if the opcode has one.
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.ext(Headers::ATOMIC_ETH).map(AtomicEth::read)
    }

    /// Returns the original value of an atomic acknowledgement.
    pub fn atomic_ack(&self) -> Option<u64> {
        self.ext(Headers::ATOMIC_ACK_ETH).map(|b| u64::from_be_bytes(*b))
    }

    /// Returns the selective acknowledgement, if the opcode has one.
    pub fn sack(&self) -> Option<Sack> {
        self.ext(Headers::SACK).map(Sack::read)
    }

    /// Returns the immediate data.
    pub fn imm(&self) -> Option<u32> {
        self.ext(Headers::IMM).map(|b| u32::from_be_bytes(*b))
    }

    /// Returns the rkey to invalidate.
    pub fn ieth(&self) -> Option<u32> {
        self.ext(Headers::IETH).map(|b| u32::from_be_bytes(*b))
    }

    /// Returns the DETH, if the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        self.ext(Headers::DETH).map(Deth::read)
    }

    /// Returns the XRCETH, if the opcode has one.
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.ext(Headers::XRCETH).map(XrcEth::read)
    }

    /// Returns the end-to-end context of a reliable datagram, 24 bits.
    pub fn rdeth(&self) -> Option<u32> {
        self.ext(Headers::RDETH).map(|b| u32::from_be_bytes(*b) & 0x00ff_ffff)
    }

    /// Returns the FETH, if the opcode has one.
    pub fn feth(&self) -> Option<Feth> {
        self.ext(Headers::FETH).map(|b| Feth(u32::from_be_bytes(*b)))
    }

    fn ext<const N: usize>(&self, header: Headers) -> Option<&[u8; N]> {
        let at = self.info.headers.offset_of(header)?;
        self.ext[at..].first_chunk()
    }
}
