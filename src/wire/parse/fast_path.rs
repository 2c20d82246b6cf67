//! Fast path of parsing: reads the headers of the most common frames at fixed offsets. Results equal the results of
//! [`parse_any`](super::parse_any).

use core::ops::Range;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::super::net::{self, PROTOCOL_UDP, RawEthernet, RawIpv4, RawUdp, ether_type};
use super::super::{
    Aeth, Bth, Gid, Icrc, Ipv4Header, NetHeader, Opcode, OpcodeInfo, Operation, ROCE_V2_PORT, Reth,
    UdpHeader, icrc,
};
use super::{Envelope, ICRC_LEN, MAX_EXT, Packet};
use crate::frame::Frame;

/// The headers up to and including the BTH.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    ethernet: RawEthernet,
    ip: RawIpv4,
    udp: RawUdp,
    bth: [u8; Bth::LEN],
}

/// Offsets of the headers behind Ethernet.
const IP: usize = size_of::<RawEthernet>();
const UDP: usize = IP + size_of::<RawIpv4>();
const BTH: usize = UDP + size_of::<RawUdp>();
/// Offset of the headers behind the BTH.
pub const EXT: usize = size_of::<Raw>();

/// A valid packet over IPv4, without tags, options or fragments, with all headers in the frame's first piece.
pub struct FastPacket<'a> {
    raw: &'a Raw,
    info: &'static OpcodeInfo,
    ext: &'a [u8],
    payload: Range<usize>,
}

/// Source and destination IPv4 address, as in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends([u8; 8]);

impl Ends {
    /// Returns the addresses of two GIDs; `None` unless both are IPv4-mapped.
    pub fn of(source: &Gid, destination: &Gid) -> Option<Ends> {
        let mut ends = [0; 8];
        for (half, gid) in ends.chunks_exact_mut(4).zip([source, destination]) {
            half.copy_from_slice(gid.is_ipv4().then(|| &gid.0[12..])?);
        }
        Some(Ends(ends))
    }
}

/// Joins the headers of a frame that is split at the BTH, as the UDP port splits it. Returns them with the
/// bytes behind.
#[inline(always)]
fn join<'a>(frame: &Frame<'a>, store: &'a mut [u8; EXT]) -> Option<(&'a [u8; EXT], &'a [u8])> {
    let (below, place) = store.split_first_chunk_mut::<BTH>()?;
    let (bth, behind) = frame.b.split_first_chunk::<{ Bth::LEN }>()?;
    *below = *<&[u8; BTH]>::try_from(frame.a).ok()?;
    place.copy_from_slice(bth);
    Some((store, behind))
}

