//! Sending: frames are gathered into trains of datagrams, many per system call.
//!
//! Slots lie in one block of memory: a table of headers, and the datagrams one behind the other, so that a train is
//! usually one contiguous piece. `arrange` forms the trains: datagrams of one flow, in order, of equal length except a
//! shorter last one. In IPv4 the kernel sets the identification to 0, 1, 2 … within a train, and to 0 in a single
//! datagram (`IP_PMTUDISC_PROBE`, unconnected socket). `arrange` writes these values into the headers, and the socket's
//! source port.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::headers::{MAX_HEADERS, Outgoing, Route, V4_HEADERS, V6_HEADERS};
use super::sys::{BATCH, Envelope, Outbox};
use crate::{BURST, TxId};
use roxie_base::frame::FrameMut;

/// Number of slots: one burst, and what a busy link left over.
const SLOTS: usize = 4 * BURST;
/// Bytes of the header table's rows.
const ROW: usize = 64;
/// Offset of the datagrams.
const ARENA: usize = SLOTS * ROW;
/// Room for datagrams, in bytes.
const ARENA_BYTES: usize = 1 << 20;
/// Most bytes in one send: 65,535 less IPv4 and UDP headers.
const TRAIN_LIMIT: usize = 65_507;
/// Number of newest trains that are searched for a datagram's flow.
const LOOK_BACK: usize = 16;
/// Offset in the BTH of the destination QPN, and the QPN of communication management.
const DESTINATION_QP: usize = 5;
const QP1: [u8; 3] = [0, 0, 1];

/// A socket to send from, and its port.
pub(super) struct SendSocket {
    pub(super) socket: OwnedFd,
    pub(super) port: u16,
}

/// Limits of a [`Sender`].
pub(super) struct SendLimits {
    /// Most datagrams in one send; 1 without segmentation offload.
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
    /// Sockets of IPv4, then those of IPv6.
    sockets: Vec<SendSocket>,
    v4_sockets: usize,
    limits: SendLimits,
    memory: Box<[u8]>,
    used: usize,
    slots: Vec<Slot>,
    arranged: usize,
    trains: Vec<Train>,
    /// Where the next slot is split: header length of the last frame.
    header_len: usize,
    /// True if a slot was cancelled after `arrange`.
    holes: bool,
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

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Open,
    Committed,
    Cancelled,
    /// Not a datagram to the RoCE port: never sent.
    Refused,
}

struct Slot {
    state: State,
    offset: usize,
    a_len: usize,
    b_len: usize,
    /// Offset of the UDP payload in the frame.
    datagram: usize,
    /// The next slot of the same train.
    follower: Option<usize>,
}

impl Slot {
    fn datagram_len(&self) -> usize {
        self.a_len + self.b_len - self.datagram
    }
}

struct Train {
    route: Route,
    socket: usize,
    /// Upper 8 bits of the destination QPNs. A train reaches one process of the peer's, and each may own one value.
    unit: u8,
    first: usize,
    last: usize,
    count: usize,
    segment: usize,
    bytes: usize,
    /// True if nothing may be appended, for example after a shorter datagram.
    closed: bool,
    done: bool,
}

impl Sender {
    pub(super) fn new(v4: Vec<SendSocket>, v6: Vec<SendSocket>, limits: SendLimits) -> Sender {
        let v4_sockets = v4.len();
        Sender {
            header_len: if v4_sockets > 0 { V4_HEADERS } else { V6_HEADERS },
            sockets: v4.into_iter().chain(v6).collect(),
            v4_sockets,
            limits,
            memory: vec![0; ARENA + ARENA_BYTES].into_boxed_slice(),
            used: 0,
            slots: Vec::with_capacity(SLOTS),
            arranged: 0,
            trains: Vec::with_capacity(SLOTS),
            holes: false,
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
        let a_len = len.min(self.header_len);
        let b_len = len - a_len;
        let i = self.slots.len();
        if i == SLOTS || self.used + b_len > ARENA_BYTES {
            return None;
        }
        let offset = ARENA + self.used;
        self.slots.push(Slot { state: State::Open, offset, a_len, b_len, datagram: a_len, follower: None });
        self.used += b_len;
        Some(TxId(i as u32))
    }

    pub(super) fn frame(&mut self, id: &TxId) -> FrameMut<'_> {
        let i = id.0 as usize;
        let slot = &self.slots[i];
        let (rows, arena) = self.memory.split_at_mut(ARENA);
        let offset = slot.offset - ARENA;
        FrameMut { a: &mut rows[i * ROW..i * ROW + slot.a_len], b: &mut arena[offset..offset + slot.b_len] }
    }

