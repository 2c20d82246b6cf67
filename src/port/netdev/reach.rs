//! Tells whether a socket's datagram would be sent immediately.
//!
//! A datagram to a neighbour that does not answer stays in the kernel for seconds, and occupies the buffer of its
//! socket. A server that replies to arbitrary hosts therefore checks first.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, PoisonError};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::NeighbourState;

use super::NetNs;
use super::neighbour::{DISCARD, RouteKey, lookup_on, multicast, path_to, socket_from, use_once};
use super::netlink::Netlink;

/// Asks the kernel about next hops, through the interface that routing selects, as sockets do.
///
/// Acts in the namespace of the thread that opened it; any thread may call its methods.
#[derive(Debug)]
pub struct Reach {
    namespace: NetNs,
    netlink: Mutex<Netlink>,
    /// Index of the interface for link-local addresses.
    link: u32,
}

impl Reach {
    /// `link` is the index of the interface for link-local addresses; 0 if there is none.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn open(link: u32) -> io::Result<Reach> {
        let namespace = NetNs::current().map_err(io::Error::other)?;
        Ok(Reach { namespace, netlink: Mutex::new(Netlink::open()?), link })
    }

    /// True if a datagram along the route of `key` is sent immediately, or the kernel cannot say. False if the next hop
    /// has not answered yet; the kernel is resolving it then.
    pub fn is_ready(&self, key: RouteKey) -> bool {
        self.check(key).unwrap_or(true)
    }

    fn check(&self, key: RouteKey) -> io::Result<bool> {
        let destination = key.destination;
        if destination.is_loopback() || multicast(destination).is_some() {
            return Ok(true);
        }
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        let path = match destination {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some((self.link, destination)),
            _ => path_to(&mut netlink, key)?,
        };
        // No unicast route: this host itself, or a broadcast.
        let Some((link, next_hop)) = path else { return Ok(true) };
        let before = lookup_on(&mut netlink, link, next_hop)?;
        if before.mac.is_some() || before.is_fixed() {
            return Ok(true);
        }
        if before.state != NeighbourState::Incomplete {
            match self.provoke(&mut netlink, link, key.source, next_hop) {
                // The neighbour table is full (ENOBUFS): no further neighbour can be resolved now.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
                other => other?,
            }
        }
        let now = lookup_on(&mut netlink, link, next_hop)?;
        if now.state == NeighbourState::None {
            return Ok(!has_neighbours(&mut netlink, link)?);
        }
        Ok(now.mac.is_some() || now.is_fixed())
    }

    fn provoke(&self, netlink: &mut Netlink, link: u32, source: IpAddr, next_hop: IpAddr) -> io::Result<()> {
        let datagram = || self.namespace.run(|| nudge(link, source, next_hop)).and_then(|sent| sent);
        // As in `Neighbours`: for its own solicitations the kernel needs a link-local source address.
        if next_hop.is_ipv6() && datagram().is_ok() || use_once(netlink, link, next_hop)? {
            return Ok(());
        }
        datagram()
    }
}

/// False for a tunnel or a loopback: they send without a neighbour.
fn has_neighbours(netlink: &mut Netlink, link: u32) -> io::Result<bool> {
    let mut message = LinkMessage::default();
    message.header.index = link;
    let answers = netlink.request(RouteNetlinkMessage::GetLink(message), 0)?;
    Ok(answers.iter().any(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => {
            !link.header.flags.intersects(LinkFlags::Noarp | LinkFlags::Pointopoint | LinkFlags::Loopback)
        }
        _ => false,
    }))
}

/// Makes the kernel resolve a neighbour by an empty datagram from `source` to its discard port, which needs no
/// privilege.
fn nudge(link: u32, source: IpAddr, next_hop: IpAddr) -> io::Result<()> {
    let to: SocketAddr = match next_hop {
        IpAddr::V4(_) => (next_hop, DISCARD).into(),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { link } else { 0 };
            SocketAddrV6::new(ip, DISCARD, 0, scope).into()
        }
    };
    socket_from(source, next_hop)?.send_to(&[], to).map(drop)
}
