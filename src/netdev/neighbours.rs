//! The neighbours that somebody sends to: resolved, kept fresh, followed, and released in the end.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_packet_core::NetlinkPayload;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::neighbour::{
    BROADCAST_MAC, Entry, NeighbourError, Route, ask, hop_limit_of_route, kernel, look, multicast, nudge,
    release, route, subject,
};
use super::netlink::{Netlink, messages};
use super::{Interface, NetNs};

/// The hop limit of IP packets unless something else is set (RFC 1700, `IPDEFTTL`).
const USUAL_HOP_LIMIT: u8 = 64;
/// How often the table is looked at while the kernel asks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// `RTNLGRP_NEIGH` (`include/uapi/linux/rtnetlink.h`).
const GROUP: u32 = 3;

/// The neighbours of one interface that were asked for. Dropping it releases those that the kernel keeps for its sake.
///
/// It belongs to the namespace of the thread that opened it; its methods may be called from any.
#[derive(Debug)]
pub struct Neighbours {
    namespace: NetNs,
    events: Socket,
    /// Requests, one at a time.
    netlink: Mutex<Netlink>,
    known: Mutex<Known>,
}

/// Ways that are followed: as many as were resolved for somebody, and for strangers. Of each kind the one goes that was asked for longest ago.
const MOST: [usize; 2] = [4096, 1024];

/// What was found so far.
#[derive(Debug)]
struct Known {
    interface: Interface,
    /// Who was asked for last is the last.
    ways: Vec<Way>,
    /// Next hops that the kernel manages because it was asked to from here, and that have not answered.
    asked: Vec<IpAddr>,
}

/// The way to one destination.
#[derive(Clone, Debug)]
struct Way {
    destination: IpAddr,
    next_hop: IpAddr,
    mac: [u8; 6],
    /// The kernel manages the next hop because it was asked to from here.
    ours: bool,
    /// Asked for by a stranger alone.
    fleeting: bool,
}

/// Whom a destination needs to be asked for.
enum Hop {
    /// Nobody: it is known.
    Known([u8; 6]),
    Neighbour(IpAddr),
}

