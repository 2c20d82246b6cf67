//! Protection: which key opens which memory to whom (IBTA 10.6).
//!
//! Knows keys, bounds and rights, and nothing of the bytes themselves: an answer is a [`Span`], a place in a
//! region that the dma stage resolves.

use std::collections::VecDeque;

use super::permutation::Permutation;
use crate::verbs::{Access, MrIndex, PdId};

/// A place in a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The region.
    pub mr: MrIndex,
    /// Bytes from its start.
    pub offset: u64,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region has this key, or not any more.
    UnknownKey,
    /// The region belongs to another protection domain.
    OtherPd,
    /// The bytes are not all inside the region.
    OutOfBounds,
    /// The region does not grant this.
    AccessDenied,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    pd: PdId,
    access: Access,
    start: u64,
    length: u64,
    key: u32,
}

/// All memory regions of a NIC.
#[derive(Debug)]
pub struct MemoryTable {
    permutation: Permutation,
    entries: Vec<Option<Entry>>,
    generations: Vec<u8>,
    free: VecDeque<u16>,
}

impl MemoryTable {
    /// A table of `capacity` regions, at most 2^16, whose keys depend on `seed`.
    pub fn new(capacity: u32, seed: u64) -> MemoryTable {
        let capacity = capacity.min(1 << 16) as usize;
        MemoryTable {
            permutation: Permutation::new(seed),
            entries: vec![None; capacity],
            generations: vec![0; capacity],
            // Taken from the front, given back at the end: a place does not come back soon.
            free: (0..capacity).map(|i| i as u16).collect(),
        }
    }

    /// Registers `start..start + length` and returns its place and its key (lkey and rkey are one number;
    /// whether a peer may use it depends on `access`). `None`: the table is full.
    pub fn register(&mut self, pd: PdId, access: Access, start: u64, length: u64) -> Option<(MrIndex, u32)> {
        let index = self.free.pop_front()?;
        let slot = usize::from(index);
        let variant = self.generations[slot] as u32 ^ u32::from(index as u8);
        let key = self.permutation.encode(index, self.generations[slot]) << 8 | variant & 0xff;
        self.entries[slot] = Some(Entry { pd, access, start, length, key });
        Some((MrIndex(u32::from(index)), key))
    }

    /// Takes a region out: its key opens nothing from now on. False if there is none.
    pub fn deregister(&mut self, mr: MrIndex) -> bool {
        let Some(entry) = self.entries.get_mut(mr.0 as usize) else { return false };
        if entry.take().is_none() {
            return false;
        }
        let slot = mr.0 as usize;
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push_back(slot as u16);
        true
    }

    /// Regions in the table.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks `length` bytes at `address` under `key` for a user of `pd` who needs `access`.
    pub fn check(
        &self,
        pd: PdId,
        key: u32,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Span, Refusal> {
        let (index, _) = self.permutation.decode(key >> 8);
        let entry = self.entries.get(usize::from(index)).and_then(Option::as_ref);
        let entry = entry.filter(|e| e.key == key).ok_or(Refusal::UnknownKey)?;
        if entry.pd != pd {
            return Err(Refusal::OtherPd);
        }
        if !entry.access.contains(access) {
            return Err(Refusal::AccessDenied);
        }
        let offset = address.checked_sub(entry.start).ok_or(Refusal::OutOfBounds)?;
        match offset.checked_add(length) {
            Some(end) if end <= entry.length => Ok(Span { mr: MrIndex(u32::from(index)), offset }),
            _ => Err(Refusal::OutOfBounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);

    #[test]
    fn a_key_opens_its_region_to_the_last_byte_and_not_one_further() {
        let mut table = MemoryTable::new(4, 1);
        let (mr, key) = table.register(PD, Access::REMOTE_READ, 0x1000, 100).unwrap();
        let read = Access::REMOTE_READ;
        assert_eq!(table.check(PD, key, 0x1000 + 36, 64, read), Ok(Span { mr, offset: 36 }));
        assert_eq!(table.check(PD, key, 0x1000 + 37, 64, read), Err(Refusal::OutOfBounds));
        assert_eq!(table.check(PD, key, 0xfff, 1, read), Err(Refusal::OutOfBounds));
        assert_eq!(table.check(PD, key, u64::MAX, 64, read), Err(Refusal::OutOfBounds));
        assert_eq!(table.check(PD, key, 0x1000, 1, Access::REMOTE_WRITE), Err(Refusal::AccessDenied));
        assert_eq!(table.check(PdId(2), key, 0x1000, 1, read), Err(Refusal::OtherPd));
        assert_eq!(table.check(PD, key ^ 1, 0x1000, 1, read), Err(Refusal::UnknownKey), "the variant counts");
    }

    #[test]
    fn a_key_is_dead_after_deregistration_and_the_next_one_differs() {
        let mut table = MemoryTable::new(1, 1);
        let (mr, old) = table.register(PD, Access::empty(), 0, 8).unwrap();
        assert!(table.register(PD, Access::empty(), 0, 8).is_none(), "the table is full");
        assert!(table.deregister(mr));
        assert!(!table.deregister(mr));
        let (_, new) = table.register(PD, Access::empty(), 0, 8).unwrap();
        assert_ne!(old, new);
        assert_eq!(table.check(PD, old, 0, 8, Access::empty()), Err(Refusal::UnknownKey));
    }
}
