//! The unreliable connection (IBTA 9.8.2), and what it has in common with datagrams as a requester.
//!
//! Nothing is acknowledged and nothing comes again. A request is done when its last packet has left; the responder takes
//! whole messages and drops, without a word, those that lost a packet. The message after a gap begins with a FIRST or
//! ONLY, which is where it resumes. A message longer than the receive that it took is dropped and counted as well, and the receive
//! serves the next one (class D of IBTA 9.9.3; `RESPST_ERR_LENGTH` in `rxe_resp.c` of Linux 6.12).

use super::check::Check;
use super::planted::PlantedBug;
use super::requester::{packets_for, segment};
use super::responder::{Message, is_last, payload_of};
use super::scatter::{self, FramePayload, ListError};
use super::send_queue::Wqe;
use super::{Ctx, DmaIn, Origin, Qp, TxPlan, TxReason, Verdict};
use crate::limits::MAX_MESSAGE;
use crate::verbs::{Access, AsyncEvent, EventKind, QpState, QpType, SendFlags, Wc, WcOpcode, WcStatus};
use crate::wire::{Bth, Opcode, Operation, Packet, Position, Qpn};

/// Bits that tell an opcode of UC from the same of RC.
const UC: u8 = 0x20;

/// Why a request packet has no effect.
enum UcFailure {
    /// The message is dropped, and the peer not told.
    Silent(Verdict),
    /// The receive that it was for must not be written to: it fails, and the QP with it.
    Protection,
}

fn unsuitable(check: Check) -> UcFailure {
    UcFailure::Silent(Verdict::Unsuitable(check))
}

/// The requester.
impl Qp {
    /// A request that could leave now. One that cannot be sent fails here, and the send queue with it.
    pub(super) fn next_unacknowledged(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if !self.may_send_requests() {
            return None;
        }
        let next = self.requester.next;
        let local = self.qp_type == QpType::Uc && self.requester.queue.at(next).wr.opcode.is_local();
        if local && !self.pass_local_work(ctx) {
            return None;
        }
        let position = self.requester.next;
        let wqe = *self.requester.queue.at(position);
        let plan = if !wqe.valid || !self.qp_type.serves(wqe.wr.opcode) {
            Err(WcStatus::LocQpOp)
        } else if self.qp_type.is_datagram() {
            self.plan_datagram(ctx, position, &wqe)
        } else if self.qp_type == QpType::RawPacket {
            self.plan_raw(ctx, position, &wqe)
        } else {
            self.plan_uc_request(ctx, position, &wqe)
        };
        match plan {
            Ok(plan) => Some(plan),
            Err(status) => {
                self.fail_oldest(ctx, status, 0);
                None
            }
        }
    }

    fn plan_uc_request(&self, ctx: &mut Ctx<'_>, position: u32, wqe: &Wqe) -> Result<TxPlan, WcStatus> {
        if wqe.length > u64::from(MAX_MESSAGE) {
            return Err(WcStatus::LocLen);
        }
        let r = &self.requester;
        let k = if wqe.started { r.next_packet } else { 0 };
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let offset = u64::from(k) * mtu;
        let payload_len = (wqe.length - offset).min(mtu) as u16;
        let last = offset + u64::from(payload_len) == wqe.length;
        let (opcode, ext) = segment(wqe, k == 0, last);
        let inline = self.gather_payload(ctx, position, wqe, offset, payload_len)?;
        let bth = Bth {
            opcode: Opcode(opcode.0 | UC),
            solicited: last && wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: r.position(),
            ..self.bth()
        };
        Ok(TxPlan {
            bth,
            ext,
            payload_len,
            inline,
            way: None,
            reason: TxReason::New,
            origin: Origin::Unacknowledged,
        })
    }

    /// Lists the payload of a packet for the dma stage, or says where it stands inline.
    pub(super) fn gather_payload(
        &self,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
        offset: u64,
        length: u16,
    ) -> Result<Option<(u32, u32)>, WcStatus> {
        ctx.out.gather.clear();
        if wqe.wr.flags.contains(SendFlags::INLINE) {
            return Ok(Some((position, offset as u32)));
        }
        if length > 0 {
            let sges = self.requester.queue.sges(position);
            scatter::gather(ctx.memory, self.pd, sges, offset, length, &mut ctx.out.gather)
                .map_err(|_| WcStatus::LocProt)?;
        }
        Ok(None)
    }

