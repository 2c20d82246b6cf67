//! Membership in a multicast group, held by a socket.
//!
//! As long as a socket is a member, the kernel answers IGMP and MLD queries, announces the membership to switches, and
//! opens the station's filter for the group's address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use super::Interface;

/// A socket's membership on one interface. Dropping it leaves the group.
#[derive(Debug)]
pub struct Membership {
    socket: UdpSocket,
    group: IpAddr,
    /// Address by which IPv4 identifies the interface.
    address: Ipv4Addr,
    index: u32,
}

impl Membership {
    /// Joins with a socket of its own, which receives nothing, in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel's error: too many groups (`net.ipv4.igmp_max_memberships`), or no such address.
    pub fn join(interface: &Interface, group: IpAddr) -> io::Result<Membership> {
        let any: IpAddr = match group {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        Membership::of(UdpSocket::bind((any, 0))?, interface, group)
    }

    /// Joins with an existing socket, which then receives datagrams to the group.
    ///
    /// # Errors
    /// As [`Membership::join`].
    pub fn of(socket: UdpSocket, interface: &Interface, group: IpAddr) -> io::Result<Membership> {
        let addresses = interface.addresses.iter().map(|a| a.ip);
        let first = addresses.filter_map(|ip| match ip {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        });
        // Without an address the kernel takes the interface of the group's route.
        let address = first.into_iter().next().unwrap_or(Ipv4Addr::UNSPECIFIED);
        match group {
            IpAddr::V4(v4) => socket.join_multicast_v4(&v4, &address)?,
            IpAddr::V6(v6) => socket.join_multicast_v6(&v6, interface.index)?,
        }
        Ok(Membership { socket, group, address, index: interface.index })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // Fails only if the interface is gone, and the membership with it.
        let _ = match self.group {
            IpAddr::V4(v4) => self.socket.leave_multicast_v4(&v4, &self.address),
            IpAddr::V6(v6) => self.socket.leave_multicast_v6(&v6, self.index),
        };
    }
}
