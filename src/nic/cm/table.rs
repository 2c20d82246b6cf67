//! The table of connections, indexed by communication ID.
//!
//! An ID is a keyed permutation of (generation, index). A look-up needs only arithmetic and one index. A guess must hit
//! one of few valid IDs among 2^32. An ID is not reused before its place was used 2^16 times.

use std::collections::VecDeque;

use crate::transport::{LongPermutation, Permutation};
use roxie_wire::cm::CommId;

use super::connection::Connection;

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    connection: Option<Box<Connection>>,
}

/// All connections of a manager.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// Free places, the longest free one first.
    free: VecDeque<u16>,
    names: LongPermutation,
    /// Upper 8 bits of all IDs, with the permutation for the other 24 bits. `None`: this manager uses all IDs.
    unit: Option<(u8, Permutation)>,
    seed: u64,
    limit: u32,
}

impl Table {
    /// Returns a table for at most `limit` connections, capped at 2^16.
    pub(super) fn new(limit: u32, seed: u64) -> Table {
        let names = LongPermutation::new(seed);
        Table { slots: Vec::new(), free: VecDeque::new(), names, unit: None, seed, limit: limit.min(1 << 16) }
    }

    /// Sets the upper 8 bits of all IDs. The table must be empty.
    pub(super) fn set_unit(&mut self, unit: u8) {
        debug_assert!(self.slots.is_empty(), "IDs of no unit are in use");
        self.unit = Some((unit, Permutation::new(self.seed)));
    }

    /// Returns the generation before the wrap to 0.
    fn last_generation(&self) -> u16 {
        if self.unit.is_some() { u8::MAX.into() } else { u16::MAX }
    }

    pub(super) fn has_unit(&self) -> bool {
        self.unit.is_some()
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limit as usize
    }

    /// Inserts a connection. Returns `None` if the table is full.
    pub(super) fn insert(&mut self, connection: Connection) -> Option<CommId> {
        if self.is_full() {
            return None;
        }
        // Prefer places that were never used, so that IDs are reused late.
        let fresh = self.slots.len() < self.limit as usize;
        let index = if fresh {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u16
        } else {
            self.free.pop_front()?
        };
        let mut generation = self.slots[usize::from(index)].generation;
        // ID 0 is reserved.
        if self.encode(index, generation) == CommId(0) {
            generation = generation.wrapping_add(1) & self.last_generation();
        }
        invariant!(
            self.decode(self.encode(index, generation)) == (index, generation),
            "the ID is another place's"
        );
        let slot = &mut self.slots[usize::from(index)];
        invariant!(slot.connection.is_none(), "place {index} is free, and has a connection");
        slot.generation = generation;
        slot.connection = Some(Box::new(connection));
        Some(self.encode(index, generation))
    }

    /// Inserts a connection under an ID of another table with the same seed. Returns false if the ID is in use or
    /// beyond the limit.
    pub(super) fn insert_as(&mut self, id: CommId, connection: Connection) -> bool {
        let (index, generation) = self.decode(id);
        if u32::from(index) >= self.limit
            || generation > self.last_generation()
            || self.id_at(index).is_some()
        {
            return false;
        }
        while self.slots.len() <= usize::from(index) {
            self.free.push_back(self.slots.len() as u16);
            self.slots.push(Slot::default());
        }
        self.free.retain(|free| *free != index);
        invariant!(self.decode(id) == (index, generation), "{id:?} is not of place {index}");
        self.slots[usize::from(index)] = Slot { generation, connection: Some(Box::new(connection)) };
        true
    }

    pub(super) fn remove(&mut self, id: CommId) -> Option<Box<Connection>> {
        let index = self.index(id)?;
        let last = self.last_generation();
        let slot = self.slots.get_mut(usize::from(index))?;
        let connection = slot.connection.take()?;
        slot.generation = slot.generation.wrapping_add(1) & last;
        self.free.push_back(index);
        let (free, all) = (self.free.len(), self.slots.len());
        invariant!(free <= all, "{free} places of {all} are free");
        Some(connection)
    }

    pub(super) fn get(&self, id: CommId) -> Option<&Connection> {
        let index = self.index(id)?;
        self.slots[usize::from(index)].connection.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: CommId) -> Option<&mut Connection> {
        let index = self.index(id)?;
        self.slots[usize::from(index)].connection.as_deref_mut()
    }

    /// Returns the place of a connection, which identifies its timer.
    pub(super) fn index(&self, id: CommId) -> Option<u16> {
        let (index, generation) = self.decode(id);
        let slot = self.slots.get(usize::from(index))?;
        (slot.generation == generation && slot.connection.is_some()).then_some(index)
    }

    /// Returns the ID of the connection at this place.
    pub(super) fn id_at(&self, index: u16) -> Option<CommId> {
        let slot = self.slots.get(usize::from(index))?;
        slot.connection.as_ref().map(|_| self.encode(index, slot.generation))
    }

    /// Returns all IDs, in the order of their places.
    pub(super) fn ids(&self) -> impl Iterator<Item = CommId> + '_ {
        (0..self.slots.len()).filter_map(|index| self.id_at(index as u16))
    }

    fn encode(&self, index: u16, generation: u16) -> CommId {
        if let Some((unit, permutation)) = &self.unit {
            return CommId(u32::from(*unit) << 24 | permutation.encode(index, generation));
        }
        CommId(self.names.encode(index, generation))
    }

    fn decode(&self, id: CommId) -> (u16, u16) {
        if let Some((unit, permutation)) = &self.unit {
            let (index, generation) = permutation.decode(id.0 & 0xff_ffff);
            // An ID of another unit gets an impossible generation.
            return (index, if id.0 >> 24 == u32::from(*unit) { generation } else { u16::MAX });
        }
        self.names.decode(id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_base::random::splitmix;

    #[test]
    fn decoding_undoes_encoding() {
        let table = Table::new(8, 7);
        let mut state = 1;
        for _ in 0..100_000 {
            let id = CommId(splitmix(&mut state) as u32);
            let (index, generation) = table.decode(id);
            assert_eq!(table.encode(index, generation), id);
        }
    }

    #[test]
    fn ids_of_a_unit_have_its_upper_bits() {
        let mut table = Table::new(1 << 16, 7);
        table.set_unit(0xab);
        let mut seen = std::collections::BTreeSet::new();
        for generation in 0..3 {
            for index in 0..1 << 16 {
                let id = table.encode(index as u16, generation);
                assert_eq!((id.0 >> 24, table.decode(id)), (0xab, (index as u16, generation)));
                assert!(seen.insert(id.0));
                assert_eq!(table.decode(CommId(id.0 ^ 0x0100_0000)).1, u16::MAX);
            }
        }
    }

    #[test]
    fn neighbouring_indices_get_distant_ids() {
        let table = Table::new(8, 7);
        let close = (0..10_000)
            .filter(|i| table.encode(*i, 0).0.abs_diff(table.encode(i + 1, 0).0) < 1 << 20)
            .count();
        assert!(close < 25, "{close} of 10,000 within 2^20; chance gives about 5");
    }
}
