//! Addresses of simulated hosts, derived from the host's number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Host;

impl Host {
    /// Returns the MAC address of host `number`.
    pub fn mac(number: u16) -> [u8; 6] {
        let [high, low] = number.to_be_bytes();
        [2, 0, 0, 0, high, low]
    }

    /// Returns the IP address of host `number`. IPv4: TEST-NET-1 (RFC 5737) up to 255, then the benchmarking network
    /// (RFC 2544). IPv6: `fd00::number`.
    pub fn address(number: u16, ipv6: bool) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match (ipv6, high) {
            (true, _) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into(),
            (false, 0) => Ipv4Addr::new(192, 0, 2, low).into(),
            (false, _) => Ipv4Addr::new(198, 18, high, low).into(),
        }
    }

    /// Returns the number of the host that [`Host::address`] gives this address to; `None`: no host has it.
    pub fn number_of(address: IpAddr) -> Option<u16> {
        let number = match address {
            IpAddr::V4(ip) => {
                let [_, _, high, low] = ip.octets();
                u16::from_be_bytes([if ip.octets()[0] == 198 { high } else { 0 }, low])
            }
            IpAddr::V6(ip) => ip.segments()[7],
        };
        (Host::address(number, address.is_ipv6()) == address).then_some(number)
    }
}
