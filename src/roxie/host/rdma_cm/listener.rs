//! Listeners and connection requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::device_slot::DeviceSlot;
use super::super::pd::ProtectionDomain;
use super::super::qp::QueuePair;
use super::connection::{Connection, ConnectionLine, failure, set_up};
use super::dispatcher::{Events, is_pending};
use super::{DialError, DialOptions, Dialed, Shared, local_qp};
use roxie_base::roster::{BoundPort, PortName, PortRequest};
use roxie_nic::cm::{AcceptOptions, Event, ListenOn, Listener, Route};
use roxie_nic::verbs::Mtu;
use roxie_wire::cm::{Ari, Kind, PrivateData, RejReason, Req};
use roxie_wire::{CmaHeader, PortSpace, ServiceId};

/// A listener on a port. Dropping it ends listening and refuses pending requests.
#[derive(Debug)]
pub struct PortListener {
    pub(super) shared: Arc<Shared>,
    name: Listener,
    pub(super) requests: Events,
    // Released after listening has ended: `Drop::drop` runs before the fields are dropped.
    _port: Option<ReservedPort>,
}

/// A port number that this listener has reserved among the processes that share the device. Dropping it releases the
/// number.
#[derive(Debug)]
struct ReservedPort {
    slot: DeviceSlot,
    name: PortName,
}

impl ReservedPort {
    fn bind(shared: &Shared, on: SocketAddr) -> Result<Option<ReservedPort>, DialError> {
        let Some(slot) = shared.device.slot().cloned() else { return Ok(None) };
        let owner = shared.next_owner.fetch_add(1, Relaxed);
        let name = PortName { space: PortSpace::Tcp as u16, port: on.port(), owner };
        let port =
            BoundPort { name, address: on.ip(), reuse: false, one_family: on.is_ipv4(), slot: 0, uid: 0 };
        slot.port(PortRequest::Bind(port)).map_err(|source| DialError::Port { at: on, source })?;
        Ok(Some(ReservedPort { slot, name }))
    }
}

impl Drop for ReservedPort {
    fn drop(&mut self) {
        // A NIC that is gone has released it.
        let _ = self.slot.port(PortRequest::Release(self.name));
    }
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.shared.with(|manager, dispatcher, now| {
            manager.stop_listening(self.name);
            dispatcher.ignore(self.name);
            for event in self.requests.pending() {
                manager.destroy(now, event.id());
            }
        });
    }
}

/// Implements [`super::ConnectionManager::listen`].
pub(super) fn listen(
    shared: &Arc<Shared>,
    on: SocketAddr,
    backlog: u32,
    until_confirmed: bool,
) -> Result<PortListener, DialError> {
    let service = ServiceId::of_port(PortSpace::Tcp, on.port());
    let addresses = match on.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => ListenOn::AnyIpv4,
        IpAddr::V6(v6) if v6.is_unspecified() => ListenOn::Any,
        ip => ListenOn::Address(ip.into()),
    };
    let port = ReservedPort::bind(shared, on)?;
    shared.with(|manager, dispatcher, _| {
        let name = if until_confirmed {
            manager.listen_until_confirmed(service, addresses, backlog)?
        } else {
            manager.listen(service, addresses, backlog)?
        };
        let requests = dispatcher.attend(name, backlog);
        Ok(PortListener { shared: Arc::clone(shared), name, requests, _port: port })
    })
}

impl PortListener {
    /// Returns the next connection request. `None`: none came in time.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn accept(&self, timeout: Duration) -> Result<Option<ConnectionRequest>, DialError> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let remaining =
                until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match self.requests.wait(&self.shared.device, remaining).map(|event| self.request(event)) {
                Some(None) => {}
                Some(request) => return Ok(request),
                None if self.shared.device.has_failed() => return Err(DialError::DeviceFailed),
                None => return Ok(None),
            }
        }
    }

    /// Accepts the next connection, with a protection domain, a completion queue and a QP made for it, and default
    /// options: what [`ConnectionManager::dial`](super::ConnectionManager::dial) does at the other end. `prepare` posts
    /// the receives for the peer's first messages, and returns what they need. `None`: no request came in time.
    ///
    /// # Errors
    /// Those of [`PortListener::accept`], [`ConnectionRequest::accept`] and `prepare`; also if the device has no room
    /// for the objects. A peer that gives up is an error of its connection: serve the next.
    pub fn serve<T>(
        &self,
        timeout: Duration,
        prepare: impl FnOnce(&ProtectionDomain, &QueuePair) -> Result<T, DialError>,
    ) -> Result<Option<(Dialed, T)>, DialError> {
        let Some(request) = self.accept(timeout)? else { return Ok(None) };
        let options = DialOptions::default();
        let (pd, cq, qp) = self.shared.objects()?;
        qp.initialize(options.access)?;
        let prepared = prepare(&pd, &qp)?;
        let connection = request.accept(qp, &options)?;
        Ok(Some((Dialed { connection, pd, cq }, prepared)))
    }

    /// Returns the pending requests.
    pub(super) fn pending(&self) -> impl Iterator<Item = ConnectionRequest> {
        self.requests.pending().filter_map(|event| self.request(event))
    }

    /// Waits for the next connection request without blocking the thread. Not for devices with
    /// [`Drive::CallerOnly`](crate::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// If the device has failed.
    #[cfg(feature = "tokio")]
    pub async fn next(&self) -> Result<ConnectionRequest, DialError> {
        loop {
            let event = self.requests.next(&self.shared.device).await.ok_or(DialError::DeviceFailed)?;
            if let Some(request) = self.request(event) {
                return Ok(request);
            }
        }
    }

    /// Takes a request out of the backlog. `None`: it has ended meanwhile.
    fn request(&self, event: Event) -> Option<ConnectionRequest> {
        let Event::Request { id, request, route, .. } = event else {
            unreachable!("a listener hears of requests alone")
        };
        // Earlier events of this connection were discarded.
        let events = self.shared.with(|manager, dispatcher, _| {
            manager.take(id);
            is_pending(manager, id).then(|| dispatcher.follow(id))
        })?;
        let line = ConnectionLine { shared: Arc::clone(&self.shared), id, events };
        let header = CmaHeader::read(&request.private_data);
        let (ip, port) = header.map_or((route.remote.to_ip(), 0), |h| (h.source, h.source_port));
        Some(ConnectionRequest { line, request, route, peer: SocketAddr::new(ip, port) })
    }
}

