//! Flow steering: selects the frames of other protocols that go to a raw packet QP (`ibv_create_flow`).
//!
//! The steered fields of a frame are copied to a [`FlowKey`]: 64 bytes in which each field has a fixed place,
//! whatever tags and options the frame has. A [`FlowMatch`] is a value and a mask in the same layout. The
//! steering program in the kernel (`steer.bpf.c`) builds and compares keys in the same way.

mod bytes;
mod hash;

pub use hash::{RX_HASH_KEY, RxHash, RxHashFields};

use std::ops::Range;

use serde::{Deserialize, Serialize};

use roxie_wire::frame::{Frame, ROCE_V2_PORT};

/// Maximum number of flows of a device. The steering program compares each frame of another protocol with all
/// of them.
pub const MAX_FLOWS: usize = 64;

/// Length of a key in bytes.
pub const FLOW_KEY: usize = 64;
const KEY: usize = FLOW_KEY;
/// Bytes from which a key is built, at most: Ethernet with a tag, IPv4 with all options, and ports.
const DEEPEST: usize = 14 + 4 + 60 + 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
const ETHERTYPE_TAGS: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// IPv4 flags and offset: more fragments, or an offset other than 0.
const FRAGMENT: u16 = 0x3fff;

/// A field of a key, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowField {
    /// Destination MAC address, 6 bytes.
    Destination,
    /// Source MAC address, 6 bytes.
    Source,
    /// EtherType, 2 bytes; behind the tag if the frame has one.
    EtherType,
    /// Tag control information of the VLAN tag, 2 bytes.
    VlanTag,
    /// The [layers](layer) of the frame, 1 byte.
    Layers,
    /// IPv4 protocol or IPv6 next header, 1 byte.
    Protocol,
    /// IPv4 TOS or IPv6 traffic class, 1 byte.
    TrafficClass,
    /// TTL or hop limit, 1 byte.
    HopLimit,
    /// TCP or UDP source port, 2 bytes; 0 in fragments.
    SourcePort,
    /// TCP or UDP destination port, 2 bytes; 0 in fragments.
    DestinationPort,
    /// IPv6 flow label, 4 bytes.
    FlowLabel,
    /// IPv4 flags, 1 byte: 1 reserved, 2 don't fragment, 4 more fragments (`ib_ipv4_flags` of the kernel).
    Ipv4Flags,
    /// IPv6 source address, 16 bytes.
    SourceIpv6,
    /// IPv6 destination address, 16 bytes.
    DestinationIpv6,
    /// IPv4 source address, 4 bytes.
    SourceIpv4,
    /// IPv4 destination address, 4 bytes.
    DestinationIpv4,
}

/// Bits of [`FlowField::Layers`].
pub mod layer {
    /// VLAN tag.
    pub const VLAN: u8 = 1;
    /// IPv4 header.
    pub const IPV4: u8 = 2;
    /// IPv6 header.
    pub const IPV6: u8 = 4;
    /// TCP ports.
    pub const TCP: u8 = 8;
    /// UDP ports.
    pub const UDP: u8 = 16;
}

impl FlowField {
    const fn range(self) -> Range<usize> {
        match self {
            FlowField::Destination => 0..6,
            FlowField::Source => 6..12,
            FlowField::EtherType => 12..14,
            FlowField::VlanTag => 14..16,
            FlowField::Layers => 16..17,
            FlowField::Protocol => 17..18,
            FlowField::TrafficClass => 18..19,
            FlowField::HopLimit => 19..20,
            FlowField::SourcePort => 20..22,
            FlowField::DestinationPort => 22..24,
            FlowField::FlowLabel => 24..28,
            FlowField::Ipv4Flags => 28..29,
            FlowField::SourceIpv6 => 32..48,
            FlowField::DestinationIpv6 => 48..64,
            FlowField::SourceIpv4 => 44..48,
            FlowField::DestinationIpv4 => 60..64,
        }
    }
}

/// The steered fields of a frame. Fields that the frame lacks are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowKey(#[serde(with = "bytes")] [u8; KEY]);

impl FlowKey {
    const EMPTY: FlowKey = FlowKey([0; KEY]);