    /// The planned packet has its slot: with the last of a message the work request is done. Its completion is
    /// published after the payload was copied.
    pub(super) fn unacknowledged_sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        let mtu = self.attributes().path_mtu.bytes();
        let (datagram, connected) = (self.qp_type.is_datagram(), self.qp_type.is_connected());
        let r = &mut self.requester;
        let psn = r.psn;
        let wqe = r.queue.at_mut(r.next);
        if !wqe.started {
            wqe.started = true;
            wqe.first_psn = psn;
            wqe.packets = if connected { packets_for(wqe.length, mtu) } else { 1 };
            r.psn = wqe.end_psn();
        }
        if datagram && plan.bth.dest_qp == Qpn::MULTICAST {
            self.group_source = plan.way.and_then(|way| ctx.handles.find(way)).map(|handle| handle.sgid);
        }
        let r = &mut self.requester;
        r.next_packet += 1;
        r.sent_end = plan.bth.psn + 1;
        r.una = r.sent_end;
        if r.next_packet == r.queue.at(r.next).packets {
            r.next = r.next.wrapping_add(1);
            r.next_packet = 0;
            self.complete_oldest(ctx);
        }
    }

    /// The send queue is flushed and takes nothing until `modify_qp` says so; receives live on (IBTA 10.3.1.6).
    pub(super) fn enter_send_queue_error(&mut self, ctx: &mut Ctx<'_>) {
        self.set_send_queue_error();
        self.flush_sends(ctx);
        let r = &mut self.requester;
        // A message that broke off in the middle gives the numbers of its unsent packets back.
        r.psn = r.sent_end;
        r.failed = None;
    }
}

