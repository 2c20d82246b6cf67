//! A receive queue that many QPs take from: the NIC's side.
//!
//! The memory is that of any receive queue ([`super::work_queue`]). What differs is who moves the position: a QP alone moves its
//! own, while here whoever takes does, on whichever worker it runs. A taker copies the slot at the position, then moves the
//! position on by compare-and-swap. If another was faster the copy is thrown away, for the application may have been writing
//! to that slot already; if not, nobody wrote to it, because the application reuses slots only behind the consumer.
//! The position counts in 64 bits, so that one never looks like another a lap later, and is the NIC's own: what an
//! application writes to the shared consumer moves nobody.

use super::sync::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use super::work_queue::RecvRing;
use crate::verbs::{RecvWr, Sge};

/// A receive that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The receive, without its scatter list.
    pub wr: RecvWr,
    /// Fewer are left than the armed limit, which is disarmed by that: say so.
    pub limit_reached: bool,
}

/// The queue. Its methods may be called by several workers at once, except [`move_to`](SharedReceives::move_to).
#[derive(Debug)]
pub struct SharedReceives {
    ring: RecvRing,
    position: AtomicU64,
    /// Receives below which an event is raised, once; 0: not armed.
    limit: AtomicU32,
}

impl SharedReceives {
    /// The NIC's side of a ring that nobody has taken from.
    pub fn new(ring: RecvRing) -> SharedReceives {
        SharedReceives { ring, position: AtomicU64::new(0), limit: AtomicU32::new(0) }
    }

    /// Takes the oldest receive and copies its list; `None` if there is none.
    pub fn take(&self, sges: &mut [Sge]) -> Option<Taken> {
        let mut position = self.position.load(Acquire);
        // Each turn but the last means that another taker has got one.
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

    /// True for the one that disarms it.
    fn disarm(&self, limit: u32) -> bool {
        self.limit.compare_exchange(limit, 0, AcqRel, Relaxed).is_ok()
    }

    /// Asks to be told, once, when fewer than `limit` receives are left; 0 takes that back. True: there are fewer already, and
    /// it is disarmed.
    pub fn arm(&self, limit: u32) -> bool {
        self.limit.store(limit, Relaxed);
        // Changed by nothing, and so in one order with each take: one that comes later sees the limit, the others are seen here.
        let position = self.position.fetch_add(0, AcqRel);
        limit != 0 && self.ring.waiting(position as u32) < limit && self.disarm(limit)
    }

    /// The limit that is armed; 0: none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Receives that wait.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting(self.position.load(Acquire) as u32)
    }

    /// True if the producer claims more receives than the ring holds: somebody wrote over it.
    pub fn is_broken(&self) -> bool {
        self.ring.overruns(self.position.load(Acquire) as u32)
    }

    /// Receives that it holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Entries that a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    /// Goes on in another ring, to which all receives that wait are moved in their order. Only while neither posts nor takes
    /// are under way.
    ///
    /// # Errors
    /// How many wait, if the other ring does not hold as many or not as long lists; nothing has changed then.
    pub fn move_to(&mut self, ring: RecvRing) -> Result<(), u32> {
        let waiting = self.waiting();
        if ring.capacity() < waiting || ring.max_sge() < self.ring.max_sge() {
            return Err(waiting);
        }
        ring.reset();
        let mut sges = vec![Sge::default(); self.ring.max_sge() as usize];
        let first = self.position.load(Relaxed) as u32;
        for at in 0..waiting {
            let Some(wr) = self.ring.fetch(first.wrapping_add(at), &mut sges) else { break };
            // It has the room: looked up above.
            let _ = ring.post(wr.wr_id, &sges[..wr.num_sge as usize]);
        }
        self.ring = ring;
        self.position.store(0, Relaxed);
        Ok(())
    }
}
