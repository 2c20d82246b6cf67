//! A layer that loops back frames addressed to the port itself.
//!
//! Links do not return a station's own frames, and traffic between two programs on one NIC should not need a link.
//! Frames to the port's own MAC address are copied to a bounded queue and received from there, and are not sent. While
//! the queue is full the port has no room, so that none is lost; the next pass makes some. Frames to multicast groups
//! are looped back and sent as well, while a group is joined or flows are steered. A capture above this layer records
//! looped-back frames as sent and as received.

use std::collections::VecDeque;
use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;

use super::{BURST, LinkChange, Port, PortInfo, Received, TxId};
use roxie_base::flow::FlowMatch;
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;

/// Loops back frames to the port's own MAC address. See the module's page.
pub struct LoopbackPort<P> {
    inner: P,
    info: PortInfo,
    buffers: Box<[u8]>,
    /// Bytes of each buffer: the longest frame that the port below has ever carried.
    stride: usize,
    depth: usize,
    free: Vec<u32>,
    /// Number of slots that are neither committed nor cancelled: each may need a buffer.
    allocated: usize,
    queue: VecDeque<Looped>,
    burst: Source,
    /// True if the queue supplied the last burst: the link goes first next time.
    link_first: bool,
    looped: u64,
    looped_bytes: u64,
    too_long: u64,
    /// Multicast groups that were joined. Frames to groups are looped back as well as sent.
    groups: Vec<IpAddr>,
    /// True if flows are in force, which may select our own frames to groups.
    steers: bool,
}

/// A frame in `buffers`.
#[derive(Clone, Copy)]
struct Looped {
    buffer: u32,
    len: usize,
}

/// Origin of the current burst. Bursts do not mix: the port below decides the size of its own.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Link,
    /// The first frames of the queue, and how many.
    Queue(usize),
}

impl<P: Port> LoopbackPort<P> {
    /// Wraps `inner` in a loopback of `depth` frames.
    pub fn new(inner: P, depth: usize) -> LoopbackPort<P> {
        let mut info = inner.info().clone();
        info.name = format!("loopback({})", info.name);
        let buffers = u32::try_from(depth).expect("a loopback of fewer than 2^32 frames");
        LoopbackPort {
            buffers: vec![0; depth * info.max_frame].into_boxed_slice(),
            stride: info.max_frame,
            depth,
            inner,
            info,
            free: (0..buffers).rev().collect(),
            allocated: 0,
            queue: VecDeque::with_capacity(depth),
            burst: Source::Link,
            link_first: false,
            looped: 0,
            looped_bytes: 0,
            too_long: 0,
            groups: Vec::new(),
            steers: false,
        }
    }

    /// Returns the port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    fn take_queue(&mut self) -> usize {
        let n = self.queue.len().min(BURST);
        self.burst = Source::Queue(n);
        self.link_first = true;
        n
    }

    fn loop_back(&mut self, id: &TxId) {
        let slot = self.inner.tx_frame(id);
        let len = slot.len();
        if len > self.stride {
            self.too_long += 1;
            return;
        }
        let buffer = self.free.pop().expect("a buffer for each slot");
        let start = buffer as usize * self.stride;
        slot.as_frame().copy_to(0, &mut self.buffers[start..start + len]);
        self.queue.push_back(Looped { buffer, len });
        self.looped += 1;
        self.looped_bytes += len as u64;
    }

    /// Enlarges the buffers for longer frames. Queued frames keep their buffers' numbers.
    fn grow(&mut self, stride: usize) {
        let mut buffers = vec![0; self.depth * stride].into_boxed_slice();
        for &Looped { buffer, len } in &self.queue {
            let (old, new) = (buffer as usize * self.stride, buffer as usize * stride);
            buffers[new..new + len].copy_from_slice(&self.buffers[old..old + len]);
        }
        self.buffers = buffers;
        self.stride = stride;
    }
}

