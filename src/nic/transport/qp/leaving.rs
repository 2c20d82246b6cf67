//! What each planned packet must keep that leaves a QP. Packets of the fast path are not planned.

use super::Qp;
use crate::transport::{Gather, Origin, TxPlan};
use crate::verbs::{QpState, QpType, SendFlags};
use roxie_wire::Ext;

/// Asserts what a planned packet must keep. `gathers`: where its payload lies, unless that is inline.
pub(super) fn check(qp: &Qp, plan: &TxPlan, gathers: &[Gather]) {
    let (attributes, psn, length) = (qp.attributes(), plan.bth.psn, usize::from(plan.payload_len));
    if qp.qp_type.is_connected() {
        let (to, peer) = (plan.bth.dest_qp, attributes.dest_qpn);
        invariant!(to == peer, "a packet leaves for QP {to}, the peer is {peer}");
        invariant!(length <= qp.mtu(), "{length} bytes leave, the path MTU is {}", qp.mtu());
    }
    let listed = gathers.iter().map(|gather| usize::from(gather.length)).sum::<usize>();
    let is_listed = length == 0 || plan.inline.is_some() || listed == length;
    invariant!(is_listed, "{length} bytes leave, and {listed} are gathered");
    let in_use = !matches!(qp.state(), QpState::Reset | QpState::Init);
    invariant!(in_use, "a packet leaves a QP in {:?}", qp.state());
    let una = qp.requester.window().una();
    match plan.origin {
        Origin::Request => check_request(qp, plan),
        Origin::Reply => check_reply(qp, plan),
        Origin::Probe => {
            invariant!(psn.is_before(una), "a probe has PSN {psn}, {una} is not acknowledged");
            invariant!(plan.bth.ack_req, "a probe asks for nothing");
        }
        Origin::PeerProbe => invariant!(psn == una - 1, "a question has PSN {psn}, before {una}"),
        Origin::Unacknowledged => {
            let is_reliable = qp.qp_type.is_reliable_requester();
            invariant!(!is_reliable && !plan.bth.ack_req, "a {:?} QP asks for nothing", qp.qp_type);
        }
        Origin::Notification => {
            invariant!(qp.qp_type.is_connected(), "a {:?} QP has no one to notify", qp.qp_type);
        }
    }
}

/// Asserts what a request of a reliable service must keep.
fn check_request(qp: &Qp, plan: &TxPlan) {
    let (window, psn) = (qp.requester.window(), plan.bth.psn);
    let at = qp.requester.position();
    invariant!(psn == at, "PSN {psn} leaves, the position is {at}");
    invariant!(!psn.is_before(window.una()), "PSN {psn} leaves, and {} is not acknowledged", window.una());
    let ends = plan.bth.opcode.info().is_some_and(|info| info.position.ends());
    let again = psn.is_before(window.sent_end());
    invariant!(!again || !ends || plan.bth.ack_req, "the last packet of a message asks for nothing again");
    let is_solicited = window.queue().at(window.next()).wr.flags.contains(SendFlags::SOLICITED);
    invariant!(plan.bth.solicited == (ends && is_solicited), "PSN {psn} has another solicited bit");
}

/// Asserts what a reply must keep.
fn check_reply(qp: &Qp, plan: &TxPlan) {
    let psn = plan.bth.psn;
    let answers = matches!(qp.qp_type, QpType::Rc | QpType::XrcRecv);
    invariant!(answers, "a {:?} QP replies", qp.qp_type);
    if let Ext::AtomicAck(_, result) = plan.ext {
        let stored = qp.responder.result_of(psn);
        invariant!(stored == Some(result), "atomic {psn} had {stored:?}, the answer is {result}");
    }
}
