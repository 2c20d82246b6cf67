//! The GID table: which addresses the device has, under indices that do not shift.

use std::net::IpAddr;

use crate::wire::Gid;

/// One address of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index: what verbs programs call `sgid_index`.
    pub index: usize,
    /// The address; IPv4 is v4-mapped.
    pub gid: Gid,
}

/// All addresses of the device. Removal leaves a hole; a new address takes the first hole.
#[derive(Clone, Debug, Default)]
pub struct GidTable {
    slots: Vec<Option<Gid>>,
}

impl GidTable {
    /// A table of these addresses, in this order.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> GidTable {
        let mut table = GidTable::default();
        for address in addresses {
            table.add(address);
        }
        table
    }

    /// Puts an address in, if it is not there, and returns its index.
    pub fn add(&mut self, address: IpAddr) -> usize {
        let gid = Gid::from(address);
        if let Some(index) = self.slots.iter().position(|slot| *slot == Some(gid)) {
            return index;
        }
        let hole = self.slots.iter().position(Option::is_none);
        let index = hole.unwrap_or(self.slots.len());
        if hole.is_none() {
            self.slots.push(None);
        }
        self.slots[index] = Some(gid);
        index
    }

    /// Takes an address out. The others keep their indices.
    pub fn remove(&mut self, address: IpAddr) {
        let gid = Gid::from(address);
        for slot in &mut self.slots {
            slot.take_if(|g| *g == gid);
        }
    }

    /// The address at an index.
    pub fn get(&self, index: usize) -> Option<Gid> {
        *self.slots.get(index)?
    }

    /// All addresses.
    pub fn iter(&self) -> impl Iterator<Item = GidEntry> {
        self.slots.iter().enumerate().filter_map(|(index, gid)| Some(GidEntry { index, gid: (*gid)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_leaves_a_hole_and_the_next_address_fills_it() {
        let address = |s: &str| s.parse::<IpAddr>().unwrap();
        let mut table = GidTable::new([address("10.0.0.1"), address("10.0.0.2"), address("fd00::1")]);
        table.remove(address("10.0.0.2"));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(2), Some(Gid::from(address("fd00::1"))));
        assert_eq!(table.add(address("10.0.0.1")), 0, "an address is there once");
        assert_eq!(table.add(address("10.0.0.9")), 1);
    }
}
