//! Who has which part of the device: what all members of a group know.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::addressee::closeness;

/// Processes that one group has room for.
pub const SLOTS: usize = 128;
/// The form of a roster. Members of another one are told so.
pub(super) const FORM: u32 = 1;

/// Everything that members share but sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    pub(super) form: u32,
    /// Places by number. One that was given once stays, for its sockets do.
    pub slots: Vec<Slot>,
    /// QPN units that belong to a slot, besides the one that has its number: more for itself, or that of a process that has ended.
    pub units: BTreeMap<u8, u8>,
    /// Who listens for connection requests.
    pub services: Vec<Service>,
    /// Port numbers of `rdma_cm` that are taken.
    pub ports: Vec<BoundPort>,
    /// Counts departures, so that what was left last is taken last.
    departures: u64,
}

/// A place in the group: two sockets, a QPN unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Who has it; `None`: nobody.
    pub member: Option<Identity>,
    /// When it was left, counted in departures.
    left: u64,
}

/// A process, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// As it sees itself.
    pub pid: u32,
    /// The name of the process, as `/proc/PID/comm` has it.
    pub name: String,
}

/// Where somebody listens for connection requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Service {
    /// The service ID (IBTA 12.7.3).
    pub id: u64,
    /// The only address on which it is served; unspecified: all of its family; `None`: all.
    pub address: Option<IpAddr>,
    /// The place in the group of the process that has it.
    pub slot: u8,
}

/// A port number of `rdma_cm` that a process has bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundPort {
    /// Its port space, by the number that the user of this table gives it.
    pub space: u8,
    /// The port number of the connection service.
    pub port: u16,
    /// On which address; unspecified: all.
    pub address: IpAddr,
    /// Shares with others that share, until one listens.
    pub reuse: bool,
    /// Takes nothing of the other address family.
    pub one_family: bool,
    /// Names the owner among those of its process.
    pub owner: u32,
    /// The place in the group of the process that has it.
    pub slot: u8,
}

impl Roster {
    /// Nobody is in it.
    pub(super) fn new() -> Roster {
        Roster { form: FORM, ..Roster::default() }
    }