impl Neighbours {
    /// Opens sockets in the calling thread's namespace, which is that of `interface`.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub fn open(interface: &Interface) -> Result<Neighbours, NeighbourError> {
        let open = || {
            let mut events = Socket::new(NETLINK_ROUTE)?;
            events.bind(&SocketAddr::new(0, 0))?;
            events.add_membership(GROUP)?;
            events.set_non_blocking(true)?;
            Ok((events, Netlink::open()?, NetNs::current().map_err(io::Error::other)?))
        };
        let action = || format!("watch the neighbours of {}", interface.name);
        let (events, netlink, namespace) = open().map_err(|e| kernel(action(), e))?;
        let known = Mutex::new(Known { interface: interface.clone(), ways: Vec::new(), asked: Vec::new() });
        Ok(Neighbours { namespace, events, netlink: Mutex::new(netlink), known })
    }

    /// The station address for frames from `interface` to `destination`, with the kernel keeping it fresh.
    ///
    /// An address of the interface is its own station address, multicast maps by rule (RFC 1112 6.4, RFC 2464 7),
    /// broadcast is broadcast, and what lies behind a gateway is the gateway's. Blocks up to `timeout`; a known
    /// neighbour is answered at once. `interface` is as it is now: it may have changed since it was opened.
    ///
    /// # Errors
    /// [`NeighbourError`] tells a missing route from a silent neighbour.
    pub fn resolve(
        &self,
        interface: &Interface,
        destination: IpAddr,
        timeout: Duration,
    ) -> Result<[u8; 6], NeighbourError> {
        let next_hop = match self.hop(interface, destination)? {
            Hop::Known(mac) => return Ok(mac),
            Hop::Neighbour(next_hop) => next_hop,
        };
        let start = Instant::now();
        let mut entry = look(&mut self.netlink(), interface, next_hop)?;
        let mut ours = false;
        if !entry.is_fixed() {
            if !interface.running && entry.mac.is_none() {
                return Err(NeighbourError::LinkDown { interface: interface.name.clone(), destination });
            }
            ours = self.keep(interface, next_hop, &entry)?;
        }
        loop {
            if let Some(mac) = entry.mac {
                self.remember(interface, Way { destination, next_hop, mac, ours, fleeting: false });
                return Ok(mac);
            }
            if start.elapsed() >= timeout {
                if ours {
                    release(&mut self.netlink(), interface, next_hop)?;
                }
                return Err(NeighbourError::Unanswered {
                    destination,
                    next_hop,
                    interface: interface.name.clone(),
                    waited_ms: start.elapsed().as_millis(),
                    state: entry.state.to_string(),
                });
            }
            sleep(LOOK_EVERY);
            entry = look(&mut self.netlink(), interface, next_hop)?;
        }
    }

    /// The same without waiting, for a destination that a stranger names; `None`: the kernel is asking for it. Whoever does not want to
    /// know any more says so to [`Neighbours::give_up`].
    ///
    /// # Errors
    /// As [`Neighbours::resolve`], but for a neighbour that is silent.
    pub fn resolve_now(
        &self,
        interface: &Interface,
        destination: IpAddr,
    ) -> Result<Option<[u8; 6]>, NeighbourError> {
        let next_hop = match self.hop(interface, destination)? {
            Hop::Known(mac) => return Ok(Some(mac)),
            Hop::Neighbour(next_hop) => next_hop,
        };
        let entry = look(&mut self.netlink(), interface, next_hop)?;
        if !entry.is_fixed() && !entry.managed {
            if !interface.running && entry.mac.is_none() {
                return Err(NeighbourError::LinkDown { interface: interface.name.clone(), destination });
            }
            if self.keep(interface, next_hop, &entry)? {
                let mut known = lock(&self.known);
                if !known.asked.contains(&next_hop) {
                    known.asked.push(next_hop);
                }
            }
        }
        if let Some(mac) = entry.mac {
            let ours = lock(&self.known).answered(next_hop);
            self.remember(interface, Way { destination, next_hop, mac, ours, fleeting: true });
        }
        Ok(entry.mac)
    }

    /// A destination that was asked for and is silent is not wanted any more: the kernel forgets it.
    pub fn give_up(&self, interface: &Interface, destination: IpAddr) {
        let Ok(Hop::Neighbour(next_hop)) = self.hop(interface, destination) else { return };
        if lock(&self.known).answered(next_hop) {
            // If the kernel refuses, it asks a little longer.
            let _ = release(&mut self.netlink(), interface, next_hop);
        }
    }

    /// Returns the hop limit that the kernel gives packets from `interface` to `destination`: that of the route, else that of the namespace
    /// (IPv4) or of the interface (IPv6, where router advertisements set it). 64 where the kernel does not tell.
    pub fn hop_limit(&self, interface: &Interface, destination: IpAddr) -> u8 {
        if let Some(hops) = hop_limit_of_route(&mut self.netlink(), interface, destination) {
            return hops;
        }
        let file = match destination {
            IpAddr::V4(_) => "/proc/sys/net/ipv4/ip_default_ttl".to_owned(),
            IpAddr::V6(_) => format!("/proc/sys/net/ipv6/conf/{}/hop_limit", interface.name),
        };
        let text = self.namespace.run(|| fs::read_to_string(file)).and_then(|read| read);
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_HOP_LIMIT)
    }

    /// Destinations that are followed.
    pub fn followed(&self) -> usize {
        lock(&self.known).ways.len()
    }

    /// Where frames for a destination go first.
    fn hop(&self, interface: &Interface, destination: IpAddr) -> Result<Hop, NeighbourError> {
        if interface.has_address(destination) || destination.is_loopback() {
            return Ok(Hop::Known(interface.mac));
        }
        if let Some(mac) = multicast(destination) {
            return Ok(Hop::Known(mac));
        }
        Ok(match route(&mut self.netlink(), interface, destination)? {
            Route::Own => Hop::Known(interface.mac),
            Route::Broadcast => Hop::Known(BROADCAST_MAC),
            Route::Via(next_hop) => Hop::Neighbour(next_hop),
        })
    }

    /// The destinations to which frames must carry another station address from now on. Does not block.
    ///
    /// A neighbour that the kernel was made to forget (`ip neigh flush`, a link that was down) is asked for again.
    pub fn poll(&self, interface: &Interface) -> Vec<(IpAddr, [u8; 6])> {
        let Some(told) = self.drain(interface.index) else { return Vec::new() };
        self.refresh(interface, |next_hop| told.as_ref().is_none_or(|told| told.contains(&next_hop)))
    }

    /// As [`Neighbours::poll`], looking at every neighbour: the link was down, or the interface changed.
    pub fn look_again(&self, interface: &Interface) -> Vec<(IpAddr, [u8; 6])> {
        self.refresh(interface, |_| true)
    }

    fn refresh(&self, interface: &Interface, concerned: impl Fn(IpAddr) -> bool) -> Vec<(IpAddr, [u8; 6])> {
        let mut known = lock(&self.known);
        known.interface.clone_from(interface);
        let mut moved = Vec::new();
        for way in known.ways.iter_mut().filter(|way| concerned(way.next_hop)) {
            let Ok(entry) = look(&mut self.netlink(), interface, way.next_hop) else { continue };
            if !entry.is_fixed() && !entry.managed && interface.running {
                // If the kernel refuses now, the next message about it is the next chance.
                way.ours |= self.keep(interface, way.next_hop, &entry).unwrap_or(false);
            }
            if let Some(mac) = entry.mac.filter(|mac| *mac != way.mac) {
                way.mac = mac;
                moved.push((way.destination, mac));
            }
        }
        moved
    }

    /// Has the kernel keep a neighbour. True if it was not managed before and is now.
    fn keep(&self, interface: &Interface, next_hop: IpAddr, before: &Entry) -> Result<bool, NeighbourError> {
        let datagram = || self.namespace.run(|| nudge(interface, next_hop)).and_then(|sent| sent);
        // By itself the kernel solicits an IPv6 neighbour from a link-local address, which an interface has a second or two after it came up.
        // For a datagram it solicits from the datagram's source.
        let is_sent = next_hop.is_ipv6() && before.mac.is_none() && datagram().is_ok();
        if !ask(&mut self.netlink(), interface, next_hop)? && !is_sent {
            let action = || format!("send a datagram to {next_hop} on {}", interface.name);
            datagram().map_err(|e| kernel(action(), e))?;
        }
        Ok(!before.managed && look(&mut self.netlink(), interface, next_hop)?.managed)
    }

    fn remember(&self, interface: &Interface, way: Way) {
        let mut known = lock(&self.known);
        known.interface.clone_from(interface);
        let left = known.remember(way);
        drop(known);
        for next_hop in left {
            // If the kernel refuses, it keeps one neighbour more.
            let _ = release(&mut self.netlink(), interface, next_hop);
        }
    }

    /// Empties the socket. `None`: there was nothing. `Some(None)`: messages were lost, anything may have changed.
    fn drain(&self, index: u32) -> Option<Option<Vec<IpAddr>>> {
        let mut news = false;
        let mut lost = false;
        let mut told = Vec::new();
        loop {
            match self.events.recv_from_full() {
                Ok((datagram, _)) => {
                    news = true;
                    told.extend(messages(&datagram).flatten().filter_map(|message| match message.payload {
                        NetlinkPayload::InnerMessage(inner) => subject(&inner, index),
                        _ => None,
                    }));
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        (news || lost).then(|| (!lost).then_some(told))
    }

    fn netlink(&self) -> MutexGuard<'_, Netlink> {
        lock(&self.netlink)
    }
}

impl Known {
    /// Makes a way the latest. Gives the neighbours that the kernel need not keep any more: of the way that it takes the place of, and of
    /// the one that makes room.
    fn remember(&mut self, way: Way) -> Vec<IpAddr> {
        let old = self.ways.iter().position(|known| known.destination == way.destination);
        let mut way = way;
        let mut left = Vec::new();
        if let Some(old) = old.map(|at| self.ways.remove(at)) {
            way.fleeting &= old.fleeting;
            if old.next_hop == way.next_hop {
                way.ours |= old.ours;
            } else {
                left.extend(self.let_go(&old));
            }
        }
        let (fleeting, most) = (way.fleeting, MOST[usize::from(way.fleeting)]);
        self.ways.push(way);
        let alike = |known: &&Way| known.fleeting == fleeting;
        if self.ways.iter().filter(alike).count() > most
            && let Some(oldest) = self.ways.iter().position(|known| known.fleeting == fleeting)
        {
            let oldest = self.ways.remove(oldest);
            left.extend(self.let_go(&oldest));
        }
        left
    }

    /// A way is not followed any more. Gives its neighbour if it was kept from here, and for this way alone.
    fn let_go(&mut self, gone: &Way) -> Option<IpAddr> {
        if !gone.ours {
            return None;
        }
        match self.ways.iter_mut().find(|way| way.next_hop == gone.next_hop) {
            Some(heir) => {
                heir.ours = true;
                None
            }
            None => Some(gone.next_hop),
        }
    }

    /// A neighbour is not waited for any more. True: the kernel manages it for the sake of that.
    fn answered(&mut self, next_hop: IpAddr) -> bool {
        let place = self.asked.iter().position(|asked| *asked == next_hop);
        place.map(|place| self.asked.swap_remove(place)).is_some()
    }
}

impl AsFd for Neighbours {
    /// Readable when it is worth while to poll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        let known = lock(&self.known);
        let ours = known.ways.iter().filter(|way| way.ours).map(|way| way.next_hop);
        for next_hop in ours.chain(known.asked.iter().copied()) {
            // If the interface is gone, so is the entry.
            let _ = release(&mut self.netlink(), &known.interface, next_hop);
        }
    }
}

