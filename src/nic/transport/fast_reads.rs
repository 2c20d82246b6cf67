//! Fast path for RC READ responses. As in `fast_path`, a result of `None` means: take the slow path (`reply_packets`,
//! `completer`). Nothing has changed in this case.

use super::replies::Reply;
use super::reply_packets::NO_CREDITS;
use super::rules::{read_response_opcode, response_fits};
use super::{Ctx, KeyUser, MemoryTable, PlantedBug, Qp, Span, scatter};
use crate::verbs::{Access, QpState, QpType, WrOpcode};
use roxie_wire::{Aeth, Bth, FastPacket, Opcode, Operation, Position, Psn, Syndrome};

/// A planned READ response packet, a first transmission.
pub(crate) struct ReadResponse {
    pub(crate) bth: Bth,
    /// AETH of the first, last or only packet.
    pub(crate) aeth: Option<Aeth>,
    /// Payload length in bytes; not 0.
    pub(crate) length: u16,
    pub(crate) from: Span,
}

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
        matches!(self.responder.replies.front(), Some(Reply::Read(_)))
    }

    /// Plans the next packet if it suits the fast path. The state is advanced by [`Qp::read_response_left`].
    pub(crate) fn next_read_response(&self, memory: &MemoryTable) -> Option<ReadResponse> {
        let Some(Reply::Read(slot)) = self.responder.replies.front() else { return None };
        let resource = self.responder.resources.get(usize::from(slot))?.as_ref()?;
        let reply = self.responder.replies.front();
        let has_request = self.may_send_requests() || self.requester.question().is_some();
        let request_goes_first = self.turns.request_precedes(reply, false) && has_request;
        let is_eligible = self.state() == QpState::Rts
            && self.qp_type == QpType::Rc
            && !self.pacing.is_on()
            && !self.attributes().end_to_end_credits
            && resource.operation == Operation::ReadRequest
            && !resource.again;
        if !is_eligible || request_goes_first || PlantedBug::is_any() {
            return None;
        }
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let (k, reth) = (resource.next, &resource.reth);
        let offset = u64::from(k) * mtu;
        let length = u64::from(reth.dma_len).checked_sub(offset).filter(|left| *left > 0)?.min(mtu);
        let user = KeyUser { pd: resource.pd, qp: self.index };
        let va = reth.va.wrapping_add(offset);
        //= IBTA 9.7.4.1.5: key-is-checked-with-each-packet
        let from = memory.check_remote(user, reth.rkey, va, length, Access::REMOTE_READ).ok()?;
        let opcode = read_response_opcode(k, resource.packets);
        let has_aeth = opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
        let syndrome = Syndrome::Ack { credits: NO_CREDITS };
        let aeth = has_aeth.then_some(Aeth { syndrome: syndrome.into(), msn: resource.msn });
        //= IBTA 9.2: pad-makes-whole-words
        let pad = (length as u8).wrapping_neg() & 3;
        //= IBTA 9.7.5.1: response-has-the-requests-psn
        let bth = Bth { opcode, pad, psn: resource.first_psn + k, ..self.bth() };
        Some(ReadResponse { bth, aeth, length: length as u16, from })
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
