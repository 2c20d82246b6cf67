//! Processes that share a device: their slots, units of QPNs and communication IDs, services, and port numbers of `rdma_cm`.
//!
//! A group of sockets (`port::udp::group`) keeps a roster in memory that its members share; `roxie nic` keeps one of its clients.
//! The members of a group are all of one user. Clients may be of several: requests are checked against the client's user.

mod ports;
#[cfg(test)]
mod tests;

pub use ports::{BoundPort, PortName, PortRange, PortRequest, Ports};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::addressee::closest;
use ports::port_of;

/// The form of a roster. Members of another one are told so.
pub(crate) const FORM: u32 = 2;

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
    pub(crate) form: u32,
    /// Slots by number. A slot stays in the list once it was given.
    pub slots: Vec<Slot>,
    /// Maximum number of slots.
    most: u8,
    /// The slots of units other than a slot's own, which has its number: added units, and units of ended processes.
    pub units: BTreeMap<u8, u8>,
    /// Services for which processes take connection requests.
    pub services: Vec<Service>,
    /// Port numbers of `rdma_cm` that are bound.
    pub ports: Ports,
    /// Number of departures, so that the slot that was left last is given last.
    departures: u64,
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
    pub name: String,
}

/// A service for which a process takes connection requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Service {
    /// The service ID (IBTA 12.7.3).
    pub id: u64,
    /// The only address on which it is served; unspecified: all of its family; `None`: all.
    pub address: Option<IpAddr>,
    /// The place of the process that has it.
    pub slot: u8,
}

impl Roster {
    /// Makes an empty roster without slots, for up to `most`: a slot that was left is reused before a new one is made.
    pub fn new(most: u8) -> Roster {
        Roster { form: FORM, most, ..Roster::default() }
    }

    /// Makes an empty roster of `most` slots: each is used once before one is reused.
    pub fn of_places(most: u8) -> Roster {
        Roster { slots: vec![Slot::default(); most.into()], ..Roster::new(most) }
    }

    /// Gives a process a place. `most` bounds the places and units of ended processes that its user has.
    ///
    /// # Errors
    /// If all places are taken, or the user has that many.
    pub fn admit(&mut self, member: Identity, most: usize) -> Result<u8, Denied> {
        self.has_room(member.uid, most)?;
        let full =
            || Denied::new(libc::EAGAIN, format!("{} processes are served, as many as may", self.most));
        let slot = self.next_slot().ok_or_else(full)?;
        self.enter(slot, member);
        Ok(slot)
    }

    /// True if a user may have one more place or unit.
    fn has_room(&self, uid: u32, most: usize) -> Result<(), Denied> {
        let is_theirs = |slot: u8| self.uid_of(slot) == Some(uid);
        let places = self.taken().filter(|slot| is_theirs(*slot)).count();
        let count = places + self.units.values().filter(|slot| is_theirs(**slot)).count();
        if count < most {
            return Ok(());
        }
        let why = format!("user {uid} has {count} processes, as many as may (`--user-max-processes`)");
        Err(Denied::new(libc::EAGAIN, why))
    }

    /// Returns the slot for the next member: the one that was left first, or a new one. `None` if all are taken.
    pub(crate) fn next_slot(&self) -> Option<u8> {
        let lent = |slot: usize| self.units.keys().any(|unit| usize::from(*unit) == slot);
        let free = self.slots.iter().enumerate().filter(|(i, slot)| slot.member.is_none() && !lent(*i));
        let oldest = free.min_by_key(|(_, slot)| slot.left).map(|(index, _)| index);
        let slot = oldest.unwrap_or(self.slots.len());
        u8::try_from(slot).ok().filter(|slot| *slot < self.most)
    }

    pub(crate) fn enter(&mut self, slot: u8, member: Identity) {
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
        self.services.retain(|service| service.slot != slot);
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

    /// Returns the services of a slot.
    pub fn services_of(&self, slot: u8) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(move |service| service.slot == slot)
    }

