//! Requests of the unreliable connection (UC, IBTA 9.8.2).
//!
//! The responder accepts complete messages. A message that lost a packet is dropped silently, and reception resumes at
//! the next FIRST or ONLY. A message longer than its receive is dropped and counted, and the receive stays posted
//! (class D of IBTA 9.9.3; `RESPST_ERR_LENGTH` in `rxe_resp.c` of Linux 6.12).

use super::{Check, Received, Responder};
use crate::transport::message::Message;
use crate::transport::rules::{is_last, write_fits};
use crate::transport::scatter::{FramePayload, ListError};
use crate::transport::{Ctx, DmaIn, Verdict};
use crate::verbs::{Access, WcOpcode, WcStatus};
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::{Operation, Reth};

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

impl Responder {
    /// Handles a request packet. FIRST and ONLY are accepted with any PSN. MIDDLE and LAST must follow their
    /// predecessor (IBTA 9.8.2.2.2).
    pub(crate) fn on_uc_request(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = request;
        let psn = packet.bth.psn;
        let expected = self.expected;
        ctx.counters.out_of_sequence += u64::from(psn != expected);
        //= IBTA 9.8.2.2: uc-resumes-with-a-message
        let starts = packet.info().position.begins();
        if starts {
            //= IBTA 9.8.2.2: uc-message-may-break-off
            // A message in progress has lost its end. The new message reuses its receive.
            self.receiving.set(Message::None);
        } else if self.distance_to(packet) != 0 || self.receiving.check_sequence(packet).is_err() {
            //= IBTA 9.8.2.2: uc-gap-drops-the-message
            return self.drop_message(ctx, Verdict::Incomplete { expected });
        }
        invariant!(starts || psn == expected, "a message goes on with PSN {psn}, {expected} is expected");
        self.expected = psn.next();
        //= IBTA 9.8.2.2: uc-length-is-checked
        if let Err(check) = qp.check_length(packet) {
            ctx.counters.resp_invalid_requests += 1;
            return self.drop_message(ctx, Verdict::Unsuitable(check));
        }
        let executed = match packet.info().operation {
            Operation::Send => self.execute_uc_send(ctx, request),
            _ => self.execute_uc_write(ctx, request),
        };
        match executed {
            Ok(()) => Verdict::Executed,
            //= IBTA 9.8.2: uc-is-never-answered
            Err(UcFailure::Silent(verdict)) => self.drop_message(ctx, verdict),
            Err(UcFailure::Protection) => self.fail_receive(qp, ctx, WcStatus::LocProt),
        }
    }

    fn execute_uc_send(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Result<(), UcFailure> {
        let Received { qp, packet, frame } = request;
        let received = match self.receiving.message() {
            Message::Send { received } => received,
            _ => {
                self.receive_at_hand(ctx)?;
                0
            }
        };
        let payload = FramePayload::of(packet, frame);
        self.receiving.scatter(ctx, received, payload).map_err(|error| match error {
            ListError::Protection => UcFailure::Protection,
            ListError::TooShort => {
                ctx.counters.resp_local_length_error += 1;
                //= IBTA 9.9.3: uc-receive-holds-the-message
                unsuitable(Check::ReceiveLength)
            }
        })?;
        if self.receiving.part_of_send(qp, ctx, packet, received, payload.length) {
            self.receiving.set(Message::None);
        }
        Ok(())
    }

    fn execute_uc_write(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Result<(), UcFailure> {
        let Received { qp, packet, frame } = request;
        let (reth, received) = match (self.receiving.message(), packet.reth()) {
            (Message::Write { reth, received }, _) => (reth, received),
            (_, Some(reth)) => (reth, 0),
            (_, None) => return Err(unsuitable(Check::Opcode)),
        };
        let payload = FramePayload::of(packet, frame);
        let (after, total) = (received + u64::from(payload.length), u64::from(reth.dma_len));
        //= IBTA 9.8.2.2: uc-length-is-checked
        let fits = write_fits(after, total, is_last(packet));
        if !fits || reth.dma_len > MAX_MESSAGE {
            ctx.counters.resp_invalid_requests += 1;
            return Err(unsuitable(if fits { Check::TooLong } else { Check::MessageLength }));
        }
        // Check the whole range at the start, and each packet: the region may be deregistered meanwhile. The key of an
        // empty WRITE is not checked (IBTA 9.7.4.1.5).
        let allowed = qp.attributes().access.contains(Access::REMOTE_WRITE);
        //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole
        let begins = received == 0 && total > 0;
        let check = |reth: &Reth| self.check_key(qp, ctx, reth, Access::REMOTE_WRITE);
        let whole = if begins { check(&reth).map(drop) } else { Ok(()) };
        let (va, dma_len) = (reth.va.wrapping_add(received), payload.length.into());
        let to = match (allowed, payload.length) {
            //= IBTA 9.8.2.2: uc-key-is-checked
            (false, _) => Err(Check::NotEnabled),
            (true, 0) => Ok(None),
            (true, _) => whole.and_then(|()| check(&Reth { va, dma_len, ..reth }).map(Some)),
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
            ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
            ctx.counters.rcvd_bytes += u64::from(length);
        }
        self.receiving.set(Message::Write { reth, received: after });
        if is_last(packet) {
            ctx.counters.rx_write_requests += 1;
            if with_imm {
                self.receiving.complete(qp, ctx, packet, WcOpcode::RecvWriteImm, total);
            }
            self.receiving.set(Message::None);
        }
        Ok(())
    }

    /// Ensures a receive: the one kept from a dropped message, or a new one.
    fn receive_at_hand(&mut self, ctx: &mut Ctx<'_>) -> Result<(), UcFailure> {
        if self.receiving.keep_or_take(ctx.receives) {
            return Ok(());
        }
        ctx.counters.out_of_buffer += 1;
        //= IBTA 9.8.2.2: uc-without-a-receive-is-lost
        Err(UcFailure::Silent(Verdict::NoReceive))
    }
}
