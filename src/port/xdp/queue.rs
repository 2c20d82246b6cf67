//! One AF_XDP socket: its memory, its four rings, and the owner of each chunk.
//!
//! ```text
//!   receive    fill ring -> kernel -> rx ring -> burst -> returning -> fill ring
//!   transmit   free -> slot -> pending -> tx ring -> kernel -> completion ring -> free
//! ```
//!
//! Chunks of one direction never serve the other, and every ring has room for all chunks of its direction. Rings
//! therefore never overflow, and a flood of received frames cannot block sending. A chunk is in the kernel exactly if
//! it is nowhere else (checked by [`Queue::account`]).
//!
//! In copy mode, the chunk used last is used next, because the processor's cache still holds it: `free` and `returning`
//! are stacks, a flush takes back what was sent, and the kernel gets only as many chunks as expected frames need
//! ([`Queue::expect`]).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use xsk_rs::socket::XdpStatistics;
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue, Umem};

use crate::BURST;
use roxie_base::frame::{Frame, FrameMut};

/// Bytes of packet in one chunk: 4 KiB less the kernel's `XDP_PACKET_HEADROOM`.
pub(super) const CHUNK_DATA: usize = 4096 - 256;
/// Least number of chunks to receive into, 1 MiB. 128 and 512 made WRITEs of 64 KiB slower, with a cache of 1 MiB.
const LEAST_LENT: usize = 256;
/// `XDP_PKT_CONTD`: the frame goes on in the next descriptor.
const CONTINUED: u32 = 1;

/// Ownership of a chunk of the UMEM: neither `Copy` nor `Clone`, unlike the descriptor in it: a chunk that we hold is
/// in no ring, so the kernel does not touch it.
#[derive(Debug)]
struct Chunk(FrameDesc);

impl Chunk {
    fn len(&self) -> usize {
        self.0.lengths().data()
    }
}

/// A received frame in one or two chunks.
struct RxFrame {
    a: Chunk,
    b: Option<Chunk>,
}

impl RxFrame {
    fn len(&self) -> usize {
        self.a.len() + self.b.as_ref().map_or(0, Chunk::len)
    }
}

/// The pieces of a frame that have arrived so far.
enum Assembly {
    /// None: the next descriptor begins a frame.
    Empty,
    /// A frame that continues in the next descriptor.
    Partial(RxFrame),
    /// A frame of more than two descriptors, which is dropped as a whole: bytes so far.
    Overlong(usize),
}

/// A transmit slot between `alloc` and `commit`.
struct Slot {
    a: Chunk,
    b: Option<Chunk>,
}

/// Counters of one socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueCounters {
    pub(super) rx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) rx_multi_buffer: u64,
    pub(super) rx_gso_superframe: u64,
    pub(super) rx_too_long: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_multi_buffer: u64,
    pub(super) tx_failed: u64,
    pub(super) tx_kicks: u64,
    pub(super) tx_busy: u64,
    pub(super) rx_kicks: u64,
    pub(super) link_down: u64,
}

/// Where the chunks are. `total` is fixed, and the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkAccount {
    /// Chunks of this direction.
    pub total: usize,
    /// Chunks of frames on this side.
    pub held: usize,
    /// Chunks on this side that no frame uses.
    pub free: usize,
    /// Chunks in a ring or in the kernel.
    pub kernel: usize,
}

impl std::ops::AddAssign for ChunkAccount {
    fn add_assign(&mut self, other: ChunkAccount) {
        self.total += other.total;
        self.held += other.held;
        self.free += other.free;
        self.kernel += other.kernel;
    }
}

/// One AF_XDP socket. See the module's page.
pub(super) struct Queue {
    pub(super) id: u32,
    rx: RxQueue,
    tx: TxQueue,
    fill: FillQueue,
    comp: CompQueue,
    umem: Umem,
    /// Copy mode sends inside the system call, so each flush needs one.
    copy_mode: bool,
    ring: u32,

    rx_total: usize,
    rx_kernel: usize,
    /// Number of chunks that the kernel gets to receive into: bound of `rx_kernel`.
    rx_lent: usize,
    burst: Vec<RxFrame>,
    assembly: Assembly,
    returning: Vec<Chunk>,
    /// Longest frame of one packet on the link, in bytes.
    pub(super) longest: usize,

