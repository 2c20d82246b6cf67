//! Room for requests: the listener's backlog, the share of an address, and the table.

use std::collections::BTreeMap;

use roxie_base::time::Nanos;
use roxie_wire::cm::{CommId, Kind};
use roxie_wire::{Gid, ServiceId};

use super::connection::{Connection, ConnectionState, RemoteKey};
use super::listeners::{BacklogPlace, YOUNG};
use super::manager::Manager;
use super::transitions::Cause;
use super::{CmError, Event, ListenOn, Listener, Route, WhyUnreachable};

/// Least response time of a peer that is believed.
const LEAST_PATIENCE: Nanos = Nanos::from_millis(2000);
/// Time for which a dropped request is remembered, at least: Linux repeats one after 4.3 s.
const REMEMBERED: Nanos = Nanos::from_millis(10_000);
/// Number of dropped requests that are remembered, at least, for less time.
const DROPPED: usize = 1 << 15;

/// Requests that were dropped, so that their repetitions are known.
///
/// An honest peer repeats its request a few times. A flood that names random addresses repeats none, or a few thousand
/// over and over.
#[derive(Debug, Default)]
pub(super) struct DroppedRequests {
    /// Number of dropped copies.
    recent: BTreeMap<RemoteKey, u8>,
    older: BTreeMap<RemoteKey, u8>,
    begun: Nanos,
}

impl DroppedRequests {
    /// Counts a dropped copy, or with `had_time` gives a request that has lost its place the least urgency.
    fn add(&mut self, now: Nanos, key: &RemoteKey, had_time: bool) {
        let copies = if had_time { u8::MAX } else { self.copies(key).saturating_add(1) };
        if self.recent.len() >= DROPPED || self.begun + REMEMBERED <= now {
            self.older = std::mem::take(&mut self.recent);
            self.begun = now;
        }
        self.recent.insert(*key, copies);
    }

    fn copies(&self, key: &RemoteKey) -> u8 {
        self.recent.get(key).or_else(|| self.older.get(key)).copied().unwrap_or_default()
    }

    /// Returns the urgency of a request: the first three repetitions have the highest, then a new request, then
    /// further repetitions. The fewer repetitions, the more urgent.
    fn urgency(&self, key: &RemoteKey) -> u8 {
        match self.copies(key) {
            0 => u8::MAX - 3,
            copies @ 1..=3 => u8::MAX - copies + 1,
            copies => u8::MAX - copies,
        }
    }
}

impl Manager {
    /// Listens for requests. At most `backlog` (at least 1) requests may wait for the consumer's answer. Further ones
    /// are dropped and will be retransmitted. Requests that arrived shortly before are processed by the next
    /// `handle_timeouts`.
    ///
    /// # Errors
    /// If the address is listened on already, or the maximum number of listeners is reached.
    pub fn listen(&mut self, service: ServiceId, on: ListenOn, backlog: u32) -> Result<Listener, CmError> {
        let listener = self.listeners.add(service, on, backlog, false)?;
        self.recheck_early();
        Ok(listener)
    }

    /// As [`listen`](Manager::listen). A request keeps its place in the backlog until its peer confirms the answer, so
    /// that `backlog` limits all half-open connections of the service.
    /// [`Event::Unreachable`](super::Event::Unreachable) reports those that lose their place.
    ///
    /// # Errors
    /// The errors of [`listen`](Manager::listen).
    pub fn listen_until_confirmed(
        &mut self,
        service: ServiceId,
        on: ListenOn,
        backlog: u32,
    ) -> Result<Listener, CmError> {
        let listener = self.listeners.add(service, on, backlog, true)?;
        self.recheck_early();
        Ok(listener)
    }

    /// Takes a request out of the backlog of its listener, because the consumer has it now. From then on the consumer
    /// alone decides how long it takes.
    pub fn take(&mut self, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.state.is_pending()
            && let Some(place) = connection.place.take_if(|place| !place.until_confirmed)
        {
            self.listeners.release(place.listener, id);
            self.cancel_timer(id);
        }
    }

