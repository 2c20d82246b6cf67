//! Sending: trains of datagrams behind one header, which the kernel or the adapter cuts (`GSO_UDP_L4` in a
//! `virtio_net_hdr`).
//!
//! The kernel counts the IPv4 identification of a train up from the identification of its first frame. `arrange` writes
//! these numbers into the headers: the ICRC covers them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::ring::{GSO_UDP_L4, VNET_HEADER};
use crate::TxId;
use crate::trains::{PREFIX, Trains};
use crate::udp::headers::{MAX_HEADERS, V4_HEADERS, fold, set_lengths};
use crate::udp::sys::{BATCH, Outbox};
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// Maximum number of datagrams in one train (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS: usize = 64;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// Bytes of a lone frame that lie in the first piece of the kernel's buffer, where programs of the link look for
/// headers.
const LINEAR: usize = 192;
const IP: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const UDP: u32 = 17;
/// The QPN of management datagrams.
const QP1: [u8; 3] = [0, 0, 1];

/// Headers of a frame without lengths, identification and checksums. Frames with equal ones form a train.
type Flow = [u8; MAX_HEADERS];

/// Sends through a packet socket.
pub(super) struct Sender {
    socket: OwnedFd,
    /// The station's own address. Frames to it are for other processes of this host.
    pub(super) mac: [u8; 6],
    /// Index of the loopback interface, if other processes are reached over it.
    loopback: Option<u32>,
    trains: Trains<Flow>,
    outbox: Outbox,
    boxed: Vec<Boxed>,
    /// Number of trains, from the first on, whose copies for other processes of this host were sent.
    copied: usize,
    pub(super) counts: SendCounts,
    is_reported: bool,
}

/// An interface that frames are sent on: the port's, or the loopback interface.
#[derive(Clone, Copy)]
enum Link {
    Own,
    Loopback,
}

/// A train in the outbox.
#[derive(Clone, Copy)]
struct Boxed {
    train: usize,
    link: Link,
    /// True if the train is done when it is sent, false if it is sent once more on another link.
    is_last: bool,
}

#[derive(Default)]
pub(super) struct SendCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) calls: u64,
    pub(super) trains: u64,
    pub(super) busy: u64,
    pub(super) failed: u64,
    pub(super) too_long: u64,
    pub(super) link_down: u64,
}

impl Sender {
    pub(super) fn new(socket: OwnedFd, mac: [u8; 6], loopback: Option<u32>) -> Sender {
        Sender {
            socket,
            mac,
            loopback,
            trains: Trains::new(V4_HEADERS, SEGMENTS),
            outbox: Outbox::new(),
            boxed: Vec::with_capacity(BATCH),
            copied: 0,
            counts: SendCounts::default(),
            is_reported: false,
        }
    }

    pub(super) fn alloc(&mut self, len: usize) -> Option<TxId> {
        self.trains.alloc(len)
    }

