//! Packets of the responder's pending replies.

use super::resources::Resource;
use super::{Check, Reply, Responder};
use crate::transport::rules::read_response_opcode;
use crate::transport::{Ctx, Gather, KeyUser, Origin, QpContext, TxPlan, TxReason};
use crate::verbs::{Access, AsyncEvent, EventKind, QpState};
use roxie_wire::{Aeth, Bth, Ext, Opcode, Operation, Psn, Syndrome};

/// AETH credit code for no information (IBTA 9.7.7.2).
pub(super) const NO_CREDITS: u8 = 31;

impl Responder {
    /// Plans the packet of `reply`, the oldest. `None`: the reply cannot be sent, and is to be dropped by
    /// [`drop_reply`](Self::drop_reply).
    pub(crate) fn plan_reply(&self, qp: &QpContext, ctx: &mut Ctx<'_>, reply: Reply) -> Option<TxPlan> {
        match reply {
            Reply::Ack { psn, msn } => {
                let syndrome = Syndrome::Ack { credits: credits(qp, ctx) };
                Some(plan_ack(qp, psn, msn, syndrome, self.reason_of_ack()))
            }
            Reply::Nak { psn, msn, why } => {
                Some(plan_ack(qp, psn, msn, Syndrome::Nak(why.nak()), TxReason::Nak(why)))
            }
            Reply::RnrNak { psn, msn, timer } => {
                Some(plan_ack(qp, psn, msn, Syndrome::RnrNak { timer }, TxReason::RnrNak))
            }
            Reply::Sack { psn, msn, may_be_ack } => {
                // A READ or an atomic has an answer of its own.
                let plan = Some(self.plan_sack(qp, ctx, psn, msn));
                plan.filter(|plan| may_be_ack || plan.bth.psn == psn)
            }
            Reply::Atomic(slot) => self.plan_atomic_response(qp, ctx, slot),
            Reply::Read(slot) => {
                let resource = self.resources.get(slot)?;
                let opcode = read_response_opcode(resource.next, resource.packets);
                plan_response_packet(qp, ctx, resource, resource.next, opcode)
            }
            Reply::ReadPart(psn) => self.plan_read_part(qp, ctx, psn),
        }
    }

