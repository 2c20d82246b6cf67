//! Rings in memory. A test plays their other end, as the kernel does: [`Kernel`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nix::errno::Errno;

use super::{CHUNK_DATA, Chunk, PacketMemory, ReceiveRings, SendRings};

/// A chunk that has its memory in itself.
#[derive(Debug)]
pub(super) struct MemoryChunk {
    pub(super) number: usize,
    data: Box<[u8]>,
    length: usize,
    continues: bool,
}

impl MemoryChunk {
    fn new(number: usize) -> MemoryChunk {
        MemoryChunk { number, data: vec![0; CHUNK_DATA].into(), length: 0, continues: false }
    }
}

impl Chunk for MemoryChunk {
    fn length(&self) -> usize {
        self.length
    }

    fn continues(&self) -> bool {
        self.continues
    }

    fn set_continues(&mut self, continues: bool) {
        self.continues = continues;
    }

    fn alias(&self) -> Option<MemoryChunk> {
        Some(MemoryChunk { data: self.data.clone(), ..*self })
    }
}

/// The kernel's answer to a kick: sends this many descriptors, or refuses.
pub(super) type Kick = Result<usize, Errno>;

/// Four rings, and what the kernel has taken from them.
#[derive(Debug, Default)]
struct Rings {
    /// Entries of each ring.
    size: usize,
    /// Entries of the fill ring and of the tx ring that may be used, at most `size`.
    room: usize,
    fill: VecDeque<MemoryChunk>,
    rx: VecDeque<MemoryChunk>,
    tx: VecDeque<MemoryChunk>,
    completion: VecDeque<MemoryChunk>,
    /// Taken from the tx ring, and not completed.
    in_flight: Vec<MemoryChunk>,
    /// Frames that were taken whole from the tx ring, and the pieces of one that was not.
    sent: Vec<Vec<u8>>,
    piece: Vec<u8>,
    /// The driver takes no chunks to receive into until it is woken.
    receive_needs_wakeup: bool,
    /// The driver sends nothing by itself until it is kicked.
    send_needs_wakeup: bool,
    wakes: usize,
    /// A kick has found the interface down, and none has sent anything since.
    is_down: bool,
    /// Answers to the next kicks. Later kicks send everything.
    kicks: VecDeque<Kick>,
}

impl Rings {
    fn take_to_send(&mut self, most: usize) {
        for _ in 0..most {
            let Some(chunk) = self.tx.pop_front() else { return };
            self.piece.extend(&chunk.data[..chunk.length]);
            if !chunk.continues {
                self.sent.push(std::mem::take(&mut self.piece));
            }
            self.in_flight.push(chunk);
        }
    }
}

/// The kernel's end of the rings.
#[derive(Clone, Debug)]
pub(super) struct Kernel(Rc<RefCell<Rings>>);

/// The port's end of the rings that receive.
pub(super) struct MemoryReceiveRings(Kernel);

/// The port's end of the rings that send.
pub(super) struct MemorySendRings(Kernel);

impl Kernel {
    /// Makes rings of `size` entries.
    pub(super) fn new(size: usize) -> Kernel {
        Kernel(Rc::new(RefCell::new(Rings { size, room: size, ..Rings::default() })))
    }

    /// Returns the port's end of the rings that receive, and `count` chunks.
    pub(super) fn receiving(&self, count: usize) -> (MemoryReceiveRings, Vec<MemoryChunk>) {
        (MemoryReceiveRings(self.clone()), (0..count).map(MemoryChunk::new).collect())
    }

