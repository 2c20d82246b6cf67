//! Events of the connection manager, converted to events of the program.

use std::net::SocketAddr;

use roxie::cm::{Event as CmEvent, HowDisconnected, Listener, Route, WhyUnreachable};
use roxie::verbs::{LocalGid, Mtu};
use roxie::wire::ServiceId;
use roxie::wire::cm::{CommId, Kind, Rep, Req, SidrRep, SidrReq, SidrStatus};
use roxie::wire::service_id::CmaHeader;

use super::event::{AhPath, ConnectionFacts, DatagramFacts, Event, EventType, Facts, Waiting, padded};
use super::id::{IdState, Made, Path, answering_qp_type};
use super::state::{Cm, State};
use crate::abi::ibv_qp_type;
use crate::base::report;

/// Room for the program's private data after the RDMA-CM header in a REQ, and in a SIDR_REQ.
const REQ_ROOM: usize = 92 - CmaHeader::LEN;
const SIDR_REQ_ROOM: usize = 216 - CmaHeader::LEN;
/// Room in a REP, a REJ and a SIDR_REP.
const REP_ROOM: usize = 196;
const REJ_ROOM: usize = 148;
const SIDR_REP_ROOM: usize = 136;

/// Look-up of the device's GID indices, and an unpredictable number.
pub(super) struct GidLookup<'a> {
    pub(super) sgid_index: &'a dyn Fn(LocalGid) -> Option<u8>,
    pub(super) random: u64,
}

/// A connection request or a SIDR request.
struct IncomingRequest<'a> {
    comm: CommId,
    listener: Listener,
    route: Route,
    service: ServiceId,
    qp_type: ibv_qp_type::Type,
    header: CmaHeader,
    path: Option<Path>,
    facts: Facts,
    kind: &'a str,
}

impl State {
    /// Handles an event of the manager.
    pub(super) fn handle_event(&mut self, cm: &mut Cm<'_>, around: &GidLookup<'_>, event: CmEvent) {
        let comm = event.id();
        let last = event.is_last();
        match event {
            CmEvent::Request { listener, route, request, .. } => {
                return self.handle_request(cm, around, comm, listener, route, &request);
            }
            CmEvent::ResolutionRequest { listener, route, request, .. } => {
                return self.handle_sidr_request(cm, around, comm, listener, route, &request);
            }
            CmEvent::Withdrawn { .. } => return self.withdraw(comm),
            _ => {}
        }
        let Some(handle) = self.by_comm.get(&comm).copied() else { return };
        match event {
            CmEvent::Reply { reply, .. } => {
                let facts = Facts::Connection(facts_of_reply(&reply));
                self.queue_event(handle, EventType::ConnectResponse, 0, facts);
            }
            CmEvent::Established { .. } => self.queue_event(handle, EventType::Established, 0, Facts::None),
            CmEvent::Rejected { reject, .. } => {
                let private_data = padded(&reject.private_data, REJ_ROOM);
                let facts = Facts::Connection(ConnectionFacts { private_data, ..ConnectionFacts::default() });
                self.queue_event(handle, EventType::Rejected, reject.reason.0.into(), facts);
            }
            CmEvent::Unreachable { why, unanswered, .. } => self.handle_unreachable(handle, why, unanswered),
            CmEvent::DisconnectRequested { .. } => self.handle_disconnect(handle, 0),
            CmEvent::Disconnected { how, .. } => {
                let status = if how == HowDisconnected::NoAnswer { -libc::ETIMEDOUT } else { 0 };
                self.handle_disconnect(handle, status);
            }
            CmEvent::TimeWaitExit { .. } => self.queue_event(handle, EventType::TimeWaitExit, 0, Facts::None),
            CmEvent::Resolved { route, reply, .. } => self.handle_sidr_reply(around, handle, &route, &reply),
            CmEvent::Request { .. } | CmEvent::ResolutionRequest { .. } | CmEvent::Withdrawn { .. } => {}
        }
        if last {
            self.by_comm.remove(&comm);
            if let Some(id) = self.ids.get_mut(handle) {
                id.comm = None;
            }
        }
    }

    /// Reports that no host answered. For the kernel's programs, all causes look the same, after the timeouts; here,
    /// the status distinguishes them.
    fn handle_unreachable(&mut self, handle: u32, why: WhyUnreachable, unanswered: Kind) {
        let peer = self.ids.get(handle).and_then(|id| id.destination);
        let peer = peer.map_or_else(String::new, |peer| peer.to_string());
        let status = match why {
            WhyUnreachable::NothingThere => {
                report::info(
                    "rdma_connect",
                    format_args!(
                        "{peer}: its host says that nothing takes UDP port 4791 there: start the server first, under `roxie run` or on an \
                         RDMA device"
                    ),
                );
                libc::ECONNREFUSED
            }
            WhyUnreachable::Silent { sent: asked } => {
                report::info(
                    "rdma_connect",
                    format_args!(
                        "{peer} did not answer {asked} copies of {unanswered}: is it up, and does UDP port 4791 get through?"
                    ),
                );
                libc::ETIMEDOUT
            }
        };
        self.queue_event(handle, EventType::Unreachable, -status, Facts::None);
    }

    /// Reports the end of a connection once, whichever end caused it.
    fn handle_disconnect(&mut self, handle: u32, status: i32) {
        let Some(id) = self.ids.get_mut(handle) else { return };
        if id.stage == IdState::Connect {
            id.stage = IdState::Disconnect;
            self.queue_event(handle, EventType::Disconnected, status, Facts::None);
        }
    }

