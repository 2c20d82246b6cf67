//! The neighbours in use: resolves them, has the kernel keep them fresh, follows changes, and releases them in the end.

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
    BROADCAST_MAC, Entry, NeighbourError, Route, RouteKey, hop_limit_of_route, kernel, lookup, multicast,
    nudge, release, request_resolution, route, subject,
};
use super::netlink::{Netlink, messages};
use super::{Interface, NetNs};

/// The default hop limit of IP packets (RFC 1700, `IPDEFTTL`).
const DEFAULT_HOP_LIMIT: u8 = 64;
/// Interval of looking at the table while the kernel resolves.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// `RTNLGRP_NEIGH` (`include/uapi/linux/rtnetlink.h`).
const GROUP: u32 = 3;

/// Resolves and follows neighbours of one interface. Dropping it releases the entries that the kernel manages for it.
///
/// Acts in the namespace of the thread that opened it; any thread may call its methods.
#[derive(Debug)]
pub struct Neighbours {
    namespace: NetNs,
    events: Socket,
    /// Requests, one at a time.
    netlink: Mutex<Netlink>,
    known: Mutex<Known>,
}

/// Most paths followed: those resolved for local use, and unsolicited ones. Beyond that, the path of the same kind that
/// was resolved longest ago is evicted.
const MOST: [usize; 2] = [4096, 1024];

/// The state of [`Neighbours`].
#[derive(Debug)]
struct Known {
    interface: Interface,
    /// In the order of resolution, newest last.
    paths: Vec<Path>,
    /// Next hops that the kernel manages on our request and that have not answered yet.
    pending: Vec<IpAddr>,
}

/// The path to one destination from one source.
#[derive(Clone, Debug)]
struct Path {
    key: RouteKey,
    next_hop: IpAddr,
    mac: [u8; 6],
    /// True if the kernel manages the next hop on our request.
    ours: bool,
    /// True if only a remote host named the destination; no local use resolved it.
    unsolicited: bool,
}

/// First hop to a destination.
enum Hop {
    /// The station address is known by rule.
    Known([u8; 6]),
    Neighbour(IpAddr),
}

