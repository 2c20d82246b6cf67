//! Processes that share a device: their slots, units of QPNs and communication IDs, services, and port numbers of
//! `rdma_cm`.
//!
//! A group of sockets (`port::group`) keeps a roster in memory that its members share; `roxie nic` keeps one of its
//! clients. The members of a group are all of one user. Clients may be of several: requests are checked against the
//! client's user.

mod ports;
mod services;
#[cfg(test)]
mod tests;

pub use ports::{BoundPort, PortName, PortRange, PortRequest, Ports};
pub use services::{Service, Services};

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::protocol::Protocol;
use crate::text::Foreign;

/// Protocol of the members of a socket group: the roster, the order of their descriptors, and the form of the datagrams
/// that they hand over. A member writes back the whole roster, so all have the same version.
pub const GROUP_PROTOCOL: Protocol = Protocol { name: "group protocol", oldest: 2, version: 2 };

/// A refused request, as the application sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Denied {
    /// The error number of the call.
    pub errno: i32,
    /// The reason.
    pub why: String,
}

impl Denied {
    /// Makes a refusal with this error number.
    pub fn new(errno: i32, why: String) -> Denied {
        Denied { errno, why }
    }
}

/// The state that members share, apart from sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Roster {
    /// The version of [`GROUP_PROTOCOL`].
    pub form: u32,
    /// Slots by number. A slot stays in the list once it was given.
    pub slots: Vec<Slot>,
    /// Maximum number of slots.
    most: u8,
    /// The slots of units other than a slot's own, which has its number: added units, and units of ended processes.
    pub units: BTreeMap<u8, u8>,
    /// Services for which processes take connection requests.
    pub services: Services,
    /// Port numbers of `rdma_cm` that are bound.
    pub ports: Ports,
    /// Number of departures, so that the slot that was left last is given last.
    departures: u64,
    /// Users that count as others, of a roster that one process keeps.
    #[serde(skip)]
    payers: BTreeMap<u32, u32>,
}

/// A slot, and the unit of the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// The process in the slot.
    pub member: Option<Identity>,
    /// The number of the departure by which it was left.
    left: u64,
    /// The user of the process that left it.
    last_uid: Option<u32>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// Its process number, as the process itself sees it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The name of the process, as `/proc/PID/comm` has it.
    pub name: Foreign,
}

/// How many places and units of ended processes a user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The user's at most.
    pub most: usize,
    /// Places that stay free, for other users.
    pub spare: usize,
    /// Further places that stay free if the user has one already.
    pub spare_of_more: usize,
}

impl Room {
    /// All there are.
    pub const ALL: Room = Room { most: usize::MAX, spare: 0, spare_of_more: 0 };
}

impl Roster {
    /// Makes an empty roster without slots, for up to `most`: a slot that was left is reused before a new one is made.
    pub fn new(most: u8) -> Roster {
        Roster { form: GROUP_PROTOCOL.version, most, ..Roster::default() }
    }

    /// Makes an empty roster of `most` slots: each is used once before one is reused.
    pub fn of_places(most: u8) -> Roster {
        Roster { slots: vec![Slot::default(); most.into()], ..Roster::new(most) }
    }

    /// Gives a process a place.
    ///
    /// # Errors
    /// If all places are taken, or as many as its user may have.
    pub fn admit(&mut self, member: Identity, room: Room) -> Result<u8, Denied> {
        self.has_room(member.uid, room)?;
        let full =
            || Denied::new(libc::EAGAIN, format!("{} processes are served, as many as may", self.most));
        let slot = self.next_slot().ok_or_else(full)?;
        self.enter(slot, member);
        Ok(slot)
    }

    /// Counts a user's places and units as another user's.
    pub fn count_as(&mut self, uid: u32, payer: u32) {
        let members = self.slots.iter().filter_map(|slot| Some(slot.member.as_ref()?.uid));
        let members: Vec<u32> = members.collect();
        self.payers.retain(|uid, _| members.contains(uid));
        if payer != uid {
            self.payers.insert(uid, payer);
        }
    }

    fn payer(&self, uid: u32) -> u32 {
        self.payers.get(&uid).copied().unwrap_or(uid)
    }

    /// True if a user may have one more place or unit.
    fn has_room(&self, uid: u32, room: Room) -> Result<(), Denied> {
        let taken = self.taken().count() + self.units.keys().filter(|unit| **unit < self.most).count();
        let payer = self.payer(uid);
        let is_theirs = |slot: u8| self.uid_of(slot).is_some_and(|uid| self.payer(uid) == payer);
        let places = self.taken().filter(|slot| is_theirs(*slot)).count();
        let count = places + self.units.values().filter(|slot| is_theirs(**slot)).count();
        let denied = |why| Err(Denied::new(libc::EAGAIN, why));
        let is_full = |spare: usize| spare > 0 && taken + spare >= usize::from(self.most);
        if is_full(room.spare) {
            let spare = room.spare;
            return denied(format!(
                "{taken} processes are served: the last {spare} places are kept for root and the NIC's user"
            ));
        }
        if count > 0 && is_full(room.spare + room.spare_of_more) {
            return denied(format!(
                "{taken} processes are served: the last {} places are kept for users without one, and user {uid} has {count}",
                room.spare + room.spare_of_more
            ));
        }
        if count < room.most {
            return Ok(());
        }
        denied(format!("user {uid} has {count} processes, as many as may (`--user-max-processes`)"))
    }

