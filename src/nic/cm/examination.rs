//! Requests for the peer's QP of a connection (IBTA 12.9.8.3.1).
//!
//! Such a request means that the peer has restarted and has forgotten the connection, or that another host or another
//! user of the peer's host has named the QP. The manager therefore examines the connection before it believes the
//! request:
//!
//! ```text
//!  0 s               the request arrives, and is not answered
//!  0.1, 0.4, 0.7 s   the peer's QP is asked, unless a packet of the connection has arrived since
//!  1 s               no packet: the request is refused as stale, and the connection ends
//! ```
//!
//! A connection that is alive stays. Requests for its QP are dropped for the rest of the second, so that they cause
//! three packets a second at most.
//!
//! A connection that is not established, or no longer, is not examined: the request is refused, and the manager repeats
//! the message that the connection waits for an answer to. A peer that has restarted answers a REP with a REJ, and a
//! DREQ with a DREP.

use std::collections::{BTreeMap, VecDeque};

use roxie_base::time::Nanos;
use roxie_wire::cm::{Ari, CmMessage, CommId, Kind, Mra, PrivateData, RejReason, Req, Stage};
use roxie_wire::{Gid, Qpn};

use super::Route;
use super::connection::{ConnectionState, span};
use super::manager::Manager;
use super::transitions::Cause;

/// Times of the questions to the NIC after the request, and of the last one, which asks the peer nothing.
const STEPS: [Nanos; 4] =
    [Nanos::from_millis(100), Nanos::from_millis(400), Nanos::from_millis(700), Nanos::from_millis(1000)];
/// Maximum number of connections that are examined at a time, and whose peer was not heard yet.
const MOST: usize = 256;
/// Timeout code of an examination, 1.07 s. A requester that waits less for an answer gets an MRA with it.
const TIMEOUT_CODE: u8 = 18;

/// The examination of a connection.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    since: Nanos,
    /// Number of questions to the NIC since the first.
    queries: usize,
    is_alive: bool,
    /// The request to refuse if the peer is silent. `None`: it was a REP, which is refused already.
    request: Option<SuspectRequest>,
}

/// Facts for the REJ of a request.
#[derive(Clone, Debug)]
struct SuspectRequest {
    tid: u64,
    req: Box<Req>,
    route: Route,
}

/// A question of the manager to the NIC: has a packet of the connection arrived since the last question?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Examination {
    /// The connection.
    pub id: CommId,
    /// Its local QP.
    pub qpn: Qpn,
    /// If no packet has arrived, the QP must ask the peer for one.
    pub probes_peer: bool,
    /// 0 for the first question: its answer is about the time before the request.
    step: usize,
    /// When the request arrived: an answer is of no use to a later examination of the connection.
    since: Nanos,
}

impl Suspicion {
    /// True until the peer is heard: such examinations are bounded.
    pub(super) fn is_open(&self) -> bool {
        !self.is_alive
    }
}

/// Connections that are examined, until the peer is heard, with the peer's address.
#[derive(Debug, Default)]
pub(super) struct OpenExaminations {
    /// The oldest examination comes first.
    by_age: VecDeque<(CommId, Gid)>,
    by_address: BTreeMap<Gid, u32>,
}

impl OpenExaminations {
    /// Returns the examination that gives its place to one of `address`: the oldest of the address with the most
    /// places, if `address` has at least two places fewer. `None`: there is a free place. `Err`: there is none.
    fn make_place(&self, address: Gid) -> Result<Option<CommId>, ()> {
        if self.by_age.len() < MOST {
            return Ok(None);
        }
        let places = |address: &Gid| self.by_address.get(address).copied().unwrap_or_default();
        let most = self.by_address.values().copied().max().unwrap_or_default();
        if most <= places(&address) + 1 {
            return Err(());
        }
        let oldest = self.by_age.iter().find(|(_, address)| places(address) == most);
        oldest.map(|(id, _)| Some(*id)).ok_or(())
    }

    fn add(&mut self, id: CommId, address: Gid) {
        self.by_age.push_back((id, address));
        *self.by_address.entry(address).or_default() += 1;
        invariant!(
            self.by_age.len() <= MOST,
            "{} connections are examined, at most {MOST}",
            self.by_age.len()
        );
    }

    pub(super) fn remove(&mut self, id: CommId) {
        let Some(at) = self.by_age.iter().position(|(examined, _)| *examined == id) else { return };
        let Some((_, address)) = self.by_age.remove(at) else { return };
        invariant!(self.by_address.contains_key(&address), "an examination of {address} was not counted");
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Returns the number of examinations, and the number of each address.
    pub(super) fn counts(&self) -> (usize, &BTreeMap<Gid, u32>) {
        (self.by_age.len(), &self.by_address)
    }
}

impl Manager {
    /// Returns the next question to the NIC, for [`examined`](Manager::examined).
    pub fn poll_examination(&mut self) -> Option<Examination> {
        self.examinations.pop_front()
    }

