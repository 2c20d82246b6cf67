//! Execution of the expected request: SEND, WRITE, READ and 64-bit atomics (IBTA 9.4).

use super::{Check, Executed, Received, RequestRefused, Responder};
use crate::transport::message::Message;
use crate::transport::rules::{is_last, packets_for, write_fits};
use crate::transport::scatter::{FramePayload, ListError};
use crate::transport::{AtomicOp, Ctx, DmaIn, QpContext};
use crate::verbs::{Access, WcOpcode, WcStatus};
use roxie_wire::{Operation, Reth};

impl Responder {
    pub(super) fn execute(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
    ) -> Result<Executed, RequestRefused> {
        let Received { packet, .. } = request;
        let (psn, expected) = (packet.bth.psn, self.expected);
        invariant!(psn == expected, "PSN {psn} is executed, {expected} is expected");
        match packet.info().operation {
            Operation::Send => self.execute_send(ctx, request),
            Operation::Write => self.execute_write(ctx, request),
            Operation::ReadRequest => self.execute_read(ctx, request),
            Operation::CompareSwap | Operation::FetchAdd => self.execute_atomic(ctx, request),
            Operation::AtomicWrite => self.execute_atomic_write(ctx, request),
            Operation::Flush => self.execute_flush(ctx, request),
            _ => Err(Check::Opcode.into()),
        }
    }

    fn execute_send(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, frame } = request;
        let received = match self.receiving.message() {
            Message::Send { received } => received,
            //= IBTA 9.4.1: send-takes-one-receive
            _ if !self.receiving.take(ctx.receives) => return Ok(Executed::NotReady),
            _ => 0,
        };
        let payload = FramePayload::of(packet, frame);
        self.receiving.scatter(ctx, received, payload).map_err(|error| match error {
            //= IBTA 9.7.4.1.6: receive-holds-the-message
            ListError::TooShort => {
                RequestRefused { check: Check::ReceiveLength, receive: Some(WcStatus::LocLen) }
            }
            //= IBTA 9.9.3: receive-memory-is-writable
            ListError::Protection => {
                RequestRefused { check: Check::ReceiveProtection, receive: Some(WcStatus::LocProt) }
            }
        })?;
        //= IBTA 9.4.1.1.3: send-with-invalidate-invalidates
        if let Some(key) = packet.ieth() {
            self.invalidate(qp, ctx, key)?;
        }
        if self.receiving.part_of_send(qp, ctx, packet, received, payload.length) {
            self.message_done();
        }
        Ok(Executed::Done)
    }

    fn execute_write(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
    ) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, frame } = request;
        let (reth, received) = match (self.receiving.message(), packet.reth()) {
            (Message::Write { reth, received }, _) => (reth, received),
            (_, Some(reth)) => {
                let profile = qp.responder_profile();
                qp.check_allowed(Access::REMOTE_WRITE, &reth)?;
                ctx.counters.rx_write_requests += u64::from(profile.counts_before_key);
                if !profile.checks_each_packet {
                    self.check_write_key(qp, ctx, &reth)?;
                }
                (reth, 0)
            }
            (_, None) => return Err(Check::Opcode.into()),
        };
        let payload = FramePayload::of(packet, frame);
        let after = received + u64::from(payload.length);
        let total = u64::from(reth.dma_len);
        if !write_fits(after, total, is_last(packet)) {
            return Err(Check::MessageLength.into());
        }
        //= IBTA 9.4.3: write-takes-no-receive
        let with_imm = packet.imm().is_some();
        //= IBTA 9.4.3: write-with-immediate-takes-a-receive
        if with_imm && !self.receiving.take(ctx.receives) {
            return Ok(Executed::NotReady);
        }
        if payload.length > 0 {
            //= IBTA 9.7.4.1.5: key-is-checked-with-each-packet
            // The region may have been deregistered since the first packet.
            let va = reth.va.wrapping_add(received);
            let FramePayload { frame, offset, length } = payload;
            let to = self
                .check_key(qp, ctx, &Reth { va, dma_len: length.into(), ..reth }, Access::REMOTE_WRITE)
                .map_err(|check| RequestRefused { check, receive: Some(WcStatus::LocAccess) })?;
            ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
        }
        ctx.counters.rcvd_bytes += u64::from(payload.length);
        self.receiving.set(Message::Write { reth, received: after });
        if is_last(packet) {
            ctx.counters.rx_write_requests += u64::from(!qp.responder_profile().counts_before_key);
            if with_imm {
                self.receiving.complete(qp, ctx, packet, WcOpcode::RecvWriteImm, total);
            }
            self.message_done();
        }
        Ok(Executed::Done)
    }

    pub(super) fn check_write_start(&self, qp: &QpContext, ctx: &Ctx<'_>, reth: &Reth) -> Result<(), Check> {
        qp.check_allowed(Access::REMOTE_WRITE, reth)?;
        self.check_write_key(qp, ctx, reth)
    }

    fn check_write_key(&self, qp: &QpContext, ctx: &Ctx<'_>, reth: &Reth) -> Result<(), Check> {
        //= IBTA 9.7.4.1.5: empty-access-checks-no-key
        // The key of an empty WRITE is not checked (IBTA 9.7.4.1.5).
        if reth.dma_len > 0 {
            //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole
            self.check_key(qp, ctx, reth, Access::REMOTE_WRITE)?;
        }
        Ok(())
    }

    fn execute_read(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, .. } = request;
        let reth = packet.reth().ok_or(Check::Opcode)?;
        qp.check_allowed(Access::REMOTE_READ, &reth)?;
        if reth.dma_len > 0 {
            self.check_key(qp, ctx, &reth, Access::REMOTE_READ)?;
        }
        let packets = packets_for(reth.dma_len.into(), qp.mtu());
        self.enqueue_resource(Operation::ReadRequest, packet.bth.psn, packets, reth)?;
        ctx.counters.rx_read_requests += 1;
        Ok(Executed::Done)
    }

    fn execute_atomic(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
    ) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, .. } = request;
        let eth = packet.atomic_eth().ok_or(Check::Opcode)?;
        if !qp.attributes().access.contains(Access::REMOTE_ATOMIC) {
            return Err(Check::NotEnabled.into());
        }
        let reth = Reth { va: eth.va, rkey: eth.rkey, dma_len: 8 };
        let at = self.check_aligned(qp, ctx, &reth, Access::REMOTE_ATOMIC)?;
        let is_swap = packet.info().operation == Operation::CompareSwap;
        let operation = if is_swap {
            AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_or_add }
        };
        let kind = Operation::AtomicAcknowledge;
        let resource = self.enqueue_resource(kind, packet.bth.psn, 1, reth)?;
        ctx.out.push_dma(DmaIn::Atomic { qp: qp.index, resource, at, operation });
        ctx.counters.rx_atomic_requests += 1;
        Ok(Executed::Done)
    }
}
