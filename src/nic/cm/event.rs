//! Events of the manager for its consumer.

use roxie_wire::cm::{CommId, Kind, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};

use super::Route;

/// Identifies a listener until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener(pub u32);

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowDisconnected {
    /// We sent a DREQ, and the peer agreed.
    Agreed,
    /// The peer sent a DREQ, and we agreed.
    AsAsked,
    /// The peer did not answer our DREQ.
    NoAnswer,
    /// The peer refused the connection. Its REJ tells the reason.
    Refused,
}

/// Reason why a peer is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyUnreachable {
    /// The peer did not answer.
    Silent {
        /// Number of messages sent to it.
        sent: u8,
    },
    /// ICMP: the peer's host or a router reports that RoCE is not reachable there.
    NothingThere,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer requests a connection. Answer with `accept` or `reject`. Call `delay` if the answer takes longer than the
    /// peer's timeout; a repeated request is answered with an MRA in any case.
    Request {
        /// ID of the new connection.
        id: CommId,
        /// The listener that matches the request.
        listener: Listener,
        /// Path to the peer, as given in its request.
        route: Route,
        /// The request (REQ) with its private data.
        request: Box<Req>,
    },
    /// A peer asks for the datagram QP of a service. Answer with `answer_resolution`.
    ResolutionRequest {
        /// ID of the resolution.
        id: CommId,
        /// The listener that matches the request.
        listener: Listener,
        /// Path to the peer.
        route: Route,
        /// The request (SIDR_REQ) with its private data.
        request: Box<SidrReq>,
    },
    /// The peer accepts our request. Move the QP to RTS and call `ready`, or call `reject`.
    Reply {
        /// ID of the connection that we requested.
        id: CommId,
        /// The reply (REP).
        reply: Box<Rep>,
    },
    /// A request has lost its place in the backlog before it was answered or [taken](super::Manager::take): its peer no
    /// longer repeats it, or other requests were more urgent. Last event of this connection.
    Withdrawn {
        /// ID of the connection or resolution, which has ended.
        id: CommId,
    },
    /// The peer of an accepted connection is ready: it has sent an RTU or data.
    Established {
        /// ID of the connection that we accepted.
        id: CommId,
        /// Private data of the RTU; empty if data arrived first.
        private_data: PrivateData,
    },
    /// The peer refuses, or its REP was refused (stale: its QP counts as connected here). Last event of this
    /// connection.
    Rejected {
        /// ID of the connection, which has ended.
        id: CommId,
        /// The REJ with reason and private data.
        reject: Box<Rej>,
    },
    /// The peer does not answer or is not reachable. Last event of this connection.
    Unreachable {
        /// ID of the connection, which has ended.
        id: CommId,
        /// The unanswered message: REQ, REP or SIDR_REQ.
        unanswered: Kind,
        /// The reason.
        why: WhyUnreachable,
    },
    /// The peer wants to end the connection. Agree with `disconnect`.
    DisconnectRequested {
        /// ID of the connection.
        id: CommId,
        /// Private data of the DREQ.
        private_data: PrivateData,
    },
    /// The connection has ended. Do not reuse its QP until [`Event::TimeWaitExit`].
    Disconnected {
        /// ID of the connection.
        id: CommId,
        /// How it has ended.
        how: HowDisconnected,
    },
    /// No packet of the connection is in flight any more. Last event of this connection.
    TimeWaitExit {
        /// ID of the connection. Its QP and identifiers may be reused.
        id: CommId,
    },
    /// The answer to a resolution. Last event of this resolution.
    Resolved {
        /// ID of the resolution, which has ended.
        id: CommId,
        /// Path to the peer.
        route: Route,
        /// The answer (SIDR_REP). Check its status first.
        reply: Box<SidrRep>,
    },
}

impl Event {
    /// Returns the connection of the event.
    pub fn id(&self) -> CommId {
        match self {
            Event::Request { id, .. }
            | Event::ResolutionRequest { id, .. }
            | Event::Withdrawn { id }
            | Event::Reply { id, .. }
            | Event::Established { id, .. }
            | Event::Rejected { id, .. }
            | Event::Unreachable { id, .. }
            | Event::DisconnectRequested { id, .. }
            | Event::Disconnected { id, .. }
            | Event::TimeWaitExit { id }
            | Event::Resolved { id, .. } => *id,
        }
    }

    /// True if the connection's ID is invalid after this event.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Event::Withdrawn { .. }
                | Event::Rejected { .. }
                | Event::Unreachable { .. }
                | Event::TimeWaitExit { .. }
                | Event::Resolved { .. }
        )
    }
}
