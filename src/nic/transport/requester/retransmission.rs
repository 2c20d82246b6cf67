//! Retransmission: timeouts, sequence NAKs and RNR waits (IBTA 9.9.2.1, 9.7.5.2.8).
//!
//! The protocol is go-back-N: the position moves back to the oldest unacknowledged PSN, and all packets from there are
//! built again from their work requests. Each rewind costs one retry, unless something new is acknowledged in between.
//!
//! Between peers that agreed to selective repeat, `selective` sends single packets again; a rewind is the last resort.

use super::{Requester, Sending};
use crate::profile::Expiry;
use crate::transport::{Cause, Ctx, QpContext, Verdict};
use crate::verbs::WcStatus;
use roxie_base::time::Nanos;
use roxie_wire::{Syndrome, rnr_timer_ns};

/// What ends a requester's wait for what is outstanding.
///
/// A packet that is sent starts the timer, and progress restarts it. The timer is stopped before a retransmission and
/// before a probe.
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

impl Requester {
    /// Returns the latest time to call `on_timeout`; `Nanos::MAX` for never.
    pub(crate) fn deadline(&self) -> Nanos {
        if let Sending::RnrWait(until) = self.sending { until } else { self.retry.at() }
    }

    /// Continues the retransmission timer of a QP that was parked for this time.
    pub(crate) fn continue_timer(&mut self, parked: Nanos) {
        self.retry.delay(parked);
    }

    /// Returns what ends the wait for what is outstanding. `None`: nothing does.
    pub(crate) fn awaits(&self, qp: &QpContext) -> Option<Awaits> {
        if self.window.is_idle() || !qp.qp_type.is_reliable_requester() {
            return Some(Awaits::Nothing);
        }
        if self.sending.waits() {
            return Some(Awaits::RnrTimer);
        }
        if self.retry.is_running() {
            return Some(Awaits::Timer);
        }
        if self.retry.timeout().is_none() {
            return Some(Awaits::Peer);
        }
        let repeats = self.sending == Sending::Open && self.window.repeats();
        (repeats || self.ack_requests.is_probe_due()).then_some(Awaits::Packet)
    }

    /// Starts the timer if nothing else ends the wait.
    #[inline(always)]
    pub(crate) fn ensure_timer(&mut self, qp: &QpContext, now: Nanos) {
        if !self.window.is_idle() && !self.retry.is_running() {
            self.start_missing_timer(qp, now);
        }
    }

    /// A retransmission that was due may have become needless, because responses came before it was sent, or
    /// impossible. Then no packet follows that would start the timer.
    #[cold]
    fn start_missing_timer(&mut self, qp: &QpContext, now: Nanos) {
        if self.awaits(qp).is_none() {
            self.start_timer(now);
        }
    }

    /// Handles an expired timer. Does nothing if none has expired.
    pub(crate) fn on_timeout(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        if let Sending::RnrWait(until) = self.sending {
            if ctx.now >= until {
                self.sending.end_wait();
            }
            return None;
        }
        if ctx.now < self.retry.at() {
            return None;
        }
        if self.window.is_idle() {
            self.ack_requests.test_expired(ctx.now, &mut self.retry);
            return None;
        }
        if self.request_ack_instead(ctx) {
            return None;
        }
        if let Some(verdict) = self.probe(qp, ctx) {
            return Some(verdict);
        }
        if let Some(expiry) = self.retry.expire() {
            return self.expired_as_adapter(qp, ctx, expiry);
        }
        ctx.counters.local_ack_timeout_err += 1;
        // A probe is no request: that it has no answer costs no retry, and happens once.
        if self.ack_requests.give_up_probes(&self.window) {
            self.rewind(Cause::Timeout);
            return Some(Verdict::GoBack(Cause::Timeout));
        }
        //= IBTA 9.7.6.1.3: timeout-sends-again
        Some(self.go_back(qp, ctx, Cause::Timeout))
    }

