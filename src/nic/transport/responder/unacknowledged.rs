//! What the responders of UC, datagrams and raw packets have in common, and raw packets (`IBV_QPT_RAW_PACKET`).
//!
//! A received packet that cannot be accepted is dropped and counted, and the peer is not notified.
//!
//! A raw packet is a whole frame that begins with its Ethernet header and has no FCS. Contents are neither changed nor
//! checked. Flows ([`roxie_base::flow`]) define which frames the NIC steers to the QP. A frame longer than its receive
//! is dropped and counted, and the receive stays posted, as for datagrams.

use super::{Check, Responder};
use crate::transport::message::Message;
use crate::transport::scatter::{FramePayload, ListError};
use crate::transport::{Ctx, QpContext, Verdict};
use crate::verbs::{AsyncEvent, EventKind, Wc, WcOpcode, WcStatus};

impl Responder {
    /// Handles a frame of `length` bytes, steered to this QP. `frame` is its index in the receive burst.
    pub(crate) fn on_frame(
        &mut self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        length: usize,
        frame: u16,
    ) -> Verdict {
        if !self.receive_for_one(ctx) {
            return Verdict::NoReceive;
        }
        let payload = u16::try_from(length).map(|length| FramePayload { frame, offset: 0, length });
        let scattered = payload.map_or(Err(ListError::TooShort), |all| self.receiving.scatter(ctx, 0, all));
        if let Err(error) = scattered {
            return self.not_received(qp, ctx, error);
        }
        ctx.counters.rdma_recvs += 1;
        ctx.counters.rcvd_bytes += length as u64;
        let (opcode, byte_len) = (WcOpcode::Recv, length as u32);
        self.receiving.finish(ctx, Wc { opcode, qpn: qp.qpn, byte_len, ..Wc::default() });
        Verdict::Executed
    }

    /// Takes a receive for a single-packet message: the receive kept from an oversized message, or a new one. Returns
    /// false and counts a drop if there is none.
    pub(super) fn receive_for_one(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let is_held = self.receiving.keep_or_take(ctx.receives);
        if !is_held {
            //= IBTA 9.8.3: ud-without-a-receive-is-lost
            //= IBTA 9.8.4: raw-without-a-receive-is-lost
            ctx.counters.out_of_buffer += 1;
            ctx.counters.rx_dropped_unacknowledged += 1;
        }
        is_held
    }

    /// Handles a message that does not fit its receive. A message that is too long is dropped, and the receive stays
    /// posted. Memory that is not writable is the application's error, and fails the receive.
    #[cold]
    pub(super) fn not_received(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, error: ListError) -> Verdict {
        match error {
            ListError::TooShort => {
                //= IBTA 9.9.3: ud-receive-holds-the-datagram, datagram-of-a-stranger-ends-nothing
                ctx.counters.resp_local_length_error += 1;
                ctx.counters.rx_dropped_unacknowledged += 1;
                Verdict::Unsuitable(Check::ReceiveLength)
            }
            ListError::Protection => self.fail_receive(qp, ctx, WcStatus::LocProt),
        }
    }

    /// Fails the current receive, because its memory is not writable. The connection ends.
    pub(super) fn fail_receive(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, status: WcStatus) -> Verdict {
        self.receiving.fail(qp, ctx, status);
        //= IBTA 9.9.3: receive-memory-is-writable
        ctx.out.events.push(AsyncEvent::Qp(qp.index, EventKind::QpFatal));
        Verdict::ReceiveFailed(status)
    }

    /// Fails the receive of the frame that was handled last, because its memory is missing. `wr_id`: from its
    /// completion, if it had one.
    pub(crate) fn frame_failed(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, wr_id: Option<u64>) -> Verdict {
        if let Some(wr_id) = wr_id {
            self.receiving.take_back(wr_id);
        }
        self.fail_receive(qp, ctx, WcStatus::LocProt)
    }

    /// Drops the message. Its remaining packets find no message in progress, and are dropped as well.
    pub(super) fn drop_message(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) -> Verdict {
        self.receiving.set(Message::None);
        ctx.counters.rx_dropped_unacknowledged += 1;
        verdict
    }
}