    tx_total: usize,
    tx_kernel: usize,
    /// Descriptors on the tx ring after the last flush.
    tx_remaining: u32,
    free: Vec<Chunk>,
    slots: Vec<Option<Slot>>,
    free_slots: Vec<u32>,
    pending: Vec<FrameDesc>,
    /// True if the kernel has refused to send what is on the tx ring: the interface is down or gone. Frames that are committed meanwhile
    /// are lost. Those on the ring are the kernel's, and are sent late.
    is_down: bool,

    scratch: Vec<FrameDesc>,
    pub(super) counters: QueueCounters,
}

/// Parts from which a queue is made.
pub(super) struct Parts {
    pub(super) id: u32,
    pub(super) rx: RxQueue,
    pub(super) tx: TxQueue,
    pub(super) fill: FillQueue,
    pub(super) comp: CompQueue,
    pub(super) umem: Umem,
    /// Every chunk of `umem`, each once.
    pub(super) chunks: Vec<FrameDesc>,
    pub(super) copy_mode: bool,
    pub(super) ring: u32,
    pub(super) longest: usize,
}

impl Queue {
    /// Makes a queue of a bound socket; gives half its chunks to the kernel for receiving.
    pub(super) fn new(parts: Parts) -> Queue {
        let Parts { id, rx, tx, fill, comp, umem, chunks, copy_mode, ring, longest } = parts;
        let half = chunks.len() / 2;
        let mut chunks = chunks.into_iter().map(Chunk);
        let returning: Vec<Chunk> = chunks.by_ref().take(half).collect();
        let free: Vec<Chunk> = chunks.collect();
        let (rx_total, tx_total) = (returning.len(), free.len());
        let mut queue = Queue {
            id,
            rx,
            tx,
            fill,
            comp,
            umem,
            copy_mode,
            ring,
            rx_total,
            rx_kernel: 0,
            // A zero-copy driver keeps its own ring full.
            rx_lent: if copy_mode { LEAST_LENT.min(rx_total) } else { rx_total },
            burst: Vec::with_capacity(BURST),
            assembly: Assembly::Empty,
            returning,
            longest,
            tx_total,
            tx_kernel: 0,
            tx_remaining: 0,
            slots: (0..tx_total).map(|_| None).collect(),
            free_slots: (0..u32::try_from(tx_total).unwrap_or(u32::MAX)).rev().collect(),
            free,
            pending: Vec::with_capacity(tx_total),
            is_down: false,
            scratch: vec![FrameDesc::default(); rx_total.max(BURST)],
            counters: QueueCounters::default(),
        };
        queue.refill();
        queue
    }

    /// Prepares for `frames` frames of the longest size that arrive before the next burst.
    pub(super) fn expect(&mut self, frames: usize) {
        let chunks = if self.longest > CHUNK_DATA { 2 } else { 1 };
        self.rx_lent = frames.saturating_mul(chunks).clamp(self.rx_lent, self.rx_total);
        self.refill();
    }

    /// Takes frames from the rx ring until the burst has `most`. Returns the burst's size.
    pub(super) fn receive(&mut self, most: usize) -> usize {
        if self.fill.needs_wakeup() {
            self.wake_driver();
        }
        let most = most.saturating_sub(self.burst.len());
        // One descriptor completes at most one frame, so this cannot yield too many.
        // SAFETY: the descriptors come from the ring of the socket that is bound to `self.umem`; the
        // chunks they name were given to the kernel by `refill` and are not held here.
        let n = unsafe { self.rx.consume(&mut self.scratch[..most]) };
        self.rx_kernel -= n;
        if n == most && self.rx_kernel < self.rx.nb_avail_exact() as usize + 2 {
            // The fill ring has no room for another frame, so frames may have been lost.
            self.rx_lent = (2 * self.rx_lent).min(self.rx_total);
        }
        for i in 0..n {
            self.take(Chunk(self.scratch[i]));
        }
        self.burst.len()
    }

