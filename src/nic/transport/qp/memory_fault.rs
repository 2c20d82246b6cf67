//! Memory faults: pages that turn out to be missing during a copy.
//!
//! The memory table checks keys, bounds and rights. Whether pages exist is known only at the copy. Memory of the NIC
//! itself always has pages. Application memory may have none: on-demand memory at any time, other memory if the
//! application has unmapped it. A flush for persistence may fail to write pages back.
//!
//! The NIC executes such copies immediately, before it handles the next packet. On a fault, the effects of the packet
//! are reverted before its completions are published and its acknowledgement is sent.
//!
//! ```text
//! what failed                        reported to
//! bytes of a SEND                    our receive: LOC_PROT; the peer: remote operational error
//! a WRITE, ATOMIC WRITE, FLUSH       the peer: remote access error
//! bytes of a READ/atomic response    our work request: LOC_PROT
//! payload of a request of ours       our work request: LOC_PROT, once all before it are complete
//! payload of a READ response         the peer: remote access error
//! ```

use super::Qp;
use crate::transport::context::Received;
use crate::transport::{Ctx, Verdict};
use crate::verbs::QpState;
use roxie_wire::{Packet, Psn};

impl Qp {
    /// Reverts the packet that was handled last, because its memory operation has failed. `completions` is the number
    /// of pending completions before the packet.
    pub(crate) fn memory_fault(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, completions: usize) -> Verdict {
        let Some(point) = ctx.out.result.take() else {
            return self.request_failed(ctx, packet, completions);
        };
        let verdict = self.requester.result_lost(&self.context, ctx, &point);
        self.settle(ctx);
        verdict
    }

    /// Refuses a request after it was executed.
    fn request_failed(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, completions: usize) -> Verdict {
        let early = self.requester.take_back_response(packet);
        if let Some(verdict) = early.or_else(|| self.responder.early_failed(packet.bth.psn)) {
            self.note_fast_path();
            return verdict;
        }
        let completed = ctx.out.completions.drain(completions..).next().map(|(_, wc)| wc.wr_id);
        let request = Received { qp: &self.context, packet, frame: 0 };
        let verdict = self.responder.request_failed(ctx, request, completed);
        self.after_request(ctx, verdict)
    }

    /// Fails the receive of the raw packet that was handled last, because its memory is missing. `completions` is the
    /// number of pending completions before the frame.
    pub(crate) fn frame_fault(&mut self, ctx: &mut Ctx<'_>, completions: usize) -> Verdict {
        let completed = ctx.out.completions.drain(completions..).next().map(|(_, wc)| wc.wr_id);
        let verdict = self.responder.frame_failed(&self.context, ctx, completed);
        self.after_request(ctx, verdict)
    }

    /// Handles a planned packet that was not sent, because its payload could not be gathered.
    pub(crate) fn payload_missing(&mut self, ctx: &mut Ctx<'_>, psn: Psn, is_reply: bool) {
        if self.state() == QpState::Err {
            return;
        }
        if !is_reply {
            self.requester.payload_missing(&self.context, ctx, psn);
            self.settle(ctx);
        } else if self.responder.reply_missing(&self.context, ctx, psn) {
            self.enter_error(ctx);
        }
    }
}
