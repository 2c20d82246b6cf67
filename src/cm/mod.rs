//! Communication management: how two ends agree on a connection, and on its end (IBTA chapter 12).
//!
//! A [`Manager`] does no I/O, reads no clock and draws no random numbers. Whoever owns one turns it:
//!
//! ```text
//!  calls      listen, connect, accept, ready, reject, delay, disconnect, destroy, resolve, answer_resolution
//!  inputs     handle_mad(now, bytes, from)     what QP1 received
//!             handle_undelivered(now, …)       what the network says of a request that found nobody
//!             handle_timeouts(now)             when next_deadline() has come
//!  outputs    poll_transmit()                  what QP1 is to send, and to whom
//!             poll_event()                     what the consumer is to know
//!             next_deadline()                  when to call again at the latest
//! ```
//!
//! After each call and each input, take all transmits, then all events, then look at the deadline.
//!
//! # A connection
//!
//! ```text
//!  active                                            passive
//!  connect(request)      -> REQ ------------------>  Event::Request: parameters(id), QP to RTR
//!  Event::Reply          <------------------ REP <-  accept(id, …)
//!    parameters(id), QP to RTR and RTS
//!  ready(id)             -> RTU ------------------>  Event::Established: QP to RTS (it may be there already)
//!  disconnect(id)        -> DREQ ----------------->  Event::DisconnectRequested
//!  Event::Disconnected   <----------------- DREP <-  disconnect(id), then Event::Disconnected
//!  Event::TimeWaitExit                               Event::TimeWaitExit
//! ```
//!
//! A datagram QP is found with `resolve` (SIDR_REQ), answered by `answer_resolution` (SIDR_REP), and nothing stays.
//!
//! # Names
//!
//! A [`CommId`](crate::wire::cm::CommId) is both what calls and events name a connection by and its communication ID on the
//! wire: a keyed permutation of an index and a generation, so that it is hard to guess and does not come back soon. It is the
//! consumer's until an event that [is the last](Event::is_last), or until `destroy`. What a peer may still say of it is
//! answered by the manager alone.
//!
//! # What outlives it
//!
//! A [`Keeper`] hears at each change what a connection [would leave](Bequest). If the manager dies with its consumer, another one
//! [inherits](Manager::inherit) that, and the peer hears the end now and not when its timeouts say so.
//!
//! # Hosts that are not there
//!
//! A host on which nothing takes RoCE's datagrams says so by ICMP, and a request that waits for it ends at once
//! ([`WhyUnreachable::NothingThere`]). That is believed of a request that waits, and only of who can quote it, transaction included: nobody
//! off the path knows that. A host that was never heard of is asked less often than one that was, so that it is
//! given up in seconds.
//!
//! # What a peer can do
//!
//! A request takes one place of a bounded table, and of the listener's backlog until it is answered; what finds no place is
//! dropped and counted. What it asks for in time and repetitions is granted within bounds, an address has a quota of half-made connections, and
//! when the table is full the oldest makes room whose peer has not shown that it hears us. Each message leads to one message at most, to two if it shows that an older connection is stale. A message of a connection counts only if it comes from the
//! address that the connection is with. What is no message, fits no connection or does not belong in its state is counted.

// What goes in and out.
mod error;
mod event;
mod parameters;
mod request;

// What a manager knows.
mod connection;
mod counters;
mod listeners;
mod table;

// What it does: the calls, then what comes from peers, then what time brings.
mod audit;
mod bequest;
mod calls;
mod early;
mod grace;
mod incoming;
mod manager;
mod timers;
mod undelivered;

pub use bequest::{Bequest, Keeper};
pub use connection::State;
pub use counters::CmCounters;
pub use error::CmError;
pub use event::{Event, HowDisconnected, Listener, WhyUnreachable};
pub use manager::{Config, Manager, Transmit};
pub use parameters::Parameters;
pub use request::{
    AcceptOptions, Arrival, ConnectRequest, ListenOn, LocalQp, ResolveAnswer, ResolveRequest, Route,
};
