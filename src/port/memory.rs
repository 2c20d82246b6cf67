//! Ports in memory: a pair of them, joined within one process.
//!
//! Used by tests, by the simulator's shortest cable, and by the benchmark that measures the engine alone. Each
//! direction owns a fixed pool of buffers that travel sender -> queue -> receiver -> sender. The lock is taken once for
//! a burst, not once for a frame, and the bytes never move.
//!
//! A receiver that does not take its frames stalls its sender (`tx_alloc` returns `None`); no frame is lost.
//! [`fault`](super::fault) adds losses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{BURST, Carries, LinkChange, Port, PortInfo, Received, TxId};
use roxie_base::flow::FlowMatch;
use roxie_base::frame::{Frame, FrameMut};
use roxie_base::time::Nanos;

/// Bytes of a frame beyond the link MTU: Ethernet header and one VLAN tag.
const L2_OVERHEAD: usize = 18;

/// Configuration of one end of a [`pair`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Station address, in the order of the wire.
    pub mac: [u8; 6],
    /// Link MTU in bytes. Longer frames from a peer with a larger one are dropped and counted.
    pub mtu: usize,
    /// Shown as the interface.
    pub name: String,
    /// Number of buffers for the direction in which this end sends: the most frames in flight.
    pub depth: usize,
    /// Shows received and sent frames in two pieces that meet at this offset.
    pub split: Option<usize>,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig { mac: [2, 0, 0, 0, 0, 1], mtu: 4200, name: "memory".into(), depth: 1024, split: None }
    }
}

/// Joins two ports: what one sends, the other receives, in order.
///
/// One thread or two may drive the ports.
pub fn pair(a: MemoryConfig, b: MemoryConfig) -> (MemoryPort, MemoryPort) {
    let a_to_b = Arc::new(Lane::new(a.depth));
    let b_to_a = Arc::new(Lane::new(b.depth));
    let a = MemoryPort::new(a, Arc::clone(&a_to_b), Arc::clone(&b_to_a));
    let b = MemoryPort::new(b, b_to_a, a_to_b);
    (a, b)
}

/// One end of a [`pair`].
pub struct MemoryPort {
    info: PortInfo,
    split: usize,
    outgoing: Arc<Lane>,
    incoming: Arc<Lane>,
    /// Free buffers; the one used last is taken first (its memory is warm).
    free: Vec<Buffer>,
    /// Slots since the last flush, by `TxId`; `None` once committed or cancelled.
    open: Vec<Option<Buffer>>,
    committed: Vec<Buffer>,
    burst: Vec<Buffer>,
    /// The peer's buffers, already read, returned when the lock is taken next.
    consumed: Vec<Buffer>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rx_packets: u64,
    rx_bytes: u64,
    rx_oversize: u64,
    tx_packets: u64,
    tx_bytes: u64,
    tx_no_peer: u64,
    tx_stalled: u64,
    tx_too_long: u64,
}

struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
}

/// Queue of one direction. Its buffers belong to the sender.
#[repr(align(128))]
struct Lane {
    state: Mutex<LaneState>,
    /// Hint of `state.frames.len()`, so that an idle receiver takes no lock.
    waiting: AtomicUsize,
    /// Wakes the receiver. `None` if no eventfd could be made: the receiver must not sleep then.
    wake: Option<EventFd>,
}

struct LaneState {
    frames: VecDeque<Buffer>,
    returned: Vec<Buffer>,
    /// True if the receiver sleeps on `wake`.
    armed: bool,
}

