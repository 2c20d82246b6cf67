//! Fast path for RC READ responses. As in `fast_path`, a result of `None` means: take the slow path (`reply_packets`,
//! `completer`). Nothing has changed in this case.

use super::responder::fast_path::ReadResponse;
use super::rules::response_fits;
use super::{Ctx, MemoryTable, PlantedBug, Qp, Reply, Span, scatter};
use crate::verbs::{Access, QpState, QpType, WrOpcode};
use roxie_wire::{FastPacket, Opcode, Position, Psn, Syndrome};

/// A received READ response packet, in order.
pub(crate) struct Awaited {
    psn: Psn,
    is_last: bool,
    /// Destination of the payload.
    pub(crate) to: Span,
}

impl Qp {
    /// True if the oldest pending reply is a READ response.
    #[inline(always)]
    pub(crate) fn answers_a_read(&self) -> bool {
        matches!(self.responder.front(), Some(Reply::Read(_)))
    }

    /// Plans the next packet if it suits the fast path. The state is advanced by [`Qp::read_response_left`].
    pub(crate) fn next_read_response(&self, memory: &MemoryTable) -> Option<ReadResponse> {
        let has_request = self.may_send_requests() || self.requester.question().is_some();
        let request_goes_first = self.turns.request_precedes(self.responder.front(), false) && has_request;
        let is_eligible = self.state() == QpState::Rts
            && self.qp_type == QpType::Rc
            && !self.pacing.is_on()
            && !self.attributes().end_to_end_credits;
        if !is_eligible || request_goes_first || PlantedBug::is_any() {
            return None;
        }
        self.responder.next_read_response(&self.context, memory)
    }

    /// Advances the state past the planned packet, which got a slot in the port and is sent.
    pub(crate) fn read_response_left(&mut self) {
        self.turns.reply_left(true);
        self.responder.reply_sent();
    }

    /// Returns the response if `packet` is the next one of the oldest request, which is a READ.
    pub(crate) fn awaited(&self, memory: &MemoryTable, packet: &FastPacket<'_>) -> Option<Awaited> {
        let (r, bth, length) = (&self.requester, packet.bth(), packet.payload().len() as u64);
        let psn = bth.psn;
        let is_eligible = self.state() == QpState::Rts
            && !self.pacing.is_on()
            && psn == r.una
            && self.fits_fast_path(packet, &bth)
            && !packet.is_ce();
        if !is_eligible || r.queue.is_empty() || PlantedBug::is_any() {
            return None;
        }
        let oldest = r.queue.tail();
        let wqe = r.queue.at(oldest);
        let k = u32::try_from(psn.distance_from(wqe.first_psn)).ok()?;
        if !wqe.started || wqe.wr.opcode != WrOpcode::Read {
            return None;
        }
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let offset = u64::from(k) * mtu;
        let left = wqe.length().checked_sub(offset)?;
        let position = match bth.opcode {
            Opcode::RC_READ_RESPONSE_FIRST => Position::First,
            Opcode::RC_READ_RESPONSE_MIDDLE => Position::Middle,
            Opcode::RC_READ_RESPONSE_LAST => Position::Last,
            Opcode::RC_READ_RESPONSE_ONLY => Position::Only,
            _ => return None,
        };
        let is_last = k + 1 == wqe.packets;
        let fits = response_fits(position, k, wqe.asked_from, is_last);
        let is_positive = packet.aeth().is_none_or(|aeth| matches!(aeth.kind(), Syndrome::Ack { .. }));
        if !fits || !is_positive || length == 0 || length != left.min(mtu) {
            return None;
        }
        //= IBTA 10.6.3.1: local-writing-needs-a-right
        let to = scatter::one(memory, self.pd, r.queue.sges(oldest), offset, length, Access::LOCAL_WRITE)?;
        Some(Awaited { psn, is_last, to })
    }

    /// Advances the state past a response, after its payload was stored.
    pub(crate) fn answered(&mut self, ctx: &mut Ctx<'_>, Awaited { psn, is_last, .. }: &Awaited) {
        self.advance(ctx, *psn + 1);
        if *is_last {
            self.complete_oldest(ctx);
        }
    }
}
