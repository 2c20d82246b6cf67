//! Driver properties: ethtool and the netdev family over generic netlink.
//!
//! rtnetlink reports the allocated queues, often more than are in use. The numbers are as in
//! `include/uapi/linux/ethtool_netlink.h` and `include/uapi/linux/netdev.h`.

use std::io;

use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NlasIterator, parse_u64};

use super::genetlink::{Family, attribute, bytes_of, number};

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
/// The header is the first attribute of each message.
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
const ETHTOOL_A_RINGS_RX_MAX: u16 = 2;
const ETHTOOL_A_RINGS_RX: u16 = 6;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

/// Size of a receive ring, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRing {
    /// Current size.
    pub now: u32,
    /// Largest size that the driver allows.
    pub longest: u32,
}

/// The offloads of an interface, by the names that `ethtool -k` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Offloads that are on.
    pub active: Vec<String>,
    /// Offloads that the driver lets users change.
    pub changeable: Vec<String>,
}

impl Offloads {
    /// True if this offload is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.active.iter().any(|active| active == name)
    }

    /// True if this offload may be changed.
    pub fn may_change(&self, name: &str) -> bool {
        self.changeable.iter().any(|changeable| changeable == name)
    }
}

/// The XDP features of a driver (`enum netdev_xdp_act`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    const NAMES: [&str; 7] = [
        "basic",
        "redirect",
        "transmit",
        "zero-copy",
        "hardware offload",
        "long frames in",
        "long frames out",
    ];

    /// True if the driver itself runs the program and lets it redirect: native mode.
    pub fn is_native(self) -> bool {
        self.0 & 0b11 == 0b11
    }

    /// True if the adapter writes into the memory of AF_XDP sockets.
    pub fn is_zero_copy(self) -> bool {
        self.0 & 1 << 3 != 0
    }

    /// Returns a name for each feature.
    pub fn names(self) -> Vec<&'static str> {
        let has = |(bit, name): (usize, &'static str)| (self.0 & 1 << bit != 0).then_some(name);
        Self::NAMES.into_iter().enumerate().filter_map(has).collect()
    }
}

/// Returns the number of receive queues in use on the interface with this index: receive-only plus combined channels.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not report them (then it usually has one queue).
pub(super) fn rx_queues(index: u32) -> io::Result<u32> {
    let channels = query_ethtool(ETHTOOL_MSG_CHANNELS_GET, index)?;
    Ok(number(&channels, ETHTOOL_A_CHANNELS_RX_COUNT) + number(&channels, ETHTOOL_A_CHANNELS_COMBINED_COUNT))
}

/// Returns the receive ring sizes of the interface with this index.
///
/// # Errors
/// `EOPNOTSUPP` if the driver has none or does not report them.
pub fn rx_ring(index: u32) -> io::Result<RxRing> {
    let rings = query_ethtool(ETHTOOL_MSG_RINGS_GET, index)?;
    Ok(RxRing { now: number(&rings, ETHTOOL_A_RINGS_RX), longest: number(&rings, ETHTOOL_A_RINGS_RX_MAX) })
}

/// Returns the offloads of the interface with this index.
///
/// # Errors
/// The kernel's error.
pub fn offloads(index: u32) -> io::Result<Offloads> {
    let features = query_ethtool(ETHTOOL_MSG_FEATURES_GET, index)?;
    let names = |kind| attribute(&features, kind).map(|set| bit_names(&set)).unwrap_or_default();
    Ok(Offloads { active: names(ETHTOOL_A_FEATURES_ACTIVE), changeable: names(ETHTOOL_A_FEATURES_HW) })
}