    /// Returns the slot for the next member: the one that was left first, or a new one. `None` if all are taken.
    pub fn next_slot(&self) -> Option<u8> {
        let lent = |slot: usize| self.units.keys().any(|unit| usize::from(*unit) == slot);
        let free = self.slots.iter().enumerate().filter(|(i, slot)| slot.member.is_none() && !lent(*i));
        let oldest = free.min_by_key(|(_, slot)| slot.left).map(|(index, _)| index);
        let slot = oldest.unwrap_or(self.slots.len());
        u8::try_from(slot).ok().filter(|slot| *slot < self.most)
    }

    /// Gives the slot to a process.
    pub fn enter(&mut self, slot: u8, member: Identity) {
        let slot = usize::from(slot);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        self.slots[slot].member = Some(member);
    }

    /// Removes a slot's member with its units, services and ports.
    pub fn leave(&mut self, slot: u8) {
        let last_uid = self.uid_of(slot);
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            self.departures += 1;
            *place = Slot { member: None, left: self.departures, last_uid };
        }
        self.units.retain(|_, owner| *owner != slot);
        self.services.leave(slot);
        self.ports.leave(slot);
    }

    /// Returns the members by slot.
    pub fn members(&self) -> impl Iterator<Item = (u8, &Identity)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| Some((slot, place.member.as_ref()?)))
    }

    fn uid_of(&self, slot: u8) -> Option<u32> {
        Some(self.slots.get(usize::from(slot))?.member.as_ref()?.uid)
    }

    /// Returns the units of a slot.
    pub fn units_of(&self, slot: u8) -> impl Iterator<Item = u8> + '_ {
        let more = self.units.iter().filter(move |(_, owner)| **owner == slot);
        std::iter::once(slot).chain(more.map(|(unit, _)| *unit))
    }

    /// Returns the slots that are taken.
    pub fn taken(&self) -> impl Iterator<Item = u8> + '_ {
        self.members().map(|(slot, _)| slot)
    }

    /// Adds a unit to a slot, from the units that are no slot's own. Returns `None` if all are taken.
    pub fn add_unit(&mut self, slot: u8) -> Option<u8> {
        let unit = (self.most..=u8::MAX).rev().find(|unit| !self.units.contains_key(unit))?;
        self.units.insert(unit, slot);
        Some(unit)
    }

    /// Gives the unit of a place that a process of the same user has left to another slot, whose process speaks in its
    /// name.
    ///
    /// # Errors
    /// `EBUSY` if the unit is taken, `EPERM` if the process that had it was another user's, `EAGAIN` without room.
    pub fn take_unit(&mut self, unit: u8, slot: u8, room: Room) -> Result<(), Denied> {
        if self.owner_of_unit(unit).is_some() {
            return Err(Denied::new(libc::EBUSY, format!("unit {unit} belongs to a process")));
        }
        let uid = self
            .uid_of(slot)
            .ok_or_else(|| Denied::new(libc::EPERM, format!("no member has slot {slot}")))?;
        if self.slots.get(usize::from(unit)).and_then(|place| place.last_uid) != Some(uid) {
            let why = format!("unit {unit} was that of no process of user {uid}");
            return Err(Denied::new(libc::EPERM, why));
        }
        self.has_room(uid, room)?;
        self.units.insert(unit, slot);
        Ok(())
    }

    /// Returns the slot to which a unit belongs.
    pub fn owner_of_unit(&self, unit: u8) -> Option<u8> {
        self.units.get(&unit).copied().or_else(|| self.uid_of(unit).map(|_| unit))
    }

    /// Executes a request about ports for a slot's process. Returns the port number. `lowest`: the lowest number that
    /// the process may bind.
    ///
    /// # Errors
    /// As for [`Ports::request`].
    pub fn port(&mut self, slot: u8, request: PortRequest, lowest: u16) -> Result<u16, Denied> {
        let uid = self
            .uid_of(slot)
            .ok_or_else(|| Denied::new(libc::EPERM, format!("no member has slot {slot}")))?;
        let shrinks = match &request {
            PortRequest::Settle(name, _) | PortRequest::Release(name) => Some(name.service()),
            _ => None,
        };
        let result = self.ports.request((slot, uid), request, lowest)?;
        if let Some(id) = shrinks {
            self.services.retain(slot, id, |address| self.ports.covers(slot, id, address));
        }
        Ok(result)
    }

    /// Replaces a slot's services by the ones in `services` that it may have.
    ///
    /// # Errors
    /// The reason for the first that is left out: `EADDRINUSE` if another process has the service, `EACCES` if it is
    /// the service of a port that the process has not bound at that address.
    pub fn set_services(
        &mut self,
        slot: u8,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        self.services.replace(slot, services, &self.ports)
    }

    /// Returns the slot of the process that listens closest to an address.
    pub fn server_of(&self, service: u64, address: IpAddr) -> Option<u8> {
        self.services.server_of(service, address)
    }

    /// Returns how many ports and services a slot has.
    pub fn entries_of(&self, slot: u8) -> usize {
        self.ports.count(slot) + self.services.count(slot)
    }
}