    /// Takes the NIC's answer: a packet of the connection has arrived, or none has.
    pub fn examined(&mut self, now: Nanos, examination: &Examination, has_heard: bool) {
        let id = examination.id;
        let Some(connection) = self.table.get_mut(id) else { return };
        let Some(suspicion) = connection.suspicion.as_mut() else { return };
        if examination.step == 0 || examination.since != suspicion.since || suspicion.is_alive {
            return;
        }
        if has_heard {
            suspicion.is_alive = true;
            let end = suspicion.since + STEPS[STEPS.len() - 1];
            self.open_examinations.remove(id);
            self.counters.peers_alive += 1;
            return self.set_timer(id, end);
        }
        if examination.step == STEPS.len() {
            self.end_stale(now, id);
        }
    }

    /// Handles a message that names the QP of this connection's peer, perhaps a request. Begins to examine an
    /// established connection. A request is dropped if the connection is examined already, or too many are.
    pub(super) fn examine(&mut self, now: Nanos, id: CommId, request: Option<(u64, Req, Route)>) {
        let Some(connection) = self.table.get(id) else { return };
        if connection.state != ConnectionState::Established {
            if let Some((tid, req, route)) = request {
                self.refuse_req(tid, &req, route, RejReason::STALE, Ari::NONE);
            }
            return self.send_again_to_suspect(id);
        }
        let address = connection.route.remote;
        let place =
            if connection.suspicion.is_some() { Err(()) } else { self.open_examinations.make_place(address) };
        let Ok(place) = place else {
            self.counters.names_connected_qp += u64::from(request.is_some());
            return;
        };
        if let Some(other) = place {
            self.stop_examining(other);
        }
        if let Some((tid, req, route)) = &request
            && span(req.remote_cm_response_timeout, TIMEOUT_CODE) < STEPS[STEPS.len() - 1]
        {
            self.send_mra_of_request(*tid, req, *route);
        }
        let Some(connection) = self.table.get_mut(id) else { return };
        let request = request.map(|(tid, req, route)| SuspectRequest { tid, req: Box::new(req), route });
        let suspicion = Suspicion { since: now, queries: 0, is_alive: false, request };
        connection.suspicion = Some(Box::new(suspicion));
        let qpn = connection.local_qpn;
        self.open_examinations.add(id, address);
        self.examinations.push_back(Examination { id, qpn, probes_peer: false, step: 0, since: now });
        self.set_timer(id, now + STEPS[0]);
    }

    /// Ends the examination of a connection, which stays.
    fn stop_examining(&mut self, id: CommId) {
        self.cancel_timer(id);
        self.open_examinations.remove(id);
        let suspicion = self.table.get_mut(id).and_then(|connection| connection.suspicion.take());
        self.counters.names_connected_qp +=
            u64::from(suspicion.is_some_and(|suspicion| suspicion.request.is_some()));
    }

    /// Sends an MRA for a request that is not answered within the time that it allows. The request has no ID here.
    fn send_mra_of_request(&mut self, tid: u64, req: &Req, route: Route) {
        let mra = Mra {
            local_comm_id: CommId(0),
            remote_comm_id: req.local_comm_id,
            message: Stage::Req,
            service_timeout: TIMEOUT_CODE,
            private_data: PrivateData::EMPTY,
        };
        self.send(route, tid, &CmMessage::Mra(mra));
    }

    /// Repeats the message that a connection waits for an answer to. A peer that does not know the connection ends it
    /// by its answer, and its next request is then accepted.
    fn send_again_to_suspect(&mut self, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        match connection.state {
            ConnectionState::RepSent | ConnectionState::MraRepRcvd => {
                // To an address that has confirmed nothing, this message and the REJ that ends the wait.
                connection.budget = connection.budget.map(|left| left.max(2));
                self.send_again(id, Kind::Rep);
            }
            ConnectionState::DreqSent => self.send_again(id, Kind::Dreq),
            _ => {}
        }
    }

    /// Continues an examination after its timer has expired.
    pub(super) fn examine_further(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Some(suspicion) = connection.suspicion.as_mut() else { return };
        if suspicion.is_alive {
            self.counters.names_connected_qp += u64::from(suspicion.request.is_some());
            connection.suspicion = None;
            return;
        }
        suspicion.queries = (suspicion.queries + 1).min(STEPS.len());
        let step = suspicion.queries;
        let queries_peer = step < STEPS.len();
        let (qpn, since) = (connection.local_qpn, suspicion.since);
        self.examinations.push_back(Examination { id, qpn, probes_peer: queries_peer, step, since });
        // A manager that is late gives the peer as much time for each answer.
        if let Some(next) = STEPS.get(step) {
            self.set_timer(id, now + (*next - STEPS[step - 1]));
        }
    }

    /// Ends a connection with a silent peer. Its QP may be connected again immediately.
    fn end_stale(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Some(suspicion) = connection.suspicion.take() else { return };
        let key = connection.connected_key();
        connection.connected = None;
        self.open_examinations.remove(id);
        self.forget_peer_qp(key, id);
        if let Some(SuspectRequest { tid, req, route }) = suspicion.request {
            self.refuse_req(tid, &req, route, RejReason::STALE, Ari::NONE);
        }
        self.send_dreq(now, id, Cause::Stale, PrivateData::EMPTY);
    }
}
