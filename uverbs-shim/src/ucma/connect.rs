//! Connections: `rdma_listen`, `rdma_connect`, `rdma_accept`, `rdma_reject`, `rdma_disconnect`.

use std::net::SocketAddr;

use roxie::cm::{
    AcceptOptions, CmError, ConnectRequest, ConnectionState, ListenOn, Listener, LocalQp, ResolveAnswer,
    ResolveRequest, Route,
};
use roxie::wire::cm::{Ari, Kind, PrivateData, RejReason, SidrStatus};
use roxie::wire::service_id::{CmaHeader, RDMA_UDP_QKEY, port_flow_label};
use roxie::wire::{Gid, Qpn};

use super::event::ConnectionFacts;
use super::id::{Id, IdState, transport_of};
use super::state::{Cm, State};
use crate::base::object::Errno;
use crate::base::report;

/// Backlog of a listener that does not specify one (`net.rdma_ucm.max_backlog`).
const BACKLOG: u32 = 1024;

impl State {
    /// Starts to listen.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is not bound; `EADDRINUSE` or `EADDRNOTAVAIL` if another identifier shares its port;
    /// `ENOMEM`.
    pub(super) fn listen(
        &mut self,
        cm: &mut Cm<'_>,
        channel: u64,
        handle: u32,
        backlog: u32,
    ) -> Result<(), Errno> {
        let id = self.id(channel, handle)?;
        let (IdState::Bound, Some(source)) = (id.stage, id.source) else { return Err(libc::EINVAL) };
        let (service, one_family) = (id.service(source.port()), id.options.one_family == Some(true));
        let on_device = id.on_device;
        let (space, port) = State::port_of(id).ok_or(libc::EINVAL)?;
        self.ports.listen(space, port, handle)?;
        // An identifier bound to a loopback address listens like one bound to a wildcard address.
        let on = match source.ip() {
            ip if on_device => ListenOn::Address(Gid::from(ip)),
            ip if ip.is_ipv4() => ListenOn::AnyIpv4,
            _ if one_family => ListenOn::AnyIpv6,
            _ => ListenOn::Any,
        };
        let backlog = if backlog == 0 || backlog > BACKLOG { BACKLOG } else { backlog };
        let listener = cm.manager.listen(service, on, backlog).map_err(errno("rdma_listen"))?;
        self.by_listener.insert(listener, handle);
        let id = self.id(channel, handle)?;
        id.listeners.push(listener);
        id.stage = IdState::Listen;
        Ok(())
    }

    /// Requests a connection from the destination, or asks for the QP that serves a datagram port.
    ///
    /// # Errors
    /// `EINVAL` if there is no route yet, too much private data, or the QP type is not connected.
    pub(super) fn connect(
        &mut self,
        cm: &mut Cm<'_>,
        channel: u64,
        handle: u32,
        wish: &ConnectionFacts,
    ) -> Result<(), Errno> {
        const CALL: &str = "rdma_connect";
        let id = self.id_on_device(channel, handle)?;
        let (IdState::RouteResolved, Some(source), Some(destination)) = (id.stage, id.source, id.destination)
        else {
            return Err(libc::EINVAL);
        };
        let kind = if id.is_datagram() { Kind::SidrReq } else { Kind::Req };
        let header =
            CmaHeader { source: source.ip(), source_port: source.port(), destination: destination.ip() };
        let private_data = private_data(CALL, kind, &header.to_bytes(), &wish.private_data)?;
        (id.qpn, id.srq) = (qpn(wish.qpn), wish.srq);
        let comm = if id.is_datagram() {
            let request = ResolveRequest {
                private_data,
                ..ResolveRequest::new(id.service(destination.port()), route(cm, id, source, destination))
            };
            cm.manager.resolve(cm.now, &request)
        } else {
            let request = request(cm, id, source, destination, wish, private_data)?;
            cm.manager.connect(cm.now, &request)
        };
        let comm = comm.map_err(errno(CALL))?;
        (id.stage, id.comm) = (IdState::Connect, Some(comm));
        self.by_comm.insert(comm, handle);
        Ok(())
    }

    /// Accepts a request. Without parameters, confirms a reply: the QP is ready.
    ///
    /// # Errors
    /// `EINVAL` if no request or reply is pending, or too much private data. The peer is then rejected, as by the
    /// kernel.
    pub(super) fn accept(
        &mut self,
        cm: &mut Cm<'_>,
        channel: u64,
        handle: u32,
        accepted: Option<(u64, ConnectionFacts)>,
    ) -> Result<(), Errno> {
        const CALL: &str = "rdma_accept";
        let id = self.id_on_device(channel, handle)?;
        let (IdState::Connect, Some(comm)) = (id.stage, id.comm) else { return Err(libc::EINVAL) };
        let done = match &accepted {
            Some((_, wish)) if id.is_datagram() => private_data(CALL, Kind::SidrRep, &[], &wish.private_data)
                .and_then(|private_data| {
                    let answer = ResolveAnswer {
                        status: SidrStatus::VALID,
                        qpn: qpn(wish.qpn),
                        qkey: RDMA_UDP_QKEY,
                        private_data,
                        ..ResolveAnswer::default()
                    };
                    cm.manager.answer_resolution(cm.now, comm, &answer).map_err(errno(CALL))
                }),
            Some((_, wish)) => {
                (id.qpn, id.srq) = (qpn(wish.qpn), wish.srq);
                private_data(CALL, Kind::Rep, &[], &wish.private_data).and_then(|private_data| {
                    let options = AcceptOptions {
                        qp: LocalQp { qpn: id.qpn, psn: id.psn, srq: wish.srq },
                        responder_resources: wish.responder_resources,
                        initiator_depth: wish.initiator_depth,
                        rnr_retry_count: wish.rnr_retry_count.min(7),
                        flow_control: wish.flow_control,
                        private_data,
                    };
                    cm.manager.accept(cm.now, comm, &options).map_err(errno(CALL))
                })
            }
            None if id.is_datagram() => Err(libc::EINVAL),
            None => cm.manager.ready(comm, PrivateData::EMPTY).map_err(errno(CALL)),
        };
        match (done, accepted) {
            (Ok(()), accepted) => {
                if let Some((uid, _)) = accepted {
                    id.uid = uid;
                }
                Ok(())
            }
            (Err(errno), _) => {
                let _ = self.reject(cm, channel, handle, RejReason::CONSUMER, &[]);
                Err(errno)
            }
        }
    }

