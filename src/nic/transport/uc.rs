//! The unreliable connection (UC, IBTA 9.8.2). [`super::unacknowledged`] has what UC shares with datagrams.
//!
//! The responder accepts complete messages. A message that lost a packet is dropped silently, and reception resumes at
//! the next FIRST or ONLY. A message longer than its receive is dropped and counted, and the receive stays posted
//! (class D of IBTA 9.9.3; `RESPST_ERR_LENGTH` in `rxe_resp.c` of Linux 6.12).

use super::check::Check;
use super::message::Message;
use super::planted::PlantedBug;
use super::requester::segment;
use super::responder::{Responder, is_last, payload_of};
use super::rules::{Segment, write_fits};
use super::scatter::{self, FramePayload, ListError};
use super::send_queue::Wqe;
use super::{Ctx, DmaIn, Origin, Qp, TxPlan, TxReason, Verdict};
use crate::verbs::{Access, SendFlags, WcOpcode, WcStatus};
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::{Bth, Opcode, Operation, Packet};

/// Opcode bits that distinguish UC from RC.
const UC: u8 = 0x20;

/// Reason why a request packet is not executed.
enum UcFailure {
    /// The message is dropped silently.
    Silent(Verdict),
    /// The memory of the receive is not writable: the receive fails, and the QP with it.
    Protection,
}

fn unsuitable(check: Check) -> UcFailure {
    UcFailure::Silent(Verdict::Unsuitable(check))
}

/// The requester.
impl Qp {
    pub(super) fn plan_uc_request(
        &self,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        if wqe.length() > u64::from(MAX_MESSAGE) {
            return Err(WcStatus::LocLen);
        }
        let r = &self.requester;
        let k = if wqe.started { r.next_packet } else { 0 };
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let part = Segment::of(wqe.length(), k, mtu);
        let (opcode, ext) = segment(wqe, &part);
        let inline = self.gather_payload(ctx, position, wqe, part.offset, part.length)?;
        let bth = Bth {
            opcode: Opcode(opcode.0 | UC),
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: part.last && wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: r.position(),
            ..self.bth()
        };
        Ok(TxPlan {
            bth,
            ext,
            payload_len: part.length,
            inline,
            ah: None,
            reason: TxReason::New,
            origin: Origin::Unacknowledged,
        })
    }
}

/// The responder.
impl Qp {
    /// Handles a request packet. FIRST and ONLY are accepted with any PSN. MIDDLE and LAST must follow their
    /// predecessor (IBTA 9.8.2.2.2).
    pub(super) fn handle_uc_request(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let psn = packet.bth.psn;
        let r = &mut self.responder;
        let expected = r.expected;
        ctx.counters.out_of_sequence += u64::from(psn != expected);
        //= IBTA 9.8.2.2: uc-resumes-with-a-message
        let starts = packet.info().position.begins();
        if starts {
            //= IBTA 9.8.2.2: uc-message-may-break-off
            // A message in progress has lost its end. The new message reuses its receive.
            r.message = Message::None;
        } else if (psn != expected && !PlantedBug::UcIgnoresGaps.is())
            || self.responder.check_sequence(packet).is_err()
        {
            //= IBTA 9.8.2.2: uc-gap-drops-the-message
            return self.responder.drop_message(ctx, Verdict::Incomplete { expected });
        }
        invariant!(starts || psn == expected, "a message goes on with PSN {psn}, {expected} is expected");
        self.responder.expected = psn.next();
        //= IBTA 9.8.2.2: uc-length-is-checked
        if let Err(check) = self.check_length(packet) {
            ctx.counters.resp_invalid_requests += 1;
            return self.responder.drop_message(ctx, Verdict::Unsuitable(check));
        }
        let executed = match packet.info().operation {
            Operation::Send => self.execute_uc_send(ctx, packet, frame),
            _ => self.execute_uc_write(ctx, packet, frame),
        };
        match executed {
            Ok(()) => Verdict::Executed,
            //= IBTA 9.8.2: uc-is-never-answered
            Err(UcFailure::Silent(verdict)) => self.responder.drop_message(ctx, verdict),
            Err(UcFailure::Protection) => self.fail_receive(ctx, WcStatus::LocProt),
        }
    }

    fn execute_uc_send(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Result<(), UcFailure> {
        let received = match self.responder.message {
            Message::Send { received } => received,
            _ => {
                self.responder.receive_at_hand(ctx)?;
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
                    //= IBTA 9.9.3: uc-receive-holds-the-message
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
        //= IBTA 9.8.2.2: uc-length-is-checked
        let fits = write_fits(after, total, is_last(packet));
        if !fits || reth.dma_len > MAX_MESSAGE {
            ctx.counters.resp_invalid_requests += 1;
            return Err(unsuitable(if fits { Check::TooLong } else { Check::MessageLength }));
        }
        // Check the whole range at the start, and each packet: the region may be deregistered meanwhile. The key of an
        // empty WRITE is not checked (IBTA 9.7.4.1.5).
        let allowed = self.attributes().access.contains(Access::REMOTE_WRITE);
        let check = |va, length| self.check_remote(ctx, va, reth.rkey, length, Access::REMOTE_WRITE);
        //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole
        let begins = received == 0 && total > 0;
        let whole = if begins { check(reth.va, total).map(drop) } else { Ok(()) };
        let piece = || check(reth.va.wrapping_add(received), payload.length.into()).map(Some);
        let to = match (allowed, payload.length) {
            //= IBTA 9.8.2.2: uc-key-is-checked
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
            self.responder.receive_at_hand(ctx)?;
        }
        if let Some(to) = to {
            let FramePayload { frame, offset, length } = payload;
            ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
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
}

impl Responder {
    /// Drops the message. Its remaining packets find no message in progress, and are dropped as well.
    pub(super) fn drop_message(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) -> Verdict {
        self.message = Message::None;
        ctx.counters.rx_dropped_unacknowledged += 1;
        verdict
    }

    /// Ensures a receive: the one kept from a dropped message, or a new one.
    fn receive_at_hand(&mut self, ctx: &mut Ctx<'_>) -> Result<(), UcFailure> {
        if self.receive.is_none() {
            self.receive = ctx.receives.take(&mut self.sges);
        }
        if self.receive.is_none() {
            ctx.counters.out_of_buffer += 1;
            //= IBTA 9.8.2.2: uc-without-a-receive-is-lost
            return Err(UcFailure::Silent(Verdict::NoReceive));
        }
        Ok(())
    }
}