    pub(super) fn commit(&mut self, id: &TxId) {
        let slot = &mut self.slots[id.0 as usize];
        match slot.state {
            State::Open => slot.state = State::Committed,
            State::Refused => self.counts.not_roce += 1,
            State::Committed | State::Cancelled => {
                debug_assert!(false, "slot {} is closed already: {:?}", id.0, slot.state);
            }
        }
    }

    pub(super) fn cancel(&mut self, id: &TxId) {
        let i = id.0 as usize;
        self.slots[i].state = State::Cancelled;
        self.holes |= i < self.arranged;
    }

    /// Puts every slot written since the last call into a train.
    pub(super) fn arrange(&mut self) {
        for i in self.arranged..self.slots.len() {
            if self.slots[i].state != State::Cancelled {
                self.arrange_slot(i);
            }
        }
        self.arranged = self.slots.len();
    }

    fn arrange_slot(&mut self, i: usize) {
        let id = TxId(i as u32);
        let slot = &self.slots[i];
        let frame_len = slot.a_len + slot.b_len;
        let (row, a_len) = (i * ROW, slot.a_len);
        // The row almost always holds exactly the headers, which are then read and changed in place.
        let mut start = [0; MAX_HEADERS];
        let in_place = a_len == V6_HEADERS || self.memory[row + 12..row + 14] == [0x08, 0x00];
        let in_place = in_place && a_len >= V4_HEADERS;
        if !in_place {
            self.frame(&id).as_frame().copy_to(0, &mut start);
        }
        let headers = if in_place { self.row(row) } else { &start };
        let outgoing = Outgoing::parse(headers, frame_len)
            .filter(|out| out.destination_port == self.limits.port)
            .and_then(|out| {
                let slot = &self.slots[i];
                let (at, in_b) = (out.udp + 8 + DESTINATION_QP, slot.a_len == out.udp + 8);
                let qpn: [u8; 3] = if in_b {
                    *self.memory[slot.offset + DESTINATION_QP..].first_chunk()?
                } else {
                    self.frame(&id).as_frame().array(at)?
                };
                Some((self.choose_socket(&out, qpn == QP1)?, qpn[0], out))
            });
        let Some((socket, unit, out)) = outgoing else {
            if self.slots[i].state == State::Committed {
                self.counts.not_roce += 1;
            }
            self.slots[i].state = State::Refused;
            return;
        };
        self.header_len = out.udp + 8;
        self.slots[i].datagram = out.udp + 8;
        let place = self.join_train(i, &out.route, socket, unit);
        let port = self.sockets[socket].port;
        if in_place {
            out.rewrite(
                self.memory[row..].first_chunk_mut().expect("rows lie before the arena"),
                port,
                place as u16,
            );
        } else {
            out.rewrite(&mut start, port, place as u16);
            self.frame(&id).write(0, &start[..out.udp + 2]);
        }
    }

