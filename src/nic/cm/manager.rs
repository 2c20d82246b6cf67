//! The manager: its state, its outputs, and the sending of messages.

use std::collections::{BTreeMap, VecDeque};

use crate::timer::TimerWheel;
use roxie_base::limits::CmLimits;
use roxie_base::time::Nanos;
use roxie_wire::cm::{Ari, CmMessage, CommId, Kind, PrivateData, Rej, RejReason, Stage};
use roxie_wire::mad::{MAD_LEN, MadHeader};
use roxie_wire::{Gid, Qpn, ServiceId};

use super::admission::DroppedRequests;
use super::connection::{Connection, ConnectionState, Outgoing, RemoteKey, span};
use super::counters::CmCounters;
use super::early::EarlyRequests;
use super::examination::{Examination, OpenExaminations};
use super::listeners::{BacklogPlace, Listeners, Waiting};
use super::table::Table;
use super::transitions::{self, Cause};
use super::unproven::ProvenAddresses;
use super::{CmError, Event, HandoverStore, HowDisconnected, ListenOn, Parameters, Route};

/// Configuration of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Limits on connections, listeners and waiting requests.
    pub limits: CmLimits,
    /// Secret from which IDs are derived.
    pub seed: u64,
    /// GUID of the channel adapter, by which peers distinguish its connections from other adapters' connections.
    pub ca_guid: u64,
    /// Time that local QPs take to acknowledge: 4.096 us * 2^code (rxe: 15).
    pub ack_delay: u8,
    /// Time that the consumer may take to answer, sent in MRAs: 4.096 us * 2^code (Linux: 24).
    pub service_timeout: u8,
    /// Time that a request waits for a listener before it is refused. Zero: refused immediately.
    pub grace: Nanos,
    /// Time during which a request is repeated although the peer has no listener. Zero: not repeated.
    pub insistence: Nanos,
    /// Maximum number of retries of a REQ to an unknown host.
    pub silent_retries: u8,
    /// Delay before a message is repeated within its first wait for an answer, doubled each time. A lost message so
    /// costs this delay, not the peer's whole response timeout. Repetitions use no retry, and a peer that has the
    /// message ignores them. Zero: no repetition.
    pub first_repeat: Nanos,
    /// Maximum number of messages for an accepted request, while its address has never confirmed a connection. Any host
    /// may be named as the source of a request.
    pub unproven_messages: u8,
    /// Offer selective repeat to peers, and agree to it, on RC.
    pub selective_repeat: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            limits: CmLimits::default(),
            seed: 0,
            ca_guid: 0,
            ack_delay: 15,
            service_timeout: 24,
            grace: Nanos::from_millis(100),
            insistence: Nanos::from_millis(250),
            silent_retries: 2,
            first_repeat: Nanos::from_millis(250),
            unproven_messages: 3,
            selective_repeat: false,
        }
    }
}

/// A message to send from QP1 to QP1, with the Q_Key [`GSI_QKEY`](roxie_wire::mad::GSI_QKEY).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Path between the QP1s of the two hosts.
    pub route: Route,
    /// The management datagram, 256 bytes.
    pub mad: [u8; MAD_LEN],
}

impl Transmit {
    /// True for a request to a host that may not exist: a REQ or a SIDR_REQ.
    pub fn is_request(&self) -> bool {
        let attribute = MadHeader::read(&self.mad).map(|header| header.attribute);
        matches!(attribute, Some(id) if id == Kind::Req as u16 || id == Kind::SidrReq as u16)
    }
}

/// A connection manager. See [`crate::cm`] for the calls that drive it.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: Config,
    pub(super) table: Table,
    pub(super) listeners: Listeners,
    /// Connections by the peer's identifiers.
    pub(super) by_remote: BTreeMap<RemoteKey, CommId>,
    /// Connections by the peer's QP, while in use.
    pub(super) by_peer_qp: BTreeMap<(Gid, u64, Qpn), CommId>,
    /// Number of half-open connections of each address.
    pub(super) half_open: BTreeMap<Gid, u32>,
    /// Candidates for eviction: connections that were accepted or abandoned, oldest first. May hold outdated entries.
    pub(super) answered: VecDeque<CommId>,
    pub(super) wheel: TimerWheel,
    pub(super) transmits: VecDeque<Transmit>,
    pub(super) events: VecDeque<Event>,
    pub(super) examinations: VecDeque<Examination>,
    pub(super) open_examinations: OpenExaminations,
    pub(super) counters: CmCounters,
    pub(super) due: Vec<Option<CommId>>,
    pub(super) early: EarlyRequests,
    pub(super) proven: ProvenAddresses,
    pub(super) dropped: DroppedRequests,
    pub(super) handover_store: Option<Box<dyn HandoverStore>>,
    /// Number of connections and resolutions that wait for a first answer.
    pub(super) unanswered: u32,
    transactions: u32,
    /// Bits of the transitions so far.
    seen: u64,
}