    /// Adds a received chunk to the frame it belongs to.
    fn take(&mut self, chunk: Chunk) {
        let more = chunk.0.options() & CONTINUED != 0;
        let assembly = std::mem::replace(&mut self.assembly, Assembly::Empty);
        self.assembly = match (assembly, more) {
            (Assembly::Empty, false) => {
                self.deliver(RxFrame { a: chunk, b: None });
                Assembly::Empty
            }
            (Assembly::Empty, true) => Assembly::Partial(RxFrame { a: chunk, b: None }),
            (Assembly::Partial(RxFrame { a, b: None }), more) => {
                let frame = RxFrame { a, b: Some(chunk) };
                if more {
                    Assembly::Partial(frame)
                } else {
                    self.deliver(frame);
                    Assembly::Empty
                }
            }
            // A third piece: drop the frame and return its chunks.
            (Assembly::Partial(frame), more) => {
                let length = frame.len() + chunk.len();
                self.discard(frame);
                self.returning.push(chunk);
                self.overlong(length, more)
            }
            (Assembly::Overlong(before), more) => {
                let length = before + chunk.len();
                self.returning.push(chunk);
                self.overlong(length, more)
            }
        };
    }

    /// Adds a complete frame to the burst, unless it is longer than any packet of this link.
    fn deliver(&mut self, frame: RxFrame) {
        if frame.len() > self.longest {
            self.counters.rx_gso_superframe += 1;
            self.discard(frame);
            return;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += frame.len() as u64;
        self.counters.rx_multi_buffer += u64::from(frame.b.is_some());
        self.burst.push(frame);
    }

    fn discard(&mut self, frame: RxFrame) {
        self.returning.push(frame.a);
        self.returning.extend(frame.b);
    }

    /// Counts an overlong frame once, at its end.
    fn overlong(&mut self, length: usize, more: bool) -> Assembly {
        if more {
            return Assembly::Overlong(length);
        }
        if length > self.longest {
            self.counters.rx_gso_superframe += 1;
        } else {
            self.counters.rx_too_long += 1;
        }
        Assembly::Empty
    }

    /// Returns the number of frames in the burst.
    pub(super) fn received(&self) -> usize {
        self.burst.len()
    }

    /// Returns the `i`-th frame of the burst.
    pub(super) fn frame(&self, i: usize) -> Frame<'_> {
        let RxFrame { a, b } = &self.burst[i];
        // SAFETY: the chunks are of this UMEM and we hold them, so neither the kernel nor another part of
        // the program writes there; they leave the burst only through `&mut self`. The kernel's lengths
        // lie within the chunk (xsk_rcv copies at most a chunk's room; a driver DMAs no more).
        let a = unsafe { self.umem.data(&a.0) }.contents();
        let b = match b {
            // SAFETY: the second piece's chunk is of this UMEM and held like the first's, and its length lies within.
            Some(b) => unsafe { self.umem.data(&b.0) }.contents(),
            None => &[],
        };
        Frame { a, b }
    }

    /// Ends the burst.
    pub(super) fn release(&mut self) {
        while let Some(frame) = self.burst.pop() {
            self.discard(frame);
        }
        if self.rx_kernel < self.rx_lent {
            self.refill();
        }
    }

    /// Puts chunks on the fill ring until the kernel has its share, first those that returned last.
    fn refill(&mut self) {
        let n = self.rx_lent.saturating_sub(self.rx_kernel).min(self.returning.len());
        let newest = self.returning.iter().rev().take(n);
        for (slot, chunk) in self.scratch.iter_mut().zip(newest) {
            *slot = chunk.0;
        }
        // SAFETY: the chunks are of this UMEM and held in `returning`, so they are in no ring. If the ring
        // takes them they are forgotten right here; it takes all or none.
        let put = unsafe { self.fill.produce(&self.scratch[..n]) };
        self.rx_kernel += put;
        self.returning.truncate(self.returning.len() - put);
    }

    /// Wakes a driver that ran out of chunks and waits for new ones (zero-copy).
    fn wake_driver(&mut self) {
        self.counters.rx_kicks += 1;
        // An error means "busy", "no frame there" or "link down": each is detected elsewhere.
        let _ = self.rx.poll(0);
    }

    /// Returns the number of descriptors in the rx ring, and its size.
    pub(super) fn waiting(&mut self) -> (usize, usize) {
        (self.rx.nb_avail_exact() as usize, self.ring as usize)
    }

