//! Building packets: the headers below the transport are prepared once per flow, the headers of the packet are
//! written behind them.

mod fast_path;

use core::net::{IpAddr, Ipv4Addr};

use zerocopy::IntoBytes;

use super::net::{self, NEXT_HEADER_IBA, PROTOCOL_UDP, RawIpv4, RawIpv6, RawUdp, ether_type};
use super::parse::ICRC_LEN;
use super::{
    Aeth, AtomicEth, Bth, Deth, Feth, Gid, Headers, Opcode, Operation, Packet, Qpn, ROCE_V2_PORT, Reth,
    RoceVersion, Sack, XrcEth, icrc,
};
use crate::frame::FrameMut;

/// Bytes of the longest header chain that is written: Ethernet, tag, IPv6, UDP, BTH and 32 bytes of an XRC
/// atomic. The bound is tight, because a frame of at least this length gets its headers written in place.
pub const MAX_HEADERS: usize = 110;

/// The longest part below the BTH: Ethernet, tag, IPv6, UDP.
const MAX_PREFIX: usize = 14 + 4 + 40 + 8;

/// The fields that all packets of a flow share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowSpec {
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// MAC address of the next hop.
    pub dst_mac: [u8; 6],
    /// 802.1Q TCI, if tagged.
    pub vlan: Option<u16>,
    /// Source address. IPv4 is used if both ends are IPv4-mapped.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// TOS or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// IPv6 or GRH flow label, 20 bits.
    pub flow_label: u32,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// UDP source port; see [`entropy_port`].
    pub source_port: u16,
    /// The encapsulation: v2 over UDP, or v1 with a GRH.
    pub version: RoceVersion,
}

/// The headers behind the BTH, by combination: always those that the opcode table lists for the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ext {
    /// No header. For a CNP, 16 reserved bytes are written in place of a payload.
    None,
    /// WRITE, READ request, ATOMIC WRITE.
    Reth(Reth),
    /// WRITE ONLY with immediate.
    RethImm(Reth, u32),
    /// Immediate data.
    Imm(u32),
    /// The rkey to invalidate.
    Ieth(u32),
    /// ACK, NAK, READ response.
    Aeth(Aeth),
    /// Response to an atomic: the original value.
    AtomicAck(Aeth, u64),
    /// Selective acknowledgement.
    Sack(Aeth, Sack),
    /// Compare and swap, fetch and add.
    Atomic(AtomicEth),
    /// FLUSH.
    FlushReth(Feth, Reth),
    /// UD SEND.
    Deth(Deth),
    /// UD SEND with immediate.
    DethImm(Deth, u32),
    /// XRC SEND and middles.
    Xrc(XrcEth),
    /// XRC WRITE, READ request, ATOMIC WRITE.
    XrcReth(XrcEth, Reth),
    /// XRC WRITE ONLY with immediate.
    XrcRethImm(XrcEth, Reth, u32),
    /// XRC with immediate data.
    XrcImm(XrcEth, u32),
    /// XRC SEND with invalidate.
    XrcIeth(XrcEth, u32),
    /// XRC atomic.
    XrcAtomic(XrcEth, AtomicEth),
    /// XRC FLUSH.
    XrcFlushReth(XrcEth, Feth, Reth),
}

impl Ext {
    /// Returns the headers of a received packet, to build the packet again. `None` for a reliable datagram,
    /// which is never sent.
    pub fn of(p: &Packet) -> Option<Ext> {
        let all = p.info().headers;
        let ext = match (p.xrceth(), p.reth(), p.imm()) {
            (Some(x), Some(r), Some(imm)) => Ext::XrcRethImm(x, r, imm),
            (Some(x), Some(r), None) => match p.feth() {
                Some(feth) => Ext::XrcFlushReth(x, feth, r),
                None => Ext::XrcReth(x, r),
            },
            (Some(x), None, Some(imm)) => Ext::XrcImm(x, imm),
            (Some(x), None, None) => match (p.ieth(), p.atomic_eth()) {
                (Some(rkey), _) => Ext::XrcIeth(x, rkey),
                (_, Some(atomic)) => Ext::XrcAtomic(x, atomic),
                _ => Ext::Xrc(x),
            },
            (None, Some(r), Some(imm)) => Ext::RethImm(r, imm),
            (None, Some(r), None) => p.feth().map_or(Ext::Reth(r), |feth| Ext::FlushReth(feth, r)),
            (None, None, Some(imm)) => p.deth().map_or(Ext::Imm(imm), |deth| Ext::DethImm(deth, imm)),
            (None, None, None) => match (p.aeth(), p.atomic_ack()) {
                (Some(aeth), Some(original)) => Ext::AtomicAck(aeth, original),
                (Some(aeth), None) => p.sack().map_or(Ext::Aeth(aeth), |sack| Ext::Sack(aeth, sack)),
                _ => match (p.ieth(), p.atomic_eth(), p.deth()) {
                    (Some(rkey), ..) => Ext::Ieth(rkey),
                    (_, Some(atomic), _) => Ext::Atomic(atomic),
                    (.., Some(deth)) => Ext::Deth(deth),
                    _ => Ext::None,
                },
            },
        };
        (ext.headers() == all || p.bth.opcode == Opcode::CNP).then_some(ext)
    }

