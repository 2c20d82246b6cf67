//! The extended reliable connection (XRC, IBTA annex A14), as far as it differs from RC.
//!
//! ```text
//! initiator (XRC_INI)  requests only    each has an XRCETH, which names a shared receive queue of the peer
//! target (XRC_TGT)     responses only   as RC's
//! ```
//!
//! A target has no protection domain and no queues of its own. Each request names a shared receive queue, even if it
//! takes no receive. The target uses this queue's protection domain for keys, its receives, and its completion queue.
//! If the target's XRC domain has no such queue, the request is invalid.

use super::check::Check;
use super::responder::RequestRefused;
use super::{Ctx, Origin, Qp, TxPlan, Verdict};
use crate::verbs::{QpType, Srqn};
use roxie_wire::{Ext, Opcode, Packet, XrcEth};

/// Opcode bits that distinguish XRC from RC.
const XRC: u8 = 0xa0;

impl Qp {
    /// Rejects requests to an initiator and responses to a target.
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

    /// Plans the next packet as RC does, then sets XRC's opcode. Requests get an XRCETH.
    pub(super) fn next_extended(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        let mut plan = match self.qp_type {
            QpType::XrcRecv => self.next_reply(ctx)?,
            _ => self.next_request(ctx)?,
        };
        plan.bth.opcode = Opcode(plan.bth.opcode.0 | XRC);
        if plan.origin == Origin::Request {
            let r = &self.requester;
            //= IBTA A14: xrc-request-names-its-queue
            plan.ext = addressed(plan.ext, r.queue.operands(r.next).remote_srqn);
        }
        Some(plan)
    }

    /// Selects the shared receive queue that the request names. All packets of a message must name the same.
    pub(super) fn choose_receives(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
    ) -> Result<(), RequestRefused> {
        let srqn = Srqn(packet.xrceth().ok_or(Check::Opcode)?.srqn);
        let continues = !packet.info().position.begins();
        //= IBTA A14: xrc-message-names-one-queue
        if continues && srqn != self.responder.srqn {
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

    /// Drops the current receive without a completion, because its shared receive queue was destroyed.
    pub fn forget_receive(&mut self) {
        self.responder.receive = None;
    }
}

/// Adds an XRCETH with queue `srqn` to the headers of an RC request.
fn addressed(ext: Ext, srqn: Srqn) -> Ext {
    let xrc = XrcEth { srqn: srqn.0 };
    match ext {
        Ext::Reth(reth) => Ext::XrcReth(xrc, reth),
        Ext::RethImm(reth, imm) => Ext::XrcRethImm(xrc, reth, imm),
        Ext::Imm(imm) => Ext::XrcImm(xrc, imm),
        Ext::Ieth(key) => Ext::XrcIeth(xrc, key),
        Ext::Atomic(atomic) => Ext::XrcAtomic(xrc, atomic),
        Ext::FlushReth(feth, reth) => Ext::XrcFlushReth(xrc, feth, reth),
        // Requests have no other headers.
        _ => Ext::Xrc(xrc),
    }
}
