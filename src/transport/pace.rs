//! The rate of a QP: what its reaction point is told, and when its next packet may leave.
//!
//! What carries data waits for its time: requests, and the responses of READs. Acknowledgements do not, nor the results of atomics:
//! they are small, and the peer's rate hangs on them. A QP at line rate is not held, the link itself does that.
//!
//! Each data packet may cause one notification. So as many are heeded as data packets have left that may be under way, and none before
//! the first: who can forge one, but does not see what is sent, slows no QP that is idle, and others no more than a switch could. In a
//! deep incast they come faster than data leaves, for what left before: each of them is news of the queue.

use super::verdict::RateChange;
use super::{Ctx, Origin, PlantedBug, Qp, Reply, TxPlan};
use crate::congestion::{Control, Pacer, Rate, Sample, Settings, SharedRate, State};
use crate::time::Nanos;
use crate::verbs::QpType;
use crate::wire::Psn;

/// What a paced QP has.
#[derive(Debug)]
pub(super) struct Pace {
    /// The reaction point; `None`: only a static limit holds.
    control: Option<Box<dyn Control>>,
    /// What it never exceeds, whatever the reaction point says.
    limit: Option<Rate>,
    line_rate: Rate,
    pacer: Pacer,
    /// What it has together with others, if it has.
    share: Option<SharedRate>,
    /// When its turn among those is.
    turn_at: Nanos,
    /// Nothing was left to send when the last packet left, or it left at line rate: what is not used then is not caught up.
    idle: bool,
    /// What left and may be notified of yet.
    unnotified: Unnotified,
    /// The packet whose round trip is measured, and when it left.
    probe: Option<(Psn, Nanos)>,
    /// What was acknowledged up to the last sample, or when the first probe left.
    sampled: Option<Psn>,
}

/// Data packets that no notification was heeded for yet.
#[derive(Clone, Copy, Debug, Default)]
struct Unnotified {
    /// Of requests: no more than are under way, where that is known.
    requests: u32,
    /// Of responses, of which nobody says when they have arrived.
    responses: u32,
}

impl Unnotified {
    /// Of each kind: what a path of 100 Gb/s and 20 us holds, in packets of 1 KiB.
    const MOST: u32 = 256;

    fn sent(&mut self, is_response: bool) {
        let count = if is_response { &mut self.responses } else { &mut self.requests };
        *count = Unnotified::MOST.min(*count + 1);
    }

    /// So many packets of requests are under way still. The notification of one may come after its acknowledgement.
    fn acknowledged(&mut self, under_way: u32) {
        self.requests = self.requests.min(under_way.max(1));
    }

    /// Something was notified of. False: nothing that has left.
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

    /// True if the link itself holds it. A rate that was asked for is kept whatever the link is said to carry.
    fn is_free(&self, rate: Rate) -> bool {
        self.limit.is_none() && rate >= self.line_rate
    }

    /// When data may leave, if this is its rate.
    fn ready_at(&self, rate: Rate) -> Nanos {
        if self.is_free(rate) { self.turn_at } else { self.turn_at.max(self.pacer.ready_at()) }
    }

    /// The rate as of the last call.
    fn last_rate(&self) -> Rate {
        let rate = self.control.as_ref().map_or(Rate(f64::INFINITY), |control| control.state().rate);
        self.limit.map_or(rate, |limit| Rate(rate.0.min(limit.0)))
    }

    fn measures(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.wants_round_trips())
    }
}

impl Qp {
    /// Has the reaction point of these settings decide how fast it sends; at `line_rate` or above it is not held. One of the same kind
    /// keeps its rate. What the QP's own attributes say bounds it, and what it has together with others, its `share`.
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
            // Behind those who sent before: to begin anew is no way past them.
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

    /// What its rate limit and its path's static rate bound it to.
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

