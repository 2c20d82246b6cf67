//! A connection and its QP, from the first message to the last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::ah_options::AhOptions;
use super::super::cq::{CompletionQueue, WaitError};
use super::super::qp::QueuePair;
use super::dispatcher::Events;
use super::{DialError, DialOptions, Shared, local_qp};
use roxie_nic::cm::{Event, Parameters, Route, WhyUnreachable};
use roxie_nic::verbs::{LocalGid, QpAttr, QpState, Wc};
use roxie_wire::cm::{CommId, PrivateData};

/// Interval at which a wait for a completion looks for the end of the connection.
const LOOK_FOR_END: Duration = Duration::from_millis(100);

/// The peer has ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has ended the connection")]
pub struct ConnectionEnded;

/// A connection. Dropping it ends the connection and notifies the peer.
#[derive(Debug)]
pub struct Connection {
    line: ConnectionLine,
    qp: QueuePair,
    peer: SocketAddr,
    private_data: PrivateData,
    has_ended: AtomicBool,
}

/// A connection's ID and its events.
#[derive(Debug)]
pub(super) struct ConnectionLine {
    pub(super) shared: Arc<Shared>,
    pub(super) id: CommId,
    pub(super) events: Events,
}

impl Drop for ConnectionLine {
    fn drop(&mut self) {
        self.shared.with(|manager, dispatcher, now| {
            manager.destroy(now, self.id);
            dispatcher.leave(self.id);
        });
    }
}

impl ConnectionLine {
    /// Returns the next event. `None`: none came in time, or no more will come.
    pub(super) fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.events.wait(&self.shared.device, timeout)
    }

    /// Returns the next event, without blocking the thread. `None`: no more will come.
    #[cfg(feature = "tokio")]
    pub(super) async fn next(&self) -> Option<Event> {
        self.events.next(&self.shared.device).await
    }
}

/// Moves a QP to RTR and RTS with the parameters that both ends agreed on.
pub(super) fn set_up(
    shared: &Shared,
    qp: &QueuePair,
    parameters: &Parameters,
    options: &DialOptions,
) -> Result<(), DialError> {
    let route = parameters.route;
    let av = shared.device.address_vector(route.source(), route.remote, &ah_options(&route))?;
    if qp.query()?.state == QpState::Reset {
        qp.initialize(options.access)?;
    }
    let rtr = parameters.rtr(av, options.min_rnr_timer);
    qp.modify(&rtr.expect("the peer's QP is known by now"))?;
    qp.modify(&parameters.rts())?;
    Ok(())
}

/// Returns the options of a QP's path.
pub(super) fn ah_options(route: &Route) -> AhOptions {
    AhOptions {
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        flow_label: route.flow_label,
        ..AhOptions::default()
    }
}

/// Implements [`super::ConnectionManager::connect`].
pub(super) fn connect(
    shared: &Arc<Shared>,
    qp: QueuePair,
    to: SocketAddr,
    options: &DialOptions,
) -> Result<Connection, DialError> {
    let local = shared.local_gid(to.ip(), options)?;
    // Resolve the path before the first message is sent.
    shared.device.address_vector(local, to.ip().into(), &AhOptions::default())?;
    let line = request(shared, &qp, local, to, options)?;
    let event = line.next_event(Duration::MAX);
    established(line, qp, to, event, options)
}

/// As [`connect`], without blocking the thread. The manager resolves the path.
#[cfg(feature = "tokio")]
pub(super) async fn connect_async(
    shared: &Arc<Shared>,
    qp: QueuePair,
    to: SocketAddr,
    options: &DialOptions,
) -> Result<Connection, DialError> {
    // Reports what is known to be wrong with the path, and starts its resolution.
    let local = shared.local_gid(to.ip(), options)?;
    shared.device.address_vector_now(local, to.ip().into(), &AhOptions::default(), true)?;
    let line = request(shared, &qp, local, to, options)?;
    let event = line.next().await;
    established(line, qp, to, event, options)
}

/// Sends the REQ of a connection.
fn request(
    shared: &Arc<Shared>,
    qp: &QueuePair,
    local: LocalGid,
    to: SocketAddr,
    options: &DialOptions,
) -> Result<ConnectionLine, DialError> {
    let request = shared.request(local_qp(qp), local, to, options)?;
    let (id, events) = shared.with(|manager, dispatcher, now| {
        let id = manager.connect(now, &request)?;
        Ok::<_, DialError>((id, dispatcher.follow(id)))
    })?;
    Ok(ConnectionLine { shared: Arc::clone(shared), id, events })
}

