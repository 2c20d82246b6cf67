//! Whom a message of connection management is for, where several processes have one address: told from its first bytes, by the kernel's
//! filter, by a port and by the NIC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attribute IDs of those messages that do not say it as the others do: a request for communication.
pub(crate) const REQ: u16 = 0x10;
/// A service ID resolution request.
pub(crate) const SIDR_REQ: u16 = 0x17;
/// The response to that.
pub(crate) const SIDR_REP: u16 = 0x18;

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// Whoever listens for this service: a request.
    Service(u64),
    /// Whoever gave the communication ID with these upper 8 bits.
    Unit(u8),
}

impl Addressee {
    /// Where a message has its receiver's communication ID, but for [`REQ`], [`SIDR_REQ`] and [`SIDR_REP`] (IBTA 12.6). In bytes, behind
    /// the header of the management datagram.
    pub(crate) const REMOTE_ID: usize = 4;
    /// Where a [`SIDR_REP`] has the request ID that it answers.
    pub(crate) const REQUEST_ID: usize = 0;
    /// Where the two requests have the service ID.
    pub(crate) const SERVICE: usize = 8;
    /// How many bytes of any message tell whom it is for.
    pub(crate) const HEAD: usize = 16;

    /// Whom a message with this attribute ID is for. `None`: it is too short to tell.
    pub(crate) fn of(attribute: u16, message: &[u8]) -> Option<Addressee> {
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

/// Returns where a process may listen that takes requests to an address, the closest first: on it, on all addresses of its family, on all
/// there are.
pub(crate) fn listens_for(address: IpAddr) -> [Option<IpAddr>; 3] {
    let family: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    [Some(address), Some(family), None]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cm::Kind;

    #[test]
    fn a_request_is_for_a_service_and_all_else_for_who_gave_its_id() {
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
