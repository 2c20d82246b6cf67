//! The Ethernet, IP and UDP headers in front of a datagram above this port.
//!
//! Headers of received datagrams are made up from what the socket reports. From the headers of frames to be sent, the
//! socket gets addresses, traffic class and source port. RFC 791, RFC 8200, RFC 768.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::group::Member;
use roxie_base::frame::Frame;

/// Ethernet + IPv4 + UDP, in bytes.
pub(crate) const V4_HEADERS: usize = 14 + 20 + 8;
/// Ethernet + IPv6 + UDP, in bytes.
pub(crate) const V6_HEADERS: usize = 14 + 40 + 8;
/// The longer of the two.
pub(crate) const MAX_HEADERS: usize = V6_HEADERS;
/// Offset of the EtherType, and the EtherTypes of 802.1Q tags and RoCE v1.
const STATIONS: usize = 12;
const VLAN: [u8; 2] = [0x81, 0x00];
const ROCE_V1: [u8; 2] = [0x89, 0x15];

/// Offset of the IPv4 identification in a frame.
const V4_ID: usize = 14 + 4;
const V4_CHECKSUM: usize = 14 + 10;
/// Default hop limit of Linux, shown in received headers: the socket does not report the real one.
pub(crate) const HOP_LIMIT: u8 = 64;
const UDP: u8 = 17;

/// Addresses and traffic class of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
}

/// Headers of a received datagram.
#[derive(Clone, Copy)]
pub(crate) struct Headers {
    bytes: [u8; MAX_HEADERS],
    len: u8,
}

