//! The frames that come for each message, read in one go: what [`parse_any`](super::parse_any) finds in them header by header.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::super::net::{self, PROTOCOL_UDP, RawEthernet, RawIpv4, RawUdp, ether_type};
use super::super::{Bth, Ipv4Header, NetHeader, Opcode, OpcodeInfo, ROCE_V2_PORT, UdpHeader};
use super::{Envelope, ICRC_LEN, MAX_EXT, Packet};
use crate::frame::Frame;

/// The headers up to the BTH.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    ethernet: RawEthernet,
    ip: RawIpv4,
    udp: RawUdp,
    bth: [u8; Bth::LEN],
}

/// Where each begins.
const IP: usize = size_of::<RawEthernet>();
const UDP: usize = IP + size_of::<RawIpv4>();
const BTH: usize = UDP + size_of::<RawUdp>();
const EXT: usize = size_of::<Raw>();

/// A good packet in IPv4, without tags, options and fragments, all of its headers in the frame's first piece.
pub(super) struct Usual<'a> {
    raw: &'a Raw,
    info: &'static OpcodeInfo,
    ext: &'a [u8],
    payload: Range<usize>,
}

impl<'a> Usual<'a> {
    /// `None`: it is something else, or not good.
    #[inline(always)]
    pub(super) fn of(frame: &Frame<'a>) -> Option<Usual<'a>> {
        let (headers, behind) = frame.a.split_first_chunk::<EXT>()?;
        let raw: &Raw = zerocopy::transmute_ref!(headers);
        let [opcode, flags, ..] = raw.bth;
        let info = Opcode(opcode).info()?;
        let (version, pad) = (flags & 0x0f, usize::from(flags >> 4 & 3));
        let is_usual = raw.ethernet.ether_type.get() == ether_type::IPV4
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
        (is_usual && fits).then_some(Usual { raw, info, ext, payload: start..end })
    }

    #[inline(always)]
    pub(super) fn read(self) -> Packet {
        let Raw { ethernet, ip, udp, bth } = self.raw;
        let bth = Bth::read(bth);
        let mut ext = [0; MAX_EXT];
        // Most packets have none, and to copy nothing is a call as well.
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
        Packet { envelope, info: self.info, ext, payload: self.payload }
    }
}
