//! Event queue in virtual time.
//!
//! A hierarchical timing wheel (Varghese and Lauck 1987) with the clock's resolution, one nanosecond. Level `n` has 64
//! slots of 64^n ns. An event lies on the level of the highest group of six bits in which its time differs from the
//! present. `schedule`, `cancel` and `pop` take a few steps each, however many events wait. An event moves down a level
//! at most ten times, typically once or twice for the times of a network. Simultaneous events are returned in the order
//! in which they were scheduled, because slots are FIFO lists, and events of one time are always on the same level.

use roxie_base::time::Nanos;

/// Bits of a time that one level resolves.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Ten levels of six bits, and one for the remaining four bits of 64.
const LEVELS: usize = 11;
const NONE: u32 = u32::MAX;

/// Identifies an event until it is taken or cancelled, and nothing afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Entry<T> {
    time: u64,
    /// Neighbours in the slot's list. `next` also links the free entries.
    next: u32,
    previous: u32,
    generation: u32,
    /// `None`: the entry is free.
    event: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// Pending events, ordered by time.
#[derive(Debug)]
pub struct EventQueue<T> {
    entries: Vec<Entry<T>>,
    /// Head of the list of free entries.
    free: u32,
    slots: Box<[[List; SLOTS]; LEVELS]>,
    /// Bit `s`: slot `s` of this level is not empty.
    filled: [u64; LEVELS],
    /// Lower bound of all pending times. At most the largest limit passed to [`EventQueue::pop`].
    floor: u64,
    len: usize,
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue::new()
    }
}

impl<T> EventQueue<T> {
    /// Creates an empty queue at time zero.
    pub fn new() -> EventQueue<T> {
        let empty = List { head: NONE, tail: NONE };
        EventQueue {
            entries: Vec::new(),
            free: NONE,
            slots: Box::new([[empty; SLOTS]; LEVELS]),
            filled: [0; LEVELS],
            floor: 0,
            len: 0,
        }
    }

    /// Returns the number of pending events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no event is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules `event` at `time`, after all events already scheduled for that time. A time in the past becomes the
    /// present.
    ///
    /// # Panics
    /// If 2^32 - 1 events are pending.
    pub fn schedule(&mut self, time: Nanos, event: T) -> EventId {
        let time = time.0.max(self.floor);
        let index = self.free;
        let entry = if index == NONE {
            self.entries.push(Entry { time, next: NONE, previous: NONE, generation: 0, event: Some(event) });
            u32::try_from(self.entries.len() - 1).ok().filter(|i| *i != NONE).expect("fewer events than that")
        } else {
            let entry = &mut self.entries[index as usize];
            self.free = entry.next;
            (entry.time, entry.event) = (time, Some(event));
            index
        };
        self.append(entry);
        self.len += 1;
        EventId { index: entry, generation: self.entries[entry as usize].generation }
    }

    /// Removes a pending event. Returns `None` if the event was already taken or cancelled.
    pub fn cancel(&mut self, id: EventId) -> Option<T> {
        let entry = self.entries.get(id.index as usize)?;
        if entry.generation != id.generation || entry.event.is_none() {
            return None;
        }
        let (level, slot) = self.place(entry.time);
        self.unlink(id.index, level, slot);
        self.release(id.index)
    }

    /// Takes the next event if its time is at most `limit`. Time advances to the event's time; without an event, to at
    /// most `limit`.
    pub fn pop(&mut self, limit: Nanos) -> Option<(Nanos, T)> {
        loop {
            let level = self.filled.iter().position(|bits| *bits != 0)?;
            let slot = self.first_slot(level);
            if level == 0 {
                let index = self.slots[0][slot].head;
                let time = self.entries[index as usize].time;
                if time > limit.0 {
                    return None;
                }
                self.floor = time;
                self.unlink(index, 0, slot);
                return self.release(index).map(|event| (Nanos(time), event));
            }
            // Start of the slot: all earlier slots are empty.
            let shift = BITS * level as u32;
            let above = (self.floor >> shift) >> BITS << BITS;
            let start = (above | slot as u64) << shift;
            if start > limit.0 {
                return None;
            }
            self.floor = start;
            self.cascade(level, slot);
        }
    }

    /// Returns the time of the next event, or `Nanos::MAX` if none is pending. Costs a scan of that event's slot;
    /// [`EventQueue::pop`] with a limit is cheaper.
    pub fn next_time(&self) -> Nanos {
        let Some(level) = self.filled.iter().position(|bits| *bits != 0) else { return Nanos::MAX };
        let mut index = self.slots[level][self.first_slot(level)].head;
        let mut first = u64::MAX;
        while index != NONE {
            let entry = &self.entries[index as usize];
            first = first.min(entry.time);
            if level == 0 {
                break;
            }
            index = entry.next;
        }
        Nanos(first)
    }

    /// Returns the first filled slot. Slots before the present one are empty on every level, so it is the lowest set
    /// bit.
    fn first_slot(&self, level: usize) -> usize {
        self.filled[level].trailing_zeros() as usize
    }

    /// Returns the level and slot of a time that is not before the floor.
    fn place(&self, time: u64) -> (usize, usize) {
        let differs = time ^ self.floor;
        let level = (63 - (differs | 1).leading_zeros()) / BITS;
        let slot = (time >> (BITS * level)) as usize & (SLOTS - 1);
        (level as usize, slot)
    }

