//! Connections whose ends agreed to selective repeat, between `rdma_init_qp_attr` and `ibv_modify_qp`: the attributes
//! in between are the kernel's, which have no field for it.

use std::collections::VecDeque;
use std::sync::Mutex;

use roxie::cm::Parameters;
use roxie::verbs::{Psn, QpAttr, QpState};

use crate::base::lock::lock;

/// Connections that are remembered, the newest.
const MOST: usize = 1024;

/// Number of the peer's QP, and first PSN from it.
static AGREED: Mutex<VecDeque<(u32, Psn)>> = Mutex::new(VecDeque::new());

/// Remembers a connection whose QP is about to enter RTR, if its ends agreed.
pub(super) fn remember(agreed: &Parameters, first: Psn) {
    if let Some(peer) = agreed.dest_qpn.filter(|_| agreed.selective_repeat) {
        let mut all = lock(&AGREED);
        all.truncate(MOST - 1);
        all.push_front((peer.value(), first));
    }
}

/// Adds what the ends of the connection agreed on to the attributes of a transition to RTR.
pub(crate) fn complete(attr: &mut QpAttr) {
    let (Some(QpState::Rtr), Some(peer), Some(first)) = (attr.state, attr.dest_qpn, attr.rq_psn) else {
        return;
    };
    let mut all = lock(&AGREED);
    if let Some(place) = all.iter().position(|known| *known == (peer.value(), first)) {
        all.remove(place);
        attr.selective_repeat = Some(true);
    }
}