    /// Returns the key of a frame. `None` if the frame is shorter than an Ethernet header, or is RoCE: RoCE
    /// frames go to the transport whatever their address, and are never steered.
    pub fn of(frame: &Frame<'_>) -> Option<FlowKey> {
        let mut buffer = [0; DEEPEST];
        let length = frame.copy_to(0, &mut buffer);
        let (ethernet, mut rest) = buffer[..length].split_first_chunk::<14>()?;
        let mut key = FlowKey::EMPTY;
        key.set(FlowField::Destination, &ethernet[..6]);
        key.set(FlowField::Source, &ethernet[6..12]);
        let mut ether_type = [ethernet[12], ethernet[13]];
        if ETHERTYPE_TAGS.contains(&u16::from_be_bytes(ether_type)) {
            let (tag, behind) = rest.split_first_chunk::<4>()?;
            key.set(FlowField::VlanTag, &tag[..2]);
            key.add_layer(layer::VLAN);
            ether_type = [tag[2], tag[3]];
            rest = behind;
        }
        key.set(FlowField::EtherType, &ether_type);
        match u16::from_be_bytes(ether_type) {
            ETHERTYPE_IPV4 => key.read_ipv4(rest),
            ETHERTYPE_IPV6 => key.read_ipv6(rest),
            //= IBTA 9.8.4: raw-is-never-roce
            ETHERTYPE_ROCE_V1 => return None,
            _ => {}
        }
        (!key.is_roce_v2()).then_some(key)
    }

    fn is_roce_v2(&self) -> bool {
        self.has_layer(layer::UDP) && self.get(FlowField::DestinationPort) == ROCE_V2_PORT.to_be_bytes()
    }

    fn get(&self, field: FlowField) -> &[u8] {
        &self.0[field.range()]
    }

    fn has_layer(&self, layer: u8) -> bool {
        self.get(FlowField::Layers)[0] & layer != 0
    }

    fn set(&mut self, field: FlowField, bytes: &[u8]) {
        self.0[field.range()].copy_from_slice(bytes);
    }

    fn add_layer(&mut self, layer: u8) {
        self.0[FlowField::Layers.range()][0] |= layer;
    }

    fn read_ipv4(&mut self, bytes: &[u8]) {
        let Some((ip, _)) = bytes.split_first_chunk::<20>() else { return };
        let words = usize::from(ip[0] & 15);
        if ip[0] >> 4 != 4 || words < 5 {
            return;
        }
        self.add_layer(layer::IPV4);
        self.set(FlowField::TrafficClass, &ip[1..2]);
        self.set(FlowField::Ipv4Flags, &[ip[6].reverse_bits() & 7]);
        self.set(FlowField::HopLimit, &ip[8..9]);
        self.set(FlowField::Protocol, &ip[9..10]);
        self.set(FlowField::SourceIpv4, &ip[12..16]);
        self.set(FlowField::DestinationIpv4, &ip[16..20]);
        if u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT == 0 {
            self.read_ports(ip[9], bytes.get(words * 4..).unwrap_or_default());
        }
    }

    fn read_ipv6(&mut self, bytes: &[u8]) {
        let Some((ip, behind)) = bytes.split_first_chunk::<40>() else { return };
        if ip[0] >> 4 != 6 {
            return;
        }
        self.add_layer(layer::IPV6);
        self.set(FlowField::TrafficClass, &[ip[0] << 4 | ip[1] >> 4]);
        self.set(FlowField::FlowLabel, &[0, ip[1] & 15, ip[2], ip[3]]);
        self.set(FlowField::Protocol, &ip[6..7]);
        self.set(FlowField::HopLimit, &ip[7..8]);
        self.set(FlowField::SourceIpv6, &ip[8..24]);
        self.set(FlowField::DestinationIpv6, &ip[24..40]);
        self.read_ports(ip[6], behind);
    }

    fn read_ports(&mut self, protocol: u8, bytes: &[u8]) {
        let layer = match protocol {
            PROTOCOL_TCP => layer::TCP,
            PROTOCOL_UDP => layer::UDP,
            _ => return,
        };
        let Some((ports, _)) = bytes.split_first_chunk::<4>() else { return };
        self.add_layer(layer);
        self.set(FlowField::SourcePort, &ports[..2]);
        self.set(FlowField::DestinationPort, &ports[2..]);
    }
}

