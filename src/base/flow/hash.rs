//! Receive side scaling: selects the queue of a frame by a hash.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use super::{FlowField, FlowKey, layer};

/// Length of the hash key in bytes.
pub const RX_HASH_KEY: usize = 40;

bitflags! {
    /// The hashed fields of a frame (`ibv_rx_hash_fields`), hashed in the order of the bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RxHashFields: u32 {
        /// IPv4 source address.
        const SOURCE_IPV4 = 1;
        /// IPv4 destination address.
        const DESTINATION_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SOURCE_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DESTINATION_IPV6 = 1 << 3;
        /// TCP source port.
        const SOURCE_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DESTINATION_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SOURCE_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DESTINATION_PORT_UDP = 1 << 7;
    }
}

/// The fields, their place in a key, and the layer that a frame must have.
const FIELDS: [(RxHashFields, FlowField, u8); 8] = [
    (RxHashFields::SOURCE_IPV4, FlowField::SourceIpv4, layer::IPV4),
    (RxHashFields::DESTINATION_IPV4, FlowField::DestinationIpv4, layer::IPV4),
    (RxHashFields::SOURCE_IPV6, FlowField::SourceIpv6, layer::IPV6),
    (RxHashFields::DESTINATION_IPV6, FlowField::DestinationIpv6, layer::IPV6),
    (RxHashFields::SOURCE_PORT_TCP, FlowField::SourcePort, layer::TCP),
    (RxHashFields::DESTINATION_PORT_TCP, FlowField::DestinationPort, layer::TCP),
    (RxHashFields::SOURCE_PORT_UDP, FlowField::SourcePort, layer::UDP),
    (RxHashFields::DESTINATION_PORT_UDP, FlowField::DestinationPort, layer::UDP),
];

/// A Toeplitz hash of some fields of a frame, as Microsoft's "RSS hashing functions" defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxHash {
    /// The key as the application gives it, 40 bytes.
    #[serde(with = "super::bytes")]
    pub key: [u8; RX_HASH_KEY],
    /// Fields to hash. Fields that the frame lacks are skipped; a frame with none of them hashes to 0.
    pub fields: RxHashFields,
}

impl RxHash {
    /// Returns the hash of a frame.
    pub fn of(&self, frame: &FlowKey) -> u32 {
        let mut state = Toeplitz { key: &self.key, at: 0, hash: 0 };
        for (field, place, layer) in FIELDS {
            if self.fields.contains(field) && frame.has_layer(layer) {
                state.take(frame.get(place));
            }
        }
        state.hash
    }
}

/// The hash of the bytes consumed so far.
struct Toeplitz<'a> {
    key: &'a [u8; RX_HASH_KEY],
    /// Number of bytes consumed.
    at: usize,
    hash: u32,
}

impl Toeplitz<'_> {
    /// Consumes bytes. Each set bit XORs in the 32 key bits that begin at its position.
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let key = |i: usize| u64::from(self.key.get(self.at + i).copied().unwrap_or(0));
            let window = (0..5).fold(0, |window, i| window << 8 | key(i));
            for bit in (0..8).filter(|bit| byte & 0x80 >> bit != 0) {
                self.hash ^= (window >> (8 - bit)) as u32;
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_wire::frame::Frame;

    /// The key and the cases of "Verifying the RSS hash calculation" (Microsoft, NDIS documentation).
    const KEY: [u8; RX_HASH_KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn tcp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> FlowKey {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend(source);
        frame.extend(destination);
        frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        FlowKey::of(&Frame::whole(&frame)).expect("a whole header")
    }

    #[test]
    fn rss_hashes_agree_with_published_cases() {
        let addresses = RxHashFields::SOURCE_IPV4 | RxHashFields::DESTINATION_IPV4;
        let ports = RxHashFields::SOURCE_PORT_TCP | RxHashFields::DESTINATION_PORT_TCP;
        let cases = [
            (tcp([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]), 0x323e_8fc2, 0x51cc_c178),
            (tcp([199, 92, 111, 2], [65, 69, 140, 83], [14230, 4739]), 0xd718_262a, 0xc626_b0ea),
            (tcp([24, 19, 198, 95], [12, 22, 207, 184], [12898, 38024]), 0xd2d0_a5de, 0x5c2b_394a),
        ];
        for (frame, of_addresses, of_all) in cases {
            assert_eq!(RxHash { key: KEY, fields: addresses }.of(&frame), of_addresses);
            assert_eq!(RxHash { key: KEY, fields: addresses | ports }.of(&frame), of_all);
            let udp = RxHashFields::SOURCE_PORT_UDP | RxHashFields::DESTINATION_PORT_UDP;
            assert_eq!(
                RxHash { key: KEY, fields: addresses | udp }.of(&frame),
                of_addresses,
                "a TCP frame has no UDP ports"
            );
            assert_eq!(RxHash { key: KEY, fields: RxHashFields::SOURCE_IPV6 }.of(&frame), 0);
        }
    }
}
