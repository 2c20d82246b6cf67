//! Receiving: descriptors become frames of a burst, and their chunks go back to the kernel.

use super::{Chunk, ChunkAccount, Pieces, ReceiveRings, door};
use crate::BURST;
use roxie_base::frame::Frame;

/// Least number of chunks to receive into, 1 MiB. 128 and 512 made WRITEs of 64 KiB slower, with a cache of 1 MiB.
pub(super) const LEAST_LENT: usize = 256;

/// The pieces of a frame that have arrived so far.
enum Assembly<C> {
    /// None: the next descriptor begins a frame.
    Empty,
    /// A frame that continues in the next descriptor.
    Partial(Pieces<C>),
    /// A frame of more than two descriptors, which is dropped as a whole: bytes so far.
    Overlong(usize),
}

/// Counters of received frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RxCounters {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) multi_buffer: u64,
    pub(crate) gso_superframe: u64,
    pub(crate) too_long: u64,
    pub(crate) kicks: u64,
}

/// The receiving side of a socket. See the module's page.
pub(crate) struct Receiver<R: ReceiveRings> {
    rings: R,
    total: usize,
    kernel: usize,
    /// Number of chunks that the kernel gets to receive into: bound of `kernel`.
    lent: usize,
    arrived: Vec<R::Chunk>,
    burst: Vec<Pieces<R::Chunk>>,
    assembly: Assembly<R::Chunk>,
    returning: Vec<R::Chunk>,
    /// Longest frame of one packet on the link, in bytes.
    longest: usize,
    counters: RxCounters,
}

impl<R: ReceiveRings> Receiver<R> {
    /// Gives chunks to the kernel to receive into: in copy mode only as many as expected frames need. A zero-copy
    /// driver keeps its own ring full.
    pub(crate) fn new(rings: R, chunks: Vec<R::Chunk>, longest: usize, copy_mode: bool) -> Receiver<R> {
        let total = chunks.len();
        let mut receiver = Receiver {
            rings,
            total,
            kernel: 0,
            lent: if copy_mode { LEAST_LENT.min(total) } else { total },
            arrived: Vec::with_capacity(BURST),
            burst: Vec::with_capacity(BURST),
            assembly: Assembly::Empty,
            returning: chunks,
            longest,
            counters: RxCounters::default(),
        };
        receiver.refill();
        receiver
    }

    pub(crate) fn rings(&self) -> &R {
        &self.rings
    }

    pub(crate) fn counters(&self) -> &RxCounters {
        &self.counters
    }

    pub(crate) fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Prepares for `frames` frames of the longest size that arrive before the next burst.
    pub(crate) fn expect(&mut self, frames: usize) {
        self.lent = frames.saturating_mul(door::chunks_for(self.longest)).clamp(self.lent, self.total);
        self.refill();
    }

    /// Takes frames from the rx ring until the burst has `most`. Returns the burst's size.
    pub(crate) fn receive(&mut self, most: usize) -> usize {
        if door::wakes_to_receive(self.rings.needs_wakeup()) {
            self.counters.kicks += 1;
            self.rings.wake();
        }
        // One descriptor completes at most one frame, so this cannot yield too many.
        let most = most.saturating_sub(self.burst.len());
        let mut arrived = std::mem::take(&mut self.arrived);
        self.rings.receive(most, &mut arrived);
        self.kernel -= arrived.len();
        if arrived.len() == most && self.kernel < self.rings.waiting() + 2 {
            // The fill ring has no room for another frame, so frames may have been lost.
            self.lent = (2 * self.lent).min(self.total);
        }
        arrived.drain(..).for_each(|chunk| self.take(chunk));
        self.arrived = arrived;
        self.burst.len()
    }