impl Lane {
    fn new(depth: usize) -> Lane {
        let state = LaneState {
            frames: VecDeque::with_capacity(depth),
            returned: Vec::with_capacity(depth),
            armed: false,
        };
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).ok();
        Lane { state: Mutex::new(state), waiting: AtomicUsize::new(0), wake }
    }

    /// Locks the queue. Poison is ignored: a peer that panicked leaves whole buffers behind.
    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryPort {
    fn new(config: MemoryConfig, outgoing: Arc<Lane>, incoming: Arc<Lane>) -> MemoryPort {
        let max_frame = config.mtu + L2_OVERHEAD;
        let buffer = || Buffer { bytes: vec![0; max_frame].into_boxed_slice(), len: 0 };
        MemoryPort {
            info: PortInfo {
                name: "memory".into(),
                interface: Some(config.name),
                mode: format!("in process, {} buffers", config.depth),
                mac: config.mac,
                mtu: config.mtu,
                max_frame,
                carries: Carries::AnyFrames,
                has_trains: false,
            },
            split: config.split.unwrap_or(usize::MAX),
            outgoing,
            incoming,
            free: std::iter::repeat_with(buffer).take(config.depth).collect(),
            open: Vec::with_capacity(config.depth),
            committed: Vec::with_capacity(config.depth),
            burst: Vec::with_capacity(BURST),
            consumed: Vec::with_capacity(2 * BURST),
            counts: Counts::default(),
        }
    }

    fn take_open(&mut self, id: &TxId) -> Buffer {
        self.open[id.0 as usize].take().expect("a transmit slot is committed or cancelled once")
    }

    /// Returns frames that are too long for this end to the sender, and counts them.
    #[cold]
    fn drop_oversize(&mut self) {
        let oversize = self.burst.extract_if(.., |frame| frame.len > self.info.max_frame);
        let before = self.consumed.len();
        self.consumed.extend(oversize);
        self.counts.rx_oversize += (self.consumed.len() - before) as u64;
    }

    /// Returns the peer's buffers and takes up to a burst of its frames.
    fn exchange_incoming(&mut self) {
        let mut lane = self.incoming.lock();
        lane.returned.append(&mut self.consumed);
        let n = lane.frames.len().min(BURST);
        self.burst.extend(lane.frames.drain(..n));
        self.incoming.waiting.store(lane.frames.len(), Ordering::Relaxed);
    }
}

