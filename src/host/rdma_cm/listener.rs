//! Listening on a port, and answering those who ask.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::super::adapter::Seat;
use super::super::qp::QueuePair;
use super::connection::{Connection, Line, failure, set_up, wait};
use super::{DialError, DialOptions, Shared, local_qp};
use crate::cm::{AcceptOptions, Event, ListenOn, Listener};
use crate::roster::{BoundPort, PortName, PortRequest};
use crate::verbs::Mtu;
use crate::wire::cm::{Ari, Kind, PrivateData, RejReason, Req};
use crate::wire::{CmaHeader, PortSpace, ServiceId};

/// Somebody who listens on a port. Dropping it ends that; requests that wait are refused.
#[derive(Debug)]
pub struct PortListener {
    shared: Arc<Shared>,
    name: Listener,
    requests: Receiver<Event>,
    // After the listener has gone: `Drop` comes before its fields'.
    _port: Option<Held>,
}

/// A port number that processes which share the device leave to this listener. It is given back when this is dropped.
#[derive(Debug)]
struct Held {
    seat: Seat,
    name: PortName,
}

impl Held {
    fn bind(shared: &Shared, on: SocketAddr) -> Result<Option<Held>, DialError> {
        let Some(seat) = shared.device.seat().cloned() else { return Ok(None) };
        let owner = shared.next_owner.fetch_add(1, Relaxed);
        let name = PortName { space: PortSpace::Tcp as u16, port: on.port(), owner };
        let port =
            BoundPort { name, address: on.ip(), reuse: false, one_family: on.is_ipv4(), slot: 0, uid: 0 };
        seat.port(PortRequest::Bind(port)).map_err(|source| DialError::Port { at: on, source })?;
        Ok(Some(Held { seat, name }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A NIC that is gone has forgotten it.
        let _ = self.seat.port(PortRequest::Release(self.name));
    }
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.shared.with(|manager, switchboard, now| {
            manager.stop_listening(self.name);
            switchboard.ignore(self.name);
            for event in self.requests.try_iter() {
                manager.destroy(now, event.id());
            }
        });
    }
}

/// See [`super::ConnectionManager::listen`].
pub(super) fn listen(shared: &Arc<Shared>, on: SocketAddr, backlog: u32) -> Result<PortListener, DialError> {
    let service = ServiceId::of_port(PortSpace::Tcp, on.port());
    let addresses = match on.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => ListenOn::AnyIpv4,
        IpAddr::V6(v6) if v6.is_unspecified() => ListenOn::Any,
        ip => ListenOn::Address(ip.into()),
    };
    let port = Held::bind(shared, on)?;
    shared.with(|manager, switchboard, _| {
        let name = manager.listen(service, addresses, backlog)?;
        let requests = switchboard.attend(name, backlog);
        Ok(PortListener { shared: Arc::clone(shared), name, requests, _port: port })
    })
}

impl PortListener {
    /// The next request. `None`: none came in time.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn accept(&self, timeout: Duration) -> Result<Option<ConnectionRequest>, DialError> {
        let Some(event) = wait(&self.shared, &self.requests, timeout) else {
            return if self.shared.device.has_failed() { Err(DialError::DeviceFailed) } else { Ok(None) };
        };
        let Event::Request { id, request, route, .. } = event else {
            unreachable!("a listener hears of requests alone")
        };
        // What has happened to it meanwhile is told to nobody: then an answer finds it over.
        let events = self.shared.with(|_, switchboard, _| switchboard.follow(id));
        let line = Line { shared: Arc::clone(&self.shared), id, events };
        let header = CmaHeader::read(&request.private_data);
        let (ip, port) = header.map_or((route.remote.to_ip(), 0), |h| (h.source, h.source_port));
        Ok(Some(ConnectionRequest { line, request, peer: SocketAddr::new(ip, port) }))
    }
}

/// Somebody who asks for a connection. Dropping it refuses.
#[derive(Debug)]
pub struct ConnectionRequest {
    line: Line,
    request: Box<Req>,
    peer: SocketAddr,
}

impl ConnectionRequest {
    /// Who asks, and from which port.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What its consumer gave along: 56 bytes, zeros fill them up.
    pub fn private_data(&self) -> &[u8] {
        CmaHeader::behind(&self.request.private_data)
    }

    /// The request as it came.
    pub fn request(&self) -> &Req {
        &self.request
    }

    /// Connects a QP to the peer, and waits until it is ready too. Receives for its first messages are posted before, in INIT.
    ///
    /// # Errors
    /// If the peer has given up, or does not answer any more; if the link does not carry the path MTU that it asks for, which it is
    /// told. The QP is destroyed.
    pub fn accept(self, qp: QueuePair, options: &DialOptions) -> Result<Connection, DialError> {
        let ConnectionRequest { line, peer, .. } = self;
        let (shared, id) = (Arc::clone(&line.shared), line.id);
        let mut parameters = shared.with(|manager, _, _| manager.parameters(id))?;
        let largest = shared.device.largest_mtu();
        if parameters.path_mtu > largest {
            let asked = parameters.path_mtu.bytes();
            refuse_mtu(&line, largest)?;
            return Err(DialError::PathMtu { peer, asked, largest: largest.bytes() });
        }
        let local = local_qp(&qp);
        parameters.rq_psn = local.psn;
        parameters.max_dest_rd_atomic = parameters.max_dest_rd_atomic.min(options.responder_resources);
        parameters.max_rd_atomic = parameters.max_rd_atomic.min(options.initiator_depth);
        // The QP answers before the peer hears that it may ask.
        set_up(&shared, &qp, &parameters, options)?;
        let acceptance = AcceptOptions {
            qp: local,
            responder_resources: options.responder_resources,
            initiator_depth: options.initiator_depth,
            rnr_retry_count: options.rnr_retry_count,
            flow_control: false,
            private_data: PrivateData::new(Kind::Rep, &options.private_data)?,
        };
        shared.with(|manager, _, now| manager.accept(now, id, &acceptance))?;
        match line.hear(Duration::MAX) {
            Some(Event::Established { private_data, .. }) => {
                Ok(Connection::new(line, qp, peer, private_data))
            }
            other => Err(failure(peer, other)),
        }
    }

    /// Refuses, with at most 148 bytes of the consumer's.
    ///
    /// # Errors
    /// If the peer has given up, or the private data is too long.
    pub fn reject(self, private_data: &[u8]) -> Result<(), DialError> {
        let private_data = PrivateData::new(Kind::Rej, private_data)?;
        let id = self.line.id;
        self.line
            .shared
            .with(|manager, _, now| manager.reject(now, id, RejReason::CONSUMER, Ari::NONE, private_data))?;
        Ok(())
    }
}

fn refuse_mtu(line: &Line, largest: Mtu) -> Result<(), DialError> {
    let ari = Ari::new(&[largest as u8]);
    line.shared.with(|manager, _, now| {
        manager.reject(now, line.id, RejReason::INVALID_MTU, ari, PrivateData::EMPTY)
    })?;
    Ok(())
}