impl Neighbours {
    /// Opens sockets in the calling thread's namespace, which must be the namespace of `interface`.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
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
        let known =
            Mutex::new(Known { interface: interface.clone(), paths: Vec::new(), pending: Vec::new() });
        Ok(Neighbours { namespace, events, netlink: Mutex::new(netlink), known })
    }

    /// Returns the station address for frames from `interface` along the route of `key`; the kernel keeps it fresh
    /// afterwards.
    ///
    /// An address of the interface maps to its own station address, multicast maps by rule (RFC 1112 6.4, RFC 2464 7),
    /// broadcast is broadcast, and a destination behind a gateway maps to the gateway's. Blocks up to `timeout`;
    /// returns immediately for a known neighbour. `interface` is its current state, which may have changed since
    /// `open`.
    ///
    /// # Errors
    /// [`NeighbourError`] tells a missing route from a silent neighbour.
    pub fn resolve(
        &self,
        interface: &Interface,
        key: RouteKey,
        timeout: Duration,
    ) -> Result<[u8; 6], NeighbourError> {
        let destination = key.destination;
        let next_hop = match self.hop(interface, key)? {
            Hop::Known(mac) => return Ok(mac),
            Hop::Neighbour(next_hop) => next_hop,
        };
        let start = Instant::now();
        let mut entry = lookup(&mut self.netlink(), interface, next_hop)?;
        let mut ours = false;
        if !entry.is_fixed() {
            if !interface.running && entry.mac.is_none() {
                return Err(NeighbourError::LinkDown { interface: interface.name.clone(), destination });
            }
            ours = self.keep(interface, key.source, next_hop, &entry)?;
        }
        loop {
            if let Some(mac) = entry.mac {
                self.remember(interface, Path { key, next_hop, mac, ours, unsolicited: false });
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
            entry = lookup(&mut self.netlink(), interface, next_hop)?;
        }
    }

    /// Resolves without blocking, for a destination that a remote host named. `None` while the kernel is resolving. If
    /// the answer is no longer needed, call [`Neighbours::give_up`].
    ///
    /// # Errors
    /// As [`Neighbours::resolve`], except that a silent neighbour is no error.
    pub fn resolve_now(
        &self,
        interface: &Interface,
        key: RouteKey,
    ) -> Result<Option<[u8; 6]>, NeighbourError> {
        let next_hop = match self.hop(interface, key)? {
            Hop::Known(mac) => return Ok(Some(mac)),
            Hop::Neighbour(next_hop) => next_hop,
        };
        let entry = lookup(&mut self.netlink(), interface, next_hop)?;
        if !entry.is_fixed() && !entry.managed {
            if !interface.running && entry.mac.is_none() {
                let destination = key.destination;
                return Err(NeighbourError::LinkDown { interface: interface.name.clone(), destination });
            }
            if self.keep(interface, key.source, next_hop, &entry)? {
                let mut known = lock(&self.known);
                if !known.pending.contains(&next_hop) {
                    known.pending.push(next_hop);
                }
            }
        }
        if let Some(mac) = entry.mac {
            let ours = lock(&self.known).take_pending(next_hop);
            self.remember(interface, Path { key, next_hop, mac, ours, unsolicited: true });
        }
        Ok(entry.mac)
    }

    /// Cancels the resolution of a silent destination: the kernel forgets its entry.
    pub fn give_up(&self, interface: &Interface, key: RouteKey) {
        let Ok(Hop::Neighbour(next_hop)) = self.hop(interface, key) else { return };
        if lock(&self.known).take_pending(next_hop) {
            // If the kernel refuses, it keeps asking a little longer.
            let _ = release(&mut self.netlink(), interface, next_hop);
        }
    }

    /// Returns the hop limit that the kernel gives packets from `interface` along the route of `key`: the route's, else
    /// the namespace's (IPv4) or of the interface (IPv6, where router advertisements set it). 64 if the kernel does not
    /// tell.
    pub fn hop_limit(&self, interface: &Interface, key: RouteKey) -> u8 {
        if let Some(hops) = hop_limit_of_route(&mut self.netlink(), interface, key) {
            return hops;
        }
        let file = match key.destination {
            IpAddr::V4(_) => "/proc/sys/net/ipv4/ip_default_ttl".to_owned(),
            IpAddr::V6(_) => format!("/proc/sys/net/ipv6/conf/{}/hop_limit", interface.name),
        };
        let text = self.namespace.run(|| fs::read_to_string(file)).and_then(|read| read);
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_HOP_LIMIT)
    }

    /// Returns the number of paths followed.
    pub fn followed(&self) -> usize {
        lock(&self.known).paths.len()
    }

    /// Returns the first hop to a destination.
    fn hop(&self, interface: &Interface, key: RouteKey) -> Result<Hop, NeighbourError> {
        let destination = key.destination;
        if interface.has_address(destination) || destination.is_loopback() {
            return Ok(Hop::Known(interface.mac));
        }
        if let Some(mac) = multicast(destination) {
            return Ok(Hop::Known(mac));
        }
        Ok(match route(&mut self.netlink(), interface, key)? {
            Route::Own => Hop::Known(interface.mac),
            Route::Broadcast => Hop::Known(BROADCAST_MAC),
            Route::Via(next_hop) => Hop::Neighbour(next_hop),
        })
    }

    /// Returns the paths with a changed station address, and the new one. Does not block.
    ///
    /// Resolves again a neighbour that the kernel has forgotten (`ip neigh flush`, a link that was down).
    pub fn poll(&self, interface: &Interface) -> Vec<(RouteKey, [u8; 6])> {
        let Some(changed) = self.drain(interface.index) else { return Vec::new() };
        self.refresh(interface, |next_hop| changed.as_ref().is_none_or(|changed| changed.contains(&next_hop)))
    }

    /// As [`Neighbours::poll`], for every neighbour: use after the link was down or the interface changed.
    pub fn poll_all(&self, interface: &Interface) -> Vec<(RouteKey, [u8; 6])> {
        self.refresh(interface, |_| true)
    }

    fn refresh(&self, interface: &Interface, concerned: impl Fn(IpAddr) -> bool) -> Vec<(RouteKey, [u8; 6])> {
        let mut known = lock(&self.known);
        known.interface.clone_from(interface);
        let mut moved = Vec::new();
        for path in known.paths.iter_mut().filter(|path| concerned(path.next_hop)) {
            let Ok(entry) = lookup(&mut self.netlink(), interface, path.next_hop) else { continue };
            if !entry.is_fixed() && !entry.managed && interface.running {
                // If the kernel refuses now, the next message about it retries.
                path.ours |= self.keep(interface, path.key.source, path.next_hop, &entry).unwrap_or(false);
            }
            if let Some(mac) = entry.mac.filter(|mac| *mac != path.mac) {
                path.mac = mac;
                moved.push((path.key, mac));
            }
        }
        moved
    }

    /// Has the kernel manage a neighbour. True if it was not managed before and is now.
    fn keep(
        &self,
        interface: &Interface,
        source: IpAddr,
        next_hop: IpAddr,
        before: &Entry,
    ) -> Result<bool, NeighbourError> {
        let datagram = || self.namespace.run(|| nudge(interface, source, next_hop)).and_then(|sent| sent);
        // For its own solicitations in IPv6 the kernel needs a link-local source address, which an interface has a
        // second or two after it came up. For a datagram it uses the datagram's source.
        let is_sent = next_hop.is_ipv6() && before.mac.is_none() && datagram().is_ok();
        if !request_resolution(&mut self.netlink(), interface, next_hop)? && !is_sent {
            let action = || format!("send a datagram to {next_hop} on {}", interface.name);
            datagram().map_err(|e| kernel(action(), e))?;
        }
        Ok(!before.managed && lookup(&mut self.netlink(), interface, next_hop)?.managed)
    }

    fn remember(&self, interface: &Interface, path: Path) {
        let mut known = lock(&self.known);
        known.interface.clone_from(interface);
        let released = known.remember(path);
        drop(known);
        for next_hop in released {
            // If the kernel refuses, it keeps one neighbour too many.
            let _ = release(&mut self.netlink(), interface, next_hop);
        }
    }

    /// Drains the socket. `None` if it was empty. `Some(None)` if messages were lost: anything may have changed.
    fn drain(&self, index: u32) -> Option<Option<Vec<IpAddr>>> {
        let mut news = false;
        let mut lost = false;
        let mut changed = Vec::new();
        loop {
            match self.events.recv_from_full() {
                Ok((datagram, _)) => {
                    news = true;
                    changed.extend(messages(&datagram).flatten().filter_map(
                        |message| match message.payload {
                            NetlinkPayload::InnerMessage(inner) => subject(&inner, index),
                            _ => None,
                        },
                    ));
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => lost = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        (news || lost).then(|| (!lost).then_some(changed))
    }

    fn netlink(&self) -> MutexGuard<'_, Netlink> {
        lock(&self.netlink)
    }
}

impl Known {
    /// Adds a path as the newest. Returns the neighbours that need no longer be managed: the neighbour of the path it
    /// replaces, and the neighbour of an evicted path.
    fn remember(&mut self, path: Path) -> Vec<IpAddr> {
        let old = self.paths.iter().position(|known| known.key == path.key);
        let mut path = path;
        let mut released = Vec::new();
        if let Some(old) = old.map(|at| self.paths.remove(at)) {
            path.unsolicited &= old.unsolicited;
            if old.next_hop == path.next_hop {
                path.ours |= old.ours;
            } else {
                released.extend(self.remove_path(&old));
            }
        }
        let (unsolicited, most) = (path.unsolicited, MOST[usize::from(path.unsolicited)]);
        self.paths.push(path);
        let alike = |known: &&Path| known.unsolicited == unsolicited;
        if self.paths.iter().filter(alike).count() > most
            && let Some(oldest) = self.paths.iter().position(|known| known.unsolicited == unsolicited)
        {
            let oldest = self.paths.remove(oldest);
            released.extend(self.remove_path(&oldest));
        }
        released
    }

    /// Returns a removed path's neighbour, if it was managed for us and no other path uses it.
    fn remove_path(&mut self, gone: &Path) -> Option<IpAddr> {
        if !gone.ours {
            return None;
        }
        match self.paths.iter_mut().find(|path| path.next_hop == gone.next_hop) {
            Some(heir) => {
                heir.ours = true;
                None
            }
            None => Some(gone.next_hop),
        }
    }

    /// Removes a neighbour from the pending ones. True if it was pending, so that the kernel manages it for us.
    fn take_pending(&mut self, next_hop: IpAddr) -> bool {
        let place = self.pending.iter().position(|pending| *pending == next_hop);
        place.map(|place| self.pending.swap_remove(place)).is_some()
    }
}

impl AsFd for Neighbours {
    /// Readable when [`Neighbours::poll`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        let known = lock(&self.known);
        let ours = known.paths.iter().filter(|path| path.ours).map(|path| path.next_hop);
        for next_hop in ours.chain(known.pending.iter().copied()) {
            // If the interface is gone, the entry is gone too.
            let _ = release(&mut self.netlink(), &known.interface, next_hop);
        }
    }
}

