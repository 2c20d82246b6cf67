//! ICMP "port unreachable" messages about datagrams that were sent.
//!
//! A socket queues the messages about its own datagrams if asked to (`IP_RECVERR`), which needs no privilege. Frames
//! that bypass the kernel have no socket, so their messages are read from a raw socket, for which the rights of AF_XDP
//! suffice. Either is on only while an [`Undelivered`] exists.

use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvmsg, setsockopt, socket,
    sockopt,
};

use roxie_base::frame::ROCE_V2_PORT;

/// Bytes of a message that are read: the most that Linux quotes, with headers.
const ROOM: usize = 2048;
const UDP_HEADER: usize = 8;
const ICMP_HEADER: usize = 8;
const IPV6_HEADER: usize = 40;
const UDP: u8 = 17;
/// Type and code of "port unreachable" (RFC 792, RFC 4443).
const PORT_V4: [u8; 2] = [3, 3];
const PORT_V6: [u8; 2] = [1, 4];

/// A datagram that an ICMP message quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The address to which it was sent.
    pub remote: IpAddr,
    /// The quoted part of its payload.
    pub datagram: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    /// Error queue of a socket that sends.
    Queue { socket: OwnedFd, v4: bool },
    /// Raw socket: all ICMP messages that this host receives.
    Raw { socket: OwnedFd, v4: bool },
}

/// Subscription to messages about datagrams that no port received; ends when it is dropped.
#[derive(Debug)]
pub struct Undelivered {
    sources: Vec<Source>,
    any: Epoll,
}

impl Undelivered {
    fn new(sources: Vec<Source>) -> io::Result<Undelivered> {
        let any = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for source in &sources {
            // Error queues raise EPOLLERR, which epoll always reports.
            let events =
                if matches!(source, Source::Raw { .. }) { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            any.add(source.socket(), EpollEvent::new(events, 0))?;
        }
        Ok(Undelivered { sources, any })
    }

    /// Subscribes to the error queues of these sockets (true: IPv4).
    ///
    /// # Errors
    /// If a socket is not of its family.
    pub fn of_sockets(sockets: Vec<(OwnedFd, bool)>) -> io::Result<Undelivered> {
        let sources: Vec<Source> =
            sockets.into_iter().map(|(socket, v4)| Source::Queue { socket, v4 }).collect();
        sources.iter().try_for_each(|source| source.switch(true))?;
        Undelivered::new(sources)
    }

    /// Subscribes to all ICMP messages in the calling thread's network namespace. Skips an address family that the host
    /// does not have.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn of_host() -> io::Result<Undelivered> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let mut sources = Vec::new();
        for (family, protocol, v4) in [
            (AddressFamily::Inet, SockProtocol::Icmp, true),
            (AddressFamily::Inet6, SockProtocol::IcmpV6, false),
        ] {
            match socket(family, SockType::Raw, flags, protocol) {
                Ok(socket) => sources.push(Source::Raw { socket, v4 }),
                Err(Errno::EAFNOSUPPORT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Undelivered::new(sources)
    }

    /// Returns a descriptor that is readable when a message has arrived.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.any.0.as_fd()
    }

    /// Returns the next datagram that was refused with "port unreachable". Skips other messages.
    pub fn next(&self) -> Option<Quoted> {
        let mut room = [0; ROOM];
        self.sources.iter().find_map(|source| {
            loop {
                match source.receive(&mut room) {
                    Ok(Some(quoted)) => return Some(quoted),
                    Ok(None) => {}
                    Err(_) => return None,
                }
            }
        })
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        // The sockets stay in use: empty their queues, so that no old error is reported for a later datagram.
        for source in &self.sources {
            let _ = source.switch(false);
            let mut room = [0; ROOM];
            while matches!(source, Source::Queue { .. }) && source.receive(&mut room).is_ok() {}
        }
    }
}

impl Source {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Source::Queue { socket, .. } | Source::Raw { socket, .. } => socket.as_fd(),
        }
    }

    fn switch(&self, on: bool) -> io::Result<()> {
        match self {
            Source::Queue { socket, v4: true } => setsockopt(socket, sockopt::Ipv4RecvErr, &on)?,
            Source::Queue { socket, v4: false } => setsockopt(socket, sockopt::Ipv6RecvErr, &on)?,
            Source::Raw { .. } => {}
        }
        Ok(())
    }

