//! Fast path for RC SENDs and WRITEs that are in order, without immediate, invalidation or special conditions, and for
//! READ responses. Most traffic consists of such packets.
//!
//! A result of `None` means: take the slow path. Nothing has changed in this case.

use super::Qp;
use crate::transport::requester::fast_path::{Awaited, PlannedSend};
use crate::transport::responder::fast_path::{Destination, Due, ReadResponse};
use crate::transport::{Ctx, MemoryTable, Reply};
use crate::verbs::{CqIndex, QpState, QpType, RecvWr, Sge, Wc};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, FastPacket};

/// Received requests.
impl Qp {
    /// Returns the request if `packet` is the next in order and suits the fast path.
    #[inline(always)]
    pub(crate) fn due(&self, packet: &FastPacket<'_>) -> Option<Due> {
        let due = Due::of(packet)?;
        let suits = !packet.is_ce() && self.takes_request(packet, due.bth());
        (suits && self.responder.expects(&self.context, &due)).then_some(due)
    }

    /// Returns the buffer for the scatter list of the next receive.
    #[inline(always)]
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

/// Requests that are sent.
impl Qp {
    /// Plans the next packet if it suits the fast path. The state is advanced by [`Qp::sent_fast`].
    #[inline(always)]
    pub(crate) fn leaving(
        &self,
        limits: &Limits,
        memory: &MemoryTable,
        acknowledges_first: bool,
    ) -> Option<PlannedSend> {
        let may_send = self.requester.may_send_new() && self.sends_request_first(acknowledges_first);
        if !may_send {
            return None;
        }
        self.requester.leaving(&self.context, limits, memory)
    }

    /// True if the QP is an unpaced RC QP in RTS, and a request takes precedence over its pending replies.
    #[inline(always)]
    fn sends_request_first(&self, acknowledges_first: bool) -> bool {
        let first = self.turns.request_precedes(self.responder.front(), acknowledges_first);
        first && self.state() == QpState::Rts && self.qp_type == QpType::Rc && !self.pacing().is_on()
    }

    /// Advances the state past the planned packet with this BTH, which got a slot in the port and is sent.
    #[inline(always)]
    pub(crate) fn sent_fast(&mut self, now: Nanos, bth: &Bth) {
        self.turns.request_sent(self.responder.has_replies());
        self.requester.packet_sent(&self.context, now, bth);
    }

    /// Returns `length` bytes of the inline data of a work request.
    #[inline(always)]
    pub(crate) fn inline_bytes(&self, position: u32, offset: u32, length: u16) -> &[u8] {
        self.requester.window().queue().inline(position, offset, length)
    }
}

/// READ responses.
impl Qp {
    /// True if the oldest pending reply is a READ response.
    #[inline(always)]
    pub(crate) fn answers_a_read(&self) -> bool {
        matches!(self.responder.front(), Some(Reply::Read(_)))
    }

    /// Plans the next packet if it suits the fast path. The state is advanced by [`Qp::read_response_sent`].
    pub(crate) fn next_read_response(&self, memory: &MemoryTable) -> Option<ReadResponse> {
        let has_request = self.requester.may_send_requests(&self.context) || self.requester.peer_probe_due();
        let request_precedes = self.turns.request_precedes(self.responder.front(), false) && has_request;
        let is_eligible = self.state() == QpState::Rts
            && self.qp_type == QpType::Rc
            && !self.pacing().is_on()
            && !self.has_credits();
        if !is_eligible || request_precedes {
            return None;
        }
        self.responder.next_read_response(&self.context, memory)
    }

    /// Advances the state past the planned packet, which got a slot in the port and is sent.
    pub(crate) fn read_response_sent(&mut self) {
        self.turns.reply_sent(true);
        self.responder.reply_sent();
    }

    /// Returns the response if `packet` is the next one of the oldest request, which is a READ.
    pub(crate) fn awaited(&self, memory: &MemoryTable, packet: &FastPacket<'_>) -> Option<Awaited> {
        let is_eligible = self.state() == QpState::Rts
            && !self.pacing().is_on()
            && self.fits_fast_path(packet, &packet.bth())
            && !packet.is_ce();
        if !is_eligible {
            return None;
        }
        self.requester.awaited(&self.context, memory, packet)
    }

    /// Advances the state past a response, after its payload was stored.
    pub(crate) fn answered(&mut self, ctx: &mut Ctx<'_>, response: &Awaited) {
        self.requester.answered(&self.context, ctx, response);
        self.settle(ctx);
    }
}