    /// Returns the set of headers.
    pub fn headers(&self) -> Headers {
        match self {
            Ext::None => Headers::NONE,
            Ext::Reth(_) => Headers::RETH,
            Ext::RethImm(..) => Headers::RETH | Headers::IMM,
            Ext::Imm(_) => Headers::IMM,
            Ext::Ieth(_) => Headers::IETH,
            Ext::Aeth(_) => Headers::AETH,
            Ext::AtomicAck(..) => Headers::AETH | Headers::ATOMIC_ACK_ETH,
            Ext::Sack(..) => Headers::AETH | Headers::SACK,
            Ext::Atomic(_) => Headers::ATOMIC_ETH,
            Ext::FlushReth(..) => Headers::FETH | Headers::RETH,
            Ext::Deth(_) => Headers::DETH,
            Ext::DethImm(..) => Headers::DETH | Headers::IMM,
            Ext::Xrc(_) => Headers::XRCETH,
            Ext::XrcReth(..) => Headers::XRCETH | Headers::RETH,
            Ext::XrcRethImm(..) => Headers::XRCETH | Headers::RETH | Headers::IMM,
            Ext::XrcImm(..) => Headers::XRCETH | Headers::IMM,
            Ext::XrcIeth(..) => Headers::XRCETH | Headers::IETH,
            Ext::XrcAtomic(..) => Headers::XRCETH | Headers::ATOMIC_ETH,
            Ext::XrcFlushReth(..) => Headers::XRCETH | Headers::FETH | Headers::RETH,
        }
    }

    fn write(&self, out: &mut Cursor<'_>) {
        match *self {
            Ext::None => {}
            Ext::Reth(reth) => out.put(&reth.to_bytes()),
            Ext::RethImm(reth, imm) => {
                out.put(&reth.to_bytes());
                out.put(&imm.to_be_bytes());
            }
            Ext::Imm(word) | Ext::Ieth(word) => out.put(&word.to_be_bytes()),
            Ext::Aeth(aeth) => out.put(&aeth.to_bytes()),
            Ext::AtomicAck(aeth, original) => {
                out.put(&aeth.to_bytes());
                out.put(&original.to_be_bytes());
            }
            Ext::Sack(aeth, sack) => {
                out.put(&aeth.to_bytes());
                out.put(&sack.to_bytes());
            }
            Ext::Atomic(atomic) => out.put(&atomic.to_bytes()),
            Ext::FlushReth(feth, reth) => {
                out.put(&feth.0.to_be_bytes());
                out.put(&reth.to_bytes());
            }
            Ext::Deth(deth) => out.put(&deth.to_bytes()),
            Ext::DethImm(deth, imm) => {
                out.put(&deth.to_bytes());
                out.put(&imm.to_be_bytes());
            }
            Ext::Xrc(xrc) => out.put(&xrc.to_bytes()),
            Ext::XrcReth(xrc, reth) => out.xrc(xrc, Ext::Reth(reth)),
            Ext::XrcRethImm(xrc, reth, imm) => out.xrc(xrc, Ext::RethImm(reth, imm)),
            Ext::XrcImm(xrc, imm) => out.xrc(xrc, Ext::Imm(imm)),
            Ext::XrcIeth(xrc, rkey) => out.xrc(xrc, Ext::Ieth(rkey)),
            Ext::XrcAtomic(xrc, atomic) => out.xrc(xrc, Ext::Atomic(atomic)),
            Ext::XrcFlushReth(xrc, feth, reth) => out.xrc(xrc, Ext::FlushReth(feth, reth)),
        }
    }
}

