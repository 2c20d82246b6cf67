//! GIDs: 128-bit port addresses. For RoCE they are IP addresses.
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier. RoCE v2 derives it from the IP address; IPv4 is mapped to `::ffff:a.b.c.d` (IBTA
/// annex A17.4.5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the IPv6 link-local address of a MAC address: EUI-64 with the universal bit inverted (RFC
    /// 4291, appendix A).
    pub fn link_local_of([a, b, c, d, e, f]: [u8; 6]) -> Gid {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the IP address of the GID; IPv4 if the GID is IPv4-mapped.
    pub fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// True if the GID is the IPv4-mapped address `ip`.
    pub fn is(self, ip: Ipv4Addr) -> bool {
        u128::from_be_bytes(self.0) == 0xffff_0000_0000 | u128::from(ip.to_bits())
    }

    /// True if the GID is IPv4-mapped.
    pub fn is_ipv4(self) -> bool {
        self.0[..10] == [0; 10] && self.0[10..12] == [0xff, 0xff]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Gid {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Gid {
        Gid(ip.octets())
    }
}

impl fmt::Display for Gid {
    /// Prints an IPv6 address: `fe80::1`, `::ffff:10.0.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_address_round_trips_through_gid() {
        for (ip, text, v4) in [
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("fe80::1", "fe80::1", false),
            ("::", "::", false),
            ("::a00:1", "::a00:1", false),
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            let gid = Gid::from(ip);
            assert_eq!((gid.to_ip(), gid.is_ipv4()), (ip, v4));
            assert_eq!(gid.to_string(), text);
        }
    }
}
