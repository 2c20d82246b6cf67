//! Whether the peer still has the connection. The NIC asks on behalf of a connection manager that has received a request for a new connection
//! of the peer's QP.
//!
//! The QP repeats a packet that the peer has acknowledged, as a SEND without payload: the PSN is that before the oldest unacknowledged one, or
//! before the first of the connection. A responder takes it for a duplicate, executes nothing, and acknowledges what it has (IBTA 9.7.5.1.2). The
//! question changes neither PSNs nor timers nor retries, and costs no completion.
//!
//! Only RC requesters ask. Those of XRC would have to name a queue, and UC has no acknowledgements.

use super::requester::Requester;
use super::{Origin, Qp, TxPlan, TxReason, asking};
use crate::verbs::{QpState, QpType};
use roxie_wire::{Bth, Psn};

impl Qp {
    /// Repeats a packet that the peer must acknowledge again, as soon as no request is ready to be sent. Returns false if the QP cannot. A
    /// change of the QP's attributes or state takes the question back.
    pub fn ask_peer(&mut self) -> bool {
        self.requester.asks_peer = self.qp_type == QpType::Rc && self.state() == QpState::Rts;
        self.requester.asks_peer
    }
}

impl Requester {
    /// Returns the PSN of the question that is due.
    pub(super) fn question(&self) -> Option<Psn> {
        self.asks_peer.then(|| self.una - 1)
    }
}

/// Plans the packet that asks the peer.
pub(super) fn question(bth: Bth) -> TxPlan {
    TxPlan { reason: TxReason::Question, origin: Origin::Question, ..asking::probe(bth) }
}
