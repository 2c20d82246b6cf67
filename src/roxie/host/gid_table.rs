//! The GID table: the device's addresses, at indices that do not shift.

use std::collections::VecDeque;
use std::net::IpAddr;

use roxie_nic::verbs::{AddressVector, LocalGid};
use roxie_wire::{Encapsulation, Gid, RoceVersion};

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index: `sgid_index` of verbs programs.
    pub index: usize,
    /// The address; an IPv4 address is IPv4-mapped.
    pub gid: Gid,
    /// RoCE version and VLAN.
    pub encapsulation: Encapsulation,
    /// True if the interface has the address. Only the link-local address at index 0 may be listed without it.
    pub assigned: bool,
}

impl GidEntry {
    /// Returns the GID with its RoCE version and VLAN.
    pub fn local(&self) -> LocalGid {
        LocalGid { gid: self.gid, encapsulation: self.encapsulation }
    }

    /// True if a path begins here.
    pub fn is_source_of(&self, path: &AddressVector) -> bool {
        (self.gid, self.encapsulation) == (path.sgid, path.encapsulation)
    }
}

/// The order in which addresses become GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidOrder {
    /// The order of the list.
    #[default]
    Listed,
    /// The order of RDMA devices in Linux: see [`GidTable::customary`].
    Customary {
        /// The interface's MAC address.
        station: [u8; 6],
    },
}

/// The GID table. Removing an address leaves a hole; a new address takes the first hole. An address may be listed once
/// for each VLAN and RoCE version.
#[derive(Clone, Debug, Default)]
pub struct GidTable {
    slots: Vec<Option<LocalGid>>,
    /// True if each address is a RoCE v1 GID as well.
    has_roce_v1: bool,
    /// The link-local address that index 0 is reserved for.
    default: Option<Gid>,
}

impl GidTable {
    /// Makes a table of these addresses.
    pub fn in_order(order: GidOrder, addresses: impl IntoIterator<Item = IpAddr>) -> GidTable {
        match order {
            GidOrder::Listed => GidTable::new(addresses),
            GidOrder::Customary { station } => GidTable::customary(station, addresses),
        }
    }

    /// Makes a table of these addresses in the given order.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> GidTable {
        let mut table = GidTable::default();
        for address in addresses {
            table.add(address);
        }
        table
    }

    /// Makes a table of an interface's addresses in the order of RDMA devices in Linux:
    ///
    /// * Index 0 is the link-local address that is derived from the MAC address. The entry exists even while the
    ///   interface does not have it, for a second or two after the interface came up: Linux lists it, and programs such
    ///   as UCX stop at an empty index. For an interface without a MAC address, index 0 is another IPv6 address, or
    ///   empty.
    /// * Index 1 is the first IPv4 address.
    /// * The others follow, IPv4 first.
    pub fn customary(station: [u8; 6], addresses: impl IntoIterator<Item = IpAddr>) -> GidTable {
        let (mut v4, mut v6): (VecDeque<_>, VecDeque<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        let default = (station != [0; 6]).then(|| Gid::link_local_of(station));
        let link_local = |ip: &IpAddr| match default {
            Some(default) => Gid::from(*ip) == default,
            None => matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()),
        };
        let zero = match (v6.iter().position(link_local), default) {
            (None, Some(_)) => None,
            (place, _) => v6.remove(place.unwrap_or(0)),
        };
        let one = v4.pop_front().or_else(|| v6.pop_front());
        let mut slots: Vec<_> = [zero, one].into_iter().map(|ip| ip.map(LocalGid::from)).collect();
        slots.extend(v4.into_iter().chain(v6).map(|ip| Some(LocalGid::from(ip))));
        while slots.last() == Some(&None) {
            slots.pop();
        }
        GidTable { slots, has_roce_v1: false, default }
    }

    /// Adds a RoCE v1 GID for each address, behind all that are listed, and for later ones.
    pub fn add_roce_v1(&mut self) {
        self.has_roce_v1 = true;
        for local in self.slots.clone().into_iter().flatten() {
            self.insert(v1_of(local));
        }
    }

    /// Adds an address unless it is already listed, and returns its index.
    pub fn add(&mut self, address: impl Into<LocalGid>) -> usize {
        let local = address.into();
        let index = self.insert(local);
        if self.has_roce_v1 {
            self.insert(v1_of(local));
        }
        index
    }

    fn insert(&mut self, local: LocalGid) -> usize {
        if let Some(index) = self.slots.iter().position(|slot| *slot == Some(local)) {
            return index;
        }
        // Index 0 may be reserved.
        let is_reserved = self.default.is_some_and(|default| LocalGid::from(default) != local);
        let hole = (usize::from(is_reserved)..self.slots.len()).find(|index| self.slots[*index].is_none());
        let index = hole.unwrap_or(self.slots.len().max(is_reserved.into()));
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(local);
        index
    }

    /// Removes an address. Other addresses keep their indices.
    pub fn remove(&mut self, address: impl Into<LocalGid>) {
        let local = address.into();
        for slot in &mut self.slots {
            slot.take_if(|of| *of == local || self.has_roce_v1 && *of == v1_of(local));
        }
    }

    /// Returns the GID at an index, if the interface has it.
    pub fn get(&self, index: usize) -> Option<LocalGid> {
        *self.slots.get(index)?
    }

    /// Returns the addresses of a kind that the interface has.
    pub fn locals(&self) -> impl Iterator<Item = LocalGid> {
        self.slots.iter().copied().flatten()
    }

    /// Returns all addresses as one line of text.
    pub fn listed(&self) -> String {
        let text = |entry: GidEntry| {
            let note = if entry.assigned { "" } else { " (the interface does not have it)" };
            format!("{}: {}{note}", entry.index, entry.local())
        };
        self.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// All addresses.
    pub fn iter(&self) -> impl Iterator<Item = GidEntry> {
        let waits = self.default.filter(|_| self.get(0).is_none());
        let waits = waits.map(|gid| {
            let encapsulation = Encapsulation::default();
            GidEntry { index: 0, gid, encapsulation, assigned: false }
        });
        let there = |(index, slot): (usize, &Option<LocalGid>)| {
            let LocalGid { gid, encapsulation } = (*slot)?;
            Some(GidEntry { index, gid, encapsulation, assigned: true })
        };
        waits.into_iter().chain(self.slots.iter().enumerate().filter_map(there))
    }
}