    fn row(&self, row: usize) -> &[u8; MAX_HEADERS] {
        self.memory[row..].first_chunk().expect("rows lie before the arena")
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

    /// Appends slot `i` to the train of its flow, or begins one. Returns its position in the train.
    fn join_train(&mut self, i: usize, route: &Route, socket: usize, unit: u8) -> usize {
        let len = self.slots[i].datagram_len();
        let limit = self.limits.segments;
        let mine = self.trains.iter_mut().rev().take(LOOK_BACK);
        // Only the newest train of the flow: in an older one this datagram would overtake others.
        if let Some(train) = mine.into_iter().find(|t| t.socket == socket && t.route == *route)
            && train.unit == unit
            && !train.closed
            && !train.done
            && train.count < limit
            && len <= train.segment
            && train.bytes + len <= TRAIN_LIMIT
        {
            self.slots[train.last].follower = Some(i);
            train.last = i;
            train.count += 1;
            train.bytes += len;
            train.closed = len < train.segment;
            return train.count - 1;
        }
        self.trains.push(Train {
            route: *route,
            socket,
            unit,
            first: i,
            last: i,
            count: 1,
            segment: len,
            bytes: len,
            closed: false,
            done: false,
        });
        0
    }

    /// Sends what can be sent now. Later calls continue with the rest.
    pub(super) fn flush(&mut self) {
        self.arrange();
        if self.trains.is_empty() {
            self.reset();
            return;
        }
        if self.holes {
            self.close_holes();
        }
        // Close all trains: one that the kernel refuses for now is sent unchanged later.
        for train in &mut self.trains {
            train.closed = true;
        }
        for socket in 0..self.sockets.len() {
            while self.fill_outbox(socket) && self.empty_outbox(socket) {}
            if socket + 1 == self.v4_sockets || socket + 1 == self.sockets.len() {
                self.drop_waiting(socket);
            }
        }
        if self.trains.iter().all(|t| t.done) {
            self.reset();
        }
    }

    /// Drops the trains of a socket that are not sent yet.
    fn drop_waiting(&mut self, socket: usize) {
        for train in self.trains.iter_mut().filter(|train| train.socket == socket && !train.done) {
            train.done = true;
            self.counts.management_dropped += train.count as u64;
        }
    }

    pub(super) fn pending(&self) -> bool {
        !self.trains.is_empty()
    }

    fn reset(&mut self) {
        self.slots.clear();
        self.trains.clear();
        self.arranged = 0;
        self.used = 0;
        self.holes = false;
    }

    /// Cuts trains where slots were cancelled after `arrange`. Over IPv4 the datagrams after a hole get another
    /// identification than their headers say; they are counted.
    fn close_holes(&mut self) {
        self.holes = false;
        let mut t = 0;
        while t < self.trains.len() {
            if let Some(rest) = self.cut_at_hole(t) {
                self.trains.insert(t + 1, rest);
            }
            t += 1;
        }
    }

    /// Removes cancelled slots from the front of train `t`, and cuts it before the next one. Returns the rest.
    fn cut_at_hole(&mut self, t: usize) -> Option<Train> {
        let slots = &mut self.slots;
        let train = &mut self.trains[t];
        let mut shifted = false;
        while slots[train.first].state == State::Cancelled {
            shifted = train.route.source.is_ipv4();
            let Some(next) = slots[train.first].follower else {
                train.done = true;
                return None;
            };
            train.first = next;
        }
        train.segment = slots[train.first].datagram_len();
        (train.count, train.bytes) = (1, train.segment);
        let (mut at, end) = (train.first, train.last);
        let mut rest = None;
        while let Some(next) = slots[at].follower {
            if slots[next].state == State::Cancelled {
                slots[at].follower = None;
                train.last = at;
                // Its counts and segment are set when its own front is cleared.
                rest = Some(Train { first: next, last: end, ..*train });
                break;
            }
            at = next;
            train.count += 1;
            train.bytes += slots[at].datagram_len();
        }
        if shifted {
            self.counts.id_shifted += train.count as u64;
        }
        rest
    }

    /// Lays out the unsent trains of `socket`. False if there are none.
    fn fill_outbox(&mut self, socket: usize) -> bool {
        self.outbox.clear();
        self.boxed.clear();
        for (t, train) in self.trains.iter().enumerate() {
            if train.done || train.socket != socket {
                continue;
            }
            if !self.outbox.has_room(2 * train.count) {
                break;
            }
            self.outbox.begin(&Envelope {
                source: train.route.source,
                destination: train.route.destination,
                port: self.limits.port,
                scope: if needs_interface(train.route.destination) { self.limits.scope } else { 0 },
                traffic_class: train.route.traffic_class,
                segment: (train.count > 1).then_some(train.segment as u16),
            });
            let mut at = Some(train.first);
            while let Some(i) = at {
                let slot = &self.slots[i];
                let in_b = slot.datagram.saturating_sub(slot.a_len);
                let row = i * ROW;
                self.outbox.push(row + slot.datagram.min(slot.a_len)..row + slot.a_len);
                self.outbox.push(slot.offset + in_b..slot.offset + slot.b_len);
                at = slot.follower;
            }
            self.boxed.push(t);
        }
        !self.boxed.is_empty()
    }

    /// Sends the trains that `fill_outbox` laid out. False if the link has no room for more now.
    fn empty_outbox(&mut self, socket: usize) -> bool {
        let mut first = 0;
        // The train before which an earlier datagram's error was reported.
        let mut told = None;
        while first < self.boxed.len() {
            self.counts.calls += 1;
            let fd = self.sockets[socket].socket.as_fd();
            match self.outbox.send(fd, &self.memory, first) {
                Ok(sent) => {
                    for &t in &self.boxed[first..first + sent] {
                        let train = &mut self.trains[t];
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
                Err(error) if told != Some(first) && is_of_icmp(&error) => told = Some(first),
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
        let train = &mut self.trains[t];
        train.done = true;
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
                self.limits.segments = 1;
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
                train.route.source,
                train.route.destination
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
