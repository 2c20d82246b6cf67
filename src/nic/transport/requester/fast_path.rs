//! Fast path of the requester: SENDs and WRITEs that are sent for the first time, without immediate, invalidation or
//! special conditions, their acknowledgements, and READ responses that are in order.
//!
//! The fast path decides nothing that the slow path does not decide in the same way. A result of `None` means: take the
//! slow path. Nothing has changed in this case.

use super::Requester;
use super::Sending;
use crate::transport::rules::{Segment, response_fits};
use crate::transport::{Ctx, MemoryTable, QpContext, Span, scatter};
use crate::verbs::{Access, SendFlags, WrOpcode};
use roxie_base::limits::Limits;
use roxie_wire::{Bth, FastPacket, Opcode, Position, Psn, Reth, Syndrome};

/// A planned request, a first transmission.
pub(crate) struct PlannedSend {
    pub(crate) bth: Bth,
    /// RETH of the first packet of a WRITE.
    pub(crate) reth: Option<Reth>,
    /// Payload length in bytes.
    pub(crate) length: u16,
    pub(crate) payload: Payload,
}

/// Source of a request's payload.
#[derive(Clone, Copy)]
pub(crate) enum Payload {
    /// Registered memory.
    Memory(Span),
    /// Inline data: (send queue position, offset). Also stands for an empty payload.
    Inline(u32, u32),
}

/// A received READ response packet, in order.
pub(crate) struct Awaited {
    psn: Psn,
    is_last: bool,
    /// Destination of the payload.
    pub(crate) to: Span,
}

impl Requester {
    /// Plans the next packet if it suits the fast path. The state is advanced by `packet_sent`.
    //= IBTA 9.5: requests-leave-in-order
    #[inline(always)]
    pub(crate) fn leaving(
        &self,
        qp: &QpContext,
        limits: &Limits,
        memory: &MemoryTable,
    ) -> Option<PlannedSend> {
        let wqe = self.window.next_wqe();
        let (psn, in_flight) = if wqe.started {
            let psn = wqe.first_psn + self.window.next_packet();
            (psn, (psn - self.window.una().value()).value())
        } else {
            (self.window.psn(), (self.window.psn() - self.window.una().value()).value())
        };
        if !wqe.plain || psn != self.window.sent_end() || in_flight >= limits.window {
            return None;
        }
        let mtu = qp.mtu() as u64;
        let segment = Segment::of(wqe.length(), self.window.next_packet(), mtu);
        let Segment { offset, length, first, last } = segment;
        let is_write = wqe.wr.opcode == WrOpcode::Write;
        let payload = if wqe.wr.flags.contains(SendFlags::INLINE) || length == 0 {
            Payload::Inline(self.window.next(), offset as u32)
        } else {
            //= IBTA 10.6.3.1: local-reading-needs-no-right
            let list = self.window.queue().sges(self.window.next());
            Payload::Memory(scatter::one(memory, qp.pd, list, offset, length.into(), Access::empty())?)
        };
        let wants = self.ack_requests.at_end_of(qp.sig_all, wqe.wr.flags);
        let ack_req = self.ack_requests.in_packet(psn, last, wants, in_flight, limits);
        //= IBTA 9.2: solicited-is-in-the-last-packet
        let solicited = last && wqe.wr.flags.contains(SendFlags::SOLICITED);
        //= IBTA 9.4.3: write-names-its-whole-length-first
        let reth = (is_write && first).then_some(Reth {
            va: wqe.wr.remote_addr,
            rkey: wqe.wr.rkey.0,
            dma_len: wqe.length() as u32,
        });
        //= IBTA 9.2: pad-makes-whole-words
        let pad = (length as u8).wrapping_neg() & 3;
        let bth = Bth { opcode: segment.opcode(is_write), solicited, pad, ack_req, psn, ..qp.bth() };
        Some(PlannedSend { bth, reth, length, payload })
    }

    /// True if there is a work request to send, and no RNR wait, failure or credit limit to consider.
    #[inline(always)]
    pub(crate) fn may_send_new(&self) -> bool {
        self.window.has_next() && self.sending == Sending::Open && !self.credits.are_in_use()
    }

    /// Returns the response if `packet` is the next one of the oldest request, which is a READ.
    #[inline(always)]
    pub(crate) fn awaited(
        &self,
        qp: &QpContext,
        memory: &MemoryTable,
        packet: &FastPacket<'_>,
    ) -> Option<Awaited> {
        let (bth, length) = (packet.bth(), packet.payload().len() as u64);
        let psn = bth.psn;
        if psn != self.window.una() || self.window.queue().is_empty() {
            return None;
        }
        let oldest = self.window.queue().tail();
        let wqe = self.window.queue().at(oldest);
        let k = u32::try_from(psn.distance_from(wqe.first_psn)).ok()?;
        if !wqe.started || wqe.wr.opcode != WrOpcode::Read {
            return None;
        }
        let mtu = qp.mtu() as u64;
        let offset = u64::from(k) * mtu;
        let remaining = wqe.length().checked_sub(offset)?;
        let position = match bth.opcode {
            Opcode::RC_READ_RESPONSE_FIRST => Position::First,
            Opcode::RC_READ_RESPONSE_MIDDLE => Position::Middle,
            Opcode::RC_READ_RESPONSE_LAST => Position::Last,
            Opcode::RC_READ_RESPONSE_ONLY => Position::Only,
            _ => return None,
        };
        let is_last = k + 1 == wqe.packets;
        let fits = response_fits(position, k, wqe.requested_from, is_last);
        let is_positive = packet.aeth().is_none_or(|aeth| matches!(aeth.kind(), Syndrome::Ack { .. }));
        if !fits || !is_positive || length == 0 || length != remaining.min(mtu) {
            return None;
        }
        //= IBTA 10.6.3.1: local-writing-needs-a-right
        let to = scatter::one(
            memory,
            qp.pd,
            self.window.queue().sges(oldest),
            offset,
            length,
            Access::LOCAL_WRITE,
        )?;
        Some(Awaited { psn, is_last, to })
    }

    /// Advances the state past a response, after its payload was stored.
    pub(crate) fn answered(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, response: &Awaited) {
        self.advance(qp, ctx, response.psn + 1);
        if response.is_last {
            self.complete_oldest(qp, ctx);
        }
    }
}