/// Completes a connection after the first event that follows its REQ.
fn established(
    line: ConnectionLine,
    qp: QueuePair,
    peer: SocketAddr,
    event: Option<Event>,
    options: &DialOptions,
) -> Result<Connection, DialError> {
    let Some(Event::Reply { reply, .. }) = event else { return Err(failure(peer, event)) };
    let (shared, id) = (&line.shared, line.id);
    let parameters = shared.with(|manager, _, _| manager.parameters(id))?;
    set_up(shared, &qp, &parameters, options)?;
    shared.with(|manager, _, _| manager.ready(id, PrivateData::EMPTY))?;
    Ok(Connection::new(line, qp, peer, reply.private_data))
}

/// Returns the error for an event other than the expected one.
pub(super) fn failure(peer: SocketAddr, event: Option<Event>) -> DialError {
    match event {
        Some(Event::Rejected { reject, .. }) => {
            DialError::Rejected { peer, reason: reject.reason, private_data: reject.private_data.to_vec() }
        }
        Some(Event::Unreachable { why: WhyUnreachable::NothingThere, .. }) => {
            DialError::NothingThere { peer }
        }
        Some(Event::Unreachable { unanswered, .. }) => DialError::Unreachable { peer, sent: unanswered },
        Some(_) => DialError::Ended { peer },
        None => DialError::DeviceFailed,
    }
}

impl Connection {
    pub(super) fn new(
        line: ConnectionLine,
        qp: QueuePair,
        peer: SocketAddr,
        private_data: PrivateData,
    ) -> Connection {
        Connection { line, qp, peer, private_data, has_ended: AtomicBool::new(false) }
    }

    /// Its QP, in RTS.
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// The peer's address. For an accepted connection, with the port that the peer connected from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Private data of the peer: from its reply, or for an accepted connection from its ready message. Padded with
    /// zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the parameters that both ends agreed on.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn parameters(&self) -> Result<Parameters, DialError> {
        Ok(self.line.shared.with(|manager, _, _| manager.parameters(self.line.id))?)
    }

    /// Waits until the peer ends the connection or no longer knows it, and agrees to it. Outstanding work requests are
    /// flushed. False: neither happened in time.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let Some(event) = self.line.next_event(timeout) else { return false };
        self.end(&event);
        true
    }

    /// Waits for a completion of `cq`, as long as the connection lasts. `None`: none came in time.
    ///
    /// # Errors
    /// If the peer has ended the connection, as [`Connection::wait_for_end`] tells.
    pub fn wait_for_completion(
        &self,
        cq: &CompletionQueue,
        timeout: Duration,
    ) -> Result<Option<Wc>, ConnectionEnded> {
        let until = Instant::now() + timeout;
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            match cq.wait(remaining.min(LOOK_FOR_END)) {
                Ok(wc) => return Ok(Some(wc)),
                Err(WaitError::DeviceFailed) => return Ok(None),
                Err(WaitError::TimedOut(_)) => {}
            }
            if self.wait_for_end(Duration::ZERO) {
                return Err(ConnectionEnded);
            }
            if remaining.is_zero() {
                return Ok(None);
            }
        }
    }

    /// As [`Connection::wait_for_end`], without a timeout and without blocking the thread. Also returns if the device
    /// fails, and immediately if the connection has ended. Not for devices with
    /// [`Drive::CallerOnly`](crate::host::Drive::CallerOnly).
    #[cfg(feature = "tokio")]
    pub async fn ended(&self) {
        if !self.has_ended.load(Relaxed)
            && let Some(event) = self.line.next().await
        {
            self.end(&event);
        }
    }

    /// Agrees to the end of a connection, and flushes its work requests.
    fn end(&self, event: &Event) {
        self.has_ended.store(true, Relaxed);
        if matches!(event, Event::DisconnectRequested { .. }) {
            // The connection may have ended meanwhile, which makes no difference.
            let id = self.line.id;
            let _ = self.line.shared.with(|manager, _, now| manager.disconnect(now, id, PrivateData::EMPTY));
        }
        self.flush();
    }

    /// Ends the connection, and waits until the peer agrees or is found unreachable. Outstanding work requests are
    /// flushed.
    ///
    /// # Errors
    /// If the connection has already ended.
    pub fn disconnect(self) -> Result<(), DialError> {
        let id = self.line.id;
        self.line.shared.with(|manager, _, now| manager.disconnect(now, id, PrivateData::EMPTY))?;
        self.flush();
        while let Some(event) = self.line.next_event(Duration::MAX) {
            if matches!(event, Event::Disconnected { .. }) || event.is_last() {
                return Ok(());
            }
        }
        Err(DialError::DeviceFailed)
    }

    /// Completes outstanding work requests with WR_FLUSH.
    fn flush(&self) {
        // A device that has failed flushes nothing.
        let _ = self.qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() });
    }
}
