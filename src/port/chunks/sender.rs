//! Transmitting: free chunks become slots, then frames on the tx ring, and are free again when they were sent.

use std::io;

use nix::errno::Errno;

use super::{CHUNK_DATA, Chunk, ChunkAccount, Pieces, SendRings, door};
use roxie_base::frame::FrameMut;

/// Counters of frames to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxCounters {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) multi_buffer: u64,
    pub(crate) failed: u64,
    pub(crate) kicks: u64,
    pub(crate) busy: u64,
    pub(crate) link_down: u64,
}

/// The transmitting side of a socket. See the module's page.
pub(crate) struct Sender<R: SendRings> {
    rings: R,
    /// Copy mode sends inside the system call, so each flush needs one.
    copy_mode: bool,
    total: usize,
    kernel: usize,
    /// Descriptors on the tx ring after the last flush, if they wait for a kick.
    remaining: usize,
    free: Vec<R::Chunk>,
    slots: Vec<Option<Pieces<R::Chunk>>>,
    free_slots: Vec<u32>,
    pending: Vec<R::Chunk>,
    /// True if the kernel has refused to send what is on the tx ring: the interface is down or gone. Frames that are
    /// committed meanwhile are lost. Those on the ring are the kernel's, and are sent late.
    is_down: bool,
    counters: TxCounters,
}

impl<R: SendRings> Sender<R> {
    pub(crate) fn new(rings: R, chunks: Vec<R::Chunk>, copy_mode: bool) -> Sender<R> {
        let total = chunks.len();
        Sender {
            rings,
            copy_mode,
            total,
            kernel: 0,
            remaining: 0,
            free: chunks,
            slots: (0..total).map(|_| None).collect(),
            free_slots: (0..u32::try_from(total).unwrap_or(u32::MAX)).rev().collect(),
            pending: Vec::with_capacity(total),
            is_down: false,
            counters: TxCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> &TxCounters {
        &self.counters
    }

    /// Reserves a slot for a frame of `length` bytes.
    pub(crate) fn alloc(&mut self, length: usize) -> Option<u32> {
        let chunks = door::chunks_for(length);
        if self.free.len() < chunks {
            self.complete();
            if self.free.len() < chunks {
                return None;
            }
        }
        let slot = self.free_slots.pop()?;
        // The position of the split makes no difference to the kernel (measured); received frames are split here.
        let a = self.sized_chunk(length.min(CHUNK_DATA))?;
        let b = if chunks == 2 { self.sized_chunk(length - CHUNK_DATA) } else { None };
        self.slots[slot as usize] = Some(Pieces { a, b });
        Some(slot)
    }

    fn sized_chunk(&mut self, length: usize) -> Option<R::Chunk> {
        let mut chunk = self.free.pop()?;
        self.rings.resize(&mut chunk, length);
        Some(chunk)
    }

    /// Returns the bytes of a slot.
    ///
    /// # Panics
    /// If the slot is not reserved.
    pub(crate) fn slot(&mut self, slot: u32) -> FrameMut<'_> {
        let Pieces { a, b } = self.slots[slot as usize].as_mut().expect("a transmit slot that is reserved");
        let b = b.as_mut().map_or(&mut [][..], |b| self.rings.bytes_mut(b));
        FrameMut { a: self.rings.bytes_mut(a), b }
    }

    /// Queues a slot's frame for the next flush.
    ///
    /// # Panics
    /// If the slot is not reserved. [`Sender::cancel`] panics likewise.
    pub(crate) fn commit(&mut self, slot: u32) {
        let mut frame = self.take_slot(slot);
        self.counters.packets += 1;
        self.counters.bytes += frame.length() as u64;
        self.counters.multi_buffer += u64::from(frame.b.is_some());
        frame.a.set_continues(door::continues(&frame));
        if let Some(b) = &mut frame.b {
            b.set_continues(false);
        }
        frame.into_list(&mut self.pending);
    }

    /// Frees a slot unsent.
    pub(crate) fn cancel(&mut self, slot: u32) {
        door::cancel(self.take_slot(slot), &mut self.free);
    }

    fn take_slot(&mut self, slot: u32) -> Pieces<R::Chunk> {
        let taken = self.slots[slot as usize].take().expect("a transmit slot that is reserved");
        if door::frees_slot() {
            self.free_slots.push(slot);
        }
        taken
    }

    /// True if frames still wait for a kick: committed since the last flush, or left over from it. A zero-copy driver
    /// that is awake polls the ring by itself.
    pub(crate) fn unsent(&self) -> bool {
        !self.pending.is_empty() || self.remaining > 0
    }

    /// Drops the committed frames.
    fn lose_pending(&mut self) {
        self.counters.failed += self.pending.iter().filter(|chunk| !chunk.continues()).count() as u64;
        door::lose(&mut self.pending, &mut self.free);
    }

    /// Gives the committed frames to the kernel, and kicks it where needed. Frames to an interface that is down are
    /// lost.
    ///
    /// # Errors
    /// If the link has failed for good, because the interface was deleted.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.is_down &= self.rings.unsent() > 0;
        if self.is_down {
            self.lose_pending();
        }
        self.kernel += door::send(&mut self.rings, &mut self.pending, &mut self.free);
        self.remaining = self.rings.unsent();
        // A zero-copy driver that is awake takes them by itself.
        if !self.copy_mode && !door::wakes_to_send(self.rings.needs_wakeup()) {
            self.remaining = 0;
        }
        while self.remaining > 0 {
            self.counters.kicks += 1;
            match self.rings.kick() {
                // A zero-copy driver continues by itself; one kick is enough.
                Ok(()) if !self.copy_mode => {
                    (self.is_down, self.remaining) = (false, 0);
                    break;
                }
                // EAGAIN: the budget of one call is used up, or the send buffer is full.
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(Errno::EBUSY | Errno::ENOBUFS | Errno::EINTR) => self.counters.busy += 1,
                Err(Errno::ENETDOWN) => {
                    self.counters.link_down += 1;
                    self.is_down = true;
                    break;
                }
                Err(e) => {
                    (self.is_down, self.remaining) = (true, 0);
                    return Err(failed(e));
                }
            }
            let now = door::after_kick(self.rings.unsent(), self.remaining);
            if now == self.remaining {
                self.counters.busy += 1;
                break; // no progress: retry at the next flush
            }
            (self.remaining, self.is_down) = (now, false);
        }
        if self.kernel > 0 {
            self.complete();
        }
        Ok(())
    }

    /// Reclaims the chunks of frames that were sent.
    fn complete(&mut self) {
        let before = self.free.len();
        self.rings.complete(&mut self.free);
        door::completed(&mut self.free, before);
        self.kernel -= self.free.len() - before;
    }

    /// Returns where the chunks are.
    pub(crate) fn account(&mut self) -> ChunkAccount {
        self.complete();
        let slots: usize = self.slots.iter().flatten().map(Pieces::chunks).sum();
        ChunkAccount {
            total: self.total,
            held: slots + self.pending.len(),
            free: self.free.len(),
            kernel: self.kernel,
        }
    }

    /// Returns the chunks on this side.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> impl Iterator<Item = &R::Chunk> {
        let slots = self.slots.iter().flatten().flat_map(Pieces::iter);
        self.free.iter().chain(&self.pending).chain(slots)
    }
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
