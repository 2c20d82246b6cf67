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

use super::check::Check;
use super::replies::Reply;
use super::requester::{Requester, Sending};
use super::responder::{RequestRefused, is_last};
use super::send_queue::QueuedWr;
use super::{Ctx, Qp, Verdict};
use crate::verbs::{QpState, QpType, RecvWr, SendFlags, WcStatus};
use roxie_wire::{Operation, Packet, Psn};

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
        if let Some(verdict) = self.requester.take_back_response(packet).or_else(|| self.early_failed(packet))
        {
            self.note_fast_path();
            return verdict;
        }
        let r = &mut self.responder;
        // Take back the receive that the request completed.
        let completed = ctx.out.completions.drain(completions..).next();
        if let Some((_, wc)) = &completed {
            r.receive = Some(RecvWr { wr_id: wc.wr_id, num_sge: 0 });
        }
        let is_write = packet.info().operation != Operation::Send;
        //= IBTA 9.8.2: uc-is-never-answered
        if self.qp_type == QpType::Uc && is_write && completed.is_none() {
            ctx.counters.resp_remote_access_errors += 1;
            return self.responder.drop_message(ctx, Verdict::Unsuitable(Check::NoPage));
        }
        let resources = &r.resources;
        let psn = packet.bth.psn;
        r.replies.pop_back_if(|reply| match *reply {
            Reply::Ack { psn: acknowledged, .. } => acknowledged == psn,
            Reply::Read(slot) | Reply::Atomic(slot) => {
                resources[usize::from(slot)].as_ref().is_some_and(|resource| resource.first_psn == psn)
            }
            _ => false,
        });
        if is_last(packet) {
            r.msn = r.msn.wrapping_sub(1) & 0xff_ffff;
        }
        let refusal = match packet.info().operation {
            Operation::Send => {
                RequestRefused { check: Check::ReceiveNoPage, receive: Some(WcStatus::LocProt) }
            }
            _ => RequestRefused { check: Check::NoPage, receive: Some(WcStatus::LocAccess) },
        };
        self.refuse(ctx, packet, refusal)
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
            self.reply_missing(ctx, psn);
            return;
        }
        let r = &mut self.requester;
        if !psn.is_before(r.una) && psn.is_before(r.sent_end) {
            r.rewind_to(psn);
            r.sending = Sending::Failed(WcStatus::LocProt);
            self.fail_if_oldest(ctx);
        }
    }

    /// Handles a READ response whose memory is missing.
    fn reply_missing(&mut self, ctx: &mut Ctx<'_>, psn: Psn) {
        let r = &mut self.responder;
        let Some(slot) = r.find_resource(psn, Operation::ReadRequest) else { return };
        r.replies.remove(Reply::Read(slot));
        self.refuse_rest(ctx, slot, psn, Check::NoPage);
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
