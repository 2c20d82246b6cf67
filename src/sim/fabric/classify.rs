//! Classification of a frame by a switch: priority, flow, ECN capability; and ECN marking.

use super::config::PriorityMap;
use roxie_wire::net::ether_type;

/// ECN field of an IP header (RFC 3168 5).
const ECN_MASK: u8 = 3;
/// Congestion experienced.
const CE: u8 = 3;
/// Tags that are skipped: a service tag and a customer tag.
const MOST_TAGS: usize = 2;

/// Offset of a frame's IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ip {
    V4(usize),
    V6(usize),
}

/// Classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classified {
    pub(super) pcp: Option<u8>,
    pub(super) ip: Option<Ip>,
    /// Traffic class: DSCP and ECN.
    pub(super) tos: u8,
}

/// Classifies a frame of at least an Ethernet header.
pub(super) fn classify(frame: &[u8]) -> Classified {
    let word = |at: usize| frame.get(at..at + 2).map(|w| u16::from_be_bytes([w[0], w[1]]));
    let mut sight = Classified { pcp: None, ip: None, tos: 0 };
    let mut at = 12;
    for _ in 0..MOST_TAGS {
        match word(at) {
            Some(ether_type::VLAN | ether_type::SERVICE_VLAN) => {
                let tag = word(at + 2).unwrap_or(0);
                sight.pcp.get_or_insert((tag >> 13) as u8);
                at += 4;
            }
            _ => break,
        }
    }
    let body = at + 2;
    match word(at) {
        Some(ether_type::IPV4) if frame.len() >= body + 20 => {
            (sight.ip, sight.tos) = (Some(Ip::V4(body)), frame[body + 1]);
        }
        Some(ether_type::IPV6) if frame.len() >= body + 40 => {
            (sight.ip, sight.tos) = (Some(Ip::V6(body)), frame[body] << 4 | frame[body + 1] >> 4);
        }
        _ => {}
    }
    sight
}

impl Classified {
    pub(super) fn priority(&self, map: &PriorityMap) -> usize {
        let priority = match map {
            PriorityMap::Pcp(table) => self.pcp.map_or(0, |pcp| table[usize::from(pcp)]),
            PriorityMap::Dscp(table) => self.ip.map_or(0, |_| table[usize::from(self.tos >> 2)]),
        };
        priority.into()
    }

    /// Returns true if the sender is ECN-capable (ECT) and the frame is not marked yet.
    pub(super) fn can_be_marked(&self) -> bool {
        self.ip.is_some() && matches!(self.tos & ECN_MASK, 1 | 2)
    }

    /// Marks the frame: sets CE, and adjusts the IPv4 checksum (RFC 1624). The ICRC masks these bits.
    pub(super) fn mark(&self, frame: &mut [u8]) {
        match self.ip {
            Some(Ip::V4(at)) => {
                let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
                frame[at + 1] |= CE;
                let new = u16::from_be_bytes([frame[at], frame[at + 1]]);
                let checksum = u16::from_be_bytes([frame[at + 10], frame[at + 11]]);
                let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
                sum = (sum >> 16) + (sum & 0xffff);
                sum = (sum >> 16) + (sum & 0xffff);
                frame[at + 10..at + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            }
            Some(Ip::V6(at)) => frame[at + 1] |= CE << 4,
            None => {}
        }
    }

    /// Returns a hash of addresses, ports and protocol, which identifies the flow.
    pub(super) fn flow(&self, frame: &[u8], seed: u64) -> u64 {
        let (addresses, ports) = match self.ip {
            Some(Ip::V4(at)) => (at + 12..at + 20, at + 4 * usize::from(frame[at] & 15)),
            Some(Ip::V6(at)) => (at + 8..at + 40, at + 40),
            None => (0..12, 0),
        };
        let ports = if self.ip.is_some() { frame.get(ports..ports + 4).unwrap_or(&[]) } else { &[] };
        let bytes = frame[addresses].iter().chain(ports);
        // FNV-1a, then mixed, because the low bits of FNV-1a are weak.
        let mut state = bytes.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        roxie_base::random::splitmix(&mut state)
    }
}
