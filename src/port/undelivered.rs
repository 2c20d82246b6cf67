//! What the network says of datagrams that found nobody: ICMP messages that quote them.
//!
//! Sockets keep those of their own datagrams in an error queue, for who asks for it (`IP_RECVERR`): that needs no privilege. Frames that pass
//! the kernel by have no socket, so their ICMP messages are read raw, which whoever may have AF_XDP may do. Either is on only as long
//! as an [`Undelivered`] is there.

use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvmsg, setsockopt, socket,
    sockopt,
};

use crate::frame::ROCE_V2_PORT;

/// Bytes of a message that are looked at: what Linux quotes at most, with headers.
const ROOM: usize = 2048;
const UDP_HEADER: usize = 8;
const ICMP_HEADER: usize = 8;
const IPV6_HEADER: usize = 40;
const UDP: u8 = 17;
/// Type and code of "port unreachable" (RFC 792, RFC 4443).
const PORT_V4: [u8; 2] = [3, 3];
const PORT_V6: [u8; 2] = [1, 4];

/// A datagram that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Where it was sent.
    pub remote: IpAddr,
    /// What was quoted of what it carried.
    pub datagram: Vec<u8>,
}

#[derive(Debug)]
enum Ear {
    /// The error queue of a socket that sends.
    Queue { socket: OwnedFd, v4: bool },
    /// All ICMP messages that come to this host.
    Raw { socket: OwnedFd, v4: bool },
}

/// Hears of datagrams that found nobody, from when it is made until it is dropped.
#[derive(Debug)]
pub struct Undelivered {
    ears: Vec<Ear>,
    any: Epoll,
}

impl Undelivered {
    fn new(ears: Vec<Ear>) -> io::Result<Undelivered> {
        let any = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for ear in &ears {
            // Error queues show as errors, which are always waited for.
            let events =
                if matches!(ear, Ear::Raw { .. }) { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            any.add(ear.socket(), EpollEvent::new(events, 0))?;
        }
        Ok(Undelivered { ears, any })
    }

    /// By the error queues of sockets that send; IPv4 or not.
    pub(super) fn of_sockets(sockets: Vec<(OwnedFd, bool)>) -> io::Result<Undelivered> {
        let ears: Vec<Ear> = sockets.into_iter().map(|(socket, v4)| Ear::Queue { socket, v4 }).collect();
        ears.iter().try_for_each(|ear| ear.switch(true))?;
        Undelivered::new(ears)
    }

    /// By all ICMP messages that come to the network namespace of the calling thread. A family that this host has not is left out.
    pub(super) fn of_host() -> io::Result<Undelivered> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let mut ears = Vec::new();
        for (family, protocol, v4) in [
            (AddressFamily::Inet, SockProtocol::Icmp, true),
            (AddressFamily::Inet6, SockProtocol::IcmpV6, false),
        ] {
            match socket(family, SockType::Raw, flags, protocol) {
                Ok(socket) => ears.push(Ear::Raw { socket, v4 }),
                Err(Errno::EAFNOSUPPORT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Undelivered::new(ears)
    }

    /// Readable when something came.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.any.0.as_fd()
    }

    /// The next datagram that came back because nobody takes it. What is said of others is skipped.
    pub fn next(&self) -> Option<Quoted> {
        let mut room = [0; ROOM];
        self.ears.iter().find_map(|ear| {
            loop {
                match ear.receive(&mut room) {
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
        // The sockets live on: what is queued is taken out, so that none of it meets a datagram later.
        for ear in &self.ears {
            let _ = ear.switch(false);
            let mut room = [0; ROOM];
            while matches!(ear, Ear::Queue { .. }) && ear.receive(&mut room).is_ok() {}
        }
    }
}

impl Ear {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Ear::Queue { socket, .. } | Ear::Raw { socket, .. } => socket.as_fd(),
        }
    }

    fn switch(&self, on: bool) -> io::Result<()> {
        match self {
            Ear::Queue { socket, v4: true } => setsockopt(socket, sockopt::Ipv4RecvErr, &on)?,
            Ear::Queue { socket, v4: false } => setsockopt(socket, sockopt::Ipv6RecvErr, &on)?,
            Ear::Raw { .. } => {}
        }
        Ok(())
    }

    /// The next message. `Ok(None)`: it is about something else.
    fn receive(&self, room: &mut [u8; ROOM]) -> io::Result<Option<Quoted>> {
        let queue = matches!(self, Ear::Queue { .. });
        let flags = if queue { MsgFlags::MSG_ERRQUEUE } else { MsgFlags::empty() } | MsgFlags::MSG_DONTWAIT;
        let mut control = nix::cmsg_space!([u8; 128]);
        let mut pieces = [IoSliceMut::new(&mut room[..])];
        let message =
            recvmsg::<SockaddrStorage>(self.socket().as_raw_fd(), &mut pieces, Some(&mut control), flags)?;
        let (length, sent_to) = (message.bytes, message.address);
        let refused = message.cmsgs()?.any(|control| is_refusal(&control));
        let bytes = &room[..length];
        Ok(match self {
            Ear::Queue { .. } => sent_to.filter(|_| refused).and_then(|to| {
                let v4 = to.as_sockaddr_in().map(|a| (IpAddr::V4(a.ip()), a.port()));
                let v6 = || to.as_sockaddr_in6().map(|a| (IpAddr::V6(a.ip()), a.port()));
                let (remote, port) = v4.or_else(v6)?;
                (port == ROCE_V2_PORT).then(|| Quoted { remote, datagram: bytes.to_vec() })
            }),
            Ear::Raw { v4: true, .. } => behind_ipv4(bytes).and_then(quoted_v4),
            Ear::Raw { v4: false, .. } => quoted_v6(bytes),
        })
    }
}

/// It says that nobody takes the datagram, and a host said so.
fn is_refusal(control: &nix::sys::socket::ControlMessageOwned) -> bool {
    use nix::sys::socket::ControlMessageOwned::{Ipv4RecvErr, Ipv6RecvErr};
    let (error, origin, wanted) = match control {
        Ipv4RecvErr(error, _) => (error, libc::SO_EE_ORIGIN_ICMP, PORT_V4),
        Ipv6RecvErr(error, _) => (error, libc::SO_EE_ORIGIN_ICMP6, PORT_V6),
        _ => return false,
    };
    error.ee_origin == origin && [error.ee_type, error.ee_code] == wanted
}

/// What follows the header of an IPv4 packet, which raw sockets show.
fn behind_ipv4(packet: &[u8]) -> Option<&[u8]> {
    packet.get(usize::from(packet.first()? & 15) * 4..)
}

/// By an ICMP message.
fn quoted_v4(message: &[u8]) -> Option<Quoted> {
    let packet = of_port(message, PORT_V4)?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (packet.first()? >> 4 == 4 && packet[9] == UDP).then_some(())?;
    datagram(to.into(), behind_ipv4(packet)?)
}

/// By an ICMPv6 message.
fn quoted_v6(message: &[u8]) -> Option<Quoted> {
    let packet = of_port(message, PORT_V6)?;
    let to: [u8; 16] = packet.get(24..IPV6_HEADER)?.try_into().ok()?;
    (packet.first()? >> 4 == 6 && packet[6] == UDP).then_some(())?;
    datagram(to.into(), &packet[IPV6_HEADER..])
}

/// The packet in a message of this type and code.
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
    fn a_datagram_for_roce_that_nobody_took_is_read_out_of_the_message_that_quotes_it() {
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
    fn other_messages_and_pieces_of_one_are_none() {
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
