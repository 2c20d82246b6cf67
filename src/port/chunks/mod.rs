//! The chunks of an AF_XDP socket: which are in its rings, in frames here, or free.
//!
//! ```text
//!   receive    fill ring -> kernel -> rx ring -> burst -> returning -> fill ring
//!   transmit   free -> slot -> pending -> tx ring -> kernel -> completion ring -> free
//! ```
//!
//! A chunk is a value that is neither `Copy` nor `Clone`: it moves into a ring and comes out of one, so that none is in
//! two places. The rings are behind [`ReceiveRings`] and [`SendRings`]: those of a socket in `xdp`, and a pair in
//! memory with a test at the other end. No code here orders memory between a producer and a consumer: for a socket,
//! libxdp and the kernel do, and the pair in memory belongs to one thread.
//!
//! Chunks of one direction never serve the other, and every ring has room for all chunks of its direction. Rings
//! therefore never overflow, and a flood of received frames cannot block sending. A chunk is in the kernel exactly if
//! it is nowhere else (checked by [`ChunkAccount`]).
//!
//! In copy mode, the chunk used last is used next, because the processor's cache still holds it: `free` and `returning`
//! are stacks, a flush takes back what was sent, and the kernel gets only as many chunks as expected frames need
//! ([`Receiver::expect`]).

mod door;
#[cfg(test)]
mod memory;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use nix::errno::Errno;

pub(crate) use receiver::{Receiver, RxCounters};
pub(crate) use sender::{Sender, TxCounters};

/// Bytes of packet in one chunk: 4 KiB less the kernel's `XDP_PACKET_HEADROOM`.
pub(crate) const CHUNK_DATA: usize = 4096 - 256;

/// A chunk of packet memory, with a piece of a frame. Neither a ring nor another value has the chunk.
pub(crate) trait Chunk {
    /// Bytes of the piece.
    fn length(&self) -> usize;
    /// True if the frame continues in the next descriptor (`XDP_PKT_CONTD`).
    fn continues(&self) -> bool;
    fn set_continues(&mut self, continues: bool);

    /// Returns a second owner of the chunk, for planted bugs. A chunk of a socket has none.
    #[cfg(test)]
    fn alias(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// Access to the memory of chunks.
pub(crate) trait PacketMemory {
    type Chunk: Chunk;

    /// Returns the piece in a chunk.
    fn bytes<'a>(&'a self, chunk: &'a Self::Chunk) -> &'a [u8];
    /// Returns the piece in a chunk, for writing.
    fn bytes_mut<'a>(&'a self, chunk: &'a mut Self::Chunk) -> &'a mut [u8];
    /// Sets the length of the piece, at most [`CHUNK_DATA`]. A chunk that was sent has length 0.
    fn resize(&self, chunk: &mut Self::Chunk, length: usize);
}

/// The rx ring and the fill ring.
pub(crate) trait ReceiveRings: PacketMemory {
    /// Takes at most `most` descriptors from the rx ring.
    fn receive(&mut self, most: usize, into: &mut Vec<Self::Chunk>);
    /// Returns the number of descriptors in the rx ring.
    fn waiting(&mut self) -> usize;
    /// Puts the last `count` chunks on the fill ring, the last one first: all, or none if there is no room.
    fn fill(&mut self, chunks: &mut Vec<Self::Chunk>, count: usize);
    /// True if the driver ran out of chunks, and waits to be woken for new ones.
    fn needs_wakeup(&self) -> bool;
    fn wake(&mut self);
}

/// The tx ring and the completion ring.
pub(crate) trait SendRings: PacketMemory {
    /// Puts chunks on the tx ring, in their order: all, or none if there is no room.
    fn send(&mut self, chunks: &mut Vec<Self::Chunk>);
    /// Returns the number of descriptors on the tx ring, which the kernel has not taken yet.
    fn unsent(&mut self) -> usize;
    /// True if the driver waits to be woken.
    fn needs_wakeup(&self) -> bool;
    /// Has the kernel send what is on the tx ring.
    ///
    /// # Errors
    /// The kernel's.
    fn kick(&mut self) -> Result<(), Errno>;
    /// Takes all chunks from the completion ring.
    fn complete(&mut self, into: &mut Vec<Self::Chunk>);
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

/// A frame in one or two chunks.
struct Pieces<C> {
    a: C,
    b: Option<C>,
}

impl<C: Chunk> Pieces<C> {
    fn length(&self) -> usize {
        self.a.length() + self.b.as_ref().map_or(0, Chunk::length)
    }

    fn chunks(&self) -> usize {
        1 + usize::from(self.b.is_some())
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &C> {
        std::iter::once(&self.a).chain(&self.b)
    }

    /// Gives the chunks back.
    fn into_list(self, list: &mut Vec<C>) {
        list.push(self.a);
        list.extend(self.b);
    }
}
