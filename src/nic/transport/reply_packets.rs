//! Packets of the responder's pending replies.

use super::check::Check;
use super::planted::PlantedBug;
use super::replies::Reply;
use super::responder::{Resource, Responder};
use super::rules::read_response_opcode;
use super::{Ctx, Gather, Origin, Qp, TxPlan, TxReason};
use crate::verbs::{Access, AsyncEvent, EventKind, QpState};
use roxie_wire::{Aeth, Bth, Ext, Opcode, Operation, Psn, Reth, Syndrome};

/// AETH credit code for no information (IBTA 9.7.7.2).
pub(super) const NO_CREDITS: u8 = 31;

impl Qp {
    /// Plans the packet of the oldest pending reply.
    pub(super) fn next_reply(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        loop {
            let reply = self.responder.replies.front()?;
            let plan = match reply {
                Reply::Ack { psn, msn } => {
                    let syndrome = Syndrome::Ack { credits: self.credits(ctx) };
                    let reason = self.responder.reason_of_ack();
                    Some(self.plan_ack(psn, msn, syndrome, reason))
                }
                Reply::Nak { psn, msn, why } => {
                    Some(self.plan_ack(psn, msn, Syndrome::Nak(why.nak()), TxReason::Nak(why)))
                }
                Reply::RnrNak { psn, msn, timer } => {
                    Some(self.plan_ack(psn, msn, Syndrome::RnrNak { timer }, TxReason::RnrNak))
                }
                Reply::Sack { psn, msn, may_be_ack } => {
                    // A READ or an atomic has an answer of its own.
                    let plan = Some(self.plan_sack(ctx, psn, msn));
                    plan.filter(|plan| may_be_ack || plan.bth.psn == psn)
                }
                Reply::Atomic(slot) => self.plan_atomic_response(ctx, slot),
                Reply::Read(slot) => self.plan_read_response(ctx, slot),
                Reply::ReadPart(psn) => self.plan_read_part(ctx, psn),
            };
            if plan.is_some() {
                return plan;
            }
            self.region_vanished(ctx, reply);
            // A READ response behind it is paced.
            if self.pacing.holds() && !self.has_unpaced() {
                return None;
            }
        }
    }

    /// Handles a reply that cannot be sent, because its region was deregistered meanwhile.
    fn region_vanished(&mut self, ctx: &mut Ctx<'_>, reply: Reply) {
        let r = &mut self.responder;
        r.replies.pop();
        let (Reply::Read(slot) | Reply::Atomic(slot)) = reply else { return };
        let Some(Some(resource)) = r.resources.get(usize::from(slot)) else { return };
        let psn = resource.first_psn + resource.next;
        self.refuse_rest(ctx, slot, psn, Check::Gone);
    }

