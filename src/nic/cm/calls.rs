//! Calls of the consumer, with the states in which they are allowed.

use crate::verbs::Psn;
use roxie_base::time::Nanos;
use roxie_wire::cm::{
    Ari, CmMessage, CommId, Drep, Dreq, Kind, Mra, Path, PrivateData, RejReason, Rep, Req, Rtu, SidrRep,
    SidrReq, SidrStatus, Stage, TooLong, Transport,
};

use super::connection::{Connection, ConnectionState, ack_timeout};
use super::manager::Manager;
use super::transitions::Cause;
use super::{
    AcceptOptions, CmError, ConnectRequest, HowDisconnected, LocalQp, Parameters, ResolveAnswer,
    ResolveRequest, Route,
};

/// RoCE has no LIDs (IBTA annex A17).
const NO_LID: u16 = 0xffff;

impl Manager {
    /// Requests a connection: sends a REQ. The answer is [`Event::Reply`](super::Event::Reply),
    /// [`Event::Rejected`](super::Event::Rejected) or [`Event::Unreachable`](super::Event::Unreachable).
    ///
    /// # Errors
    /// If a value does not fit its field, or the table is full.
    pub fn connect(&mut self, now: Nanos, request: &ConnectRequest) -> Result<CommId, CmError> {
        request.private_data.check(Kind::Req)?;
        check_values(&[
            ("packet_lifetime", request.packet_lifetime, 30),
            ("packet_rate", request.packet_rate, 63),
            ("retry_count", request.retry_count, 7),
            ("rnr_retry_count", request.rnr_retry_count, 7),
            ("response_timeout", request.response_timeout, 31),
            ("max_cm_retries", request.max_cm_retries, 15),
        ])?;
        check_flow_label(&request.route)?;
        let timeout = ack_timeout(self.config.ack_delay, request.packet_lifetime);
        let parameters = Parameters {
            route: request.route,
            transport: request.transport,
            active: true,
            path_mtu: request.path_mtu,
            dest_qpn: None,
            rq_psn: request.qp.psn,
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: request.responder_resources,
            max_rd_atomic: request.initiator_depth,
            timeout,
            retry_cnt: request.retry_count,
            rnr_retry: request.rnr_retry_count,
            peer_srq: false,
            peer_flow_control: false,
            selective_repeat: false,
        };
        // Path to the peer, the peer's response time, and the path back.
        let flight = self.span(request.packet_lifetime);
        let answer_timeout = flight + flight + self.span(request.response_timeout);
        let linger = self.span(timeout);
        let mut connection = Connection::new(ConnectionState::ReqSent, request.route, parameters);
        connection.local_qpn = request.qp.qpn;
        connection.packet_lifetime = request.packet_lifetime;
        connection.answer_timeout = answer_timeout;
        connection.max_retries = request.max_cm_retries;
        connection.linger = linger;
        connection.repeat_until = now + self.config.insistence;
        let id = self.insert(connection)?;
        self.begin_transaction(id);
        let mut req = req_of(request, id, self.config.ca_guid, timeout);
        if self.config.selective_repeat && request.transport == Transport::Rc {
            req.private_data =
                req.private_data.offering_selective_repeat(Kind::Req).unwrap_or(req.private_data);
        }
        self.send_and_keep(id, &CmMessage::Req(req));
        self.await_answer(now, id);
        Ok(id)
    }

