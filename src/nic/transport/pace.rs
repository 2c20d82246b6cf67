//! Pacing: when a QP's next packet may be sent, and the inputs of its reaction point.
//!
//! Requests and READ responses wait for their time. ACKs and atomic responses are sent at once: they are small, and the
//! peer's rate depends on them. A QP at line rate is not held back, because the link paces it.
//!
//! A data packet causes at most one notification. Therefore a QP handles only as many notifications as it has sent data
//! packets that may still be in flight, and none before the first. An attacker that forges notifications without seeing
//! the traffic cannot slow an idle QP at all, and any other no more than a switch could. In a deep incast,
//! notifications arrive faster than data is sent: each reports the queue that earlier data has met.

use super::verdict::RateChange;
use super::{Ctx, Origin, PlantedBug, Qp, Reply, TxPlan};
use crate::congestion::{Control, Pacer, Rate, Sample, Settings, SharedRate, State};
use crate::verbs::QpType;
use roxie_base::time::Nanos;
use roxie_wire::Psn;

/// State of a paced QP.
#[derive(Debug)]
pub(super) struct Pace {
    /// The reaction point. `None`: only the static limits apply.
    control: Option<Box<dyn Control>>,
    /// Static rate limit, which the reaction point cannot exceed.
    limit: Option<Rate>,
    line_rate: Rate,
    pacer: Pacer,
    /// Rate shared with other QPs, if any.
    share: Option<SharedRate>,
    /// Time of the QP's next turn on the shared rate.
    turn_at: Nanos,
    /// True if the last packet left nothing to send, or was sent at line rate. Unused credit is then discarded.
    idle: bool,
    /// Sent packets that may still cause a notification.
    unnotified: Unnotified,
    /// The packet for the round trip measurement, and the time when it was sent.
    probe: Option<(Psn, Nanos)>,
    /// PSN acknowledged at the last sample, or at the first probe.
    sampled: Option<Psn>,
}

/// Numbers of sent data packets that no notification has been handled for.
#[derive(Clone, Copy, Debug, Default)]
struct Unnotified {
    /// Requests. At most the number of packets in flight, where acknowledgements tell that.
    requests: u32,
    /// READ responses, which the peer does not acknowledge.
    responses: u32,
}

impl Unnotified {
    /// Upper limit of each: packets of 1 KiB that fill a path of 100 Gb/s and 20 us.
    const MOST: u32 = 256;

    fn sent(&mut self, is_response: bool) {
        let count = if is_response { &mut self.responses } else { &mut self.requests };
        *count = Unnotified::MOST.min(*count + 1);
    }

    /// Limits the count to the packets in flight, but to 1 at least: a notification may follow the acknowledgement.
    fn acknowledged(&mut self, under_way: u32) {
        self.requests = self.requests.min(under_way.max(1));
    }

    /// Takes one packet for a notification. Returns false if no sent packet can have caused it.
    fn take(&mut self) -> bool {
        let count = if self.requests > 0 { &mut self.requests } else { &mut self.responses };
        let was_sent = *count > 0;
        *count = count.saturating_sub(1);
        was_sent
    }
}

impl Pace {
    fn rate(&mut self, now: Nanos) -> Rate {
        let rate = self.control.as_mut().map_or(Rate(f64::INFINITY), |control| control.rate(now));
        self.limit.map_or(rate, |limit| Rate(rate.0.min(limit.0)))
    }

    /// True if the link alone paces the QP. A static limit is kept even above the link's nominal rate.
    fn is_free(&self, rate: Rate) -> bool {
        self.limit.is_none() && rate >= self.line_rate
    }

    /// Returns the time from which data may be sent at `rate`.
    fn ready_at(&self, rate: Rate) -> Nanos {
        if self.is_free(rate) { self.turn_at } else { self.turn_at.max(self.pacer.ready_at()) }
    }

    /// Returns the rate as of the last evaluation.
    fn last_rate(&self) -> Rate {
        let rate = self.control.as_ref().map_or(Rate(f64::INFINITY), |control| control.state().rate);
        self.limit.map_or(rate, |limit| Rate(rate.0.min(limit.0)))
    }

    fn measures(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.wants_round_trips())
    }
}