    /// Returns the slots that are taken.
    pub(crate) fn taken(&self) -> impl Iterator<Item = u8> + '_ {
        self.members().map(|(slot, _)| slot)
    }

    /// Adds a unit to a slot, from the units that are no slot's own. Returns `None` if all are taken.
    pub(crate) fn add_unit(&mut self, slot: u8) -> Option<u8> {
        let unit = (self.most..=u8::MAX).rev().find(|unit| !self.units.contains_key(unit))?;
        self.units.insert(unit, slot);
        Some(unit)
    }

    /// Gives the unit of a place that a process of the same user has left to another slot, whose process speaks in its name. `most` bounds the
    /// places and units of the user.
    ///
    /// # Errors
    /// `EBUSY` if the unit is taken, `EPERM` if the process that had it was another user's, `EAGAIN` beyond `most`.
    pub fn take_unit(&mut self, unit: u8, slot: u8, most: usize) -> Result<(), Denied> {
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
        self.has_room(uid, most)?;
        self.units.insert(unit, slot);
        Ok(())
    }

    /// Returns the slot to which a unit belongs.
    pub(crate) fn owner_of_unit(&self, unit: u8) -> Option<u8> {
        self.units.get(&unit).copied().or_else(|| self.uid_of(unit).map(|_| unit))
    }

    /// Executes a request about ports for a slot's process. Returns the port number. `lowest`: the lowest number that the process
    /// may bind.
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
            let ports = &self.ports;
            self.services.retain(|service| {
                (service.id, service.slot) != (id, slot)
                    || ports.of(slot).any(|port| port.name.service() == id && port.covers(service.address))
            });
        }
        Ok(result)
    }

    /// Replaces a slot's services by those of `services` that it may have.
    ///
    /// # Errors
    /// The reason for the first that is left out: `EADDRINUSE` if another process has the service, `EACCES` if it is that of a port
    /// that the process has not bound at that address.
    pub fn set_services(
        &mut self,
        slot: u8,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        let (own, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.services).into_iter().partition(|service| service.slot == slot);
        let own: BTreeSet<Service> = own.into_iter().collect();
        let taken = Taken::new(slot, &others, &self.ports);
        let (mut kept, mut refused) = (BTreeSet::new(), Ok(()));
        for (id, address) in services {
            let service = Service { id, address, slot };
            // A service that it has stays, whatever other processes have bound since.
            let judged = if own.contains(&service) { Ok(()) } else { taken.judge(&service) };
            match judged {
                Ok(()) => drop(kept.insert(service)),
                Err(denied) => refused = refused.and(Err(denied)),
            }
        }
        self.services = others;
        self.services.extend(kept);
        refused
    }

    /// Returns the slot of the process that listens closest to an address.
    pub(crate) fn server_of(&self, service: u64, address: IpAddr) -> Option<u8> {
        let those = self.services.iter().filter(|s| s.id == service);
        closest(those.map(|s| (s.address, s.slot)), address)
    }

    /// Returns how many ports and services a slot has.
    pub fn entries_of(&self, slot: u8) -> usize {
        self.ports.of(slot).count() + self.services_of(slot).count()
    }
}

/// Ports and services that decide whether a process may have a service.
struct Taken<'a> {
    ports: &'a Ports,
    own: HashMap<u64, Vec<&'a BoundPort>>,
    others: HashMap<u64, Vec<Option<IpAddr>>>,
}

impl<'a> Taken<'a> {
    fn new(slot: u8, others: &[Service], ports: &'a Ports) -> Taken<'a> {
        let mut taken = Taken { ports, own: HashMap::new(), others: HashMap::new() };
        ports.of(slot).for_each(|port| taken.own.entry(port.name.service()).or_default().push(port));
        others.iter().for_each(|service| taken.others.entry(service.id).or_default().push(service.address));
        taken
    }

    /// A process takes requests that no other one takes, and for ports that it has bound and no other process shares.
    fn judge(&self, service: &Service) -> Result<(), Denied> {
        let Service { id, address, .. } = service;
        if self.others.get(id).is_some_and(|others| others.iter().any(|other| overlap(*other, *address))) {
            return Err(Denied::new(
                libc::EADDRINUSE,
                format!("another process listens for service {id:#x}"),
            ));
        }
        let Some((_, number)) = port_of(*id) else { return Ok(()) };
        let own = self.own.get(id).map_or(&[][..], Vec::as_slice);
        let port = own.iter().find(|port| port.covers(*address));
        let unbound = || Denied::new(libc::EACCES, format!("port {number} is not bound for service {id:#x}"));
        self.ports.may_listen(port.ok_or_else(unbound)?)
    }
}

/// True if one address is in both: an unspecified one is all of its family, and none is all.
fn overlap(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    let any = one.is_unspecified() || other.is_unspecified();
    one == other || (any && one.is_ipv4() == other.is_ipv4())
}
