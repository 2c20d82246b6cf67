//! Fast path for RC SENDs and WRITEs that are in order, without immediate, invalidation or special conditions. Most
//! traffic consists of such packets.
//!
//! The fast path decides nothing that `requester`, `responder` and `check` do not decide in the same way. A result of
//! `None` means: take the slow path. Nothing has changed in this case.

use super::requester::{Requester, Sending};
use super::responder::fast_path::{Destination, Due};
use super::rules::Segment;
use super::{Ctx, MemoryTable, PlantedBug, Qp, Span, scatter};
use crate::verbs::{Access, CqIndex, QpState, RecvWr, SendFlags, Sge, Wc, WcOpcode, WrOpcode};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, FastPacket, Psn, Reth};

impl Qp {
    /// Returns the request if `packet` is the next in order and suits the fast path.
    #[inline(always)]
    pub(crate) fn due(&self, packet: &FastPacket<'_>) -> Option<Due> {
        let due = Due::of(packet)?;
        let suits = !PlantedBug::is_any() && !packet.is_ce() && self.takes_request(packet, due.bth());
        (suits && self.responder.expects(&self.context, &due)).then_some(due)
    }

    /// Returns the buffer for the scatter list of the next receive.
    pub(crate) fn receive_list(&mut self) -> &mut [Sge] {
        self.responder.receive_list()
    }

    /// Returns the destination of the payload, or `None` for the slow path. `receive` is the receive that the request
    /// takes, with its scatter list in `receive_list`.
    #[inline(always)]
    pub(crate) fn place_of(
        &self,
        memory: &MemoryTable,
        due: &Due,
        packet: &FastPacket<'_>,
        receive: Option<RecvWr>,
    ) -> Option<Destination> {
        self.responder.place_of(&self.context, memory, due, packet, receive)
    }

    /// Advances the state past a request, after its payload was stored. `receive` is the receive that it took. Returns
    /// its completion, if any.
    #[inline(always)]
    pub(crate) fn executed(
        &mut self,
        limits: &Limits,
        due: &Due,
        placed: Destination,
        receive: Option<RecvWr>,
    ) -> Option<(CqIndex, Wc)> {
        self.responder.executed(&self.context, limits, due, placed, receive)
    }
}

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

impl Qp {
    /// Plans the next packet if it suits the fast path. The state is advanced by [`Qp::left`].
    #[inline(always)]
    pub(crate) fn leaving(
        &self,
        limits: &Limits,
        memory: &MemoryTable,
        acknowledges_first: bool,
    ) -> Option<PlannedSend> {
        let r = &self.requester;
        //= IBTA 9.5: requests-leave-in-order
        if !r.may_send_new() || !self.request_goes_first(acknowledges_first) || PlantedBug::is_any() {
            return None;
        }
        let wqe = r.queue.at(r.next);
        let (psn, in_flight) = if wqe.started {
            let psn = wqe.first_psn + r.next_packet;
            (psn, (psn - r.una.value()).value())
        } else {
            (r.psn, (r.psn - r.una.value()).value())
        };
        if !wqe.plain || psn != r.sent_end || in_flight >= limits.window {
            return None;
        }
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let segment = Segment::of(wqe.length(), r.next_packet, mtu);
        let Segment { offset, length, first, last } = segment;
        let is_write = wqe.wr.opcode == WrOpcode::Write;
        let payload = if wqe.wr.flags.contains(SendFlags::INLINE) || length == 0 {
            Payload::Inline(r.next, offset as u32)
        } else {
            //= IBTA 10.6.3.1: local-reading-needs-no-right
            let list = r.queue.sges(r.next);
            Payload::Memory(scatter::one(memory, self.pd, list, offset, length.into(), Access::empty())?)
        };
        let wants = r.asks_at_its_end(self.sig_all, wqe.wr.flags);
        let ack_req = r.asks(psn, last, wants, in_flight, limits);
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
        let bth = Bth { opcode: segment.opcode(is_write), solicited, pad, ack_req, psn, ..self.bth() };
        Some(PlannedSend { bth, reth, length, payload })
    }

    /// Advances the state past the planned packet with this BTH, which got a slot in the port and is sent.
    #[inline(always)]
    pub(crate) fn left(&mut self, now: Nanos, bth: &Bth) {
        self.turns.request_left(self.responder.has_replies());
        self.packet_left(now, bth);
    }

    /// True if work requests have addresses: UD's and XRC's.
    #[inline(always)]
    pub(crate) fn has_addresses(&self) -> bool {
        self.requester.queue.has_addresses()
    }

    /// Returns `length` bytes of the inline data of a work request.
    #[inline(always)]
    pub(crate) fn inline_bytes(&self, position: u32, offset: u32, length: u16) -> &[u8] {
        self.requester.queue.inline(position, offset, length)
    }
}

impl Qp {
    /// Completes all plain SENDs and WRITEs that end at or before `end`, and advances the state once for all of them.
    /// Does nothing outside of the common case: a failed work request, a position behind `end`, pacing, or a state
    /// other than RTS. `acknowledge_before` handles the rest.
    pub(super) fn complete_plain(&mut self, ctx: &mut Ctx<'_>, end: Psn) {
        let r = &self.requester;
        let nothing_else =
            !matches!(r.sending, Sending::Failed(_)) && !r.position().is_before(end) && !self.pacing.is_on();
        if !nothing_else || self.state() != QpState::Rts || PlantedBug::is_any() {
            return;
        }
        let mut una = None;
        while !self.requester.queue.is_empty() {
            let wqe = self.requester.queue.at(self.requester.queue.tail());
            if !wqe.plain || !wqe.started || end.is_before(wqe.end_psn()) {
                break;
            }
            una = Some(wqe.end_psn());
            let (opcode, is_send) = match wqe.wr.opcode {
                WrOpcode::Write => (WcOpcode::Write, false),
                _ => (WcOpcode::Send, true),
            };
            //= IBTA 10.8: unsignaled-success-does-not-complete
            if self.sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
                let (wr_id, byte_len) = (wqe.wr.wr_id, wqe.length() as u32);
                let wc = Wc { wr_id, opcode, qpn: self.qpn, byte_len, ..Wc::default() };
                ctx.out.completions.push((self.send_cq, wc));
            }
            ctx.counters.rdma_sends += u64::from(is_send);
            //= IBTA 10.8.3: sends-complete-in-order
            self.requester.retire_plain();
        }
        if let Some(una) = una {
            self.advance(ctx, una);
            self.complete_local_work(ctx);
        }
    }
}

impl Requester {
    /// Retires the oldest work request after a full acknowledgement.
    fn retire_plain(&mut self) {
        self.queue.retire();
        self.messages_done = (self.messages_done + 1) & 0xff_ffff;
    }

    /// True if there is a work request to send, and no RNR wait, failure or credit limit to consider.
    #[inline(always)]
    fn may_send_new(&self) -> bool {
        self.next != self.queue.head() && self.sending == Sending::Open && self.credit_limit.is_none()
    }
}
