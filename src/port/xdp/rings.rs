//! The rings and the packet memory of a socket: what `chunks` works on.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use xsk_rs::socket::XdpStatistics;
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue, Umem};

use crate::BURST;
use crate::chunks::{Chunk, PacketMemory, ReceiveRings, SendRings};

/// `XDP_PKT_CONTD`: the frame goes on in the next descriptor.
const CONTINUED: u32 = 1;

/// Ownership of a chunk of a UMEM: a chunk that is a value is in no ring, so the kernel does not touch it. Only this
/// module makes one: of a new UMEM ([`SocketChunk::all`]), and of what comes out of a ring.
#[derive(Debug)]
pub(super) struct SocketChunk(FrameDesc);

impl SocketChunk {
    /// Takes all chunks of a new UMEM.
    fn all(descriptors: Vec<FrameDesc>) -> impl Iterator<Item = SocketChunk> {
        descriptors.into_iter().map(SocketChunk)
    }
}

impl Chunk for SocketChunk {
    fn length(&self) -> usize {
        self.0.lengths().data()
    }

    fn continues(&self) -> bool {
        self.0.options() & CONTINUED != 0
    }

    fn set_continues(&mut self, continues: bool) {
        self.0.set_options(if continues { CONTINUED } else { 0 });
    }
}

/// The packet memory of a socket. Each direction has its own chunks of it.
#[derive(Debug)]
pub(super) struct SocketMemory(Umem);

impl SocketMemory {
    fn bytes<'a>(&'a self, chunk: &'a SocketChunk) -> &'a [u8] {
        // SAFETY: the chunk is of this UMEM, as `split` gives each direction chunks of the memory that it gets, and
        // rings of one socket carry no others. It is borrowed, so neither the kernel nor another part of the program
        // writes there. The kernel's lengths lie within the chunk (xsk_rcv copies at most a chunk's room; a driver DMAs
        // no more).
        unsafe { self.0.data(&chunk.0) }.contents()
    }

    fn bytes_mut<'a>(&'a self, chunk: &'a mut SocketChunk) -> &'a mut [u8] {
        let length = chunk.length();
        // SAFETY: the chunk is of this UMEM, as in `bytes`, and exclusively borrowed, so no other code reads or writes
        // there.
        let mut data = unsafe { self.0.data_mut(&mut chunk.0) };
        let start = data.contents_mut().as_mut_ptr();
        // SAFETY: `start` and `length` are taken from the slice just made; the memory lives as long as the UMEM is
        // borrowed, and stays ours as long as `chunk` is.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }

    fn resize(&self, chunk: &mut SocketChunk, length: usize) {
        // SAFETY: the chunk is of this UMEM and ours alone, as in `bytes_mut`; nothing is read, only the length is set,
        // which the cursor cuts to the chunk's end.
        unsafe { self.0.data_mut(&mut chunk.0) }.cursor().set_pos(length);
    }
}

/// The parts of a bound socket.
pub(super) struct Socket {
    pub(super) rx: RxQueue,
    pub(super) tx: TxQueue,
    pub(super) fill: FillQueue,
    pub(super) comp: CompQueue,
    pub(super) umem: Umem,
    /// Every chunk of `umem`, each once.
    pub(super) descriptors: Vec<FrameDesc>,
    /// Entries of each ring.
    pub(super) ring: u32,
}

/// The rings of one direction, and its half of the chunks.
pub(super) type Half<R> = (R, Vec<SocketChunk>);

impl Socket {
    /// Splits into the two directions.
    pub(super) fn split(self) -> (Half<SocketReceiveRings>, Half<SocketSendRings>) {
        let Socket { rx, tx, fill, comp, umem, descriptors, ring } = self;
        let half = descriptors.len() / 2;
        let scratch = || vec![FrameDesc::default(); half.max(BURST)];
        let mut chunks = SocketChunk::all(descriptors);
        let receiving = chunks.by_ref().take(half).collect();
        let memory = || SocketMemory(umem.clone());
        let receive = SocketReceiveRings { rx, fill, memory: memory(), ring, scratch: scratch() };
        let send = SocketSendRings { tx, comp, memory: memory(), ring, scratch: scratch() };
        ((receive, receiving), (send, chunks.collect()))
    }
}

/// The rings that receive.
pub(super) struct SocketReceiveRings {
    rx: RxQueue,
    fill: FillQueue,
    memory: SocketMemory,
    ring: u32,
    scratch: Vec<FrameDesc>,
}

/// The rings that send.
pub(super) struct SocketSendRings {
    tx: TxQueue,
    comp: CompQueue,
    memory: SocketMemory,
    ring: u32,
    scratch: Vec<FrameDesc>,
}

impl SocketReceiveRings {
    /// Returns the number of entries of each ring.
    pub(super) fn size(&self) -> usize {
        self.ring as usize
    }

