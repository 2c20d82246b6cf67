//! Work requests that send nothing: they change what a key opens (IBTA 10.6.5 to 10.6.7, 11.4.1.1).
//!
//! They stand in the send queue like all others, take effect in its order, and complete in its order:
//!
//! * What comes after one in the queue sees its effect.
//! * A bind or a fast registration takes effect when the position reaches it, be what went before complete or not; with
//!   the fence flag it waits for READs and atomics before it, as any other work request (IBTA 10.8.3.3).
//! * A local invalidation waits until all before it are complete, asked or not (the local invalidate fence of IBTA
//!   10.6.5.1): a packet before it that was lost is built again under the key that it takes away. rdma_rxe does so too.
//!
//! A work request that has taken effect is `started` and takes no PSN, so that going back passes over it.

use super::memory::Refusal;
use super::requester::Requester;
use super::{Ctx, Qp};
use crate::verbs::{SendFlags, WcStatus, WrOpcode};

impl Requester {
    /// The work request at the position has taken effect.
    fn pass(&mut self) {
        let psn = self.psn;
        let wqe = self.queue.at_mut(self.next);
        if !wqe.started {
            wqe.started = true;
            wqe.first_psn = psn;
            wqe.packets = 0;
        }
        self.next = self.next.wrapping_add(1);
        self.next_packet = 0;
    }
}

impl Qp {
    /// Carries out the local work requests that stand at the position, as many as a QP sends packets in one turn. True: one stands there now
    /// that sends packets.
    pub(super) fn pass_local_work(&mut self, ctx: &mut Ctx<'_>) -> bool {
        while self.may_send_requests() {
            let r = &self.requester;
            let wqe = *r.queue.at(r.next);
            if !wqe.wr.opcode.is_local() {
                return true;
            }
            if ctx.out.local_work >= ctx.limits.tx_quantum {
                return false;
            }
            ctx.out.local_work += 1;
            if !wqe.started {
                // What was planned is gathered from the pages that the region has now.
                let pages_in_use = ctx.gathers_pending && wqe.wr.opcode == WrOpcode::FastRegister;
                if pages_in_use || self.local_work_waits() {
                    return false;
                }
                //= IBTA 10.6.7: bind-takes-effect-in-its-turn
                if let Err(status) = self.change_key(ctx) {
                    self.requester.failed = Some(status);
                    self.fail_if_oldest(ctx);
                    return false;
                }
            }
            self.requester.pass();
            self.complete_local_work(ctx);
        }
        false
    }

    /// Completes local work requests that have taken effect and have nothing incomplete before them.
    #[inline]
    pub(super) fn complete_local_work(&mut self, ctx: &mut Ctx<'_>) {
        if self.oldest_is_done_local_work() {
            self.complete_done_local_work(ctx);
        }
    }

    #[inline]
    fn oldest_is_done_local_work(&self) -> bool {
        let queue = &self.requester.queue;
        let is_done = || {
            let wqe = queue.at(queue.tail());
            wqe.started && wqe.wr.opcode.is_local()
        };
        !queue.is_empty() && is_done()
    }

    fn complete_done_local_work(&mut self, ctx: &mut Ctx<'_>) {
        while self.oldest_is_done_local_work() {
            let wr = self.requester.queue.at(self.requester.queue.tail()).wr;
            if self.sig_all || wr.flags.contains(SendFlags::SIGNALED) {
                self.push_send_completion(ctx, &wr, WcStatus::Success, 0, 0);
            }
            self.retire_oldest();
            self.fail_if_oldest(ctx);
            self.report_drained(ctx);
            if self.owes_sends() {
                return;
            }
        }
    }

    /// True if the local work request at the position has to wait for responses.
    pub(super) fn local_work_waits(&self) -> bool {
        let r = &self.requester;
        let wr = &r.queue.at(r.next).wr;
        match wr.opcode {
            //= IBTA 10.6.5.1: local-invalidate-waits
            WrOpcode::LocalInvalidate => r.next != r.queue.tail(),
            _ => wr.flags.contains(SendFlags::FENCE) && r.reads_outstanding > 0,
        }
    }

    /// Lets the work request at the position take effect.
    fn change_key(&self, ctx: &mut Ctx<'_>) -> Result<(), WcStatus> {
        let r = &self.requester;
        let wr = &r.queue.at(r.next).wr;
        let user = self.user();
        let (done, status) = match wr.opcode {
            //= IBTA 10.6.7: bind-fails-as-a-bind
            WrOpcode::BindWindow => (ctx.memory.bind(user, &wr.window_bind()), WcStatus::MwBind),
            WrOpcode::FastRegister => {
                (ctx.memory.fast_register(user, &wr.fast_registration()), WcStatus::LocQpOp)
            }
            _ => (ctx.memory.invalidate(user, wr.rkey.0, false), WcStatus::LocQpOp),
        };
        done.map_err(|_: Refusal| status)
    }
}