    /// True if its reaction point measures round trips.
    pub fn goes_by_delay(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.measures())
    }

    /// True if somebody decides how fast it sends.
    pub fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// What it holds back is held by another rate now.
    fn rate_changed(&mut self, now: Nanos) {
        let Some(pace) = &mut self.pace else { return };
        if pace.idle {
            pace.pacer.was_idle(now);
        }
        let rate = pace.rate(now);
        pace.pacer.rate_changed(now, rate);
        self.held &= now < pace.ready_at(rate);
    }

    /// What its reaction point knew when it was last asked, with the rate that the QP's bounds leave of it. `None`: nobody decides how
    /// fast it sends.
    pub fn control_state(&self) -> Option<State> {
        let pace = self.pace.as_ref()?;
        let known = pace.control.as_ref().map(|control| control.state());
        let bare = State { rate: pace.line_rate, target: None, alpha: None, round_trip: None };
        let own = pace.last_rate();
        let rate = pace.share.as_ref().map_or(own, |share| Rate(own.0.min(share.rate().0)));
        Some(State { rate, ..known.unwrap_or(bare) })
    }

    /// Asks its reaction point what the rate is by now.
    pub fn evaluate_rate(&mut self, now: Nanos) {
        self.rate_changed(now);
    }

    /// True if its data waits for its time.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// When what it holds back may leave, or is to be looked at since the rate rises; `None`: it holds nothing back.
    pub fn held_until(&self) -> Option<Nanos> {
        let pace = self.pace.as_ref().filter(|_| self.held)?;
        // What rises above the limit is no reason to wake.
        let rises = |control: &dyn Control| pace.limit.is_none_or(|limit| control.state().rate < limit);
        let control = pace.control.as_deref().filter(|control| rises(*control));
        let rises_at = control.map_or(Nanos::MAX, |control| control.rises_at());
        let rate = pace.last_rate();
        let own = if pace.is_free(rate) { Nanos::ZERO } else { pace.pacer.ready_at().min(rises_at) };
        Some(own.max(pace.turn_at))
    }

    /// Time has passed: what was held back may leave, if it is its time.
    pub fn release(&mut self, now: Nanos) {
        if self.held {
            self.rate_changed(now);
        }
    }

    /// While data is held back: an acknowledgement or the result of an atomic.
    #[cold]
    pub(crate) fn next_unpaced(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        match self.qp_type {
            _ if !self.has_unpaced() => None,
            QpType::XrcRecv => self.next_extended(ctx),
            _ => self.next_reply(ctx),
        }
    }

    /// True if what would leave next does not wait for its time.
    pub(crate) fn has_unpaced(&self) -> bool {
        let may_pass =
            |reply: Reply| !matches!(reply, Reply::Read(_)) && !PlantedBug::AcknowledgementsArePaced.is();
        self.responder.replies.front().is_some_and(may_pass)
    }

    /// A packet has left.
    #[cold]
    pub(super) fn note_departure(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        let is_response = plan.origin == Origin::Reply;
        if !plan.carries_data() || (is_response && PlantedBug::ResponsesAreNotPaced.is()) {
            return;
        }
        let length = usize::from(plan.payload_len);
        let template = match plan.way {
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
            // Packets are far apart: that they leave is not the peer's silence.
            r.retransmit_at = r.retransmit_at.max(ctx.now + timeout);
        }
        // One at a time, and none that left twice: whose acknowledgement it would be is not known (Karn).
        if plan.bth.ack_req && pace.probe.is_none() && plan.is_first() && pace.measures() {
            pace.probe = Some((plan.bth.psn, ctx.now));
            pace.sampled = pace.sampled.or(Some(r.una));
        }
    }

    /// True if an acknowledgement is worth a packet of its own: packets of this QP are so far apart that its timer would not
    /// wait for those after it.
    #[cold]
    pub(super) fn asks_each_time(&self, ctx: &Ctx<'_>, bytes: u64) -> bool {
        let (Some(pace), Some(timeout)) = (&self.pace, self.attributes().ack_timeout()) else { return false };
        // Among those who share a rate, the turn after this one comes when all have had theirs.
        let turn = pace.share.as_ref().map_or(Nanos::ZERO, |share| share.ready_at().since(ctx.now));
        let next = pace.last_rate().nanos_for(bytes).max(turn.0 as f64);
        let apart = next * f64::from(ctx.limits.ack_request_interval);
        apart > timeout.0 as f64 / 2.0
    }

    /// Something new was acknowledged, by a packet that arrived at `ctx.out.arrived`.
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

    /// What is under way was lost, or the QP begins anew: nothing of it is measured.
    pub(super) fn forget_probe(&mut self) {
        if let Some(pace) = &mut self.pace {
            (pace.probe, pace.sampled) = (None, None);
        }
    }

    /// A notification of the peer's, which is a good one. `None`: nobody heeds it.
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
