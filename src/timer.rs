//! A timing wheel: when which QP wants to be looked at.
//!
//! Six levels of 64 slots. A tick is 1,024 ns by default, so the wheel spans 2^36 ticks, about 19 hours: longer than
//! the longest transport timeout (4.096 us * 2^31, 2.4 hours). An owner has at most one entry; lists are
//! linked through an array indexed by the owner, so nothing is allocated and moving an entry is O(1).

use crate::time::Nanos;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const TICK_BITS: u32 = 10;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u32,
    previous: u32,
    /// Level * SLOTS + slot, or `NONE` if not in the wheel.
    list: u32,
    tick: u64,
}

const IDLE: Entry = Entry { next: NONE, previous: NONE, list: NONE, tick: 0 };

/// The wheel.
#[derive(Debug)]
pub struct TimerWheel {
    heads: Box<[u32; LEVELS * SLOTS]>,
    occupied: [u64; LEVELS],
    entries: Vec<Entry>,
    now: u64,
    armed: usize,
    tick_bits: u32,
}

impl TimerWheel {
    /// A wheel for owners `0..owners`.
    pub fn new(owners: u32) -> TimerWheel {
        TimerWheel::with_tick(owners, TICK_BITS)
    }

    /// The same with ticks of 2^`tick_bits` ns.
    pub fn with_tick(owners: u32, tick_bits: u32) -> TimerWheel {
        TimerWheel {
            heads: Box::new([NONE; LEVELS * SLOTS]),
            occupied: [0; LEVELS],
            entries: vec![IDLE; owners as usize],
            now: 0,
            armed: 0,
            tick_bits,
        }
    }

    /// Makes room for owners `0..owners`.
    pub fn grow(&mut self, owners: u32) {
        let owners = self.entries.len().max(owners as usize);
        self.entries.resize(owners, IDLE);
    }

    /// True if nobody has an entry.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Sets the owner's entry to fire at `deadline` (not before, at most a tick after), instead of any other.
    pub fn set(&mut self, owner: u32, deadline: Nanos) {
        let span = 1 << (SLOT_BITS * LEVELS as u32);
        let tick = deadline.0.div_ceil(1 << self.tick_bits).clamp(self.now + 1, self.now + span - 1);
        let entry = &self.entries[owner as usize];
        if entry.list != NONE {
            if entry.tick == tick {
                return;
            }
            self.unlink(owner);
        }
        self.link(owner, tick);
    }

    /// True if the owner has an entry.
    pub fn is_set(&self, owner: u32) -> bool {
        self.entries.get(owner as usize).is_some_and(|entry| entry.list != NONE)
    }

    /// Takes the owner's entry out, if there is one.
    pub fn cancel(&mut self, owner: u32) {
        if self.entries[owner as usize].list != NONE {
            self.unlink(owner);
        }
    }

    /// Turns the wheel to `now` and calls `fire` for each owner that is due, the earlier before the later.
    pub fn advance(&mut self, now: Nanos, mut fire: impl FnMut(u32)) {
        let target = now.0 >> self.tick_bits;
        while self.now < target {
            if self.armed == 0 {
                self.now = target;
                return;
            }
            // Straight to the next tick at which something happens: a slot due, or a cascade.
            let next = self.next_tick().min(target);
            self.now = next;
            self.cascade();
            let slot = (self.now as usize) & (SLOTS - 1);
            while self.heads[slot] != NONE {
                let owner = self.heads[slot];
                self.unlink(owner);
                fire(owner);
            }
        }
    }

    /// When the wheel must be turned next at the latest: at most early, never late. `Nanos::MAX` if empty.
    pub fn next_deadline(&self) -> Nanos {
        if self.armed == 0 { Nanos::MAX } else { Nanos(self.next_tick() << self.tick_bits) }
    }

