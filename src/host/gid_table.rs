//! The GID table: which addresses the device has, under indices that do not shift.

use std::collections::VecDeque;
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

    /// The addresses of an interface in the order that users of RDMA devices know: index 0 the link-local address (another
    /// IPv6 one if there is none), or empty; index 1 the first IPv4 address; then the others, IPv4 first.
    pub fn customary(addresses: impl IntoIterator<Item = IpAddr>) -> GidTable {
        let (mut v4, mut v6): (VecDeque<_>, VecDeque<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let zero = v6.remove(v6.iter().position(link_local).unwrap_or(0));
        let one = v4.pop_front().or_else(|| v6.pop_front());
        let mut slots: Vec<_> = [zero, one].into_iter().map(|ip| ip.map(Gid::from)).collect();
        slots.extend(v4.into_iter().chain(v6).map(|ip| Some(Gid::from(ip))));
        while slots.last() == Some(&None) {
            slots.pop();
        }
        GidTable { slots }
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
    fn the_first_ipv4_address_is_at_index_1_whatever_else_there_is() {
        let slots = |addresses: &[&str]| {
            let table = GidTable::customary(addresses.iter().map(|a| a.parse().unwrap()));
            table.iter().map(|e| (e.index, e.gid.to_ip().to_string())).collect::<Vec<_>>()
        };
        let entry = |(i, a): &(usize, &str)| (*i, (*a).to_owned());
        let is = |found: Vec<_>, wanted: &[(usize, &str)]| {
            assert_eq!(found, wanted.iter().map(entry).collect::<Vec<_>>());
        };
        is(slots(&["10.0.0.1"]), &[(1, "10.0.0.1")]);
        is(
            slots(&["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1"]),
            &[(0, "fe80::1"), (1, "10.0.0.1"), (2, "10.0.0.2"), (3, "fd00::1")],
        );
        is(slots(&["127.0.0.1", "::1"]), &[(0, "::1"), (1, "127.0.0.1")]);
        is(slots(&["fd00::1", "fe80::1"]), &[(0, "fe80::1"), (1, "fd00::1")]);
        is(slots(&[]), &[]);
    }

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
