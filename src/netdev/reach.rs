//! Whether a datagram of a socket would leave at once.
//!
//! What waits for a neighbour that does not answer lies in the kernel for seconds, at the expense of the socket that sent it. Who answers
//! strangers chooses not whom it answers, so it asks first.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Mutex, PoisonError};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::NeighbourState;

use super::NetNs;
use super::neighbour::{DISCARD, look_on, multicast, use_once, way_to};
use super::netlink::Netlink;

/// Asks the kernel about next hops, as sockets reach them: by whatever interface routing leads.
///
/// It belongs to the namespace of the thread that opened it; its methods may be called from any.
#[derive(Debug)]
pub struct Reach {
    namespace: NetNs,
    netlink: Mutex<Netlink>,
    /// The interface of link-local addresses.
    link: u32,
}

impl Reach {
    /// `link` is the index of the interface of link-local addresses; 0: there is none.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn open(link: u32) -> io::Result<Reach> {
        let namespace = NetNs::current().map_err(io::Error::other)?;
        Ok(Reach { namespace, netlink: Mutex::new(Netlink::open()?), link })
    }

    /// True if what is sent there leaves at once, or the kernel cannot say. False: the next hop has not answered yet, and is being asked.
    pub fn is_ready(&self, destination: IpAddr) -> bool {
        self.ask(destination).unwrap_or(true)
    }

    fn ask(&self, destination: IpAddr) -> io::Result<bool> {
        if destination.is_loopback() || multicast(destination).is_some() {
            return Ok(true);
        }
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        let way = match destination {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some((self.link, destination)),
            _ => way_to(&mut netlink, destination)?,
        };
        // This host itself, or a broadcast.
        let Some((link, next_hop)) = way else { return Ok(true) };
        let before = look_on(&mut netlink, link, next_hop)?;
        if before.mac.is_some() || before.is_fixed() {
            return Ok(true);
        }
        if before.state != NeighbourState::Incomplete {
            match self.provoke(&mut netlink, link, next_hop) {
                // As many are being asked as it keeps, for whomever: nothing can leave for one more.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
                other => other?,
            }
        }
        let now = look_on(&mut netlink, link, next_hop)?;
        if now.state == NeighbourState::None {
            return Ok(!has_neighbours(&mut netlink, link)?);
        }
        Ok(now.mac.is_some() || now.is_fixed())
    }

    fn provoke(&self, netlink: &mut Netlink, link: u32, next_hop: IpAddr) -> io::Result<()> {
        let datagram = || self.namespace.run(|| nudge(link, next_hop)).and_then(|sent| sent);
        // As in `Neighbours`: by itself the kernel solicits from a link-local address.
        if next_hop.is_ipv6() && datagram().is_ok() || use_once(netlink, link, next_hop)? {
            return Ok(());
        }
        datagram()
    }
}

/// False of a tunnel, a loopback: what is sent there leaves without a neighbour.
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

/// Has the kernel resolve a neighbour by an empty datagram to the discard port: for who may not ask for it.
fn nudge(link: u32, next_hop: IpAddr) -> io::Result<()> {
    let (any, to): (IpAddr, SocketAddr) = match next_hop {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), (next_hop, DISCARD).into()),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { link } else { 0 };
            (Ipv6Addr::UNSPECIFIED.into(), SocketAddrV6::new(ip, DISCARD, 0, scope).into())
        }
    };
    UdpSocket::bind((any, 0))?.send_to(&[], to).map(drop)
}
