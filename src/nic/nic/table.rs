//! Bounded tables of objects, found by name.
//!
//! ```text
//! name   31 .. 16 generation | 15 .. 0 slot
//! ```
//!
//! A slot is reused with the next generation. The name of a removed object is therefore unique ([`Table::holds`]) until
//! its slot has been reused 65,535 times. Names in commands are checked against it ([`super::names`]). Inside the NIC
//! objects count their users, and no name outlives its object, so look-ups ignore the generation.

use std::collections::VecDeque;

use crate::transport::{QuickPermutation, ShortPermutation};
use crate::verbs::{name, next_generation, place_of};

/// Maximum number of slots. The last one of 16 bits is left out, so that `u32::MAX` is no name.
const PLACES: u32 = u16::MAX as u32;

/// Slots in a chunk.
const CHUNK: usize = 32;

/// Slots in chunks of memory, which never move: objects lie in the table itself, a QP's state as well. A look-up then
/// costs no cache line next to the object's, and successive objects lie at equal distances, which a processor can
/// prefetch.
#[derive(Debug)]
struct Chunks<T> {
    chunks: Vec<Box<[Option<T>; CHUNK]>>,
    /// Number of slots in use or free; the rest of the last chunk was never used.
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Chunks<T> {
        Chunks { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunks<T> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn get(&self, place: usize) -> Option<&Option<T>> {
        Some(&self.chunks.get(place / CHUNK)?[place % CHUNK])
    }

    #[inline(always)]
    fn get_mut(&mut self, place: usize) -> Option<&mut Option<T>> {
        Some(&mut self.chunks.get_mut(place / CHUNK)?[place % CHUNK])
    }

    fn push(&mut self, value: T) {
        if self.len == self.chunks.len() * CHUNK {
            let chunk: Box<[Option<T>]> = std::iter::repeat_with(|| None).take(CHUNK).collect();
            self.chunks.extend(<Box<[Option<T>; CHUNK]>>::try_from(chunk));
        }
        self.len += 1;
        if let Some(slot) = self.get_mut(self.len - 1) {
            *slot = Some(value);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Option<T>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// Objects under unique names.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Chunks<T>,
    /// Generation of the current or next object in each slot.
    generations: Vec<u16>,
    free: VecDeque<u32>,
    bound: u32,
}

impl<T> Table<T> {
    /// Makes a table of up to `bound` objects, and up to [`PLACES`].
    pub(super) fn new(bound: u32) -> Table<T> {
        let bound = bound.min(PLACES);
        Table { slots: Chunks::default(), generations: Vec::new(), free: VecDeque::new(), bound }
    }

    /// Returns the slot for the next object: the one that has been free for longest, once many are free, so that slots
    /// are not reused soon.
    fn next_place(&self) -> Option<u32> {
        let fresh = u32::try_from(self.slots.len()).ok().filter(|place| *place < self.bound);
        let many = (self.bound / 2).min(1024) as usize;
        fresh.filter(|_| self.free.len() < many.max(1)).or(self.free.front().copied()).or(fresh)
    }

    /// Inserts an object and returns its name. `None`: the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        let place = self.next_place()?;
        if place as usize == self.slots.len() {
            self.slots.push(value);
            self.generations.push(0);
        } else {
            let freed = self.free.pop_front();
            invariant!(freed == Some(place), "slot {place} is used, {freed:?} is free");
            let slot = self.slots.get_mut(place as usize)?;
            invariant!(slot.is_none(), "slot {place} is free, and has an object");
            *slot = Some(value);
        }
        Some(self.name_at(place))
    }

    /// Returns the name of the current or next object in a slot.
    pub(super) fn name_at(&self, place: u32) -> u32 {
        name(self.generations.get(place as usize).copied().unwrap_or(0), place)
    }

    /// True if an object has this name.
    pub(super) fn holds(&self, name: u32) -> bool {
        let place = place_of(name);
        self.slots.get(place as usize).is_some_and(Option::is_some) && self.name_at(place) == name
    }

    /// Returns the object in the slot of a name.
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.slots.get(place_of(name) as usize)?.as_ref()
    }

    /// Returns the object in the slot of a name.
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.slots.get_mut(place_of(name) as usize)?.as_mut()
    }

    /// Removes the object in the slot of a name. The name is then unused.
    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let place = place_of(name);
        let value = self.slots.get_mut(place as usize)?.take()?;
        let generation = &mut self.generations[place as usize];
        *generation = next_generation(*generation);
        self.free.push_back(place);
        let (free, all) = (self.free.len(), self.slots.len());
        invariant!(free <= all, "{free} slots of {all} are free");
        Some(value)
    }

    /// Returns a bound of the used slots.
    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the objects and their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.slots.iter()).filter_map(|(place, slot)| Some((self.name_at(place), slot.as_ref()?)))
    }
}

/// Objects that also have an unguessable 24-bit number: QPs and their QPNs.
#[derive(Debug)]
pub(super) struct NumberedTable<T> {
    table: Table<Numbered<T>>,
    generations: Vec<u8>,
    permutation: QuickPermutation,
    short: ShortPermutation,
    /// Units from which numbers are drawn (their upper 8 bits), with 2^12 slots each. Empty: numbers are drawn from
    /// all.
    units: Vec<u8>,
    /// Maximum number of objects, with enough units.
    limit: u32,
}

/// An object with its number. A look-up by number needs one cache line.
#[derive(Debug)]
struct Numbered<T> {
    number: u32,
    name: u32,
    value: T,
}