impl<'a> FastPacket<'a> {
    /// Returns the packet; `None` if it is invalid, or needs the full parser. `store` holds headers that are
    /// not contiguous.
    #[inline(always)]
    pub fn of(frame: &Frame<'a>, store: &'a mut [u8; EXT]) -> Option<FastPacket<'a>> {
        let (headers, behind) = match frame.a.split_first_chunk::<EXT>() {
            Some((headers, behind)) => (headers, behind),
            None => join(frame, store)?,
        };
        let raw: &Raw = zerocopy::transmute_ref!(headers);
        let [opcode, flags, ..] = raw.bth;
        let info = Opcode(opcode).info()?;
        let (version, pad) = (flags & 0x0f, usize::from(flags >> 4 & 3));
        let is_eligible = raw.ethernet.ether_type.get() == ether_type::IPV4
            && raw.ip.version_ihl == 0x45
            && raw.ip.protocol == PROTOCOL_UDP
            && raw.ip.flags_fragment.get() & 0x3fff == 0
            && raw.udp.dest_port.get() == ROCE_V2_PORT
            && version == 0;
        let ip_end = IP + usize::from(raw.ip.total_len.get());
        let udp_end = UDP + usize::from(raw.udp.len.get());
        let start = EXT + info.headers.len();
        let end = udp_end.checked_sub(ICRC_LEN + pad)?;
        let ext = behind.get(..info.headers.len())?;
        let fits = start <= end && udp_end <= ip_end && ip_end <= frame.len();
        (is_eligible && fits).then_some(FastPacket { raw, info, ext, payload: start..end })
    }

    /// Returns the range of the payload in the frame, without pad.
    #[inline(always)]
    pub fn payload(&self) -> Range<usize> {
        self.payload.clone()
    }

    /// Returns the base transport header.
    #[inline(always)]
    pub fn bth(&self) -> Bth {
        Bth::read(&self.raw.bth)
    }

    /// Returns the RETH, if no other extended header is present.
    #[inline(always)]
    pub fn reth(&self) -> Option<Reth> {
        self.ext.try_into().ok().map(Reth::read)
    }

    /// Returns the AETH, if no other extended header is present.
    #[inline(always)]
    pub fn aeth(&self) -> Option<Aeth> {
        self.ext.try_into().ok().map(Aeth::read)
    }

    /// True for a READ response.
    #[inline(always)]
    pub fn answers_a_read(&self) -> bool {
        self.info.operation == Operation::ReadResponse
    }

    /// Returns the source and destination address.
    #[inline(always)]
    pub fn ends(&self) -> Ends {
        let ([a, b, c, d], [e, f, g, h]) = (self.raw.ip.src, self.raw.ip.dst);
        Ends([a, b, c, d, e, f, g, h])
    }

    /// True if a switch marked the packet congestion experienced: ECN is 11 (RFC 3168 5).
    #[inline(always)]
    pub fn is_ce(&self) -> bool {
        self.raw.ip.tos & 3 == 3
    }

    /// Verifies the ICRC. `frame` must be the frame of the packet.
    #[inline(always)]
    pub fn check_icrc(&self, frame: &Frame<'_>) -> Icrc {
        let end = self.icrc_offset();
        let computed = icrc::compute(frame, IP, end);
        match frame.array(end).map(u32::from_le_bytes) {
            Some(stored) if stored == computed => Icrc::Ok,
            stored => Icrc::Bad { computed, stored: stored.unwrap_or_default() },
        }
    }

    /// Returns the offset of the ICRC in the frame.
    fn icrc_offset(&self) -> usize {
        self.payload.end + usize::from(self.raw.bth[1] >> 4 & 3)
    }

    /// Returns the number of covered bytes behind the IPv4 identification, for [`icrc::solve_ipv4_id`].
    pub fn after_id(&self) -> usize {
        self.icrc_offset() - (IP + 6)
    }

    /// Returns the packet with all its fields.
    #[inline(always)]
    pub fn read(&self) -> Packet {
        let Raw { ethernet, ip, udp, bth } = self.raw;
        let bth = Bth::read(bth);
        let mut ext = [0; MAX_EXT];
        // Most packets have no extended header, and an empty copy would still be a call.
        if !self.ext.is_empty() {
            ext[..self.ext.len()].copy_from_slice(self.ext);
        }
        let ipv4 = Ipv4Header {
            header_len: size_of::<RawIpv4>() as u8,
            tos: ip.tos,
            total_len: ip.total_len.get(),
            id: ip.id.get(),
            dont_fragment: ip.flags_fragment.get() & 0x4000 != 0,
            ttl: ip.ttl,
            checksum: ip.checksum.get(),
            checksum_ok: net::sums_up(zerocopy::transmute_ref!(ip)),
            src: ip.src.into(),
            dst: ip.dst.into(),
        };
        let udp = UdpHeader {
            source_port: udp.source_port.get(),
            len: udp.len.get(),
            checksum: udp.checksum.get(),
        };
        let envelope = Envelope {
            dst_mac: ethernet.dst,
            src_mac: ethernet.src,
            outer_vlan: None,
            vlan: None,
            net: NetHeader::Ipv4(ipv4),
            udp: Some(udp),
            bth,
            l3_offset: IP,
            bth_offset: BTH,
            icrc_offset: self.payload.end + usize::from(bth.pad),
        };
        Packet { envelope, info: self.info, ext, payload: self.payload.clone() }
    }
}