    /// Refuses the rest of a READ from `psn` on, because its memory is gone. The response to a duplicate is dropped silently, because the peer
    /// may have received the first response. The responder remembers the READ: no ACK may have one of its PSNs.
    pub(super) fn refuse_rest(&mut self, ctx: &mut Ctx<'_>, slot: u8, psn: Psn, why: Check) {
        let r = &mut self.responder;
        let Some(Some(resource)) = r.resources.get_mut(usize::from(slot)) else { return };
        resource.queued = false;
        if resource.again {
            return;
        }
        //= IBTA 9.7.5.2.4: read-that-fails-later-is-nakd
        r.replies.push_front(Reply::Nak { psn, msn: r.msn, why });
        ctx.counters.resp_remote_access_errors += 1;
        // A pending NAK has raised its event already.
        if self.state() != QpState::Err {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::QpAccessError));
        }
        self.enter_error(ctx);
    }

    /// Returns the credit code for an AETH. Without end-to-end credits, 31 (no information).
    fn credits(&self, ctx: &Ctx<'_>) -> u8 {
        // Receives of a shared queue are no credit, because other QPs may take them (IBTA 9.7.7.2).
        //= IBTA 9.7.7.2: credits-are-told
        if !self.attributes().end_to_end_credits || self.shares_receives {
            return NO_CREDITS;
        }
        let available = ctx.receives.available();
        (0..31).rev().find(|code| roxie_wire::credits(*code).is_some_and(|n| n <= available)).unwrap_or(0)
    }

    fn plan_ack(&self, psn: Psn, msn: u32, syndrome: Syndrome, reason: TxReason) -> TxPlan {
        //= IBTA 9.7.5.1: response-has-the-requests-psn
        let bth = Bth { opcode: Opcode::RC_ACKNOWLEDGE, psn, ..self.bth() };
        let ext = Ext::Aeth(Aeth { syndrome: syndrome.into(), msn });
        TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason, origin: Origin::Reply }
    }

    /// Plans a selective acknowledgement; a plain one if nothing is missing any more, or a later reply tells more.
    fn plan_sack(&self, ctx: &Ctx<'_>, psn: Psn, msn: u32) -> TxPlan {
        let r = &self.responder;
        let syndrome = Syndrome::Ack { credits: self.credits(ctx) };
        let due = r.early.as_ref().filter(|early| !early.is_empty() && psn == r.expected);
        let Some(sack) = due.map(|early| early.sack()) else {
            return self.plan_ack(psn - 1, msn, syndrome, TxReason::Answer);
        };
        let reason = TxReason::Asks { missing: sack.missing() as u8, of: sack.count };
        let bth = Bth { opcode: Opcode::RC_SELECTIVE_ACKNOWLEDGE, psn, ..self.bth() };
        let ext = Ext::Sack(Aeth { syndrome: syndrome.into(), msn }, sack);
        TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason, origin: Origin::Reply }
    }

    fn plan_atomic_response(&self, ctx: &Ctx<'_>, slot: u8) -> Option<TxPlan> {
        let resource = self.responder.resources.get(usize::from(slot))?.as_ref()?;
        let bth = Bth { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, psn: resource.first_psn, ..self.bth() };
        let syndrome = Syndrome::Ack { credits: self.credits(ctx) };
        //= IBTA 9.7.5.1: atomic-response-has-what-was-there
        let mut result = resource.result;
        if resource.again && PlantedBug::NewestResultAnswers.is() {
            result = self.responder.newest_resource()?.result;
        }
        let ext = Ext::AtomicAck(Aeth { syndrome: syndrome.into(), msn: resource.msn }, result);
        let reason = if resource.again { TxReason::AnswerAgain } else { TxReason::Answer };
        Some(TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason, origin: Origin::Reply })
    }

    fn plan_read_response(&self, ctx: &mut Ctx<'_>, slot: u8) -> Option<TxPlan> {
        let resource = self.responder.resources.get(usize::from(slot))?.as_ref()?;
        let opcode = read_response_opcode(resource.next, resource.packets);
        self.plan_response_packet(ctx, resource, resource.next, opcode)
    }

    /// Plans a packet of a READ response that is sent again alone. Returns `None` if its resource or its memory has gone.
    #[cold]
    fn plan_read_part(&self, ctx: &mut Ctx<'_>, psn: Psn) -> Option<TxPlan> {
        let slot = self.responder.find_resource(psn, Operation::ReadRequest)?;
        let resource = self.responder.resources[usize::from(slot)].as_ref()?;
        let k = psn.distance_from(resource.first_psn) as u32;
        self.plan_response_packet(ctx, resource, k, Opcode::RC_READ_RESPONSE_ONLY)
    }

    /// Plans packet `k` of a READ response.
    fn plan_response_packet(
        &self,
        ctx: &mut Ctx<'_>,
        resource: &Resource,
        k: u32,
        opcode: Opcode,
    ) -> Option<TxPlan> {
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let reth = &resource.reth;
        let offset = u64::from(k) * mtu;
        let length = u64::from(reth.dma_len).saturating_sub(offset).min(mtu);
        ctx.out.gather.clear();
        if length > 0 {
            let va = reth.va.wrapping_add(offset);
            let here = Reth { va, dma_len: length as u32, ..*reth };
            let from = self.check_remote_in(resource.pd, ctx, &here, Access::REMOTE_READ).ok()?;
            ctx.out.gather.push(Gather { from, length: length as u16 });
        }
        let syndrome = Syndrome::Ack { credits: self.credits(ctx) };
        let aeth = Aeth { syndrome: syndrome.into(), msn: resource.msn };
        let ext = if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) };
        //= IBTA 9.7.5.1: response-has-the-requests-psn
        let bth = Bth { opcode, psn: resource.first_psn + k, ..self.bth() };
        let reason = if resource.again { TxReason::AnswerAgain } else { TxReason::Answer };
        Some(TxPlan {
            bth,
            ext,
            payload_len: length as u16,
            inline: None,
            ah: None,
            reason,
            origin: Origin::Reply,
        })
    }
}

impl Responder {
    /// Advances the state past the reply packet at the front, which is sent.
    pub(super) fn reply_sent(&mut self) {
        let slot = match self.replies.front() {
            Some(Reply::Read(slot) | Reply::Atomic(slot)) => usize::from(slot),
            _ => {
                self.replies.pop();
                return;
            }
        };
        let Some(Some(resource)) = self.resources.get_mut(slot) else { return };
        resource.next += 1;
        if resource.next >= resource.packets {
            resource.queued = false;
            resource.next = 0;
            self.replies.pop();
        }
    }
}