/// A pending connection request. Dropping it refuses the connection.
#[derive(Debug)]
pub struct ConnectionRequest {
    pub(super) line: ConnectionLine,
    request: Box<Req>,
    /// Path to the peer.
    pub(super) route: Route,
    peer: SocketAddr,
}

impl ConnectionRequest {
    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The consumer's private data: 56 bytes, padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        CmaHeader::behind(&self.request.private_data)
    }

    /// The REQ message.
    pub fn request(&self) -> &Req {
        &self.request
    }

    /// Connects a QP to the peer, and waits until the peer is ready. Post receives for its first messages before, in
    /// INIT.
    ///
    /// # Errors
    /// If the peer has given up or no longer answers, or the link does not carry its path MTU, in which case the
    /// request is rejected. The QP is destroyed.
    pub fn accept(self, qp: QueuePair, options: &DialOptions) -> Result<Connection, DialError> {
        self.answer(&qp, options)?;
        let event = self.line.next_event(Duration::MAX);
        confirmed(self.line, qp, self.peer, event)
    }

    /// As [`ConnectionRequest::accept`], without blocking the thread while the peer is awaited. If the kernel does not
    /// know the peer's next hop, resolving it blocks, for 3 s at most. Not for devices with
    /// [`Drive::CallerOnly`](crate::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// The errors of [`ConnectionRequest::accept`].
    #[cfg(feature = "tokio")]
    pub async fn accept_async(self, qp: QueuePair, options: &DialOptions) -> Result<Connection, DialError> {
        self.answer(&qp, options)?;
        let event = self.line.next().await;
        confirmed(self.line, qp, self.peer, event)
    }

    /// Moves the QP to RTS, and sends the REP; rejects the request if the link does not carry its path MTU.
    pub(super) fn answer(&self, qp: &QueuePair, options: &DialOptions) -> Result<(), DialError> {
        let ConnectionRequest { line, peer, .. } = self;
        let (shared, id, peer) = (&line.shared, line.id, *peer);
        let mut parameters = shared.with(|manager, _, _| manager.parameters(id))?;
        let largest = shared.device.largest_mtu();
        if parameters.path_mtu > largest {
            let requested = parameters.path_mtu.bytes();
            refuse_mtu(line, largest)?;
            return Err(DialError::PathMtu { peer, requested, largest: largest.bytes() });
        }
        let local = local_qp(qp);
        parameters.rq_psn = local.psn;
        parameters.max_dest_rd_atomic = parameters.max_dest_rd_atomic.min(options.responder_resources);
        parameters.max_rd_atomic = parameters.max_rd_atomic.min(options.initiator_depth);
        // The QP must be able to respond before the peer receives the REP.
        set_up(shared, qp, &parameters, options)?;
        let acceptance = AcceptOptions {
            qp: local,
            responder_resources: options.responder_resources,
            initiator_depth: options.initiator_depth,
            rnr_retry_count: options.rnr_retry_count,
            flow_control: false,
            private_data: PrivateData::new(Kind::Rep, &options.private_data)?,
        };
        shared.with(|manager, _, now| manager.accept(now, id, &acceptance))?;
        Ok(())
    }

    /// Rejects the connection, with up to 148 bytes of private data.
    ///
    /// # Errors
    /// If the peer has given up, or the private data is too long.
    pub fn reject(self, private_data: &[u8]) -> Result<(), DialError> {
        self.refuse(private_data)
    }

    pub(super) fn refuse(&self, private_data: &[u8]) -> Result<(), DialError> {
        let private_data = PrivateData::new(Kind::Rej, private_data)?;
        let id = self.line.id;
        self.line
            .shared
            .with(|manager, _, now| manager.reject(now, id, RejReason::CONSUMER, Ari::NONE, private_data))?;
        Ok(())
    }
}

/// Returns the connection of an answered request, after the event that followed the answer.
pub(super) fn confirmed(
    line: ConnectionLine,
    qp: QueuePair,
    peer: SocketAddr,
    event: Option<Event>,
) -> Result<Connection, DialError> {
    match event {
        Some(Event::Established { private_data, .. }) => Ok(Connection::new(line, qp, peer, private_data)),
        other => Err(failure(peer, other)),
    }
}

fn refuse_mtu(line: &ConnectionLine, largest: Mtu) -> Result<(), DialError> {
    let ari = Ari::new(&[largest as u8]);
    line.shared.with(|manager, _, now| {
        manager.reject(now, line.id, RejReason::INVALID_MTU, ari, PrivateData::EMPTY)
    })?;
    Ok(())
}