impl Headers {
    pub(crate) const EMPTY: Headers = Headers { bytes: [0; MAX_HEADERS], len: 0 };

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Makes the headers of a datagram with `payload` bytes. IPv4: identification 0 and DF, which `ip_id_hidden`
    /// declares made up. The UDP checksum is 0: the kernel has verified it and does not show it.
    pub(crate) fn new(macs: ([u8; 6], [u8; 6]), route: &Route, ports: (u16, u16), payload: usize) -> Headers {
        let mut headers = Headers::EMPTY;
        let b = &mut headers.bytes;
        b[..6].copy_from_slice(&macs.1);
        b[6..12].copy_from_slice(&macs.0);
        let udp_len = payload as u16 + 8;
        let udp = match (route.source, route.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                b[12..14].copy_from_slice(&[0x08, 0x00]);
                b[14..16].copy_from_slice(&[0x45, route.traffic_class]);
                b[16..18].copy_from_slice(&(udp_len + 20).to_be_bytes());
                b[20..24].copy_from_slice(&[0x40, 0, HOP_LIMIT, UDP]);
                b[26..30].copy_from_slice(&source.octets());
                b[30..34].copy_from_slice(&destination.octets());
                fill_checksum(b);
                34
            }
            (source, destination) => {
                b[12..14].copy_from_slice(&[0x86, 0xdd]);
                let class = u32::from(route.traffic_class) << 20;
                b[14..18].copy_from_slice(&(0x6000_0000 | class).to_be_bytes());
                b[18..20].copy_from_slice(&udp_len.to_be_bytes());
                b[20..22].copy_from_slice(&[UDP, HOP_LIMIT]);
                b[22..38].copy_from_slice(&v6(source).octets());
                b[38..54].copy_from_slice(&v6(destination).octets());
                54
            }
        };
        b[udp..udp + 2].copy_from_slice(&ports.0.to_be_bytes());
        b[udp + 2..udp + 4].copy_from_slice(&ports.1.to_be_bytes());
        b[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        headers.len = udp as u8 + 8;
        headers
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

/// The fields of a frame to be sent that a socket needs.
pub(crate) struct Outgoing {
    pub(crate) route: Route,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// Offset of the UDP header; the payload follows 8 bytes later.
    pub(crate) udp: usize,
}

impl Outgoing {
    /// Parses the first bytes of a frame of `frame_len` bytes. `None` if it is not exactly an untagged Ethernet frame
    /// with one unfragmented UDP datagram over IP without options.
    pub(crate) fn parse(b: &[u8; MAX_HEADERS], frame_len: usize) -> Option<Outgoing> {
        let be16 = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let (route, udp) = match (be16(12), b[14] >> 4) {
            (0x0800, 4) => {
                let fragment = be16(20) & 0x3fff;
                let exact = usize::from(be16(16)) + 14 == frame_len;
                if b[14] != 0x45 || b[23] != UDP || fragment != 0 || !exact {
                    return None;
                }
                let source = IpAddr::V4(Ipv4Addr::new(b[26], b[27], b[28], b[29]));
                let destination = IpAddr::V4(Ipv4Addr::new(b[30], b[31], b[32], b[33]));
                (Route { source, destination, traffic_class: b[15] }, 34)
            }
            (0x86dd, 6) => {
                if b[20] != UDP || usize::from(be16(18)) + 54 != frame_len {
                    return None;
                }
                let mut octets = [0; 16];
                octets.copy_from_slice(&b[22..38]);
                let source = IpAddr::V6(octets.into());
                octets.copy_from_slice(&b[38..54]);
                let destination = IpAddr::V6(octets.into());
                let traffic_class = (be16(14) >> 4) as u8;
                (Route { source, destination, traffic_class }, 54)
            }
            _ => return None,
        };
        let fits = usize::from(be16(udp + 4)) + udp == frame_len && frame_len > udp + 8;
        fits.then(|| Outgoing { route, source_port: be16(udp), destination_port: be16(udp + 2), udp })
    }

    /// Writes the source port and, over IPv4, the identification that the datagram will have.
    pub(crate) fn rewrite(&self, b: &mut [u8; MAX_HEADERS], source_port: u16, identification: u16) {
        b[self.udp..self.udp + 2].copy_from_slice(&source_port.to_be_bytes());
        if self.route.source.is_ipv4() {
            set_identification(b, identification);
        }
    }
}

/// True if a frame, tagged or not, is a RoCE packet for another process of the group.
pub(crate) fn is_for_another(frame: &Frame<'_>, member: &Member) -> bool {
    let mut start = [0; MAX_HEADERS];
    frame.copy_to(0, &mut start);
    let mut tag = 0;
    if start[STATIONS..STATIONS + 2] == VLAN {
        tag = 4;
        frame.copy_to(STATIONS + tag, &mut start[STATIONS..]);
    }
    let (destination, at) = if start[STATIONS..STATIONS + 2] == ROCE_V1 {
        let mut octets = [0; 16];
        octets.copy_from_slice(&start[38..54]);
        (IpAddr::from(octets).to_canonical(), 54)
    } else {
        let Some(out) = Outgoing::parse(&start, frame.len() - tag) else { return false };
        (out.route.destination, out.udp + 8)
    };
    let mut datagram = [0; 64];
    let known = frame.copy_to(at + tag, &mut datagram);
    !member.is_ours(&datagram[..known], destination)
}

/// Sets the IPv4 identification and corrects a header checksum that was filled in (RFC 1624).
fn set_identification(b: &mut [u8; MAX_HEADERS], id: u16) {
    let old = u16::from_be_bytes([b[V4_ID], b[V4_ID + 1]]);
    if old == id {
        return;
    }
    b[V4_ID..V4_ID + 2].copy_from_slice(&id.to_be_bytes());
    let sum = u16::from_be_bytes([b[V4_CHECKSUM], b[V4_CHECKSUM + 1]]);
    if sum != 0 {
        let total = u32::from(!sum) + u32::from(!old) + u32::from(id);
        b[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&(!fold(total)).to_be_bytes());
    }
}

/// Sets the lengths for `payload` bytes behind the UDP header at `udp`, and the checksum of an IPv4 header.
pub(crate) fn set_lengths(b: &mut [u8; MAX_HEADERS], udp: usize, payload: usize) {
    let length = payload as u16 + 8;
    b[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
    if b[12..14] == [0x08, 0x00] {
        b[16..18].copy_from_slice(&(length + 20).to_be_bytes());
        fill_checksum(b);
    } else {
        b[18..20].copy_from_slice(&length.to_be_bytes());
    }
}

/// Computes the checksum of an IPv4 header without options.
fn fill_checksum(b: &mut [u8; MAX_HEADERS]) {
    b[V4_CHECKSUM..V4_CHECKSUM + 2].fill(0);
    let sum = checksum(&b[14..34]);
    b[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The internet checksum (RFC 1071) of up to 128 KiB.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// Returns the sum of the 16-bit words of up to 128 KiB, not folded. A last odd byte is the upper half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<2>();
    let words: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    words + odd.first().map_or(0, |byte| u32::from(*byte) << 8)
}

/// Folds a sum into 16 bits, without complementing it.
pub(crate) fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(source: &str, destination: &str) -> Route {
        let ip = |text: &str| text.parse().expect("an address");
        Route { source: ip(source), destination: ip(destination), traffic_class: 0x6a }
    }

    #[test]
    fn made_up_headers_parse_back() {
        for (from, to, len) in [("10.1.2.3", "10.4.5.6", V4_HEADERS), ("fd00::1", "fd00::2", V6_HEADERS)] {
            let route = route(from, to);
            let headers = Headers::new(([1; 6], [2; 6]), &route, (0xc123, 4791), 100);
            assert_eq!(headers.as_slice().len(), len);
            let out = Outgoing::parse(&headers.bytes, len + 100).expect("a datagram");
            assert_eq!((out.route, out.source_port, out.destination_port), (route, 0xc123, 4791));
            assert_eq!(out.udp + 8, len);
            assert!(Outgoing::parse(&headers.bytes, len + 101).is_none(), "trailing bytes are not sent");
        }
    }

    #[test]
    fn checksum_follows_a_changed_identification() {
        let route = route("10.1.2.3", "10.4.5.6");
        let mut headers = Headers::new(([1; 6], [2; 6]), &route, (0xc123, 4791), 100);
        for id in [1, 127, 0xffff, 0] {
            set_identification(&mut headers.bytes, id);
            assert_eq!(checksum(&headers.bytes[14..34]), 0, "id {id}");
        }
    }
}
