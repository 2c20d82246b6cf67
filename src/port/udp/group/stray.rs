//! Datagrams that came to the wrong process, and their way to the right one: a Unix socket for each slot, with an abstract name.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt};
use nix::unistd::geteuid;

/// A datagram that the kernel brought to the wrong process: receive offload makes one of several that have the same addresses and
/// ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::port::udp) struct Stray<'a> {
    /// Address and port of the sender.
    pub(in crate::port::udp) source: SocketAddr,
    /// The address that it was sent to.
    pub(in crate::port::udp) destination: IpAddr,
    /// Its type of service or traffic class.
    pub(in crate::port::udp) traffic_class: u8,
    /// The datagram without its UDP header.
    pub(in crate::port::udp) datagram: &'a [u8],
}

/// Bytes before a datagram that is handed over: addresses, port, traffic class.
pub(in crate::port::udp) const STRAY_HEADER: usize = 16 + 16 + 2 + 1 + 1;

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

    /// What [`Member::hand_over`] sent; `None`: somebody else did.
    pub(in crate::port::udp) fn from_bytes(bytes: &[u8]) -> Option<Stray<'_>> {
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

/// The socket of a slot for strays.
pub(super) fn socket(name: &str) -> io::Result<UnixDatagram> {
    let address = UnixAddress::from_abstract_name(name)?;
    // A child of the process that was here before may have it still; then strays are dropped, and come again.
    let socket = UnixDatagram::bind_addr(&address).or_else(|_| UnixDatagram::unbound())?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::PassCred, &true)?;
    Ok(socket)
}

/// Takes one in; its length, in bytes.
///
/// # Errors
/// If there is none, or a process of another user sent it.
pub(super) fn receive(socket: &UnixDatagram, into: &mut [u8]) -> io::Result<usize> {
    let mut control = cmsg_space!(UnixCredentials);
    let mut pieces = [IoSliceMut::new(into)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut control), flags)?;
    let sender = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmCredentials(sender) => Some(sender.uid()),
        _ => None,
    });
    if sender == Some(geteuid().as_raw()) {
        Ok(received.bytes)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