impl Manager {
    /// Returns a manager without connections.
    pub fn new(config: Config) -> Manager {
        let table = Table::new(config.limits.connections, config.seed);
        Manager {
            // The additional timer is for requests that wait for a listener.
            wheel: TimerWheel::new(table.limit() + 1),
            table,
            listeners: Listeners::new(config.limits.listeners),
            by_remote: BTreeMap::new(),
            by_peer_qp: BTreeMap::new(),
            half_open: BTreeMap::new(),
            answered: VecDeque::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            examinations: VecDeque::new(),
            open_examinations: OpenExaminations::default(),
            counters: CmCounters::default(),
            due: Vec::new(),
            early: EarlyRequests::new(),
            proven: ProvenAddresses::default(),
            dropped: DroppedRequests::default(),
            handover_store: None,
            unanswered: 0,
            transactions: 0,
            seen: 0,
            config,
        }
    }

    /// Sets the upper 8 bits of all IDs. Other managers of this host use other bits, by which messages are routed. Must
    /// be called before the first connection.
    pub fn set_unit(&mut self, unit: u8) {
        self.table.set_unit(unit);
    }

    /// True if `set_unit` was called.
    pub fn has_unit(&self) -> bool {
        self.table.has_unit()
    }

    /// Returns the services of all listeners, with their addresses.
    pub fn services(&self) -> impl Iterator<Item = (ServiceId, ListenOn)> + '_ {
        self.listeners.services()
    }

    /// Returns a number that changes whenever [`services`](Manager::services) change.
    pub fn services_version(&self) -> u64 {
        self.listeners.version()
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the latest time for the next [`handle_timeouts`](Manager::handle_timeouts), or slightly earlier.
    /// `Nanos::MAX`: never.
    pub fn next_deadline(&self) -> Nanos {
        self.wheel.next_deadline()
    }

    /// Returns the state of a connection, or `None` if it does not exist.
    pub fn state(&self, id: CommId) -> Option<ConnectionState> {
        self.table.get(id).map(|connection| connection.state)
    }

    /// Returns the parameters agreed on so far.
    ///
    /// # Errors
    /// If the connection does not exist, or is a resolution.
    pub fn parameters(&self, id: CommId) -> Result<Parameters, CmError> {
        const CALL: &str = "parameters";
        let connection = self.table.get(id).ok_or(CmError::Unknown { call: CALL, id })?;
        match connection.state {
            state @ (ConnectionState::SidrReqSent | ConnectionState::SidrReqRcvd) => {
                Err(CmError::State { call: CALL, id, state })
            }
            _ => Ok(connection.parameters),
        }
    }

    /// Returns the number of connections and resolutions, lingering ones included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Returns the IDs of all connections, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = CommId> + '_ {
        self.table.ids()
    }

    /// Returns the number of listeners.
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// True while a request waits for its first answer. Only then does
    /// [`handle_undelivered`](Manager::handle_undelivered) have an effect.
    pub fn awaits_answer(&self) -> bool {
        self.unanswered > 0
    }

    /// Returns the counters.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the transitions so far, for [`unseen_transitions`](super::unseen_transitions).
    #[doc(hidden)]
    pub fn seen_transitions(&self) -> u64 {
        self.seen
    }

    fn note_transition(&mut self, from: ConnectionState, cause: Cause, to: Option<ConnectionState>) {
        let bit = transitions::bit(from, cause, to);
        debug_assert!(bit.is_some(), "no transition from {from:?} to {to:?} by {cause:?}");
        self.seen |= bit.unwrap_or_default();
    }

    /// Returns the duration of a peer's timeout code.
    pub(super) fn span(&self, code: u8) -> Nanos {
        span(code, self.config.limits.timeout_code)
    }

    /// Returns the duration of a timeout code for state that a peer's request occupies. More strictly limited than
    /// [`Manager::span`].
    pub(super) fn granted(&self, code: u8) -> Nanos {
        span(code, self.config.limits.granted_code.min(self.config.limits.timeout_code))
    }

    /// Returns a transaction ID that was not used recently.
    pub(super) fn new_tid(&mut self, id: CommId) -> u64 {
        self.transactions = self.transactions.wrapping_add(1);
        u64::from(self.transactions) << 32 | u64::from(id.0)
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Sends a message without keeping it for retransmission.
    pub(super) fn send(&mut self, route: Route, tid: u64, message: &CmMessage) {
        self.put(route, message.kind(), message.to_mad(tid), false);
    }

    fn put(&mut self, route: Route, kind: Kind, mad: [u8; MAD_LEN], again: bool) {
        if self.transmits.len() >= self.config.limits.transmits {
            self.counters.transmits_full += 1;
            return;
        }
        self.counters.count_sent(kind, again);
        self.transmits.push_back(Transmit { route, mad });
    }

    /// Sends a connection's message, and keeps it for retransmission.
    pub(super) fn send_and_keep(&mut self, id: CommId, message: &CmMessage) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let outgoing = Outgoing { kind: message.kind(), mad: message.to_mad(connection.tid) };
        let (route, kind, mad) = (connection.route, outgoing.kind, outgoing.mad);
        connection.outgoing = Some(outgoing);
        if connection.may_send() {
            self.put(route, kind, mad, false);
        }
    }

    /// Retransmits the kept message, if it is of this kind.
    pub(super) fn send_again(&mut self, id: CommId, kind: Kind) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if let Some(outgoing) = connection.outgoing.as_ref().filter(|outgoing| outgoing.kind == kind) {
            let (route, mad) = (connection.route, outgoing.mad);
            if connection.may_send() {
                self.put(route, kind, mad, true);
            }
        }
    }

    /// Starts to wait for an answer, with all retries left.
    pub(super) fn await_answer(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.retries_remaining = connection.max_retries;
        connection.repeats = 0;
        invariant!(connection.outgoing.is_some(), "{id:?} has sent nothing, and waits for an answer");
        connection.answer_due = now + connection.answer_timeout;
        connection.pause = if connection.max_retries == 0 { Nanos::ZERO } else { self.config.first_repeat };
        self.wait_on(now, id);
    }

    /// Sets the timer to the next repetition or the end of the wait, whichever is earlier.
    pub(super) fn wait_on(&mut self, now: Nanos, id: CommId) {
        // While the table is more than half full, REPs are not repeated, so that a flood of requests is not amplified.
        let crowded = self.table.len() > self.table.limit() as usize / 2;
        let Some(connection) = self.table.get_mut(id) else { return };
        if (crowded || connection.has_last_message()) && connection.state == ConnectionState::RepSent {
            connection.pause = Nanos::ZERO;
        }
        let soon = now + connection.pause;
        if connection.pause == Nanos::ZERO || soon >= connection.answer_due {
            connection.pause = Nanos::ZERO;
            let deadline = connection.answer_due;
            return self.set_timer(id, deadline);
        }
        self.set_timer(id, soon);
    }

    /// Sets a special time for the next retransmission, which costs no retry, because the peer or the network has
    /// answered.
    pub(super) fn repeat_at(&mut self, id: CommId, deadline: Nanos) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.retries_remaining = connection.retries_remaining.saturating_add(1);
            connection.pause = Nanos::ZERO;
        }
        self.set_timer(id, deadline);
    }

    pub(super) fn set_timer(&mut self, id: CommId, deadline: Nanos) {
        invariant!(deadline != Nanos::MAX, "{id:?} waits for ever");
        if let Some(index) = self.table.index(id) {
            self.wheel.set(index.into(), deadline);
        }
    }

    pub(super) fn cancel_timer(&mut self, id: CommId) {
        if let Some(index) = self.table.index(id) {
            self.wheel.cancel(index.into());
        }
    }

    /// Changes a connection's state. Updates the counts of pending and half-open requests.
    pub(super) fn set_state(&mut self, id: CommId, cause: Cause, state: ConnectionState) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let was_half_open = connection.is_half_open();
        let before = std::mem::replace(&mut connection.state, state);
        let (address, is_half_open) = (connection.route.remote, connection.is_half_open());
        invariant!(before != ConnectionState::TimeWait, "{id:?} lingers, and is to be in {state:?}");
        let released = if connection.keeps_place() { None } else { connection.place.take() };
        let examined = if state == ConnectionState::Established { None } else { connection.suspicion.take() };
        if before != state {
            self.note_transition(before, cause, Some(state));
        }
        if examined.is_some_and(|suspicion| suspicion.is_open()) {
            self.open_examinations.remove(id);
        }
        self.unanswered =
            self.unanswered + u32::from(state.awaits_answer()) - u32::from(before.awaits_answer());
        if let Some(place) = released {
            self.listeners.release(place.listener, id);
        }
        if was_half_open && !is_half_open {
            self.count_half_open(address, false);
        }
        if state == ConnectionState::Established {
            self.proven.add(address);
        }
        self.bequeath(id);
    }

    /// Sends a REJ for a connection, and keeps it for retransmission.
    pub(super) fn send_rej(
        &mut self,
        id: CommId,
        message: Stage,
        reason: RejReason,
        ari: Ari,
        private_data: PrivateData,
    ) {
        let Some(connection) = self.table.get(id) else { return };
        let rej = Rej {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            message,
            reason,
            ari,
            private_data,
        };
        self.send_and_keep(id, &CmMessage::Rej(rej));
    }

    /// Sends a REJ because of a missing answer. The REJ contains our adapter's GUID, since the peer may not know our
    /// ID.
    pub(super) fn send_rej_timeout(&mut self, id: CommId, message: Stage) {
        let ari = Ari::new(&self.config.ca_guid.to_be_bytes());
        self.send_rej(id, message, RejReason::TIMEOUT, ari, PrivateData::EMPTY);
    }

    /// Ends an established connection. The consumer gets `Disconnected` now, and `TimeWaitExit` later.
    pub(super) fn disconnected(&mut self, now: Nanos, id: CommId, cause: Cause, how: HowDisconnected) {
        let is_half_open = self.table.get(id).is_some_and(Connection::is_half_open);
        invariant!(!is_half_open, "{id:?} is disconnected, and was never established");
        let Some(connection) = self.table.get(id) else { return };
        if !connection.orphan {
            self.emit(Event::Disconnected { id, how });
        }
        self.linger(now, id, cause);
    }

    /// Detaches a connection from the consumer, and lets it linger to answer late messages.
    pub(super) fn abandon(&mut self, now: Nanos, id: CommId, cause: Cause) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.orphan = true;
            self.linger(now, id, cause);
            self.note_answered(id);
        }
    }

    fn linger(&mut self, now: Nanos, id: CommId, cause: Cause) {
        self.set_state(id, cause, ConnectionState::TimeWait);
        let Some(connection) = self.table.get_mut(id) else { return };
        let deadline = now + connection.linger;
        let key = connection.connected_key();
        self.forget_peer_qp(key, id);
        self.set_timer(id, deadline);
    }

    pub(super) fn forget_peer_qp(&mut self, key: Option<(Gid, u64, Qpn)>, id: CommId) {
        if let Some(key) = key
            && self.by_peer_qp.get(&key) == Some(&id)
        {
            self.by_peer_qp.remove(&key);
        }
    }

    /// Removes a connection completely.
    pub(super) fn remove(&mut self, id: CommId, cause: Cause) {
        self.cancel_timer(id);
        let Some(connection) = self.table.remove(id) else { return };
        self.note_transition(connection.state, cause, None);
        if connection.is_half_open() {
            self.count_half_open(connection.route.remote, false);
        }
        self.unanswered -= u32::from(connection.state.awaits_answer());
        if let Some(place) = connection.place {
            invariant!(connection.keeps_place(), "{id:?} in {:?} has a place in a backlog", connection.state);
            self.listeners.release(place.listener, id);
        }
        if let Some(key) = connection.remote_key {
            let named = self.by_remote.remove(&key);
            invariant!(named == Some(id), "the peer's names of {id:?} lead to {named:?}");
        }
        self.forget_peer_qp(connection.connected_key(), id);
        self.bequeath(id);
    }

    /// Inserts a new connection.
    ///
    /// # Errors
    /// If the table is full.
    pub(super) fn insert(&mut self, connection: Connection) -> Result<CommId, CmError> {
        let (limit, awaits_answer) = (self.table.limit(), connection.state.awaits_answer());
        let half_open = connection.is_half_open().then_some(connection.route.remote);
        let (address, since, place) = (connection.route.remote, connection.arrived, connection.place);
        let id = self.table.insert(connection).ok_or(CmError::Full { what: "connections", limit })?;
        self.unanswered += u32::from(awaits_answer);
        if let Some(address) = half_open {
            self.count_half_open(address, true);
        }
        if let Some(BacklogPlace { listener, urgency, .. }) = place {
            self.listeners.occupy(listener, Waiting { id, address, since, urgency });
        }
        self.bequeath(id);
        Ok(id)
    }
}
