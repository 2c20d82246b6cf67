//! Receiving: trains of datagrams (GRO) from the kernel, cut into frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::time::ClockId;

use super::headers::{Headers, Route, V4_HEADERS, V6_HEADERS};
use super::synthetic_mac;
use super::sys::{INBOX, Inbox, TRAIN_BYTES, Train, set_int};
use crate::BURST;
use crate::group::{Member, STRAY_HEADER, Stray, StrayInbox};
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;

/// Empty polls in a row after which a socket is polled less often, while another one is busy.
const COLD_AFTER: u32 = 64;
/// Such a socket is polled every this many polls. Sleeping is unaffected: it waits on all descriptors.
const COLD_PERIOD: usize = 32;

/// Buffer number of a datagram that another process handed over.
const STRAY: usize = INBOX;

/// Receives from all listening sockets.
pub(super) struct Receiver {
    listeners: Vec<Listener>,
    /// Number of listeners that existed from the start.
    first: usize,
    /// Readable while a later listener or a handed-over datagram is. Later listeners belong to multicast groups.
    later: Epoll,
    inbox: Inbox,
    /// Trains in the inbox, in order.
    trains: Vec<Cut>,
    /// The first datagram not shown yet: index in `trains` and offset.
    next: (usize, usize),
    burst: Vec<Datagram>,
    /// Number of buffers to offer in the next call: enough for a burst, so that their memory stays warm.
    limit: usize,
    turn: usize,
    mac: [u8; 6],
    port: u16,
    max_frame: usize,
    /// True if the kernel stamps the arrival of datagrams.
    stamps: bool,
    /// Datagrams that other processes of the group handed over, if the port is shared.
    strays: Option<StrayInbox>,
    /// Source addresses and ports of our own multicast, which is dropped if the link returns it.
    own_multicast: (Vec<IpAddr>, Vec<u16>),
    pub(super) counts: ReceiveCounts,
}

#[derive(Default)]
pub(super) struct ReceiveCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) calls: u64,
    pub(super) trains: u64,
    pub(super) oversize: u64,
    pub(super) truncated: u64,
    pub(super) errors: u64,
    pub(super) handed_over: u64,
    pub(super) strays_dropped: u64,
}

struct Listener {
    socket: OwnedFd,
    /// The address it is bound to: shown as the destination if the kernel tells none.
    address: IpAddr,
    idle_polls: u32,
    dropped: u32,
}

/// A train in the inbox and the headers of its datagrams.
struct Cut {
    buffer: usize,
    len: usize,
    segment: usize,
    route: Route,
    source_port: u16,
    headers: Headers,
    /// Headers of a shorter last datagram.
    last_headers: Headers,
    /// Arrival time since the Unix epoch.
    stamp: Option<Duration>,
    arrived: Option<Nanos>,
}

/// A datagram of the current burst.
struct Datagram {
    train: usize,
    offset: usize,
    len: usize,
}

