//! Tables of objects: an index finds them, a bound holds them.

use std::collections::VecDeque;

use crate::transport::{QuickPermutation, ShortPermutation};

/// Objects under small indices that are used again.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    free: VecDeque<u32>,
    bound: u32,
}

impl<T> Table<T> {
    pub(super) fn new(bound: u32) -> Table<T> {
        Table { slots: Vec::new(), free: VecDeque::new(), bound }
    }

    /// The index of the next object: the one that has been free for longest, but not before many are free, so that
    /// one does not come back soon.
    fn next_index(&self) -> Option<u32> {
        let fresh = u32::try_from(self.slots.len()).ok().filter(|index| *index < self.bound);
        let many = (self.bound / 2).min(1024) as usize;
        fresh.filter(|_| self.free.len() < many.max(1)).or(self.free.front().copied()).or(fresh)
    }

    /// Puts an object in; `None`: the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        let index = self.next_index()?;
        match self.slots.get_mut(index as usize) {
            Some(slot) => {
                self.free.pop_front();
                *slot = Some(value);
            }
            None => self.slots.push(Some(value)),
        }
        Some(index)
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.take()?;
        self.free.push_back(index);
        Some(value)
    }

    /// All indices that are in use lie below this one.
    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Objects in it.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, slot)| Some((i as u32, slot.as_ref()?)))
    }
}

/// Objects that also have an unguessable 24-bit number: QPs and their QPNs.
#[derive(Debug)]
pub(super) struct NumberedTable<T> {
    table: Table<(u32, T)>,
    generations: Vec<u8>,
    permutation: QuickPermutation,
    short: ShortPermutation,
    /// What the upper 8 bits of its numbers may be, if it has not all numbers to itself: 2^12 places each.
    units: Vec<u8>,
    /// Places if there are units enough.
    limit: u32,
}

/// Places of a unit: 2^12, in 2^4 generations.
const UNIT_BITS: u32 = 12;

/// QPNs 0 and 1 are the management QPs, 0xffffff is multicast: no ordinary QP gets them.
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

impl<T> NumberedTable<T> {
    pub(super) fn new(bound: u32, seed: u64) -> NumberedTable<T> {
        NumberedTable {
            table: Table::new(bound),
            generations: vec![0; bound as usize],
            permutation: QuickPermutation::new(seed),
            short: ShortPermutation::new(seed),
            units: Vec::new(),
            limit: bound,
        }
    }

    /// Draws numbers of this unit from now on, besides those of units that were given before. False: there are numbers in use that
    /// are of none.
    pub(super) fn add_unit(&mut self, unit: u8) -> bool {
        if self.units.is_empty() && self.len() > 0 {
            return false;
        }
        self.units.push(unit);
        self.table.bound = self.limit.min((self.units.len() as u32) << UNIT_BITS);
        true
    }

    /// True if there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.table.next_index().is_some()
    }

    fn encode(&self, index: u32, generation: u8) -> u32 {
        let Some(unit) = self.units.get((index >> UNIT_BITS) as usize) else {
            return self.permutation.encode(index as u16, generation.into());
        };
        let place = index & ((1 << UNIT_BITS) - 1);
        u32::from(*unit) << 16 | self.short.encode(place as u16, generation.into())
    }

    #[inline]
    fn decode(&self, number: u32) -> Option<u32> {
        if self.units.is_empty() {
            Some(self.permutation.index_of(number).into())
        } else {
            self.decode_short(number)
        }
    }

    #[inline(never)]
    fn decode_short(&self, number: u32) -> Option<u32> {
        let unit = self.units.iter().position(|unit| u32::from(*unit) == number >> 16)?;
        let (place, _) = self.short.decode(number & 0xffff);
        Some((unit as u32) << UNIT_BITS | u32::from(place))
    }

    /// Puts in what `make` builds from an index and a number; `None`: the table is full. `reserved` is a number that is not
    /// drawn, and that [`index_of`](Self::index_of) does not know.
    pub(super) fn insert_with(
        &mut self,
        reserved: Option<u32>,
        make: impl FnOnce(u32, u32) -> T,
    ) -> Option<u32> {
        let index = self.table.next_index()?;
        let mut generation = self.generations[index as usize];
        let mut number = self.encode(index, generation);
        while RESERVED.contains(&number) {
            generation = generation.wrapping_add(1);
            number = self.encode(index, generation);
        }
        self.generations[index as usize] = generation;
        let number = reserved.unwrap_or(number);
        let value = make(index, number);
        self.table.insert((number, value))
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.table.get(index).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.table.get_mut(index).map(|(_, value)| value)
    }

    /// The index behind a number, if it is in use.
    pub(super) fn index_of(&self, number: u32) -> Option<u32> {
        let index = self.decode(number)?;
        self.table.get(index).filter(|(n, _)| *n == number).map(|_| index)
    }

    /// The object behind a number, and its index, if it is in use.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, number: u32) -> Option<(u32, &mut T)> {
        let index = self.decode(number)?;
        self.table.get_mut(index).filter(|(n, _)| *n == number).map(|(_, value)| (index, value))
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let (_, value) = self.table.remove(index)?;
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        Some(value)
    }

    /// All indices that are in use lie below this one.
    pub(super) fn places(&self) -> u32 {
        self.table.places()
    }

    /// Objects in it.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.table.iter().map(|(index, (_, value))| (index, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_object_until_it_is_removed() {
        let mut table = NumberedTable::new(2, 5);
        let mut numbers = Vec::new();
        let a = table.insert_with(None, |_, n| numbers.push(n)).unwrap();
        assert_eq!(table.index_of(numbers[0]), Some(a));
        table.remove(a).unwrap();
        assert_eq!(table.index_of(numbers[0]), None);
        let b = table.insert_with(None, |_, n| numbers.push(n)).unwrap();
        assert_eq!(a, b, "the slot is used again");
        assert_ne!(numbers[0], numbers[1], "the number is not");
        assert_eq!(table.index_of(numbers[0]), None);
    }

    #[test]
    fn numbers_of_a_unit_begin_with_it_and_a_second_one_makes_room_for_more() {
        let mut table = NumberedTable::new(1 << 16, 5);
        assert!(table.add_unit(0) && table.add_unit(0xff));
        let mut numbers = std::collections::BTreeSet::new();
        for place in 0..2 << UNIT_BITS {
            assert!(table.has_room());
            let index = table.insert_with(None, |_, number| number).unwrap();
            let number = *table.get(index).unwrap();
            assert_eq!(number >> 16, if place < 1 << UNIT_BITS { 0 } else { 0xff });
            assert!(!RESERVED.contains(&number) && numbers.insert(number));
            assert_eq!(table.index_of(number), Some(index));
        }
        assert!(!table.has_room() && table.insert_with(None, |_, _| 0).is_none());
        assert!(table.index_of(0x12_3456).is_none());
        // What had a number before has another one, 15 times.
        for _ in 0..15 {
            table.remove(7).unwrap();
            let index = table.insert_with(None, |_, number| number).unwrap();
            assert!(numbers.insert(*table.get(index).unwrap()));
        }
        assert!(table.add_unit(3), "at any time");
        let mut whole = NumberedTable::new(2, 5);
        whole.insert_with(None, |_, _| ()).unwrap();
        assert!(!whole.add_unit(1), "it has numbers of no unit");
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = NumberedTable::new(2, 5);
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_none());
    }
}
