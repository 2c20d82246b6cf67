//! Parses tunnels (over UDP, GRE and MPLS) up to the protocol inside.

use roxie::wire::ROCE_V2_PORT;
use roxie::wire::net::{SHORTEST_FRAME, ether_type};

use super::cursor::{Cursor, Next, Stop};

/// EtherType of an Ethernet frame in a tunnel (transparent Ethernet bridging).
pub(super) const BRIDGED: u16 = 0x6558;
/// EtherTypes of ERSPAN in GRE: types I and II, and type III (draft-foschiano-erspan).
const ERSPAN: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;

/// UDP ports of tunnels (IANA), and Linux's older one for VXLAN.
mod port {
    pub(super) const L2TP: u16 = 1701;
    pub(super) const GTP_U: u16 = 2152;
    pub(super) const ESP: u16 = 4500;
    pub(super) const GRE: u16 = 4754;
    pub(super) const VXLAN: u16 = 4789;
    pub(super) const VXLAN_GPE: u16 = 4790;
    pub(super) const GENEVE: u16 = 6081;
    pub(super) const MPLS: u16 = 6635;
    pub(super) const VXLAN_LINUX: u16 = 8472;
}

/// True for a UDP port of a tunnel.
pub(super) fn is_tunnel_port(number: u16) -> bool {
    use port::{ESP, GENEVE, GRE, GTP_U, L2TP, MPLS, VXLAN, VXLAN_GPE, VXLAN_LINUX};
    matches!(number, L2TP | GTP_U | ESP | GRE | VXLAN | VXLAN_GPE | GENEVE | MPLS | VXLAN_LINUX)
}

/// Parses a UDP header. `ether_type` is that of the IP header in front of it.
pub(super) fn udp(cursor: &mut Cursor<'_>, ether_type: u16) -> Result<Next, Stop> {
    let [_, _, p0, p1, l0, l1] = cursor.peek(0)?;
    let (port, len) = (u16::from_be_bytes([p0, p1]), usize::from(u16::from_be_bytes([l0, l1])));
    if port == ROCE_V2_PORT {
        return Ok(Next::Roce(ether_type));
    }
    if !is_tunnel_port(port) {
        return Err(Stop::Other);
    }
    if len >= 8 {
        cursor.limit(len);
    }
    cursor.skip(8)?;
    match port {
        port::VXLAN | port::VXLAN_LINUX => vxlan(cursor),
        port::VXLAN_GPE => vxlan_gpe(cursor),
        port::GENEVE => geneve(cursor),
        port::GRE => Ok(Next::Gre),
        port::MPLS => Ok(Next::Mpls),
        port::GTP_U => Err(Stop::Unread("GTP-U")),
        port::L2TP => Err(Stop::Unread("L2TP")),
        // Four zero bytes are a key exchange (RFC 3948), a single byte is a NAT keepalive.
        _ if cursor.peek::<4>(0)? == [0; 4] => Err(Stop::Other),
        _ => Err(Stop::Unread("ESP (encrypted)")),
    }
}

/// Parses VXLAN (RFC 7348).
fn vxlan(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let [_, _, _, _, vni @ .., _] = cursor.peek::<8>(0)?;
    cursor.enter("VXLAN", Some(("vni", number(vni))));
    cursor.skip(8)?;
    Ok(Next::Ethernet)
}

/// Parses VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe): VXLAN, with the content's protocol if the P bit is set.
fn vxlan_gpe(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let [flags, _, _, protocol, vni @ .., _] = cursor.peek::<8>(0)?;
    cursor.enter("VXLAN-GPE", Some(("vni", number(vni))));
    cursor.skip(8)?;
    match protocol {
        _ if flags & 4 == 0 => Ok(Next::Ethernet),
        1 => Ok(Next::Network(ether_type::IPV4)),
        2 => Ok(Next::Network(ether_type::IPV6)),
        3 => Ok(Next::Ethernet),
        5 => Ok(Next::Mpls),
        _ => Err(Stop::Unread("VXLAN-GPE of another protocol")),
    }
}

/// Parses GENEVE (RFC 8926).
fn geneve(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let [version_len, _, p0, p1, vni @ .., _] = cursor.peek::<8>(0)?;
    if version_len >> 6 != 0 {
        return Err(Stop::Unread("GENEVE of another version"));
    }
    cursor.enter("GENEVE", Some(("vni", number(vni))));
    cursor.skip(8 + usize::from(version_len & 0x3f) * 4)?;
    Ok(Next::Network(u16::from_be_bytes([p0, p1])))
}