    /// True if a frame waits in the rx ring.
    pub(super) fn has_frames(&mut self) -> bool {
        self.rx.nb_avail(1) > 0
    }

    /// Reserves a slot for a frame of `len` bytes.
    pub(super) fn alloc(&mut self, len: usize) -> Option<u32> {
        let chunks = if len > CHUNK_DATA { 2 } else { 1 };
        if self.free.len() < chunks {
            self.complete();
            if self.free.len() < chunks {
                return None;
            }
        }
        let slot = self.free_slots.pop()?;
        // The position of the split makes no difference to the kernel (measured); received frames are split here.
        let a = self.sized_chunk(len.min(CHUNK_DATA))?;
        let b = if chunks == 2 { self.sized_chunk(len - CHUNK_DATA) } else { None };
        self.slots[slot as usize] = Some(Slot { a, b });
        Some(slot)
    }

    /// Takes a free chunk and sets its descriptor's length to `len`, at most [`CHUNK_DATA`]. Completed descriptors have
    /// length 0.
    fn sized_chunk(&mut self, len: usize) -> Option<Chunk> {
        let mut chunk = self.free.pop()?;
        // SAFETY: the chunk is of this UMEM and ours alone; nothing is read, only the length is set, which
        // the cursor cuts to the chunk's end.
        unsafe { self.umem.data_mut(&mut chunk.0) }.cursor().set_pos(len);
        Some(chunk)
    }