/// The station address for frames from `interface` to `destination`, asked once and not kept: as
/// [`Neighbours::resolve`], in the calling thread's namespace.
///
/// # Errors
/// [`NeighbourError`] tells a missing route from a silent neighbour.
pub fn resolve(
    interface: &Interface,
    destination: IpAddr,
    timeout: Duration,
) -> Result<[u8; 6], NeighbourError> {
    Neighbours::open(interface)?.resolve(interface, destination, timeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let interface = Interface {
            index: 1,
            name: "left".into(),
            mac: [2; 6],
            mtu: 1500,
            up: true,
            running: true,
            driver: "veth".into(),
            rx_queues: 1,
            addresses: Vec::new(),
            xdp_program: None,
        };
        Known { interface, ways: Vec::new(), asked: Vec::new() }
    }

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn way(destination: u32, next_hop: u32, ours: bool, fleeting: bool) -> Way {
        Way { destination: ip(destination), next_hop: ip(next_hop), mac: [3; 6], ours, fleeting }
    }

    /// Two destinations behind one gateway: it is kept until neither needs it.
    #[test]
    fn a_gateway_is_let_go_with_the_last_destination_behind_it() {
        let mut known = known();
        assert!(known.remember(way(1, 100, true, false)).is_empty());
        // The kernel manages it already when the second is asked for.
        assert!(known.remember(way(2, 100, false, false)).is_empty());
        assert!(known.remember(way(1, 101, true, false)).is_empty(), "the second still goes there");
        assert_eq!(known.remember(way(2, 101, false, false)), [ip(100)]);
        assert!(known.remember(way(1, 102, true, false)).is_empty());
        assert_eq!(known.remember(way(2, 102, false, false)), [ip(101)]);
    }

    /// The way to a host changes when there are as many as can be followed: two ways go, and both neighbours.
    #[test]
    fn two_neighbours_are_let_go_when_two_ways_go_at_once() {
        let mut known = known();
        known.remember(way(9, 109, true, true));
        for n in 0..MOST[0] as u32 {
            assert!(known.remember(way(1000 + n, 10_000 + n, true, false)).is_empty());
        }
        // A stranger's becomes one that somebody asked for, by another gateway.
        assert_eq!(known.remember(way(9, 110, true, false)), [ip(109), ip(10_000)]);
        assert_eq!(known.ways.len(), MOST[0]);
    }

    /// Strangers come and go; who was asked for by somebody here stays, though a stranger names it too.
    #[test]
    fn a_flood_of_strangers_ends_no_way_that_somebody_asked_for() {
        let mut known = known();
        known.remember(way(1, 1, true, false));
        known.remember(way(1, 1, true, true));
        known.remember(way(2, 2, true, true));
        let strangers = 10_000..10_000 + MOST[1] as u32;
        let left: Vec<_> = strangers.flat_map(|n| known.remember(way(n, n, true, true))).collect();
        assert_eq!(left, [ip(2)], "the oldest stranger alone");
        assert!(known.ways.iter().any(|way| way.destination == ip(1)));
        assert_eq!(known.ways.len(), 1 + MOST[1]);
    }
}
