//! Finds the RoCE packet in a frame behind tags, tunnels, labels and extension headers.
//!
//! Only captures are parsed this way. The NIC's parser, `wire::parse`, accepts plain frames only.

mod cursor;
mod ip;
mod tunnel;

use std::borrow::Cow;

use roxie::capture::{Record, link_type};
use roxie::frame::Frame;
use roxie::wire::net::{PROTOCOL_UDP, ether_type};
use roxie::wire::{Drop, Envelope};

pub use cursor::Layer;
use cursor::{CUT, Cursor, Next, Stop};
use ip::protocol;

/// A RoCE packet, and the layers around it.
pub struct Inside<'a> {
    /// The frame without the extension headers in front of the packet.
    pub bytes: Cow<'a, [u8]>,
    /// Headers up to the BTH, and where they end.
    pub envelope: Envelope,
    /// Layers around the packet, outermost first; empty for a plain frame.
    pub layers: Vec<Layer>,
    /// Number of bytes in front of the BTH that are in the frame but not in `bytes`.
    pub removed: usize,
}

/// The content of a frame.
pub enum Found<'a> {
    /// A RoCE packet.
    Packet(Box<Inside<'a>>),
    /// The frame claims to be RoCE but is malformed.
    Malformed(Drop),
    /// The frame may carry RoCE behind a header that is not decoded; the header's name.
    Unread(&'static str),
    /// The frame carries another protocol.
    Other,
}

/// Finds the RoCE packet in a frame; `None` if the link type is not supported.
pub fn find<'a>(record: &Record<'a>) -> Option<Found<'a>> {
    let mut cursor = Cursor::new(record.data, 0, record.wire_len);
    let first = match record.link_type {
        link_type::ETHERNET => Ok(Next::Ethernet),
        link_type::LINUX_SLL => cooked(&mut cursor, 14, 16),
        link_type::LINUX_SLL2 => cooked(&mut cursor, 0, 20),
        link_type::RAW | link_type::RAW_BSD | link_type::IPV4 | link_type::IPV6 => Ok(Next::Ip),
        link_type::NULL | link_type::LOOP => cursor.skip(4).map(|()| Next::Ip),
        link_type::ERF => erf(&mut cursor),
        _ => return None,
    };
    let stop = match first.and_then(|first| walk(&mut cursor, first)) {
        Ok(ether_type) => match packet(&cursor, ether_type) {
            Ok(envelope) => {
                let Cursor { data: bytes, layers, removed, .. } = cursor;
                return Some(Found::Packet(Box::new(Inside { bytes, envelope, layers, removed })));
            }
            Err(stop) => stop,
        },
        Err(stop) => stop,
    };
    Some(match stop {
        Stop::Other => Found::Other,
        Stop::Unread(kind) => Found::Unread(kind),
        Stop::Malformed(reason) => Found::Malformed(reason),
    })
}

/// Types of ERF records with Ethernet frames: plain, with colour, of a hash, of a filter.
const ERF_ETHERNET: [u8; 4] = [2, 11, 16, 20];
/// The type with InfiniBand packets from the LRH on.
const ERF_INFINIBAND: u8 = 21;

/// Parses the header of an ERF record (Endace, EDM11-01): time, type, flags, lengths; extension headers as long as bit
/// 7 is set.
fn erf(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let mut kind = cursor.peek::<1>(8)?[0];
    cursor.skip(16)?;
    let record = kind & 0x7f;
    while kind & 0x80 != 0 {
        kind = cursor.peek::<1>(0)?[0];
        cursor.skip(8)?;
    }
    match record {
        // Two bytes in front align what is in the frame.
        _ if ERF_ETHERNET.contains(&record) => cursor.skip(2).map(|()| Next::Ethernet),
        ERF_INFINIBAND => Err(Stop::Unread("InfiniBand in ERF")),
        _ => Err(Stop::Other),
    }
}

fn cooked(cursor: &mut Cursor<'_>, type_at: usize, len: usize) -> Result<Next, Stop> {
    let ether_type = cursor.peek_u16(type_at)?;
    cursor.skip(len)?;
    Ok(Next::Network(ether_type))
}

/// Parses header by header. Returns the EtherType of the L3 header of a RoCE packet.
fn walk(cursor: &mut Cursor<'_>, mut next: Next) -> Result<u16, Stop> {
    loop {
        next = match next {
            Next::Ethernet => ethernet(cursor)?,
            Next::Network(number) => network(cursor, number)?,
            Next::Ip => Next::Network(match cursor.peek::<1>(0)?[0] >> 4 {
                4 => ether_type::IPV4,
                6 => ether_type::IPV6,
                _ => return Err(Stop::Other),
            }),
            Next::Transport(number) => transport(cursor, number)?,
            Next::Mpls => tunnel::mpls(cursor)?,
            Next::Gre => tunnel::gre(cursor)?,
            Next::Roce(ether_type) => return Ok(ether_type),
        };
    }
}

fn ethernet(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    cursor.dst_mac = cursor.peek(0)?;
    cursor.src_mac = cursor.peek(6)?;
    cursor.tags.clear();
    let ether_type = cursor.peek_u16(12)?;
    cursor.skip(14)?;
    Ok(Next::Network(ether_type))
}

