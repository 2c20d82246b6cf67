//! What a peer's message does: a function for each message, an arm for each state.

use crate::time::Nanos;
use crate::verbs::{Mtu, Psn};
use crate::wire::cm::{
    Apr, AprStatus, Ari, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, PrivateData, Rej, RejReason, Rep,
    Req, Rtu, SidrRep, SidrReq, SidrStatus, Stage, Transport,
};
use crate::wire::{Qpn, ServiceId};

use super::connection::{Connection, RemoteKey, State, ack_timeout};
use super::listeners::Admission;
use super::manager::Manager;
use super::{Arrival, Event, HowDisconnected, Listener, Parameters, Route};

impl Manager {
    /// Takes in what QP1 received, behind the GRH.
    pub fn handle_mad(&mut self, now: Nanos, mad: &[u8], from: &Arrival) {
        let Ok((tid, message)) = CmMessage::read(mad) else {
            self.counters.not_cm += 1;
            return;
        };
        if from.src_qp != Qpn::GSI {
            self.counters.not_from_gsi += 1;
            return;
        }
        self.counters.count_received(message.kind());
        self.handle(now, tid, message, from.route);
    }

    pub(super) fn handle(&mut self, now: Nanos, tid: u64, message: CmMessage, route: Route) {
        match message {
            CmMessage::Req(m) => self.on_req(now, tid, m, route),
            CmMessage::Mra(m) => self.on_mra(now, &m, route),
            CmMessage::Rej(m) => self.on_rej(now, m, route),
            CmMessage::Rep(m) => self.on_rep(now, tid, m, route),
            CmMessage::Rtu(m) => self.on_rtu(&m, route),
            CmMessage::Dreq(m) => self.on_dreq(now, tid, &m, route),
            CmMessage::Drep(m) => self.on_drep(now, &m, route),
            CmMessage::SidrReq(m) => self.on_sidr_req(now, tid, m, route),
            CmMessage::SidrRep(m) => self.on_sidr_rep(now, m, route),
            CmMessage::Lap(m) => self.on_lap(tid, &m, route),
            // We never ask for an alternate path.
            CmMessage::Apr(_) => self.counters.out_of_state += 1,
        }
    }

    /// The connection that a message names by our name for it, if the message comes from its peer. `remote` is the peer's
    /// name, as the message has it; a connection that does not know it yet takes any.
    fn addressed(&mut self, local: CommId, remote: CommId, route: &Route) -> Option<State> {
        let Some(connection) = self.table.get_mut(local) else {
            self.counters.unknown_id += 1;
            return None;
        };
        if (connection.route.local, connection.route.remote) != (route.local, route.remote) {
            self.counters.not_from_peer += 1;
            return None;
        }
        if connection.remote_id != CommId(0) && connection.remote_id != remote {
            self.counters.unknown_id += 1;
            return None;
        }
        connection.heard = true;
        Some(connection.state)
    }

    fn on_req(&mut self, now: Nanos, tid: u64, req: Req, route: Route) {
        let key = RemoteKey {
            address: route.remote,
            ca_guid: req.local_ca_guid,
            comm_id: req.local_comm_id,
            resolution: false,
        };
        if let Some(&id) = self.by_remote.get(&key) {
            return self.on_req_again(now, id);
        }
        if let Some((reason, ari)) = objection(&req, &route) {
            return self.refuse_req(tid, &req, route, reason, ari);
        }
        let peer_qp = (route.remote, req.local_ca_guid, req.local_qpn);
        if let Some(&old) = self.by_peer_qp.get(&peer_qp) {
            self.refuse_req(tid, &req, route, RejReason::STALE, Ari::NONE);
            return self.is_stale(now, old);
        }
        let Some(listener) = self.admit(req.service_id, &route) else {
            return;
        };
        let Some(listener) = listener else {
            return self.is_early(now, tid, CmMessage::Req(req), route);
        };
        self.take_req(now, tid, req, route, listener, key);
    }

    /// Whether a request has a listener and a place. `None`: it is dropped. `Some(None)`: nobody listens.
    fn admit(&mut self, service: ServiceId, route: &Route) -> Option<Option<Listener>> {
        if self.events.len() >= self.config.limits.events {
            self.counters.events_full += 1;
            return None;
        }
        if self.half_open.get(&route.remote).is_some_and(|count| *count >= self.config.limits.half_open) {
            self.counters.address_full += 1;
            return None;
        }
        if self.table.is_full() && !self.make_room() {
            self.counters.table_full += 1;
            return None;
        }
        match self.listeners.admit(service, route.local) {
            Admission::Taken(listener) => Some(Some(listener)),
            Admission::NobodyListens => Some(None),
            Admission::BacklogFull => {
                self.counters.backlog_full += 1;
                None
            }
        }
    }