    /// Drops the oldest reply, which cannot be sent, because its region was deregistered meanwhile. Returns true if
    /// that ends the connection.
    #[cold]
    pub(crate) fn drop_reply(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> bool {
        let reply = self.replies.front();
        self.replies.pop();
        let Some(Reply::Read(slot) | Reply::Atomic(slot)) = reply else { return false };
        let Some(resource) = self.resources.get(slot) else { return false };
        let psn = resource.first_psn + resource.next;
        self.refuse_rest(qp, ctx, slot, psn, Check::Gone)
    }

    /// Handles a READ response whose memory is missing. Returns true if that ends the connection.
    pub(crate) fn reply_missing(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, psn: Psn) -> bool {
        let Some(slot) = self.resources.find(psn, Operation::ReadRequest) else { return false };
        self.replies.remove(Reply::Read(slot));
        self.refuse_rest(qp, ctx, slot, psn, Check::NoPage)
    }

    /// Refuses the rest of a READ from `psn` on, because its memory is gone. The response to a duplicate is dropped
    /// silently, because the peer may have received the first response. The responder remembers the READ: no ACK may
    /// have one of its PSNs. Returns false if it does not refuse.
    fn refuse_rest(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, slot: u8, psn: Psn, why: Check) -> bool {
        let Some(resource) = self.resources.get_mut(slot) else { return false };
        resource.queued = false;
        if resource.again {
            return false;
        }
        //= IBTA 9.7.5.2.4: read-that-fails-later-is-nakd
        self.replies.push_front(Reply::Nak { psn, msn: self.msn, why });
        ctx.counters.resp_remote_access_errors += 1;
        // A pending NAK has raised its event already.
        if qp.state() != QpState::Err {
            ctx.out.events.push(AsyncEvent::Qp(qp.index, EventKind::QpAccessError));
        }
        true
    }

    /// Plans a selective acknowledgement; a plain one if nothing is missing any more, or a later reply tells more.
    fn plan_sack(&self, qp: &QpContext, ctx: &Ctx<'_>, psn: Psn, msn: u32) -> TxPlan {
        let syndrome = Syndrome::Ack { credits: credits(qp, ctx) };
        let due = self.early.as_ref().filter(|early| !early.is_empty() && psn == self.expected);
        let Some(sack) = due.map(|early| early.sack()) else {
            return plan_ack(qp, psn - 1, msn, syndrome, TxReason::Answer);
        };
        let reason = TxReason::Asks { missing: sack.missing() as u8, of: sack.count };
        let ext = Ext::Sack(Aeth { syndrome: syndrome.into(), msn }, sack);
        reply_packet(qp, Opcode::RC_SELECTIVE_ACKNOWLEDGE, psn, ext, reason)
    }

    fn plan_atomic_response(&self, qp: &QpContext, ctx: &Ctx<'_>, slot: u8) -> Option<TxPlan> {
        let resource = self.resources.get(slot)?;
        let syndrome = Syndrome::Ack { credits: credits(qp, ctx) };
        //= IBTA 9.7.5.1: atomic-response-has-what-was-there
        let ext = Ext::AtomicAck(Aeth { syndrome: syndrome.into(), msn: resource.msn }, resource.result);
        let (psn, reason) = (resource.first_psn, reason_of(resource));
        Some(reply_packet(qp, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, ext, reason))
    }

    /// Plans a packet of a READ response that is sent again alone. Returns `None` if its resource or its memory has
    /// gone.
    #[cold]
    fn plan_read_part(&self, qp: &QpContext, ctx: &mut Ctx<'_>, psn: Psn) -> Option<TxPlan> {
        let slot = self.resources.find(psn, Operation::ReadRequest)?;
        let resource = self.resources.get(slot)?;
        let k = psn.distance_from(resource.first_psn) as u32;
        plan_response_packet(qp, ctx, resource, k, Opcode::RC_READ_RESPONSE_ONLY)
    }
}

/// Plans packet `k` of a READ response.
fn plan_response_packet(
    qp: &QpContext,
    ctx: &mut Ctx<'_>,
    resource: &Resource,
    k: u32,
    opcode: Opcode,
) -> Option<TxPlan> {
    let mtu = qp.mtu() as u64;
    let reth = &resource.reth;
    let offset = u64::from(k) * mtu;
    let length = u64::from(reth.dma_len).saturating_sub(offset).min(mtu);
    ctx.out.gather.clear();
    if length > 0 {
        let va = reth.va.wrapping_add(offset);
        let user = KeyUser { pd: resource.pd, qp: qp.index };
        let from = ctx.memory.check_remote(user, reth.rkey, va, length, Access::REMOTE_READ).ok()?;
        ctx.out.gather.push(Gather { from, length: length as u16 });
    }
    let syndrome = Syndrome::Ack { credits: credits(qp, ctx) };
    let aeth = Aeth { syndrome: syndrome.into(), msn: resource.msn };
    let ext = if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) };
    let plan = reply_packet(qp, opcode, resource.first_psn + k, ext, reason_of(resource));
    Some(TxPlan { payload_len: length as u16, ..plan })
}

fn plan_ack(qp: &QpContext, psn: Psn, msn: u32, syndrome: Syndrome, reason: TxReason) -> TxPlan {
    let ext = Ext::Aeth(Aeth { syndrome: syndrome.into(), msn });
    reply_packet(qp, Opcode::RC_ACKNOWLEDGE, psn, ext, reason)
}

/// Plans a reply without payload.
#[inline(always)]
fn reply_packet(qp: &QpContext, opcode: Opcode, psn: Psn, ext: Ext, reason: TxReason) -> TxPlan {
    //= IBTA 9.7.5.1: response-has-the-requests-psn
    let bth = Bth { opcode, psn, ..qp.bth() };
    TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason, origin: Origin::Reply }
}

fn reason_of(resource: &Resource) -> TxReason {
    if resource.again { TxReason::AnswerAgain } else { TxReason::Answer }
}

/// Returns the credit code for an AETH; 31 (no information) if the QP has none.
fn credits(qp: &QpContext, ctx: &Ctx<'_>) -> u8 {
    // Receives of a shared queue are no credit, because other QPs may take them (IBTA 9.7.7.2).
    //= IBTA 9.7.7.2: credits-are-told
    if !qp.has_credits() || qp.shares_receives {
        return NO_CREDITS;
    }
    let available = ctx.receives.available();
    (0..31).rev().find(|code| roxie_wire::credits(*code).is_some_and(|n| n <= available)).unwrap_or(0)
}