    /// Handles an expiry of an adapter's timer, which counts its retries itself.
    #[cold]
    fn expired_as_adapter(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, expiry: Expiry) -> Option<Verdict> {
        let is_adaptive = matches!(expiry, Expiry::Adaptive | Expiry::AdaptiveExceeded);
        ctx.counters.local_ack_timeout_err += u64::from(!is_adaptive);
        ctx.counters.roce_adp_retrans += u64::from(expiry == Expiry::Adaptive);
        match expiry {
            Expiry::Adaptive | Expiry::Regular => {
                self.rewind(Cause::Timeout);
                Some(Verdict::GoBack(Cause::Timeout))
            }
            Expiry::Silent => {
                self.retry.start(ctx.now, Nanos::MAX);
                None
            }
            Expiry::Exceeded | Expiry::AdaptiveExceeded => Some(self.retries_exceeded(qp, ctx)),
        }
    }

    /// Retransmits everything unacknowledged, or fails the oldest work request if no retry is left.
    pub(super) fn go_back(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, cause: Cause) -> Verdict {
        if !self.retry.take() {
            return self.retries_exceeded(qp, ctx);
        }
        self.rewind(cause);
        Verdict::GoBack(cause)
    }

    /// Fails the oldest work request, because no retry is left.
    pub(super) fn retries_exceeded(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Verdict {
        ctx.counters.retry_exceeded_err += 1;
        self.fail_oldest(qp, ctx, WcStatus::RetryExc, 0);
        Verdict::Failed(WcStatus::RetryExc)
    }

    /// Retransmits after the wait of the peer's RNR timer code. Counts RNR retries instead of retries.
    pub(super) fn go_back_after(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, timer: u8) -> Verdict {
        if !self.retry.take_rnr(qp.attributes()) {
            ctx.counters.retry_rnr_exceeded_err += 1;
            self.fail_oldest(qp, ctx, WcStatus::RnrRetryExc, Syndrome::RnrNak { timer }.into());
            return Verdict::Failed(WcStatus::RnrRetryExc);
        }
        let wait = Nanos(rnr_timer_ns(timer)) + qp.profile.map_or(Nanos::ZERO, |profile| profile.rnr_extra);
        self.rewind(Cause::Rnr);
        //= IBTA 9.7.5.2.8: rnr-nak-waits-for-its-timer
        self.sending = Sending::RnrWait(ctx.now + wait);
        Verdict::Wait(wait)
    }

    /// Asks for an acknowledgement if the timer of a probe has expired. Returns false if it was the timer of a
    /// retransmission.
    fn request_ack_instead(&mut self, ctx: &Ctx<'_>) -> bool {
        let is_quiet = self.is_quiet();
        if is_quiet {
            // The packet that asks starts the timer.
            self.retry.stop();
            self.request_ack(ctx.limits);
        }
        is_quiet
    }

    fn rewind(&mut self, cause: Cause) {
        self.begin(cause);
        self.sending.forget_failure();
        self.rewind_to(self.window.una());
        // What asked may be lost.
        self.ack_requests.forget(self.window.una());
        if let Some(board) = &mut self.scoreboard {
            board.mark_all_lost(&self.window);
        }
    }

    /// Notes why packets are sent again, before the position moves back.
    fn begin(&mut self, cause: Cause) {
        self.pacing.forget_probe();
        self.retry.begin(cause);
        self.ack_requests.cancel_probe();
    }

    /// Moves the position to the packets that are marked to be sent again.
    pub(super) fn repeat(&mut self, cause: Cause) {
        self.begin(cause);
        self.skip_received();
    }

    /// Sends the last packet again, or the oldest READ or atomic, if the silence is shorter than the local ACK timeout.
    /// Costs no retry. Returns `None` if the timeout is reached, if what comes next cannot be sent, or without
    /// selective repeat.
    fn probe(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        let longest = qp.attributes().ack_timeout()?;
        // A packet that cannot be sent is no probe.
        let board = self.scoreboard.as_mut().filter(|_| self.sending.failure().is_none())?;
        if !board.probe(&self.window, longest) {
            return None;
        }
        self.retry.set_timeout(Some(longest.min(board.patience(longest))));
        self.repeat(Cause::Probe);
        ctx.counters.tail_probes += 1;
        Some(Verdict::GoBack(Cause::Probe))
    }
}
