//! Common part of the services without acknowledgements and retransmission: UC, datagrams and raw packets.
//!
//! A request is complete once its last packet is sent. A send error stops the send queue only (SQE); receives continue.
//! A received packet that cannot be accepted is dropped and counted, and the peer is not notified.
//!
//! [`super::uc`], [`super::ud`] and [`super::raw`] implement what differs: the packets of a request, and the effect of
//! a received packet.

use super::check::Check;
use super::planted::PlantedBug;
use super::responder::Responder;
use super::rules::packets_for;
use super::scatter::{self, ListError};
use super::send_queue::Wqe;
use super::{Ctx, Qp, TxPlan, Verdict};
use crate::verbs::{AsyncEvent, EventKind, QpState, QpType, RecvWr, SendFlags, Wc, WcOpcode, WcStatus};
use roxie_wire::{Packet, Qpn};

/// The requester.
impl Qp {
    /// Plans the next request packet. A request that cannot be sent fails at once and moves the QP to SQE.
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
        //= IBTA 9.4: operation-is-of-the-service
        //= IBTA 9.8.2: uc-has-no-reads
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

    /// Appends a packet's payload to the gather list. For inline data, returns (send queue position, offset) instead.
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

    /// Advances the state past a planned packet, which got a slot in the port. The last packet of a message completes
    /// the work request. The completion is published after the payload was copied.
    pub(super) fn unacknowledged_sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        let mtu = self.attributes().path_mtu.bytes();
        let (datagram, connected) = (self.qp_type.is_datagram(), self.qp_type.is_connected());
        let r = &mut self.requester;
        let psn = r.psn;
        let wqe = r.queue.at_mut(r.next);
        if !wqe.started {
            wqe.started = true;
            //= IBTA 9.7.3: psn-counts-packets
            wqe.first_psn = psn;
            wqe.packets = if connected { packets_for(wqe.length(), mtu) } else { 1 };
            r.psn = wqe.end_psn();
        }
        if datagram && plan.bth.dest_qp == Qpn::MULTICAST {
            self.group_source = plan.ah.and_then(|way| ctx.handles.find(way)).map(|handle| handle.sgid);
        }
        let r = &mut self.requester;
        r.next_packet += 1;
        r.sent_end = plan.bth.psn + 1;
        r.una = r.sent_end;
        //= IBTA 9.8.2: uc-is-done-when-it-has-left
        if r.next_packet == r.queue.at(r.next).packets {
            r.next = r.next.wrapping_add(1);
            r.next_packet = 0;
            self.complete_oldest(ctx);
        }
    }

    /// Stops the send queue, which is flushed and accepts no work until `modify_qp` leads out of SQE. Receives continue (IBTA
    /// 10.3.1.6).
    pub(super) fn enter_send_queue_error(&mut self) {
        //= IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
        self.set_send_queue_error();
        let r = &mut self.requester;
        r.abandon();
        // If a message was cut off, its unsent packets return their PSNs.
        r.psn = r.sent_end;
    }
}

/// The responder.
impl Qp {
    /// Handles a received packet of an unreliable service.
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
            // A send queue error does not affect receives.
            QpState::Rts | QpState::Sqd | QpState::Sqe => self.handle_uc_request(ctx, packet, frame),
        }
    }

    /// Handles a message that does not fit its receive. A message that is too long is dropped, and the receive stays
    /// posted. Memory that is not writable is the application's error, and fails the receive.
    #[cold]
    pub(super) fn not_received(&mut self, ctx: &mut Ctx<'_>, error: ListError) -> Verdict {
        match error {
            ListError::TooShort if PlantedBug::LongDatagramEnds.is() => {
                self.fail_receive(ctx, WcStatus::LocLen)
            }
            ListError::TooShort => {
                //= IBTA 9.9.3: ud-receive-holds-the-datagram, datagram-of-a-stranger-ends-nothing
                ctx.counters.resp_local_length_error += 1;
                ctx.counters.rx_dropped_unacknowledged += 1;
                Verdict::Unsuitable(Check::ReceiveLength)
            }
            ListError::Protection => self.fail_receive(ctx, WcStatus::LocProt),
        }
    }

    /// Fails the current receive, because its memory is not writable, and moves the QP to the error state.
    pub(super) fn fail_receive(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) -> Verdict {
        if let Some(receive) = self.responder.receive.take() {
            ctx.counters.resp_cqe_error += 1;
            let wc =
                Wc { wr_id: receive.wr_id, status, opcode: WcOpcode::Recv, qpn: self.qpn, ..Wc::default() };
            ctx.out.completions.push((self.recv_cq, wc));
        }
        ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::QpFatal));
        //= IBTA 9.9.3: receive-memory-is-writable
        self.enter_error(ctx);
        Verdict::ReceiveFailed(status)
    }
}

impl Responder {
    /// Returns a receive for a single-packet message: the receive kept from an oversized message, or a new one. Returns
    /// `None` and counts a drop if there is none.
    pub(super) fn receive_for_one(&mut self, ctx: &mut Ctx<'_>) -> Option<RecvWr> {
        if self.receive.is_none() {
            self.receive = ctx.receives.take(&mut self.sges);
        }
        if self.receive.is_none() {
            //= IBTA 9.8.3: ud-without-a-receive-is-lost
            //= IBTA 9.8.4: raw-without-a-receive-is-lost
            ctx.counters.out_of_buffer += 1;
            ctx.counters.rx_dropped_unacknowledged += 1;
        }
        self.receive
    }
}
