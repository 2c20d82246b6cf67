//! Listeners by service and address.

use std::collections::{BTreeMap, VecDeque};

use roxie_base::time::Nanos;
use roxie_wire::cm::CommId;
use roxie_wire::{Gid, ServiceId};

use super::{CmError, ListenOn, Listener};

/// Time for which a request keeps its place against others that are as urgent: a handshake takes milliseconds.
pub(super) const YOUNG: Nanos = Nanos::from_millis(500);

#[derive(Clone, Debug)]
struct ServiceEntry {
    name: Listener,
    on: ListenOn,
    backlog: u32,
    until_confirmed: bool,
    /// Requests with a place in the backlog, oldest first.
    waiting: VecDeque<Waiting>,
    /// Number of places of each address.
    by_address: BTreeMap<Gid, u32>,
}

/// A request in a backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) id: CommId,
    pub(super) address: Gid,
    pub(super) since: Nanos,
    pub(super) urgency: u8,
}

/// A connection's place in the backlog of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BacklogPlace {
    pub(super) listener: Listener,
    /// True if the place is kept until the peer confirms the consumer's answer.
    pub(super) until_confirmed: bool,
    /// Requests that were repeated are more urgent: hosts that others named as the source do not repeat them.
    pub(super) urgency: u8,
}

/// All listeners of a manager.
#[derive(Debug)]
pub(super) struct Listeners {
    by_service: BTreeMap<ServiceId, Vec<ServiceEntry>>,
    service_of: BTreeMap<Listener, ServiceId>,
    next: u32,
    limit: u32,
    version: u64,
}

impl Listeners {
    pub(super) fn new(limit: u32) -> Listeners {
        Listeners { by_service: BTreeMap::new(), service_of: BTreeMap::new(), next: 1, limit, version: 0 }
    }

    pub(super) fn add(
        &mut self,
        service: ServiceId,
        on: ListenOn,
        backlog: u32,
        until_confirmed: bool,
    ) -> Result<Listener, CmError> {
        if self.service_of.len() >= self.limit as usize {
            return Err(CmError::Full { what: "listeners", limit: self.limit });
        }
        let entries = self.by_service.entry(service).or_default();
        if entries.iter().any(|entry| entry.on == on) {
            return Err(CmError::InUse { service, on });
        }
        // Names wrap after 2^32 listeners. Skip those in use.
        let mut name = Listener(self.next);
        while self.service_of.contains_key(&name) {
            name = Listener(name.0.wrapping_add(1));
        }
        self.next = name.0.wrapping_add(1);
        let (waiting, by_address) = (VecDeque::new(), BTreeMap::new());
        entries.push(ServiceEntry {
            name,
            on,
            backlog: backlog.max(1),
            until_confirmed,
            waiting,
            by_address,
        });
        self.version += 1;
        self.service_of.insert(name, service);
        Ok(name)
    }

    /// Removes a listener. Returns false if it does not exist.
    pub(super) fn remove(&mut self, name: Listener) -> bool {
        let Some(service) = self.service_of.remove(&name) else { return false };
        self.version += 1;
        if let Some(entries) = self.by_service.get_mut(&service) {
            entries.retain(|entry| entry.name != name);
            if entries.is_empty() {
                self.by_service.remove(&service);
            }
        }
        true
    }