/// The condition by which a flow selects frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowMatch {
    value: FlowKey,
    mask: FlowKey,
}

impl Default for FlowMatch {
    fn default() -> FlowMatch {
        FlowMatch { value: FlowKey::EMPTY, mask: FlowKey::EMPTY }
    }
}

impl FlowMatch {
    /// Requires `value` in the bits of `mask` of a field, in addition to earlier requirements.
    ///
    /// # Panics
    /// If `value` or `mask` has another length than the field.
    pub fn require(&mut self, field: FlowField, value: &[u8], mask: &[u8]) {
        let range = field.range();
        assert!(
            value.len() == range.len() && mask.len() == range.len(),
            "{field:?} has {} bytes",
            range.len()
        );
        for (at, (value, mask)) in range.zip(value.iter().zip(mask)) {
            self.value.0[at] |= value & mask;
            self.mask.0[at] |= mask;
        }
    }

    /// Requires `value` in a whole field. See [`FlowMatch::require`].
    #[must_use]
    pub fn with(mut self, field: FlowField, value: &[u8]) -> FlowMatch {
        self.require(field, value, &[0xff; 16][..value.len()]);
        self
    }

    /// Requires the given [layers](layer).
    pub fn require_layers(&mut self, layers: u8) {
        self.require(FlowField::Layers, &[layers], &[layers]);
    }

    /// True if a frame with this key meets the condition.
    pub fn takes(&self, key: &FlowKey) -> bool {
        self.value.0.iter().zip(&self.mask.0).zip(&key.0).all(|((value, mask), byte)| byte & mask == *value)
    }