impl Qp {
    /// Installs the reaction point of `settings` and evaluates the rate. A reaction point of the same kind keeps its
    /// rate. At `line_rate` or above, the QP is not held back. The QP's own attributes and `share`, the rate shared
    /// with other QPs, limit the rate further.
    pub fn set_control(
        &mut self,
        now: Nanos,
        settings: &Settings,
        line_rate: Rate,
        share: Option<&SharedRate>,
    ) {
        let (limit, bursts) = (self.limit(), self.attributes().rate_limit.unwrap_or_default());
        let is_off = *settings == Settings::Off && limit.is_none() && share.is_none();
        if is_off {
            (self.pace, self.held) = (None, self.held && PlantedBug::HeldForEver.is());
            return;
        }
        if self.pace.is_none() {
            self.pace = Some(self.new_pace(line_rate));
        }
        let Some(pace) = &mut self.pace else { return };
        if pace.share.is_none()
            && let Some(share) = share
        {
            // Queue behind earlier senders: a restart must not jump the queue.
            pace.turn_at = share.ready_at();
            self.held |= now < pace.turn_at;
        }
        pace.share = share.cloned();
        let same_line = std::mem::replace(&mut pace.line_rate, line_rate) == line_rate;
        pace.limit = limit;
        let kept = same_line && pace.control.as_mut().is_some_and(|control| control.set(now, settings));
        if !kept {
            pace.control = settings.control(line_rate, now);
        }
        let most = if PlantedBug::BurstsWithoutBound.is() { u32::MAX } else { bursts.max_burst };
        pace.pacer.set_burst(most, bursts.typical_packet);
        self.rate_changed(now);
    }

    /// Returns the smaller of the QP's rate limit and its path's static rate.
    fn limit(&self) -> Option<Rate> {
        let attributes = self.attributes();
        let own = attributes.rate_limit.map(|limit| limit.kbps).filter(|kbps| *kbps > 0);
        //= IBTA 9.11: static-rate-is-kept
        let of_path = attributes.av.and_then(|av| av.static_rate_kbps());
        own.into_iter().chain(of_path).min().map(|kbps| Rate(f64::from(kbps) * 1e3))
    }

    fn new_pace(&self, line_rate: Rate) -> Box<Pace> {
        let pacer = Pacer::new();
        Box::new(Pace {
            control: None,
            limit: None,
            line_rate,
            pacer,
            share: None,
            turn_at: Nanos::ZERO,
            idle: true,
            unnotified: Unnotified::default(),
            probe: None,
            sampled: None,
        })
    }

