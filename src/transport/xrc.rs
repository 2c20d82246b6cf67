//! What the extended reliable connection adds to the reliable one (IBTA annex A14).
//!
//! ```text
//! initiator (XRC_INI)  requests only    each with an XRCETH: the number of a shared receive queue at the peer
//! target (XRC_TGT)     responses only   as RC's
//! ```
//!
//! A target has no protection domain and no queues. Each request, be it one that takes a receive or not, lends it those of the
//! queue that it names: the domain in which keys are looked up, the receives, and the queue where they complete. A number that
//! no queue of the target's XRC domain has is an invalid request, be there such a queue in another domain or not.

use super::check::Check;
use super::responder::RequestRefused;
use super::{Ctx, Origin, Qp, TxPlan, Verdict};
use crate::verbs::{QpType, SendWr, Srqn};
use crate::wire::{Ext, Opcode, Packet, Position, XrcEth};

/// Bits that tell an opcode of XRC from the same of RC.
const XRC: u8 = 0xa0;

impl Qp {
    /// An initiator takes no requests, a target no responses.
    pub(super) fn wrong_direction(&self, ctx: &mut Ctx<'_>, packet: &Packet) -> Option<Verdict> {
        //= IBTA A14: xrc-has-one-direction
        match (self.qp_type, packet.info().is_response()) {
            (QpType::XrcSend, false) => {
                ctx.counters.rx_wrong_service += 1;
                Some(Verdict::WrongService)
            }
            (QpType::XrcRecv, true) => {
                ctx.counters.ghost_acks += 1;
                Some(Verdict::Ghost)
            }
            _ => None,
        }
    }

    /// The packet that leaves next: RC's, with XRC's opcode, and a request with the queue that it is for.
    pub(super) fn next_extended(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        let mut plan = match self.qp_type {
            QpType::XrcRecv => self.next_reply(ctx)?,
            _ => self.next_request(ctx)?,
        };
        plan.bth.opcode = Opcode(plan.bth.opcode.0 | XRC);
        if plan.origin == Origin::Request {
            let r = &self.requester;
            //= IBTA A14: xrc-request-names-its-queue
            plan.ext = addressed(plan.ext, &r.queue.at(r.next).wr);
        }
        Some(plan)
    }

    /// Takes receives, keys and completions from where the request says. All packets of a message say the same.
    pub(super) fn choose_receives(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
    ) -> Result<(), RequestRefused> {
        let srqn = Srqn(packet.xrceth().ok_or(Check::Opcode)?.srqn);
        let goes_on = matches!(packet.info().position, Position::Middle | Position::Last);
        //= IBTA A14: xrc-message-names-one-queue
        if goes_on && srqn != self.responder.srqn {
            return Err(Check::OtherQueue.into());
        }
        //= IBTA A14: xrc-queue-is-of-the-domain
        let chosen = ctx.receives.choose(srqn).ok_or(Check::NoSuchQueue)?;
        //= IBTA A14: xrc-keys-are-of-the-queues-domain
        self.pd = chosen.pd;
        self.recv_cq = chosen.cq;
        self.responder.receive_pd = chosen.pd;
        self.responder.srqn = srqn;
        Ok(())
    }

    /// The queue is gone that the receive under way was taken from: it completes to nobody.
    pub fn forget_receive(&mut self) {
        self.responder.receive = None;
    }
}

/// The headers of a request of RC, with the queue that the work request names before them.
fn addressed(ext: Ext, wr: &SendWr) -> Ext {
    let xrc = XrcEth { srqn: wr.remote_srqn.0 };
    match ext {
        Ext::Reth(reth) => Ext::XrcReth(xrc, reth),
        Ext::RethImm(reth, imm) => Ext::XrcRethImm(xrc, reth, imm),
        Ext::Imm(imm) => Ext::XrcImm(xrc, imm),
        Ext::Ieth(key) => Ext::XrcIeth(xrc, key),
        Ext::Atomic(atomic) => Ext::XrcAtomic(xrc, atomic),
        Ext::FlushReth(feth, reth) => Ext::XrcFlushReth(xrc, feth, reth),
        // No other stands in a request.
        _ => Ext::Xrc(xrc),
    }
}
