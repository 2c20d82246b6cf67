//! Local work requests: they change what a key grants, and send no packet (IBTA 10.6.5 to 10.6.7, 11.4.1.1).
//!
//! Local work requests take effect and complete in the order of the send queue:
//!
//! * Work requests after a local one see its effect.
//! * A bind or a fast registration takes effect when the position reaches it, even if earlier work requests are
//!   incomplete. With the fence flag, it waits for earlier READs and atomics, as any work request does (IBTA 10.8.3.3).
//! * A local invalidation always waits until all earlier work requests are complete (the local invalidate fence of IBTA
//!   10.6.5.1), as in rdma_rxe. Otherwise a lost packet could not be rebuilt, because its key would be gone.
//!
//! A local work request that has taken effect is `started` and takes no PSN, so that a rewind skips it.

use super::memory::Refusal;
use super::requester::{Requester, Sending};
use super::{Ctx, KeyUser, Qp};
use crate::verbs::{SendFlags, WcStatus, WrOpcode};

impl Requester {
    /// Moves the position past a local work request that has taken effect.
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
    /// Executes the local work requests at the position, at most `tx_quantum` in one turn of the QP. Returns true if a
    /// work request that sends packets follows.
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
                // Payload of planned packets must be gathered from the region's current pages first.
                let pages_in_use = ctx.gathers_pending && wqe.wr.opcode == WrOpcode::FastRegister;
                if pages_in_use {
                    return false;
                }
                if self.requester.local_work_waits() {
                    self.requester.ask(ctx.limits);
                    return false;
                }
                //= IBTA 10.6.7: bind-takes-effect-in-its-turn
                if let Err(status) = self.change_key(ctx) {
                    self.requester.sending = Sending::Failed(status);
                    self.fail_if_oldest(ctx);
                    return false;
                }
            }
            self.requester.pass();
            self.complete_local_work(ctx);
            // Its completion comes after that of the work requests before it.
            if self.requester.asks_at_its_end(self.sig_all, wqe.wr.flags) {
                self.requester.ask(ctx.limits);
            }
        }
        false
    }

    /// Completes local work requests that have taken effect and are the oldest.
    #[inline]
    pub(super) fn complete_local_work(&mut self, ctx: &mut Ctx<'_>) {
        if self.requester.oldest_is_done_local_work() {
            self.complete_done_local_work(ctx);
        }
    }

    fn complete_done_local_work(&mut self, ctx: &mut Ctx<'_>) {
        while self.requester.oldest_is_done_local_work() {
            let wr = self.requester.queue.at(self.requester.queue.tail()).wr;
            if self.sig_all || wr.flags.contains(SendFlags::SIGNALED) {
                self.push_send_completion(ctx, &wr, WcStatus::Success, 0, 0);
            }
            self.requester.retire_oldest();
            self.fail_if_oldest(ctx);
            self.report_drained(ctx);
            if self.owes_sends() {
                return;
            }
        }
    }

    /// Applies the work request at the position to the memory table.
    fn change_key(&self, ctx: &mut Ctx<'_>) -> Result<(), WcStatus> {
        let r = &self.requester;
        let wr = r.queue.work_request(r.next);
        let user = KeyUser { pd: self.pd, qp: self.index };
        let before = match wr.opcode {
            WrOpcode::BindWindow => ctx.memory.region_of(wr.window_bind().window.0),
            WrOpcode::FastRegister => None,
            _ => ctx.memory.region_of(wr.rkey.0),
        };
        let (done, status) = match wr.opcode {
            //= IBTA 10.6.7: bind-fails-as-a-bind
            WrOpcode::BindWindow => (ctx.memory.bind(user, &wr.window_bind()), WcStatus::MwBind),
            WrOpcode::FastRegister => {
                (ctx.memory.fast_register(user, &wr.fast_registration()), WcStatus::LocQpOp)
            }
            _ => (ctx.memory.invalidate(user, wr.rkey.0, false), WcStatus::LocQpOp),
        };
        if done.is_ok() {
            ctx.out.withdrawn.extend(before.map(|region| (self.index, region)));
        }
        done.map_err(|_: Refusal| status)
    }
}

impl Requester {
    #[inline]
    fn oldest_is_done_local_work(&self) -> bool {
        let queue = &self.queue;
        let is_done = || {
            let wqe = queue.at(queue.tail());
            wqe.started && wqe.wr.opcode.is_local()
        };
        !queue.is_empty() && is_done()
    }

    /// True if the local work request at the position must wait for responses.
    pub(super) fn local_work_waits(&self) -> bool {
        let wr = &self.queue.at(self.next).wr;
        match wr.opcode {
            //= IBTA 10.6.5.1: local-invalidate-waits
            WrOpcode::LocalInvalidate => self.next != self.queue.tail(),
            _ => wr.flags.contains(SendFlags::FENCE) && self.reads_outstanding > 0,
        }
    }
}