    fn append(&mut self, index: u32) {
        let (level, slot) = self.place(self.entries[index as usize].time);
        let list = &mut self.slots[level][slot];
        let tail = list.tail;
        list.tail = index;
        if tail == NONE {
            list.head = index;
            self.filled[level] |= 1 << slot;
        } else {
            self.entries[tail as usize].next = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next) = (tail, NONE);
    }

    fn unlink(&mut self, index: u32, level: usize, slot: usize) {
        let Entry { next, previous, .. } = self.entries[index as usize];
        let list = &mut self.slots[level][slot];
        match previous {
            NONE => list.head = next,
            _ => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => list.tail = previous,
            _ => self.entries[next as usize].previous = previous,
        }
        if self.slots[level][slot].head == NONE {
            self.filled[level] &= !(1 << slot);
        }
    }

    /// Redistributes a slot that is due over the levels below.
    fn cascade(&mut self, level: usize, slot: usize) {
        let list = &mut self.slots[level][slot];
        let mut index = list.head;
        (list.head, list.tail) = (NONE, NONE);
        self.filled[level] &= !(1 << slot);
        while index != NONE {
            let next = self.entries[index as usize].next;
            self.append(index);
            index = next;
        }
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        entry.event.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn simultaneous_events_keep_their_scheduling_order() {
        let mut queue = EventQueue::new();
        let distant = Nanos::from_millis(3);
        queue.schedule(distant, "a");
        queue.schedule(Nanos(10), "first");
        queue.schedule(distant, "b");
        assert_eq!(queue.pop(Nanos::MAX), Some((Nanos(10), "first")));
        // Time has advanced: `distant` may now lie on another level.
        queue.schedule(Nanos(distant.0 - 1), "before");
        assert_eq!(queue.pop(Nanos::MAX), Some((Nanos(distant.0 - 1), "before")));
        queue.schedule(distant, "c");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop(distant)).map(|(_, event)| event).collect();
        assert_eq!(rest, ["a", "b", "c"]);
    }

    #[test]
    fn pop_with_a_limit_keeps_later_events() {
        let mut queue = EventQueue::new();
        queue.schedule(Nanos(100_000), 'z');
        assert_eq!(queue.pop(Nanos(99_999)), None);
        queue.schedule(Nanos(99_999), 'y');
        assert_eq!(queue.next_time(), Nanos(99_999));
        assert_eq!(queue.pop(Nanos(100_000)), Some((Nanos(99_999), 'y')));
        assert_eq!(queue.pop(Nanos(100_000)), Some((Nanos(100_000), 'z')));
        assert_eq!((queue.next_time(), queue.len()), (Nanos::MAX, 0));
        queue.schedule(Nanos(5), 'p');
        assert_eq!(queue.pop(Nanos::MAX), Some((Nanos(100_000), 'p')), "the past is now");
    }

    #[test]
    fn cancelled_event_is_gone_and_its_id_invalid() {
        let mut queue = EventQueue::new();
        let ids = [1, 2, 3].map(|n| queue.schedule(Nanos(1 << 40), n));
        assert_eq!(queue.cancel(ids[1]), Some(2));
        assert_eq!(queue.cancel(ids[1]), None);
        queue.schedule(Nanos(7), 4);
        assert_eq!(queue.cancel(ids[1]), None, "the entry was reused");
        let all: Vec<_> = std::iter::from_fn(|| queue.pop(Nanos::MAX)).map(|(_, n)| n).collect();
        assert_eq!(all, [4, 1, 3]);
    }

    #[test]
    fn events_at_the_maximum_time_are_returned() {
        let mut queue = EventQueue::new();
        queue.schedule(Nanos::MAX, 'e');
        queue.schedule(Nanos(u64::MAX - 1), 'd');
        assert_eq!(queue.pop(Nanos(u64::MAX - 2)), None);
        assert_eq!(queue.pop(Nanos::MAX), Some((Nanos(u64::MAX - 1), 'd')));
        assert_eq!(queue.pop(Nanos::MAX), Some((Nanos::MAX, 'e')));
    }

    proptest! {
        /// Compares the queue with a sorted list: same events, same order, same times.
        #[test]
        fn queue_agrees_with_a_sorted_list(
            steps in prop::collection::vec((0u8..8, 0u32..40, any::<u64>()), 1..400)
        ) {
            let mut queue = EventQueue::new();
            let mut list: Vec<(u64, usize, EventId)> = Vec::new();
            let mut now = 0;
            for (number, (step, shift, noise)) in steps.into_iter().enumerate() {
                let span = noise & ((1 << shift) - 1);
                match step {
                    0..4 => {
                        let time = now + span;
                        list.push((time, number, queue.schedule(Nanos(time), number)));
                        list.sort_by_key(|(time, number, _)| (*time, *number));
                    }
                    4 if !list.is_empty() => {
                        let (_, number, id) = list.remove(noise as usize % list.len());
                        prop_assert_eq!(queue.cancel(id), Some(number));
                    }
                    _ => {
                        let limit = now + span;
                        let due = list.first().is_some_and(|first| first.0 <= limit);
                        let first = due.then(|| list.remove(0));
                        let expected = first.map(|(time, number, _)| (Nanos(time), number));
                        prop_assert_eq!(queue.pop(Nanos(limit)), expected);
                        now = first.map_or(limit, |first| first.0);
                    }
                }
                prop_assert_eq!(queue.next_time().0, list.first().map_or(u64::MAX, |first| first.0));
                prop_assert_eq!(queue.len(), list.len());
            }
        }
    }
}