/// Turns an offload of the interface with this index on or off. The kernel may leave it as it is without an error,
/// where the driver fixes it: [`offloads`] tells.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN.
pub fn set_offload(index: u32, name: &str, on: bool) -> io::Result<()> {
    let text = [name.as_bytes(), &[0]].concat();
    let mut bit = vec![DefaultNla::new(ETHTOOL_A_BITSET_BIT_NAME, text)];
    if on {
        bit.push(DefaultNla::new(ETHTOOL_A_BITSET_BIT_VALUE, Vec::new()));
    }
    let nest = |kind, parts: &[DefaultNla]| {
        DefaultNla::new(kind | NLA_F_NESTED, parts.iter().flat_map(bytes_of).collect())
    };
    let bits = nest(ETHTOOL_A_BITSET_BITS, &[nest(ETHTOOL_A_BITSET_BITS_BIT, &bit)]);
    let wanted = nest(ETHTOOL_A_FEATURES_WANTED, &[bits]);
    let device = DefaultNla::new(ETHTOOL_A_HEADER_DEV_INDEX, index.to_ne_bytes().to_vec());
    let header = nest(ETHTOOL_A_HEADER, &[device]);
    Family::open("ethtool")?.set(ETHTOOL_MSG_FEATURES_SET, &[header, wanted]).map(drop)
}

/// Returns the XDP features of the interface with this index.
///
/// # Errors
/// `ENOENT` before Linux 6.3, which does not report them.
pub fn xdp_features(index: u32) -> io::Result<XdpFeatures> {
    let index = DefaultNla::new(NETDEV_A_DEV_IFINDEX, index.to_ne_bytes().to_vec());
    let device = Family::open("netdev")?.request(NETDEV_CMD_DEV_GET, &index)?;
    let bits = attribute(&device, NETDEV_A_DEV_XDP_FEATURES).and_then(|value| parse_u64(&value).ok());
    bits.map(XdpFeatures).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no XDP features told"))
}

fn query_ethtool(command: u8, index: u32) -> io::Result<Vec<u8>> {
    let device = bytes_of(&DefaultNla::new(ETHTOOL_A_HEADER_DEV_INDEX, index.to_ne_bytes().to_vec()));
    Family::open("ethtool")?.request(command, &DefaultNla::new(ETHTOOL_A_HEADER | NLA_F_NESTED, device))
}

/// Returns the names of the bits that are set. A bitset with a mask lists all bits of the mask, and marks those that
/// are set.
fn bit_names(set: &[u8]) -> Vec<String> {
    let Some(bits) = attribute(set, ETHTOOL_A_BITSET_BITS) else { return Vec::new() };
    let without_mask = attribute(set, ETHTOOL_A_BITSET_NOMASK).is_some();
    let name = |bit: &[u8]| {
        let set = without_mask || attribute(bit, ETHTOOL_A_BITSET_BIT_VALUE).is_some();
        let name = attribute(bit, ETHTOOL_A_BITSET_BIT_NAME).filter(|_| set)?;
        Some(String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(&name)).into_owned())
    };
    NlasIterator::new(&bits[..]).flatten().filter_map(|bit| name(bit.value())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitset_names_are_those_of_its_set_bits() {
        let join = |parts: &[DefaultNla]| parts.iter().flat_map(bytes_of).collect::<Vec<u8>>();
        let nest = |kind, parts: &[DefaultNla]| DefaultNla::new(kind | NLA_F_NESTED, join(parts));
        let name = |name: &[u8]| DefaultNla::new(ETHTOOL_A_BITSET_BIT_NAME, name.to_vec());
        let flag = |kind| DefaultNla::new(kind, Vec::new());
        let bits = nest(
            ETHTOOL_A_BITSET_BITS,
            &[nest(1, &[name(b"rx-gro\0")]), nest(1, &[name(b"rx-lro\0"), flag(ETHTOOL_A_BITSET_BIT_VALUE)])],
        );
        assert_eq!(bit_names(&join(&[bits.clone(), flag(ETHTOOL_A_BITSET_NOMASK)])), ["rx-gro", "rx-lro"]);
        assert_eq!(bit_names(&join(&[bits])), ["rx-lro"], "the other is only in the mask");
        assert!(bit_names(&[]).is_empty());
    }

    #[test]
    fn native_mode_needs_run_and_redirect() {
        assert!(XdpFeatures(0b1_0011).is_native() && !XdpFeatures(0b10).is_native());
        assert!(XdpFeatures(0b1000).is_zero_copy() && !XdpFeatures(0b0111).is_zero_copy());
        assert_eq!(XdpFeatures(0b1001).names(), ["basic", "zero-copy"]);
    }
}