    /// Returns the port's end of the rings that send, and `count` chunks.
    pub(super) fn sending(&self, count: usize) -> (MemorySendRings, Vec<MemoryChunk>) {
        (MemorySendRings(self.clone()), (0..count).map(MemoryChunk::new).collect())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Rings) -> T) -> T {
        act(&mut self.0.borrow_mut())
    }

    /// Receives a frame in these pieces. False: it is lost, as the driver sleeps, the fill ring has too few chunks, or
    /// the rx ring no room.
    pub(super) fn deliver(&self, pieces: &[&[u8]]) -> bool {
        self.with(|rings| {
            let is_short = rings.fill.len() < pieces.len() || rings.rx.len() + pieces.len() > rings.size;
            if rings.receive_needs_wakeup || is_short {
                return false;
            }
            for (at, piece) in pieces.iter().enumerate() {
                let mut chunk = rings.fill.pop_front().expect("there are enough");
                chunk.data[..piece.len()].copy_from_slice(piece);
                (chunk.length, chunk.continues) = (piece.len(), at + 1 < pieces.len());
                rings.rx.push_back(chunk);
            }
            true
        })
    }

    /// Takes descriptors from the tx ring, as a driver does by itself unless it sleeps.
    pub(super) fn take_to_send(&self, most: usize) {
        self.with(|rings| {
            if !rings.send_needs_wakeup {
                rings.take_to_send(most);
            }
        });
    }

    /// Lets the port use only `room` entries of the fill ring and of the tx ring.
    pub(super) fn limit(&self, room: usize) {
        self.with(|rings| rings.room = room.min(rings.size));
    }

    /// True if the port may use fewer entries than the rings have.
    pub(super) fn is_limited(&self) -> bool {
        self.with(|rings| rings.room < rings.size)
    }

    /// Completes the `at`-th chunk that is in flight.
    pub(super) fn complete(&self, at: usize) {
        self.with(|rings| {
            let mut chunk = rings.in_flight.remove(at);
            // As a completed descriptor.
            (chunk.length, chunk.continues) = (0, false);
            rings.completion.push_back(chunk);
        });
    }

    /// Returns the number of descriptors on the tx ring.
    pub(super) fn unsent(&self) -> usize {
        self.with(|rings| rings.tx.len())
    }

    /// Returns the number of chunks in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.with(|rings| rings.in_flight.len())
    }

    /// Returns the frames sent since the last call.
    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        self.with(|rings| std::mem::take(&mut rings.sent))
    }

    pub(super) fn plan_kicks(&self, kicks: impl IntoIterator<Item = Kick>) {
        self.with(|rings| rings.kicks.extend(kicks));
    }

    /// The driver sleeps until it is woken for chunks.
    pub(super) fn need_wakeup_to_receive(&self) {
        self.with(|rings| rings.receive_needs_wakeup = true);
    }

    /// The driver sleeps until it is kicked to send, if the tx ring is empty.
    pub(super) fn need_wakeup_to_send(&self) {
        self.with(|rings| rings.send_needs_wakeup |= rings.tx.is_empty());
    }

    /// True if the interface is down, as far as kicks show, and descriptors are on the tx ring.
    pub(super) fn is_down(&self) -> bool {
        self.with(|rings| rings.is_down && !rings.tx.is_empty())
    }

    pub(super) fn wakes(&self) -> usize {
        self.with(|rings| rings.wakes)
    }

    /// Returns the numbers of the chunks of each direction that the port does not have, receiving first.
    pub(super) fn chunks(&self) -> [Vec<usize>; 2] {
        let numbers =
            |chunks: &VecDeque<MemoryChunk>| chunks.iter().map(|chunk| chunk.number).collect::<Vec<_>>();
        self.with(|rings| {
            let in_flight = rings.in_flight.iter().map(|chunk| chunk.number).collect();
            [
                [numbers(&rings.fill), numbers(&rings.rx)].concat(),
                [numbers(&rings.tx), numbers(&rings.completion), in_flight].concat(),
            ]
        })
    }
}

/// Implements access to the memory that is in a chunk.
macro_rules! has_own_memory {
    ($rings:ty) => {
        impl PacketMemory for $rings {
            type Chunk = MemoryChunk;

            fn bytes<'a>(&'a self, chunk: &'a MemoryChunk) -> &'a [u8] {
                &chunk.data[..chunk.length]
            }

            fn bytes_mut<'a>(&'a self, chunk: &'a mut MemoryChunk) -> &'a mut [u8] {
                &mut chunk.data[..chunk.length]
            }

            fn resize(&self, chunk: &mut MemoryChunk, length: usize) {
                assert!(length <= CHUNK_DATA, "{length} bytes in one chunk");
                chunk.length = length;
            }
        }
    };
}

has_own_memory!(MemoryReceiveRings);
has_own_memory!(MemorySendRings);

impl ReceiveRings for MemoryReceiveRings {
    fn receive(&mut self, most: usize, into: &mut Vec<MemoryChunk>) {
        self.0.with(|rings| {
            let count = most.min(rings.rx.len());
            into.extend(rings.rx.drain(..count));
        });
    }

    fn waiting(&mut self) -> usize {
        self.0.with(|rings| rings.rx.len())
    }

    fn fill(&mut self, chunks: &mut Vec<MemoryChunk>, count: usize) {
        self.0.with(|rings| {
            if rings.fill.len() + count <= rings.room {
                rings.fill.extend(chunks.drain(chunks.len() - count..).rev());
            }
        });
    }

    fn needs_wakeup(&self) -> bool {
        self.0.with(|rings| rings.receive_needs_wakeup)
    }

    fn wake(&mut self) {
        self.0.with(|rings| {
            rings.wakes += 1;
            rings.receive_needs_wakeup &= rings.fill.is_empty();
        });
    }
}

impl SendRings for MemorySendRings {
    fn send(&mut self, chunks: &mut Vec<MemoryChunk>) {
        self.0.with(|rings| {
            for chunk in &*chunks {
                assert!((1..=CHUNK_DATA).contains(&chunk.length), "a descriptor of {} bytes", chunk.length);
            }
            assert!(chunks.last().is_none_or(|last| !last.continues), "a frame without its end");
            if rings.tx.len() + chunks.len() <= rings.room {
                rings.tx.extend(chunks.drain(..));
            }
        });
    }

    fn unsent(&mut self) -> usize {
        self.0.with(|rings| rings.tx.len())
    }

    fn needs_wakeup(&self) -> bool {
        self.0.with(|rings| rings.send_needs_wakeup)
    }

    fn kick(&mut self) -> Result<(), Errno> {
        self.0.with(|rings| {
            let kick = rings.kicks.pop_front().unwrap_or(Ok(usize::MAX));
            rings.is_down |= kick == Err(Errno::ENETDOWN);
            let most = kick?;
            rings.is_down &= most == 0;
            rings.send_needs_wakeup = false;
            rings.take_to_send(most);
            Ok(())
        })
    }

    fn complete(&mut self, into: &mut Vec<MemoryChunk>) {
        self.0.with(|rings| into.extend(rings.completion.drain(..)));
    }
}
