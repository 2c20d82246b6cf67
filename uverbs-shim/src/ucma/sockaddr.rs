//! Socket addresses as programs give and receive them: `sockaddr_in`, `sockaddr_in6`, within a larger structure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::base::object::Errno;

/// `AF_IB`: native InfiniBand addresses, which RoCE does not need.
const AF_IB: u16 = 27;

/// Bytes of `sockaddr_in`.
const LEN_V4: usize = size_of::<libc::sockaddr_in>();
/// Bytes of `sockaddr_in6`.
const LEN_V6: usize = size_of::<libc::sockaddr_in6>();

/// Reads an address. Returns `Ok(None)` for none (family 0).
///
/// # Errors
/// `EAFNOSUPPORT` for InfiniBand addresses, `EINVAL` for an unknown family or too few bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let word = |at: usize| -> Result<[u8; 2], Errno> {
        bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).ok_or(libc::EINVAL)
    };
    let long = |at: usize| -> Result<u32, Errno> {
        let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        four.map(u32::from_ne_bytes).ok_or(libc::EINVAL)
    };
    let port = || word(2).map(u16::from_be_bytes);
    match i32::from(u16::from_ne_bytes(word(0)?)) {
        0 => Ok(None),
        libc::AF_INET if bytes.len() >= LEN_V4 => {
            let ip = Ipv4Addr::from(u32::from_be(long(4)?));
            Ok(Some(SocketAddrV4::new(ip, port()?).into()))
        }
        libc::AF_INET6 if bytes.len() >= LEN_V6 => {
            let ip: [u8; 16] = bytes[8..24].try_into().map_err(|_| libc::EINVAL)?;
            let address = SocketAddrV6::new(Ipv6Addr::from(ip), port()?, u32::from_be(long(4)?), long(24)?);
            Ok(Some(address.into()))
        }
        family if family == i32::from(AF_IB) => Err(libc::EAFNOSUPPORT),
        _ => Err(libc::EINVAL),
    }
}

/// Writes an address to the beginning of `to`. Returns its length, 0 for `None`.
pub(super) fn write(address: Option<SocketAddr>, to: &mut [u8]) -> usize {
    let Some(address) = address else { return 0 };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    to[..2].copy_from_slice(&family.to_ne_bytes());
    to[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            to[4..8].copy_from_slice(&v4.ip().octets());
            LEN_V4
        }
        SocketAddr::V6(v6) => {
            to[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            to[8..24].copy_from_slice(&v6.ip().octets());
            to[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            LEN_V6
        }
    }
}

/// Writes an address as `sockaddr_ib`, for `RDMA_USER_CM_QUERY_GID` (`include/uapi/rdma/ib_user_sa.h`, `rdma/ib.h`):
/// family, partition key, flow label, GID, service ID with its mask, scope.
pub(super) fn write_ib(gid: [u8; 16], pkey: u16, service: u64, to: &mut [u8]) -> usize {
    const LEN: usize = 48;
    to[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    to[2..4].copy_from_slice(&pkey.to_be_bytes());
    to[8..24].copy_from_slice(&gid);
    to[24..32].copy_from_slice(&service.to_be_bytes());
    LEN
}

/// Returns the wildcard address of a family.
pub(super) fn any(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_round_trip() {
        for text in ["192.0.2.1:7174", "[fd00::1]:18515", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes = [0; 128];
            let length = write(Some(address), &mut bytes);
            assert_eq!(length, if address.is_ipv4() { 16 } else { 28 });
            assert_eq!(read(&bytes[..length]), Ok(Some(address)));
            assert_eq!(read(&bytes[..length - 1]), Err(libc::EINVAL), "cut off");
        }
    }

    #[test]
    fn address_families_have_distinct_errors() {
        assert_eq!(read(&[0; 28]), Ok(None));
        let family = |number: u16| {
            let mut bytes = [0; 128];
            bytes[..2].copy_from_slice(&number.to_ne_bytes());
            read(&bytes)
        };
        assert_eq!(family(AF_IB), Err(libc::EAFNOSUPPORT));
        assert_eq!(family(libc::AF_UNIX as u16), Err(libc::EINVAL));
        assert_eq!(read(&[]), Err(libc::EINVAL));
    }
}