    /// Reads the next message. `Ok(None)` if it is about something else.
    fn receive(&self, room: &mut [u8; ROOM]) -> io::Result<Option<Quoted>> {
        let queue = matches!(self, Source::Queue { .. });
        let flags = if queue { MsgFlags::MSG_ERRQUEUE } else { MsgFlags::empty() } | MsgFlags::MSG_DONTWAIT;
        let mut control = nix::cmsg_space!([u8; 128]);
        let mut pieces = [IoSliceMut::new(&mut room[..])];
        let message =
            recvmsg::<SockaddrStorage>(self.socket().as_raw_fd(), &mut pieces, Some(&mut control), flags)?;
        let (length, sent_to) = (message.bytes, message.address);
        let refused = message.cmsgs()?.any(|control| is_refusal(&control));
        let bytes = &room[..length];
        Ok(match self {
            Source::Queue { .. } => sent_to.filter(|_| refused).and_then(|to| {
                let v4 = to.as_sockaddr_in().map(|a| (IpAddr::V4(a.ip()), a.port()));
                let v6 = || to.as_sockaddr_in6().map(|a| (IpAddr::V6(a.ip()), a.port()));
                let (remote, port) = v4.or_else(v6)?;
                (port == ROCE_V2_PORT).then(|| Quoted { remote, datagram: bytes.to_vec() })
            }),
            Source::Raw { v4: true, .. } => behind_ipv4(bytes).and_then(quoted_v4),
            Source::Raw { v4: false, .. } => quoted_v6(bytes),
        })
    }
}

/// True if a host (not the local system) reported "port unreachable".
fn is_refusal(control: &nix::sys::socket::ControlMessageOwned) -> bool {
    use nix::sys::socket::ControlMessageOwned::{Ipv4RecvErr, Ipv6RecvErr};
    let (error, origin, wanted) = match control {
        Ipv4RecvErr(error, _) => (error, libc::SO_EE_ORIGIN_ICMP, PORT_V4),
        Ipv6RecvErr(error, _) => (error, libc::SO_EE_ORIGIN_ICMP6, PORT_V6),
        _ => return false,
    };
    error.ee_origin == origin && [error.ee_type, error.ee_code] == wanted
}

/// Returns the payload of an IPv4 packet. Raw sockets show the header.
fn behind_ipv4(packet: &[u8]) -> Option<&[u8]> {
    packet.get(usize::from(packet.first()? & 15) * 4..)
}

/// Returns the datagram that an ICMP message quotes.
fn quoted_v4(message: &[u8]) -> Option<Quoted> {
    let packet = of_port(message, PORT_V4)?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (packet.first()? >> 4 == 4 && packet[9] == UDP).then_some(())?;
    datagram(to.into(), behind_ipv4(packet)?)
}

/// Returns the datagram that an ICMPv6 message quotes.
fn quoted_v6(message: &[u8]) -> Option<Quoted> {
    let packet = of_port(message, PORT_V6)?;
    let to: [u8; 16] = packet.get(24..IPV6_HEADER)?.try_into().ok()?;
    (packet.first()? >> 4 == 6 && packet[6] == UDP).then_some(())?;
    datagram(to.into(), &packet[IPV6_HEADER..])
}

/// Returns the packet quoted in a message of this type and code.
fn of_port(message: &[u8], wanted: [u8; 2]) -> Option<&[u8]> {
    let packet = message.get(ICMP_HEADER..)?;
    (message[..2] == wanted).then_some(packet)
}

fn datagram(remote: IpAddr, udp: &[u8]) -> Option<Quoted> {
    let (header, datagram) = udp.split_at_checked(UDP_HEADER)?;
    let port = u16::from_be_bytes([header[2], header[3]]);
    (port == ROCE_V2_PORT).then(|| Quoted { remote, datagram: datagram.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(port: u16) -> Vec<u8> {
        let [high, low] = port.to_be_bytes();
        [&[0xc0, 0, high, low, 0, 12, 0, 0][..], b"bth+"].concat()
    }

    fn v4(kind: [u8; 2], protocol: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 63, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 9];
        packet.extend(udp(port));
        [&kind[..], &[0; 6], &packet].concat()
    }

    #[test]
    fn quoted_roce_datagram_is_parsed() {
        let quoted = quoted_v4(&v4(PORT_V4, UDP, 4791)).unwrap();
        assert_eq!((quoted.remote.to_string(), &quoted.datagram[..3]), ("192.0.2.9".into(), &b"bth"[..]));
        let mut packet = vec![0x60, 0, 0, 0, 0, 12, UDP, 64];
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.extend(udp(4791));
        let quoted = quoted_v6(&[&PORT_V6[..], &[0; 6], &packet].concat()).unwrap();
        assert_eq!((quoted.remote, &quoted.datagram[..3]), (IpAddr::from([0xfc; 16]), &b"bth"[..]));
    }

    #[test]
    fn other_and_truncated_messages_are_ignored() {
        let whole = v4(PORT_V4, UDP, 4791);
        for length in 0..ICMP_HEADER + 20 + UDP_HEADER {
            assert_eq!(quoted_v4(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(quoted_v4(&v4([3, 1], UDP, 4791)), None, "host unreachable");
        assert_eq!(quoted_v4(&v4([11, 0], UDP, 4791)), None, "time exceeded");
        assert_eq!(quoted_v4(&v4(PORT_V4, 6, 4791)), None, "TCP");
        assert_eq!(quoted_v4(&v4(PORT_V4, UDP, 53)), None, "another port");
        let mut long_header = whole;
        long_header[ICMP_HEADER] = 0x4f;
        assert_eq!(quoted_v4(&long_header), None, "a header that is longer than what was quoted");
    }
}
