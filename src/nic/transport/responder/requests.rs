//! Requests of reliable services: expected, ahead or duplicate (IBTA 9.7.4, 9.7.5).
//!
//! Checks follow the order of the specification: the PSN (expected, ahead, duplicate), then the opcode in the message
//! sequence, then the length, then the access rights. Only a request that passes all checks accesses memory.

use super::{Check, Executed, Received, Reply, RequestRefused, Responder};
use crate::transport::rules::{is_last, packets_for};
use crate::transport::{Ctx, Verdict, door};
use crate::verbs::{AsyncEvent, EventKind, QpType, Srqn, WcStatus};
use roxie_base::time::Nanos;
use roxie_wire::{NakCode, Operation, Packet, rnr_timer_ns};

impl Responder {
    /// Handles a request packet. `frame` is its index in the receive burst.
    pub(crate) fn on_request(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Verdict {
        let Received { packet, .. } = request;
        //= IBTA 9.7.1: psn-half-circle
        let ahead = self.distance_to(packet);
        //= IBTA 9.5: requests-are-executed-in-psn-order
        match ahead {
            0 => self.on_expected(ctx, request),
            1.. => self.on_ahead(ctx, request, ahead as u32),
            _ => self.on_duplicate(ctx, request),
        }
    }

    /// Returns how far a request is ahead of the expected PSN; negative: a duplicate.
    #[inline(always)]
    pub(super) fn distance_to(&self, packet: &Packet) -> i32 {
        door::distance(packet, self.expected)
    }

    fn on_ahead(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>, ahead: u32) -> Verdict {
        ctx.counters.out_of_sequence += 1;
        if self.early.is_some() {
            return self.on_early(ctx, request, ahead);
        }
        let (expected, nak) = (self.expected, ctx.now >= self.silent_until);
        if nak {
            self.silent_until = Nanos::MAX;
            //= IBTA 9.7.5.2: gap-is-nakd-once
            self.replies.push(Reply::Nak { psn: expected, msn: self.msn, why: Check::PsnAhead });
        }
        Verdict::OutOfSequence { expected, nak }
    }

    fn on_expected(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = request;
        self.end_silence();
        let (before, from) = (self.expected, ctx.out.dma_in.len());
        let checked = self.checked(ctx, request).map_err(RequestRefused::from);
        match checked.and_then(|()| self.execute(ctx, request)) {
            Ok(Executed::Done) => {
                self.move_on(ctx, request);
                self.passed_due(ctx, request, before, from);
                Verdict::Executed
            }
            Ok(Executed::NotReady) => {
                ctx.counters.out_of_buffer += 1;
                ctx.counters.send_rnr_err += 1;
                //= IBTA 9.7.5.2.8: rnr-nak-has-the-qps-timer
                let timer = qp.attributes().min_rnr_timer;
                // Packets ahead are dropped silently during the wait: the peer will send them again.
                //= IBTA 9.7.5.2.8: rnr-nak-is-followed-by-silence
                self.silent_until = ctx.now + Nanos(rnr_timer_ns(timer));
                //= IBTA 9.7.5.2.8: rnr-nak-without-a-receive
                self.replies.push(Reply::RnrNak { psn: packet.bth.psn, msn: self.msn, timer });
                Verdict::NotReady
            }
            Err(refusal) => self.refuse(ctx, request, refusal),
        }
    }

    /// Checks sequence and length of the expected request, and selects the receives of XRC.
    fn checked(&mut self, ctx: &mut Ctx<'_>, Received { qp, packet, .. }: Received<'_>) -> Result<(), Check> {
        //= IBTA 9.7.4.1: checks-have-an-order, refused-request-changes-nothing
        self.receiving.check_sequence(packet)?;
        qp.check_length(packet)?;
        if qp.qp_type == QpType::XrcRecv {
            self.choose_receives(ctx, packet)?;
        }
        Ok(())
    }

    /// Selects the shared receive queue that an XRC request names. All packets of a message must name the same.
    fn choose_receives(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Result<(), Check> {
        let srqn = Srqn(packet.xrceth().ok_or(Check::Opcode)?.srqn);
        let continues = !packet.info().position.begins();
        //= IBTA A14: xrc-message-names-one-queue
        if continues && srqn != self.srqn {
            return Err(Check::OtherQueue);
        }
        //= IBTA A14: xrc-queue-is-of-the-domain
        let chosen = ctx.receives.choose(srqn).ok_or(Check::NoSuchQueue)?;
        //= IBTA A14: xrc-keys-are-of-the-queues-domain
        self.pd = chosen.pd;
        self.receiving.take_from(chosen.pd, chosen.cq);
        self.srqn = srqn;
        Ok(())
    }

    /// Expects the next PSN after an executed request, and queues an acknowledgement if one is due.
    fn move_on(&mut self, ctx: &Ctx<'_>, Received { qp, packet, .. }: Received<'_>) {
        let operation = packet.info().operation;
        //= IBTA 9.7.5.1: read-response-acknowledges-what-is-before
        match packet.reth() {
            _ if matches!(operation, Operation::Send | Operation::Write) => {
                self.expect_next(packet.bth.ack_req, ctx.limits);
            }
            Some(reth) if operation == Operation::ReadRequest => {
                self.expect_behind(packets_for(reth.dma_len.into(), qp.mtu()));
            }
            _ => self.expect_behind(1),
        }
    }

    /// Queues the NAK, completes the receive in error if one was taken, and raises the event. The connection ends.
    fn refuse(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>, refusal: RequestRefused) -> Verdict {
        let Received { qp, packet, .. } = request;
        let RequestRefused { check, receive } = refusal;
        self.replies.push_last(Reply::Nak { psn: packet.bth.psn, msn: self.msn, why: check });
        let counted = u64::from(!qp.responder_profile().counts_no_refusal);
        let kind = match check.nak() {
            NakCode::RemoteAccess => {
                ctx.counters.resp_remote_access_errors += counted;
                EventKind::QpAccessError
            }
            NakCode::RemoteOperational => EventKind::QpFatal,
            _ => {
                ctx.counters.resp_invalid_requests += counted;
                EventKind::QpRequestError
            }
        };
        //= IBTA 9.9.3: failing-receive-carries-the-cause
        if let Some(status) = receive
            && self.receiving.fail(qp, ctx, status)
        {
            ctx.counters.resp_local_length_error += u64::from(status == WcStatus::LocLen);
        }
        //= IBTA 9.9.3: responder-error-ends-rc
        ctx.out.events.push(AsyncEvent::Qp(qp.index, kind));
        Verdict::Refused(check)
    }

    /// Refuses a request after it was executed, because its memory operation has failed. `completed`: the receive that
    /// it has completed.
    pub(crate) fn request_failed(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
        completed: Option<u64>,
    ) -> Verdict {
        let Received { qp, packet, .. } = request;
        if let Some(wr_id) = completed {
            self.receiving.take_back(wr_id);
        }
        let is_write = packet.info().operation != Operation::Send;
        //= IBTA 9.8.2: uc-is-never-answered
        if qp.qp_type == QpType::Uc && is_write && completed.is_none() {
            ctx.counters.resp_remote_access_errors += 1;
            return self.drop_message(ctx, Verdict::Unsuitable(Check::NoPage));
        }
        let (psn, resources) = (packet.bth.psn, &self.resources);
        self.replies.pop_back_if(|reply| match *reply {
            Reply::Nak { .. } | Reply::RnrNak { .. } | Reply::Sack { .. } | Reply::ReadPart(_) => false,
            Reply::Ack { .. } | Reply::Read(_) | Reply::Atomic(_) => resources.psn_of(reply) == Some(psn),
        });
        if is_last(packet) {
            self.msn = self.msn.wrapping_sub(1) & 0xff_ffff;
        }
        let refusal = if is_write {
            RequestRefused { check: Check::NoPage, receive: Some(WcStatus::LocAccess) }
        } else {
            RequestRefused { check: Check::ReceiveNoPage, receive: Some(WcStatus::LocProt) }
        };
        self.refuse(ctx, request, refusal)
    }
}