/// Appends headers to a buffer.
struct Cursor<'a> {
    out: &'a mut [u8; MAX_HEADERS],
    at: usize,
}

impl Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn xrc(&mut self, xrc: XrcEth, rest: Ext) {
        self.put(&xrc.to_bytes());
        rest.write(self);
    }
}

/// The headers below the transport, prepared once per flow. The UDP checksum is 0; IPv4 has DF set and
/// identification 0.
#[derive(Clone, Debug)]
pub struct Template {
    prefix: [u8; MAX_PREFIX],
    prefix_len: usize,
    l3_offset: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// `header_sum`: sum of the header with zero total length and zero checksum.
    Ipv4 {
        header_sum: u64,
    },
    Ipv6,
    Grh,
}

impl Template {
    /// Prepares the headers of a flow.
    pub fn new(flow: &FlowSpec) -> Template {
        let mut t = Template { prefix: [0; MAX_PREFIX], prefix_len: 0, l3_offset: 0, kind: Kind::Ipv6 };
        t.put(&flow.dst_mac);
        t.put(&flow.src_mac);
        if let Some(tci) = flow.vlan {
            t.put(&ether_type::VLAN.to_be_bytes());
            t.put(&tci.to_be_bytes());
        }
        match (flow.version, flow.src.to_ip(), flow.dst.to_ip()) {
            (RoceVersion::V1, ..) => {
                t.put_ipv6(flow, ether_type::ROCE_V1, NEXT_HEADER_IBA);
                t.kind = Kind::Grh;
            }
            (RoceVersion::V2, IpAddr::V4(src), IpAddr::V4(dst)) => {
                t.put_ipv4(flow, src, dst);
                t.put_udp(flow);
            }
            (RoceVersion::V2, ..) => {
                t.put_ipv6(flow, ether_type::IPV6, PROTOCOL_UDP);
                t.put_udp(flow);
            }
        }
        t
    }