    fn level_of(&self, tick: u64) -> usize {
        let differ = tick ^ self.now;
        ((63 - (differ | 1).leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1) as usize
    }

    fn link(&mut self, owner: u32, tick: u64) {
        let level = self.level_of(tick);
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
        let list = level * SLOTS + slot;
        let next = self.heads[list];
        if next != NONE {
            self.entries[next as usize].previous = owner;
        }
        self.entries[owner as usize] = Entry { next, previous: NONE, list: list as u32, tick };
        self.heads[list] = owner;
        self.occupied[level] |= 1 << slot;
        self.armed += 1;
    }

    fn unlink(&mut self, owner: u32) {
        let entry = self.entries[owner as usize];
        let list = entry.list as usize;
        if entry.previous == NONE {
            self.heads[list] = entry.next;
        } else {
            self.entries[entry.previous as usize].next = entry.next;
        }
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = entry.previous;
        }
        if self.heads[list] == NONE {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
        self.entries[owner as usize] = IDLE;
        self.armed -= 1;
    }

    /// The next tick after `now` at which a slot of level 0 is due or a slot of a higher level comes down.
    fn next_tick(&self) -> u64 {
        (0..LEVELS).filter_map(|level| self.next_in_level(level)).min().unwrap_or(u64::MAX >> self.tick_bits)
    }

    fn next_in_level(&self, level: usize) -> Option<u64> {
        let bits = self.occupied[level];
        if bits == 0 {
            return None;
        }
        let shift = SLOT_BITS * level as u32;
        let current = (self.now >> shift) as u32 & (SLOTS as u32 - 1);
        // Distance from the slot after the current one, going round.
        let ahead = bits.rotate_right((current + 1) % SLOTS as u32).trailing_zeros() + 1;
        Some(((self.now >> shift) + u64::from(ahead)) << shift)
    }

    /// Brings down the slots of higher levels that begin at `now`.
    fn cascade(&mut self) {
        for level in (1..LEVELS).rev() {
            let shift = SLOT_BITS * level as u32;
            if self.now & ((1 << shift) - 1) != 0 {
                continue;
            }
            let list = level * SLOTS + ((self.now >> shift) as usize & (SLOTS - 1));
            while self.heads[list] != NONE {
                let owner = self.heads[list];
                let tick = self.entries[owner as usize].tick;
                self.unlink(owner);
                self.link(owner, tick);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fired(wheel: &mut TimerWheel, now: Nanos) -> Vec<u32> {
        let mut owners = Vec::new();
        wheel.advance(now, |o| owners.push(o));
        owners
    }

    #[test]
    fn an_entry_fires_once_and_not_before_its_time() {
        let mut wheel = TimerWheel::new(2);
        wheel.set(1, Nanos::from_millis(500));
        assert!(fired(&mut wheel, Nanos::from_millis(499)).is_empty());
        assert_eq!(fired(&mut wheel, Nanos::from_millis(501)), [1]);
        assert!(fired(&mut wheel, Nanos::from_millis(10_000)).is_empty());
    }

    #[test]
    fn setting_again_replaces_and_cancelling_removes() {
        let mut wheel = TimerWheel::new(2);
        wheel.set(0, Nanos::from_millis(1));
        wheel.set(0, Nanos::from_millis(9));
        wheel.set(1, Nanos::from_millis(1));
        wheel.cancel(1);
        assert!(fired(&mut wheel, Nanos::from_millis(8)).is_empty());
        assert_eq!(fired(&mut wheel, Nanos::from_millis(10)), [0]);
        assert_eq!(wheel.next_deadline(), Nanos::MAX);
    }

    proptest! {
        /// Against a plain list: same owners, never early, at most a tick late, and the announced next
        /// deadline is never after the first that is due.
        #[test]
        fn the_wheel_agrees_with_a_list(
            steps in prop::collection::vec((0u32..16, 1u64..40, any::<u32>(), any::<bool>()), 1..200)
        ) {
            let mut wheel = TimerWheel::new(16);
            let mut list = [None; 16];
            let mut now = 0u64;
            for (owner, shift, noise, cancel) in steps {
                let deadline = now + (u64::from(noise) & ((1 << shift) - 1));
                if cancel {
                    wheel.cancel(owner);
                    list[owner as usize] = None;
                } else {
                    wheel.set(owner, Nanos(deadline));
                    list[owner as usize] = Some(deadline);
                }
                if let Some(first) = list.iter().flatten().min() {
                    prop_assert!(wheel.next_deadline().0 <= first + 2048);
                }
                now += u64::from(noise) >> (40 - shift).min(31);
                for owner in fired(&mut wheel, Nanos(now)) {
                    let due = list[owner as usize].take();
                    prop_assert!(due.is_some_and(|d| d <= now), "owner {} fired early: {:?} at {}", owner, due, now);
                }
                for deadline in list.iter().flatten() {
                    prop_assert!(deadline + 2048 > now, "{} is overdue at {}", deadline, now);
                }
            }
        }
    }
}
