//! Sending: frames are gathered into trains of datagrams (`trains`), many per system call.
//!
//! In IPv4 the kernel sets the identification to 0, 1, 2 … within a train, and to 0 in a single datagram
//! (`IP_PMTUDISC_PROBE`, unconnected socket). `arrange` writes these values into the headers, and the socket's source
//! port.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::headers::{Outgoing, Route, V4_HEADERS, V6_HEADERS};
use super::sys::{BATCH, Envelope, Outbox};
use crate::TxId;
use crate::trains::Trains;
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// The QPN of communication management.
const QP1: [u8; 3] = [0, 0, 1];

/// A socket to send from, and its port.
pub(super) struct SendSocket {
    pub(super) socket: OwnedFd,
    pub(super) port: u16,
}

/// Limits of a [`Sender`].
pub(super) struct SendLimits {
    /// Maximum number of datagrams in one send; 1 without segmentation offload.
    pub(super) segments: usize,
    /// UDP port of all peers.
    pub(super) port: u16,
    /// Interface index for link-local destinations.
    pub(super) scope: u32,
}

/// Sends frames through a pool of sockets per address family.
///
/// The last socket of each family is for datagrams to QP1 only, which are dropped when it has no room. A peer that
/// requests a connection chooses the reply's destination, and datagrams to an absent host occupy their socket's buffer
/// for seconds.
pub(super) struct Sender {
    /// Sockets of IPv4, then of IPv6.
    sockets: Vec<SendSocket>,
    v4_sockets: usize,
    limits: SendLimits,
    trains: Trains<Flow>,
    outbox: Outbox,
    /// Index in `trains` of each train in the outbox.
    boxed: Vec<usize>,
    pub(super) counts: SendCounts,
    reported: [bool; 5],
}

#[derive(Default)]
pub(super) struct SendCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) calls: u64,
    pub(super) trains: u64,
    pub(super) not_roce: u64,
    pub(super) unreachable: u64,
    pub(super) refused: u64,
    pub(super) too_long: u64,
    pub(super) invalid: u64,
    pub(super) failed: u64,
    pub(super) busy: u64,
    pub(super) management_dropped: u64,
    pub(super) id_shifted: u64,
}

/// Datagrams of one flow take the same way through the kernel.
#[derive(Clone, Copy, PartialEq)]
struct Flow {
    socket: usize,
    route: Route,
}

impl Sender {
    pub(super) fn new(v4: Vec<SendSocket>, v6: Vec<SendSocket>, limits: SendLimits) -> Sender {
        let v4_sockets = v4.len();
        Sender {
            trains: Trains::new(if v4_sockets > 0 { V4_HEADERS } else { V6_HEADERS }, limits.segments),
            sockets: v4.into_iter().chain(v6).collect(),
            v4_sockets,
            limits,
            outbox: Outbox::new(),
            boxed: Vec::with_capacity(BATCH),
            counts: SendCounts::default(),
            reported: [false; 5],
        }
    }

    /// Duplicates the sockets; true marks IPv4.
    pub(super) fn sockets(&self) -> io::Result<Vec<(OwnedFd, bool)>> {
        let each = self.sockets.iter().enumerate();
        each.map(|(i, it)| Ok((it.socket.try_clone()?, i < self.v4_sockets))).collect()
    }

