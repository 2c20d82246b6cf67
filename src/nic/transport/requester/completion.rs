//! Completion of work requests: the oldest completes or fails, or all are flushed (IBTA 9.9.2.2, 10.8.3).

use super::{Requester, Sending};
use crate::transport::memory::Refusal;
use crate::transport::send_queue::{QueuedWr, ResultPoint};
use crate::transport::{Ctx, QpContext, Verdict, scatter};
use crate::verbs::{Access, QpState, SendFlags, Wc, WcOpcode, WcStatus, WrOpcode};
use roxie_wire::Psn;

impl Requester {
    /// Completes the oldest work request successfully.
    pub(super) fn complete_oldest(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        let wqe = self.window.oldest();
        //= IBTA 10.8: unsignaled-success-does-not-complete
        if qp.sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
            self.push_send_completion(qp, ctx, &wqe.wr, WcStatus::Success, 0, wqe.length() as u32);
        } else {
            self.ack_requests.note_unsignaled();
        }
        ctx.counters.rdma_sends +=
            u64::from(matches!(wqe.wr.opcode, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate));
        //= IBTA 10.8.3: sends-complete-in-order
        self.window.retire_oldest();
        self.complete_local_work(qp, ctx);
        self.fail_if_oldest(qp, ctx);
    }

    /// Fails the work request that could not be sent, if it is the oldest.
    pub(super) fn fail_if_oldest(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        if let Some(status) = self.sending.failure().filter(|_| self.window.is_next_oldest()) {
            self.fail_oldest(qp, ctx, status, 0);
        }
    }

    /// Marks the work request at the position as one that cannot be sent. It fails once it is the oldest.
    #[cold]
    pub(super) fn cannot_send(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, status: WcStatus) {
        self.sending = Sending::Failed(status);
        self.fail_if_oldest(qp, ctx);
        self.request_ack(ctx.limits);
    }

    /// Completes the oldest work request with `status`, and gives up sending.
    #[cold]
    pub(super) fn fail_oldest(
        &mut self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        status: WcStatus,
        vendor_err: u8,
    ) {
        debug_assert!(!self.window.queue().is_empty(), "something was outstanding, or nothing could fail");
        let wqe = self.window.oldest();
        //= IBTA 10.10: oldest-request-carries-the-cause
        ctx.counters.req_cqe_error += 1;
        self.failed_at.get_or_insert(self.window.una());
        let vendor_err = self.adapters_error(qp, ctx, status).unwrap_or(vendor_err);
        self.push_send_completion(qp, ctx, &wqe.wr, status, vendor_err, 0);
        self.window.drop_oldest();
        self.end(qp);
    }

    /// Returns the vendor error that an adapter gives with this status of the oldest work request. `None`: Roxie's own.
    #[cold]
    fn adapters_error(&self, qp: &QpContext, ctx: &Ctx<'_>, status: WcStatus) -> Option<u8> {
        let errors = &qp.profile?.vendor_err;
        match status {
            WcStatus::LocProt => {
                let stores = self.window.oldest().wr.opcode.returns_data();
                let access = if stores { Access::LOCAL_WRITE } else { Access::empty() };
                let sges = self.window.queue().sges(self.window.queue().tail());
                match scatter::refusal(ctx.memory, qp.pd, sges, access)? {
                    Refusal::OutOfBounds => errors.local_length,
                    Refusal::AccessDenied => errors.local_access,
                    _ => errors.local_key,
                }
            }
            WcStatus::RemInvReq => errors.remote_invalid,
            WcStatus::RemAccess => errors.remote_access,
            WcStatus::RetryExc => errors.retries,
            WcStatus::RnrRetryExc => errors.rnr_retries,
            _ => None,
        }
    }

    /// Gives up sending after a failure. The QP is to enter the error state, or SQE if its service has that.
    fn end(&mut self, qp: &QpContext) {
        self.abandon();
        if !qp.qp_type.is_reliable_requester() {
            // If a message was cut off, its unsent packets return their PSNs.
            self.window.return_psns();
        }
        self.sending = Sending::Ended;
    }

    pub(super) fn push_send_completion(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        wr: &QueuedWr,
        status: WcStatus,
        vendor_err: u8,
        byte_len: u32,
    ) {
        let opcode = match wr.opcode {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate => WcOpcode::Send,
            WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::Write,
            WrOpcode::Read => WcOpcode::Read,
            WrOpcode::CompareSwap => WcOpcode::CompareSwap,
            WrOpcode::FetchAdd => WcOpcode::FetchAdd,
            WrOpcode::LocalInvalidate => WcOpcode::LocalInvalidate,
            WrOpcode::BindWindow => WcOpcode::BindWindow,
            WrOpcode::Flush => WcOpcode::Flush,
            WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
            WrOpcode::FastRegister => WcOpcode::FastRegister,
        };
        let byte_len = if wr.opcode.is_atomic() && status == WcStatus::Success { 8 } else { byte_len };
        let wc = Wc { wr_id: wr.wr_id, status, opcode, vendor_err, qpn: qp.qpn, byte_len, ..Wc::default() };
        ctx.out.completions.push((qp.send_cq, wc));
    }

    /// True if no work request is left that was sent, and is not complete.
    pub(crate) fn is_drained(&self) -> bool {
        let is_drained = !self.window.has_begun_oldest();
        let (una, end) = (self.window.una(), self.window.sent_end());
        invariant!(
            !is_drained || self.window.queue().is_empty() || una == end,
            "drained with {una} to {end} outstanding"
        );
        is_drained
    }

    /// Records the oldest work request, in case the response's bytes cannot be stored.
    pub(super) fn note_result(&self, ctx: &mut Ctx<'_>) {
        if ctx.out.may_fault {
            let (position, completions) = (self.window.queue().tail(), ctx.out.completions.len());
            ctx.out.result =
                Some(ResultPoint { position, wr: self.window.queue().at(position).wr, completions });
        }
    }

    /// Fails a work request, because its response arrived but could not be stored.
    pub(crate) fn result_lost(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, point: &ResultPoint) -> Verdict {
        let status = WcStatus::LocProt;
        if point.position == self.window.queue().tail() && !self.window.queue().is_empty() {
            self.fail_oldest(qp, ctx, status, 0);
            return Verdict::Failed(status);
        }
        // The work request has completed, but its completion and the later ones are not published yet.
        let later = ctx.out.completions.split_off(point.completions);
        self.push_send_completion(qp, ctx, &point.wr, status, 0, 0);
        let signaled = qp.sig_all || point.wr.flags.contains(SendFlags::SIGNALED);
        for (cq, mut wc) in later.into_iter().skip(usize::from(signaled)) {
            if !wc.opcode.is_receive() {
                wc.status = WcStatus::WrFlush;
            }
            ctx.out.completions.push((cq, wc));
        }
        ctx.counters.req_cqe_error += 1;
        if qp.state() != QpState::Err {
            self.end(qp);
        }
        Verdict::Failed(status)
    }

    /// Handles a planned packet that was not sent, because its payload could not be gathered.
    pub(crate) fn payload_missing(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, psn: Psn) {
        if !psn.is_before(self.window.una()) && psn.is_before(self.window.sent_end()) {
            self.rewind_to(psn);
            self.sending = Sending::Failed(WcStatus::LocProt);
            self.fail_if_oldest(qp, ctx);
        }
    }

    /// Completes local work requests that have taken effect and are the oldest.
    #[inline]
    pub(super) fn complete_local_work(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        if self.oldest_is_done_local_work() {
            self.complete_done_local_work(qp, ctx);
        }
    }

    fn complete_done_local_work(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        while self.oldest_is_done_local_work() {
            let wr = self.window.oldest().wr;
            if qp.sig_all || wr.flags.contains(SendFlags::SIGNALED) {
                self.push_send_completion(qp, ctx, &wr, WcStatus::Success, 0, 0);
            }
            self.window.retire_oldest();
            self.fail_if_oldest(qp, ctx);
            if self.has_sends_to_flush(qp) {
                return;
            }
        }
    }

    #[inline]
    fn oldest_is_done_local_work(&self) -> bool {
        self.window.has_begun_oldest() && self.window.oldest().wr.opcode.is_local()
    }

    /// True if work requests are left that [`flush`](Self::flush) is to complete.
    #[inline]
    pub(crate) fn has_sends_to_flush(&self, qp: &QpContext) -> bool {
        self.flush_end(qp) != self.window.queue().tail()
    }

    /// The send queue position before which all work requests are to be flushed.
    fn flush_end(&self, qp: &QpContext) -> u32 {
        match (qp.state(), self.sending) {
            (QpState::Err | QpState::Sqe, _) | (_, Sending::Ended) => self.window.queue().head(),
            (_, Sending::Flushing(end)) => end,
            _ => self.window.queue().tail(),
        }
    }

    /// Completes up to `most` work requests of a QP in an error state with `WrFlush`. Returns how many.
    pub(crate) fn flush(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        let count = self.flush_end(qp).wrapping_sub(self.window.queue().tail()).min(most);
        for _ in 0..count {
            let wr = self.window.oldest().wr;
            let vendor_err = self.note_flush(qp, ctx);
            self.push_send_completion(qp, ctx, &wr, WcStatus::WrFlush, vendor_err, 0);
            self.window.drop_oldest();
        }
        if matches!(qp.state(), QpState::Err | QpState::Sqe) {
            self.abandon();
        } else if self.sending == Sending::Flushing(self.window.queue().tail()) {
            self.sending = Sending::Open;
        }
        count
    }

    /// Counts a flush. Returns its vendor error.
    #[cold]
    fn note_flush(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> u8 {
        let is_head = self.failed_at.is_none();
        self.failed_at.get_or_insert(self.window.una());
        let Some(profile) = qp.profile else {
            ctx.counters.req_cqe_flush_error += 1;
            return 0;
        };
        if profile.counts_root_alone {
            ctx.counters.req_cqe_error += u64::from(is_head);
        } else {
            ctx.counters.req_cqe_flush_error += 1;
        }
        let errors = &profile.vendor_err;
        if is_head { errors.flush_head } else { errors.flush_rest }.unwrap_or(0)
    }

    /// Has the work requests that are queued flushed before another is sent: the QP leaves an error state.
    pub(crate) fn flush_queued(&mut self) {
        if !self.window.queue().is_empty() {
            self.sending = Sending::Flushing(self.window.queue().head());
        }
    }
}
