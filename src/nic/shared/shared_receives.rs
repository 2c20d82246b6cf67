//! A receive queue that many QPs take from: the NIC's side.
//!
//! The memory is laid out as in any receive queue ([`super::work_queue`]), but several takers advance its position,
//! possibly on different workers. A taker copies the slot at the position, then advances the position by
//! compare-and-swap:
//!
//! * If another taker was faster, the copy is discarded, because the application may already be overwriting the slot.
//! * Otherwise the copy is good, because the application reuses slots only behind the consumer.
//!
//! The position has 64 bits, so that it never repeats after a lap. The NIC keeps it in its own memory: a write to the
//! shared consumer by the application does not move it.

use super::sync::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use super::work_queue::RecvRing;
use crate::verbs::{RecvWr, Sge};
use roxie_base::limits::MAX_SGE;

/// A receive that a QP has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The receive, without its scatter list.
    pub wr: RecvWr,
    /// Fewer receives are left than the armed limit: the caller must raise the event. The limit is now disarmed.
    pub limit_reached: bool,
}

/// The queue. Several workers may call its methods concurrently, except [`end_move`](SharedReceives::end_move).
#[derive(Debug)]
pub struct SharedReceives {
    ring: RecvRing,
    position: AtomicU64,
    /// Number of receives below which an event is raised, once; 0 if not armed.
    limit: AtomicU32,
    has_failed: AtomicBool,
}

impl SharedReceives {
    /// The NIC's side of a ring from which nothing has been taken.
    pub fn new(ring: RecvRing) -> SharedReceives {
        let (position, limit) = (AtomicU64::new(0), AtomicU32::new(0));
        SharedReceives { ring, position, limit, has_failed: AtomicBool::new(false) }
    }

    /// Takes the oldest receive and copies its list. Returns `None` if there is none.
    pub fn take(&self, sges: &mut [Sge]) -> Option<Taken> {
        let mut position = self.position.load(Acquire);
        // Each further iteration means that another taker has got a receive.
        loop {
            //= IBTA 10.2.9: srq-serves-in-order
            let wr = self.ring.fetch(position as u32, sges)?;
            match self.position.compare_exchange(position, position + 1, AcqRel, Acquire) {
                Ok(_) => break self.taken(wr, position + 1),
                Err(now) => position = now,
            }
        }
    }

    fn taken(&self, wr: RecvWr, position: u64) -> Option<Taken> {
        self.ring.retire_at_least(position);
        let limit = self.limit.load(Relaxed);
        let limit_reached = limit != 0 && self.ring.waiting(position as u32) < limit && self.disarm(limit);
        Some(Taken { wr, limit_reached })
    }

    /// Returns true to the one caller that disarms the limit.
    fn disarm(&self, limit: u32) -> bool {
        self.limit.compare_exchange(limit, 0, AcqRel, Relaxed).is_ok()
    }

    /// Requests an event, once, when fewer than `limit` receives are left; 0 cancels the request. Returns true if fewer
    /// are left already: the limit is then disarmed.
    pub fn arm(&self, limit: u32) -> bool {
        self.limit.store(limit, Relaxed);
        // A read-modify-write that changes nothing, to be ordered with each take: later takes see the limit, earlier
        // ones are seen here.
        let position = self.position.fetch_add(0, AcqRel);
        limit != 0 && self.ring.waiting(position as u32) < limit && self.disarm(limit)
    }

    /// The armed limit; 0 if none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Receives that wait to be taken.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting(self.position.load(Acquire) as u32)
    }

    /// True if the producer claims more receives than the ring has slots: the application has overwritten it.
    pub fn is_broken(&self) -> bool {
        self.ring.overruns(self.position.load(Acquire) as u32)
    }

    /// Puts the queue in error. Returns true to the one caller that must raise the event.
    pub fn fail(&self) -> bool {
        !self.has_failed.swap(true, Relaxed)
    }

    /// Receives that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Scatter/gather entries that a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    /// Begins to move all waiting receives to another ring, in their order; [`ReceivesMove::go_on`] does it. Receives
    /// may be taken meanwhile. Caller must ensure that none is posted until [`end_move`](Self::end_move).
    ///
    /// # Errors
    /// The number of waiting receives, if the other ring holds fewer, or shorter lists. The rings are unchanged then.
    pub fn begin_move(&self, to: RecvRing) -> Result<ReceivesMove, u32> {
        let waiting = self.waiting();
        if to.capacity() < waiting || to.max_sge() < self.ring.max_sge() {
            return Err(waiting);
        }
        to.reset();
        Ok(ReceivesMove { to, first: self.position.load(Acquire), waiting, copied: 0 })
    }

    /// Continues in the ring to which all receives have been copied. Caller must ensure that there is no concurrent
    /// take.
    pub fn end_move(&mut self, moved: ReceivesMove) {
        // No more than were copied, even if a client has posted meanwhile.
        let taken = (self.position.load(Acquire) - moved.first).min(u64::from(moved.copied));
        moved.to.retire_at_least(taken);
        self.ring = moved.to;
        self.position.store(taken, Relaxed);
    }
}

/// A move of waiting receives to another ring, in steps.
#[derive(Debug)]
pub struct ReceivesMove {
    to: RecvRing,
    /// The position at which the move began.
    first: u64,
    /// Receives that waited then.
    waiting: u32,
    /// Receives that are in the other ring.
    copied: u32,
}

impl ReceivesMove {
    /// Copies up to `most` receives, those taken since the beginning included. True: all are copied.
    pub fn go_on(&mut self, from: &SharedReceives, most: u32) -> bool {
        let mut sges = [Sge::default(); MAX_SGE];
        let last = self.waiting.min(self.copied.saturating_add(most));
        while self.copied < last {
            let position = (self.first as u32).wrapping_add(self.copied);
            let Some(wr) = from.ring.fetch(position, &mut sges) else { return true };
            // The ring has room, unless a client overwrites its indices.
            if self.to.post(wr.wr_id, &sges[..wr.num_sge as usize]).is_err() {
                return true;
            }
            self.copied += 1;
        }
        self.copied == self.waiting
    }
}