    /// True for RoCE v2 over IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.kind == Kind::Ipv6
    }

    /// Returns the length of the frame without FCS: headers, payload, pad and ICRC.
    pub fn frame_len(&self, opcode: Opcode, payload_len: usize) -> usize {
        let ext = opcode.info().map_or(0, |info| info.headers.len());
        self.prefix_len + Bth::LEN + ext + payload_len.next_multiple_of(4) + ICRC_LEN
    }

    /// Writes all headers of a packet and returns their length, which is the offset of the payload.
    ///
    /// The pad count follows from `payload_len`; `bth.pad` is ignored. Behind the headers, the caller writes
    /// the payload, and [`seal`](Self::seal) up to 3 bytes of pad and the ICRC.
    ///
    /// # Panics
    /// If the packet exceeds 65,535 bytes. In debug builds also if the opcode table does not list `ext` for
    /// the opcode.
    // Inlined into the one call on the data path. The other callers are tests and congestion notifications.
    #[inline(always)]
    pub fn write_headers(
        &self,
        out: &mut [u8; MAX_HEADERS],
        bth: &Bth,
        ext: &Ext,
        payload_len: usize,
    ) -> usize {
        let is_cnp = bth.opcode == Opcode::CNP;
        debug_assert!(
            bth.opcode.info().is_none_or(|i| i.headers == ext.headers() || is_cnp && payload_len == 0),
            "{} cannot carry {ext:?} and {payload_len} bytes",
            bth.opcode
        );
        //= IBTA 9.2: pad-makes-whole-words
        let pad = payload_len.wrapping_neg() & 3;
        // Copies the whole prefix, because a copy of constant length compiles to a few moves.
        out[..MAX_PREFIX].copy_from_slice(&self.prefix);
        let mut cursor = Cursor { out, at: self.prefix_len };
        cursor.put(&Bth { pad: pad as u8, ..*bth }.to_bytes());
        ext.write(&mut cursor);
        if is_cnp {
            cursor.put(&[0; 16]);
        }
        let headers = cursor.at;
        self.write_lengths(out, headers + payload_len + pad + ICRC_LEN);
        headers
    }

    /// Writes the pad and the ICRC of a finished frame of exactly [`frame_len`](Self::frame_len) bytes.
    pub fn seal(&self, frame: &mut FrameMut<'_>) {
        seal_at(frame, self.l3_offset, self.prefix_len);
    }

    /// Replaces the UDP source port in headers written from this template. Datagram QPs share a template but
    /// not a port.
    pub fn set_source_port(&self, headers: &mut [u8; MAX_HEADERS], port: u16) {
        if self.kind != Kind::Grh {
            let at = self.prefix_len - 8;
            headers[at..at + 2].copy_from_slice(&port.to_be_bytes());
        }
    }

    /// Sets ECT(0) (RFC 3168 5) in headers written from this template without it. The ICRC does not cover
    /// ECN.
    pub fn set_ecn_capable(&self, headers: &mut [u8; MAX_HEADERS]) {
        let l3 = &mut headers[self.l3_offset..];
        match self.kind {
            Kind::Ipv4 { .. } => {
                l3[1] |= 2;
                let sum = u64::from(!u16::from_be_bytes([l3[10], l3[11]])) + 2;
                l3[10..12].copy_from_slice(&net::ipv4_checksum(sum).to_be_bytes());
            }
            Kind::Ipv6 => l3[1] |= 2 << 4,
            // RoCE v1 has no ECN.
            Kind::Grh => {}
        }
    }

    /// Sets the IPv4 identification in headers written from this template, which has 0. No effect on others.
    pub fn set_identification(&self, headers: &mut [u8; MAX_HEADERS], identification: u16) {
        let l3 = &mut headers[self.l3_offset..];
        if matches!(self.kind, Kind::Ipv4 { .. }) {
            l3[4..6].copy_from_slice(&identification.to_be_bytes());
            let sum = u64::from(!u16::from_be_bytes([l3[10], l3[11]])) + u64::from(identification);
            l3[10..12].copy_from_slice(&net::ipv4_checksum(sum).to_be_bytes());
        }
    }

    /// Replaces the ICRC of a sealed FLUSH by the one that rdma_rxe computes ([`icrc::of_rxe_flush`]). Other
    /// packets are left alone.
    pub fn seal_as_rxe(&self, frame: &mut FrameMut<'_>) {
        let mut opcode = [0];
        frame.as_frame().copy_to(self.prefix_len, &mut opcode);
        let is_flush = Opcode(opcode[0]).info().is_some_and(|info| info.operation == Operation::Flush);
        let icrc_offset = frame.len().saturating_sub(ICRC_LEN);
        if is_flush {
            let mut right = [0; ICRC_LEN];
            frame.as_frame().copy_to(icrc_offset, &mut right);
            let right = u32::from_le_bytes(right);
            let crc = icrc::of_rxe_flush(&frame.as_frame(), right, self.prefix_len, icrc_offset);
            frame.write(icrc_offset, &crc.to_le_bytes());
        }
    }

    /// Writes the IP and UDP lengths, and the IPv4 checksum, of a frame of `frame_len` bytes.
    #[inline(always)]
    fn write_lengths(&self, out: &mut [u8; MAX_HEADERS], frame_len: usize) {
        let l3_len = frame_len - self.l3_offset;
        let l3 = &mut out[self.l3_offset..];
        let l4_len = match self.kind {
            Kind::Ipv4 { header_sum } => {
                let total = length(l3_len);
                l3[2..4].copy_from_slice(&total.to_be_bytes());
                let checksum = net::ipv4_checksum(header_sum + u64::from(total));
                l3[10..12].copy_from_slice(&checksum.to_be_bytes());
                length(l3_len - 20)
            }
            Kind::Ipv6 | Kind::Grh => {
                let payload = length(l3_len - 40);
                l3[4..6].copy_from_slice(&payload.to_be_bytes());
                payload
            }
        };
        if self.kind != Kind::Grh {
            let udp_len = self.prefix_len - 4;
            out[udp_len..udp_len + 2].copy_from_slice(&l4_len.to_be_bytes());
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.prefix[self.prefix_len..self.prefix_len + bytes.len()].copy_from_slice(bytes);
        self.prefix_len += bytes.len();
    }

    fn put_ipv4(&mut self, flow: &FlowSpec, src: Ipv4Addr, dst: Ipv4Addr) {
        self.put(&ether_type::IPV4.to_be_bytes());
        self.l3_offset = self.prefix_len;
        let header = RawIpv4 {
            version_ihl: 0x45,
            tos: flow.traffic_class,
            total_len: 0.into(),
            id: 0.into(),
            //= IBTA A17.4.5.1: roce-v2-is-never-fragmented
            flags_fragment: 0x4000.into(), // DF
            ttl: flow.hop_limit,
            protocol: PROTOCOL_UDP,
            checksum: 0.into(),
            src: src.octets(),
            dst: dst.octets(),
        };
        self.put(header.as_bytes());
        self.kind = Kind::Ipv4 { header_sum: net::sum(header.as_bytes()) };
    }

    fn put_ipv6(&mut self, flow: &FlowSpec, ether_type: u16, next_header: u8) {
        self.put(&ether_type.to_be_bytes());
        self.l3_offset = self.prefix_len;
        let word = 6 << 28 | u32::from(flow.traffic_class) << 20 | flow.flow_label & 0x000f_ffff;
        let header = RawIpv6 {
            version_class_flow: word.into(),
            payload_len: 0.into(),
            next_header,
            hop_limit: flow.hop_limit,
            src: flow.src.0,
            dst: flow.dst.0,
        };
        self.put(header.as_bytes());
    }

    fn put_udp(&mut self, flow: &FlowSpec) {
        //= IBTA A17.4.3: roce-v2-udp-checksum-may-be-zero
        let header = RawUdp {
            source_port: flow.source_port.into(),
            dest_port: ROCE_V2_PORT.into(),
            len: 0.into(),
            checksum: 0.into(),
        };
        self.put(header.as_bytes());
    }
}