/// Bits of the slot in a unit: 2^12 slots, in 2^4 generations.
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

    /// Draws numbers from this unit as well. False: numbers without a unit are in use.
    pub(super) fn add_unit(&mut self, unit: u8) -> bool {
        if self.units.is_empty() && self.len() > 0 {
            return false;
        }
        self.units.push(unit);
        self.table.bound = self.limit.min((self.units.len() as u32) << UNIT_BITS).min(PLACES);
        true
    }

    /// True if there is room for another object.
    pub(super) fn has_room(&self) -> bool {
        self.table.next_place().is_some()
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

    /// Inserts the object that `make` builds from a name and a number. `None`: the table is full. `reserved`: a number
    /// to use instead of a drawn one, unknown to [`name_of`](Self::name_of).
    pub(super) fn insert_with(
        &mut self,
        reserved: Option<u32>,
        make: impl FnOnce(u32, u32) -> T,
    ) -> Option<u32> {
        let place = self.table.next_place()?;
        let name = self.table.name_at(place);
        let mut generation = self.generations[place as usize];
        let mut number = self.encode(place, generation);
        while RESERVED.contains(&number) {
            generation = generation.wrapping_add(1);
            number = self.encode(place, generation);
        }
        self.generations[place as usize] = generation;
        invariant!(self.decode(number) == Some(place), "number {number:#x} is not of slot {place}");
        let number = reserved.unwrap_or(number);
        self.table.insert(Numbered { number, name, value: make(name, number) })
    }

    /// Like [`Table::holds`].
    pub(super) fn holds(&self, name: u32) -> bool {
        self.table.holds(name)
    }

    /// Like [`Table::name_at`].
    pub(super) fn name_at(&self, place: u32) -> u32 {
        self.table.name_at(place)
    }

    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.table.get(name).map(|numbered| &numbered.value)
    }

    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.table.get_mut(name).map(|numbered| &mut numbered.value)
    }

    /// Returns the name of the object with this number, if any.
    pub(super) fn name_of(&self, number: u32) -> Option<u32> {
        let place = self.decode(number)?;
        self.table.get(place).filter(|found| found.number == number).map(|found| found.name)
    }

    /// Returns the object with this number and its name, if any.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, number: u32) -> Option<(u32, &mut T)> {
        let place = self.decode(number)?;
        let entry = self.table.get_mut(place).filter(|entry| entry.number == number)?;
        Some((entry.name, &mut entry.value))
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let Numbered { value, .. } = self.table.remove(name)?;
        let generation = &mut self.generations[place_of(name) as usize];
        *generation = generation.wrapping_add(1);
        Some(value)
    }

    /// Returns a bound of the used slots.
    pub(super) fn places(&self) -> u32 {
        self.table.places()
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the objects and their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.table.iter().map(|(name, numbered)| (name, &numbered.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_finds_its_object_until_removed() {
        let mut table = NumberedTable::new(2, 5);
        let mut numbers = Vec::new();
        let a = table.insert_with(None, |_, n| numbers.push(n)).unwrap();
        assert_eq!(table.name_of(numbers[0]), Some(a));
        table.remove(a).unwrap();
        assert_eq!(table.name_of(numbers[0]), None);
        let b = table.insert_with(None, |_, n| numbers.push(n)).unwrap();
        assert_eq!(place_of(a), place_of(b), "the slot is used again");
        assert!(table.holds(b) && !table.holds(a) && !table.holds(place_of(b) + 1));
        assert_ne!(numbers[0], numbers[1], "the number is not");
        assert_eq!(table.name_of(numbers[0]), None);
    }

    #[test]
    fn second_unit_makes_room_for_more_numbers() {
        let mut table = NumberedTable::new(1 << 16, 5);
        assert!(table.add_unit(0) && table.add_unit(0xff));
        let mut numbers = std::collections::BTreeSet::new();
        for place in 0..2 << UNIT_BITS {
            assert!(table.has_room());
            let index = table.insert_with(None, |_, number| number).unwrap();
            let number = *table.get(index).unwrap();
            assert_eq!(number >> 16, if place < 1 << UNIT_BITS { 0 } else { 0xff });
            assert!(!RESERVED.contains(&number) && numbers.insert(number));
            assert_eq!(table.name_of(number), Some(index));
        }
        assert!(!table.has_room() && table.insert_with(None, |_, _| 0).is_none());
        assert!(table.name_of(0x12_3456).is_none());
        // A reused slot gets another number, 15 times.
        for _ in 0..15 {
            table.remove(7).unwrap();
            let name = table.insert_with(None, |_, number| number).unwrap();
            assert!(numbers.insert(*table.get(name).unwrap()));
        }
        assert!(table.add_unit(3), "at any time");
        let mut whole = NumberedTable::new(2, 5);
        whole.insert_with(None, |_, _| ()).unwrap();
        assert!(!whole.add_unit(1), "it has numbers of no unit");
    }

    #[test]
    fn stale_name_leads_to_nothing() {
        let mut table = Table::new(1);
        let first = table.insert(()).unwrap();
        for _ in 0..usize::from(u16::MAX) - 1 {
            assert!(table.remove(table.name_at(0)).is_some());
            let next = table.insert(()).unwrap();
            assert!(table.holds(next) && next != first && !table.holds(first));
        }
        assert!(table.remove(first).is_some());
        assert_eq!(table.insert(()), Some(first), "after all generations");
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = NumberedTable::new(2, 5);
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_none());
    }
}