/// Returns the RoCE v1 GID of an address.
fn v1_of(local: LocalGid) -> LocalGid {
    LocalGid { encapsulation: Encapsulation { version: RoceVersion::V1, ..local.encapsulation }, ..local }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_ipv4_address_is_at_index_1() {
        let slots = |addresses: &[&str]| {
            let table = GidTable::customary([0; 6], addresses.iter().map(|a| a.parse().unwrap()));
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
    fn index_0_is_always_the_link_local_address() {
        let address = |s: &str| s.parse::<IpAddr>().unwrap();
        let (default, station) = (address("fe80::ff:fe11:2233"), [2, 0, 0, 0x11, 0x22, 0x33]);
        let mut table = GidTable::customary(station, [address("10.0.0.1"), address("fe80::1")]);
        let seen = |table: &GidTable| {
            table.iter().map(|e| (e.index, e.gid.to_ip().to_string(), e.assigned)).collect::<Vec<_>>()
        };
        let entry = |index: usize, text: &str, assigned| (index, text.to_owned(), assigned);
        let others = [entry(1, "10.0.0.1", true), entry(2, "fe80::1", true)];
        assert_eq!(seen(&table)[0], entry(0, "fe80::ff:fe11:2233", false));
        assert_eq!(seen(&table)[1..], others);
        assert_eq!(table.get(0), None, "nothing is sent from it");
        assert_eq!(table.add(address("10.0.0.2")), 3, "index 0 is reserved");
        assert_eq!(table.add(default), 0);
        assert_eq!((table.get(0), seen(&table).len()), (Some(default.into()), 4));
        table.remove(default);
        assert_eq!(seen(&table)[0], entry(0, "fe80::ff:fe11:2233", false));
        let mut alone = GidTable::customary(station, []);
        assert_eq!(alone.add(address("10.0.0.1")), 1);
    }

    #[test]
    fn next_address_fills_the_hole_of_a_removal() {
        let address = |s: &str| s.parse::<IpAddr>().unwrap();
        let mut table = GidTable::new([address("10.0.0.1"), address("10.0.0.2"), address("fd00::1")]);
        table.remove(address("10.0.0.2"));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(2), Some(address("fd00::1").into()));
        assert_eq!(table.add(address("10.0.0.1")), 0, "an address is listed once");
        assert_eq!(table.add(address("10.0.0.9")), 1);
    }

    #[test]
    fn address_is_listed_once_per_vlan_and_version() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let of = |table: &GidTable, index| table.get(index).expect("a GID").encapsulation;
        let mut table = GidTable::customary([2, 0, 0, 0, 0, 1], [address]);
        table.add_roce_v1();
        assert_eq!((of(&table, 1), of(&table, 2)), (Encapsulation::default(), Encapsulation::v1()));
        let tagged = LocalGid::on_vlan(address, 5);
        assert_eq!((table.add(tagged), table.add(tagged), table.add(address)), (3, 3, 1));
        assert_eq!(of(&table, 4), Encapsulation { vlan: 5, ..Encapsulation::v1() });
        assert_eq!(table.get(3).unwrap().to_string(), "::ffff:10.0.0.1 (RoCE v2, VLAN 5)");
        table.remove(tagged);
        assert_eq!((table.get(3), table.get(4)), (None, None));
        assert!(table.get(1).is_some() && table.get(2).is_some(), "the others stay");
    }
}