    /// Returns the source ports.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.sockets.iter().map(|it| it.port).collect()
    }

    pub(super) fn alloc(&mut self, len: usize) -> Option<TxId> {
        self.trains.alloc(len)
    }

    pub(super) fn frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.trains.frame(id)
    }

    pub(super) fn commit(&mut self, id: &TxId) {
        self.counts.not_roce += u64::from(!self.trains.commit(id));
    }

    pub(super) fn cancel(&mut self, id: &TxId) {
        self.trains.cancel(id);
    }

    /// Puts every slot written since the last call into a train.
    pub(super) fn arrange(&mut self) {
        while let Some(i) = self.trains.next_unarranged() {
            let parsed = self.trains.parse(i).filter(|(out, _)| out.destination_port == self.limits.port);
            let chosen =
                parsed.and_then(|(out, qpn)| Some((self.choose_socket(&out, qpn == QP1)?, out, qpn)));
            let Some((socket, out, qpn)) = chosen else {
                self.counts.not_roce += u64::from(self.trains.refuse(i));
                continue;
            };
            let place = self.trains.join(i, out.udp + 8, Flow { socket, route: out.route }, qpn[0]);
            self.trains.rewrite(i, &out, self.sockets[socket].port, place as u16);
        }
    }

    /// Returns the socket with the frame's source port, else one by hash of it. Datagrams to QP1 have their own socket.
    /// `None` if the family is not open.
    fn choose_socket(&self, out: &Outgoing, to_qp1: bool) -> Option<usize> {
        let range =
            if out.route.source.is_ipv4() { 0..self.v4_sockets } else { self.v4_sockets..self.sockets.len() };
        let (_, pool) = self.sockets[range.clone()].split_last()?;
        if to_qp1 {
            return Some(range.end - 1);
        }
        let known = pool.iter().position(|s| s.port == out.source_port);
        let hash = usize::from(out.source_port.wrapping_mul(0x9e37));
        Some(range.start + known.unwrap_or((hash * pool.len()) >> 16))
    }

    /// Sends what can be sent at time `now`. Later calls continue with the rest.
    pub(super) fn flush(&mut self, now: Nanos) {
        self.arrange();
        // Over IPv4 the datagrams after a hole get another identification than their headers say.
        let shifted = &mut self.counts.id_shifted;
        self.trains.close_holes(|flow, count| {
            *shifted += if flow.route.source.is_ipv4() { count as u64 } else { 0 }
        });
        self.trains.close();
        for socket in 0..self.sockets.len() {
            while self.fill_outbox(socket) && self.empty_outbox(socket) {}
            if socket + 1 == self.v4_sockets || socket + 1 == self.sockets.len() {
                self.counts.management_dropped += self.trains.drop_waiting(|flow| flow.socket == socket);
            }
        }
        self.counts.failed += self.trains.end_flush(now);
    }

    pub(super) fn pending(&self) -> bool {
        !self.trains.is_empty()
    }

    /// Lays out the unsent trains of `socket`. False if there are none.
    fn fill_outbox(&mut self, socket: usize) -> bool {
        self.outbox.clear();
        self.boxed.clear();
        for (t, train) in self.trains.all().iter().enumerate() {
            let Flow { socket: way, route } = train.flow;
            if train.done || way != socket {
                continue;
            }
            if !self.outbox.has_room(1, 2 * train.count) {
                break;
            }
            self.outbox.begin(&Envelope {
                source: route.source,
                destination: route.destination,
                port: self.limits.port,
                scope: if needs_interface(route.destination) { self.limits.scope } else { 0 },
                traffic_class: route.traffic_class,
                segment: (train.count > 1).then_some(train.segment as u16),
            });
            for i in self.trains.order(train) {
                for piece in self.trains.datagram(i) {
                    self.outbox.push(piece);
                }
            }
            self.boxed.push(t);
        }
        !self.boxed.is_empty()
    }

    /// Sends the trains that `fill_outbox` laid out. False if the link has no room for more now.
    fn empty_outbox(&mut self, socket: usize) -> bool {
        let mut first = 0;
        // The train before which an earlier datagram's error was reported.
        let mut reported = None;
        while first < self.boxed.len() {
            self.counts.calls += 1;
            let fd = self.sockets[socket].socket.as_fd();
            match self.outbox.send(fd, self.trains.memory(), first) {
                Ok(sent) => {
                    for &t in &self.boxed[first..first + sent] {
                        let train = &mut self.trains.all_mut()[t];
                        train.done = true;
                        self.counts.packets += train.count as u64;
                        self.counts.bytes += train.bytes as u64;
                    }
                    self.counts.trains += sent as u64;
                    first += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_busy(&error) => {
                    self.counts.busy += 1;
                    return false;
                }
                // With `IP_RECVERR` on, a call may report an earlier datagram's ICMP error, and has then sent nothing.
                // Retry once.
                Err(error) if reported != Some(first) && is_of_icmp(&error) => reported = Some(first),
                Err(error) => {
                    // The error concerns the first train of the call.
                    let t = self.boxed[first];
                    self.give_up(t, &error);
                    first += 1;
                }
            }
        }
        true
    }

    /// Drops train `t` and counts it. For each kind of failure, the first one is reported with what to do.
    fn give_up(&mut self, t: usize, error: &io::Error) {
        let train = &mut self.trains.all_mut()[t];
        train.done = true;
        let train = *train;
        let lost = train.count as u64;
        let (kind, remedy) = match error.raw_os_error() {
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                self.counts.unreachable += lost;
                (0, "check the route (ip route get), the link and the source address")
            }
            Some(libc::EPERM | libc::EACCES) => {
                self.counts.refused += lost;
                (1, "a firewall rule of this host refuses it")
            }
            Some(libc::EMSGSIZE) => {
                self.counts.too_long += lost;
                (2, "lower the path MTU of the QP or raise the MTU of the interface")
            }
            Some(libc::EINVAL) => {
                self.counts.invalid += lost;
                (3, "check that the source address is one of this host, and that the datagrams fit the MTU")
            }
            Some(libc::EIO) => {
                self.counts.failed += lost;
                self.trains.segments = 1;
                (4, "the interface cannot checksum; datagrams go out one by one from now on")
            }
            _ => {
                self.counts.failed += lost;
                (4, "the link below has a fault")
            }
        };
        if !std::mem::replace(&mut self.reported[kind], true) {
            tracing::warn!(
                "udp: {} datagrams of {} bytes from {} to {} not sent: {error}; {remedy}. \
                 Further ones are only counted.",
                lost,
                train.segment,
                train.flow.route.source,
                train.flow.route.destination
            );
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

/// True if the kernel may derive this error from an ICMP message.
fn is_of_icmp(error: &io::Error) -> bool {
    const OF_ICMP: [i32; 8] = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EPROTO,
    ];
    // EACCES: IPv6, and "administratively prohibited".
    error.raw_os_error().is_some_and(|code| OF_ICMP.contains(&code) || code == libc::EACCES)
}

/// True if the address needs an interface index: link-local, or a group.
fn needs_interface(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_unicast_link_local() || a.is_multicast(),
    }
}

#[cfg(test)]
mod tests;