impl Receiver {
    pub(super) fn new(
        later: Epoll,
        sockets: Vec<(IpAddr, OwnedFd)>,
        mac: [u8; 6],
        port: u16,
        max_frame: usize,
        member: Option<Arc<Member>>,
    ) -> nix::Result<Receiver> {
        if let Some(member) = &member {
            later.add(member.strays(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        let listener = |(address, socket)| Listener { socket, address, idle_polls: 0, dropped: 0 };
        let listeners: Vec<Listener> = sockets.into_iter().map(listener).collect();
        Ok(Receiver {
            first: listeners.len(),
            listeners,
            later,
            inbox: Inbox::new(),
            trains: Vec::with_capacity(INBOX),
            next: (0, 0),
            burst: Vec::with_capacity(BURST),
            limit: INBOX,
            turn: 0,
            mac,
            port,
            max_frame,
            stamps: false,
            strays: member.map(|member| StrayInbox::new(member, TRAIN_BYTES)),
            own_multicast: Default::default(),
            counts: ReceiveCounts::default(),
        })
    }

    /// Drops multicast from these source addresses and ports, which is our own, from now on.
    pub(super) fn drop_own_multicast(&mut self, addresses: Vec<IpAddr>, ports: Vec<u16>) {
        self.own_multicast = (addresses, ports);
    }

    /// Has the kernel stamp arrivals, if it can. Otherwise a datagram arrives when it is received here.
    pub(super) fn stamp_arrivals(&mut self, wanted: bool) {
        let name = libc::SO_TIMESTAMPNS;
        let set = |l: &Listener| set_int(l.socket.as_fd(), libc::SOL_SOCKET, name, i32::from(wanted));
        self.stamps = self.listeners.iter().map(set).all(|set| set.is_ok()) && wanted;
    }

    /// Adds a socket to receive from.
    pub(super) fn listen(&mut self, address: IpAddr, socket: OwnedFd) -> io::Result<()> {
        if self.stamps {
            set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        }
        self.later.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        self.listeners.push(Listener { socket, address, idle_polls: 0, dropped: 0 });
        Ok(())
    }

    /// Closes the socket of an address.
    pub(super) fn stop_listening(&mut self, address: IpAddr) {
        if let Some(at) = self.listeners.iter().position(|l| l.address == address) {
            // Delete it before it is closed: a duplicate descriptor would keep it in the epoll set.
            let _ = self.later.delete(&self.listeners[at].socket);
            self.listeners.remove(at);
        }
    }

    /// Returns the socket of a family that is bound to no address, if there is one.
    pub(super) fn unbound(&self, v4: bool) -> Option<BorrowedFd<'_>> {
        let fits = |l: &&Listener| l.address.is_unspecified() && l.address.is_ipv4() == v4;
        self.listeners.iter().find(fits).map(|l| l.socket.as_fd())
    }

    /// Accepts frames up to this length from now on.
    pub(super) fn set_max_frame(&mut self, max_frame: usize) {
        self.max_frame = max_frame;
    }

    /// Takes up to [`BURST`] datagrams, first those left from an earlier call.
    pub(super) fn poll(&mut self, now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        if !self.has_rest() {
            self.fetch();
            if self.stamps {
                self.set_arrivals(now);
            }
        }
        while self.burst.len() < BURST && self.has_rest() {
            let cut = &self.trains[self.next.0];
            let (whole, stray) = (cut.len, cut.buffer == STRAY);
            let len = cut.segment.min(cut.len - self.next.1);
            if !stray && !self.is_ours(self.next, len) {
                self.hand_over(self.next, len);
            } else {
                self.burst.push(Datagram { train: self.next.0, offset: self.next.1, len });
                self.counts.bytes += len as u64;
            }
            self.next.1 += len;
            if self.next.1 == whole {
                self.next = (self.next.0 + 1, 0);
            }
        }
        self.counts.packets += self.burst.len() as u64;
        self.burst.len()
    }

    pub(super) fn frame(&self, i: usize) -> Frame<'_> {
        let datagram = &self.burst[i];
        let cut = &self.trains[datagram.train];
        let headers = if datagram.len == cut.segment { &cut.headers } else { &cut.last_headers };
        Frame { a: headers.as_slice(), b: self.bytes((datagram.train, datagram.offset), datagram.len) }
    }

    /// Returns the bytes of a datagram.
    fn bytes(&self, (train, offset): (usize, usize), len: usize) -> &[u8] {
        match self.trains[train].buffer {
            STRAY => {
                let stray = self.strays.as_ref().map_or(&[][..], StrayInbox::bytes);
                &stray[STRAY_HEADER + offset..][..len]
            }
            buffer => self.inbox.bytes(buffer, offset, len),
        }
    }

    /// True if the datagram is for this process. Always true if the port is not shared.
    fn is_ours(&self, at: (usize, usize), len: usize) -> bool {
        self.strays.as_ref().is_none_or(|strays| {
            strays.member().is_ours(self.bytes(at, len), self.trains[at.0].route.destination)
        })
    }

    #[cold]
    fn hand_over(&mut self, at: (usize, usize), len: usize) {
        let cut = &self.trains[at.0];
        let stray = Stray {
            source: SocketAddr::new(cut.route.source, cut.source_port),
            destination: cut.route.destination,
            traffic_class: cut.route.traffic_class,
            datagram: self.bytes(at, len),
        };
        let passed = |strays: &StrayInbox| {
            strays.member().hand_over(stray.datagram, stray.destination, &stray.to_bytes())
        };
        if self.strays.as_ref().is_some_and(passed) {
            self.counts.handed_over += 1;
        } else {
            self.counts.strays_dropped += 1;
        }
    }

    /// Receives a datagram that another process handed over.
    fn fetch_stray(&mut self) {
        let Some(strays) = &mut self.strays else { return };
        let Some(len) = strays.poll() else { return };
        let Some(stray) = Stray::from_bytes(&strays.bytes()[..len]).filter(|s| !s.datagram.is_empty()) else {
            return;
        };
        let train = Train {
            source: stray.source.ip(),
            source_port: stray.source.port(),
            destination: Some(stray.destination),
            traffic_class: stray.traffic_class,
            segment: stray.datagram.len(),
            len: stray.datagram.len(),
            truncated: false,
            dropped: None,
            stamp: None,
        };
        if train.segment + header_len(train.source) <= self.max_frame {
            self.trains.push(self.cut(STRAY, &train, train.source));
        } else {
            self.counts.oversize += 1;
        }
    }

    /// Returns when the `i`-th datagram of the burst arrived, if the kernel stamps arrivals.
    pub(super) fn arrived(&self, i: usize) -> Option<Nanos> {
        self.trains[self.burst[i].train].arrived
    }

    /// Converts the kernel's wall-clock stamps: subtracts each stamp's age from `now`.
    fn set_arrivals(&mut self, now: Nanos) {
        let Ok(wall) = ClockId::CLOCK_REALTIME.now() else { return };
        let wall = Duration::from(wall);
        for cut in &mut self.trains {
            cut.arrived = cut.stamp.map(|stamp| now - wall.saturating_sub(stamp).into());
        }
    }

    pub(super) fn release(&mut self) {
        self.burst.clear();
    }

    /// True if datagrams of an earlier call wait for the next burst.
    pub(super) fn has_rest(&self) -> bool {
        self.next.0 < self.trains.len()
    }

    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        // Not one epoll set for all: a thread woken through nested sets runs on another CPU than the sender.
        let first = self.listeners[..self.first].iter().map(|l| l.socket.as_fd());
        first.chain([self.later.0.as_fd()]).collect()
    }

