//! The completer: processes responses for the requester (IBTA 9.7.6, 9.9.2).
//!
//! A response acknowledges all earlier requests, except a READ or an atomic that still lacks its own response. Then the
//! response has overtaken that one: an implied NAK, after which the requester retransmits from the READ or atomic.

use super::{Requester, Sending};
use crate::transport::context::Received;
use crate::transport::pacing::Arrival;
use crate::transport::rules::{is_packet_of, packets_for, response_fits};
use crate::transport::scatter::{self, FramePayload};
use crate::transport::{Cause, Ctx, QpContext, Verdict, door};
use crate::verbs::{QpState, SendFlags, Wc, WcOpcode, WcStatus, WrOpcode};
use roxie_wire::{Aeth, NakCode, Operation, Packet, Position, Psn, Syndrome};

impl Requester {
    /// Handles an acknowledgement, a READ response or an ATOMIC response.
    pub(crate) fn on_response(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = response;
        let psn = packet.bth.psn;
        //= IBTA 9.7.6: ghost-ack-is-dropped
        if !psn.is_before(self.window.sent_end()) {
            ctx.counters.ghost_acks += 1;
            return Verdict::Ghost;
        }
        //= IBTA 9.7.6: old-ack-is-dropped
        if psn.is_before(self.window.una()) {
            ctx.counters.duplicate_acks += 1;
            // The PSN is old, but the credits may be new: the peer may have posted receives since.
            if let Some(aeth) = packet.aeth().filter(|_| psn + 1 == self.window.una()) {
                let syndrome = Syndrome::from(aeth.syndrome);
                if let Syndrome::Ack { credits } = syndrome {
                    self.note_credits(qp, credits, aeth.msn);
                }
                let is_ack = matches!(syndrome, Syndrome::Ack { .. });
                self.ack_requests.note_old_answer(ctx.now, is_ack, &mut self.retry);
            }
            return Verdict::OldAck;
        }
        match packet.info().operation {
            Operation::ReadResponse => self.handle_read_response(ctx, response),
            Operation::AtomicAcknowledge => self.handle_atomic_response(ctx, response),
            Operation::SelectiveAcknowledge => self.handle_sack(ctx, response),
            _ => match packet.aeth() {
                //= IBTA 9.9.2: ack-has-no-payload
                Some(_) if !packet.payload.is_empty() => self.bad_response(qp, ctx),
                Some(aeth) => self.handle_acknowledge(qp, ctx, psn, aeth),
                None => Verdict::Ghost,
            },
        }
    }

