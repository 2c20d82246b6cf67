//! What the manager tells its consumer.

use crate::wire::cm::{CommId, Kind, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};

use super::Route;

/// Names a listener, until it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener(pub u32);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowDisconnected {
    /// We asked, and the peer agreed.
    Agreed,
    /// The peer asked, and we agreed.
    AsAsked,
    /// The peer did not answer our request.
    NoAnswer,
    /// The peer refused to know the connection any more: its REJ has the reason.
    Refused,
}

/// Why a peer counts as unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyUnreachable {
    /// It did not answer, so often was it asked.
    Silent {
        /// Messages that were sent.
        asked: u8,
    },
    /// Its host, or one on the way, says that nothing takes what comes for RoCE.
    NothingThere,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection. Answer with `accept` or `reject`; `delay` if that takes longer than the peer's timeout
    /// (a request that comes again meanwhile is answered with an MRA anyway).
    Request {
        /// The connection that a consumer accepts or refuses.
        id: CommId,
        /// The listener at which it arrived.
        listener: Listener,
        /// The way to the peer, as its request gives it.
        route: Route,
        /// The whole request (REQ), private data included.
        request: Box<Req>,
    },
    /// A peer asks which datagram QP serves a service. Answer with `answer_resolution`.
    ResolutionRequest {
        /// The question, to be answered or refused.
        id: CommId,
        /// The listener at which it arrived.
        listener: Listener,
        /// The way to the peer.
        route: Route,
        /// The whole question (SIDR_REQ), private data included.
        request: Box<SidrReq>,
    },
    /// The peer accepts our request. Bring the QP to RTS, then call `ready`; or `reject`.
    Reply {
        /// The connection that this side asked for.
        id: CommId,
        /// What the peer says.
        reply: Box<Rep>,
    },
    /// The peer that we accepted is ready, or has sent data, which says so too.
    Established {
        /// The connection that this side has agreed to.
        id: CommId,
        /// What came with its RTU; empty if data came first.
        private_data: PrivateData,
    },
    /// The peer refuses, or its REP was refused (stale: its QP counts as connected here). The last event of this connection.
    Rejected {
        /// The connection, which is over.
        id: CommId,
        /// The refusal (REJ), with reason and private data.
        reject: Box<Rej>,
    },
    /// The peer did not answer, or cannot. The last event of this connection.
    Unreachable {
        /// The connection, which is over.
        id: CommId,
        /// Which of our messages: REQ, REP or SIDR_REQ.
        unanswered: Kind,
        /// How that is known.
        why: WhyUnreachable,
    },
    /// The peer wants the connection to end. Agree with `disconnect`.
    DisconnectRequested {
        /// The connection that the peer ends.
        id: CommId,
        /// What the peer's consumer said with it.
        private_data: PrivateData,
    },
    /// The connection has ended. Its QP must not be used for another until [`Event::TimeWaitExit`].
    Disconnected {
        /// The connection; its QP is not free yet.
        id: CommId,
        /// How it came to that.
        how: HowDisconnected,
    },
    /// Nothing of the connection is under way any more. The last event of this connection.
    TimeWaitExit {
        /// The connection, whose QP and identifiers are free again.
        id: CommId,
    },
    /// The answer to our question. The last event of it.
    Resolved {
        /// The question of this side, which is over.
        id: CommId,
        /// The way to the peer.
        route: Route,
        /// The answer; look at its status first.
        reply: Box<SidrRep>,
    },
}

impl Event {
    /// Of which connection it is.
    pub fn id(&self) -> CommId {
        match self {
            Event::Request { id, .. }
            | Event::ResolutionRequest { id, .. }
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

    /// True if the connection's name means nothing after it.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Event::Rejected { .. }
                | Event::Unreachable { .. }
                | Event::TimeWaitExit { .. }
                | Event::Resolved { .. }
        )
    }
}