    /// Adds a received chunk to the frame it belongs to.
    fn take(&mut self, chunk: R::Chunk) {
        let more = chunk.continues();
        let assembly = std::mem::replace(&mut self.assembly, Assembly::Empty);
        self.assembly = match (assembly, more) {
            (Assembly::Empty, false) => {
                self.deliver(Pieces { a: chunk, b: None });
                Assembly::Empty
            }
            (Assembly::Empty, true) => Assembly::Partial(Pieces { a: chunk, b: None }),
            (Assembly::Partial(Pieces { a, b: None }), more) => {
                let frame = Pieces { a, b: Some(chunk) };
                if more {
                    Assembly::Partial(frame)
                } else {
                    self.deliver(frame);
                    Assembly::Empty
                }
            }
            // A third piece: drop the frame and return its chunks.
            (Assembly::Partial(frame), more) => {
                let length = frame.length() + chunk.length();
                door::drop_overlong(frame, &mut self.returning);
                self.returning.push(chunk);
                self.overlong(length, more)
            }
            (Assembly::Overlong(before), more) => {
                let length = before + chunk.length();
                self.returning.push(chunk);
                self.overlong(length, more)
            }
        };
    }

    /// Adds a complete frame to the burst, unless it is longer than any packet of this link.
    fn deliver(&mut self, frame: Pieces<R::Chunk>) {
        if door::is_too_long(frame.length(), self.longest) {
            self.counters.gso_superframe += 1;
            frame.into_list(&mut self.returning);
            return;
        }
        self.counters.packets += 1;
        self.counters.bytes += frame.length() as u64;
        self.counters.multi_buffer += u64::from(frame.b.is_some());
        self.burst.push(frame);
    }

    /// Counts an overlong frame once, at its end.
    fn overlong(&mut self, length: usize, more: bool) -> Assembly<R::Chunk> {
        if more {
            return Assembly::Overlong(length);
        }
        if length > self.longest {
            self.counters.gso_superframe += 1;
        } else {
            self.counters.too_long += 1;
        }
        Assembly::Empty
    }

    /// Returns the number of frames in the burst.
    pub(crate) fn received(&self) -> usize {
        self.burst.len()
    }

    /// Returns the `i`-th frame of the burst.
    pub(crate) fn frame(&self, i: usize) -> Frame<'_> {
        let Pieces { a, b } = &self.burst[i];
        Frame { a: self.rings.bytes(a), b: b.as_ref().map_or(&[], |b| self.rings.bytes(b)) }
    }

    /// Ends the burst.
    pub(crate) fn release(&mut self) {
        while let Some(frame) = self.burst.pop() {
            door::release(frame, &mut self.returning);
        }
        if self.kernel < self.lent {
            self.refill();
        }
    }

    /// Puts chunks on the fill ring until the kernel has its share, first those that returned last.
    fn refill(&mut self) {
        let before = self.returning.len();
        let count = door::refill(self.lent.saturating_sub(self.kernel), before, self.kernel);
        self.rings.fill(&mut self.returning, count);
        self.kernel += door::filled(count, before - self.returning.len());
    }

    /// Returns the number of descriptors in the rx ring.
    pub(crate) fn waiting(&mut self) -> usize {
        self.rings.waiting()
    }

    /// Returns where the chunks are.
    pub(crate) fn account(&self) -> ChunkAccount {
        let partial = match &self.assembly {
            Assembly::Partial(frame) => frame.chunks(),
            Assembly::Empty | Assembly::Overlong(_) => 0,
        };
        let burst: usize = self.burst.iter().map(Pieces::chunks).sum();
        ChunkAccount {
            total: self.total,
            held: burst + partial,
            free: self.returning.len(),
            kernel: self.kernel,
        }
    }

    /// Returns the chunks on this side.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> impl Iterator<Item = &R::Chunk> {
        let partial = match &self.assembly {
            Assembly::Partial(frame) => Some(frame),
            Assembly::Empty | Assembly::Overlong(_) => None,
        };
        let frames = self.burst.iter().chain(partial).flat_map(Pieces::iter);
        self.returning.iter().chain(frames)
    }
}