fn number([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// Parses GRE (RFC 2784), with key and sequence number (RFC 2890). NVGRE (RFC 7637) is GRE with a key.
pub(super) fn gre(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let (flags, protocol) = (cursor.peek_u16(0)?, cursor.peek_u16(2)?);
    if flags & 7 != 0 {
        return Err(Stop::Unread("GRE of another version (PPTP)"));
    }
    if flags & ROUTING != 0 {
        return Err(Stop::Unread("GRE with source routes"));
    }
    let words = |flag: u16| if flags & flag != 0 { 4 } else { 0 };
    let key_at = 4 + words(CHECKSUM);
    let key = match flags & KEY {
        0 => None,
        _ => Some(("key", u32::from_be_bytes(cursor.peek(key_at)?))),
    };
    cursor.enter("GRE", key);
    cursor.skip(key_at + words(KEY) + words(SEQUENCE))?;
    match protocol {
        // ERSPAN type I has no header of its own, and no GRE sequence number.
        ERSPAN if flags & SEQUENCE == 0 => {
            cursor.enter("ERSPAN", None);
            Ok(Next::Ethernet)
        }
        ERSPAN => erspan_ii(cursor),
        ERSPAN_III => erspan_iii(cursor),
        other => Ok(Next::Network(other)),
    }
}

fn erspan_ii(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    erspan_session(cursor)?;
    cursor.skip(8)?;
    Ok(Next::Ethernet)
}

fn erspan_iii(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let word = cursor.peek_u16(10)?;
    erspan_session(cursor)?;
    // O bit: an 8-byte platform-specific header follows.
    cursor.skip(if word & 1 == 0 { 12 } else { 20 })?;
    match word >> 10 & 0x1f {
        0 => Ok(Next::Ethernet),
        2 => Ok(Next::Ip),
        _ => Err(Stop::Unread("ERSPAN of other frames")),
    }
}

/// Records the session. If the mirror truncated the frame (T bit), the lengths inside reach beyond the tunnel.
fn erspan_session(cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    let word = cursor.peek_u16(2)?;
    cursor.enter("ERSPAN", Some(("session", u32::from(word & 0x3ff))));
    if word & 0x400 != 0 {
        cursor.end = usize::MAX;
    }
    Ok(())
}

/// Parses one MPLS label (RFC 3032). After the last label stands IP, or Ethernet with or without a control word (RFC
/// 4448).
pub(super) fn mpls(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let entry = u32::from_be_bytes(cursor.peek(0)?);
    cursor.enter("MPLS", Some(("label", entry >> 12)));
    cursor.skip(4)?;
    if entry & 0x100 == 0 {
        return Ok(Next::Mpls);
    }
    if is_whole_ip(cursor)? {
        return Ok(Next::Ip);
    }
    match cursor.peek::<1>(0)?[0] >> 4 {
        0 if is_ethernet(cursor, 4)? => {
            cursor.skip(4)?;
            Ok(Next::Ethernet)
        }
        _ if is_ethernet(cursor, 0)? => Ok(Next::Ethernet),
        4 | 6 => Ok(Next::Ip),
        _ => Err(Stop::Unread("MPLS of another payload")),
    }
}

/// True if an IP packet ends at the content's end, apart from Ethernet padding. A MAC address may begin with the same
/// bits as IP.
fn is_whole_ip(cursor: &Cursor<'_>) -> Result<bool, Stop> {
    let len = match cursor.peek::<6>(0)? {
        [0x45..=0x4f, _, l0, l1, ..] => usize::from(u16::from_be_bytes([l0, l1])),
        [0x60..=0x6f, _, _, _, l0, l1] => 40 + usize::from(u16::from_be_bytes([l0, l1])),
        _ => return Ok(false),
    };
    Ok(cursor.end.checked_sub(cursor.at + len).is_some_and(|padding| padding < SHORTEST_FRAME))
}

fn is_ethernet(cursor: &Cursor<'_>, offset: usize) -> Result<bool, Stop> {
    use ether_type::{IPV4, IPV6, ROCE_V1, SERVICE_VLAN, VLAN};
    let number = cursor.peek_u16(offset + 12)?;
    Ok(matches!(number, IPV4 | IPV6 | ROCE_V1 | VLAN | SERVICE_VLAN))
}