/// Returns the station address for frames from `interface` along the route of `key`, once, without following it: as
/// [`Neighbours::resolve`], in the calling thread's namespace.
///
/// # Errors
/// [`NeighbourError`] tells a missing route from a silent neighbour.
pub fn resolve(interface: &Interface, key: RouteKey, timeout: Duration) -> Result<[u8; 6], NeighbourError> {
    Neighbours::open(interface)?.resolve(interface, key, timeout)
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
        Known { interface, paths: Vec::new(), pending: Vec::new() }
    }

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn path(destination: u32, next_hop: u32, ours: bool, unsolicited: bool) -> Path {
        let key = RouteKey::new(ip(0), ip(destination), 0);
        Path { key, next_hop: ip(next_hop), mac: [3; 6], ours, unsolicited }
    }

    /// Two destinations behind one gateway: it is managed until neither needs it.
    #[test]
    fn gateway_is_released_with_its_last_destination() {
        let mut known = known();
        assert!(known.remember(path(1, 100, true, false)).is_empty());
        // The kernel manages the gateway already when the second destination is resolved.
        assert!(known.remember(path(2, 100, false, false)).is_empty());
        assert!(known.remember(path(1, 101, true, false)).is_empty(), "the second still goes there");
        assert_eq!(known.remember(path(2, 101, false, false)), [ip(100)]);
        assert!(known.remember(path(1, 102, true, false)).is_empty());
        assert_eq!(known.remember(path(2, 102, false, false)), [ip(101)]);
    }

    /// A host's path changes while the table is full: two paths are removed, and both neighbours.
    #[test]
    fn two_removed_paths_release_two_neighbours() {
        let mut known = known();
        known.remember(path(9, 109, true, true));
        for n in 0..MOST[0] as u32 {
            assert!(known.remember(path(1000 + n, 10_000 + n, true, false)).is_empty());
        }
        // An unsolicited path is resolved for local use, by another gateway.
        assert_eq!(known.remember(path(9, 110, true, false)), [ip(109), ip(10_000)]);
        assert_eq!(known.paths.len(), MOST[0]);
    }

    /// Unsolicited paths are evicted; a path in local use stays, though a remote host names it too.
    #[test]
    fn unsolicited_paths_do_not_evict_local_ones() {
        let mut known = known();
        known.remember(path(1, 1, true, false));
        known.remember(path(1, 1, true, true));
        known.remember(path(2, 2, true, true));
        let remote = 10_000..10_000 + MOST[1] as u32;
        let released: Vec<_> = remote.flat_map(|n| known.remember(path(n, n, true, true))).collect();
        assert_eq!(released, [ip(2)], "only the oldest unsolicited path");
        assert!(known.paths.iter().any(|path| path.key.destination == ip(1)));
        assert_eq!(known.paths.len(), 1 + MOST[1]);
    }
}