    /// Accepts a request: sends a REP. The answer is [`Event::Established`](super::Event::Established),
    /// [`Event::Rejected`](super::Event::Rejected) or [`Event::Unreachable`](super::Event::Unreachable).
    ///
    /// # Errors
    /// If the connection has no pending request, or a value does not fit its field.
    pub fn accept(&mut self, now: Nanos, id: CommId, options: &AcceptOptions) -> Result<(), CmError> {
        let states = [ConnectionState::ReqRcvd, ConnectionState::MraReqSent];
        let (ca_guid, target_ack_delay) = (self.config.ca_guid, self.config.ack_delay);
        let connection = self.expect("accept", id, &states)?;
        options.private_data.check(Kind::Rep)?;
        check_values(&[("rnr_retry_count", options.rnr_retry_count, 7)])?;
        // The QP may be in RTR already, with selective repeat: the peer must hear of the agreement.
        let agrees = connection.parameters.selective_repeat;
        let private_data = match options.private_data.offering_selective_repeat(Kind::Rep) {
            Some(offer) if agrees => offer,
            None if agrees => {
                let len = options.private_data.len();
                return Err(CmError::PrivateData(TooLong {
                    len,
                    room: Kind::Rep.private_data_len() - 4,
                    what: "REP",
                }));
            }
            _ => options.private_data,
        };
        let p = &mut connection.parameters;
        // Limit the depths to what the peer offers in its request.
        p.max_rd_atomic = p.max_rd_atomic.min(options.initiator_depth);
        p.max_dest_rd_atomic = p.max_dest_rd_atomic.min(options.responder_resources);
        p.rq_psn = options.qp.psn;
        connection.local_qpn = options.qp.qpn;
        let LocalQp { qpn, psn, srq } = options.qp;
        let rep = Rep {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            local_qpn: qpn,
            starting_psn: psn,
            responder_resources: p.max_dest_rd_atomic,
            initiator_depth: p.max_rd_atomic,
            target_ack_delay,
            // Alternate paths are not supported.
            failover_accepted: 1,
            end_to_end_flow_control: options.flow_control,
            rnr_retry_count: options.rnr_retry_count,
            srq,
            local_ca_guid: ca_guid,
            private_data,
            ..Rep::default()
        };
        self.set_state(id, Cause::Accept, ConnectionState::RepSent);
        self.note_answered(id);
        self.send_and_keep(id, &CmMessage::Rep(rep));
        self.await_answer(now, id);
        Ok(())
    }

    /// Answers a REP with an RTU, after the QP is in RTS. Then both ends may send.
    ///
    /// # Errors
    /// If the connection has no pending REP, or there is too much private data.
    pub fn ready(&mut self, id: CommId, private_data: PrivateData) -> Result<(), CmError> {
        let connection =
            self.expect("ready", id, &[ConnectionState::RepRcvd, ConnectionState::MraRepSent])?;
        private_data.check(Kind::Rtu)?;
        let rtu = Rtu { local_comm_id: id, remote_comm_id: connection.remote_id, private_data };
        self.set_state(id, Cause::Ready, ConnectionState::Established);
        self.cancel_timer(id);
        self.send_and_keep(id, &CmMessage::Rtu(rtu));
        Ok(())
    }

    /// Establishes a connection that received data before the RTU: the peer is ready, and its RTU was lost or is late
    /// (IBTA 12.9.6: communication established). Does nothing if the connection is established already.
    ///
    /// # Errors
    /// If the connection neither waits for an RTU nor is established.
    pub fn established(&mut self, id: CommId) -> Result<(), CmError> {
        let states = [ConnectionState::RepSent, ConnectionState::MraRepRcvd, ConnectionState::Established];
        if self.expect("established", id, &states)?.state != ConnectionState::Established {
            self.establish(id, Cause::Data, PrivateData::EMPTY);
        }
        Ok(())
    }

    /// Sends an MRA: the answer to the peer's REQ or REP takes up to 4.096 us * 2^`service_timeout`.
    ///
    /// # Errors
    /// If the connection has no pending REQ or REP, or a value does not fit its field.
    pub fn delay(
        &mut self,
        id: CommId,
        service_timeout: u8,
        private_data: PrivateData,
    ) -> Result<(), CmError> {
        let states = [
            ConnectionState::ReqRcvd,
            ConnectionState::MraReqSent,
            ConnectionState::RepRcvd,
            ConnectionState::MraRepSent,
        ];
        self.expect("delay", id, &states)?;
        private_data.check(Kind::Mra)?;
        check_values(&[("service_timeout", service_timeout, 31)])?;
        self.take(id);
        self.send_mra(id, Cause::Delay, service_timeout, private_data);
        Ok(())
    }

    /// Refuses a request or a reply: sends a REJ. No further event of this connection follows.
    ///
    /// # Errors
    /// If our REQ is unanswered or the setup is complete, or if there is too much private data.
    pub fn reject(
        &mut self,
        now: Nanos,
        id: CommId,
        reason: RejReason,
        ari: Ari,
        private_data: PrivateData,
    ) -> Result<(), CmError> {
        let states = [
            ConnectionState::ReqRcvd,
            ConnectionState::MraReqSent,
            ConnectionState::RepSent,
            ConnectionState::MraRepRcvd,
            ConnectionState::RepRcvd,
            ConnectionState::MraRepSent,
        ];
        let stage = self.expect("reject", id, &states)?.stage();
        private_data.check(Kind::Rej)?;
        self.send_rej(id, stage, reason, ari, private_data);
        self.abandon(now, id, Cause::Reject);
        self.forget_events(id);
        Ok(())
    }

