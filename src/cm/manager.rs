//! The manager: what it holds, what comes out of it, and how it sends.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::CmLimits;
use crate::time::Nanos;
use crate::timer::TimerWheel;
use crate::wire::cm::{Ari, CmMessage, CommId, Kind, PrivateData, Rej, RejReason, Stage};
use crate::wire::mad::{MAD_LEN, MadHeader};
use crate::wire::{Gid, Qpn, ServiceId};

use super::connection::{Connection, Outgoing, RemoteKey, State, span};
use super::counters::CmCounters;
use super::early::EarlyRequests;
use super::listeners::Listeners;
use super::table::Table;
use super::{CmError, Event, HowDisconnected, Keeper, ListenOn, Parameters, Route, WhyUnreachable};

/// How a manager behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many connections, listeners and waiting requests there may be.
    pub limits: CmLimits,
    /// What its IDs are made from: they are as hard to guess as it is.
    pub seed: u64,
    /// The GUID of its channel adapter: by it peers tell its connections from others'.
    pub ca_guid: u64,
    /// How long its QPs take to acknowledge: 4.096 us * 2^code (rxe: 15).
    pub ack_delay: u8,
    /// How long its consumer may take to answer, as an MRA says: 4.096 us * 2^code (Linux: 24).
    pub service_timeout: u8,
    /// How long a request for a service that nobody listens for waits before it is refused. Zero: not at all.
    pub grace: Nanos,
    /// How long a peer that says that nobody listens is asked again. Zero: not at all.
    pub insistence: Nanos,
    /// How often a host that was never heard of is sent a REQ again at most.
    pub silent_retries: u8,
    /// How soon a message is said again the first time, then after twice as long and so on, within its first wait for an answer: a lost one then
    /// costs that and not the peer's whole time to answer. It costs no try, and a peer that has had the message before says nothing to it. Zero: not at all.
    pub first_repeat: Nanos,
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
        }
    }
}

/// A message to be sent from QP1 to QP1, with the Q_Key [`GSI_QKEY`](crate::wire::mad::GSI_QKEY).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The way between the two hosts' QP1.
    pub route: Route,
    /// The management datagram of 256 bytes, ready for QP1.
    pub mad: [u8; MAD_LEN],
}

impl Transmit {
    /// It is a request of ours, to somebody who may not be there: a REQ or a SIDR_REQ.
    pub fn asks(&self) -> bool {
        let attribute = MadHeader::read(&self.mad).map(|header| header.attribute);
        matches!(attribute, Some(id) if id == Kind::Req as u16 || id == Kind::SidrReq as u16)
    }
}

/// A connection manager. See [`crate::cm`] for how it is driven.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: Config,
    pub(super) table: Table,
    pub(super) listeners: Listeners,
    /// Connections by the peer's names for them.
    pub(super) by_remote: BTreeMap<RemoteKey, CommId>,
    /// Connections by the peer's QP, while they may be in use.
    pub(super) by_peer_qp: BTreeMap<(Gid, u64, Qpn), CommId>,
    /// Half-open connections of each address.
    pub(super) half_open: BTreeMap<Gid, u32>,
    /// Those that were answered or given up, oldest first, and some that have become something else since.
    pub(super) answered: VecDeque<CommId>,
    pub(super) wheel: TimerWheel,
    pub(super) transmits: VecDeque<Transmit>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: CmCounters,
    pub(super) due: Vec<u32>,
    pub(super) early: EarlyRequests,
    pub(super) keeper: Option<Box<dyn Keeper>>,
    /// Connections and resolutions that wait for a first answer.
    pub(super) asking: u32,
    transactions: u32,
}

impl Manager {
    /// One with no connections.
    pub fn new(config: Config) -> Manager {
        let table = Table::new(config.limits.connections, config.seed);
        Manager {
            // The last one is for requests that came early.
            wheel: TimerWheel::new(table.limit() + 1),
            table,
            listeners: Listeners::new(config.limits.listeners),
            by_remote: BTreeMap::new(),
            by_peer_qp: BTreeMap::new(),
            half_open: BTreeMap::new(),
            answered: VecDeque::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            due: Vec::new(),
            early: EarlyRequests::new(),
            keeper: None,
            asking: 0,
            transactions: 0,
            config,
        }
    }

    /// Its IDs have these upper 8 bits from now on: other managers of this host have others, and messages are told apart by them. Before
    /// its first connection.
    pub fn set_unit(&mut self, unit: u8) {
        self.table.set_unit(unit);
    }

    /// True if they were set.
    pub fn has_unit(&self) -> bool {
        self.table.has_unit()
    }

