//! A receive queue that many QPs take from: the NIC's side.
//!
//! The memory is that of any receive queue ([`super::work_queue`]). What differs is who moves the position: a QP alone moves its
//! own, while here whoever takes does, on whichever worker it runs. A taker copies the slot at the position, then moves the
//! position on by compare-and-swap. If another was faster the copy is thrown away, for the application may have been writing
//! to that slot already; if not, nobody wrote to it, because the application reuses slots only behind the consumer.
//! The position counts in 64 bits, so that one never looks like another a lap later, and is the NIC's own: what an
//! application writes to the shared consumer moves nobody.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use super::work_queue::RecvRing;
use crate::verbs::{RecvWr, Sge};

/// A receive that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The receive.
    pub wr: RecvWr,
    /// Fewer are left than the armed limit, which is disarmed by that: say so.
    pub limit_reached: bool,
}

/// The queue. Its methods may be called by several workers at once, except [`move_to`](SharedReceives::move_to).
#[derive(Debug)]
pub struct SharedReceives {
    ring: RecvRing,
    position: AtomicU64,
    /// 0: not armed.
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
        limit != 0 && self.waiting() < limit && self.disarm(limit)
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
        let first = *self.position.get_mut() as u32;
        for at in 0..waiting {
            let Some(wr) = self.ring.fetch(first.wrapping_add(at), &mut sges) else { break };
            // It has the room: looked up above.
            let _ = ring.post(wr.wr_id, &sges[..wr.num_sge as usize]);
        }
        self.ring = ring;
        *self.position.get_mut() = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn queue(capacity: u32, posted: u64) -> (RecvRing, SharedReceives) {
        let ring = RecvRing::new(capacity, 1).unwrap();
        for id in 0..posted {
            ring.post(id, &[]).unwrap();
        }
        (ring.clone(), SharedReceives::new(ring))
    }

    fn ids(queue: &SharedReceives) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(&mut [])).map(|taken| taken.wr.wr_id).collect()
    }

    #[test]
    fn receives_are_taken_in_the_order_in_which_they_were_posted_over_many_laps() {
        let (ring, queue) = queue(3, 0);
        for id in 0..100 {
            ring.post(id, &[]).unwrap();
            assert_eq!(ids(&queue), [id]);
        }
    }

    #[test]
    fn the_limit_is_reached_once_for_each_arming() {
        let (ring, queue) = queue(8, 5);
        assert!(!queue.arm(4));
        let reached: Vec<_> =
            std::iter::from_fn(|| queue.take(&mut [])).map(|taken| taken.limit_reached).collect();
        assert_eq!(reached, [false, true, false, false, false], "three are left after the second");
        assert_eq!(queue.limit(), 0);
        ring.post(9, &[]).unwrap();
        assert!(queue.arm(2), "one is there, which is fewer");
        assert_eq!(queue.limit(), 0);
        assert!(!queue.arm(1));
        assert!(!queue.arm(0), "taken back");
        assert_eq!(queue.take(&mut []).map(|taken| taken.limit_reached), Some(false));
    }

    #[test]
    fn moving_keeps_what_waits_and_its_order() {
        let (_, mut queue) = queue(4, 4);
        queue.take(&mut []).unwrap();
        let small = RecvRing::new(2, 1).unwrap();
        assert_eq!(queue.move_to(small), Err(3));
        let large = RecvRing::new(16, 1).unwrap();
        assert_eq!(queue.move_to(large.clone()), Ok(()));
        large.post(77, &[]).unwrap();
        assert_eq!(ids(&queue), [1, 2, 3, 77]);
        assert_eq!(queue.capacity(), 16);
    }

    #[test]
    fn a_scribbled_producer_is_seen() {
        let (ring, queue) = queue(4, 4);
        assert!(!queue.is_broken(), "full is not broken");
        ring.words()[0].store(5, Relaxed);
        assert!(queue.is_broken());
        assert_eq!(queue.take(&mut []), None);
    }

    #[test]
    fn several_takers_get_each_receive_once_and_unmixed() {
        const COUNT: u64 = 20_000;
        let ring = RecvRing::new(4, 1).unwrap();
        let queue = SharedReceives::new(ring.clone());
        let done = AtomicBool::new(false);
        let take = || {
            let mut got = Vec::new();
            let mut sges = [Sge::default()];
            loop {
                let last = done.load(Acquire);
                while let Some(taken) = queue.take(&mut sges) {
                    assert_eq!(sges[0].addr, taken.wr.wr_id, "a list of another receive");
                    got.push(taken.wr.wr_id);
                }
                if last {
                    break got;
                }
                thread::yield_now();
            }
        };
        let mut all = thread::scope(|scope| {
            let takers: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
            for id in 0..COUNT {
                let list = [Sge { addr: id, ..Sge::default() }];
                while ring.post(id, &list).is_err() {
                    thread::yield_now();
                }
            }
            done.store(true, std::sync::atomic::Ordering::Release);
            let mut all = Vec::new();
            for taker in takers {
                let got = taker.join().expect("a taker");
                assert!(got.is_sorted(), "one taker got them out of order");
                all.extend(got);
            }
            all
        });
        all.sort_unstable();
        assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
    }
}