    /// Returns the number of changes so far.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn services(&self) -> impl Iterator<Item = (ServiceId, ListenOn)> + '_ {
        self.by_service.iter().flat_map(|(service, entries)| entries.iter().map(|entry| (*service, entry.on)))
    }

    pub(super) fn len(&self) -> usize {
        self.service_of.len()
    }

    /// Returns the listener with the most specific match for `local`.
    pub(super) fn find(&self, service: ServiceId, local: Gid) -> Option<BacklogPlace> {
        let closeness = |entry: &&ServiceEntry| match entry.on {
            ListenOn::Address(_) => 2,
            ListenOn::AnyIpv4 | ListenOn::AnyIpv6 => 1,
            ListenOn::Any => 0,
        };
        let entries = self.by_service.get(&service)?.iter();
        let closest = entries.filter(|entry| entry.on.covers(local)).max_by_key(closeness)?;
        let ServiceEntry { name: listener, until_confirmed, .. } = *closest;
        Some(BacklogPlace { listener, until_confirmed, urgency: 0 })
    }

    /// Returns the request that gives its place to one from `address`: the oldest of the address with the most places,
    /// the oldest of the least urgent ones, or the oldest that is no longer young. `Err`: the backlog is full, and has
    /// none.
    pub(super) fn make_place(
        &self,
        place: BacklogPlace,
        now: Nanos,
        address: Gid,
    ) -> Result<Option<CommId>, ()> {
        let Some(entry) = self.entry(place.listener) else { return Err(()) };
        if entry.waiting.len() < entry.backlog as usize {
            return Ok(None);
        }
        let places = |address: &Gid| entry.by_address.get(address).copied().unwrap_or_default();
        let most = entry.by_address.values().copied().max().unwrap_or_default();
        let least = entry.waiting.iter().map(|waiting| waiting.urgency).min().unwrap_or_default();
        let mut waiting = entry.waiting.iter();
        let victim = if most > places(&address) + 1 {
            waiting.find(|waiting| places(&waiting.address) == most)
        } else if least < place.urgency {
            waiting.find(|waiting| waiting.urgency == least)
        } else {
            waiting.find(|waiting| waiting.urgency <= place.urgency && waiting.since + YOUNG <= now)
        };
        victim.map(|waiting| Some(waiting.id)).ok_or(())
    }

    /// Adds a request to the backlog of a listener.
    pub(super) fn occupy(&mut self, name: Listener, waiting: Waiting) {
        if let Some(entry) = self.entry_mut(name) {
            *entry.by_address.entry(waiting.address).or_default() += 1;
            entry.waiting.push_back(waiting);
            let (waiting, backlog) = (entry.waiting.len(), entry.backlog);
            invariant!(waiting <= backlog as usize, "{waiting} requests are in a backlog of {backlog}");
        }
    }

    fn entry(&self, name: Listener) -> Option<&ServiceEntry> {
        let service = self.service_of.get(&name)?;
        self.by_service.get(service)?.iter().find(|entry| entry.name == name)
    }

    fn entry_mut(&mut self, name: Listener) -> Option<&mut ServiceEntry> {
        let service = self.service_of.get(&name)?;
        self.by_service.get_mut(service)?.iter_mut().find(|entry| entry.name == name)
    }

    /// Returns the number of pending requests of each listener. Numbers of removed listeners are copied from `counted`.
    pub(super) fn pending(&self, counted: &BTreeMap<Listener, u32>) -> BTreeMap<Listener, u32> {
        let without_listener = counted.iter().filter(|(name, _)| !self.service_of.contains_key(name));
        let with_waiting = self.by_service.values().flatten().filter(|entry| !entry.waiting.is_empty());
        with_waiting
            .map(|entry| (entry.name, entry.by_address.values().sum()))
            .chain(without_listener.map(|(name, count)| (*name, *count)))
            .collect()
    }

    /// True if a listener for the service covers `local`.
    pub(super) fn serves(&self, service: ServiceId, local: Gid) -> bool {
        self.by_service
            .get(&service)
            .is_some_and(|entries| entries.iter().any(|entry| entry.on.covers(local)))
    }

    /// Removes a request from the backlog of a listener.
    pub(super) fn release(&mut self, name: Listener, id: CommId) {
        let Some(entry) = self.entry_mut(name) else { return };
        let Some(at) = entry.waiting.iter().position(|waiting| waiting.id == id) else { return };
        let Some(Waiting { address, .. }) = entry.waiting.remove(at) else { return };
        invariant!(entry.by_address.contains_key(&address), "a request of {address} was not counted");
        if let Some(count) = entry.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                entry.by_address.remove(&address);
            }
        }
    }
}