impl<P: Port> Port for LoopbackPort<P> {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        if !self.queue.is_empty() && !self.link_first {
            return self.take_queue();
        }
        self.link_first = false;
        let n = self.inner.rx_burst(now);
        if n == 0 && !self.queue.is_empty() {
            self.inner.rx_release();
            return self.take_queue();
        }
        self.burst = Source::Link;
        n
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        match self.burst {
            Source::Link => self.inner.rx_frame(i),
            Source::Queue(n) => {
                assert!(i < n, "frame {i} of a burst of {n}");
                let looped_frame = self.queue[i];
                let start = looped_frame.buffer as usize * self.stride;
                let frame = Frame::whole(&self.buffers[start..start + looped_frame.len]);
                Received { frame, ip_id_hidden: false, arrived: None }
            }
        }
    }

    fn rx_note(&mut self, i: usize, note: Arguments<'_>) {
        if self.burst == Source::Link {
            self.inner.rx_note(i, note);
        }
    }

    fn rx_release(&mut self) {
        match self.burst {
            Source::Link => self.inner.rx_release(),
            Source::Queue(n) => {
                self.free.extend(self.queue.drain(..n).map(|looped_frame| looped_frame.buffer))
            }
        }
        self.burst = Source::Queue(0);
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if self.allocated == self.free.len() {
            return None;
        }
        let id = self.inner.tx_alloc(len)?;
        self.allocated += 1;
        Some(id)
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.allocated -= 1;
        self.inner.tx_cancel(id);
    }

    pass_on!(
        tx_frame,
        set_now,
        tx_arrange,
        tx_note,
        tx_flush,
        rx_waiting,
        set_rx_wishes,
        set_vlans,
        expect_frames,
        wants_notes,
        is_sent,
        tx_pending,
        undelivered,
        event_fds
    );

    fn tx_commit(&mut self, id: TxId) {
        self.allocated -= 1;
        let mut destination = [0; 6];
        let known = self.inner.tx_frame(&id).as_frame().copy_to(0, &mut destination);
        let is_own = known == destination.len() && destination == self.info.mac;
        if is_own && !self.inner.is_sent(&id) {
            self.loop_back(&id);
            self.inner.tx_cancel(id);
        } else {
            // The NIC decides whether a member of the group or a flow gets the frame.
            let is_group = known == destination.len() && destination[0] & 1 == 1;
            if is_group && (self.steers || !self.groups.is_empty()) {
                self.loop_back(&id);
            }
            self.inner.tx_commit(id);
        }
    }

    /// Returns 0 (immediately) while frames wait in the queue.
    fn next_event(&self) -> Nanos {
        if self.queue.is_empty() { self.inner.next_event() } else { Nanos::ZERO }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.queue.is_empty() && self.inner.prepare_sleep()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.inner.follow(change)?;
        self.info.renew(self.inner.info());
        if self.info.max_frame > self.stride {
            self.grow(self.info.max_frame);
        }
        Ok(())
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)?;
        self.groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|joined| *joined != group);
        self.inner.leave(group);
    }

    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        self.inner.steer(flows)?;
        self.steers = !flows.is_empty();
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
        out.extend([
            ("loopback_packets", self.looped),
            ("loopback_bytes", self.looped_bytes),
            ("loopback_too_long", self.too_long),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, MemoryConfig, MemoryPort};

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    fn pair(depth: usize) -> (LoopbackPort<MemoryPort>, MemoryPort) {
        let own = MemoryConfig { mac: OWN, split: Some(10), ..MemoryConfig::default() };
        let peer = MemoryConfig { mac: PEER, ..MemoryConfig::default() };
        let (a, b) = memory::pair(own, peer);
        (LoopbackPort::new(a, depth), b)
    }

    fn send(port: &mut impl Port, to: [u8; 6], payload: &[u8]) {
        let id = port.tx_alloc(6 + payload.len()).expect("room");
        let mut frame = port.tx_frame(&id);
        frame.write(0, &to);
        frame.write(6, payload);
        port.tx_commit(id);
        port.tx_flush(Nanos::ZERO).expect("a memory port does not fail");
    }

    fn receive(port: &mut impl Port) -> Vec<Vec<u8>> {
        let n = port.rx_burst(Nanos::ZERO);
        let frames = (0..n).map(|i| port.rx_frame(i).frame.to_vec()[6..].to_vec()).collect();
        port.rx_release();
        frames
    }

    #[test]
    fn frames_to_own_address_never_reach_the_link() {
        let (mut a, mut b) = pair(8);
        send(&mut a, OWN, b"to myself, in two pieces");
        send(&mut a, PEER, b"to the peer");
        assert!(a.next_event() == Nanos::ZERO && !a.prepare_sleep());
        assert_eq!(receive(&mut a), [b"to myself, in two pieces"]);
        assert_eq!(receive(&mut b), [b"to the peer"]);
        assert!(receive(&mut a).is_empty() && a.next_event() == Nanos::MAX);
    }

    #[test]
    fn full_queue_does_not_starve_the_link() {
        let (mut a, mut b) = pair(512);
        for n in 0..200u8 {
            send(&mut a, OWN, &[n]);
            send(&mut b, OWN, &[n]);
        }
        let bursts: Vec<_> = (0..8).map(|_| receive(&mut a)).collect();
        assert_eq!(bursts.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 64, 64, 64, 64, 8, 8]);
        for origin in 0..2 {
            let all: Vec<u8> = bursts.iter().skip(origin).step_by(2).flatten().map(|f| f[0]).collect();
            assert_eq!(all, (0..200).collect::<Vec<_>>());
        }
    }

    #[test]
    fn full_queue_has_no_room() {
        let (mut a, _b) = pair(3);
        send(&mut a, OWN, &[0]);
        send(&mut a, OWN, &[1]);
        let third = a.tx_alloc(7).expect("room");
        assert!(a.tx_alloc(7).is_none(), "two frames and a slot for the third");
        a.tx_cancel(third);
        send(&mut a, OWN, &[2]);
        assert!(a.tx_alloc(7).is_none(), "three frames");
        assert_eq!(receive(&mut a), [[0], [1], [2]]);
        send(&mut a, OWN, &[9]);
        assert_eq!(receive(&mut a), [[9]], "the buffers are free again");
    }

    #[test]
    fn group_frames_are_looped_while_flows_are_steered() {
        let group = [1, 0, 0x5e, 1, 1, 1];
        let (mut a, mut b) = pair(8);
        send(&mut a, group, b"before");
        a.steer(&[FlowMatch::default()]).unwrap();
        send(&mut a, group, b"meanwhile");
        send(&mut a, PEER, b"to the peer");
        a.steer(&[]).unwrap();
        send(&mut a, group, b"after");
        assert_eq!(receive(&mut a), [b"meanwhile"]);
        assert_eq!(receive(&mut b), [&b"before"[..], b"meanwhile", b"to the peer", b"after"]);
    }

    #[test]
    fn buffers_grow_with_the_link_mtu() {
        let (mut a, _b) = pair(4);
        send(&mut a, OWN, &[1; 4000]);
        a.follow(&LinkChange::Mtu(9000)).unwrap();
        assert_eq!((a.info().mtu, a.info().max_frame), (9000, 9018));
        for n in 2..5 {
            send(&mut a, OWN, &[n; 9000]);
        }
        let got = receive(&mut a);
        assert!(got[0] == [1; 4000], "queued frames are still there");
        assert!((1..4).all(|i| got[i] == [i as u8 + 1; 9000]), "no frame overwrites its neighbour");
    }

    /// The port below carries a longer frame than it announced: its bug is a counted drop here.
    #[test]
    fn frame_longer_than_buffers_is_dropped() {
        let (mut a, _b) = pair(2);
        a.inner.follow(&LinkChange::Mtu(9000)).unwrap();
        send(&mut a, OWN, &[1; 9000]);
        send(&mut a, OWN, &[2]);
        assert_eq!(receive(&mut a), [[2]]);
        let mut counters = Vec::new();
        a.counters(&mut counters);
        assert!(counters.contains(&("loopback_too_long", 1)));
    }

    #[test]
    fn frames_to_a_new_mac_are_looped_back() {
        let (mut a, mut b) = pair(2);
        a.follow(&LinkChange::Mac(PEER)).unwrap();
        send(&mut a, PEER, b"to myself");
        assert_eq!(receive(&mut a), [b"to myself"]);
        assert!(receive(&mut b).is_empty());
    }
}
