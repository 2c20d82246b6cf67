//! Whom a message of connection management is for, where several processes have one address: told from its first bytes, by the kernel's
//! filter, by a port and by the NIC.

use std::net::IpAddr;

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

/// How close one who listens is to an address: on it before on all of its family before on all there are. `None`: not there at all.
/// `on` is where it listens: an address, one unspecified for all of its family, or none for all.
fn closeness(on: Option<IpAddr>, address: IpAddr) -> Option<u8> {
    match on {
        Some(only) if only == address => Some(2),
        Some(all) if all.is_unspecified() && all.is_ipv4() == address.is_ipv4() => Some(1),
        Some(_) => None,
        None => Some(0),
    }
}

/// Returns the listener that is closest to an address. `None`: no listener is there.
pub(crate) fn closest<T>(those: impl IntoIterator<Item = (Option<IpAddr>, T)>, address: IpAddr) -> Option<T> {
    let close = those.into_iter().filter_map(|(on, who)| Some((closeness(on, address)?, who)));
    close.max_by_key(|(close, _)| *close).map(|(_, who)| who)
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
    fn one_on_the_address_is_closer_than_one_on_its_family_than_one_on_all() {
        let address = "192.0.2.1".parse().unwrap();
        let of = |on: &str| closeness(Some(on.parse().unwrap()), address);
        assert!(of("192.0.2.1") > of("0.0.0.0") && of("0.0.0.0") > closeness(None, address));
        assert_eq!((of("192.0.2.2"), of("::")), (None, None));
    }
}