    pub(super) fn frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.trains.frame(id)
    }

    pub(super) fn commit(&mut self, id: &TxId) {
        self.trains.commit(id);
    }

    pub(super) fn cancel(&mut self, id: &TxId) {
        self.trains.cancel(id);
    }

    /// Puts every slot written since the last call into a train. A frame that is no plain UDP datagram goes alone, and
    /// so does a management datagram: the filters of processes that share a port see the first datagram of a train. A
    /// frame that was committed before goes alone as well, with the identification for which its ICRC was computed.
    pub(super) fn arrange(&mut self) {
        while let Some(i) = self.trains.next_unarranged() {
            let start = self.trains.start(i);
            match self.trains.parse(i) {
                Some((out, qpn)) if qpn != QP1 && !self.trains.is_committed(i) => {
                    let place = self.trains.join(i, out.udp + 8, flow(start, out.udp), qpn[0]);
                    self.trains.rewrite(i, &out, out.source_port, place as u16);
                }
                _ => self.trains.add_alone(i, start),
            }
        }
    }

    /// Sends what can be sent at time `now`. Later calls continue with the rest. Frames to a link that is down or gone
    /// are lost.
    ///
    /// # Errors
    /// If the interface is gone.
    pub(super) fn flush(&mut self, now: Nanos) -> io::Result<()> {
        self.arrange();
        // A train that begins later takes the identification of its first frame, so none is another than arranged.
        self.trains.close_holes(|_, _| {});
        self.trains.close();
        let mut has_room = Ok(true);
        while matches!(has_room, Ok(true)) && self.fill_outbox() {
            has_room = self.empty_outbox();
        }
        self.counts.failed += self.trains.end_flush(now);
        if self.trains.is_empty() {
            self.copied = 0;
        }
        has_room.map(drop)
    }

    pub(super) fn pending(&self) -> bool {
        !self.trains.is_empty()
    }

    /// Returns the links that a train is still to be sent on.
    fn links(&self, t: usize) -> &'static [Link] {
        let flow = &self.trains.all()[t].flow;
        if self.loopback.is_none() {
            &[Link::Own]
        } else if flow.starts_with(&self.mac) {
            &[Link::Loopback]
        } else if flow[0] & 1 == 1 && t >= self.copied {
            // To a group: other processes of this host may have joined it.
            &[Link::Loopback, Link::Own]
        } else {
            &[Link::Own]
        }
    }

    /// Lays out unsent trains. False if there are none.
    fn fill_outbox(&mut self) -> bool {
        self.outbox.clear();
        self.boxed.clear();
        for t in 0..self.trains.all().len() {
            let train = self.trains.all()[t];
            if train.done {
                continue;
            }
            let links = self.links(t);
            if !self.outbox.has_room(links.len(), links.len() * (1 + 2 * train.count)) {
                break;
            }
            let len = match train.count {
                1 => write_vnet_header(self.trains.prefix(train.first), train.bytes),
                _ => {
                    let mut headers = self.trains.start(train.first);
                    let udp = if headers[12..IP] == IPV4 { 34 } else { 54 };
                    set_train(&mut headers, udp, train.bytes);
                    write_train(self.trains.prefix(train.first), &headers[..udp + 8], train.segment)
                }
            };
            for (n, link) in links.iter().enumerate() {
                self.outbox.begin_frame(self.loopback.filter(|_| matches!(link, Link::Loopback)));
                self.outbox.push(Trains::<Flow>::prefix_range(train.first, len));
                for i in self.trains.order(&train) {
                    let pieces =
                        if train.count == 1 { self.trains.whole(i) } else { self.trains.datagram(i) };
                    pieces.into_iter().for_each(|piece| self.outbox.push(piece));
                }
                self.boxed.push(Boxed { train: t, link: *link, is_last: n + 1 == links.len() });
            }
        }
        !self.boxed.is_empty()
    }

    /// Sends the trains that `fill_outbox` laid out. False if the link has no room for more now.
    fn empty_outbox(&mut self) -> io::Result<bool> {
        let mut result = Ok(true);
        let mut first = 0;
        while first < self.boxed.len() {
            self.counts.calls += 1;
            match self.outbox.send(self.socket.as_fd(), self.trains.memory(), first) {
                Ok(sent) => {
                    for boxed in &self.boxed[first..first + sent] {
                        if !boxed.is_last {
                            self.copied = boxed.train + 1;
                            continue;
                        }
                        let train = &mut self.trains.all_mut()[boxed.train];
                        train.done = true;
                        self.counts.packets += train.count as u64;
                        self.counts.bytes += train.bytes as u64;
                        self.counts.trains += u64::from(train.count > 1);
                    }
                    first += sent;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENETDOWN | libc::ENXIO)
                        if matches!(self.boxed[first].link, Link::Loopback) =>
                    {
                        let why = format!(
                            "{error}: other processes of this host are reached over the loopback interface; `ip link set lo up`"
                        );
                        self.give_up(self.boxed[first], &why);
                        first += 1;
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        self.counts.busy += 1;
                        return result.and(Ok(false));
                    }
                    Some(libc::ENETDOWN) => {
                        self.counts.link_down += self.lose(self.boxed[first]);
                        first += 1;
                    }
                    Some(libc::ENXIO | libc::ENODEV) => {
                        result = Err(io::Error::new(
                            io::ErrorKind::NotConnected,
                            format!("the interface was deleted ({error}): open the port again"),
                        ));
                        self.counts.failed += self.lose(self.boxed[first]);
                        first += 1;
                    }
                    _ => {
                        self.give_up(self.boxed[first], &error.to_string());
                        first += 1;
                    }
                },
            }
        }
        result
    }

    /// Drops a train and counts it. The first failure is reported, except the failure of a copy: no process may want
    /// it.
    fn give_up(&mut self, boxed: Boxed, error: &str) {
        let lost = self.lose(boxed);
        self.counts.failed += lost;
        if lost > 0 && !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                "packet: {lost} frames of {} bytes not sent: {error}. Further ones are only counted (tx_failed).",
                self.trains.all()[boxed.train].segment
            );
        }
    }

    /// Drops a train, or a copy of it. Returns the number of frames that are lost.
    fn lose(&mut self, boxed: Boxed) -> u64 {
        if !boxed.is_last {
            self.copied = boxed.train + 1;
            return 0;
        }
        let train = &mut self.trains.all_mut()[boxed.train];
        train.done = true;
        train.count as u64
    }
}

/// Removes from the headers of a frame what differs within a train.
fn flow(mut headers: [u8; MAX_HEADERS], udp: usize) -> Flow {
    if headers[12..IP] == IPV4 {
        headers[IP + 2..IP + 6].fill(0); // length, identification
        headers[IP + 10..IP + 12].fill(0); // checksum
    } else {
        headers[IP + 4..IP + 6].fill(0); // length
    }
    headers[udp + 4..].fill(0); // length, checksum, and what lies behind
    headers
}

/// Sets lengths and checksums of a train's headers: `payload` bytes behind the UDP header at `udp`. The UDP checksum is
/// for the pseudo-header, as `CHECKSUM_PARTIAL` wants it.
fn set_train(headers: &mut [u8; MAX_HEADERS], udp: usize, payload: usize) {
    set_lengths(headers, udp, payload);
    let addresses = if udp == 34 { IP + 12..IP + 20 } else { IP + 8..IP + 40 };
    let words =
        headers[addresses].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = fold(words.sum::<u32>() + (payload as u32 + 8) + UDP);
    headers[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the header of a lone frame. Returns its length.
fn write_vnet_header(prefix: &mut [u8; PREFIX], frame: usize) -> usize {
    prefix[..VNET_HEADER].fill(0);
    prefix[2..4].copy_from_slice(&(frame.min(LINEAR) as u16).to_ne_bytes());
    VNET_HEADER
}

/// Writes the header of a train of datagrams of `segment` bytes, and the frame's headers behind it. Returns the length
/// of both.
fn write_train(prefix: &mut [u8; PREFIX], headers: &[u8], segment: usize) -> usize {
    let udp = headers.len() - 8;
    // struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
    prefix[..2].copy_from_slice(&[NEEDS_CHECKSUM, GSO_UDP_L4]);
    for (at, value) in [(2, headers.len()), (4, segment), (6, udp), (8, 6)] {
        prefix[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
    }
    prefix[VNET_HEADER..VNET_HEADER + headers.len()].copy_from_slice(headers);
    VNET_HEADER + headers.len()
}