/// The responder.
impl Qp {
    /// A packet arrived for a QP that acknowledges nothing.
    pub(super) fn handle_unacknowledged(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
    ) -> Verdict {
        match self.state() {
            QpState::Reset | QpState::Init | QpState::Err => {
                ctx.counters.rx_wrong_state += 1;
                Verdict::WrongState(self.state())
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe if self.qp_type.is_datagram() => {
                self.handle_datagram(ctx, packet, frame)
            }
            QpState::Rtr => {
                self.note_established(ctx);
                self.handle_uc_request(ctx, packet, frame)
            }
            // An error of the send queue is none of the receives'.
            QpState::Rts | QpState::Sqd | QpState::Sqe => self.handle_uc_request(ctx, packet, frame),
        }
    }

    /// IBTA 9.8.2.2.2: what begins a message is taken whatever its PSN; what goes on must follow its predecessor.
    fn handle_uc_request(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let psn = packet.bth.psn;
        let r = &mut self.responder;
        let expected = r.expected;
        ctx.counters.out_of_sequence += u64::from(psn != expected);
        let starts = matches!(packet.info().position, Position::First | Position::Only);
        if starts {
            // One that was under way has lost its end. The receive that it took serves this one.
            r.message = Message::None;
        } else if (psn != expected && !PlantedBug::UcIgnoresGaps.is()) || self.check_sequence(packet).is_err()
        {
            return self.drop_message(ctx, Verdict::Incomplete { expected });
        }
        self.responder.expected = psn.next();
        if let Err(check) = self.check_length(packet) {
            ctx.counters.resp_invalid_requests += 1;
            return self.drop_message(ctx, Verdict::Unsuitable(check));
        }
        let executed = match packet.info().operation {
            Operation::Send => self.execute_uc_send(ctx, packet, frame),
            _ => self.execute_uc_write(ctx, packet, frame),
        };
        match executed {
            Ok(()) => Verdict::Executed,
            Err(UcFailure::Silent(verdict)) => self.drop_message(ctx, verdict),
            Err(UcFailure::Protection) => self.fail_receive(ctx, WcStatus::LocProt),
        }
    }

    /// The rest of the message finds none under way, and goes the same way.
    fn drop_message(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) -> Verdict {
        self.responder.message = Message::None;
        ctx.counters.rx_dropped_unacknowledged += 1;
        verdict
    }

    /// The receive of a message that broke off, or a new one.
    fn receive_at_hand(&mut self, ctx: &mut Ctx<'_>) -> Result<(), UcFailure> {
        let r = &mut self.responder;
        if r.receive.is_none() {
            r.receive = ctx.receives.take(&mut r.sges);
        }
        if r.receive.is_none() {
            ctx.counters.out_of_buffer += 1;
            return Err(UcFailure::Silent(Verdict::NoReceive));
        }
        Ok(())
    }

    fn execute_uc_send(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Result<(), UcFailure> {
        let received = match self.responder.message {
            Message::Send { received } => received,
            _ => {
                self.receive_at_hand(ctx)?;
                0
            }
        };
        let payload = payload_of(packet, frame);
        let r = &mut self.responder;
        let sges = &r.sges[..r.receive.map_or(0, |w| w.num_sge as usize)];
        scatter::plan(ctx.memory, r.receive_pd, sges, received, payload, ctx.out).map_err(
            |error| match error {
                ListError::Protection => UcFailure::Protection,
                ListError::TooShort => {
                    ctx.counters.resp_local_length_error += 1;
                    unsuitable(Check::ReceiveLength)
                }
            },
        )?;
        let received = received + u64::from(payload.length);
        ctx.counters.rcvd_bytes += u64::from(payload.length);
        r.message = Message::Send { received };
        if is_last(packet) {
            ctx.counters.rdma_recvs += 1;
            self.complete_receive(ctx, packet, WcOpcode::Recv, received);
            self.responder.message = Message::None;
        }
        Ok(())
    }

    fn execute_uc_write(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Result<(), UcFailure> {
        let (reth, received) = match (self.responder.message, packet.reth()) {
            (Message::Write { reth, received }, _) => (reth, received),
            (_, Some(reth)) => (reth, 0),
            (_, None) => return Err(unsuitable(Check::Opcode)),
        };
        let payload = payload_of(packet, frame);
        let (after, total) = (received + u64::from(payload.length), u64::from(reth.dma_len));
        let fits = if is_last(packet) { after == total } else { after < total };
        if !fits || reth.dma_len > MAX_MESSAGE {
            ctx.counters.resp_invalid_requests += 1;
            return Err(unsuitable(if fits { Check::TooLong } else { Check::MessageLength }));
        }
        // The whole of it when it begins, and each packet: the region may be gone meanwhile. An empty WRITE does not
        // look at the key (IBTA 9.7.4.1.5).
        let allowed = self.attributes().access.contains(Access::REMOTE_WRITE);
        let check = |va, length| self.check_remote(ctx, va, reth.rkey, length, Access::REMOTE_WRITE);
        let begins = received == 0 && total > 0;
        let whole = if begins { check(reth.va, total).map(drop) } else { Ok(()) };
        let piece = || check(reth.va.wrapping_add(received), payload.length.into()).map(Some);
        let to = match (allowed, payload.length) {
            (false, _) => Err(Check::NotEnabled),
            (true, 0) => Ok(None),
            (true, _) => whole.and_then(|()| piece()),
        };
        let to = to.map_err(|check| {
            ctx.counters.resp_remote_access_errors += 1;
            unsuitable(check)
        })?;
        let with_imm = packet.imm().is_some();
        if with_imm {
            self.receive_at_hand(ctx)?;
        }
        if let Some(to) = to {
            let FramePayload { frame, offset, length } = payload;
            ctx.out.dma_in.push(DmaIn::Scatter { frame, offset, length, to });
            ctx.counters.rcvd_bytes += u64::from(length);
        }
        self.responder.message = Message::Write { reth, received: after };
        if is_last(packet) {
            ctx.counters.rx_write_requests += 1;
            if with_imm {
                self.complete_receive(ctx, packet, WcOpcode::RecvWriteImm, total);
            }
            self.responder.message = Message::None;
        }
        Ok(())
    }

    /// The memory of the receive that a message was for is not to be written: it fails, and the QP goes to the error state.
    pub(super) fn fail_receive(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) -> Verdict {
        if let Some(receive) = self.responder.receive.take() {
            ctx.counters.resp_cqe_error += 1;
            let wc =
                Wc { wr_id: receive.wr_id, status, opcode: WcOpcode::Recv, qpn: self.qpn, ..Wc::default() };
            ctx.out.completions.push((self.recv_cq, wc));
        }
        ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::QpFatal));
        self.enter_error(ctx);
        Verdict::ReceiveFailed(status)
    }
}