    /// Returns the socket, which is readable when frames arrive.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket stays open as long as the ring that the descriptor is borrowed from.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }

    /// Returns the kernel's own counters; zeros if it refuses.
    pub(super) fn statistics(&self) -> XdpStatistics {
        self.rx.fd().xdp_statistics().unwrap_or_default()
    }
}

/// Implements access to packet memory by the field `memory`.
macro_rules! has_socket_memory {
    ($rings:ty) => {
        impl PacketMemory for $rings {
            type Chunk = SocketChunk;

            fn bytes<'a>(&'a self, chunk: &'a SocketChunk) -> &'a [u8] {
                self.memory.bytes(chunk)
            }

            fn bytes_mut<'a>(&'a self, chunk: &'a mut SocketChunk) -> &'a mut [u8] {
                self.memory.bytes_mut(chunk)
            }

            fn resize(&self, chunk: &mut SocketChunk, length: usize) {
                self.memory.resize(chunk, length);
            }
        }
    };
}

has_socket_memory!(SocketReceiveRings);
has_socket_memory!(SocketSendRings);

impl ReceiveRings for SocketReceiveRings {
    fn receive(&mut self, most: usize, into: &mut Vec<SocketChunk>) {
        // SAFETY: the descriptors come from the ring of the socket that is bound to this UMEM; the chunks they name
        // were given to the kernel by `fill`, which forgot them, so these are their only owners.
        let count = unsafe { self.rx.consume(&mut self.scratch[..most]) };
        into.extend(self.scratch[..count].iter().map(|descriptor| SocketChunk(*descriptor)));
    }

    fn waiting(&mut self) -> usize {
        self.rx.nb_avail_exact() as usize
    }

    fn fill(&mut self, chunks: &mut Vec<SocketChunk>, count: usize) {
        let count = count.min(chunks.len());
        let newest = chunks.iter().rev().take(count);
        for (slot, chunk) in self.scratch.iter_mut().zip(newest) {
            *slot = chunk.0;
        }
        // SAFETY: the chunks are of this UMEM and values, so they are in no ring. If the ring takes them they are
        // forgotten right here; it takes all or none.
        let put = unsafe { self.fill.produce(&self.scratch[..count]) };
        chunks.truncate(chunks.len() - put);
    }

    fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    fn wake(&mut self) {
        // An error means "busy", "no frame there" or "link down": each is detected elsewhere.
        let _ = self.rx.poll(0);
    }
}

impl SendRings for SocketSendRings {
    fn send(&mut self, chunks: &mut Vec<SocketChunk>) {
        let count = chunks.len();
        for (slot, chunk) in self.scratch.iter_mut().zip(&*chunks) {
            *slot = chunk.0;
        }
        // SAFETY: the chunks are of this UMEM and values, so they are in no ring and have no other owner. If the ring
        // takes them they are forgotten right here; it has room for all transmit chunks and takes all or none.
        let put = unsafe { self.tx.produce(&self.scratch[..count]) };
        chunks.drain(..put);
    }

    fn unsent(&mut self) -> usize {
        (self.ring - self.tx.nb_free_exact()) as usize
    }

    fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    fn kick(&mut self) -> Result<(), Errno> {
        send(self.tx.fd().as_raw_fd(), &[], MsgFlags::MSG_DONTWAIT).map(drop)
    }

    fn complete(&mut self, into: &mut Vec<SocketChunk>) {
        loop {
            // SAFETY: the ring belongs to the socket bound to this UMEM; what it returns was produced by `send`, which
            // forgot it.
            let count = unsafe { self.comp.consume(&mut self.scratch[..BURST]) };
            into.extend(self.scratch[..count].iter().map(|descriptor| SocketChunk(*descriptor)));
            if count < BURST {
                return;
            }
        }
    }
}