    /// True if the reaction point measures round trips.
    pub fn goes_by_delay(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.measures())
    }

    /// True if the QP's rate is controlled.
    pub fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Evaluates the rate and releases held data if its time has come.
    fn rate_changed(&mut self, now: Nanos) {
        let Some(pace) = &mut self.pace else { return };
        if pace.idle {
            pace.pacer.was_idle(now);
        }
        let rate = pace.rate(now);
        pace.pacer.rate_changed(now, rate);
        self.held &= now < pace.ready_at(rate);
    }

    /// Returns the reaction point's state as of the last evaluation, with the rate that the limits leave. `None`: the
    /// QP's rate is not controlled.
    pub fn control_state(&self) -> Option<State> {
        let pace = self.pace.as_ref()?;
        let known = pace.control.as_ref().map(|control| control.state());
        let bare = State { rate: pace.line_rate, target: None, alpha: None, round_trip: None };
        let own = pace.last_rate();
        let rate = pace.share.as_ref().map_or(own, |share| Rate(own.0.min(share.rate().0)));
        Some(State { rate, ..known.unwrap_or(bare) })
    }

    /// Evaluates the current rate.
    pub fn evaluate_rate(&mut self, now: Nanos) {
        self.rate_changed(now);
    }

    /// True while data waits for the pacer.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Returns the time at which held data may be sent, or the rate rises and must be evaluated again. `None`: nothing
    /// is held.
    pub fn held_until(&self) -> Option<Nanos> {
        let pace = self.pace.as_ref().filter(|_| self.held)?;
        // A rise above the static limit changes nothing, and needs no wake-up.
        let rises = |control: &dyn Control| pace.limit.is_none_or(|limit| control.state().rate < limit);
        let control = pace.control.as_deref().filter(|control| rises(*control));
        let rises_at = control.map_or(Nanos::MAX, |control| control.rises_at());
        let rate = pace.last_rate();
        let own = if pace.is_free(rate) { Nanos::ZERO } else { pace.pacer.ready_at().min(rises_at) };
        Some(own.max(pace.turn_at))
    }

    /// Releases held data if its time has come.
    pub fn release(&mut self, now: Nanos) {
        if self.held {
            self.rate_changed(now);
        }
    }

    /// Plans an ACK or an atomic response while data is held back.
    #[cold]
    pub(crate) fn next_unpaced(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        match self.qp_type {
            _ if !self.has_unpaced() => None,
            QpType::XrcRecv => self.next_extended(ctx),
            _ => self.next_reply(ctx),
        }
    }

    /// True if the reply at the front of the queue is not paced.
    pub(crate) fn has_unpaced(&self) -> bool {
        let may_pass =
            |reply: Reply| !matches!(reply, Reply::Read(_)) && !PlantedBug::AcknowledgementsArePaced.is();
        self.responder.replies.front().is_some_and(may_pass)
    }

    /// Charges a sent packet to the pacer.
    #[cold]
    pub(super) fn note_departure(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        let is_response = plan.origin == Origin::Reply;
        if !plan.carries_data() || (is_response && PlantedBug::ResponsesAreNotPaced.is()) {
            return;
        }
        let length = usize::from(plan.payload_len);
        let template = match plan.ah {
            None => self.template(),
            Some(way) => ctx.handles.find(way).map(|handle| &handle.template),
        };
        let bytes = template.map_or(length, |template| template.frame_len(plan.bth.opcode, length)) as u64;
        let timeout = self.attributes().ack_timeout();
        let is_last = !self.wants_transmit(ctx.limits);
        let Some(pace) = &mut self.pace else { return };
        pace.unnotified.sent(is_response);
        if let Some(control) = &mut pace.control {
            control.sent(ctx.now, bytes);
        }
        let rate = pace.rate(ctx.now);
        if !pace.is_free(rate) {
            if std::mem::replace(&mut pace.idle, is_last) {
                pace.pacer.was_idle(ctx.now);
            }
            pace.pacer.sent(ctx.now, bytes, rate);
            self.held = ctx.now < pace.pacer.ready_at();
        } else {
            pace.idle = true;
        }
        if let Some(share) = &pace.share {
            pace.turn_at = share.sent(ctx.now, bytes);
            self.held |= ctx.now < pace.turn_at;
        }
        if plan.origin != Origin::Request {
            return;
        }
        let r = &mut self.requester;
        if r.retransmit_at != Nanos::MAX
            && let Some(timeout) = timeout
        {
            // Packets are sent far apart: the timeout counts from the last one.
            r.retransmit_at = r.retransmit_at.max(ctx.now + timeout);
        }
        // One probe at a time. A retransmitted packet is no probe, because its acknowledgement is ambiguous (Karn).
        if plan.bth.ack_req && pace.probe.is_none() && plan.is_first() && pace.measures() {
            pace.probe = Some((plan.bth.psn, ctx.now));
            pace.sampled = pace.sampled.or(Some(r.una));
        }
    }

    /// True if every packet should ask for an acknowledgement: packets of this QP are so far apart that the
    /// retransmission timer would not wait for the usual interval.
    #[cold]
    pub(super) fn asks_each_time(&self, ctx: &Ctx<'_>, bytes: u64) -> bool {
        let (Some(pace), Some(timeout)) = (&self.pace, self.attributes().ack_timeout()) else { return false };
        // With a shared rate, the next turn comes after those of the other QPs.
        let turn = pace.share.as_ref().map_or(Nanos::ZERO, |share| share.ready_at().since(ctx.now));
        let next = pace.last_rate().nanos_for(bytes).max(turn.0 as f64);
        let apart = next * f64::from(ctx.limits.ack_request_interval);
        apart > timeout.0 as f64 / 2.0
    }

    /// Handles a new acknowledgement, in a packet that arrived at `ctx.out.arrived`: completes the round trip
    /// measurement.
    #[cold]
    pub(super) fn note_arrival(&mut self, ctx: &mut Ctx<'_>) {
        let una = self.requester.una;
        let under_way = (self.requester.sent_end - una.value()).value();
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let again = self.requester.going_back.is_some();
        let Some(pace) = &mut self.pace else { return };
        pace.unnotified.acknowledged(under_way);
        let Some((psn, left)) = pace.probe else { return };
        if !psn.is_before(una) {
            return;
        }
        pace.probe = None;
        let packets = pace.sampled.replace(una).map_or(0, |before| (una - before.value()).value());
        if again {
            return;
        }
        let sample = Sample { round_trip: ctx.out.arrived.since(left), bytes: u64::from(packets) * mtu };
        if let Some(control) = &mut pace.control
            && control.acknowledged(ctx.now, sample)
        {
            self.rate_changed(ctx.now);
        }
    }

    /// Cancels the round trip measurement after a loss or a restart.
    pub(super) fn forget_probe(&mut self) {
        if let Some(pace) = &mut self.pace {
            (pace.probe, pace.sampled) = (None, None);
        }
    }

    /// Handles a valid notification from the peer. Returns `None` if it is ignored.
    pub(super) fn notified(&mut self, now: Nanos) -> Option<RateChange> {
        let pace = self.pace.as_mut()?;
        if !pace.unnotified.take() {
            return None;
        }
        let control = pace.control.as_mut()?;
        let from = control.rate(now).0 as u64;
        control.notified(now);
        let state = control.state();
        let alpha = state.alpha.map(|alpha| (alpha * 1e3).round() as u16);
        self.rate_changed(now);
        Some(RateChange { from, to: state.rate.0 as u64, alpha })
    }
}