    /// Returns the bytes of a slot.
    ///
    /// # Panics
    /// If the slot is not reserved.
    pub(super) fn slot(&mut self, slot: u32) -> FrameMut<'_> {
        let Slot { a, b } = self.slots[slot as usize].as_mut().expect("a transmit slot that is reserved");
        FrameMut { a: bytes_mut(&self.umem, a), b: b.as_mut().map_or(&mut [], |b| bytes_mut(&self.umem, b)) }
    }

    /// Queues a slot's frame for the next flush.
    ///
    /// # Panics
    /// If the slot is not reserved. [`Queue::cancel`] panics likewise.
    pub(super) fn commit(&mut self, slot: u32) {
        let Slot { mut a, b } = self.take_slot(slot);
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += a.len() as u64;
        if let Some(mut b) = b {
            self.counters.tx_bytes += b.len() as u64;
            self.counters.tx_multi_buffer += 1;
            a.0.set_options(CONTINUED);
            b.0.set_options(0);
            self.pending.extend([a.0, b.0]);
        } else {
            a.0.set_options(0);
            self.pending.push(a.0);
        }
    }

    /// Frees a slot unsent.
    pub(super) fn cancel(&mut self, slot: u32) {
        let Slot { a, b } = self.take_slot(slot);
        self.free.push(a);
        self.free.extend(b);
    }

    fn take_slot(&mut self, slot: u32) -> Slot {
        let taken = self.slots[slot as usize].take().expect("a transmit slot that is reserved");
        self.free_slots.push(slot);
        taken
    }

    /// True if frames still wait for a kick: committed since the last flush, or left over from it in copy mode. A
    /// zero-copy driver polls the ring by itself.
    pub(super) fn unsent(&self) -> bool {
        !self.pending.is_empty() || (self.copy_mode && self.tx_remaining > 0)
    }

    fn on_tx_ring(&mut self) -> u32 {
        self.ring - self.tx.nb_free_exact()
    }

    /// Drops the committed frames.
    fn lose_pending(&mut self) {
        let ends = self.pending.iter().filter(|desc| desc.options() & CONTINUED == 0);
        self.counters.tx_failed += ends.count() as u64;
        self.free.extend(self.pending.drain(..).map(Chunk));
    }

    /// Gives the committed frames to the kernel, and kicks it where needed. Frames to an interface that is down are lost.
    ///
    /// # Errors
    /// If the link has failed for good, because the interface was deleted.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.is_down &= self.on_tx_ring() > 0;
        if self.is_down {
            self.lose_pending();
        }
        if !self.pending.is_empty() {
            // SAFETY: each descriptor was moved here from a slot that owned its chunk, so the chunk is in no
            // ring and has no other owner. The ring has room for all transmit chunks and takes all or none.
            let put = unsafe { self.tx.produce(&self.pending) };
            self.tx_kernel += put;
            self.pending.drain(..put);
        }
        let mut remaining = self.on_tx_ring();
        self.tx_remaining = remaining;
        while remaining > 0 && (self.copy_mode || self.tx.needs_wakeup()) {
            self.counters.tx_kicks += 1;
            match send(self.tx.fd().as_raw_fd(), &[], MsgFlags::MSG_DONTWAIT) {
                // A zero-copy driver continues by itself; one kick is enough.
                Ok(_) if !self.copy_mode => {
                    self.is_down = false;
                    break;
                }
                // EAGAIN: the budget of one call is used up, or the send buffer is full.
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(Errno::EBUSY | Errno::ENOBUFS | Errno::EINTR) => self.counters.tx_busy += 1,
                Err(Errno::ENETDOWN) => {
                    self.counters.link_down += 1;
                    self.is_down = true;
                    break;
                }
                Err(e) => {
                    (self.is_down, self.tx_remaining) = (true, 0);
                    return Err(failed(e));
                }
            }
            let now = self.on_tx_ring();
            if now == remaining {
                self.counters.tx_busy += 1;
                break; // no progress: retry at the next flush
            }
            (remaining, self.is_down) = (now, false);
        }
        self.tx_remaining = remaining;
        if self.tx_kernel > 0 {
            self.complete();
        }
        Ok(())
    }

    /// Reclaims the chunks of frames that were sent.
    fn complete(&mut self) {
        loop {
            // SAFETY: the ring belongs to the socket bound to `self.umem`; what it returns was produced by
            // `flush` and is held nowhere else.
            let n = unsafe { self.comp.consume(&mut self.scratch[..BURST]) };
            self.tx_kernel -= n;
            self.free.extend(self.scratch[..n].iter().map(|desc| Chunk(*desc)));
            if n < BURST {
                return;
            }
        }
    }

    /// Returns where the chunks are: receiving, then transmitting.
    pub(super) fn account(&mut self) -> (ChunkAccount, ChunkAccount) {
        self.complete();
        let pieces = |a: &Option<Chunk>| 1 + usize::from(a.is_some());
        let partial = match &self.assembly {
            Assembly::Partial(frame) => pieces(&frame.b),
            Assembly::Empty | Assembly::Overlong(_) => 0,
        };
        let burst: usize = self.burst.iter().map(|f| pieces(&f.b)).sum();
        let slots: usize = self.slots.iter().flatten().map(|s| pieces(&s.b)).sum();
        (
            ChunkAccount {
                total: self.rx_total,
                held: burst + partial,
                free: self.returning.len(),
                kernel: self.rx_kernel,
            },
            ChunkAccount {
                total: self.tx_total,
                held: slots + self.pending.len(),
                free: self.free.len(),
                kernel: self.tx_kernel,
            },
        )
    }

    /// Returns the socket, which is readable when frames arrive.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket stays open as long as the queue that the descriptor is borrowed from.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }

    /// Returns the kernel's own counters; zeros if it refuses.
    pub(super) fn statistics(&self) -> XdpStatistics {
        self.rx.fd().xdp_statistics().unwrap_or_default()
    }
}

/// Returns the packet bytes of a chunk, for writing.
fn bytes_mut<'a>(umem: &'a Umem, chunk: &'a mut Chunk) -> &'a mut [u8] {
    let len = chunk.len();
    // SAFETY: the chunk is of this UMEM (all chunks of a queue are of its UMEM) and exclusively borrowed, so
    // no other code reads or writes there.
    let mut data = unsafe { umem.data_mut(&mut chunk.0) };
    let start = data.contents_mut().as_mut_ptr();
    // SAFETY: `start` and `len` are taken from the slice just made; the memory lives as long as `umem` is
    // borrowed, and stays ours as long as `chunk` is.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// Converts an error that ends sending for good.
fn failed(e: Errno) -> io::Error {
    match e {
        Errno::ENXIO | Errno::ENODEV | Errno::EBADF => io::Error::new(
            io::ErrorKind::NotConnected,
            format!("the interface was deleted or its queues were reconfigured ({e}): open the port again"),
        ),
        other => other.into(),
    }
}