    /// What is listened for, and where.
    pub fn services(&self) -> impl Iterator<Item = (ServiceId, ListenOn)> + '_ {
        self.listeners.services()
    }

    /// Another number, other services.
    pub fn services_version(&self) -> u64 {
        self.listeners.version()
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeouts`](Manager::handle_timeouts) must be called at the latest; at most early. `Nanos::MAX`: never.
    pub fn next_deadline(&self) -> Nanos {
        self.wheel.next_deadline()
    }

    /// Where a connection is. `None`: there is none of that name.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.table.get(id).map(|connection| connection.state)
    }

    /// What the two ends agreed on so far.
    ///
    /// # Errors
    /// If there is no such connection, or it is a resolution.
    pub fn parameters(&self, id: CommId) -> Result<Parameters, CmError> {
        const CALL: &str = "parameters";
        let connection = self.table.get(id).ok_or(CmError::Unknown { call: CALL, id })?;
        match connection.state {
            state @ (State::SidrReqSent | State::SidrReqRcvd) => {
                Err(CmError::State { call: CALL, id, state })
            }
            _ => Ok(connection.parameters),
        }
    }

    /// Connections and resolutions that are known, those that linger included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Their names, in no order that means anything.
    pub fn ids(&self) -> impl Iterator<Item = CommId> + '_ {
        self.table.ids()
    }

    /// Listeners.
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// True while a peer is asked that may not be there: [`handle_undelivered`](Manager::handle_undelivered) has something to say then.
    pub fn is_asking(&self) -> bool {
        self.asking > 0
    }

    /// What was counted.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// How it was set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How long a timeout code of a peer lasts.
    pub(super) fn span(&self, code: u8) -> Nanos {
        span(code, self.config.limits.timeout_code)
    }

    /// How long a timeout code of a request lasts for what it takes a place.
    pub(super) fn granted(&self, code: u8) -> Nanos {
        span(code, self.config.limits.granted_code.min(self.config.limits.timeout_code))
    }

    /// A transaction ID that was not used for long.
    pub(super) fn new_tid(&mut self, id: CommId) -> u64 {
        self.transactions = self.transactions.wrapping_add(1);
        u64::from(self.transactions) << 32 | u64::from(id.0)
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Sends a message that nobody keeps.
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

    /// Sends a connection's message, and keeps it for when it is needed again.
    pub(super) fn send_and_keep(&mut self, id: CommId, message: &CmMessage) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let outgoing = Outgoing { kind: message.kind(), mad: message.to_mad(connection.tid) };
        let (route, kind, mad) = (connection.route, outgoing.kind, outgoing.mad);
        connection.outgoing = Some(outgoing);
        self.put(route, kind, mad, false);
    }

    /// Sends what was kept once more, if it is of this kind.
    pub(super) fn send_again(&mut self, id: CommId, kind: Kind) {
        let Some(connection) = self.table.get(id) else { return };
        if let Some(outgoing) = connection.outgoing.as_ref().filter(|outgoing| outgoing.kind == kind) {
            let (route, mad) = (connection.route, outgoing.mad);
            self.put(route, kind, mad, true);
        }
    }

    /// Waits for an answer from now on, for the connection's patience.
    pub(super) fn await_answer(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.retries_left = connection.max_retries;
        connection.repeats = 0;
        connection.answer_due = now + connection.patience;
        connection.pause = if connection.max_retries == 0 { Nanos::ZERO } else { self.config.first_repeat };
        self.wait_on(now, id);
    }

    /// Waits until the message is to be said again, or its time is up.
    pub(super) fn wait_on(&mut self, now: Nanos, id: CommId) {
        // A stranger who floods shall not have two replies for each of its requests.
        let crowded = self.table.len() > self.table.limit() as usize / 2;
        let Some(connection) = self.table.get_mut(id) else { return };
        if crowded && connection.state == State::RepSent {
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

    /// It is asked again at a time of its own, since there was an answer, which costs no try.
    pub(super) fn ask_again_at(&mut self, id: CommId, deadline: Nanos) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.retries_left = connection.retries_left.saturating_add(1);
            connection.pause = Nanos::ZERO;
        }
        self.set_timer(id, deadline);
    }

    pub(super) fn set_timer(&mut self, id: CommId, deadline: Nanos) {
        if let Some(index) = self.table.index(id) {
            self.wheel.set(index.into(), deadline);
        }
    }

    pub(super) fn cancel_timer(&mut self, id: CommId) {
        if let Some(index) = self.table.index(id) {
            self.wheel.cancel(index.into());
        }
    }

    /// Goes to a state other than TimeWait. A request that was pending is not any more when it is answered.
    pub(super) fn set_state(&mut self, id: CommId, state: State) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let was_half_open = connection.is_half_open();
        let before = std::mem::replace(&mut connection.state, state);
        let (address, is_half_open) = (connection.route.remote, connection.is_half_open());
        self.asking = self.asking + u32::from(state.is_asking()) - u32::from(before.is_asking());
        if !state.is_pending()
            && let Some(listener) = connection.listener.take()
        {
            self.listeners.release(listener);
        }
        if was_half_open && !is_half_open {
            self.count_half_open(address, false);
        }
        self.bequeath(id);
    }

    /// Sends a REJ on behalf of a connection, and keeps it to say it again.
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

    /// That an answer did not come. It names our adapter, since the peer may not know our name for the connection.
    pub(super) fn send_rej_timeout(&mut self, id: CommId, message: Stage) {
        let ari = Ari::new(&self.config.ca_guid.to_be_bytes());
        self.send_rej(id, message, RejReason::TIMEOUT, ari, PrivateData::EMPTY);
    }

    /// Both ends have agreed that it is over: the consumer hears of it, and once more when nothing is under way.
    pub(super) fn disconnected(&mut self, now: Nanos, id: CommId, how: HowDisconnected) {
        let Some(connection) = self.table.get(id) else { return };
        if !connection.orphan {
            self.emit(Event::Disconnected { id, how });
        }
        self.linger(now, id);
    }

    /// It is over for the consumer; what may still come of it is dealt with for a while.
    pub(super) fn abandon(&mut self, now: Nanos, id: CommId) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.orphan = true;
            self.linger(now, id);
            self.note_answered(id);
        }
    }

    fn linger(&mut self, now: Nanos, id: CommId) {
        self.set_state(id, State::TimeWait);
        let Some(connection) = self.table.get_mut(id) else { return };
        let deadline = now + connection.linger;
        let key = connection.connected_key();
        self.forget_peer_qp(key, id);
        self.set_timer(id, deadline);
    }

    fn forget_peer_qp(&mut self, key: Option<(Gid, u64, Qpn)>, id: CommId) {
        if let Some(key) = key
            && self.by_peer_qp.get(&key) == Some(&id)
        {
            self.by_peer_qp.remove(&key);
        }
    }

    /// Forgets a connection altogether.
    pub(super) fn remove(&mut self, id: CommId) {
        self.cancel_timer(id);
        let Some(connection) = self.table.remove(id) else { return };
        if connection.is_half_open() {
            self.count_half_open(connection.route.remote, false);
        }
        self.asking -= u32::from(connection.state.is_asking());
        if let Some(listener) = connection.listener {
            self.listeners.release(listener);
        }
        if let Some(key) = connection.remote_key {
            self.by_remote.remove(&key);
        }
        self.forget_peer_qp(connection.connected_key(), id);
        self.bequeath(id);
    }

    /// Takes a new connection in.
    ///
    /// # Errors
    /// If the table is full.
    pub(super) fn insert(&mut self, connection: Connection) -> Result<CommId, CmError> {
        let (limit, asks) = (self.table.limit(), connection.state.is_asking());
        let half_open = connection.is_half_open().then_some(connection.route.remote);
        let id = self.table.insert(connection).ok_or(CmError::Full { what: "connections", limit })?;
        self.asking += u32::from(asks);
        if let Some(address) = half_open {
            self.count_half_open(address, true);
        }
        self.bequeath(id);
        Ok(id)
    }

    fn count_half_open(&mut self, address: Gid, more: bool) {
        let count = self.half_open.entry(address).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.half_open.remove(&address);
        }
    }

    /// A half-made connection was answered, and its peer has said nothing of it yet; or it is over for the consumer.
    pub(super) fn note_answered(&mut self, id: CommId) {
        // Most have become connections, or gone.
        if self.answered.len() >= 2 * self.table.limit() as usize {
            let table = &self.table;
            self.answered.retain(|id| table.get(*id).is_some_and(Connection::may_make_room));
        }
        self.answered.push_back(id);
    }

    /// Makes room in a full table: of the connections that were answered and whose peers have said nothing since, and of those that linger and
    /// nobody knows any more, the oldest goes. A peer that is there says something as soon as the answer has come. The one that goes is told nothing. False: there is none.
    pub(super) fn make_room(&mut self) -> bool {
        while let Some(id) = self.answered.pop_front() {
            let Some(connection) = self.table.get(id).filter(|c| c.may_make_room()) else { continue };
            if !connection.orphan {
                let why = WhyUnreachable::Silent { asked: connection.asked() };
                self.emit(Event::Unreachable { id, unanswered: Kind::Rep, why });
            }
            self.remove(id);
            self.counters.evicted += 1;
            return true;
        }
        false
    }
}
