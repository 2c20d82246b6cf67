//! Fast path for RC SENDs and WRITEs that are in order, without immediate, invalidation or special conditions. Most
//! traffic consists of such packets.
//!
//! The fast path decides nothing that `requester`, `responder` and `check` do not decide in the same way. A result of
//! `None` means: take the slow path. Nothing has changed in this case.

use super::message::Message;
use super::requester::{Requester, Sending};
use super::responder::Responder;
use super::rules::{Segment, length_fits, write_fits};
use super::{Ctx, MemoryTable, PlantedBug, Qp, Span, scatter};
use crate::verbs::{Access, CqIndex, QpState, RecvWr, SendFlags, Sge, Wc, WcFlags, WcOpcode, WrOpcode};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, FastPacket, Opcode, Operation, Psn, Reth};

/// A received request, in order.
pub(crate) struct Due {
    bth: Bth,
    /// Payload length in bytes; not 0.
    length: u64,
    begins: bool,
    ends: bool,
    is_write: bool,
}

/// Destination of a request's payload.
pub(crate) struct Destination {
    pub(crate) to: Span,
    /// State of the message after this packet.
    message: Message,
}

impl Due {
    /// True for the last packet of a message.
    #[inline(always)]
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// True for a packet of a WRITE.
    #[inline(always)]
    pub(crate) fn is_write(&self) -> bool {
        self.is_write
    }

    /// True if the request takes a new receive.
    #[inline(always)]
    pub(crate) fn takes_receive(&self) -> bool {
        !self.is_write && self.begins
    }
}

impl Qp {
    /// Returns the request if `packet` is the next in order and suits the fast path.
    //= IBTA 9.5: requests-are-executed-in-psn-order
    #[inline(always)]
    pub(crate) fn due(&self, packet: &FastPacket<'_>) -> Option<Due> {
        let (bth, length) = (packet.bth(), packet.payload().len());
        let (is_write, begins, ends) = match bth.opcode {
            Opcode::RC_SEND_ONLY => (false, true, true),
            Opcode::RC_SEND_FIRST => (false, true, false),
            Opcode::RC_SEND_MIDDLE => (false, false, false),
            Opcode::RC_SEND_LAST => (false, false, true),
            Opcode::RC_WRITE_ONLY => (true, true, true),
            Opcode::RC_WRITE_FIRST => (true, true, false),
            Opcode::RC_WRITE_MIDDLE => (true, false, false),
            Opcode::RC_WRITE_LAST => (true, false, true),
            _ => return None,
        };
        if PlantedBug::is_any() || length == 0 || packet.is_ce() || !self.is_due(packet, &bth) {
            return None;
        }
        let operation = if is_write { Operation::Write } else { Operation::Send };
        let fits = self.responder.message.admits(operation, begins)
            && length_fits(length, self.attributes().path_mtu.bytes(), ends);
        fits.then_some(Due { bth, length: length as u64, begins, ends, is_write })
    }

    /// Returns the buffer for the scatter list of the next receive.
    pub(crate) fn receive_list(&mut self) -> &mut [Sge] {
        &mut self.responder.sges
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
        if due.is_write {
            self.place_of_write(memory, due, packet)
        } else {
            self.responder.place_of_send(memory, due, receive)
        }
    }

    #[inline(always)]
    fn place_of_write(
        &self,
        memory: &MemoryTable,
        due: &Due,
        packet: &FastPacket<'_>,
    ) -> Option<Destination> {
        let (reth, received) = match self.responder.message {
            Message::Write { reth, received } => (reth, received),
            _ => (packet.reth()?, 0),
        };
        let total = u64::from(reth.dma_len);
        let after = received + due.length;
        if !write_fits(after, total, due.ends) || self.check_allowed(Access::REMOTE_WRITE, &reth).is_err() {
            return None;
        }
        //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole, key-is-checked-with-each-packet
        let checked = if due.begins { total } else { due.length };
        let va = reth.va.wrapping_add(received);
        let to = memory.check_remote(self.user(), reth.rkey, va, checked, Access::REMOTE_WRITE).ok()?;
        Some(Destination { to, message: Message::Write { reth, received: after } })
    }

    /// Advances the state past a request, after its payload was stored. `receive` is the receive that it took. Returns
    /// its completion, if any.
    #[inline(always)]
    pub(crate) fn executed(
        &mut self,
        limits: &Limits,
        due: &Due,
        Destination { message, .. }: Destination,
        receive: Option<RecvWr>,
    ) -> Option<(CqIndex, Wc)> {
        let (qpn, cq) = (self.qpn, self.recv_cq);
        let r = &mut self.responder;
        r.receive = receive.or(r.receive);
        let completion = match message {
            _ if !due.ends => None,
            Message::Send { received } => r.receive.take().map(|receive| {
                let mut flags = WcFlags::empty();
                flags.set(WcFlags::SOLICITED, due.bth.solicited);
                let (wr_id, opcode, byte_len) = (receive.wr_id, WcOpcode::Recv, received as u32);
                (cq, Wc { wr_id, opcode, flags, qpn, byte_len, ..Wc::default() })
            }),
            _ => None,
        };
        r.note_executed(limits, due, message);
        completion
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

impl Responder {
    /// Expects the next PSN, and queues an acknowledgement if one is due.
    #[inline(always)]
    fn note_executed(&mut self, limits: &Limits, due: &Due, message: Message) {
        if due.ends {
            self.message_done();
        } else {
            self.message = message;
        }
        self.end_silence();
        self.expect_next(due.bth.ack_req, limits);
    }

    #[inline(always)]
    fn place_of_send(&self, memory: &MemoryTable, due: &Due, receive: Option<RecvWr>) -> Option<Destination> {
        let received = match self.message {
            Message::Send { received } => received,
            _ => 0,
        };
        let list = self.sges.get(..receive.or(self.receive)?.num_sge as usize)?;
        //= IBTA 9.9.3: receive-memory-is-writable
        let to = scatter::one(memory, self.receive_pd, list, received, due.length, Access::LOCAL_WRITE)?;
        Some(Destination { to, message: Message::Send { received: received + due.length } })
    }
}