fn network(cursor: &mut Cursor<'_>, number: u16) -> Result<Next, Stop> {
    match number {
        ether_type::IPV4 => ip::v4(cursor),
        ether_type::IPV6 => ip::v6(cursor),
        ether_type::ROCE_V1 => {
            cursor.l3 = (cursor.at, cursor.end);
            Ok(Next::Roce(number))
        }
        // 0x9100 to 0x9300: older EtherTypes of service tags.
        ether_type::VLAN | ether_type::SERVICE_VLAN | 0x9100 | 0x9200 | 0x9300 => {
            let (tci, ether_type) = (cursor.peek_u16(0)?, cursor.peek_u16(2)?);
            cursor.tag(tci);
            cursor.skip(4)?;
            Ok(Next::Network(ether_type))
        }
        tunnel::BRIDGED => Ok(Next::Ethernet),
        0x8847 | 0x8848 => Ok(Next::Mpls),
        0x8864 => pppoe(cursor),
        0x88e5 => Err(Stop::Unread("MACsec (encrypted)")),
        0x88e7 => {
            // 802.1ah: a service instance tag, then a whole Ethernet frame.
            let id = u32::from_be_bytes(cursor.peek(0)?) & 0x00ff_ffff;
            cursor.enter("PBB", Some(("isid", id)));
            cursor.skip(4)?;
            Ok(Next::Ethernet)
        }
        0x893f => behind_tag(cursor, "E-TAG", 6),
        0x8926 => behind_tag(cursor, "VN-TAG", 4),
        0x894f => Err(Stop::Unread("NSH")),
        0x22f3 => Err(Stop::Unread("TRILL")),
        0x8903 => Err(Stop::Unread("FabricPath")),
        // A length: 802.2 LLC, with an EtherType if it is SNAP.
        0..=1500 if cursor.peek(0) == Ok([0xaa, 0xaa, 3, 0, 0, 0]) => {
            let ether_type = cursor.peek_u16(6)?;
            cursor.skip(8)?;
            Ok(Next::Network(ether_type))
        }
        _ => Err(Stop::Other),
    }
}

fn behind_tag(cursor: &mut Cursor<'_>, kind: &'static str, len: usize) -> Result<Next, Stop> {
    let ether_type = cursor.peek_u16(len)?;
    cursor.enter(kind, None);
    cursor.skip(len + 2)?;
    Ok(Next::Network(ether_type))
}

/// Parses PPPoE (RFC 2516).
fn pppoe(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let (session, protocol) = (cursor.peek_u16(2)?, cursor.peek_u16(6)?);
    cursor.enter("PPPoE", Some(("session", u32::from(session))));
    cursor.skip(8)?;
    match protocol {
        0x0021 => Ok(Next::Network(ether_type::IPV4)),
        0x0057 => Ok(Next::Network(ether_type::IPV6)),
        _ => Err(Stop::Other),
    }
}

fn transport(cursor: &mut Cursor<'_>, number: u8) -> Result<Next, Stop> {
    match number {
        PROTOCOL_UDP => {
            let is_v4 = cursor.data.get(cursor.l3.0).is_some_and(|byte| byte >> 4 == 4);
            tunnel::udp(cursor, if is_v4 { ether_type::IPV4 } else { ether_type::IPV6 })
        }
        protocol::GRE => Ok(Next::Gre),
        protocol::MPLS => Ok(Next::Mpls),
        protocol::IPV4 => {
            cursor.enter("IP-in-IP", None);
            Ok(Next::Network(ether_type::IPV4))
        }
        protocol::IPV6 => {
            cursor.enter("IPv6-in-IP", None);
            Ok(Next::Network(ether_type::IPV6))
        }
        protocol::ETHERIP => {
            cursor.enter("EtherIP", None);
            cursor.skip(2)?;
            Ok(Next::Ethernet)
        }
        protocol::ESP => Err(Stop::Unread("ESP (encrypted)")),
        protocol::AH => Err(Stop::Unread("IPsec AH")),
        protocol::L2TP => Err(Stop::Unread("L2TP")),
        _ => Err(Stop::Other),
    }
}

/// Parses the packet behind the L3 header that the cursor has passed.
fn packet(cursor: &Cursor<'_>, ether_type: u16) -> Result<Envelope, Stop> {
    let (l3, end) = cursor.l3;
    match Envelope::from_network(&Frame::whole(&cursor.data), ether_type, l3, end) {
        Ok(envelope) => {
            let (vlan, outer_vlan) = match cursor.tags[..] {
                [outer, inner] => (Some(inner), Some(outer)),
                [one] => (Some(one), None),
                _ => (None, None),
            };
            Ok(Envelope { dst_mac: cursor.dst_mac, src_mac: cursor.src_mac, outer_vlan, vlan, ..envelope })
        }
        Err(Drop::Truncated { what, .. }) if !matches!(what, "BTH" | "BTH and ICRC" | "IP packet") => {
            Err(if cursor.data.len() < end { Stop::Unread(CUT) } else { Stop::Other })
        }
        Err(Drop::NotRoce | Drop::MacControl | Drop::BadIpHeader { .. }) => Err(Stop::Other),
        Err(reason) => Err(Stop::Malformed(reason)),
    }
}
