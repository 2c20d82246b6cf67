//! A connection and its QP, from the first message to the last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::super::ah_options::AhOptions;
use super::super::qp::QueuePair;
use super::{DialError, DialOptions, Shared, local_qp};
use crate::cm::{Event, Parameters, WhyUnreachable};
use crate::verbs::{QpAttr, QpState};
use crate::wire::cm::{CommId, PrivateData};

/// Who waits turns the device now and then: nobody else may.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// A connection. Dropping it ends it: the peer is told.
#[derive(Debug)]
pub struct Connection {
    line: Line,
    qp: QueuePair,
    peer: SocketAddr,
    private_data: PrivateData,
}

/// What is heard of a connection, and what is said.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) shared: Arc<Shared>,
    pub(super) id: CommId,
    pub(super) events: Receiver<Event>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.with(|manager, switchboard, now| {
            manager.destroy(now, self.id);
            switchboard.leave(self.id);
        });
    }
}

impl Line {
    /// The next event. `None`: none came in time, or none will come.
    pub(super) fn hear(&self, timeout: Duration) -> Option<Event> {
        wait(&self.shared, &self.events, timeout)
    }
}

/// The next of some events. `None`: none came in time, or none will come.
pub(super) fn wait(shared: &Shared, events: &Receiver<Event>, timeout: Duration) -> Option<Event> {
    let until = Instant::now().checked_add(timeout);
    let mut look = FIRST_LOOK;
    loop {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        match events.recv_timeout(look.min(left)) {
            Ok(event) => return Some(event),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if left.is_zero() || shared.device.has_failed() => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        shared.device.poll();
        look = (look * 2).min(LAST_LOOK);
    }
}

/// Brings a QP to RTR and RTS with what both agreed on.
pub(super) fn set_up(
    shared: &Shared,
    qp: &QueuePair,
    parameters: &Parameters,
    options: &DialOptions,
) -> Result<(), DialError> {
    let route = parameters.route;
    let way = AhOptions {
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        flow_label: route.flow_label,
        ..AhOptions::default()
    };
    let av = shared.device.address_vector(route.local, route.remote, &way)?;
    if qp.query()?.state == QpState::Reset {
        qp.initialize(options.access)?;
    }
    let rtr = parameters.rtr(av, options.min_rnr_timer);
    qp.modify(&rtr.expect("the peer's QP is known by now"))?;
    qp.modify(&parameters.rts())?;
    Ok(())
}

/// See [`super::ConnectionManager::connect`].
pub(super) fn connect(
    shared: &Arc<Shared>,
    qp: QueuePair,
    to: SocketAddr,
    options: &DialOptions,
) -> Result<Connection, DialError> {
    let local = shared.local_gid(to.ip(), options)?;
    // That there is a way is known before anything is said.
    shared.device.address_vector(local, to.ip().into(), &AhOptions::default())?;
    let request = shared.request(local_qp(&qp), local, to, options)?;
    let (id, events) = shared.with(|manager, switchboard, now| {
        let id = manager.connect(now, &request)?;
        Ok::<_, DialError>((id, switchboard.follow(id)))
    })?;
    let line = Line { shared: Arc::clone(shared), id, events };
    match line.hear(Duration::MAX) {
        Some(Event::Reply { reply, .. }) => {
            let parameters = shared.with(|manager, _, _| manager.parameters(id))?;
            set_up(shared, &qp, &parameters, options)?;
            shared.with(|manager, _, _| manager.ready(id, PrivateData::EMPTY))?;
            Ok(Connection { line, qp, peer: to, private_data: reply.private_data })
        }
        other => Err(failure(to, other)),
    }
}

/// What an event other than the one that was hoped for means.
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
    pub(super) fn new(line: Line, qp: QueuePair, peer: SocketAddr, private_data: PrivateData) -> Connection {
        Connection { line, qp, peer, private_data }
    }

    /// Its QP, in RTS.
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// The other end; of a connection that it asked for, with the port that it came from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the peer's consumer gave along: with its reply, or when it was accepted, with its readiness. Zeros fill it up.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// What both ends agreed on.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn parameters(&self) -> Result<Parameters, DialError> {
        Ok(self.line.shared.with(|manager, _, _| manager.parameters(self.line.id))?)
    }

    /// Waits until the peer wants the connection to end, or knows nothing of it any more, and agrees; work requests are flushed
    /// then. False: nothing of that came in time.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let Some(event) = self.line.hear(timeout) else { return false };
        if matches!(event, Event::DisconnectRequested { .. }) {
            // It may have been refused meanwhile: it is over either way.
            let id = self.line.id;
            let _ = self.line.shared.with(|manager, _, now| manager.disconnect(now, id, PrivateData::EMPTY));
        }
        self.flush();
        true
    }

    /// Ends the connection and waits until the peer agrees, or is found not to answer. Work requests are flushed.
    ///
    /// # Errors
    /// If the connection is not there any more.
    pub fn disconnect(self) -> Result<(), DialError> {
        let id = self.line.id;
        self.line.shared.with(|manager, _, now| manager.disconnect(now, id, PrivateData::EMPTY))?;
        self.flush();
        while let Some(event) = self.line.hear(Duration::MAX) {
            if matches!(event, Event::Disconnected { .. }) || event.is_last() {
                return Ok(());
            }
        }
        Err(DialError::DeviceFailed)
    }

    /// What is outstanding completes with WR_FLUSH.
    fn flush(&self) {
        // A device that has failed flushes nothing any more.
        let _ = self.qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() });
    }
}