    /// The place for the next member: the one that was left first, or a new one. `None`: there are [`SLOTS`] members.
    pub(super) fn next_slot(&self) -> Option<u8> {
        let lent = |slot: usize| self.units.keys().any(|unit| usize::from(*unit) == slot);
        let free = self.slots.iter().enumerate().filter(|(i, slot)| slot.member.is_none() && !lent(*i));
        let oldest = free.min_by_key(|(_, slot)| slot.left).map(|(index, _)| index);
        let slot = oldest.unwrap_or(self.slots.len());
        u8::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS)
    }

    pub(super) fn enter(&mut self, slot: u8, member: Identity) {
        let slot = usize::from(slot);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        self.slots[slot].member = Some(member);
    }

    /// Takes out everything of a slot.
    pub(super) fn leave(&mut self, slot: u8) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            self.departures += 1;
            *place = Slot { member: None, left: self.departures };
        }
        self.units.retain(|_, owner| *owner != slot);
        self.services.retain(|service| service.slot != slot);
        self.ports.retain(|port| port.slot != slot);
    }

    /// Who is in it, by slot.
    pub fn members(&self) -> impl Iterator<Item = (u8, &Identity)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| Some((slot, place.member.as_ref()?)))
    }

    /// The units of a slot.
    pub fn units_of(&self, slot: u8) -> impl Iterator<Item = u8> + '_ {
        let more = self.units.iter().filter(move |(_, owner)| **owner == slot);
        std::iter::once(slot).chain(more.map(|(unit, _)| *unit))
    }

    /// Slots that somebody has.
    pub(super) fn taken(&self) -> impl Iterator<Item = u8> + '_ {
        let places = (0..).zip(&self.slots);
        places.filter(|(_, place)| place.member.is_some()).map(|(slot, _)| slot)
    }

    /// Gives one more unit to a slot; `None`: all are taken.
    pub(super) fn add_unit(&mut self, slot: u8) -> Option<u8> {
        let unit = (SLOTS as u8..=u8::MAX).rev().find(|unit| !self.units.contains_key(unit))?;
        self.units.insert(unit, slot);
        Some(unit)
    }

    /// Gives the unit of a slot that was left to another one. False: it is not free.
    pub(super) fn take_unit(&mut self, unit: u8, slot: u8) -> bool {
        let is_free = self.owner_of_unit(unit).is_none();
        if is_free {
            self.units.insert(unit, slot);
        }
        is_free
    }

    /// Whose unit that is.
    pub(super) fn owner_of_unit(&self, unit: u8) -> Option<u8> {
        let own = || self.slots.get(usize::from(unit)).filter(|place| place.member.is_some()).map(|_| unit);
        self.units.get(&unit).copied().or_else(own)
    }

    /// Who listens closest to an address.
    pub(super) fn server_of(&self, service: u64, address: IpAddr) -> Option<u8> {
        let those = self.services.iter().filter(|s| s.id == service);
        those
            .filter_map(|s| Some((closeness(s.address, address)?, s.slot)))
            .max_by_key(|(close, _)| *close)
            .map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody() -> Identity {
        Identity { pid: 7, name: "x".into() }
    }

    #[test]
    fn a_place_that_was_left_is_given_again_the_longest_free_one_first() {
        let mut roster = Roster::new();
        for expected in 0..3 {
            let slot = roster.next_slot().unwrap();
            assert_eq!(slot, expected);
            roster.enter(slot, somebody());
        }
        roster.leave(2);
        roster.leave(0);
        assert_eq!(roster.next_slot(), Some(2));
        roster.enter(2, somebody());
        assert_eq!(roster.next_slot(), Some(0));
        assert_eq!(roster.taken().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut roster = Roster::new();
        for _ in 0..SLOTS {
            let slot = roster.next_slot().unwrap();
            roster.enter(slot, somebody());
        }
        assert_eq!(roster.next_slot(), None);
        let units: Vec<u8> = std::iter::from_fn(|| roster.add_unit(5)).collect();
        assert_eq!(units.len(), 256 - SLOTS);
        assert!(units.iter().all(|unit| roster.owner_of_unit(*unit) == Some(5)));
        assert!(!roster.take_unit(units[0], 4) && !roster.take_unit(5, 4));
        roster.leave(5);
        assert_eq!((roster.owner_of_unit(units[0]), roster.owner_of_unit(5)), (None, None));
    }

    #[test]
    fn a_place_is_not_given_while_its_unit_is_lent() {
        let mut roster = Roster::new();
        for slot in 0..2 {
            roster.enter(slot, somebody());
        }
        roster.leave(0);
        assert!(roster.take_unit(0, 1));
        assert_eq!((roster.owner_of_unit(0), roster.next_slot()), (Some(1), Some(2)));
        roster.leave(1);
        assert_eq!((roster.owner_of_unit(0), roster.next_slot()), (None, Some(0)));
    }

    #[test]
    fn who_listens_on_an_address_goes_before_who_listens_on_all() {
        let mut roster = Roster::new();
        let near: IpAddr = "192.0.2.1".parse().unwrap();
        roster.services.push(Service { id: 9, address: None, slot: 1 });
        roster.services.push(Service { id: 9, address: Some(near), slot: 2 });
        assert_eq!(roster.server_of(9, near), Some(2));
        assert_eq!(roster.server_of(9, "192.0.2.2".parse().unwrap()), Some(1));
        assert_eq!(roster.server_of(8, near), None);
        roster.services.push(Service { id: 9, address: Some("::".parse().unwrap()), slot: 3 });
        assert_eq!(roster.server_of(9, "2001:db8::1".parse().unwrap()), Some(3));
        roster.leave(1);
        assert_eq!(roster.server_of(9, "192.0.2.2".parse().unwrap()), None);
    }
}