    /// Rejects a request or a reply.
    ///
    /// # Errors
    /// `EINVAL` if no request or reply is pending, or too much private data.
    pub(super) fn reject(
        &mut self,
        cm: &mut Cm<'_>,
        channel: u64,
        handle: u32,
        reason: RejReason,
        data: &[u8],
    ) -> Result<(), Errno> {
        const CALL: &str = "rdma_reject";
        let id = self.id_on_device(channel, handle)?;
        let Some(comm) = id.comm else { return Err(libc::EINVAL) };
        if id.is_datagram() {
            let private_data = private_data(CALL, Kind::SidrRep, &[], data)?;
            let answer =
                ResolveAnswer { status: SidrStatus::REJECTED, private_data, ..ResolveAnswer::default() };
            return cm.manager.answer_resolution(cm.now, comm, &answer).map_err(errno(CALL));
        }
        let private_data = private_data(CALL, Kind::Rej, &[], data)?;
        cm.manager.reject(cm.now, comm, reason, Ari::NONE, private_data).map_err(errno(CALL))?;
        // No further events are expected.
        id.comm = None;
        self.by_comm.remove(&comm);
        Ok(())
    }

    /// Disconnects, or confirms the peer's disconnection. Does nothing if the connection is over already.
    ///
    /// # Errors
    /// `EINVAL` if there was no connection.
    pub(super) fn disconnect(&mut self, cm: &mut Cm<'_>, channel: u64, handle: u32) -> Result<(), Errno> {
        let id = self.id_on_device(channel, handle)?;
        let Some(comm) = id.comm else {
            // The connection existed and is over.
            let over = matches!(id.stage, IdState::Connect | IdState::Disconnect);
            return if over { Ok(()) } else { Err(libc::EINVAL) };
        };
        match cm.manager.disconnect(cm.now, comm, PrivateData::EMPTY) {
            Ok(()) | Err(CmError::State { .. } | CmError::Unknown { .. }) => Ok(()),
            Err(error) => Err(errno("rdma_disconnect")(error)),
        }
    }

    /// Reports that data arrived over a connection before its RTU.
    ///
    /// # Errors
    /// `EISCONN` if the connection is established already, `EINVAL` if there is none.
    pub(super) fn established(&mut self, cm: &mut Cm<'_>, channel: u64, handle: u32) -> Result<(), Errno> {
        let id = self.id_on_device(channel, handle)?;
        let Some(comm) = id.comm else { return Err(libc::EINVAL) };
        if cm.manager.state(comm) == Some(ConnectionState::Established) {
            return Err(libc::EISCONN);
        }
        cm.manager.established(comm).map_err(errno("rdma_notify"))
    }

    /// Returns the handle of the identifier with this listener.
    pub(super) fn listening(&self, listener: Listener) -> Option<u32> {
        self.by_listener.get(&listener).copied()
    }
}

/// Returns the route of an identifier's messages.
fn route(cm: &Cm<'_>, id: &Id, source: SocketAddr, destination: SocketAddr) -> Route {
    let usual = Route::new(source.ip(), destination.ip());
    Route {
        encapsulation: (cm.local_gid)(source.ip().into()).encapsulation,
        traffic_class: id.path.map_or(0, |path| path.traffic_class),
        flow_label: port_flow_label(source.port(), destination.port()),
        hop_limit: id.path.map_or(usual.hop_limit, |path| path.hop_limit),
        ..usual
    }
}

fn request(
    cm: &Cm<'_>,
    id: &Id,
    source: SocketAddr,
    destination: SocketAddr,
    wish: &ConnectionFacts,
    private_data: PrivateData,
) -> Result<ConnectRequest, Errno> {
    let (Some(transport), Some(path)) = (transport_of(id.qp_type), id.path) else { return Err(libc::EINVAL) };
    let qp = LocalQp { qpn: id.qpn, psn: id.psn, srq: wish.srq };
    let service = id.service(destination.port());
    Ok(ConnectRequest {
        transport,
        packet_lifetime: path.packet_lifetime.min(30),
        responder_resources: wish.responder_resources,
        initiator_depth: wish.initiator_depth,
        retry_count: wish.retry_count.min(7),
        rnr_retry_count: wish.rnr_retry_count.min(7),
        flow_control: wish.flow_control,
        private_data,
        ..ConnectRequest::new(service, route(cm, id, source, destination), qp, path.mtu)
    })
}

fn qpn(told: u32) -> Qpn {
    Qpn::new(told & 0x00ff_ffff)
}

fn private_data(call: &str, kind: Kind, header: &[u8], data: &[u8]) -> Result<PrivateData, Errno> {
    let all = [header, data].concat();
    PrivateData::new(kind, &all).or_else(|error| report::refuse(call, libc::EINVAL, error))
}

fn errno(call: &'static str) -> impl Fn(CmError) -> Errno {
    move |error| {
        report::info(call, &error);
        match error {
            CmError::Full { .. } => libc::ENOMEM,
            CmError::InUse { .. } => libc::EADDRINUSE,
            _ => libc::EINVAL,
        }
    }
}
