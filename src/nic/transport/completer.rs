//! The completer: processes responses for the requester (IBTA 9.7.6, 9.9.2).
//!
//! A response acknowledges all earlier requests, except a READ or an atomic that still lacks its own response. Then the
//! response has overtaken that one: an implied NAK, after which the requester retransmits from the READ or atomic.

use super::planted::PlantedBug;
use super::requester::{Requester, Sending};
use super::rules::{is_packet_of, packets_for, response_fits};
use super::scatter::{self, FramePayload};
use super::send_queue::QueuedWr;
use super::{Cause, Ctx, Qp, Verdict};
use crate::verbs::{AsyncEvent, EventKind, QpState, QpType, SendFlags, Wc, WcOpcode, WcStatus, WrOpcode};
use roxie_base::time::Nanos;
use roxie_wire::{Aeth, NakCode, Operation, Packet, Position, Psn, Syndrome};

impl Qp {
    /// Handles an acknowledgement, a READ response or an ATOMIC response.
    pub(super) fn handle_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let psn = packet.bth.psn;
        let r = &self.requester;
        //= IBTA 9.7.6: ghost-ack-is-dropped
        if !before(psn, r.sent_end) {
            ctx.counters.ghost_acks += 1;
            return Verdict::Ghost;
        }
        //= IBTA 9.7.6: old-ack-is-dropped
        if before(psn, r.una) {
            ctx.counters.duplicate_acks += 1;
            // The PSN is old, but the credits may be new: the peer may have posted receives since.
            if let Some(aeth) = packet.aeth().filter(|_| psn + 1 == r.una)
                && let Syndrome::Ack { credits } = Syndrome::from(aeth.syndrome)
            {
                self.note_credits(credits, aeth.msn);
            }
            return Verdict::OldAck;
        }
        match packet.info().operation {
            Operation::ReadResponse => self.handle_read_response(ctx, packet, frame),
            Operation::AtomicAcknowledge => self.handle_atomic_response(ctx, packet),
            Operation::SelectiveAcknowledge => self.handle_sack(ctx, packet),
            _ => match packet.aeth() {
                //= IBTA 9.9.2: ack-has-no-payload
                Some(_) if !packet.payload.is_empty() => self.bad_response(ctx),
                Some(aeth) => self.handle_acknowledge(ctx, psn, aeth),
                None => Verdict::Ghost,
            },
        }
    }

    /// Fails the oldest request, because no conforming responder sends this response (IBTA 9.9.2).
    #[cold]
    fn bad_response(&mut self, ctx: &mut Ctx<'_>) -> Verdict {
        self.fail_oldest(ctx, WcStatus::BadResp, 0);
        Verdict::Failed(WcStatus::BadResp)
    }

    fn handle_acknowledge(&mut self, ctx: &mut Ctx<'_>, psn: Psn, aeth: Aeth) -> Verdict {
        match Syndrome::from(aeth.syndrome) {
            Syndrome::Ack { credits } => {
                self.note_credits(credits, aeth.msn);
                self.acknowledge_before(ctx, psn + 1).err().unwrap_or(Verdict::Acknowledged)
            }
            Syndrome::RnrNak { timer } => {
                ctx.counters.rcvd_rnr_err += 1;
                match self.acknowledge_before(ctx, psn) {
                    // A repeated RNR NAK for the wait in progress.
                    Ok(()) if matches!(self.requester.sending, Sending::RnrWait(_)) => Verdict::Stale,
                    Ok(()) => self.go_back_after(ctx, timer),
                    Err(verdict) => verdict,
                }
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                ctx.counters.packet_seq_err += 1;
                match self.acknowledge_before(ctx, psn) {
                    // The NAK answers packets sent before the RNR NAK arrived (rxe sends both NAKs, `rxe_resp.c`). The
                    // packets are sent again after the wait anyway, so this costs no retry.
                    Ok(()) if matches!(self.requester.sending, Sending::RnrWait(_)) => Verdict::Stale,
                    //= IBTA 9.7.6: sequence-nak-goes-back
                    Ok(()) => self.go_back(ctx, Cause::SequenceNak),
                    Err(verdict) => verdict,
                }
            }
            Syndrome::Nak(code) => match self.acknowledge_before(ctx, psn) {
                Ok(()) => self.refused_by_peer(ctx, code, aeth.syndrome),
                Err(verdict) => verdict,
            },
            //= IBTA 9.7.6: reserved-syndrome-is-dropped
            Syndrome::Reserved(code) => {
                ctx.counters.ghost_acks += 1;
                Verdict::ReservedSyndrome(code)
            }
        }
    }

    fn refused_by_peer(&mut self, ctx: &mut Ctx<'_>, code: NakCode, syndrome: u8) -> Verdict {
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
        self.fail_oldest(ctx, status, syndrome);
        Verdict::Failed(status)
    }

    /// Handles an answer to what was sent before `end`, which overtook the response to a READ or an atomic.
    fn overtaken(&mut self, ctx: &mut Ctx<'_>, end: Psn) -> Verdict {
        if self.requester.is_selective() {
            let missing = self.requester.mark_missing_responses(end);
            self.note_fast_path();
            // What is missing is asked for already, which costs no retry.
            let Some(verdict) = missing else { return Verdict::Stale };
            ctx.counters.implied_nak_seq_err += 1;
            self.pacing.forget_probe();
            self.requester.repeat(Cause::Selective);
            return verdict;
        }
        if self.requester.implied_nak {
            // Remainder of a long response that was in flight at the last rewind. The peer is busy sending, and will
            // process the repeated request afterwards. Restart the timer: only silence is a timeout.
            self.restart_timer(ctx);
            return Verdict::Stale;
        }
        ctx.counters.implied_nak_seq_err += 1;
        //= IBTA 9.7.6: response-that-overtakes-is-an-implied-nak
        let verdict = self.go_back(ctx, Cause::ImpliedNak);
        self.requester.implied_nak = true;
        verdict
    }

    /// Restarts the retransmission timer, if a packet has been sent since the last rewind.
    fn restart_timer(&mut self, ctx: &Ctx<'_>) {
        let r = &mut self.requester;
        if let Some(timeout) = r.ack_timeout.filter(|_| r.retransmit_at != Nanos::MAX) {
            r.retransmit_at = ctx.now + timeout;
        }
    }

    fn handle_read_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let psn = packet.bth.psn;
        //= IBTA 9.7.6: read-response-completes-what-is-before
        if let Err(verdict) = self.acknowledge_before(ctx, psn) {
            return self.keep_response(ctx, packet, frame).unwrap_or(verdict);
        }
        let position = self.requester.queue.tail();
        let wqe = self.requester.queue.at(position);
        let k = psn.distance_from(wqe.first_psn).max(0) as u32;
        let mtu = self.attributes().path_mtu.bytes();
        let last = k + 1 == packets_for(wqe.length(), mtu);
        // With selective repeat, packets that were asked for alone lie between those of the first answer.
        let fits =
            self.requester.is_selective() || response_fits(packet.info().position, k, wqe.asked_from, last);
        if matches!(wqe.wr.opcode, WrOpcode::AtomicWrite | WrOpcode::Flush) {
            return self.handle_empty_response(ctx, packet);
        }
        if !fits || !positive(packet) || !is_packet_of(wqe, k, packet.payload.len(), mtu) {
            return self.bad_response(ctx);
        }
        if !self.store_response(ctx, position, k, FramePayload::of(packet, frame)) {
            self.fail_oldest(ctx, WcStatus::LocProt, 0);
            return Verdict::Failed(WcStatus::LocProt);
        }
        self.requester.note_result(ctx);
        self.advance(ctx, psn + 1);
        self.answered_to(ctx, last)
    }

    /// Plans the copy of response packet `k` of the READ at `position`. Returns false if its memory may not be written.
    fn store_response(&self, ctx: &mut Ctx<'_>, position: u32, k: u32, payload: FramePayload) -> bool {
        let offset = u64::from(k) * self.attributes().path_mtu.bytes() as u64;
        let sges = self.requester.queue.sges(position);
        let is_planned = scatter::plan(ctx.memory, self.pd, sges, offset, payload, ctx.out).is_ok();
        if is_planned {
            ctx.counters.rcvd_bytes += u64::from(payload.length);
        }
        is_planned
    }

    /// Stores a READ response that came before it is due. Returns `None` without selective repeat, or if the QP has failed.
    fn keep_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Option<Verdict> {
        let (r, psn) = (&self.requester, packet.bth.psn);
        if !r.is_selective() || self.state() == QpState::Err {
            return None;
        }
        let known = r.has_response(psn);
        let place = r.early_place(packet, self.attributes().path_mtu.bytes()).filter(|_| !known);
        let store = |(position, k)| self.store_response(ctx, position, k, FramePayload::of(packet, frame));
        let is_new = positive(packet) && place.is_some_and(store);
        ctx.counters.early_kept += u64::from(is_new);
        if is_new {
            self.requester.note_response(psn);
        }
        let kept = is_new || known && positive(packet);
        Some(Verdict::Early { expected: self.requester.una, kept })
    }

    /// Moves `una` over responses that came early and are due now, and over what was answered behind them.
    fn pass_early_responses(&mut self, ctx: &mut Ctx<'_>) {
        loop {
            while matches!(self.state(), QpState::Rts | QpState::Sqd)
                && let Some((end, is_done)) = self.requester.due_run()
            {
                self.advance(ctx, end);
                if is_done {
                    self.complete_oldest(ctx);
                }
            }
            let una = self.requester.una;
            let Some(end) = self.requester.answered_end() else { break };
            let _ = self.acknowledge_before(ctx, end);
            if self.requester.una == una {
                break;
            }
        }
        self.note_fast_path();
    }

    /// Handles the response to an ATOMIC WRITE or a FLUSH: a READ response without payload (IBTA annex A19).
    fn handle_empty_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        if packet.info().position != Position::Only || !packet.payload.is_empty() || !positive(packet) {
            return self.bad_response(ctx);
        }
        self.advance(ctx, packet.bth.psn + 1);
        self.answered_to(ctx, true)
    }

    fn handle_atomic_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        let psn = packet.bth.psn;
        if let Err(verdict) = self.acknowledge_before(ctx, psn) {
            return verdict;
        }
        let position = self.requester.queue.tail();
        let wqe = self.requester.queue.at(position);
        let fits = wqe.wr.opcode.is_atomic() && positive(packet) && packet.payload.is_empty();
        let Some(value) = packet.atomic_ack().filter(|_| fits) else { return self.bad_response(ctx) };
        let sges = self.requester.queue.sges(position);
        //= IBTA 9.4.5: atomic-result-is-stored
        if scatter::store(ctx.memory, self.pd, sges, value, ctx.out).is_err() {
            self.fail_oldest(ctx, WcStatus::LocProt, 0);
            return Verdict::Failed(WcStatus::LocProt);
        }
        self.requester.note_result(ctx);
        self.advance(ctx, psn + 1);
        self.answered_to(ctx, true)
    }

    /// Ends the handling of a response to the oldest READ or atomic. Only such a response makes early ones due.
    fn answered_to(&mut self, ctx: &mut Ctx<'_>, is_last: bool) -> Verdict {
        if is_last {
            self.complete_oldest(ctx);
        }
        if self.requester.has_early_responses() {
            self.pass_early_responses(ctx);
        }
        Verdict::Acknowledged
    }

    /// Acknowledges every PSN before `end` and completes the work requests that end there or earlier.
    ///
    /// Returns `Err` if the response must not be processed further: it overtook the response to a READ or atomic, or an
    /// unsendable work request became the oldest and failed, so that the QP is in the error state.
    pub(super) fn acknowledge_before(&mut self, ctx: &mut Ctx<'_>, end: Psn) -> Result<(), Verdict> {
        self.complete_plain(ctx, end);
        //= IBTA 9.7.6: ack-completes-what-is-before
        while before(self.requester.una, end) {
            let r = &self.requester;
            debug_assert!(!r.queue.is_empty(), "una is before sent_end, so something is outstanding");
            let wqe = r.queue.at(r.queue.tail());
            let its_end = wqe.end_psn();
            //= IBTA 9.7.6: only-its-response-completes-a-read
            if wqe.wr.opcode.takes_resource() && !PlantedBug::AckCompletesRead.is() {
                return Err(self.overtaken(ctx, end));
            }
            invariant!(!wqe.wr.opcode.takes_resource(), "an acknowledgement ends a {:?}", wqe.wr.opcode);
            if end.is_before(its_end) {
                self.advance(ctx, end);
            } else {
                self.advance(ctx, its_end);
                let sending = self.requester.sending;
                self.complete_oldest(ctx);
                if self.state() == QpState::Err {
                    let Sending::Failed(status) = sending else {
                        return Err(Verdict::Failed(WcStatus::LocQpOp));
                    };
                    return Err(Verdict::Failed(status));
                }
            }
        }
        Ok(())
    }

    /// Moves `una` forward: resets the retry counters, restarts the timer, and moves the position along if it is behind
    /// (the response arrived after a rewind).
    pub(super) fn advance(&mut self, ctx: &mut Ctx<'_>, una: Psn) {
        let longest = self.attributes().ack_timeout();
        let (retries, rnr_retries) = (self.attributes().retry_cnt, self.attributes().rnr_retry);
        let r = &mut self.requester;
        let behind = r.position().is_before(una);
        r.una = una;
        r.keep_probe_near();
        //= IBTA 9.9.2: progress-gives-the-retries-back
        r.retries_left = retries;
        if una == r.sent_end || !PlantedBug::RnrTriesAreUsedUp.is() {
            r.rnr_retries_left = rnr_retries;
        }
        r.implied_nak &= PlantedBug::GoesBackOnce.is();
        // Progress of the receiver ends the RNR wait.
        r.end_rnr_wait();
        if r.going_back.is_some() {
            r.note_progress(ctx.now, longest);
        }
        //= IBTA 9.7.6.1.3: timer-runs-while-something-is-outstanding
        if una == r.sent_end {
            r.retransmit_at = Nanos::MAX;
        } else {
            r.start_timer(ctx.now);
        }
        if behind {
            r.rewind_to(una);
            r.skip_what_came();
        }
        if self.pacing.is_on() {
            self.note_arrival(ctx);
        }
    }

    /// Completes the oldest work request successfully.
    pub(super) fn complete_oldest(&mut self, ctx: &mut Ctx<'_>) {
        let wqe = self.requester.queue.at(self.requester.queue.tail());
        //= IBTA 10.8: unsignaled-success-does-not-complete
        if self.sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
            self.push_send_completion(ctx, &wqe.wr, WcStatus::Success, 0, wqe.length() as u32);
        }
        ctx.counters.rdma_sends +=
            u64::from(matches!(wqe.wr.opcode, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate));
        //= IBTA 10.8.3: sends-complete-in-order
        self.requester.retire_oldest();
        self.complete_local_work(ctx);
        self.fail_if_oldest(ctx);
        self.report_drained(ctx);
    }

    /// Fails the work request that could not be sent, if it is the oldest.
    pub(super) fn fail_if_oldest(&mut self, ctx: &mut Ctx<'_>) {
        let r = &self.requester;
        if let Sending::Failed(status) = r.sending
            && r.next == r.queue.tail()
        {
            self.fail_oldest(ctx, status, 0);
        }
    }

    /// Marks the work request at the position as one that cannot be sent. It fails once it is the oldest.
    #[cold]
    pub(super) fn cannot_send(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) {
        self.requester.sending = Sending::Failed(status);
        self.fail_if_oldest(ctx);
        self.requester.ask(ctx.limits);
    }

    /// Completes the oldest work request with `status`, flushes all others and enters the error state: SQE for services
    /// that have it, otherwise ERR (IBTA 9.9.2.2).
    pub(super) fn fail_oldest(&mut self, ctx: &mut Ctx<'_>, status: WcStatus, vendor_err: u8) {
        debug_assert!(!self.requester.queue.is_empty(), "something was outstanding, or nothing could fail");
        let wqe = self.requester.queue.at(self.requester.queue.tail());
        //= IBTA 10.10: oldest-request-carries-the-cause
        ctx.counters.req_cqe_error += 1;
        self.push_send_completion(ctx, &wqe.wr, status, vendor_err, 0);
        self.requester.queue.retire();
        match self.qp_type {
            //= IBTA 9.9.2.2: requester-error-stops-uc-and-ud
            QpType::Uc | QpType::Ud | QpType::Gsi | QpType::RawPacket => self.enter_send_queue_error(),
            //= IBTA 9.9.2.2: requester-error-ends-rc
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.enter_error(ctx),
        }
    }

    pub(super) fn push_send_completion(
        &self,
        ctx: &mut Ctx<'_>,
        wr: &QueuedWr,
        status: WcStatus,
        vendor_err: u8,
        byte_len: u32,
    ) {
        let opcode = match wr.opcode {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate => WcOpcode::Send,
            WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::Write,
            WrOpcode::Read => WcOpcode::Read,
            WrOpcode::CompareSwap => WcOpcode::CompareSwap,
            WrOpcode::FetchAdd => WcOpcode::FetchAdd,
            WrOpcode::LocalInvalidate => WcOpcode::LocalInvalidate,
            WrOpcode::BindWindow => WcOpcode::BindWindow,
            WrOpcode::Flush => WcOpcode::Flush,
            WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
            WrOpcode::FastRegister => WcOpcode::FastRegister,
        };
        let byte_len = if wr.opcode.is_atomic() && status == WcStatus::Success { 8 } else { byte_len };
        let wc = Wc { wr_id: wr.wr_id, status, opcode, vendor_err, qpn: self.qpn, byte_len, ..Wc::default() };
        ctx.out.completions.push((self.send_cq, wc));
    }

    /// Raises SQ_DRAINED once in SQD, when no started work request is left.
    pub(super) fn report_drained(&mut self, ctx: &mut Ctx<'_>) {
        let r = &self.requester;
        let waits = matches!(r.sending, Sending::RnrWait(_)) && PlantedBug::DrainedWhileItWaits.is();
        let busy = !r.queue.is_empty() && r.queue.at(r.queue.tail()).started && !waits;
        //= IBTA 10.3.1.5: sqd-tells-when-it-is-drained
        if self.state() == QpState::Sqd && !busy && self.take_drain_request() {
            let r = &self.requester;
            invariant!(
                r.queue.is_empty() || r.una == r.sent_end,
                "drained with {} to {} outstanding",
                r.una,
                r.sent_end
            );
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::SqDrained));
        }
    }
}

/// True unless the packet has an AETH that is no ACK.
fn positive(packet: &Packet) -> bool {
    packet.aeth().is_none_or(|aeth| matches!(Syndrome::from(aeth.syndrome), Syndrome::Ack { .. }))
}

fn before(a: Psn, b: Psn) -> bool {
    if PlantedBug::PsnCompareWithoutWrap.is() { a.value() < b.value() } else { a.is_before(b) }
}

impl Requester {
    pub(super) fn retire_oldest(&mut self) {
        let position = self.queue.tail();
        let wqe = self.queue.at(position);
        if wqe.wr.opcode.takes_resource() && position != self.next {
            self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
        }
        let messages = u32::from(!wqe.wr.opcode.is_local());
        self.queue.retire();
        self.messages_done = self.messages_done.wrapping_add(messages) & 0xff_ffff;
        // The response arrived before the retransmission, which is not needed any more.
        if self.next == position {
            self.next = self.queue.tail();
            self.next_packet = 0;
        }
    }
}
