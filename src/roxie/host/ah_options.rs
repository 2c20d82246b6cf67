//! Header fields that an address handle or a connection sets.

/// Header fields of a datagram's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AhOptions {
    /// Traffic class or type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Service level, 0 to 7: the priority, if priorities are taken from service levels.
    pub sl: u8,
    /// Time to live of IPv4, hop limit of IPv6; 0: the route's.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}