    /// Stops listening. Pending requests remain and must be answered. Returns false if there was no such listener.
    pub fn stop_listening(&mut self, listener: Listener) -> bool {
        self.listeners.remove(listener)
    }

    /// Looks for a listener, and for room in its backlog and in the tables. `None`: the request is dropped.
    /// `Some(None)`: there is no listener.
    pub(super) fn admit(
        &mut self,
        now: Nanos,
        key: &RemoteKey,
        service: ServiceId,
        route: &Route,
    ) -> Option<Option<BacklogPlace>> {
        let urgency = self.dropped.urgency(key);
        let admitted = self.find_place(now, urgency, service, route);
        if admitted.is_none() {
            self.dropped.add(now, key, false);
        }
        admitted
    }

    fn find_place(
        &mut self,
        now: Nanos,
        urgency: u8,
        service: ServiceId,
        route: &Route,
    ) -> Option<Option<BacklogPlace>> {
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
        let Some(place) = self.listeners.find(service, route.local) else { return Some(None) };
        let place = BacklogPlace { urgency, ..place };
        match self.listeners.make_place(place, now, route.remote) {
            Ok(None) => {}
            Ok(Some(id)) => {
                if let Some(connection) = self.table.get(id)
                    && let Some(key) = connection.remote_key
                {
                    self.dropped.add(now, &key, connection.arrived + YOUNG <= now);
                }
                self.counters.evicted += 1;
                self.withdraw(id);
            }
            Err(()) => {
                self.counters.backlog_full += 1;
                return None;
            }
        }
        Some(Some(place))
    }

    /// Removes a request or half-open connection from its backlog and the table, without a message to its peer.
    pub(super) fn withdraw(&mut self, id: CommId) {
        let Some(connection) = self.table.get(id) else { return };
        if connection.state.is_pending() {
            self.emit(Event::Withdrawn { id });
            return self.remove(id, Cause::Withdrawn);
        }
        let why = WhyUnreachable::Silent { sent: connection.transmissions() };
        self.emit(Event::Unreachable { id, unanswered: Kind::Rep, why });
        self.remove(id, Cause::Evicted);
    }

    /// Returns the time for which a request stays in the backlog without a copy of it: two of its response times.
    pub(super) fn patience(&self, response_timeout: u8) -> Nanos {
        let response = self.granted(response_timeout).max(LEAST_PATIENCE);
        response + response
    }

    /// Sets the time by which a copy of a request must have come, while the request has a place in a backlog.
    pub(super) fn await_copy(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get(id) else { return };
        if connection.place.is_none() || !connection.state.is_pending() {
            return;
        }
        let granted = match connection.state {
            ConnectionState::MraReqSent => self.span(self.config.service_timeout),
            _ => Nanos::ZERO,
        };
        let deadline = now + connection.patience + granted;
        self.set_timer(id, deadline);
    }

    pub(super) fn count_half_open(&mut self, address: Gid, more: bool) {
        let count = self.half_open.entry(address).or_default();
        invariant!(more || *count > 0, "{address} has one half-open connection fewer than none");
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
        let (candidates, most) = (self.answered.len(), 2 * self.table.limit() as usize);
        invariant!(candidates <= most, "{candidates} candidates for eviction, at most {most}");
    }

    /// Makes room in a full table. Evicts the oldest connection that is half-open, or lingers without an owner. The
    /// peer of a half-open one has sent no message since our answer, although a live peer replies immediately. The
    /// evicted peer is not notified. Returns false if there is no candidate.
    fn evict_oldest(&mut self) -> bool {
        while let Some(id) = self.answered.pop_front() {
            let Some(connection) = self.table.get(id).filter(|c| c.is_evictable()) else { continue };
            if !connection.orphan {
                let why = WhyUnreachable::Silent { sent: connection.transmissions() };
                self.emit(Event::Unreachable { id, unanswered: Kind::Rep, why });
            }
            self.remove(id, Cause::Evicted);
            self.counters.evicted += 1;
            return true;
        }
        false
    }
}
