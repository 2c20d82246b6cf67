//! Pacing: when a QP's next packet may be sent, and the inputs of its reaction point.
//!
//! Requests and READ responses wait for their time. ACKs and atomic responses are sent immediately: they are small, and
//! the peer's rate depends on them. A QP at line rate is not held back, because the link paces it.
//!
//! A data packet causes at most one notification. Therefore a QP handles only as many notifications as it has sent data
//! packets that may still be in flight, and none before the first. An attacker that forges notifications without seeing
//! the traffic cannot slow an idle QP at all, and any other no more than a switch could. In a deep incast,
//! notifications arrive faster than data is sent: each reports the queue that earlier data has met.

use super::door;
use super::verdict::RateChange;
use crate::congestion::{Control, Pacer, Rate, Sample, Settings, SharedRate, State};
use crate::verbs::{QpAttributes, RateLimit};
use roxie_base::time::Nanos;
use roxie_wire::Psn;

/// A QP's pacing. Off, it costs a test of a pointer.
#[derive(Debug, Default)]
pub struct Pacing {
    /// The reaction point and the pacer, if the QP's rate is controlled.
    pace: Option<Box<Pace>>,
    /// True while data waits for the pacer.
    held: bool,
}

/// State of a paced QP.
#[derive(Debug)]
struct Pace {
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

/// A sent data packet, as the pacer sees it.
pub(super) struct Departure {
    /// Bytes of its frame.
    pub bytes: u64,
    pub is_response: bool,
    /// The QP has nothing more to send.
    pub is_last: bool,
    /// PSN of the packet, and of the oldest unacknowledged one, if the packet can measure a round trip.
    pub probe: Option<(Psn, Psn)>,
}

/// What an acknowledgement says.
pub(super) struct Arrival {
    /// The oldest PSN that is not acknowledged.
    pub una: Psn,
    /// Packets that are sent and not acknowledged.
    pub under_way: u32,
    /// Bytes of a full packet.
    pub mtu: u64,
    /// Packets are being sent again: acknowledgements are ambiguous.
    pub is_going_back: bool,
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
    fn new(line_rate: Rate) -> Pace {
        Pace {
            control: None,
            limit: None,
            line_rate,
            pacer: Pacer::new(),
            share: None,
            turn_at: Nanos::ZERO,
            idle: true,
            unnotified: Unnotified::default(),
            probe: None,
            sampled: None,
        }
    }

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

impl Pacing {
    /// True if the QP's rate is controlled.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.pace.is_some()
    }

    /// True while data waits for the pacer.
    #[inline]
    pub fn holds(&self) -> bool {
        self.held
    }

    /// True if the reaction point measures round trips.
    pub fn is_delay_based(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.measures())
    }

    /// Asserts the part's invariant.
    #[inline(always)]
    pub(super) fn assert_invariants(&self, attributes: &QpAttributes) {
        invariant!(self.is_on() || !self.held, "data of a QP without a rate is held back");
        let RateLimit { max_burst, typical_packet, .. } = attributes.rate_limit.unwrap_or_default();
        let is_bounded =
            self.pace.as_ref().is_none_or(|pace| pace.pacer.is_bounded(max_burst, typical_packet));
        invariant!(is_bounded, "bursts exceed {max_burst} bytes, or a packet of {typical_packet}");
    }

    /// Installs the reaction point `control` and evaluates the rate. A reaction point of the same kind keeps its rate.
    /// The QP's own attributes and `share`, the rate shared with other QPs, limit the rate further. At `line_rate`, the
    /// port's, or above, the QP is not held back.
    pub(super) fn set(
        &mut self,
        now: Nanos,
        control: &Settings,
        line_rate: Rate,
        share: Option<&SharedRate>,
        attributes: &QpAttributes,
    ) {
        let limit = limit_of(attributes);
        let (held, bursts) = door::pacing(self.held, attributes.rate_limit.unwrap_or_default());
        if *control == Settings::Off && limit.is_none() && share.is_none() {
            *self = Pacing { pace: None, held };
            return;
        }
        let pace = self.pace.get_or_insert_with(|| Box::new(Pace::new(line_rate)));
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
        let is_adjusted =
            same_line && pace.control.as_mut().is_some_and(|is_adjusted| is_adjusted.set(now, control));
        if !is_adjusted {
            pace.control = control.control(line_rate, now);
        }
        pace.pacer.set_burst(bursts.max_burst, bursts.typical_packet);
        self.evaluate(now);
    }

