//! Messages from peers: one function for each message, one arm for each state.

use crate::verbs::{Mtu, Psn};
use roxie_base::time::Nanos;
use roxie_wire::Qpn;
use roxie_wire::cm::{
    Apr, AprStatus, Ari, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, PrivateData, Rej, RejReason, Rep,
    Req, Rtu, SidrRep, SidrReq, SidrStatus, Stage, Transport,
};

use super::connection::{Connection, ConnectionState, RemoteKey, ack_timeout};
use super::listeners::BacklogPlace;
use super::manager::Manager;
use super::transitions::Cause;
use super::{Arrival, Event, HowDisconnected, Parameters, Route};

impl Manager {
    /// Handles a datagram that QP1 received. `mad` begins after the GRH.
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
            // APR: we never ask for an alternate path.
            CmMessage::Apr(_) => self.counters.out_of_state += 1,
        }
    }

    /// Finds the connection with our ID `local`. The message must come from its peer. `remote` is the peer's ID in the
    /// message; a connection that does not know the peer's ID yet accepts any.
    fn addressed(&mut self, local: CommId, remote: CommId, route: &Route) -> Option<ConnectionState> {
        let Some(connection) = self.table.get_mut(local) else {
            self.counters.unknown_id += 1;
            return None;
        };
        if (connection.route.source(), connection.route.remote) != (route.source(), route.remote) {
            self.counters.not_from_peer += 1;
            return None;
        }
        if connection.remote_id != CommId(0) && connection.remote_id != remote {
            self.counters.unknown_id += 1;
            return None;
        }
        (connection.is_answered, connection.budget) = (true, None);
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
        if let Some((reason, ari)) = req_error(&req, &route) {
            return self.refuse_req(tid, &req, route, reason, ari);
        }
        let peer_qp = (route.remote, req.local_ca_guid, req.local_qpn);
        if let Some(&old) = self.by_peer_qp.get(&peer_qp)
            && self.listeners.serves(req.service_id, route.local)
        {
            return self.examine(now, old, Some((tid, req, route)));
        }
        let Some(place) = self.admit(now, &key, req.service_id, &route) else {
            return;
        };
        let Some(place) = place else {
            return self.hold_early(now, tid, CmMessage::Req(req), route);
        };
        self.take_req(now, tid, req, route, place, key);
    }

    fn take_req(
        &mut self,
        now: Nanos,
        tid: u64,
        mut req: Req,
        arrival: Route,
        place: BacklogPlace,
        key: RemoteKey,
    ) {
        let offers_selective_repeat = req.private_data.take_selective_repeat();
        let (max_dest_rd_atomic, max_rd_atomic) = Parameters::depths(&req);
        let path = &req.primary_path;
        // The request determines the path for both ends.
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
            max_dest_rd_atomic,
            max_rd_atomic,
            timeout: path.local_ack_timeout.max(1),
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            peer_srq: req.srq,
            peer_flow_control: req.end_to_end_flow_control,
            selective_repeat: offers_selective_repeat
                && self.config.selective_repeat
                && req.transport == Transport::Rc,
        };
        let mut connection = Connection::new(ConnectionState::ReqRcvd, route, parameters);
        connection.arrived = now;
        connection.budget = self.message_budget(route.remote);
        connection.tid = tid;
        connection.remote_id = req.local_comm_id;
        connection.remote_key = Some(key);
        connection.connected = Some((req.local_ca_guid, req.local_qpn));
        connection.place = Some(place);
        connection.linger = self.granted(parameters.timeout);
        // The ACK timeout includes the round trip.
        connection.answer_timeout = self.granted(req.local_cm_response_timeout) + connection.linger;
        connection.max_retries = req.max_cm_retries.min(self.config.limits.granted_retries);
        connection.patience = self.patience(req.remote_cm_response_timeout) + connection.linger;
        let peer_qp = connection.connected_key();
        // `admit` has ensured that there is room.
        let Ok(id) = self.insert(connection) else { return };
        self.by_remote.insert(key, id);
        if let Some(peer_qp) = peer_qp {
            self.by_peer_qp.insert(peer_qp, id);
        }
        self.await_copy(now, id);
        let listener = place.listener;
        self.emit(Event::Request { id, listener, route, request: Box::new(req) });
    }

    pub(super) fn refuse_req(&mut self, tid: u64, req: &Req, route: Route, reason: RejReason, ari: Ari) {
        let rej =
            Rej { remote_comm_id: req.local_comm_id, message: Stage::Req, reason, ari, ..Rej::default() };
        self.send(route, tid, &CmMessage::Rej(rej));
    }

    /// Handles a repeated REQ (IBTA 12.9.8.5): sends the lost answer again.
    fn on_req_again(&mut self, now: Nanos, id: CommId) {
        self.counters.count_duplicate(Kind::Req);
        let budget = Some(self.config.unproven_messages);
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.budget = connection.budget.and(budget);
        match connection.state {
            // The consumer has not answered yet.
            ConnectionState::ReqRcvd | ConnectionState::MraReqSent if !connection.is_early_repeat(now) => {
                let cause = Cause::Got(Kind::Req);
                self.send_mra(id, cause, self.config.service_timeout, PrivateData::EMPTY);
                self.await_copy(now, id);
            }
            ConnectionState::ReqRcvd | ConnectionState::MraReqSent => self.await_copy(now, id),
            ConnectionState::RepSent | ConnectionState::MraRepRcvd => self.send_again(id, Kind::Rep),
            // Repeat the REJ, if it refused this REQ.
            ConnectionState::TimeWait => self.send_again(id, Kind::Rej),
            // The peer has our REP, or the REQ is an old copy for an active connection.
            ConnectionState::Established
            | ConnectionState::DreqSent
            | ConnectionState::DreqRcvd
            | ConnectionState::ReqSent
            | ConnectionState::RepWait
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent
            | ConnectionState::SidrReqSent
            | ConnectionState::SidrReqRcvd => {}
        }
    }

    fn on_rep(&mut self, now: Nanos, tid: u64, rep: Rep, route: Route) {
        let id = rep.remote_comm_id;
        let other = |c: &Connection| {
            c.route.remote == route.remote && c.remote_id != CommId(0) && c.remote_id != rep.local_comm_id
        };
        // The connection is gone, or was set up by another REP: a copy of our REQ arrived after the first answer was
        // over.
        if self.table.get(id).is_none_or(other) {
            self.counters.unknown_id += 1;
            let rej = refusal(&rep, RejReason::INVALID_COMM_ID);
            return self.send(route, tid, &CmMessage::Rej(rej));
        }
        let Some(state) = self.addressed(id, rep.local_comm_id, &route) else { return };
        match state {
            ConnectionState::ReqSent | ConnectionState::RepWait => self.take_rep(now, id, tid, rep, route),
            // The consumer has not answered yet.
            ConnectionState::RepRcvd | ConnectionState::MraRepSent => {
                self.counters.count_duplicate(Kind::Rep);
                if !self.table.get(id).is_some_and(|connection| connection.is_early_repeat(now)) {
                    let cause = Cause::Got(Kind::Rep);
                    self.send_mra(id, cause, self.config.service_timeout, PrivateData::EMPTY);
                }
            }
            // Our RTU was lost.
            ConnectionState::Established => {
                self.counters.count_duplicate(Kind::Rep);
                self.send_again(id, Kind::Rtu);
            }
            // Repeat the REJ, if there was one.
            ConnectionState::TimeWait => {
                self.counters.count_duplicate(Kind::Rep);
                self.send_again(id, Kind::Rej);
            }
            // The DREQ supersedes the RTU.
            ConnectionState::DreqSent | ConnectionState::DreqRcvd => self.counters.count_duplicate(Kind::Rep),
            // We sent no REQ for this connection.
            ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepSent
            | ConnectionState::MraRepRcvd
            | ConnectionState::SidrReqSent
            | ConnectionState::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    /// Refuses an inconsistent REP to a REQ of ours. Peer and consumer are notified.
    fn reject_rep(&mut self, now: Nanos, tid: u64, rep: &Rep, route: Route, reason: RejReason) {
        let id = rep.remote_comm_id;
        let rej = refusal(rep, reason);
        self.send(route, tid, &CmMessage::Rej(rej.clone()));
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.outgoing = None;
        if !connection.orphan {
            self.emit(Event::Rejected { id, reject: Box::new(rej) });
        }
        self.abandon(now, id, Cause::Got(Kind::Rep));
    }

    fn take_rep(&mut self, now: Nanos, id: CommId, tid: u64, mut rep: Rep, route: Route) {
        let key = RemoteKey {
            address: route.remote,
            ca_guid: rep.local_ca_guid,
            comm_id: rep.local_comm_id,
            resolution: false,
        };
        if self.by_remote.get(&key).is_some_and(|other| *other != id) {
            // Another connection has the same peer ID.
            return self.reject_rep(now, tid, &rep, route, RejReason::DUPLICATE_COMM_ID);
        }
        let peer_qp = (route.remote, rep.local_ca_guid, rep.local_qpn);
        if let Some(&old) = self.by_peer_qp.get(&peer_qp) {
            self.reject_rep(now, tid, &rep, route, RejReason::STALE);
            return self.examine(now, old, None);
        }
        let ack_delay = rep.target_ack_delay;
        let agrees = rep.private_data.take_selective_repeat() && self.config.selective_repeat;
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.arrived = now;
        connection.remote_id = rep.local_comm_id;
        connection.remote_key = Some(key);
        connection.connected = Some((rep.local_ca_guid, rep.local_qpn));
        let p = &mut connection.parameters;
        p.dest_qpn = Some(rep.local_qpn);
        p.sq_psn = rep.starting_psn;
        // Limit to what our REQ offered and asked for.
        p.max_dest_rd_atomic = p.max_dest_rd_atomic.min(rep.initiator_depth);
        p.max_rd_atomic = p.max_rd_atomic.min(rep.responder_resources);
        p.timeout = ack_timeout(ack_delay, connection.packet_lifetime);
        p.rnr_retry = rep.rnr_retry_count;
        p.peer_srq = rep.srq;
        p.peer_flow_control = rep.end_to_end_flow_control;
        p.selective_repeat = agrees && p.transport == Transport::Rc;
        let (orphan, timeout) = (connection.orphan, p.timeout);
        let linger = self.span(timeout);
        if let Some(connection) = self.table.get_mut(id) {
            connection.linger = linger;
        }
        self.by_remote.insert(key, id);
        self.by_peer_qp.insert(peer_qp, id);
        self.cancel_timer(id);
        self.set_state(id, Cause::Got(Kind::Rep), ConnectionState::RepRcvd);
        if !orphan {
            self.emit(Event::Reply { id, reply: Box::new(rep) });
        }
    }

    fn on_rtu(&mut self, rtu: &Rtu, route: Route) {
        let id = rtu.remote_comm_id;
        let Some(state) = self.addressed(id, rtu.local_comm_id, &route) else { return };
        match state {
            ConnectionState::RepSent | ConnectionState::MraRepRcvd => {
                self.establish(id, Cause::Got(Kind::Rtu), rtu.private_data);
            }
            // Established already, by data or by an earlier RTU.
            ConnectionState::Established
            | ConnectionState::DreqSent
            | ConnectionState::DreqRcvd
            | ConnectionState::TimeWait => {
                self.counters.count_duplicate(Kind::Rtu);
            }
            // We sent no REP for this connection.
            ConnectionState::ReqSent
            | ConnectionState::RepWait
            | ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent
            | ConnectionState::SidrReqSent
            | ConnectionState::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    pub(super) fn establish(&mut self, id: CommId, cause: Cause, private_data: PrivateData) {
        self.cancel_timer(id);
        self.set_state(id, cause, ConnectionState::Established);
        if let Some(connection) = self.table.get_mut(id) {
            (connection.outgoing, connection.budget) = (None, None);
        }
        self.emit(Event::Established { id, private_data });
    }

    fn on_mra(&mut self, now: Nanos, mra: &Mra, route: Route) {
        let id = mra.remote_comm_id;
        let Some(state) = self.addressed(id, mra.local_comm_id, &route) else { return };
        let next = match (state, mra.message) {
            (ConnectionState::ReqSent, Stage::Req) => ConnectionState::RepWait,
            (ConnectionState::RepSent, Stage::Rep) => ConnectionState::MraRepRcvd,
            // Granted already, or the answer has arrived.
            (
                ConnectionState::RepWait | ConnectionState::RepRcvd | ConnectionState::MraRepSent,
                Stage::Req,
            )
            | (ConnectionState::MraRepRcvd, Stage::Rep)
            | (ConnectionState::Established, _) => {
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
        let deadline = now + granted + connection.answer_timeout;
        self.set_state(id, Cause::Got(Kind::Mra), next);
        self.set_timer(id, deadline);
    }

    fn on_rej(&mut self, now: Nanos, rej: Rej, route: Route) {
        let Some((id, state)) = self.rejected(&rej, &route) else { return };
        let of_req = rej.message == Stage::Req;
        let no_listener = of_req && rej.reason == RejReason::INVALID_SERVICE_ID;
        let was_stale = self.table.get(id).is_some_and(|connection| connection.stale_refusals > 0);
        let of_earlier_copy = no_listener || of_req && was_stale && rej.reason == RejReason::STALE;
        match state {
            ConnectionState::ReqSent if no_listener && self.repeat_request(now, id) => {}
            ConnectionState::ReqSent | ConnectionState::RepWait
                if rej.reason == RejReason::STALE && self.repeat_stale(now, id) => {}
            // The answer to an earlier copy of our REQ.
            ConnectionState::RepRcvd
            | ConnectionState::MraRepSent
            | ConnectionState::Established
            | ConnectionState::DreqSent
                if of_earlier_copy =>
            {
                self.counters.count_duplicate(Kind::Rej);
            }
            // The peer keeps no state for this connection.
            ConnectionState::ReqSent | ConnectionState::RepWait => {
                let orphan = self.table.get(id).is_some_and(|connection| connection.orphan);
                self.remove(id, Cause::Got(Kind::Rej));
                if !orphan {
                    self.emit(Event::Rejected { id, reject: Box::new(rej) });
                }
            }
            // The peer gave up waiting for the consumer, or refuses our offer.
            ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepSent
            | ConnectionState::MraRepRcvd
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent => {
                if let Some(connection) = self.table.get_mut(id) {
                    // Nothing is left to retransmit.
                    connection.outgoing = None;
                }
                self.abandon(now, id, Cause::Got(Kind::Rej));
                self.emit(Event::Rejected { id, reject: Box::new(rej) });
            }
            // The peer has no such connection (any more).
            ConnectionState::Established | ConnectionState::DreqSent => {
                self.disconnected(now, id, Cause::Got(Kind::Rej), HowDisconnected::Refused);
            }
            // Ending already.
            ConnectionState::DreqRcvd | ConnectionState::TimeWait => self.counters.count_duplicate(Kind::Rej),
            ConnectionState::SidrReqSent | ConnectionState::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    /// Finds the connection that a REJ refers to. A REJ for a timeout may lack our ID, but has the peer's adapter and
    /// ID. Any other has both IDs, unless the peer refuses a request for which it made no ID.
    fn rejected(&mut self, rej: &Rej, route: &Route) -> Option<(CommId, ConnectionState)> {
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
        Some((id, self.addressed(id, rej.local_comm_id, route)?))
    }

    fn on_dreq(&mut self, now: Nanos, tid: u64, dreq: &Dreq, route: Route) {
        let id = dreq.remote_comm_id;
        if self.table.get(id).is_none() {
            // Ended here already, though the peer may not know (`cm_issue_drep`).
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
            // The peer regards the connection as established, even if an RTU is still in flight.
            ConnectionState::Established
            | ConnectionState::RepSent
            | ConnectionState::MraRepRcvd
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent => {
                connection.tid = tid;
                let orphan = connection.orphan;
                self.cancel_timer(id);
                self.set_state(id, Cause::Got(Kind::Dreq), ConnectionState::DreqRcvd);
                if !orphan {
                    self.emit(Event::DisconnectRequested { id, private_data: dreq.private_data });
                }
            }
            // Disconnected by both ends at the same time.
            ConnectionState::DreqSent => {
                connection.tid = tid;
                let cause = Cause::Got(Kind::Dreq);
                self.agree_to_end(now, id, cause, PrivateData::EMPTY, HowDisconnected::Agreed);
            }
            // The consumer has not answered yet.
            ConnectionState::DreqRcvd => self.counters.count_duplicate(Kind::Dreq),
            // Our DREP was lost, or the peer disconnects at the same time. The answer is a DREP in either case.
            ConnectionState::TimeWait => {
                self.counters.count_duplicate(Kind::Dreq);
                let drep = Drep {
                    local_comm_id: id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: PrivateData::EMPTY,
                };
                self.send(route, tid, &CmMessage::Drep(drep));
            }
            // No connection to end yet.
            ConnectionState::ReqSent
            | ConnectionState::RepWait
            | ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::SidrReqSent
            | ConnectionState::SidrReqRcvd => self.counters.out_of_state += 1,
        }
    }

    fn on_drep(&mut self, now: Nanos, drep: &Drep, route: Route) {
        let id = drep.remote_comm_id;
        let Some(state) = self.addressed(id, drep.local_comm_id, &route) else { return };
        match state {
            ConnectionState::DreqSent => {
                self.disconnected(now, id, Cause::Got(Kind::Drep), HowDisconnected::Agreed);
            }
            ConnectionState::TimeWait => self.counters.count_duplicate(Kind::Drep),
            // We sent no DREQ.
            ConnectionState::ReqSent
            | ConnectionState::RepWait
            | ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepSent
            | ConnectionState::MraRepRcvd
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent
            | ConnectionState::Established
            | ConnectionState::DreqRcvd
            | ConnectionState::SidrReqSent
            | ConnectionState::SidrReqRcvd => self.counters.out_of_state += 1,
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
            // Repeat the answer, if there is one. Otherwise the consumer has not answered yet.
            self.await_copy(now, id);
            return self.send_again(id, Kind::SidrRep);
        }
        let Some(place) = self.admit(now, &key, question.service_id, &route) else { return };
        let Some(place) = place else {
            return self.hold_early(now, tid, CmMessage::SidrReq(question), route);
        };
        let mut connection = Connection::resolution(ConnectionState::SidrReqRcvd, route);
        connection.tid = tid;
        connection.remote_id = question.request_id;
        connection.remote_key = Some(key);
        connection.service = question.service_id;
        (connection.place, connection.arrived) = (Some(place), now);
        connection.patience = self.patience(u8::MAX);
        // `admit` has ensured that there is room.
        let Ok(id) = self.insert(connection) else { return };
        self.by_remote.insert(key, id);
        self.await_copy(now, id);
        let listener = place.listener;
        self.emit(Event::ResolutionRequest { id, listener, route, request: Box::new(question) });
    }

    fn on_sidr_rep(&mut self, now: Nanos, reply: SidrRep, route: Route) {
        let id = reply.request_id;
        let Some(state) = self.addressed(id, CommId(0), &route) else { return };
        if state != ConnectionState::SidrReqSent {
            self.counters.out_of_state += 1;
            return;
        }
        if reply.status == SidrStatus::UNSUPPORTED && self.repeat_request(now, id) {
            return;
        }
        self.remove(id, Cause::Got(Kind::SidrRep));
        self.emit(Event::Resolved { id, route, reply: Box::new(reply) });
    }
}

/// Returns the REJ that refuses a REP.
fn refusal(rep: &Rep, reason: RejReason) -> Rej {
    Rej {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        message: Stage::Rep,
        reason,
        ..Rej::default()
    }
}

/// Validates a REQ before it reaches a listener. Returns the reason to refuse it, if any.
fn req_error(req: &Req, route: &Route) -> Option<(RejReason, Ari)> {
    let path = &req.primary_path;
    if (path.local_gid, path.remote_gid) != (route.remote, route.local) {
        // Tell the peer our GID.
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
