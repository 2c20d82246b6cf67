//! Passes datagrams that reached the wrong process on to the right one: over a pair of Unix sockets for each slot. The
//! pairs have no name that a process of another user could bind: members find them in the `FdKeeper`, next to the
//! slot's UDP sockets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use super::Member;

/// Strays (rare) are looked for in every this many polls that found nothing else.
const PERIOD: u32 = 64;

/// A datagram that the kernel delivered to the wrong process: receive offload merges datagrams with the same addresses
/// and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stray<'a> {
    /// Address and port of the sender.
    pub(crate) source: SocketAddr,
    /// Destination address.
    pub(crate) destination: IpAddr,
    /// Type of service or traffic class.
    pub(crate) traffic_class: u8,
    /// The datagram without its UDP header.
    pub(crate) datagram: &'a [u8],
}

/// Bytes before a datagram that is handed over: addresses, port, traffic class.
pub(crate) const STRAY_HEADER: usize = 16 + 16 + 2 + 1 + 1;

impl Stray<'_> {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
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
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Stray<'_>> {
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

/// Receives strays for a member, into one buffer.
pub(crate) struct StrayInbox {
    member: Arc<Member>,
    buffer: Box<[u8]>,
    polls: u32,
}

impl StrayInbox {
    /// Makes an inbox for strays of up to `longest` bytes.
    pub(crate) fn new(member: Arc<Member>, longest: usize) -> StrayInbox {
        StrayInbox { member, buffer: vec![0; longest].into(), polls: 0 }
    }

    /// Returns the descriptor that is readable while a stray is queued.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.member.strays().as_fd()
    }

    /// Receives a stray if it is time to look for one. Returns its length in bytes.
    pub(crate) fn poll(&mut self) -> Option<usize> {
        self.polls = self.polls.wrapping_add(1);
        let is_due = self.polls.is_multiple_of(PERIOD);
        is_due.then(|| self.member.strays().recv(&mut self.buffer).ok()).flatten()
    }

    /// Returns the newest stray's buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the member.
    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
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
