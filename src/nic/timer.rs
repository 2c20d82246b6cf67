//! A timing wheel with one entry per owner: when each QP must be looked at.
//!
//! Six levels of 64 slots. With the default tick of 1,024 ns, the wheel spans 2^36 ticks, about 19 hours. The
//! longest transport timeout is shorter (4.096 us * 2^31, 2.4 hours). Lists are linked through an array
//! indexed by owner, so that setting or moving an entry is O(1) and does not allocate.

use roxie_base::time::Nanos;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const TICK_BITS: u32 = 10;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct TimerEntry {
    next: u32,
    previous: u32,
    /// Level * SLOTS + slot; `NONE` if the entry is not in the wheel.
    list: u32,
    tick: u64,
}

const IDLE: TimerEntry = TimerEntry { next: NONE, previous: NONE, list: NONE, tick: 0 };

/// A timing wheel with at most one entry per owner.
#[derive(Debug)]
pub struct TimerWheel {
    heads: Box<[u32; LEVELS * SLOTS]>,
    occupied: [u64; LEVELS],
    entries: Vec<TimerEntry>,
    now: u64,
    armed: usize,
    tick_bits: u32,
}

impl TimerWheel {
    /// Creates a wheel for owners `0..owners`.
    pub fn new(owners: u32) -> TimerWheel {
        TimerWheel::with_tick(owners, TICK_BITS)
    }

    /// Creates a wheel with ticks of 2^`tick_bits` ns.
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

    /// Grows the wheel to owners `0..owners`.
    pub fn grow(&mut self, owners: u32) {
        let owners = self.entries.len().max(owners as usize);
        self.entries.resize(owners, IDLE);
    }

    /// True if the wheel has no entry.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Sets the owner's entry to fire at `deadline`: not before, and at most a tick later. Replaces an
    /// earlier entry.
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

    /// Removes the owner's entry, if set.
    pub fn cancel(&mut self, owner: u32) {
        if self.entries[owner as usize].list != NONE {
            self.unlink(owner);
        }
    }

    /// Advances the wheel to `now`, and calls `fire` for each owner that is due, in order of time.
    pub fn advance(&mut self, now: Nanos, mut fire: impl FnMut(u32)) {
        let target = now.0 >> self.tick_bits;
        while self.now < target {
            if self.armed == 0 {
                self.now = target;
                return;
            }
            // Skips to the next tick with an event: a slot that is due, or a cascade.
            let next = self.next_tick().min(target);
            self.now = next;
            self.cascade();
            let slot = (self.now as usize) & (SLOTS - 1);
            while self.heads[slot] != NONE {
                let owner = self.heads[slot];
                let tick = self.entries[owner as usize].tick;
                invariant!(tick == self.now, "the timer of tick {tick} fires at {}", self.now);
                self.unlink(owner);
                fire(owner);
            }
        }
    }

    /// Returns when the wheel must be advanced next; may be early, never late. `Nanos::MAX` if the wheel is
    /// empty.
    pub fn next_deadline(&self) -> Nanos {
        if self.armed == 0 { Nanos::MAX } else { Nanos(self.next_tick() << self.tick_bits) }
    }

    fn level_of(&self, tick: u64) -> usize {
        let differ = tick ^ self.now;
        ((63 - (differ | 1).leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1) as usize
    }

    fn link(&mut self, owner: u32, tick: u64) {
        let level = self.level_of(tick);
        invariant!(tick >= self.now, "a timer for tick {tick} is set at {}", self.now);
        invariant!(!self.is_set(owner), "owner {owner} has two timers");
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
        let list = level * SLOTS + slot;
        let next = self.heads[list];
        if next != NONE {
            self.entries[next as usize].previous = owner;
        }
        self.entries[owner as usize] = TimerEntry { next, previous: NONE, list: list as u32, tick };
        self.heads[list] = owner;
        self.occupied[level] |= 1 << slot;
        self.armed += 1;
    }

    fn unlink(&mut self, owner: u32) {
        let entry = self.entries[owner as usize];
        invariant!(entry.list != NONE, "owner {owner} has no timer to remove");
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

    /// Returns the next tick after `now` with a due slot of level 0, or with a slot of a higher level to
    /// cascade.
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
        // Distance from the slot after the current one, wrapping around.
        let ahead = bits.rotate_right((current + 1) % SLOTS as u32).trailing_zeros() + 1;
        Some(((self.now >> shift) + u64::from(ahead)) << shift)
    }

    /// Moves the entries of higher-level slots that begin at `now` to lower levels.
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
    fn entry_fires_once_at_its_time() {
        let mut wheel = TimerWheel::new(2);
        wheel.set(1, Nanos::from_millis(500));
        assert!(fired(&mut wheel, Nanos::from_millis(499)).is_empty());
        assert_eq!(fired(&mut wheel, Nanos::from_millis(501)), [1]);
        assert!(fired(&mut wheel, Nanos::from_millis(10_000)).is_empty());
    }

    #[test]
    fn set_replaces_and_cancel_removes() {
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
        /// Compares with a plain list: the same owners fire, never early and less than two ticks (2,048 ns) late.
        /// The announced deadline is at most two ticks after the first entry.
        #[test]
        fn wheel_agrees_with_a_list(
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