    /// Fails the oldest request, because no conforming responder sends this response (IBTA 9.9.2).
    #[cold]
    fn bad_response(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Verdict {
        self.fail_oldest(qp, ctx, WcStatus::BadResp, 0);
        Verdict::Failed(WcStatus::BadResp)
    }

    fn handle_acknowledge(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, psn: Psn, aeth: Aeth) -> Verdict {
        match Syndrome::from(aeth.syndrome) {
            Syndrome::Ack { credits } => {
                self.note_credits(qp, credits, aeth.msn);
                self.acknowledge_before(qp, ctx, psn + 1).err().unwrap_or(Verdict::Acknowledged)
            }
            Syndrome::RnrNak { timer } => {
                ctx.counters.rcvd_rnr_err += 1;
                match self.acknowledge_before(qp, ctx, psn) {
                    // A repeated RNR NAK for the wait in progress.
                    Ok(()) if self.sending.waits() => Verdict::Stale,
                    Ok(()) => self.go_back_after(qp, ctx, timer),
                    Err(verdict) => verdict,
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                ctx.counters.packet_seq_err += 1;
                match self.acknowledge_before(qp, ctx, psn) {
                    // The NAK answers packets sent before the RNR NAK arrived (rxe sends both NAKs, `rxe_resp.c`). The
                    // packets are sent again after the wait anyway, so this costs no retry.
                    Ok(()) if self.sending.waits() => Verdict::Stale,
                    //= IBTA 9.7.6: sequence-nak-goes-back
                    Ok(()) => self.go_back(qp, ctx, Cause::SequenceNak),
                    Err(verdict) => verdict,
                }
            }
            Syndrome::Nak(code) => match self.acknowledge_before(qp, ctx, psn) {
                Ok(()) => self.refused_by_peer(qp, ctx, code, aeth.syndrome),
                Err(verdict) => verdict,
            },
            //= IBTA 9.7.6: reserved-syndrome-is-dropped
            Syndrome::Reserved(code) => {
                ctx.counters.ghost_acks += 1;
                Verdict::ReservedSyndrome(code)
            }
        }
    }

    fn refused_by_peer(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, code: NakCode, syndrome: u8) -> Verdict {
        //= IBTA 9.7.6: nak-ends-the-request
        let status = match code {
            NakCode::RemoteAccess => {
                ctx.counters.req_remote_access_errors += 1;
                WcStatus::RemAccess
            }
            NakCode::RemoteOperational => WcStatus::RemOp,
            NakCode::PsnSequence | NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                ctx.counters.req_remote_invalid_request += 1;
                WcStatus::RemInvReq
            }
        };
        self.fail_oldest(qp, ctx, status, syndrome);
        Verdict::Failed(status)
    }

    /// Handles an answer to what was sent before `end`, which overtook the response to a READ or an atomic.
    fn overtaken(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, end: Psn) -> Verdict {
        if let Some(board) = &mut self.scoreboard {
            let missing = board.mark_missing_responses(&self.window, end);
            // What is missing is asked for already, which costs no retry.
            let Some(verdict) = missing else { return Verdict::Stale };
            ctx.counters.implied_nak_seq_err += 1;
            self.repeat(Cause::Selective);
            return verdict;
        }
        if self.retry.is_implied() {
            // Remainder of a long response that was in flight at the last rewind. The peer is busy sending, and will
            // process the repeated request afterwards. Restart the timer: only silence is a timeout.
            self.retry.restart(ctx.now);
            return Verdict::Stale;
        }
        ctx.counters.implied_nak_seq_err += 1;
        //= IBTA 9.7.6: response-that-overtakes-is-an-implied-nak
        let verdict = self.go_back(qp, ctx, Cause::ImpliedNak);
        self.retry.set_implied();
        verdict
    }

    fn handle_read_response(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Verdict {
        let Received { qp, packet, frame } = response;
        let psn = packet.bth.psn;
        //= IBTA 9.7.6: read-response-completes-what-is-before
        if let Err(verdict) = self.acknowledge_before(qp, ctx, psn) {
            return self.keep_response(ctx, response).unwrap_or(verdict);
        }
        let position = self.window.queue().tail();
        let wqe = self.window.queue().at(position);
        let k = psn.distance_from(wqe.first_psn).max(0) as u32;
        let mtu = qp.mtu();
        let last = k + 1 == packets_for(wqe.length(), mtu);
        // With selective repeat, packets that were asked for alone lie between packets of the first answer.
        let fits =
            self.scoreboard.is_some() || response_fits(packet.info().position, k, wqe.requested_from, last);
        if matches!(wqe.wr.opcode, WrOpcode::AtomicWrite | WrOpcode::Flush) {
            return self.handle_empty_response(ctx, response);
        }
        if !fits || !positive(packet) || !is_packet_of(wqe, k, packet.payload.len(), mtu) {
            return self.bad_response(qp, ctx);
        }
        if !self.store_response(qp, ctx, position, k, FramePayload::of(packet, frame)) {
            self.fail_oldest(qp, ctx, WcStatus::LocProt, 0);
            return Verdict::Failed(WcStatus::LocProt);
        }
        self.note_result(ctx);
        self.advance(qp, ctx, psn + 1);
        self.answered_to(qp, ctx, last)
    }

    /// Plans the copy of response packet `k` of the READ at `position`. Returns false if its memory may not be written.
    fn store_response(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        position: u32,
        k: u32,
        payload: FramePayload,
    ) -> bool {
        let offset = u64::from(k) * qp.mtu() as u64;
        let sges = self.window.queue().sges(position);
        let is_planned = scatter::plan(ctx.memory, qp.pd, sges, offset, payload, ctx.out).is_ok();
        if is_planned {
            ctx.counters.rcvd_bytes += u64::from(payload.length);
        }
        is_planned
    }

    /// Stores a READ response that came before it is due. Returns `None` without selective repeat, or if the QP has
    /// failed.
    fn keep_response(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Option<Verdict> {
        let Received { qp, packet, frame } = response;
        let psn = packet.bth.psn;
        let board = self.scoreboard.as_ref().filter(|_| self.sending != Sending::Ended)?;
        let known = board.has_response(psn);
        let place = board.early_place(&self.window, packet, qp.mtu()).filter(|_| !known);
        let store =
            |(position, k)| self.store_response(qp, ctx, position, k, FramePayload::of(packet, frame));
        let is_new = positive(packet) && place.is_some_and(store);
        ctx.counters.early_kept += u64::from(is_new);
        if is_new && self.scoreboard.as_mut().is_some_and(|board| board.note_response(psn)) {
            self.skip_received();
        }
        let is_placed = is_new || known && positive(packet);
        Some(Verdict::Early { expected: self.window.una(), is_placed })
    }

    /// Moves `una` over responses that came early and are due now, and over what was answered behind them.
    fn pass_early_responses(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        loop {
            while self.sending != Sending::Ended
                && let Some((end, is_done)) =
                    self.scoreboard.as_mut().and_then(|board| board.due_run(&self.window))
            {
                self.advance(qp, ctx, end);
                if is_done {
                    self.complete_oldest(qp, ctx);
                }
            }
            let una = self.window.una();
            let answered = self.scoreboard.as_mut().and_then(|board| board.answered_end(&self.window));
            let Some(end) = answered else { break };
            let _ = self.acknowledge_before(qp, ctx, end);
            if self.window.una() == una {
                break;
            }
        }
    }

    /// Handles the response to an ATOMIC WRITE or a FLUSH: a READ response without payload (IBTA annex A19).
    fn handle_empty_response(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = response;
        if packet.info().position != Position::Only || !packet.payload.is_empty() || !positive(packet) {
            return self.bad_response(qp, ctx);
        }
        self.advance(qp, ctx, packet.bth.psn + 1);
        self.answered_to(qp, ctx, true)
    }

    fn handle_atomic_response(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = response;
        let psn = packet.bth.psn;
        if let Err(verdict) = self.acknowledge_before(qp, ctx, psn) {
            return verdict;
        }
        let position = self.window.queue().tail();
        let wqe = self.window.queue().at(position);
        let fits = wqe.wr.opcode.is_atomic() && positive(packet) && packet.payload.is_empty();
        let Some(value) = packet.atomic_ack().filter(|_| fits) else { return self.bad_response(qp, ctx) };
        let sges = self.window.queue().sges(position);
        //= IBTA 9.4.5: atomic-result-is-stored
        if scatter::store(ctx.memory, qp.pd, sges, value, ctx.out).is_err() {
            self.fail_oldest(qp, ctx, WcStatus::LocProt, 0);
            return Verdict::Failed(WcStatus::LocProt);
        }
        self.note_result(ctx);
        self.advance(qp, ctx, psn + 1);
        self.answered_to(qp, ctx, true)
    }

    /// Handles a selective acknowledgement: completes what it acknowledges, and sends again what it asks for.
    fn handle_sack(&mut self, ctx: &mut Ctx<'_>, response: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = response;
        let (psn, before) = (packet.bth.psn, self.window.una());
        let (Some(sack), Some(aeth)) = (packet.sack(), packet.aeth()) else { return Verdict::Ghost };
        // A peer without the agreement takes no notice: the opcode is none of its own.
        let Some(board) = &mut self.scoreboard else {
            ctx.counters.rx_wrong_service += 1;
            return Verdict::WrongService;
        };
        let (end, sent_end) = (psn + u32::from(sack.count), self.window.sent_end());
        let is_sent = !sent_end.is_before(end) && sack.latest.is_before(sent_end);
        let credits = match aeth.kind() {
            Syndrome::Ack { credits } if sack.is_coherent() && is_sent && packet.payload.is_empty() => {
                credits
            }
            // No conforming peer sends this SACK.
            _ => {
                ctx.counters.ghost_acks += 1;
                return Verdict::Ghost;
            }
        };
        ctx.counters.rcvd_sacks += 1;
        let cause = board.note_sack(ctx.now, before, psn, &sack);
        self.note_credits(qp, credits, aeth.msn);
        if let Err(verdict) = self.acknowledge_before(qp, ctx, psn) {
            return verdict;
        }
        // Packets that are sent again after the wait anyway.
        if self.sending.waits() {
            return Verdict::Stale;
        }
        let una = self.window.una();
        let Some(board) = &mut self.scoreboard else { return Verdict::Acknowledged };
        let missing = board.mark_missing(una, &sack, before, cause);
        let verdict = Verdict::Selective { requested: missing.missing, of: sack.count };
        let Some(first) = missing.first else {
            return if una == before { verdict } else { Verdict::Acknowledged };
        };
        let costs = missing.oldest_again && board.costs_retry(ctx.now, qp.attributes().ack_timeout());
        if costs && !self.retry.take() {
            return self.retries_exceeded(qp, ctx);
        }
        if missing.is_news || first.is_before(sent_end) && !self.window.repeats() {
            self.repeat(Cause::Selective);
        } else {
            self.skip_received();
        }
        verdict
    }

    /// Ends the handling of a response to the oldest READ or atomic. Only such a response makes early ones due.
    fn answered_to(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, is_last: bool) -> Verdict {
        if is_last {
            self.complete_oldest(qp, ctx);
        }
        if self.has_early_responses() {
            self.pass_early_responses(qp, ctx);
        }
        Verdict::Acknowledged
    }

    /// Acknowledges every PSN before `end` and completes the work requests that end there or earlier.
    ///
    /// Returns `Err` if the response must not be processed further: it overtook the response to a READ or atomic, or an
    /// unsendable work request became the oldest and failed, so that the QP is in the error state.
    pub(super) fn acknowledge_before(
        &mut self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        end: Psn,
    ) -> Result<(), Verdict> {
        self.complete_plain(qp, ctx, end);
        //= IBTA 9.7.6: ack-completes-what-is-before
        while self.window.una().is_before(end) {
            debug_assert!(
                !self.window.queue().is_empty(),
                "una is before sent_end, so something is outstanding"
            );
            let wqe = self.window.oldest();
            let its_end = wqe.end_psn();
            //= IBTA 9.7.6: only-its-response-completes-a-read
            if door::is_overtaken(wqe.wr.opcode.takes_resource()) {
                return Err(self.overtaken(qp, ctx, end));
            }
            invariant!(!wqe.wr.opcode.takes_resource(), "an acknowledgement ends a {:?}", wqe.wr.opcode);
            if end.is_before(its_end) {
                self.advance(qp, ctx, end);
            } else {
                self.advance(qp, ctx, its_end);
                let cannot = self.sending.failure();
                self.complete_oldest(qp, ctx);
                if self.sending == Sending::Ended {
                    return Err(Verdict::Failed(cannot.unwrap_or(WcStatus::LocQpOp)));
                }
            }
        }
        Ok(())
    }

    /// Completes all plain SENDs and WRITEs that end at or before `end`, and advances the state once for all of them.
    /// Does nothing outside of the common case: a failed work request, a position behind `end`, pacing, or a state
    /// other than RTS. `acknowledge_before` handles the rest.
    fn complete_plain(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, end: Psn) {
        let nothing_else = self.sending.failure().is_none()
            && !self.window.position().is_before(end)
            && !self.pacing.is_on();
        if !nothing_else || qp.state() != QpState::Rts || door::takes_long_way() {
            return;
        }
        let mut una = None;
        while !self.window.queue().is_empty() {
            let wqe = self.window.oldest();
            if !wqe.plain || !wqe.started || end.is_before(wqe.end_psn()) {
                break;
            }
            una = Some(wqe.end_psn());
            let (opcode, is_send) = match wqe.wr.opcode {
                WrOpcode::Write => (WcOpcode::Write, false),
                _ => (WcOpcode::Send, true),
            };
            //= IBTA 10.8: unsignaled-success-does-not-complete
            if qp.sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
                let (wr_id, byte_len) = (wqe.wr.wr_id, wqe.length() as u32);
                let wc = Wc { wr_id, opcode, qpn: qp.qpn, byte_len, ..Wc::default() };
                ctx.out.completions.push((qp.send_cq, wc));
            } else {
                self.ack_requests.note_unsignaled();
            }
            ctx.counters.rdma_sends += u64::from(is_send);
            //= IBTA 10.8.3: sends-complete-in-order
            self.window.retire_plain();
        }
        if let Some(una) = una {
            self.advance(qp, ctx, una);
            self.complete_local_work(qp, ctx);
        }
    }

    /// Updates the end-to-end credits from an AETH, if they are agreed.
    fn note_credits(&mut self, qp: &QpContext, code: u8, msn: u32) {
        if qp.attributes().end_to_end_credits {
            self.credits.note(code, msn);
        }
    }

    /// Moves `una` forward: resets the retry counters, restarts the timer, and moves the position along if it is behind
    /// (the response arrived after a rewind).
    pub(super) fn advance(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, una: Psn) {
        let attributes = qp.attributes();
        let is_behind = self.window.acknowledge(una);
        self.ack_requests.advance(una);
        self.retry.progress(attributes, self.window.is_idle());
        // Progress of the receiver ends the RNR wait.
        self.sending.end_wait();
        if self.retry.cause().is_some() {
            self.note_progress(ctx.now, attributes.ack_timeout());
        }
        //= IBTA 9.7.6.1.3: timer-runs-while-something-is-outstanding
        if self.window.is_idle() {
            self.retry.stop();
            if self.ack_requests.may_test(una) && qp.state() == QpState::Rts {
                self.ack_requests.begin_test(ctx.now, &mut self.retry);
            }
        } else {
            self.start_timer(ctx.now);
        }
        if is_behind {
            self.rewind_to(una);
            self.skip_received();
        }
        if self.pacing.is_on() {
            self.note_arrival(qp, ctx);
        }
    }

    /// Tells the pacer of a new acknowledgement.
    #[cold]
    fn note_arrival(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        let arrival = Arrival {
            una: self.window.una(),
            under_way: self.window.outstanding(),
            mtu: qp.mtu() as u64,
            is_going_back: self.retry.cause().is_some(),
        };
        self.pacing.acknowledged(ctx.now, ctx.out.arrived, &arrival);
    }
}

/// True unless the packet has an AETH that is no ACK.
fn positive(packet: &Packet) -> bool {
    packet.aeth().is_none_or(|aeth| matches!(Syndrome::from(aeth.syndrome), Syndrome::Ack { .. }))
}
