//! Communication management (CM): how two ends set up and end a connection (IBTA chapter 12).
//!
//! A [`Manager`] does no I/O, reads no clock and draws no random numbers. Its owner drives it:
//!
//! ```text
//!  calls      listen, connect, accept, ready, reject, delay, disconnect, destroy, resolve, answer_resolution
//!  inputs     handle_mad(now, bytes, from)     a datagram that QP1 received
//!             handle_undelivered(now, …)       an ICMP message that quotes a request of ours
//!             handle_timeouts(now)             next_deadline() has passed
//!  outputs    poll_transmit()                  the next datagram that QP1 must send
//!             poll_event()                     the next event for the consumer
//!             poll_examination()               a question to the NIC, which `examined` answers
//!             next_deadline()                  latest time of the next handle_timeouts
//! ```
//!
//! After each call and each input, answer all examinations, take all transmits, then all events, then check the
//! deadline.
//!
//! # A connection
//!
//! ```text
//!  active                                            passive
//!  connect(request)      -> REQ ------------------>  Event::Request: parameters(id), QP to RTR
//!  Event::Reply          <------------------ REP <-  accept(id, …)
//!    parameters(id), QP to RTR and RTS
//!  ready(id)             -> RTU ------------------>  Event::Established: QP to RTS (if not there already)
//!  disconnect(id)        -> DREQ ----------------->  Event::DisconnectRequested
//!  Event::Disconnected   <----------------- DREP <-  disconnect(id), then Event::Disconnected
//!  Event::TimeWaitExit                               Event::TimeWaitExit
//! ```
//!
//! A datagram QP is found by `resolve` (SIDR_REQ) and `answer_resolution` (SIDR_REP). Such a resolution leaves no
//! state.
//!
//! # Identifiers
//!
//! A [`CommId`](roxie_wire::cm::CommId) identifies a connection in calls and events, and is its communication ID on
//! the wire: a keyed permutation of index and generation, so that it is hard to guess and not reused soon. The consumer
//! may use it until an event that [is the last](Event::is_last), or until `destroy`. Later messages from the peer are
//! answered by the manager alone.
//!
//! # Handover
//!
//! A [`HandoverStore`] receives, at each change of a connection, the state to [hand over](Handover). If the process of
//! a manager dies, another manager [takes over](Manager::take_over) its connections and ends them, so that peers need
//! not wait for their timeouts.
//!
//! # Unreachable hosts
//!
//! A host without RoCE answers a request with an ICMP message, and the request ends immediately
//! ([`WhyUnreachable::NothingThere`]). The message must quote a pending request with its transaction ID, which only
//! hosts on the path know. An unknown host gets fewer retries than a known one, so that the request fails within
//! seconds.
//!
//! # Limits for peers
//!
//! * A request takes one place in a bounded table, and one in the listener's backlog until it is answered. Requests
//!   without a place are dropped and counted.
//! * Timeouts and retries that a peer asks for are granted within limits.
//! * Each address has a quota of half-open connections.
//! * If the table is full, the oldest connection that its peer has not confirmed is evicted.
//! * Each message causes at most one message in return; two, if it reveals a stale connection, and an MRA before these
//!   if their time is short. An accepted request causes three, until its address has confirmed a connection once.
//! * A request that names the QP of a connected peer ends the connection only if the peer is silent for a second.
//! * Messages of a connection are accepted from its peer's address only.
//! * Malformed messages, messages for unknown connections, and messages in the wrong state are counted.

// Inputs and outputs.
mod error;
mod event;
mod parameters;
mod request;

// State.
mod connection;
mod counters;
mod listeners;
mod table;
mod transitions;

// Behaviour: calls of the consumer, messages from peers, timers.
mod admission;
mod audit;
mod calls;
mod early;
mod examination;
mod grace;
mod handover;
mod incoming;
mod manager;
mod timers;
mod undelivered;
mod unproven;

pub use connection::ConnectionState;
pub use counters::CmCounters;
pub use error::CmError;
pub use event::{Event, HowDisconnected, Listener, WhyUnreachable};
pub use examination::Examination;
pub use handover::{Handover, HandoverStore};
pub use manager::{Config, Manager, Transmit};
pub use parameters::Parameters;
pub use request::{
    AcceptOptions, Arrival, ConnectRequest, ListenOn, LocalQp, ResolveAnswer, ResolveRequest, Route,
};
#[doc(hidden)]
pub use transitions::unseen as unseen_transitions;