    /// Evaluates the current rate, and releases held data if its time has come.
    pub fn evaluate(&mut self, now: Nanos) {
        let Some(pace) = &mut self.pace else { return };
        if pace.idle {
            pace.pacer.was_idle(now);
        }
        let rate = pace.rate(now);
        pace.pacer.rate_changed(now, rate);
        self.held &= now < pace.ready_at(rate);
    }

    /// Releases held data if its time has come.
    pub fn release(&mut self, now: Nanos) {
        if self.held {
            self.evaluate(now);
        }
    }

    /// Returns the reaction point's state as of the last evaluation, with the rate that the limits leave. `None`: the
    /// QP's rate is not controlled.
    pub fn state(&self) -> Option<State> {
        let pace = self.pace.as_ref()?;
        let known = pace.control.as_ref().map(|control| control.state());
        let bare = State { rate: pace.line_rate, target: None, alpha: None, round_trip: None };
        let own = pace.last_rate();
        let rate = pace.share.as_ref().map_or(own, |share| Rate(own.0.min(share.rate().0)));
        Some(State { rate, ..known.unwrap_or(bare) })
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

    /// True if packets of `bytes` bytes are so far apart that `count` of them take longer than half of `timeout`.
    #[cold]
    pub(super) fn exceeds_timeout(&self, now: Nanos, bytes: u64, count: u32, timeout: Nanos) -> bool {
        let Some(pace) = &self.pace else { return false };
        // With a shared rate, the next turn comes after the other QPs' turns.
        let turn = pace.share.as_ref().map_or(Nanos::ZERO, |share| share.ready_at().since(now));
        let next = pace.last_rate().nanos_for(bytes).max(turn.0 as f64);
        next * f64::from(count) > timeout.0 as f64 / 2.0
    }

    /// Charges a sent packet.
    pub(super) fn sent(&mut self, now: Nanos, departure: &Departure) {
        let Some(pace) = &mut self.pace else { return };
        let bytes = departure.bytes;
        pace.unnotified.sent(departure.is_response);
        if let Some(control) = &mut pace.control {
            control.sent(now, bytes);
        }
        let rate = pace.rate(now);
        if !pace.is_free(rate) {
            if std::mem::replace(&mut pace.idle, departure.is_last) {
                pace.pacer.was_idle(now);
            }
            pace.pacer.sent(now, bytes, rate);
            self.held = now < pace.pacer.ready_at();
        } else {
            pace.idle = true;
        }
        if let Some(share) = &pace.share {
            pace.turn_at = share.sent(now, bytes);
            self.held |= now < pace.turn_at;
        }
        // One probe at a time.
        if let Some((psn, una)) = departure.probe
            && pace.probe.is_none()
            && pace.measures()
        {
            pace.probe = Some((psn, now));
            pace.sampled = pace.sampled.or(Some(una));
        }
    }

    /// Handles an acknowledgement in a packet that arrived at `arrived`: completes the round trip measurement.
    pub(super) fn acknowledged(&mut self, now: Nanos, arrived: Nanos, arrival: &Arrival) {
        let Some(pace) = &mut self.pace else { return };
        pace.unnotified.acknowledged(arrival.under_way);
        let Some((psn, sent_at)) = pace.probe else { return };
        if !psn.is_before(arrival.una) {
            return;
        }
        pace.probe = None;
        let packets =
            pace.sampled.replace(arrival.una).map_or(0, |before| (arrival.una - before.value()).value());
        if arrival.is_going_back {
            return;
        }
        let sample = Sample { round_trip: arrived.since(sent_at), bytes: u64::from(packets) * arrival.mtu };
        if let Some(control) = &mut pace.control
            && control.acknowledged(now, sample)
        {
            self.evaluate(now);
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
        self.evaluate(now);
        Some(RateChange { from, to: state.rate.0 as u64, alpha })
    }
}

/// Returns the smaller of a QP's rate limit and its path's static rate.
fn limit_of(attributes: &QpAttributes) -> Option<Rate> {
    let own = attributes.rate_limit.map(|limit| limit.kbps).filter(|kbps| *kbps > 0);
    //= IBTA 9.11: static-rate-is-kept
    let of_path = attributes.av.and_then(|av| av.static_rate_kbps());
    own.into_iter().chain(of_path).min().map(|kbps| Rate(f64::from(kbps) * 1e3))
}