    fn handle_request(
        &mut self,
        cm: &mut Cm<'_>,
        around: &GidLookup<'_>,
        comm: CommId,
        listener: Listener,
        route: Route,
        request: &Req,
    ) {
        let header = CmaHeader::read(&request.private_data);
        let (Some(header), Some(qp_type)) = (header, answering_qp_type(request.transport)) else {
            report::info(
                "a request",
                format_args!("{} from {}: not of RDMA-CM's", request.service_id, route.remote),
            );
            return cm.manager.destroy(cm.now, comm);
        };
        let facts = Facts::Connection(ConnectionFacts {
            qpn: request.local_qpn.value(),
            private_data: padded(CmaHeader::behind(&request.private_data), REQ_ROOM),
            srq: request.srq,
            // One end's limit of outstanding requests is the other end's limit of responder resources.
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.end_to_end_flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        });
        let path = Mtu::from_code(request.path_mtu.into()).map(|mtu| Path {
            mtu,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            packet_lifetime: request.primary_path.local_ack_timeout.saturating_sub(1),
        });
        let service = request.service_id;
        self.create_child(
            cm,
            around.random,
            IncomingRequest {
                comm,
                listener,
                route,
                service,
                qp_type,
                header,
                path,
                facts,
                kind: "connection",
            },
        );
    }

    fn handle_sidr_request(
        &mut self,
        cm: &mut Cm<'_>,
        around: &GidLookup<'_>,
        comm: CommId,
        listener: Listener,
        route: Route,
        request: &SidrReq,
    ) {
        let Some(header) = CmaHeader::read(&request.private_data) else {
            return cm.manager.destroy(cm.now, comm);
        };
        let private_data = padded(CmaHeader::behind(&request.private_data), SIDR_REQ_ROOM);
        let facts = Facts::Datagram(DatagramFacts { private_data, ..DatagramFacts::default() });
        let (service, qp_type) = (request.service_id, ibv_qp_type::IBV_QPT_UD);
        self.create_child(
            cm,
            around.random,
            IncomingRequest {
                comm,
                listener,
                route,
                service,
                qp_type,
                header,
                path: None,
                facts,
                kind: "datagram",
            },
        );
    }

    /// Removes the identifier and the event of a request that the program has not fetched in time.
    fn withdraw(&mut self, comm: CommId) {
        let Some(handle) = self.by_comm.remove(&comm) else { return };
        let Some(id) = self.ids.get_mut(handle) else { return };
        id.comm = None;
        let channel = id.channel;
        let is_request = |waiting: &Waiting| {
            waiting.event.handle == handle && waiting.event.what == EventType::ConnectRequest
        };
        let unread = self.channel_mut(channel).map_or(Vec::new(), |channel| channel.take_back(is_request));
        if !unread.is_empty() {
            self.drop_id(None, handle);
        }
    }

    /// Creates an identifier for a request and reports it to the listener. Rejects the request if that fails.
    fn create_child(&mut self, cm: &mut Cm<'_>, random: u64, asked: IncomingRequest<'_>) {
        let refused = |why: &str| {
            let (service, from) = (asked.service, asked.route.remote);
            report::info("a request", format_args!("{} {service} from {from} refused: {why}", asked.kind));
        };
        let Some(handle) = self.listening(asked.listener) else {
            return cm.manager.destroy(cm.now, asked.comm);
        };
        let Some(listener) = self.ids.get_mut(handle) else { return cm.manager.destroy(cm.now, asked.comm) };
        if listener.qp_type != asked.qp_type {
            refused("the listener is for another kind of QP");
            return cm.manager.destroy(cm.now, asked.comm);
        }
        let (channel, uid) = (listener.channel, listener.uid);
        let made =
            Made { uid: 0, channel, space: listener.space, qp_type: asked.qp_type, psn: State::psn(random) };
        let Ok(child) = self.create(made) else { return cm.manager.destroy(cm.now, asked.comm) };
        let port = asked.service.0 as u16;
        if let Some(id) = self.ids.get_mut(child) {
            id.source = Some(SocketAddr::new(asked.route.local.to_ip(), port));
            id.destination = Some(SocketAddr::new(asked.header.source, asked.header.source_port));
            (id.stage, id.on_device, id.comm, id.path) =
                (IdState::Connect, true, Some(asked.comm), asked.path);
        }
        self.by_comm.insert(asked.comm, child);
        let event =
            Event { uid, handle: child, what: EventType::ConnectRequest, status: 0, facts: asked.facts };
        self.queue(channel, Waiting { of: handle, group: None, event });
    }

    /// Reports the QP that serves a datagram port, and the path to it.
    fn handle_sidr_reply(&mut self, around: &GidLookup<'_>, handle: u32, route: &Route, reply: &SidrRep) {
        if reply.status != SidrStatus::VALID {
            let facts = Facts::Datagram(DatagramFacts::default());
            return self.queue_event(handle, EventType::Unreachable, reply.status.0.into(), facts);
        }
        let Some(sgid_index) = (around.sgid_index)(route.source()) else {
            return self.queue_event(handle, EventType::AddressError, -libc::EINVAL, Facts::None);
        };
        let facts = Facts::Datagram(DatagramFacts {
            qpn: reply.qpn.value(),
            qkey: reply.qkey,
            ah_path: Some(AhPath::of(route, sgid_index)),
            private_data: padded(&reply.private_data, SIDR_REP_ROOM),
        });
        self.queue_event(handle, EventType::Established, 0, facts);
    }
}

fn facts_of_reply(reply: &Rep) -> ConnectionFacts {
    ConnectionFacts {
        qpn: reply.local_qpn.value(),
        private_data: padded(&reply.private_data, REP_ROOM),
        srq: reply.srq,
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.end_to_end_flow_control,
        retry_count: 0,
        rnr_retry_count: reply.rnr_retry_count,
    }
}
