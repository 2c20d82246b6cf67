//! Retransmission: timeouts, sequence NAKs and RNR waits (IBTA 9.9.2.1, 9.7.5.2.8).
//!
//! The protocol is go-back-N: the position moves back to the oldest unacknowledged PSN, and all packets from there are
//! built again from their work requests. Each rewind costs one retry, unless something new is acknowledged in between.
//!
//! Between peers that agreed to selective repeat, `scoreboard` sends single packets again; a rewind is the last resort.

use super::planted::PlantedBug;
use super::requester::{Requester, Sending};
use super::{Cause, Ctx, Qp, Verdict};
use crate::verbs::{QpType, WcStatus};
use roxie_base::time::Nanos;
use roxie_wire::{Syndrome, rnr_timer_ns};

/// What ends a requester's wait for what is outstanding.
///
/// A packet that is sent starts the timer, and progress restarts it. The timer is stopped before a retransmission and before a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// Nothing is outstanding.
    Nothing,
    /// The RNR timer.
    RnrTimer,
    /// The timer of a retransmission, or of a probe if no packet has asked for an acknowledgement.
    Timer,
    /// A retransmission or a probe, which may be sent now, or once the pacer releases it. The packet starts the timer.
    Packet,
    /// The peer alone: the QP has no local ACK timeout.
    Peer,
}

/// Value of `rnr_retry` for infinite retries.
const RNR_INFINITE: u8 = 7;

impl Qp {
    /// Returns the latest time to call [`Qp::handle_timeout`]; `Nanos::MAX` for never.
    pub fn deadline(&self) -> Nanos {
        let r = &self.requester;
        if let Sending::RnrWait(until) = r.sending { until } else { r.retransmit_at }
    }

    /// Continues the retransmission timer of a QP that was parked for this time.
    pub fn continue_timer(&mut self, parked: Nanos) {
        let r = &mut self.requester;
        if r.retransmit_at != Nanos::MAX {
            r.retransmit_at = r.retransmit_at + parked;
        }
    }

    /// Returns what ends the wait for what is outstanding. `None`: nothing does.
    pub fn awaits(&self) -> Option<Awaits> {
        let r = &self.requester;
        if r.una == r.sent_end || !matches!(self.qp_type, QpType::Rc | QpType::XrcSend) {
            return Some(Awaits::Nothing);
        }
        if matches!(r.sending, Sending::RnrWait(_)) {
            return Some(Awaits::RnrTimer);
        }
        if r.retransmit_at != Nanos::MAX {
            return Some(Awaits::Timer);
        }
        if r.ack_timeout.is_none() {
            return Some(Awaits::Peer);
        }
        let repeats = r.sending == Sending::Open && r.position().is_before(r.sent_end);
        (repeats || r.probe_due).then_some(Awaits::Packet)
    }

    /// Starts the timer if nothing else ends the wait. Call this after each event, before [`Qp::deadline`].
    #[inline(always)]
    pub fn ensure_timer(&mut self, now: Nanos) {
        let r = &self.requester;
        if r.una != r.sent_end && r.retransmit_at == Nanos::MAX {
            self.start_missing_timer(now);
        }
    }

    /// A retransmission that was due may have become needless, because responses came before it was sent, or impossible. Then no packet
    /// follows that would start the timer.
    #[cold]
    fn start_missing_timer(&mut self, now: Nanos) {
        let after_nak =
            self.requester.going_back == Some(Cause::SequenceNak) && PlantedBug::NoTimerAfterNak.is();
        let is_planted = after_nak || PlantedBug::NoTimerAfterRepeat.is();
        if self.awaits().is_none() && !is_planted {
            self.requester.start_timer(now);
        }
        let r = &self.requester;
        invariant!(self.awaits().is_some(), "PSNs from {} to {} wait without a timer", r.una, r.sent_end);
    }

    /// Handles an expired timer. Does nothing if none has expired.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        let r = &mut self.requester;
        if let Sending::RnrWait(until) = r.sending {
            if ctx.now >= until {
                r.end_rnr_wait();
            }
            return None;
        }
        if ctx.now < r.retransmit_at {
            return None;
        }
        if r.ask_late(ctx.limits) {
            return None;
        }
        if let Some(verdict) = self.probe(ctx) {
            return Some(verdict);
        }
        ctx.counters.local_ack_timeout_err += 1;
        //= IBTA 9.7.6.1.3: timeout-sends-again
        Some(self.go_back(ctx, Cause::Timeout))
    }

    /// Retransmits everything unacknowledged, or fails the oldest work request if no retry is left.
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

    /// Retransmits after the wait of the peer's RNR timer code. Counts RNR retries instead of retries.
    pub(super) fn go_back_after(&mut self, ctx: &mut Ctx<'_>, timer: u8) -> Verdict {
        //= IBTA 9.9.2: seven-rnr-retries-are-for-ever
        let infinite = self.attributes().rnr_retry == RNR_INFINITE;
        let retries = self.attributes().retry_cnt;
        let r = &mut self.requester;
        // The packet reached the peer: reset the retry counter. Losses during a long RNR wait must not add up to a
        // failure.
        r.retries_left = retries;
        if !infinite {
            //= IBTA 9.9.2: rnr-retries-are-counted
            if r.rnr_retries_left == 0 {
                ctx.counters.retry_rnr_exceeded_err += 1;
                self.fail_oldest(ctx, WcStatus::RnrRetryExc, Syndrome::RnrNak { timer }.into());
                return Verdict::Failed(WcStatus::RnrRetryExc);
            }
            r.rnr_retries_left -= 1;
        }
        let wait = match timer {
            0 if PlantedBug::RnrCodeZeroIsNoWait.is() => Nanos::ZERO,
            _ => Nanos(rnr_timer_ns(timer)),
        };
        self.rewind(Cause::Rnr);
        //= IBTA 9.7.5.2.8: rnr-nak-waits-for-its-timer
        self.requester.sending = Sending::RnrWait(ctx.now + wait);
        Verdict::Wait(wait)
    }

    fn rewind(&mut self, cause: Cause) {
        self.pacing.forget_probe();
        let r = &mut self.requester;
        r.begin_to_go_back(cause);
        r.forget_failure();
        r.rewind_to(r.una);
        // What asked may be lost.
        r.asked = r.una;
        r.mark_all_lost();
    }
}

impl Requester {
    /// Records why packets are sent again, before the position moves back.
    pub(super) fn begin_to_go_back(&mut self, cause: Cause) {
        self.going_back = Some(cause);
        self.probe_due = false;
        // The first packet sent restarts the timer.
        self.retransmit_at = Nanos::MAX;
    }
}