    /// Returns the number of datagrams that the kernel dropped because a socket buffer was full.
    pub(super) fn dropped(&self) -> u64 {
        self.listeners.iter().map(|l| u64::from(l.dropped)).sum()
    }

    /// Polls the sockets in turn until one has something.
    fn fetch(&mut self) {
        self.trains.clear();
        self.next = (0, 0);
        self.turn = self.turn.wrapping_add(1);
        let sockets = self.listeners.len();
        let one_is_warm = self.listeners.iter().any(|l| l.idle_polls < COLD_AFTER);
        let poll_cold = !one_is_warm || (self.turn / sockets).is_multiple_of(COLD_PERIOD);
        for k in 0..sockets {
            let s = (self.turn + k) % sockets;
            let listener = &mut self.listeners[s];
            if listener.idle_polls >= COLD_AFTER && !poll_cold {
                continue;
            }
            match self.inbox.receive(listener.socket.as_fd(), self.limit) {
                Ok(n) => {
                    listener.idle_polls = 0;
                    self.counts.calls += 1;
                    self.counts.trains += n as u64;
                    self.add_trains(s, n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    listener.idle_polls = listener.idle_polls.saturating_add(1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.counts.errors += 1,
            }
            if !self.trains.is_empty() {
                return;
            }
        }
        self.fetch_stray();
    }

    /// Prepares `n` trains of listener `s` for cutting into frames.
    fn add_trains(&mut self, s: usize, n: usize) {
        let mut datagrams = 0;
        for buffer in 0..n {
            let Some(train) = self.inbox.train(buffer) else { continue };
            if let Some(dropped) = train.dropped {
                self.listeners[s].dropped = dropped;
            }
            if train.truncated {
                self.counts.truncated += 1;
            } else if train.segment + header_len(train.source) > self.max_frame {
                self.counts.oversize += train.len.div_ceil(train.segment.max(1)) as u64;
            } else if train.len > 0 && !self.is_own_multicast(&train) {
                datagrams += train.len.div_ceil(train.segment);
                self.trains.push(self.cut(buffer, &train, self.listeners[s].address));
            }
        }
        self.limit = (BURST * n).div_ceil(datagrams.max(1)).clamp(1, INBOX);
    }

    /// True if this process sent the train to a group: the loopback layer has delivered it already.
    fn is_own_multicast(&self, train: &Train) -> bool {
        let (addresses, ports) = &self.own_multicast;
        ports.contains(&train.source_port)
            && addresses.contains(&train.source)
            && train.destination.is_some_and(|to| to.is_multicast())
    }

    fn cut(&self, buffer: usize, train: &Train, listener: IpAddr) -> Cut {
        let route = Route {
            source: train.source,
            destination: train.destination.unwrap_or(listener),
            traffic_class: train.traffic_class,
        };
        let macs = (synthetic_mac(train.source), self.mac);
        let ports = (train.source_port, self.port);
        let last = train.len % train.segment;
        let headers_of = |payload| Headers::new(macs, &route, ports, payload);
        Cut {
            buffer,
            len: train.len,
            segment: train.segment,
            headers: headers_of(train.segment),
            last_headers: if last == 0 { Headers::EMPTY } else { headers_of(last) },
            route,
            source_port: train.source_port,
            stamp: train.stamp,
            arrived: None,
        }
    }
}

fn header_len(source: IpAddr) -> usize {
    if source.is_ipv4() { V4_HEADERS } else { V6_HEADERS }
}