    /// Returns value and mask, for the steering program.
    pub fn bytes(&self) -> ([u8; FLOW_KEY], [u8; FLOW_KEY]) {
        (self.value.0, self.mask.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: [u8; 28] = [
        0x45, 0x12, 0, 28, 0, 0, 0x40, 0, 7, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0x04, 0xd2, 0x16, 0x2e, 0,
        8, 0, 0,
    ];

    fn frame(ether_type: &[u8], rest: &[u8]) -> Vec<u8> {
        [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], ether_type, rest].concat()
    }

    fn key(bytes: &[u8]) -> FlowKey {
        FlowKey::of(&Frame::whole(bytes)).expect("a whole Ethernet header")
    }

    fn field(key: &FlowKey, field: FlowField) -> &[u8] {
        key.get(field)
    }

    #[test]
    fn ipv4_fields_are_found_behind_tags_and_options() {
        let with_options = {
            let mut ip = [&IPV4[..20], &[1; 8], &IPV4[20..]].concat();
            ip[0] = 0x47;
            ip
        };
        for (bytes, layers) in [
            (frame(&[8, 0], &IPV4), layer::IPV4 | layer::UDP),
            (frame(&[8, 0], &with_options), layer::IPV4 | layer::UDP),
            (frame(&[0x81, 0, 0xb0, 0x17, 8, 0], &IPV4), layer::VLAN | layer::IPV4 | layer::UDP),
        ] {
            let key = key(&bytes);
            assert_eq!(field(&key, FlowField::Destination), [1, 2, 3, 4, 5, 6]);
            assert_eq!(field(&key, FlowField::Source), [7, 8, 9, 10, 11, 12]);
            assert_eq!(field(&key, FlowField::EtherType), [8, 0]);
            assert_eq!(field(&key, FlowField::Layers), [layers]);
            assert_eq!(field(&key, FlowField::TrafficClass), [0x12]);
            assert_eq!(field(&key, FlowField::Ipv4Flags), [2]);
            assert_eq!(
                (field(&key, FlowField::HopLimit), field(&key, FlowField::Protocol)),
                (&[7][..], &[17][..])
            );
            assert_eq!(field(&key, FlowField::SourceIpv4), [192, 0, 2, 1]);
            assert_eq!(field(&key, FlowField::DestinationIpv4), [192, 0, 2, 2]);
            assert_eq!(field(&key, FlowField::SourcePort), 1234u16.to_be_bytes());
            assert_eq!(field(&key, FlowField::DestinationPort), 5678u16.to_be_bytes());
        }
        let tagged = key(&frame(&[0x81, 0, 0xb0, 0x17, 8, 0], &IPV4));
        assert_eq!(field(&tagged, FlowField::VlanTag), [0xb0, 0x17]);
    }

    #[test]
    fn ipv6_fields_are_found() {
        let mut ip = [0x6a, 0xb1, 0x23, 0x45, 0, 20, 6, 9].to_vec();
        ip.extend([0xaa; 16]);
        ip.extend([0xbb; 16]);
        ip.extend([0, 80, 1, 2]);
        let key = key(&frame(&[0x86, 0xdd], &ip));
        assert_eq!(field(&key, FlowField::Layers), [layer::IPV6 | layer::TCP]);
        assert_eq!(field(&key, FlowField::TrafficClass), [0xab]);
        assert_eq!(field(&key, FlowField::FlowLabel), [0, 1, 0x23, 0x45]);
        assert_eq!(
            (field(&key, FlowField::Protocol), field(&key, FlowField::HopLimit)),
            (&[6][..], &[9][..])
        );
        assert_eq!(
            (field(&key, FlowField::SourceIpv6), field(&key, FlowField::DestinationIpv6)),
            (&[0xaa; 16][..], &[0xbb; 16][..])
        );
        assert_eq!(field(&key, FlowField::DestinationPort), [1, 2]);
    }

    #[test]
    fn truncated_frames_and_fragments_have_no_ports() {
        let mut fragment = IPV4;
        fragment[6] = 0x20;
        let of_fragment = key(&frame(&[8, 0], &fragment));
        assert_eq!(field(&of_fragment, FlowField::Layers), [layer::IPV4]);
        assert_eq!(field(&of_fragment, FlowField::DestinationPort), [0, 0]);
        let whole = frame(&[8, 0], &IPV4);
        assert_eq!(field(&key(&whole[..14 + 23]), FlowField::Layers), [layer::IPV4]);
        assert_eq!(field(&key(&whole[..14 + 19]), FlowField::Layers), [0]);
        assert_eq!(FlowKey::of(&Frame::whole(&whole[..13])), None);
        assert_eq!(
            FlowKey::of(&Frame::whole(&frame(&[0x81, 0, 0, 1], &[]))),
            None,
            "a tag without an EtherType"
        );
        for length in 0..whole.len() {
            for split in 0..length {
                let halves = Frame { a: &whole[..split], b: &whole[split..length] };
                assert_eq!(FlowKey::of(&halves), FlowKey::of(&Frame::whole(&whole[..length])));
            }
        }
    }

    //= test: IBTA 9.8.4: raw-is-never-roce
    #[test]
    fn roce_frames_have_no_key() {
        let mut v2 = IPV4;
        v2[22..24].copy_from_slice(&4791u16.to_be_bytes());
        for bytes in [frame(&[8, 0], &v2), frame(&[0x81, 0, 0, 1, 8, 0], &v2), frame(&[0x89, 0x15], &[0; 40])]
        {
            assert_eq!(FlowKey::of(&Frame::whole(&bytes)), None);
        }
        v2[9] = 6;
        assert!(FlowKey::of(&Frame::whole(&frame(&[8, 0], &v2))).is_some(), "TCP port 4791 is not RoCE");
    }

    #[test]
    fn match_ignores_bits_outside_its_mask() {
        let key = key(&frame(&[8, 0], &IPV4));
        assert!(FlowMatch::default().takes(&key), "an empty condition matches every frame");
        let right = FlowMatch::default().with(FlowField::DestinationIpv4, &[192, 0, 2, 2]);
        assert!(right.takes(&key));
        let mut net = FlowMatch::default();
        net.require(FlowField::SourceIpv4, &[192, 0, 2, 99], &[255, 255, 255, 0]);
        assert!(net.takes(&key), "bits outside of the mask are ignored");
        net.require_layers(layer::TCP);
        assert!(!net.takes(&key));
        assert!(!right.with(FlowField::DestinationPort, &1u16.to_be_bytes()).takes(&key));
    }
}