    fn take_req(
        &mut self,
        now: Nanos,
        tid: u64,
        req: Req,
        arrival: Route,
        listener: Listener,
        key: RemoteKey,
    ) {
        let path = &req.primary_path;
        // Both ends use what the request says of the path.
        let route = Route {
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            ..arrival
        };
        let parameters = Parameters {
            route,
            transport: req.transport,
            active: false,
            path_mtu: Mtu::from_code(req.path_mtu.into()).unwrap_or(Mtu::Mtu256),
            dest_qpn: Some(req.local_qpn),
            rq_psn: Psn::new(0),
            sq_psn: req.starting_psn,
            max_dest_rd_atomic: req.initiator_depth,
            max_rd_atomic: req.responder_resources,
            timeout: path.local_ack_timeout.max(1),
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            peer_srq: req.srq,
            peer_flow_control: req.end_to_end_flow_control,
        };
        let mut connection = Connection::new(State::ReqRcvd, route, parameters);
        connection.came = now;
        connection.tid = tid;
        connection.remote_id = req.local_comm_id;
        connection.remote_key = Some(key);
        connection.connected = Some((req.local_ca_guid, req.local_qpn));
        connection.listener = Some(listener);
        connection.linger = self.granted(parameters.timeout);
        // There and back is in the ACK timeout.
        connection.patience = self.granted(req.local_cm_response_timeout) + connection.linger;
        connection.max_retries = req.max_cm_retries.min(self.config.limits.granted_retries);
        let peer_qp = connection.connected_key();
        // There was room when it was admitted.
        let Ok(id) = self.insert(connection) else { return };
        self.by_remote.insert(key, id);
        if let Some(peer_qp) = peer_qp {
            self.by_peer_qp.insert(peer_qp, id);
        }
        self.emit(Event::Request { id, listener, route, request: Box::new(req) });
    }

    pub(super) fn refuse_req(&mut self, tid: u64, req: &Req, route: Route, reason: RejReason, ari: Ari) {
        let rej =
            Rej { remote_comm_id: req.local_comm_id, message: Stage::Req, reason, ari, ..Rej::default() };
        self.send(route, tid, &CmMessage::Rej(rej));
    }

