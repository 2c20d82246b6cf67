//! The addressee of a connection management message, where several processes share one address. The first
//! bytes of the message determine it, in the kernel's socket filter, in a port and in the NIC.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attribute ID of a request for communication (REQ), which carries a service ID.
pub const REQ: u16 = 0x10;
/// Attribute ID of a service ID resolution request (SIDR_REQ), which carries a service ID.
pub const SIDR_REQ: u16 = 0x17;
/// Attribute ID of a service ID resolution response (SIDR_REP), which begins with the request ID.
pub const SIDR_REP: u16 = 0x18;

/// Attribute ID of a request for release (DREQ): answered also if no process has the connection (IBTA 12.9.8.2).
pub const DREQ: u16 = 0x15;

/// The process that a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The listener for this service: the message is a request.
    Service(u64),
    /// The process that allocated the communication ID with these upper 8 bits.
    Unit(u8),
}

impl Addressee {
    /// Offset of the receiver's communication ID in messages other than [`REQ`], [`SIDR_REQ`] and
    /// [`SIDR_REP`] (IBTA 12.6). All offsets are in bytes behind the header of the management datagram.
    pub const REMOTE_ID: usize = 4;
    /// Offset of the request ID in a [`SIDR_REP`].
    pub const REQUEST_ID: usize = 0;
    /// Offset of the service ID in the two requests.
    pub const SERVICE: usize = 8;
    /// Bytes of a message that suffice to determine the addressee.
    pub const HEAD: usize = 16;

    /// Returns the addressee of a message with this attribute ID. `None` if the message is too short.
    pub fn of(attribute: u16, message: &[u8]) -> Option<Addressee> {
        let unit = |at: usize| message.get(at).copied().map(Addressee::Unit);
        match attribute {
            REQ | SIDR_REQ => {
                let id = message.get(Addressee::SERVICE..)?.first_chunk()?;
                Some(Addressee::Service(u64::from_be_bytes(*id)))
            }
            SIDR_REP => unit(Addressee::REQUEST_ID),
            _ => unit(Addressee::REMOTE_ID),
        }
    }
}

/// Returns the addresses of listeners that cover `address`, the most specific first: the address itself, the
/// unspecified address of the family, any address (`None`).
pub fn listens_for(address: IpAddr) -> [Option<IpAddr>; 3] {
    let family: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    [Some(address), Some(family), None]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::Kind;

    #[test]
    fn requests_name_a_service_other_messages_a_unit() {
        let message: Vec<u8> = (0x10..0x20).collect();
        let of = |kind: Kind| Addressee::of(kind as u16, &message);
        let service = Some(Addressee::Service(0x1819_1a1b_1c1d_1e1f));
        for kind in Kind::ALL {
            let expected = match kind {
                Kind::Req | Kind::SidrReq => service,
                Kind::SidrRep => Some(Addressee::Unit(0x10)),
                _ => Some(Addressee::Unit(0x14)),
            };
            assert_eq!(of(kind), expected, "{kind:?}");
        }
        assert_eq!(Addressee::of(Kind::Req as u16, &message[..15]), None);
        assert_eq!(Addressee::of(Kind::Rtu as u16, &message[..4]), None);
    }

    #[test]
    fn listener_on_the_address_is_closest() {
        for (one, all) in [("192.0.2.1", "0.0.0.0"), ("2001:db8::1", "::")] {
            let [one, all] = [one, all].map(|text| text.parse().unwrap());
            assert_eq!(listens_for(one), [Some(one), Some(all), None]);
        }
    }
}
