//! MAC addresses for hosts that are reached through sockets.

use std::net::IpAddr;

/// Returns a station address for an IP address that is reached through sockets: `02:00` and the four bytes of an IPv4
/// address, `02:06` and a hash of an IPv6 address. The address is locally administered and never on a wire.
pub fn synthetic_mac(address: IpAddr) -> [u8; 6] {
    match address.to_canonical() {
        IpAddr::V4(a) => {
            let [a, b, c, d] = a.octets();
            [2, 0, a, b, c, d]
        }
        IpAddr::V6(a) => {
            // FNV-1a.
            let hash =
                a.octets().iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
            let [a, b, c, d] = hash.to_be_bytes();
            [2, 6, a, b, c, d]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_addresses_differ_and_are_local() {
        let mac = |text: &str| synthetic_mac(text.parse().expect("an address"));
        assert_eq!(mac("10.1.2.3"), [2, 0, 10, 1, 2, 3]);
        assert_eq!(mac("::ffff:10.1.2.3"), mac("10.1.2.3"));
        assert_ne!(mac("fd00::1"), mac("fd00::2"));
        assert_eq!(mac("fd00::1")[..2], [2, 6]);
    }
}
