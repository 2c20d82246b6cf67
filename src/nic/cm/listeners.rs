//! Listeners by service and address.

use std::collections::BTreeMap;

use roxie_wire::{Gid, ServiceId};

use super::{CmError, ListenOn, Listener};

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Listener,
    on: ListenOn,
    backlog: u32,
    /// Number of requests that the consumer has not answered.
    pending: u32,
}

/// All listeners of a manager.
#[derive(Debug)]
pub(super) struct Listeners {
    by_service: BTreeMap<ServiceId, Vec<Entry>>,
    service_of: BTreeMap<Listener, ServiceId>,
    next: u32,
    limit: u32,
    version: u64,
}

/// Result of the search for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Taken(Listener),
    BacklogFull,
    NoListener,
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
        entries.push(Entry { name, on, backlog: backlog.max(1), pending: 0 });
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

    /// Finds the listener with the most specific match for `local`, and counts a request in its backlog.
    pub(super) fn admit(&mut self, service: ServiceId, local: Gid) -> Admission {
        let entries = self.by_service.get_mut(&service).map_or(&mut [][..], Vec::as_mut_slice);
        let closeness = |entry: &&mut Entry| match entry.on {
            ListenOn::Address(_) => 2,
            ListenOn::AnyIpv4 | ListenOn::AnyIpv6 => 1,
            ListenOn::Any => 0,
        };
        let closest = entries.iter_mut().filter(|entry| entry.on.covers(local)).max_by_key(closeness);
        match closest {
            None => Admission::NoListener,
            Some(entry) if entry.pending >= entry.backlog => Admission::BacklogFull,
            Some(entry) => {
                entry.pending += 1;
                Admission::Taken(entry.name)
            }
        }
    }

    /// Returns the number of pending requests of each listener. Numbers of removed listeners are copied from `counted`.
    pub(super) fn pending(&self, counted: &BTreeMap<Listener, u32>) -> BTreeMap<Listener, u32> {
        let gone = counted.iter().filter(|(name, _)| !self.service_of.contains_key(name));
        let kept = self.by_service.values().flatten().filter(|entry| entry.pending > 0);
        kept.map(|entry| (entry.name, entry.pending))
            .chain(gone.map(|(name, count)| (*name, *count)))
            .collect()
    }

    /// True if a listener for the service covers `local`.
    pub(super) fn serves(&self, service: ServiceId, local: Gid) -> bool {
        self.by_service
            .get(&service)
            .is_some_and(|entries| entries.iter().any(|entry| entry.on.covers(local)))
    }

    /// Releases the place of an answered or removed request in the backlog.
    pub(super) fn release(&mut self, name: Listener) {
        let Some(service) = self.service_of.get(&name) else { return };
        let entries = self.by_service.get_mut(service).map_or(&mut [][..], Vec::as_mut_slice);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name == name) {
            entry.pending = entry.pending.saturating_sub(1);
        }
    }
}
