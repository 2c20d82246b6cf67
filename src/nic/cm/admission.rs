//! Room for requests: the listener's backlog, the share of an address, and the table.

use roxie_wire::cm::{CommId, Kind};
use roxie_wire::{Gid, ServiceId};

use super::connection::Connection;
use super::listeners::Admission;
use super::manager::Manager;
use super::transitions::Cause;
use super::{Event, Listener, Route, WhyUnreachable};

impl Manager {
    /// Looks for a listener, and for room in its backlog and in the tables. `None`: the request is dropped.
    /// `Some(None)`: there is no listener.
    pub(super) fn admit(&mut self, service: ServiceId, route: &Route) -> Option<Option<Listener>> {
        if self.events.len() >= self.config.limits.events {
            self.counters.events_full += 1;
            return None;
        }
        if self.half_open.get(&route.remote).is_some_and(|count| *count >= self.config.limits.half_open) {
            self.counters.address_full += 1;
            return None;
        }
        if self.table.is_full() && !self.evict_oldest() {
            self.counters.table_full += 1;
            return None;
        }
        match self.listeners.admit(service, route.local) {
            Admission::Taken(listener) => Some(Some(listener)),
            Admission::NoListener => Some(None),
            Admission::BacklogFull => {
                self.counters.backlog_full += 1;
                None
            }
        }
    }

    pub(super) fn count_half_open(&mut self, address: Gid, more: bool) {
        let count = self.half_open.entry(address).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.half_open.remove(&address);
        }
    }

    /// Adds a candidate for eviction: an accepted connection without a message from its peer since, or an abandoned
    /// one.
    pub(super) fn note_answered(&mut self, id: CommId) {
        // Drop outdated entries: most connections are established or gone by now.
        if self.answered.len() >= 2 * self.table.limit() as usize {
            let table = &self.table;
            self.answered.retain(|id| table.get(*id).is_some_and(Connection::is_evictable));
        }
        self.answered.push_back(id);
    }

    /// Makes room in a full table. Evicts the oldest connection that is half-open, or lingers without an owner. The
    /// peer of a half-open one has sent no message since our answer, although a live peer replies at once. The evicted
    /// peer is not notified. Returns false if there is no candidate.
    fn evict_oldest(&mut self) -> bool {
        while let Some(id) = self.answered.pop_front() {
            let Some(connection) = self.table.get(id).filter(|c| c.is_evictable()) else { continue };
            if !connection.orphan {
                let why = WhyUnreachable::Silent { asked: connection.asked() };
                self.emit(Event::Unreachable { id, unanswered: Kind::Rep, why });
            }
            self.remove(id, Cause::Evicted);
            self.counters.evicted += 1;
            return true;
        }
        false
    }
}
