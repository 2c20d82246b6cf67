//! Memory faults: pages that turn out to be missing during a copy.
//!
//! The memory table checks keys, bounds and rights. Whether pages exist is known only at the copy. Memory of the NIC
//! itself always has pages. Application memory may have none: on-demand memory at any time, other memory if the
//! application has unmapped it. A flush for persistence may fail to write pages back.
//!
//! The NIC executes such copies at once, before it handles the next packet. On a fault, the effects of the packet are
//! reverted before its completions are published and its acknowledgement is sent.
//!
//! ```text
//! what failed                        reported to
//! bytes of a SEND                    our receive: LOC_PROT; the peer: remote operational error
//! a WRITE, ATOMIC WRITE, FLUSH       the peer: remote access error
//! bytes of a READ/atomic response    our work request: LOC_PROT
//! payload of a request of ours       our work request: LOC_PROT, once all before it are complete
//! payload of a READ response         the peer: remote access error
//! ```

use super::context::Received;
use super::requester::{Requester, Sending};
use super::send_queue::QueuedWr;
use super::{Ctx, Qp, Verdict};
use crate::verbs::{QpState, SendFlags, WcStatus};
use roxie_wire::{Packet, Psn};

/// State of the oldest work request before the current response completed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResultPoint {
    /// Position in the send queue.
    position: u32,
    wr: QueuedWr,
    /// Number of completions before its own.
    completions: usize,
}

impl Qp {
    /// Reverts the packet that was handled last, because its memory operation has failed. `completions` is the number
    /// of pending completions before the packet.
    pub(crate) fn memory_fault(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, completions: usize) -> Verdict {
        match ctx.out.result.take() {
            Some(point) => self.result_lost(ctx, &point),
            None => self.request_failed(ctx, packet, completions),
        }
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

    /// Fails the receive of the raw packet that was handled last, because its memory is missing. `completions` is the number
    /// of pending completions before the frame.
    pub(crate) fn frame_fault(&mut self, ctx: &mut Ctx<'_>, completions: usize) -> Verdict {
        let completed = ctx.out.completions.drain(completions..).next().map(|(_, wc)| wc.wr_id);
        let verdict = self.responder.frame_failed(&self.context, ctx, completed);
        self.after_request(ctx, verdict)
    }

    /// Fails a work request, because its response arrived but could not be stored.
    fn result_lost(&mut self, ctx: &mut Ctx<'_>, point: &ResultPoint) -> Verdict {
        let status = WcStatus::LocProt;
        let queue = &self.requester.queue;
        if point.position == queue.tail() && !queue.is_empty() {
            self.fail_oldest(ctx, status, 0);
            return Verdict::Failed(status);
        }
        // The work request has completed, but its completion and the later ones are not published yet.
        let later = ctx.out.completions.split_off(point.completions);
        self.push_send_completion(ctx, &point.wr, status, 0, 0);
        let signaled = self.sig_all || point.wr.flags.contains(SendFlags::SIGNALED);
        for (cq, mut wc) in later.into_iter().skip(usize::from(signaled)) {
            if !wc.opcode.is_receive() {
                wc.status = WcStatus::WrFlush;
            }
            ctx.out.completions.push((cq, wc));
        }
        ctx.counters.req_cqe_error += 1;
        if self.state() != QpState::Err {
            self.enter_error(ctx);
        }
        Verdict::Failed(status)
    }

    /// Handles a planned packet that was not sent, because its payload could not be gathered.
    pub(crate) fn payload_missing(&mut self, ctx: &mut Ctx<'_>, psn: Psn, is_reply: bool) {
        if self.state() == QpState::Err {
            return;
        }
        if is_reply {
            if self.responder.reply_missing(&self.context, ctx, psn) {
                self.enter_error(ctx);
            }
            return;
        }
        let r = &mut self.requester;
        if !psn.is_before(r.una) && psn.is_before(r.sent_end) {
            r.rewind_to(psn);
            r.sending = Sending::Failed(WcStatus::LocProt);
            self.fail_if_oldest(ctx);
        }
    }
}

impl Requester {
    /// Records the oldest work request, in case the response's bytes cannot be stored.
    pub(super) fn note_result(&self, ctx: &mut Ctx<'_>) {
        if ctx.out.may_fault {
            let queue = &self.queue;
            let (position, completions) = (queue.tail(), ctx.out.completions.len());
            ctx.out.result = Some(ResultPoint { position, wr: queue.at(position).wr, completions });
        }
    }
}
