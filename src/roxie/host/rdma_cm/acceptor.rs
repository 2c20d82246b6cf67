//! Connections of a server to peers that may be strangers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::qp::QueuePair;
use super::connection::{Connection, ConnectionLine, ah_options};
use super::dispatcher::Events;
use super::listener::{ConnectionRequest, PortListener, confirmed};
use super::{DialError, DialOptions};
use roxie_nic::cm::{CmError, Event};

/// Interval at which unresolved paths are looked up.
const LOOK: Duration = Duration::from_millis(20);

/// Answers the requests of a port on the caller's thread, and returns connections once their peers have confirmed them.
///
/// Anyone can send requests that name other hosts as their source. A half-open connection therefore has no thread: only
/// the queue pair that the server offers, with a receive for the first message, which may overtake the confirmation, in
/// memory that all connections share ([`FirstMessages`](super::FirstMessages)). A peer that sends more before the
/// server has posted receives is told to try again (RNR NAK). The number of half-open connections is limited, apart
/// from the number of connections. If all places are taken, the address with the most places loses its oldest one. If
/// each has one, a request is dropped, unless it is a repetition or a place is 0.5 s old. Hosts that were only named as
/// the source do not repeat requests. Dropping the acceptor ends listening, and all half-open connections.
#[derive(Debug)]
pub struct Acceptor<T> {
    listener: PortListener,
    half_open: Vec<HalfOpen<T>>,
}

/// Answer of a server to a request.
#[derive(Debug)]
pub struct Offer<T> {
    /// The queue pair, in INIT or RESET.
    pub qp: QueuePair,
    /// Options of the connection.
    pub options: DialOptions,
    /// State of the server for the connection, returned with it.
    pub state: T,
}

/// A half-open connection. Once the request is answered, it is not needed any more.
#[derive(Debug)]
enum HalfOpen<T> {
    /// The path back to the peer is being resolved.
    Requested(ConnectionRequest),
    Offered {
        line: ConnectionLine,
        peer: SocketAddr,
        qp: QueuePair,
        state: T,
    },
}

impl<T> Acceptor<T> {
    pub(super) fn new(listener: PortListener) -> Acceptor<T> {
        Acceptor { listener, half_open: Vec::new() }
    }

    /// Returns the next connection. `None`: none came in time. `offer` returns the answer to a request, or the private
    /// data of its rejection. `failed` hears of requests that could not be answered as offered.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn next(
        &mut self,
        timeout: Duration,
        mut offer: impl FnMut(&ConnectionRequest) -> Result<Offer<T>, Vec<u8>>,
        mut failed: impl FnMut(SocketAddr, DialError),
    ) -> Result<Option<(Connection, T)>, DialError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(connection) = self.confirmed() {
                return Ok(Some(connection));
            }
            self.half_open.extend(self.listener.pending().map(HalfOpen::Requested));
            self.answer(&mut offer, &mut failed);
            let device = &self.listener.shared.device;
            if device.has_failed() {
                return Err(DialError::DeviceFailed);
            }
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(None);
            }
            let half_open = self.half_open.iter().map(HalfOpen::events);
            Events::wait_for_any(half_open.chain([&self.listener.requests]), remaining.min(LOOK));
            device.poll();
        }
    }

    /// Removes half-open connections that have ended. Returns one that is established.
    fn confirmed(&mut self) -> Option<(Connection, T)> {
        let mut at = 0;
        while let Some(half_open) = self.half_open.get(at) {
            let Some(event) = half_open.events().pending().next() else {
                at += 1;
                continue;
            };
            match self.half_open.swap_remove(at) {
                HalfOpen::Offered { line, peer, qp, state } if matches!(event, Event::Established { .. }) => {
                    return confirmed(line, qp, peer, Some(event)).ok().map(|connection| (connection, state));
                }
                HalfOpen::Offered { .. } => {}
                HalfOpen::Requested(request) => request.give_up(),
            }
        }
        None
    }

    /// Answers requests with a resolved path.
    fn answer(
        &mut self,
        offer: &mut impl FnMut(&ConnectionRequest) -> Result<Offer<T>, Vec<u8>>,
        failed: &mut impl FnMut(SocketAddr, DialError),
    ) {
        let mut at = 0;
        while let Some(half_open) = self.half_open.get(at) {
            let reachable = match half_open {
                HalfOpen::Requested(request) => request.is_reachable(),
                HalfOpen::Offered { .. } => Ok(false),
            };
            if let Ok(false) = reachable {
                at += 1;
                continue;
            }
            let half_open = self.half_open.swap_remove(at);
            // No route: the request came from elsewhere.
            if let (Ok(true), HalfOpen::Requested(request)) = (reachable, half_open) {
                self.half_open.extend(answered(request, offer, failed));
            }
        }
    }
}

impl<T> HalfOpen<T> {
    fn events(&self) -> &Events {
        match self {
            HalfOpen::Requested(request) => &request.line.events,
            HalfOpen::Offered { line, .. } => &line.events,
        }
    }
}

/// Answers a request. `None`: it was rejected, or could not be answered.
fn answered<T>(
    request: ConnectionRequest,
    offer: &mut impl FnMut(&ConnectionRequest) -> Result<Offer<T>, Vec<u8>>,
    failed: &mut impl FnMut(SocketAddr, DialError),
) -> Option<HalfOpen<T>> {
    let Offer { qp, options, state } = match offer(&request) {
        Ok(offer) => offer,
        Err(private_data) => {
            // A peer that has given up needs no rejection.
            let _ = request.refuse(&private_data);
            return None;
        }
    };
    match request.answer(&qp, &options) {
        Ok(()) => {
            let peer = request.peer();
            Some(HalfOpen::Offered { line: request.line, peer, qp, state })
        }
        // The request has lost its place meanwhile.
        Err(DialError::Manager(CmError::Unknown { .. })) => None,
        Err(error) => {
            failed(request.peer(), error);
            None
        }
    }
}

impl ConnectionRequest {
    /// True if the path back to the peer is resolved; if false, it is being resolved.
    fn is_reachable(&self) -> Result<bool, DialError> {
        let (route, device) = (&self.route, &self.line.shared.device);
        let path = device.address_vector_now(route.source(), route.remote, &ah_options(route), false)?;
        Ok(path.is_some())
    }

    /// Ends the resolution of the path back to the peer.
    fn give_up(&self) {
        let route = &self.route;
        self.line.shared.device.give_up(route.source(), route.remote, route.traffic_class);
    }
}