    /// A REQ that came before (IBTA 12.9.8.5): what was lost is said again.
    fn on_req_again(&mut self, now: Nanos, id: CommId) {
        self.counters.count_duplicate(Kind::Req);
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            // The consumer takes its time.
            State::ReqRcvd | State::MraReqSent if !connection.is_hasty(now) => {
                self.send_mra(id, self.config.service_timeout, PrivateData::EMPTY);
            }
            State::RepSent | State::MraRepRcvd => self.send_again(id, Kind::Rep),
            // Our last word, if it was about this.
            State::TimeWait => self.send_again(id, Kind::Rej),
            // The peer has our REP, or is no passive side's peer: an old copy.
            State::ReqRcvd
            | State::MraReqSent
            | State::Established
            | State::DreqSent
            | State::DreqRcvd
            | State::ReqSent
            | State::RepWait
            | State::RepRcvd
            | State::MraRepSent
            | State::SidrReqSent
            | State::SidrReqRcvd => {}
        }
    }

    /// The peer connects a QP that was connected before: what it was connected to is history (IBTA 12.9.8.3.1).
    fn is_stale(&mut self, now: Nanos, id: CommId) {
        if self.table.get(id).is_some_and(|connection| connection.state == State::Established) {
            self.send_dreq(now, id, PrivateData::EMPTY);
        }
    }

    fn on_rep(&mut self, now: Nanos, tid: u64, rep: Rep, route: Route) {
        let id = rep.remote_comm_id;
        let other = |c: &Connection| {
            c.route.remote == route.remote && c.remote_id != CommId(0) && c.remote_id != rep.local_comm_id
        };
        // Gone, or connected by another reply: a copy of our request came when the first answer to it was over.
        if self.table.get(id).is_none_or(other) {
            self.counters.unknown_id += 1;
            let rej = refusal(&rep, RejReason::INVALID_COMM_ID);
            return self.send(route, tid, &CmMessage::Rej(rej));
        }
        let Some(state) = self.addressed(id, rep.local_comm_id, &route) else { return };
        match state {
            State::ReqSent | State::RepWait => self.take_rep(now, id, tid, rep, route),
            // The consumer takes its time.
            State::RepRcvd | State::MraRepSent => {
                self.counters.count_duplicate(Kind::Rep);
                if !self.table.get(id).is_some_and(|connection| connection.is_hasty(now)) {
                    self.send_mra(id, self.config.service_timeout, PrivateData::EMPTY);
                }
            }
            // Our RTU was lost.
            State::Established => {
                self.counters.count_duplicate(Kind::Rep);
                self.send_again(id, Kind::Rtu);
            }
            // Our last word, if it was a refusal.
            State::TimeWait => {
                self.counters.count_duplicate(Kind::Rep);
                self.send_again(id, Kind::Rej);
            }
            // The DREQ says more than an RTU would.
            State::DreqSent | State::DreqRcvd => self.counters.count_duplicate(Kind::Rep),
            // Nobody asked.
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::SidrReqSent
            | State::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    /// A REP that cannot be, to one of our requests: both ends hear of it.
    fn turn_down_rep(&mut self, now: Nanos, tid: u64, rep: &Rep, route: Route, reason: RejReason) {
        let id = rep.remote_comm_id;
        let rej = refusal(rep, reason);
        self.send(route, tid, &CmMessage::Rej(rej.clone()));
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.outgoing = None;
        if !connection.orphan {
            self.emit(Event::Rejected { id, reject: Box::new(rej) });
        }
        self.abandon(now, id);
    }

    fn take_rep(&mut self, now: Nanos, id: CommId, tid: u64, rep: Rep, route: Route) {
        let key = RemoteKey {
            address: route.remote,
            ca_guid: rep.local_ca_guid,
            comm_id: rep.local_comm_id,
            resolution: false,
        };
        if self.by_remote.get(&key).is_some_and(|other| *other != id) {
            // Two connections of one name.
            return self.turn_down_rep(now, tid, &rep, route, RejReason::DUPLICATE_COMM_ID);
        }
        let peer_qp = (route.remote, rep.local_ca_guid, rep.local_qpn);
        if let Some(&old) = self.by_peer_qp.get(&peer_qp) {
            self.turn_down_rep(now, tid, &rep, route, RejReason::STALE);
            return self.is_stale(now, old);
        }
        let ack_delay = rep.target_ack_delay;
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.came = now;
        connection.remote_id = rep.local_comm_id;
        connection.remote_key = Some(key);
        connection.connected = Some((rep.local_ca_guid, rep.local_qpn));
        let p = &mut connection.parameters;
        p.dest_qpn = Some(rep.local_qpn);
        p.sq_psn = rep.starting_psn;
        // No more than we offered and asked for.
        p.max_dest_rd_atomic = p.max_dest_rd_atomic.min(rep.initiator_depth);
        p.max_rd_atomic = p.max_rd_atomic.min(rep.responder_resources);
        p.timeout = ack_timeout(ack_delay, connection.packet_lifetime);
        p.rnr_retry = rep.rnr_retry_count;
        p.peer_srq = rep.srq;
        p.peer_flow_control = rep.end_to_end_flow_control;
        let (orphan, timeout) = (connection.orphan, p.timeout);
        let linger = self.span(timeout);
        if let Some(connection) = self.table.get_mut(id) {
            connection.linger = linger;
        }
        self.by_remote.insert(key, id);
        self.by_peer_qp.insert(peer_qp, id);
        self.cancel_timer(id);
        self.set_state(id, State::RepRcvd);
        if !orphan {
            self.emit(Event::Reply { id, reply: Box::new(rep) });
        }
    }

    fn on_rtu(&mut self, rtu: &Rtu, route: Route) {
        let id = rtu.remote_comm_id;
        let Some(state) = self.addressed(id, rtu.local_comm_id, &route) else { return };
        match state {
            State::RepSent | State::MraRepRcvd => self.establish(id, rtu.private_data),
            // Known already, by data or by the first copy.
            State::Established | State::DreqSent | State::DreqRcvd | State::TimeWait => {
                self.counters.count_duplicate(Kind::Rtu);
            }
            // No REP of ours is out.
            State::ReqSent
            | State::RepWait
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::SidrReqSent
            | State::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    pub(super) fn establish(&mut self, id: CommId, private_data: PrivateData) {
        self.cancel_timer(id);
        self.set_state(id, State::Established);
        if let Some(connection) = self.table.get_mut(id) {
            connection.outgoing = None;
        }
        self.emit(Event::Established { id, private_data });
    }

    fn on_mra(&mut self, now: Nanos, mra: &Mra, route: Route) {
        let id = mra.remote_comm_id;
        let Some(state) = self.addressed(id, mra.local_comm_id, &route) else { return };
        let next = match (state, mra.message) {
            (State::ReqSent, Stage::Req) => State::RepWait,
            (State::RepSent, Stage::Rep) => State::MraRepRcvd,
            // It was granted already, or the answer is here.
            (State::RepWait | State::RepRcvd | State::MraRepSent, Stage::Req)
            | (State::MraRepRcvd, Stage::Rep)
            | (State::Established, _) => {
                self.counters.count_duplicate(Kind::Mra);
                return;
            }
            _ => {
                self.counters.out_of_state += 1;
                return;
            }
        };
        let granted = self.span(mra.service_timeout);
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.pause = Nanos::ZERO;
        let deadline = now + granted + connection.patience;
        self.set_state(id, next);
        self.set_timer(id, deadline);
    }

    fn on_rej(&mut self, now: Nanos, rej: Rej, route: Route) {
        let Some((id, state)) = self.rejected(&rej, &route) else { return };
        let nobody_listens = rej.message == Stage::Req && rej.reason == RejReason::INVALID_SERVICE_ID;
        match state {
            State::ReqSent if nobody_listens && self.asks_again(now, id) => {}
            // Of an earlier time that it was asked.
            State::RepRcvd | State::MraRepSent | State::Established | State::DreqSent if nobody_listens => {
                self.counters.count_duplicate(Kind::Rej);
            }
            // Nothing of it is left at the peer.
            State::ReqSent | State::RepWait => {
                let orphan = self.table.get(id).is_some_and(|connection| connection.orphan);
                self.remove(id);
                if !orphan {
                    self.emit(Event::Rejected { id, reject: Box::new(rej) });
                }
            }
            // The peer gave up while the consumer decided, or will not have what it was offered.
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent => {
                if let Some(connection) = self.table.get_mut(id) {
                    // Nothing is to be said again.
                    connection.outgoing = None;
                }
                self.abandon(now, id);
                self.emit(Event::Rejected { id, reject: Box::new(rej) });
            }
            // The peer knows nothing of it (any more).
            State::Established | State::DreqSent => self.disconnected(now, id, HowDisconnected::Refused),
            // It ends already.
            State::DreqRcvd | State::TimeWait => self.counters.count_duplicate(Kind::Rej),
            State::SidrReqSent | State::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    /// Which connection a REJ is about. One for a timeout may not know our name for it, but has the peer's adapter and name.
    fn rejected(&mut self, rej: &Rej, route: &Route) -> Option<(CommId, State)> {
        if rej.reason == RejReason::TIMEOUT
            && let Some(ca_guid) = rej.ari.guid()
        {
            let key =
                RemoteKey { address: route.remote, ca_guid, comm_id: rej.local_comm_id, resolution: false };
            if let Some(&id) = self.by_remote.get(&key) {
                return Some((id, self.table.get(id)?.state));
            }
        }
        let id = rej.remote_comm_id;
        // Who has no name for the connection says 0.
        let known = self.table.get(id).map_or(CommId(0), |connection| connection.remote_id);
        let remote = if rej.local_comm_id == CommId(0) { known } else { rej.local_comm_id };
        Some((id, self.addressed(id, remote, route)?))
    }

    fn on_dreq(&mut self, now: Nanos, tid: u64, dreq: &Dreq, route: Route) {
        let id = dreq.remote_comm_id;
        if self.table.get(id).is_none() {
            // It is over here; the peer may know (`cm_issue_drep`).
            self.counters.unknown_id += 1;
            let drep = Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..Drep::default()
            };
            return self.send(route, tid, &CmMessage::Drep(drep));
        }
        let Some(state) = self.addressed(id, dreq.local_comm_id, &route) else { return };
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.local_qpn != dreq.remote_qpn {
            self.counters.unknown_id += 1;
            return;
        }
        match state {
            // Established for the peer, whatever of its RTU or ours is under way.
            State::Established | State::RepSent | State::MraRepRcvd | State::RepRcvd | State::MraRepSent => {
                connection.tid = tid;
                let orphan = connection.orphan;
                self.cancel_timer(id);
                self.set_state(id, State::DreqRcvd);
                if !orphan {
                    self.emit(Event::DisconnectRequested { id, private_data: dreq.private_data });
                }
            }
            // Both want it.
            State::DreqSent => {
                connection.tid = tid;
                self.agree_to_end(now, id, PrivateData::EMPTY, HowDisconnected::Agreed);
            }
            // The consumer takes its time.
            State::DreqRcvd => self.counters.count_duplicate(Kind::Dreq),
            // Our DREP was lost, or the peer asks on its own: it has the same answer.
            State::TimeWait => {
                self.counters.count_duplicate(Kind::Dreq);
                let drep = Drep {
                    local_comm_id: id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: PrivateData::EMPTY,
                };
                self.send(route, tid, &CmMessage::Drep(drep));
            }
            // There is nothing to end yet.
            State::ReqSent
            | State::RepWait
            | State::ReqRcvd
            | State::MraReqSent
            | State::SidrReqSent
            | State::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    fn on_drep(&mut self, now: Nanos, drep: &Drep, route: Route) {
        let id = drep.remote_comm_id;
        let Some(state) = self.addressed(id, drep.local_comm_id, &route) else { return };
        match state {
            State::DreqSent => self.disconnected(now, id, HowDisconnected::Agreed),
            State::TimeWait => self.counters.count_duplicate(Kind::Drep),
            // We did not ask.
            State::ReqSent
            | State::RepWait
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqRcvd
            | State::SidrReqSent
            | State::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    fn on_lap(&mut self, tid: u64, lap: &Lap, route: Route) {
        let known = self.addressed(lap.remote_comm_id, lap.local_comm_id, &route).is_some();
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            status: if known { AprStatus::UNSUPPORTED } else { AprStatus::INVALID_COMM_ID },
            ..Apr::default()
        };
        self.send(route, tid, &CmMessage::Apr(apr));
    }

    fn on_sidr_req(&mut self, now: Nanos, tid: u64, question: SidrReq, route: Route) {
        let key =
            RemoteKey { address: route.remote, ca_guid: 0, comm_id: question.request_id, resolution: true };
        if let Some(&id) = self.by_remote.get(&key) {
            self.counters.count_duplicate(Kind::SidrReq);
            // If it is answered, once more; else the consumer takes its time.
            return self.send_again(id, Kind::SidrRep);
        }
        let Some(listener) = self.admit(question.service_id, &route) else { return };
        let Some(listener) = listener else {
            return self.is_early(now, tid, CmMessage::SidrReq(question), route);
        };
        let mut connection = Connection::resolution(State::SidrReqRcvd, route);
        connection.tid = tid;
        connection.remote_id = question.request_id;
        connection.remote_key = Some(key);
        connection.service = question.service_id;
        connection.listener = Some(listener);
        // There was room when it was admitted.
        let Ok(id) = self.insert(connection) else { return };
        self.by_remote.insert(key, id);
        self.emit(Event::ResolutionRequest { id, listener, route, request: Box::new(question) });
    }

    fn on_sidr_rep(&mut self, now: Nanos, reply: SidrRep, route: Route) {
        let id = reply.request_id;
        let Some(state) = self.addressed(id, CommId(0), &route) else { return };
        if state != State::SidrReqSent {
            self.counters.out_of_state += 1;
            return;
        }
        if reply.status == SidrStatus::UNSUPPORTED && self.asks_again(now, id) {
            return;
        }
        self.remove(id);
        self.emit(Event::Resolved { id, route, reply: Box::new(reply) });
    }
}

/// The REJ of a REP.
fn refusal(rep: &Rep, reason: RejReason) -> Rej {
    Rej {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        message: Stage::Rep,
        reason,
        ..Rej::default()
    }
}

/// What speaks against a REQ before anybody is asked.
fn objection(req: &Req, route: &Route) -> Option<(RejReason, Ari)> {
    let path = &req.primary_path;
    if (path.local_gid, path.remote_gid) != (route.remote, route.local) {
        // Which GID is ours.
        return Some((RejReason::INVALID_GID, Ari::new(&route.local.0)));
    }
    if !matches!(req.transport, Transport::Rc | Transport::Uc | Transport::Xrc) {
        return Some((RejReason::INVALID_TRANSPORT, Ari::NONE));
    }
    if Mtu::from_code(req.path_mtu.into()).is_none() {
        return Some((RejReason::INVALID_MTU, Ari::new(&[Mtu::Mtu4096 as u8])));
    }
    None
}