fn length(n: usize) -> u16 {
    u16::try_from(n).unwrap_or_else(|_| panic!("packet of {n} bytes, IP carries at most 65535"))
}

/// Returns the UDP source port of a datagram QP, in 0xc000..=0xffff. The port depends on the sender alone
/// (`rxe_qp.c`: `hash_32(qpn, 14)` of the kernel, a multiplication by the golden ratio).
pub fn datagram_port(qpn: Qpn) -> u16 {
    0xc000 + (qpn.value().wrapping_mul(0x61c8_8647) >> (32 - 14)) as u16
}

/// Seals a finished frame as [`Template::seal`] does, with offsets read from the frame's own headers.
/// [`Template::write_headers`] must have written them.
pub fn seal(frame: &mut FrameMut<'_>) {
    let mut chain = [0; MAX_PREFIX];
    frame.as_frame().copy_to(0, &mut chain);
    let ether_type = |at: usize| u16::from_be_bytes([chain[at], chain[at + 1]]);
    let l3_offset = if ether_type(12) == ether_type::VLAN { 18 } else { 14 };
    let prefix_len = l3_offset
        + match ether_type(l3_offset - 2) {
            ether_type::IPV4 => 20 + 8,
            ether_type::IPV6 => 40 + 8,
            _ => 40,
        };
    seal_at(frame, l3_offset, prefix_len);
}

/// Writes the pad and the ICRC of a frame. `l3_offset` is the offset of the L3 header, `prefix_len` that of
/// the BTH.
#[inline(always)]
fn seal_at(frame: &mut FrameMut<'_>, l3_offset: usize, prefix_len: usize) {
    let icrc_offset = frame.len().saturating_sub(ICRC_LEN);
    let [flags] = frame.as_frame().array(prefix_len + 1).unwrap_or_default();
    let pad = usize::from(flags >> 4 & 3);
    if pad > 0 {
        frame.write(icrc_offset.saturating_sub(pad), &[0; 3][..pad]);
    }
    let crc = icrc::compute(&frame.as_frame(), l3_offset, icrc_offset);
    frame.write_array(icrc_offset, crc.to_le_bytes());
}

/// Returns the UDP source port of a connected QP pair, in 0xc000..=0xffff. The two ends compute the same
/// port, so that both directions may take the same path (`rdma_flow_label_to_udp_sport` of
/// `rdma_calc_flow_label`, `ib_verbs.h`).
pub fn entropy_port(lqpn: Qpn, rqpn: Qpn) -> u16 {
    //= IBTA A17.4.3: roce-v2-source-port-tells-flows-apart
    let mut flow = u64::from(lqpn.value()) * u64::from(rqpn.value());
    flow ^= flow >> 20;
    flow ^= flow >> 40;
    flow_port((flow & 0x000f_ffff) as u32)
}

/// Returns the UDP source port of a 20-bit flow label (`rdma_flow_label_to_udp_sport`, `ib_verbs.h`).
pub fn flow_port(label: u32) -> u16 {
    let label = label & 0x000f_ffff;
    ((label & 0x3fff) ^ (label >> 14)) as u16 | 0xc000
}
