//! What every packet must keep that leaves a QP, whatever has planned it.

use super::Qp;
use crate::transport::{Gather, Origin, TxPlan};
use crate::verbs::{QpState, QpType, SendFlags};
use roxie_wire::{Ext, Operation, Syndrome};

impl Qp {
    /// Asserts what a planned packet must keep, in debug builds. `gathers`: where its payload lies, unless that is
    /// inline.
    #[inline(always)]
    pub(crate) fn assert_leaving(&self, plan: &TxPlan, gathers: &[Gather]) {
        if cfg!(debug_assertions) {
            self.check_leaving(plan, gathers);
        }
    }

    fn check_leaving(&self, plan: &TxPlan, gathers: &[Gather]) {
        let (attributes, psn, length) = (self.attributes(), plan.bth.psn, usize::from(plan.payload_len));
        if self.qp_type.is_connected() {
            let (to, peer) = (plan.bth.dest_qp, attributes.dest_qpn);
            invariant!(to == peer, "a packet leaves for QP {to}, the peer is {peer}");
            invariant!(length <= self.mtu(), "{length} bytes leave, the path MTU is {}", self.mtu());
        }
        let listed = gathers.iter().map(|gather| usize::from(gather.length)).sum::<usize>();
        let is_listed = length == 0 || plan.inline.is_some() || listed == length;
        invariant!(is_listed, "{length} bytes leave, and {listed} are gathered");
        let in_use = !matches!(self.state(), QpState::Reset | QpState::Init);
        invariant!(in_use, "a packet leaves a QP in {:?}", self.state());
        let una = self.requester.window().una();
        match plan.origin {
            Origin::Request => self.check_request(plan),
            Origin::Reply => self.check_reply(plan),
            Origin::Probe => {
                invariant!(psn.is_before(una), "a probe has PSN {psn}, {una} is not acknowledged");
                invariant!(plan.bth.ack_req, "a probe asks for nothing");
            }
            Origin::PeerProbe => invariant!(psn == una - 1, "a question has PSN {psn}, before {una}"),
            Origin::Unacknowledged => {
                let is_reliable = self.qp_type.is_reliable_requester();
                invariant!(!is_reliable && !plan.bth.ack_req, "a {:?} QP asks for nothing", self.qp_type);
            }
            Origin::Notification => {
                invariant!(self.qp_type.is_connected(), "a {:?} QP has no one to notify", self.qp_type);
            }
        }
    }

    /// Asserts what a request of a reliable service must keep.
    fn check_request(&self, plan: &TxPlan) {
        let (window, psn) = (self.requester.window(), plan.bth.psn);
        let at = self.requester.position();
        invariant!(psn == at, "PSN {psn} leaves, the position is {at}");
        invariant!(
            !psn.is_before(window.una()),
            "PSN {psn} leaves, and {} is not acknowledged",
            window.una()
        );
        let ends = plan.bth.opcode.info().is_some_and(|info| info.position.ends());
        let again = psn.is_before(window.sent_end());
        invariant!(
            !again || !ends || plan.bth.ack_req,
            "the last packet of a message asks for nothing again"
        );
        let is_solicited = window.queue().at(window.next()).wr.flags.contains(SendFlags::SOLICITED);
        invariant!(plan.bth.solicited == (ends && is_solicited), "PSN {psn} has another solicited bit");
    }

    /// Asserts what a reply must keep.
    fn check_reply(&self, plan: &TxPlan) {
        let (psn, expected) = (plan.bth.psn, self.responder.expected());
        let answers = matches!(self.qp_type, QpType::Rc | QpType::XrcRecv);
        invariant!(answers, "a {:?} QP replies", self.qp_type);
        let operation = plan.bth.opcode.info().map(|info| info.operation);
        match plan.ext {
            Ext::Aeth(aeth) if operation == Some(Operation::Acknowledge) => {
                let is_positive = matches!(aeth.kind(), Syndrome::Ack { .. });
                let is_executed = psn.is_before(expected);
                invariant!(!is_positive || is_executed, "PSN {psn} is acknowledged, {expected} is expected");
            }
            Ext::AtomicAck(_, result) => {
                let stored = self.responder.result_of(psn);
                invariant!(stored == Some(result), "atomic {psn} had {stored:?}, the answer is {result}");
            }
            _ => {}
        }
    }
}