    /// Ends a connection with a DREQ, or agrees to its end with a DREP.
    /// [`Event::Disconnected`](super::Event::Disconnected) follows.
    ///
    /// # Errors
    /// If the connection is not established or ends already, or there is too much private data.
    pub fn disconnect(&mut self, now: Nanos, id: CommId, private_data: PrivateData) -> Result<(), CmError> {
        let connection =
            self.expect("disconnect", id, &[ConnectionState::Established, ConnectionState::DreqRcvd])?;
        if connection.state == ConnectionState::Established {
            private_data.check(Kind::Dreq)?;
            self.send_dreq(now, id, Cause::Disconnect, private_data);
        } else {
            private_data.check(Kind::Drep)?;
            self.agree_to_end(now, id, Cause::Disconnect, private_data, HowDisconnected::AsAsked);
        }
        Ok(())
    }

    /// Ends a connection in any state. The peer is notified. No event follows, and pending events are removed. Does
    /// nothing if the connection does not exist.
    pub fn destroy(&mut self, now: Nanos, id: CommId) {
        self.forget_events(id);
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.orphan = true;
        let (state, stage) = (connection.state, connection.stage());
        match state {
            // Withdraw our request, as after a timeout.
            ConnectionState::ReqSent | ConnectionState::RepWait => {
                self.send_rej_timeout(id, Stage::Req);
                self.abandon(now, id, Cause::Destroy);
            }
            ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepSent
            | ConnectionState::MraRepRcvd
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent => {
                self.send_rej(id, stage, RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY);
                self.abandon(now, id, Cause::Destroy);
            }
            ConnectionState::Established => self.send_dreq(now, id, Cause::Destroy, PrivateData::EMPTY),
            ConnectionState::DreqRcvd => {
                let how = HowDisconnected::AsAsked;
                self.agree_to_end(now, id, Cause::Destroy, PrivateData::EMPTY, how);
            }
            // Ending already.
            ConnectionState::DreqSent | ConnectionState::TimeWait => {}
            ConnectionState::SidrReqSent => self.remove(id, Cause::Destroy),
            ConnectionState::SidrReqRcvd => {
                let refusal = ResolveAnswer { status: SidrStatus::REJECTED, ..ResolveAnswer::default() };
                self.send_sidr_rep(now, id, Cause::Destroy, &refusal);
            }
        }
    }

    /// Asks a peer for the datagram QP of a service: sends a SIDR_REQ. The answer is
    /// [`Event::Resolved`](super::Event::Resolved) or [`Event::Unreachable`](super::Event::Unreachable).
    ///
    /// # Errors
    /// If a value does not fit its field, or the table is full.
    pub fn resolve(&mut self, now: Nanos, request: &ResolveRequest) -> Result<CommId, CmError> {
        request.private_data.check(Kind::SidrReq)?;
        check_values(&[
            ("response_timeout", request.response_timeout, 31),
            ("max_cm_retries", request.max_cm_retries, 15),
        ])?;
        check_flow_label(&request.route)?;
        let mut connection = Connection::resolution(ConnectionState::SidrReqSent, request.route);
        connection.answer_timeout = self.span(request.response_timeout);
        connection.max_retries = request.max_cm_retries;
        connection.repeat_until = now + self.config.insistence;
        let id = self.insert(connection)?;
        self.begin_transaction(id);
        let question = SidrReq {
            request_id: id,
            pkey: request.pkey,
            service_id: request.service,
            private_data: request.private_data,
        };
        self.send_and_keep(id, &CmMessage::SidrReq(question));
        self.await_answer(now, id);
        Ok(id)
    }

    /// Answers a SIDR_REQ: sends a SIDR_REP. No further event of this resolution follows.
    ///
    /// # Errors
    /// If `id` is no resolution request or was answered already, or there is too much private data.
    pub fn answer_resolution(
        &mut self,
        now: Nanos,
        id: CommId,
        answer: &ResolveAnswer,
    ) -> Result<(), CmError> {
        self.expect("answer_resolution", id, &[ConnectionState::SidrReqRcvd])?;
        answer.private_data.check(Kind::SidrRep)?;
        self.send_sidr_rep(now, id, Cause::Answer, answer);
        Ok(())
    }

    /// Returns a connection that the consumer owns, if it is in one of `states`.
    fn expect(
        &mut self,
        call: &'static str,
        id: CommId,
        states: &[ConnectionState],
    ) -> Result<&mut Connection, CmError> {
        let connection = self
            .table
            .get_mut(id)
            .filter(|connection| !connection.orphan)
            .ok_or(CmError::Unknown { call, id })?;
        if !states.contains(&connection.state) {
            return Err(CmError::State { call, id, state: connection.state });
        }
        Ok(connection)
    }

