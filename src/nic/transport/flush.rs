//! The end of what a QP in an error state has in its queues: each work request and receive completes with `WrFlush`.
//!
//! The NIC asks for a few at a time, so that a QP with long queues costs no more in a pass than one that sends.

use super::planted::PlantedBug;
use super::requester::Sending;
use super::{Ctx, Qp};
use crate::verbs::{QpState, WcStatus};

impl Qp {
    /// True if the send queue has room for another work request.
    #[inline(always)]
    pub fn has_send_place(&self) -> bool {
        self.requester.queue.has_room()
    }

    /// True if work requests are left that [`flush`](Self::flush) is to complete.
    #[inline]
    pub fn owes_sends(&self) -> bool {
        self.flush_end() != self.requester.queue.tail()
    }

    /// True if [`flush`](Self::flush) completes receives: none of a shared queue, which are other QPs' as well.
    #[inline]
    pub fn flushes_receives(&self) -> bool {
        //= IBTA 10.2.9: srq-outlives-a-qp
        self.state() == QpState::Err && (!self.shares_receives || PlantedBug::FlushesSharedReceives.is())
    }

    /// The send queue position before which all work requests are to be flushed.
    fn flush_end(&self) -> u32 {
        let r = &self.requester;
        match self.state() {
            QpState::Err | QpState::Sqe => r.queue.head(),
            _ => match r.sending {
                Sending::Flushing(end) => end,
                _ => r.queue.tail(),
            },
        }
    }

    /// Completes up to `most` work requests and receives of a QP in an error state with `WrFlush`, sends first. Returns how many.
    pub fn flush(&mut self, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        let sends = self.flush_sends(ctx, most);
        sends + self.flush_receives(ctx, most - sends)
    }

    fn flush_sends(&mut self, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        let end = self.flush_end();
        let count = end.wrapping_sub(self.requester.queue.tail()).min(most);
        for _ in 0..count {
            let wr = self.requester.queue.at(self.requester.queue.tail()).wr;
            ctx.counters.req_cqe_flush_error += 1;
            self.push_send_completion(ctx, &wr, WcStatus::WrFlush, 0, 0);
            self.requester.queue.retire();
        }
        if matches!(self.state(), QpState::Err | QpState::Sqe) {
            self.requester.abandon();
        } else if self.requester.sending == Sending::Flushing(self.requester.queue.tail()) {
            self.requester.sending = Sending::Open;
            self.report_drained(ctx);
        }
        count
    }

    /// Flushes up to `most` waiting receives. Receives posted meanwhile ring the doorbell.
    fn flush_receives(&mut self, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        if !self.flushes_receives() {
            return 0;
        }
        let flushed = self.responder.flush_receives(&self.context, ctx, most);
        invariant!(flushed == 0 || !self.shares_receives, "receives of a shared queue are flushed");
        flushed
    }
}
