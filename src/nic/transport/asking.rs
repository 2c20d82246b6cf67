//! Which packets ask for an acknowledgement (IBTA 9.7.3), and how long to wait for it.
//!
//! A message that no completion waits for does not ask. A later packet asks, or a probe once nothing has asked for a while. The probe is a
//! duplicate SEND without payload: it reads no memory of the application, and a responder needs neither a receive nor a right for it.
//!
//! A probe has the PSN before the oldest unacknowledged one. A SEND or WRITE of this connection must have that PSN: a READ or an atomic has
//! a response of its own, and a responder has no rule for the PSN before the first. Therefore the packet behind a READ or an atomic asks, and
//! so does the first packet of a connection.

use super::planted::PlantedBug;
use super::requester::{Requester, Sending};
use super::{Ctx, Origin, TxPlan, TxReason};
use crate::verbs::{QpAttributes, QpType, SendFlags};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, Ext, Opcode, Psn};

/// Time after which a probe asks for the acknowledgement of packets that did not: well below a local ACK timeout (rdma_rxe's default: 67 ms).
const QUIET: Nanos = Nanos(1_000_000);

impl Requester {
    /// Decides whether unsignaled messages ask for an acknowledgement. Selective repeat, credits and pacing learn from acknowledgements,
    /// without a timeout nothing repeats a probe, and a probe of XRC would have to name a queue.
    pub(super) fn set_asking(&mut self, qp_type: QpType, attributes: &QpAttributes, is_paced: bool) {
        self.asks_peer = false;
        let asks_late = qp_type == QpType::Rc
            && self.ack_timeout.is_some()
            && self.scoreboard.is_none()
            && !attributes.end_to_end_credits
            && !is_paced;
        if asks_late {
            self.asks_late = true;
        } else {
            self.ask_each_time();
        }
    }

    /// Has every message ask from now on. For those that did not, a probe asks at once.
    pub(super) fn ask_each_time(&mut self) {
        if self.may_ask() {
            self.probe_due = true;
            self.retransmit_at = Nanos::MAX;
        }
        self.asks_late = false;
    }

    /// True if the last packet of a message asks for an acknowledgement when it is first sent: the application waits for a completion.
    #[inline(always)]
    pub(super) fn asks_at_its_end(&self, sig_all: bool, flags: SendFlags) -> bool {
        sig_all || flags.contains(SendFlags::SIGNALED) || !self.asks_late
    }

    /// True if the packet with this PSN asks for an acknowledgement. `ends`: it is the last one of its message. `wants`: the message asks, or
    /// has a response.
    //= IBTA 9.7.3: ack-is-asked-for
    #[inline(always)]
    pub(super) fn asks(&self, psn: Psn, ends: bool, wants: bool, in_flight: u32, limits: &Limits) -> bool {
        let window_closes = in_flight + 1 >= limits.window;
        let late = self.since_ack_request + 1 >= limits.ack_request_interval;
        let allows_probe = !wants && psn == self.probe_after && !PlantedBug::ProbesReads.is();
        (ends && wants) || window_closes || late || allows_probe
    }

    /// True if the peer owes no acknowledgement, because no packet has asked for one: the timer is that of a probe.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.asks_late && !self.una.is_before(self.asked) && self.may_probe()
    }

    /// True if the PSN before the oldest unacknowledged one is that of a SEND or WRITE of this connection.
    #[inline(always)]
    fn may_probe(&self) -> bool {
        self.probe_after.is_before(self.una) || PlantedBug::ProbesReads.is()
    }

    /// Keeps `probe_after` so near to `una` that the order of the two is known.
    #[inline(always)]
    pub(super) fn keep_probe_near(&mut self) {
        if self.may_probe() {
            self.probe_after = self.una - 1;
        }
    }

    /// Starts the timer: that of a retransmission, or if the peer owes nothing, that of a probe.
    #[inline(always)]
    pub(super) fn start_timer(&mut self, now: Nanos) {
        let Some(timeout) = self.ack_timeout else { return };
        self.retransmit_at = now + if self.is_quiet() { timeout.min(QUIET) } else { timeout };
    }

    /// True if packets are outstanding, none has asked for an acknowledgement, and a probe may. In an RNR wait, the peer has answered, and
    /// packets will be sent again.
    fn is_unasked(&self) -> bool {
        let waits = matches!(self.sending, Sending::RnrWait(_));
        self.una != self.sent_end && !self.una.is_before(self.asked) && self.may_probe() && !waits
    }

    /// True if unsignaled packets are outstanding, and neither a packet nor a probe that is due asks for their acknowledgement.
    pub(super) fn may_ask(&self) -> bool {
        self.asks_late && !self.probe_due && self.is_unasked()
    }

    /// Has the next packet ask for an acknowledgement, a probe if there is no other. Does nothing if the peer owes one, or nothing is
    /// outstanding.
    pub(super) fn ask(&mut self, limits: &Limits) {
        if self.may_ask() {
            self.since_ack_request = limits.ack_request_interval;
            self.probe_due = true;
        }
    }

    /// Asks for an acknowledgement if the timer of a probe has expired. Returns false if it was that of a retransmission.
    pub(super) fn ask_late(&mut self, limits: &Limits) -> bool {
        let is_quiet = self.is_quiet();
        if is_quiet {
            // The packet that asks starts the timer.
            self.retransmit_at = Nanos::MAX;
            self.ask(limits);
        }
        is_quiet
    }

    /// Returns the PSN of the probe that is due, if no other packet has asked in its place: that before the oldest unacknowledged one.
    pub(super) fn due_probe(&mut self) -> Option<Psn> {
        self.probe_due = std::mem::take(&mut self.probe_due) && self.is_unasked();
        self.probe_due.then(|| self.una - u32::from(!PlantedBug::ProbeIsExecuted.is()))
    }

    /// Advances the state past a probe, which is sent.
    #[cold]
    pub(super) fn probe_left(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.tail_probes += 1;
        self.probe_due = false;
        self.since_ack_request = 0;
        self.asked = self.sent_end;
        self.start_timer(ctx.now);
    }
}

/// Plans a probe, a SEND of no bytes. The peer takes it for a duplicate, and acknowledges what it has (IBTA 9.7.5.1.2).
pub(super) fn probe(bth: Bth) -> TxPlan {
    let (reason, origin) = (TxReason::Probe, Origin::Probe);
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, ack_req: true, ..bth };
    TxPlan { bth, ext: Ext::None, payload_len: 0, inline: None, ah: None, reason, origin }
}