    pub(super) fn begin_transaction(&mut self, id: CommId) {
        let tid = self.new_tid(id);
        if let Some(connection) = self.table.get_mut(id) {
            connection.tid = tid;
        }
    }

    pub(super) fn forget_events(&mut self, id: CommId) {
        self.events.retain(|event| event.id() != id);
    }

    pub(super) fn send_mra(
        &mut self,
        id: CommId,
        cause: Cause,
        service_timeout: u8,
        private_data: PrivateData,
    ) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let may_send = connection.may_send();
        let (stage, next) = match connection.state {
            ConnectionState::RepRcvd | ConnectionState::MraRepSent => {
                (Stage::Rep, ConnectionState::MraRepSent)
            }
            _ => (Stage::Req, ConnectionState::MraReqSent),
        };
        let mra = Mra {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            message: stage,
            service_timeout,
            private_data,
        };
        let (route, tid) = (connection.route, connection.tid);
        self.set_state(id, cause, next);
        if may_send {
            self.send(route, tid, &CmMessage::Mra(mra));
        }
    }

    pub(super) fn send_dreq(&mut self, now: Nanos, id: CommId, cause: Cause, private_data: PrivateData) {
        self.begin_transaction(id);
        let Some(connection) = self.table.get(id) else { return };
        let remote_qpn = connection.parameters.dest_qpn.unwrap_or_default();
        let dreq = Dreq { local_comm_id: id, remote_comm_id: connection.remote_id, remote_qpn, private_data };
        self.set_state(id, cause, ConnectionState::DreqSent);
        self.send_and_keep(id, &CmMessage::Dreq(dreq));
        self.await_answer(now, id);
    }

    pub(super) fn agree_to_end(
        &mut self,
        now: Nanos,
        id: CommId,
        cause: Cause,
        private_data: PrivateData,
        how: HowDisconnected,
    ) {
        let Some(connection) = self.table.get(id) else { return };
        let drep = Drep { local_comm_id: id, remote_comm_id: connection.remote_id, private_data };
        self.send_and_keep(id, &CmMessage::Drep(drep));
        self.disconnected(now, id, cause, how);
    }

    fn send_sidr_rep(&mut self, now: Nanos, id: CommId, cause: Cause, answer: &ResolveAnswer) {
        let Some(connection) = self.table.get(id) else { return };
        let rep = SidrRep {
            request_id: connection.remote_id,
            status: answer.status,
            info: answer.info,
            qpn: answer.qpn,
            service_id: connection.service,
            qkey: answer.qkey,
            private_data: answer.private_data,
        };
        self.send_and_keep(id, &CmMessage::SidrRep(rep));
        self.abandon(now, id, cause);
    }
}

/// Returns the REQ message of a request.
fn req_of(request: &ConnectRequest, id: CommId, ca_guid: u64, local_ack_timeout: u8) -> Req {
    Req {
        local_comm_id: id,
        service_id: request.service,
        local_ca_guid: ca_guid,
        local_qpn: request.qp.qpn,
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        remote_cm_response_timeout: request.response_timeout,
        transport: request.transport,
        end_to_end_flow_control: request.flow_control,
        starting_psn: request.qp.psn,
        local_cm_response_timeout: request.response_timeout,
        retry_count: request.retry_count,
        pkey: request.pkey,
        path_mtu: request.path_mtu as u8,
        rnr_retry_count: request.rnr_retry_count,
        max_cm_retries: request.max_cm_retries,
        srq: request.qp.srq,
        primary_path: Path {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: request.route.local,
            remote_gid: request.route.remote,
            flow_label: request.route.flow_label,
            packet_rate: request.packet_rate,
            traffic_class: request.route.traffic_class,
            hop_limit: request.route.hop_limit,
            sl: 0,
            subnet_local: false,
            local_ack_timeout,
        },
        private_data: request.private_data,
        ..Req::default()
    }
}

fn check_values(values: &[(&'static str, u8, u8)]) -> Result<(), CmError> {
    match values.iter().find(|(_, value, largest)| value > largest) {
        Some(&(what, value, largest)) => {
            Err(CmError::Value { what, value: value.into(), largest: largest.into() })
        }
        None => Ok(()),
    }
}

fn check_flow_label(route: &Route) -> Result<(), CmError> {
    let largest = 0x000f_ffff;
    if route.flow_label > largest {
        let value = route.flow_label.into();
        return Err(CmError::Value { what: "flow_label", value, largest: largest.into() });
    }
    Ok(())
}
