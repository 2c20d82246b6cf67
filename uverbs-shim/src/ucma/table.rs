//! Tables of objects named by small numbers. The lowest free number is assigned first, as by the kernel's arrays.

use std::collections::BTreeMap;

/// Objects by number, with a maximum count.
#[derive(Debug)]
pub(super) struct Table<T> {
    things: BTreeMap<u32, T>,
    limit: u32,
}

impl<T> Table<T> {
    pub(super) fn new(limit: u32) -> Table<T> {
        Table { things: BTreeMap::new(), limit }
    }

    /// Adds an object. Returns its number, or `None` if the table is full.
    pub(super) fn add(&mut self, thing: T) -> Option<u32> {
        let number =
            if self.things.len() as u32 == self.things.last_key_value().map_or(0, |(last, _)| last + 1) {
                self.things.len() as u32
            } else {
                (0..).zip(self.things.keys()).find(|(free, taken)| free != *taken).map_or(0, |(free, _)| free)
            };
        if number >= self.limit {
            return None;
        }
        self.things.insert(number, thing);
        Some(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.things.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.things.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.things.remove(&number)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.things.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.things.iter().map(|(number, thing)| (*number, thing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_assigns_lowest_free_number_up_to_limit() {
        let mut table = Table::new(3);
        assert_eq!([table.add('a'), table.add('b'), table.add('c')], [Some(0), Some(1), Some(2)]);
        assert_eq!(table.add('d'), None);
        assert_eq!((table.remove(1), table.add('e'), table.add('f')), (Some('b'), Some(1), None));
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!((table.add('g'), table.get(0)), (Some(0), Some(&'g')));
    }
}
