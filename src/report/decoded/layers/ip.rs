//! Parses IPv4 and IPv6 with extension headers and fragments, up to the protocol inside.

use std::net::{Ipv4Addr, Ipv6Addr};

use roxie::wire::ROCE_V2_PORT;
use roxie::wire::net::{PROTOCOL_UDP, ether_type};

use super::cursor::{Cursor, Layer, Next, Stop};
use super::tunnel::is_tunnel_port;

/// IP protocol numbers (IANA).
pub(super) mod protocol {
    pub(in super::super) const HOP_BY_HOP: u8 = 0;
    pub(in super::super) const IPV4: u8 = 4;
    pub(in super::super) const IPV6: u8 = 41;
    pub(in super::super) const ROUTING: u8 = 43;
    pub(in super::super) const FRAGMENT: u8 = 44;
    pub(in super::super) const GRE: u8 = 47;
    pub(in super::super) const ESP: u8 = 50;
    pub(in super::super) const AH: u8 = 51;
    pub(in super::super) const DESTINATION: u8 = 60;
    pub(in super::super) const ETHERIP: u8 = 97;
    pub(in super::super) const L2TP: u8 = 115;
    pub(in super::super) const MOBILITY: u8 = 135;
    pub(in super::super) const MPLS: u8 = 137;
}

/// Parses an IPv4 header.
pub(super) fn v4(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let header: [u8; 20] = cursor.peek(0)?;
    let [version_ihl, _, t0, t1, _, _, f0, f1, _, protocol, ..] = header;
    let (header_len, total_len) = (usize::from(version_ihl & 15) * 4, u16::from_be_bytes([t0, t1]).into());
    if version_ihl >> 4 != 4 || header_len < 20 || total_len < header_len {
        return Err(Stop::Other);
    }
    cursor.l3 = (cursor.at, cursor.end);
    cursor.limit(total_len);
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = header;
    cursor.ends = Some((Ipv4Addr::new(s0, s1, s2, s3).into(), Ipv4Addr::new(d0, d1, d2, d3).into()));
    cursor.skip(header_len)?;
    let fragment = u16::from_be_bytes([f0, f1]);
    let (is_first, more) = (fragment & 0x1fff == 0, fragment & 0x2000 != 0);
    if !is_first || more {
        return Err(of_fragment(cursor, protocol, is_first, "IPv4 fragments"));
    }
    Ok(Next::Transport(protocol))
}

/// Parses an IPv6 header and its extension headers.
///
/// Extension headers in front of a RoCE packet are removed. If a router inserted them, the result is the packet as
/// sent, which the ICRC covers.
pub(super) fn v6(cursor: &mut Cursor<'_>) -> Result<Next, Stop> {
    let header: [u8; 40] = cursor.peek(0)?;
    let [b0, _, _, _, p0, p1, mut next, _, addresses @ ..] = header;
    if b0 >> 4 != 6 {
        return Err(Stop::Other);
    }
    let l3 = cursor.at;
    cursor.l3 = (l3, cursor.end);
    cursor.limit(40 + usize::from(u16::from_be_bytes([p0, p1])));
    let (halves, _) = addresses.as_chunks::<16>();
    cursor.ends = Some((Ipv6Addr::from(halves[0]).into(), Ipv6Addr::from(halves[1]).into()));
    cursor.skip(40)?;
    while let Some(kind) = extension(next) {
        let [following, len, o0, o1] = cursor.peek(0)?;
        if next == protocol::FRAGMENT {
            let word = u16::from_be_bytes([o0, o1]);
            cursor.skip(8)?;
            if word & 0xfff9 != 0 {
                return Err(of_fragment(cursor, following, word & 0xfff8 == 0, "IPv6 fragments"));
            }
        } else {
            cursor.skip((usize::from(len) + 1) * 8)?;
        }
        cursor.layers.push(Layer { kind, id: None, ends: None });
        next = following;
    }
    if next == PROTOCOL_UDP && cursor.at > l3 + 40 && cursor.peek_u16(2)? == ROCE_V2_PORT {
        take_out(cursor, l3 + 40);
        return Ok(Next::Roce(ether_type::IPV6));
    }
    Ok(Next::Transport(next))
}

/// Returns the name of an extension header with parsed content; `None` for other numbers.
fn extension(number: u8) -> Option<&'static str> {
    Some(match number {
        protocol::HOP_BY_HOP => "IPv6 hop-by-hop options",
        protocol::ROUTING => "IPv6 routing header",
        protocol::FRAGMENT => "IPv6 fragment header",
        protocol::DESTINATION => "IPv6 destination options",
        protocol::MOBILITY => "IPv6 mobility header",
        _ => return None,
    })
}

/// Removes the bytes from `start` to the cursor from the IPv6 packet. Its fixed header ends at `start`.
fn take_out(cursor: &mut Cursor<'_>, start: usize) {
    let len = cursor.at - start;
    let l3 = start - 40;
    let data = cursor.data.to_mut();
    data.drain(start..start + len);
    let payload_len = usize::from(u16::from_be_bytes([data[l3 + 4], data[l3 + 5]])).saturating_sub(len);
    data[l3 + 4..l3 + 6].copy_from_slice(&(payload_len as u16).to_be_bytes());
    data[l3 + 6] = PROTOCOL_UDP;
    cursor.l3.1 = cursor.l3.1.saturating_sub(len);
    cursor.end = cursor.end.saturating_sub(len);
    cursor.at = start;
    cursor.removed += len;
}

/// Classifies a fragment: its content may be RoCE, or is not. Fragments are not reassembled.
fn of_fragment(cursor: &Cursor<'_>, protocol: u8, is_first: bool, kind: &'static str) -> Stop {
    use protocol::{DESTINATION, ESP, ETHERIP, GRE, IPV4, IPV6, MPLS, ROUTING};
    let may_carry = match protocol {
        PROTOCOL_UDP if is_first => match cursor.peek_u16(2) {
            Ok(port) => port == ROCE_V2_PORT || is_tunnel_port(port),
            Err(stop) => return stop,
        },
        PROTOCOL_UDP | GRE | IPV4 | IPV6 | MPLS | ETHERIP | ESP | ROUTING | DESTINATION => true,
        _ => false,
    };
    if may_carry { Stop::Unread(kind) } else { Stop::Other }
}
