//! Going back: timeouts, sequence NAKs, RNR waits (IBTA 9.9.2.1, 9.7.5.2.8).
//!
//! Going back is go-back-N: the position moves to the oldest unacknowledged PSN, and all packets from there are built
//! again from their work requests. Each going back without anything new acknowledged in between costs one retry.

use super::{Cause, Ctx, Qp, Verdict};
use crate::time::Nanos;
use crate::verbs::WcStatus;
use crate::wire::{Syndrome, rnr_timer_ns};

/// `rnr_retry` that stands for ever.
const RNR_FOR_EVER: u8 = 7;

impl Qp {
    /// When [`Qp::handle_timeout`] is to be called at the latest; `Nanos::MAX`: not at all.
    pub fn deadline(&self) -> Nanos {
        let r = &self.requester;
        r.rnr_until.unwrap_or(r.retransmit_at)
    }

    /// Looks at the timers. Harmless if none is due.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        let r = &mut self.requester;
        if let Some(until) = r.rnr_until {
            if ctx.now >= until {
                r.rnr_until = None;
            }
            return None;
        }
        if ctx.now < r.retransmit_at {
            return None;
        }
        ctx.counters.local_ack_timeout_err += 1;
        //= IBTA 9.7.6.1.3: timeout-sends-again
        Some(self.go_back(ctx, Cause::Timeout))
    }

    /// Sends everything unacknowledged again, or gives up.
    pub(super) fn go_back(&mut self, ctx: &mut Ctx<'_>, cause: Cause) -> Verdict {
        let r = &mut self.requester;
        //= IBTA 9.9.2: retries-are-counted
        if r.retries_left == 0 {
            ctx.counters.retry_exceeded_err += 1;
            self.fail_oldest(ctx, WcStatus::RetryExc, 0);
            return Verdict::Failed(WcStatus::RetryExc);
        }
        r.retries_left -= 1;
        self.rewind(cause);
        Verdict::GoBack(cause)
    }

    /// The peer had no receive: the same, after as long as its timer code says.
    pub(super) fn go_back_after(&mut self, ctx: &mut Ctx<'_>, timer: u8) -> Verdict {
        //= IBTA 9.9.2: seven-rnr-retries-are-for-ever
        let for_ever = self.attributes().rnr_retry == RNR_FOR_EVER;
        let retries = self.attributes().retry_cnt;
        let r = &mut self.requester;
        // The packet has come through: losses before it are no silence, and those of a long wait must not add up to one.
        r.retries_left = retries;
        if !for_ever {
            //= IBTA 9.9.2: rnr-retries-are-counted
            if r.rnr_retries_left == 0 {
                ctx.counters.retry_rnr_exceeded_err += 1;
                self.fail_oldest(ctx, WcStatus::RnrRetryExc, Syndrome::RnrNak { timer }.into());
                return Verdict::Failed(WcStatus::RnrRetryExc);
            }
            r.rnr_retries_left -= 1;
        }
        let wait = Nanos(rnr_timer_ns(timer));
        self.rewind(Cause::Rnr);
        //= IBTA 9.7.5.2.8: rnr-nak-waits-for-its-timer
        self.requester.rnr_until = Some(ctx.now + wait);
        Verdict::Wait(wait)
    }

    fn rewind(&mut self, cause: Cause) {
        self.forget_probe();
        let r = &mut self.requester;
        r.going_back = Some(cause);
        // Armed again by the first packet that leaves.
        r.retransmit_at = Nanos::MAX;
        // A work request that failed at the old position is found again when the position comes back to it.
        r.failed = None;
        r.rewind_to(r.una);
    }
}