impl Port for MemoryPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        if self.incoming.waiting.load(Ordering::Relaxed) == 0 && self.consumed.is_empty() {
            return 0;
        }
        self.exchange_incoming();
        let longest = self.info.max_frame;
        if self.burst.iter().any(|frame| frame.len > longest) {
            self.drop_oversize();
        }
        self.counts.rx_packets += self.burst.len() as u64;
        self.counts.rx_bytes += self.burst.iter().map(|f| f.len as u64).sum::<u64>();
        self.burst.len()
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let buffer = &self.burst[i];
        let (a, b) = buffer.bytes[..buffer.len].split_at(self.split.min(buffer.len));
        Received { frame: Frame { a, b }, ip_id_hidden: false, arrived: None }
    }

    fn rx_release(&mut self) {
        self.consumed.append(&mut self.burst);
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.counts.tx_too_long += 1;
            return None;
        }
        let Some(mut buffer) = self.free.pop() else {
            self.counts.tx_stalled += 1;
            return None;
        };
        if buffer.bytes.len() < len {
            // Happens once for each buffer after the MTU was raised.
            buffer.bytes = vec![0; self.info.max_frame].into_boxed_slice();
        }
        buffer.len = len;
        let id = TxId(u32::try_from(self.open.len()).expect("the pool is smaller than 2^32"));
        self.open.push(Some(buffer));
        Some(id)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        let buffer = self.open[id.0 as usize].as_mut().expect("a transmit slot is written before its commit");
        let (a, b) = buffer.bytes[..buffer.len].split_at_mut(self.split.min(buffer.len));
        FrameMut { a, b }
    }

    fn tx_commit(&mut self, id: TxId) {
        let buffer = self.take_open(&id);
        self.committed.push(buffer);
    }

    fn tx_cancel(&mut self, id: TxId) {
        let buffer = self.take_open(&id);
        self.free.push(buffer);
    }

    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        debug_assert!(self.open.iter().all(Option::is_none), "slots are closed before tx_flush");
        self.open.clear();
        if self.committed.is_empty() && !self.free.is_empty() {
            return Ok(());
        }
        // The peer holds the other reference. Without it the frames are dropped.
        if Arc::strong_count(&self.outgoing) == 1 {
            self.counts.tx_no_peer += self.committed.len() as u64;
            self.free.append(&mut self.committed);
            return Ok(());
        }
        self.counts.tx_packets += self.committed.len() as u64;
        self.counts.tx_bytes += self.committed.iter().map(|f| f.len as u64).sum::<u64>();
        let mut lane = self.outgoing.lock();
        self.free.append(&mut lane.returned);
        lane.frames.extend(self.committed.drain(..));
        self.outgoing.waiting.store(lane.frames.len(), Ordering::Relaxed);
        let wake = lane.armed && !lane.frames.is_empty();
        if wake {
            lane.armed = false;
        }
        drop(lane);
        match &self.outgoing.wake {
            Some(event) if wake => event.write(1).map(drop).map_err(io::Error::from),
            _ => Ok(()),
        }
    }

    /// True as well while the peer holds every buffer: nothing can be sent until it has read some.
    fn tx_pending(&self) -> bool {
        self.free.is_empty()
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.incoming.wake.iter().map(AsFd::as_fd).collect()
    }

    fn prepare_sleep(&mut self) -> bool {
        let Some(event) = &self.incoming.wake else { return false };
        // Clears an earlier wake-up. An error means that there was none, which is the normal case.
        let _ = event.read();
        let mut lane = self.incoming.lock();
        lane.returned.append(&mut self.consumed);
        lane.armed = lane.frames.is_empty();
        lane.armed
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.info.follow(change);
        Ok(())
    }

    /// Does nothing: all frames of the peer are received anyway.
    fn steer(&mut self, _flows: &[FlowMatch]) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let c = &self.counts;
        out.extend([
            ("rx_packets", c.rx_packets),
            ("rx_bytes", c.rx_bytes),
            ("rx_oversize", c.rx_oversize),
            ("tx_packets", c.tx_packets),
            ("tx_bytes", c.tx_bytes),
            ("tx_no_peer", c.tx_no_peer),
            ("tx_stalled", c.tx_stalled),
            ("tx_too_long", c.tx_too_long),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(port: &mut MemoryPort, bytes: &[u8]) {
        let id = port.tx_alloc(bytes.len()).expect("room");
        port.tx_frame(&id).write(0, bytes);
        port.tx_commit(id);
    }

    fn receive(port: &mut MemoryPort) -> Vec<Vec<u8>> {
        let n = port.rx_burst(Nanos::ZERO);
        let frames = (0..n).map(|i| port.rx_frame(i).frame.to_vec()).collect();
        port.rx_release();
        frames
    }

    fn count(port: &MemoryPort, name: &str) -> u64 {
        let mut all = Vec::new();
        port.counters(&mut all);
        all.iter().find(|c| c.0 == name).expect("a known counter").1
    }

    #[test]
    fn frames_arrive_in_commit_order() {
        let (mut a, mut b) = pair(MemoryConfig::default(), MemoryConfig::default());
        let x = a.tx_alloc(1).unwrap();
        let y = a.tx_alloc(1).unwrap();
        let z = a.tx_alloc(1).unwrap();
        for (id, byte) in [(&x, 1), (&y, 2), (&z, 3)] {
            a.tx_frame(id).write(0, &[byte]);
        }
        a.tx_commit(z);
        a.tx_cancel(y);
        a.tx_commit(x);
        assert_eq!(b.rx_burst(Nanos::ZERO), 0, "nothing leaves before the flush");
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(receive(&mut b), [[3], [1]]);
    }

    #[test]
    fn idle_receiver_stalls_its_sender() {
        let small = MemoryConfig { depth: 100, ..MemoryConfig::default() };
        let (mut a, mut b) = pair(small.clone(), small);
        for i in 0..100 {
            send(&mut a, &[i]);
        }
        assert!(a.tx_alloc(1).is_none());
        a.tx_flush(Nanos::ZERO).unwrap();
        assert!(a.tx_alloc(1).is_none() && a.tx_pending());
        let mut got = Vec::new();
        while got.len() < 100 {
            let n = got.len();
            got.extend(receive(&mut b));
            assert!(got.len() > n && got.len() - n <= BURST);
        }
        assert!(got.iter().enumerate().all(|(i, f)| f[..] == [i as u8]));
        assert!(receive(&mut b).is_empty());
        a.tx_flush(Nanos::ZERO).unwrap();
        assert!(!a.tx_pending() && a.tx_alloc(1).is_some());
    }

    #[test]
    fn split_port_shows_frames_in_two_pieces() {
        let split = MemoryConfig { split: Some(3), ..MemoryConfig::default() };
        let (mut a, mut b) = pair(split.clone(), split);
        let id = a.tx_alloc(5).unwrap();
        let f = a.tx_frame(&id);
        assert_eq!((f.a.len(), f.b.len()), (3, 2));
        a.tx_frame(&id).write(0, b"abcde");
        a.tx_commit(id);
        send(&mut a, b"xy");
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(b.rx_burst(Nanos::ZERO), 2);
        let f = b.rx_frame(0).frame;
        assert_eq!((f.a, f.b), (&b"abc"[..], &b"de"[..]));
        let f = b.rx_frame(1).frame;
        assert_eq!((f.a, f.b), (&b"xy"[..], &b""[..]));
    }

    #[test]
    fn frame_beyond_receivers_mtu_is_dropped() {
        let small = MemoryConfig { mtu: 1500, ..MemoryConfig::default() };
        let (mut a, mut b) = pair(MemoryConfig::default(), small);
        send(&mut a, &[1; 2000]);
        send(&mut a, &[2; 1518]);
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(receive(&mut b), [[2; 1518]]);
        assert_eq!(count(&b, "rx_oversize"), 1);
    }

    #[test]
    fn frame_beyond_own_mtu_gets_no_slot() {
        let (mut a, mut b) = pair(MemoryConfig::default(), MemoryConfig::default());
        a.follow(&LinkChange::Mtu(1500)).unwrap();
        assert!(a.tx_alloc(1519).is_none() && a.tx_alloc(usize::MAX).is_none());
        assert_eq!(count(&a, "tx_too_long"), 2);
        for port in [&mut a, &mut b] {
            port.follow(&LinkChange::Mtu(9000)).unwrap();
        }
        send(&mut a, &[7; 9018]);
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(receive(&mut b), [[7; 9018]], "a raised MTU makes room");
    }

    #[test]
    fn frames_to_a_dropped_peer_are_counted() {
        let (mut a, b) = pair(MemoryConfig::default(), MemoryConfig::default());
        drop(b);
        for _ in 0..3000 {
            send(&mut a, &[0; 64]);
            a.tx_flush(Nanos::ZERO).unwrap();
        }
        assert_eq!((count(&a, "tx_no_peer"), count(&a, "tx_packets")), (3000, 0));
    }

    #[test]
    fn first_frame_after_arming_wakes_the_sleeper() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let (mut a, mut b) = pair(MemoryConfig::default(), MemoryConfig::default());
        let readable = |port: &MemoryPort| {
            let fds = port.event_fds();
            poll(&mut [PollFd::new(fds[0], PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
        };
        send(&mut a, &[1]);
        a.tx_flush(Nanos::ZERO).unwrap();
        assert!(!b.prepare_sleep(), "a frame is there already");
        assert_eq!(receive(&mut b), [[1]]);
        assert!(b.prepare_sleep() && !readable(&b));
        send(&mut a, &[2]);
        a.tx_flush(Nanos::ZERO).unwrap();
        assert!(readable(&b));
        assert_eq!(receive(&mut b), [[2]]);
        assert!(b.prepare_sleep() && !readable(&b), "an old wake-up does not wake again");
    }

    #[test]
    fn two_threads_exchange_every_frame_in_order() {
        const FRAMES: u64 = 20_000;
        let (mut a, mut b) = pair(MemoryConfig::default(), MemoryConfig::default());
        let sender = std::thread::spawn(move || {
            let mut next = 0u64;
            while next < FRAMES {
                while next < FRAMES {
                    let Some(id) = a.tx_alloc(8) else { break };
                    a.tx_frame(&id).write(0, &next.to_be_bytes());
                    a.tx_commit(id);
                    next += 1;
                }
                a.tx_flush(Nanos::ZERO).unwrap();
                std::thread::yield_now();
            }
            a
        });
        let mut expected = 0u64;
        while expected < FRAMES {
            for frame in receive(&mut b) {
                assert_eq!(frame, expected.to_be_bytes());
                expected += 1;
            }
            std::thread::yield_now();
        }
        assert_eq!(count(&sender.join().unwrap(), "tx_packets"), FRAMES);
    }
}
