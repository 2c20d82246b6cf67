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

use super::{Requester, Sending};
use crate::transport::{Ctx, KeyUser, QpContext, Refusal};
use crate::verbs::{SendFlags, WcStatus, WrOpcode};

impl Requester {
    /// Executes the local work requests at the position, at most `tx_quantum` in one turn of the QP. Returns true if a
    /// work request that sends packets follows.
    pub(super) fn pass_local_work(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> bool {
        while self.may_send_requests(qp) {
            let wqe = *self.window.next_wqe();
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
                if self.local_work_waits() {
                    self.request_ack(ctx.limits);
                    return false;
                }
                //= IBTA 10.6.7: bind-takes-effect-in-its-turn
                if let Err(status) = self.change_key(qp, ctx) {
                    self.sending = Sending::Failed(status);
                    self.fail_if_oldest(qp, ctx);
                    return false;
                }
            }
            self.window.pass_local();
            self.complete_local_work(qp, ctx);
            // Its completion comes after the completions of the work requests before it.
            if self.ack_requests.at_end_of(qp.sig_all, wqe.wr.flags) {
                self.request_ack(ctx.limits);
            }
        }
        false
    }

    /// Applies the work request at the position to the memory table.
    fn change_key(&self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Result<(), WcStatus> {
        let wr = self.window.queue().work_request(self.window.next());
        let user = KeyUser { pd: qp.pd, qp: qp.index };
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
            ctx.out.withdrawn.extend(before.map(|region| (qp.index, region)));
        }
        done.map_err(|_: Refusal| status)
    }

    /// True if the local work request at the position must wait for responses.
    pub(super) fn local_work_waits(&self) -> bool {
        let wr = &self.window.next_wqe().wr;
        match wr.opcode {
            //= IBTA 10.6.5.1: local-invalidate-waits
            WrOpcode::LocalInvalidate => !self.window.is_next_oldest(),
            _ => wr.flags.contains(SendFlags::FENCE) && self.window.reads_outstanding() > 0,
        }
    }
}
