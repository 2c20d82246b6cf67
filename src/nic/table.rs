//! Tables of objects: an index finds them, a bound holds them.

use std::collections::VecDeque;

use crate::transport::Permutation;

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
    permutation: Permutation,
}

/// QPNs 0 and 1 are the management QPs, 0xffffff is multicast: no ordinary QP gets them.
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

impl<T> NumberedTable<T> {
    pub(super) fn new(bound: u32, seed: u64) -> NumberedTable<T> {
        NumberedTable {
            table: Table::new(bound),
            generations: vec![0; bound as usize],
            permutation: Permutation::new(seed),
        }
    }

    /// Puts in what `make` builds from an index and a number; `None`: the table is full. `reserved` is a number that is not
    /// drawn, and that [`index_of`](Self::index_of) does not know.
    pub(super) fn insert_with(
        &mut self,
        reserved: Option<u32>,
        make: impl FnOnce(u32, u32) -> T,
    ) -> Option<u32> {
        let index = self.table.next_index()?;
        let generation = &mut self.generations[index as usize];
        let mut number = self.permutation.encode(index as u16, *generation);
        while RESERVED.contains(&number) {
            *generation = generation.wrapping_add(1);
            number = self.permutation.encode(index as u16, *generation);
        }
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
        let (index, _) = self.permutation.decode(number);
        let index = u32::from(index);
        self.table.get(index).filter(|(n, _)| *n == number).map(|_| index)
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
    fn a_full_table_takes_no_more() {
        let mut table = NumberedTable::new(2, 5);
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_some());
        assert!(table.insert_with(None, |_, _| ()).is_none());
    }
}
