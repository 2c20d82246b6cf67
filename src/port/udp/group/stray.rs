//! Passes datagrams that reached the wrong process on to the right one: over a pair of Unix sockets for each slot. The
//! pairs have no name that a process of another user could bind: members find them in the `FdKeeper`, beside the slot's UDP
//! sockets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;

/// A datagram that the kernel delivered to the wrong process: receive offload merges datagrams with the same addresses
/// and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::udp) struct Stray<'a> {
    /// Address and port of the sender.
    pub(in crate::udp) source: SocketAddr,
    /// Destination address.
    pub(in crate::udp) destination: IpAddr,
    /// Type of service or traffic class.
    pub(in crate::udp) traffic_class: u8,
    /// The datagram without its UDP header.
    pub(in crate::udp) datagram: &'a [u8],
}

/// Bytes before a datagram that is handed over: addresses, port, traffic class.
pub(in crate::udp) const STRAY_HEADER: usize = 16 + 16 + 2 + 1 + 1;

impl Stray<'_> {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut bytes = Vec::with_capacity(STRAY_HEADER + self.datagram.len());
        bytes.extend(octets(self.source.ip()));
        bytes.extend(octets(self.destination));
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend([self.traffic_class, 0]);
        bytes.extend(self.datagram);
        bytes
    }

    /// Parses a message of [`Member::hand_over`]; `None` if it is something else.
    pub(in crate::udp) fn from_bytes(bytes: &[u8]) -> Option<Stray<'_>> {
        let (header, datagram) = bytes.split_first_chunk::<{ STRAY_HEADER }>()?;
        let ip = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).to_canonical())
        };
        let port = u16::from_be_bytes([header[32], header[33]]);
        let source = SocketAddr::new(ip(0)?, port);
        Some(Stray { source, destination: ip(16)?, traffic_class: header[34], datagram })
    }
}

/// The sockets of a slot for strays: its process receives at one end, all other members send at the other end.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) receives: UnixDatagram,
    pub(super) sends: UnixDatagram,
}

impl Pair {
    pub(super) fn new() -> io::Result<Pair> {
        let (receives, sends) = UnixDatagram::pair()?;
        receives.set_nonblocking(true)?;
        sends.set_nonblocking(true)?;
        Ok(Pair { receives, sends })
    }
}
