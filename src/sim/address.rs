//! The addresses of simulated hosts follow from their numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Host;

impl Host {
    /// The station address of host `number`.
    pub fn mac(number: u16) -> [u8; 6] {
        let [high, low] = number.to_be_bytes();
        [2, 0, 0, 0, high, low]
    }

    /// The IP address of host `number`: of TEST-NET-1 (RFC 5737) while that lasts, then of the networks for benchmarks (RFC 2544).
    pub fn address(number: u16, ipv6: bool) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match (ipv6, high) {
            (true, _) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into(),
            (false, 0) => Ipv4Addr::new(192, 0, 2, low).into(),
            (false, _) => Ipv4Addr::new(198, 18, high, low).into(),
        }
    }
}
