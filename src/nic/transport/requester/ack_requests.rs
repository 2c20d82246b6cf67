//! Which packets ask for an acknowledgement (IBTA 9.7.3), and how long to wait for it.
//!
//! A message that no completion waits for does not ask. A later packet asks, or a probe once nothing has asked for a
//! while. The probe is a duplicate SEND without payload: it reads no memory of the application, and a responder needs
//! neither a receive nor a right for it.
//!
//! A probe has the PSN before the oldest unacknowledged one. A SEND or WRITE of this connection must have that PSN: a
//! READ or an atomic has a response of its own, and a responder has no rule for the PSN before the first. Therefore the
//! packet behind a READ or an atomic asks, and so does the first packet of a connection.

use super::probe_test::{self, ProbeTest};
use super::retry::Retry;
use super::window::SendWindow;
use crate::transport::{AckRequestPolicy, Origin, QpContext, TxPlan, TxReason, door};
use crate::verbs::{QpState, QpType, SendFlags};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, Ext, Opcode, Psn};

/// Time after which a probe asks for the acknowledgement of packets that did not: well below a local ACK timeout
/// (rdma_rxe's default: 67 ms).
pub(super) const QUIET: Nanos = Nanos(1_000_000);

/// Requests for acknowledgements: when packets ask, and how far the peer has been asked.
#[derive(Debug, Default)]
pub(super) struct AckRequests {
    /// Unsignaled messages do not ask for an acknowledgement at their end.
    is_late: bool,
    /// Unsignaled messages need not ask at their end, as far as the QP's attributes go.
    may_be_late: bool,
    /// An unsignaled message was acknowledged: to ask late is of use.
    has_unsignaled: bool,
    /// Whether the peer answers probes.
    test: ProbeTest,
    /// The first PSN of the connection.
    first: Psn,
    /// Number of packets since the last one that asked for an acknowledgement.
    since: u32,
    /// The PSN after the last packet that asked for an acknowledgement.
    requested_end: Psn,
    /// A probe may be sent once `una` is behind this PSN: that behind the last READ or atomic, or the first one of the
    /// connection.
    probe_after: Psn,
    /// A probe is to ask for an acknowledgement, unless another packet does before.
    probe_due: bool,
    /// A probe has asked last.
    awaits_probe: bool,
    /// The peer is to show that it still has the connection.
    peer_probe_due: bool,
}

impl AckRequests {
    /// Starts at `psn` with nothing outstanding.
    pub(super) fn start(&mut self, psn: Psn) {
        (self.first, self.requested_end, self.probe_after) = (psn, psn, psn);
    }

    /// Asks for nothing more.
    pub(super) fn abandon(&mut self) {
        (self.is_late, self.probe_due, self.peer_probe_due) = (false, false, false);
        (self.may_be_late, self.awaits_probe) = (false, false);
        self.test.interrupt();
    }

    /// Begins with a peer of which nothing is known.
    pub(super) fn meet_peer(&mut self, policy: AckRequestPolicy) {
        self.test = ProbeTest::begin(policy);
        self.awaits_probe = false;
    }

    /// Has unsignaled messages not ask for an acknowledgement, as soon as the peer is known to answer probes.
    pub(super) fn request_late(&mut self) {
        self.may_be_late = true;
        self.is_late = self.test.has_passed();
    }

    /// Has every message ask from now on. For those that did not, a probe asks immediately: then returns true.
    pub(super) fn request_each_time(&mut self, window: &SendWindow, waits: bool) -> bool {
        let is_due = self.may_request(window, waits);
        self.probe_due |= is_due;
        (self.is_late, self.may_be_late) = (false, false);
        is_due
    }

    /// Notes that an unsignaled message was acknowledged.
    #[inline(always)]
    pub(super) fn note_unsignaled(&mut self) {
        self.has_unsignaled = true;
    }

    /// True if a test of the peer is of use, now that nothing is outstanding.
    #[inline(always)]
    pub(super) fn may_test(&self, una: Psn) -> bool {
        self.test.is_open() && self.may_be_late && self.has_unsignaled && self.may_probe(una)
    }

    /// True if unsignaled messages need not ask at their end, as far as the QP's attributes go.
    pub(super) fn may_be_late(&self) -> bool {
        self.may_be_late
    }

    /// True if the timer is that of the test of the peer, or the test is due.
    pub(super) fn is_testing(&self) -> bool {
        self.test.is_under_way()
    }

    /// Tests after a rest whether the peer answers probes. Nothing is outstanding.
    #[cold]
    pub(super) fn begin_test(&mut self, now: Nanos, timer: &mut Retry) {
        self.test.rest();
        timer.start(now, probe_test::REST);
    }

    /// Ends the test, before a request leaves or the QP changes. True if the timer was the test's.
    #[inline(always)]
    pub(super) fn end_test(&mut self) -> bool {
        let is_testing = self.is_testing();
        if is_testing {
            self.test.interrupt();
        }
        is_testing
    }

    /// Handles an expired timer while nothing is outstanding: that of the test.
    #[cold]
    pub(super) fn test_expired(&mut self, now: Nanos, timer: &mut Retry) {
        let rests = self.test.expire();
        rest_or_stop(now, timer, rests);
    }

    /// Handles an answer that acknowledges nothing new. `is_ack`: it is an ACK.
    #[cold]
    pub(super) fn note_old_answer(&mut self, now: Nanos, is_ack: bool, timer: &mut Retry) {
        self.probe_answered();
        if self.test.awaits_answer() {
            let rests = if is_ack { self.test.answer() } else { self.test.refuse() };
            self.is_late = self.may_be_late && self.test.has_passed();
            rest_or_stop(now, timer, rests);
        }
    }

    /// Has every message ask, if the peer owes the answer to a probe. Returns false if it does not.
    pub(super) fn give_up_probes(&mut self, window: &SendWindow) -> bool {
        let is_unanswered = self.awaits_probe && !window.is_idle();
        if is_unanswered {
            self.test.give_up();
            (self.is_late, self.awaits_probe) = (false, false);
        }
        is_unanswered
    }

    /// True if the last packet of a message asks for an acknowledgement when it is first sent: the application waits
    /// for a completion.
    pub(super) fn at_end_of(&self, sig_all: bool, flags: SendFlags) -> bool {
        sig_all || flags.contains(SendFlags::SIGNALED) || !self.is_late
    }

    /// Returns the first PSN of the connection.
    pub(super) fn first(&self) -> Psn {
        self.first
    }

    /// True if the packet with this PSN asks for an acknowledgement. `ends`: it is the last one of its message.
    /// `wants`: the message asks, or has a response.
    //= IBTA 9.7.3: ack-is-asked-for
    #[inline(always)]
    pub(super) fn in_packet(
        &self,
        psn: Psn,
        ends: bool,
        wants: bool,
        in_flight: u32,
        limits: &Limits,
    ) -> bool {
        let window_closes = in_flight + 1 >= limits.window;
        let late = self.since + 1 >= limits.ack_request_interval;
        let allows_probe = !wants && psn == self.probe_after;
        (ends && wants) || window_closes || late || allows_probe
    }

    /// Advances over a packet that is sent. `end`: the PSN behind it. `answers`: it is a request for a READ or an
    /// atomic.
    #[inline(always)]
    pub(super) fn packet_sent(&mut self, asks: bool, end: Psn, answers: bool) {
        if door::bars_probe(answers) && self.probe_after.is_before(end) {
            self.probe_after = end;
        }
        self.since = if asks { 0 } else { self.since + 1 };
        if asks && self.requested_end.is_before(end) {
            self.requested_end = end;
            self.awaits_probe = false;
        }
    }

    /// Notes that the position moves back: what is sent next counts from there.
    pub(super) fn rewound(&mut self) {
        self.since = 0;
    }

    /// Notes that what has asked may be lost.
    pub(super) fn forget(&mut self, una: Psn) {
        self.requested_end = una;
        self.awaits_probe = false;
    }

    /// Notes that the peer has acknowledged what it has: it owes no answer to a probe.
    #[inline(always)]
    pub(super) fn probe_answered(&mut self) {
        self.awaits_probe = false;
    }

    /// True if the peer owes no acknowledgement, because no packet has asked for one: the timer is a probe's.
    pub(super) fn is_quiet(&self, una: Psn) -> bool {
        self.is_late && !una.is_before(self.requested_end) && self.may_probe(una)
    }

    /// True if the PSN before the oldest unacknowledged one belongs to a SEND or WRITE of this connection.
    fn may_probe(&self, una: Psn) -> bool {
        self.probe_after.is_before(una)
    }

    /// Advances to `una`, and keeps `probe_after` so near to it that the order of the two is known.
    #[inline(always)]
    pub(super) fn advance(&mut self, una: Psn) {
        self.probe_answered();
        if self.may_probe(una) {
            self.probe_after = una - 1;
        }
    }

    /// True if packets are outstanding, none has asked for an acknowledgement, and a probe may. In an RNR wait
    /// (`waits`), the peer has answered, and packets will be sent again.
    fn is_unasked(&self, window: &SendWindow, waits: bool) -> bool {
        let una = window.una();
        !window.is_idle() && !una.is_before(self.requested_end) && self.may_probe(una) && !waits
    }

    /// True if unsignaled packets are outstanding, and neither a packet nor a probe that is due asks for their
    /// acknowledgement.
    pub(super) fn may_request(&self, window: &SendWindow, waits: bool) -> bool {
        self.is_late && !self.probe_due && self.is_unasked(window, waits)
    }

    /// Has the next packet ask for an acknowledgement, a probe if there is no other. Does nothing if the peer owes one,
    /// or nothing is outstanding.
    pub(super) fn request(&mut self, window: &SendWindow, waits: bool, limits: &Limits) {
        if self.may_request(window, waits) {
            self.since = limits.ack_request_interval;
            self.probe_due = true;
        }
    }

    /// True if a probe is due, unless another packet asks in its place.
    pub(super) fn is_probe_due(&self) -> bool {
        self.probe_due
    }

    /// Cancels the probe: packets are sent again.
    pub(super) fn cancel_probe(&mut self) {
        self.probe_due = false;
    }

    /// Plans the probe that is due, if no other packet has asked in its place: a SEND of no bytes with the PSN before
    /// the oldest unacknowledged one. The peer takes it for a duplicate, and acknowledges what it has (IBTA 9.7.5.1.2).
    pub(super) fn due_probe(&mut self, qp: &QpContext, window: &SendWindow, waits: bool) -> Option<TxPlan> {
        self.probe_due = self.probe_due && self.is_unasked(window, waits);
        self.probe_due.then(|| empty_send(qp, window.una() - 1, TxReason::Probe, Origin::Probe))
    }

    /// Advances over a probe, which is sent. `sent_end`: the PSN behind all that was sent.
    pub(super) fn probe_sent(&mut self, sent_end: Psn) {
        (self.probe_due, self.awaits_probe) = (false, true);
        self.since = 0;
        self.requested_end = sent_end;
    }

    /// Has the QP ask whether the peer still has the connection, as soon as no request is ready to be sent. Returns
    /// false if the QP cannot. A change of the QP's attributes or state takes the question back.
    ///
    /// The NIC asks on behalf of a connection manager that has received a request for a new connection of the peer's
    /// QP. The question changes neither PSNs nor timers nor retries, and costs no completion. Only RC requesters ask:
    /// XRC requesters would have to name a queue, and UC has no acknowledgements.
    pub(super) fn probe_peer(&mut self, qp: &QpContext) -> bool {
        self.peer_probe_due = qp.qp_type == QpType::Rc && qp.state() == QpState::Rts;
        self.peer_probe_due
    }

    /// True if a question to the peer is due: a probe of its connection, or the test.
    pub(super) fn peer_probe_due(&self) -> bool {
        self.peer_probe_due || self.test.is_due()
    }

    /// Plans the question that is due: as a probe, whatever had the PSN before the oldest unacknowledged one, or the
    /// first of the connection.
    pub(super) fn plan_peer_probe(&self, qp: &QpContext, una: Psn) -> Option<TxPlan> {
        let reason = if self.peer_probe_due { TxReason::PeerProbe } else { TxReason::ProbeTest };
        self.peer_probe_due().then(|| empty_send(qp, una - 1, reason, Origin::PeerProbe))
    }

    /// Takes the question back.
    pub(super) fn end_peer_probe(&mut self) {
        self.peer_probe_due = false;
    }

    /// Advances over the question, which is sent.
    pub(super) fn peer_probe_sent(&mut self, now: Nanos, timer: &mut Retry) {
        self.peer_probe_due = false;
        if self.test.is_due() {
            self.test.sent();
            // What is sent behind a later probe needs the rest of the time.
            timer.start(now, timer.timeout().map_or(Nanos::MAX, |timeout| Nanos(timeout.0 / 4)));
        }
    }
}

fn rest_or_stop(now: Nanos, timer: &mut Retry, rests: bool) {
    timer.stop();
    if rests {
        timer.start(now, probe_test::REST);
    }
}

/// Plans a SEND of no bytes that asks for an acknowledgement.
fn empty_send(qp: &QpContext, psn: Psn, reason: TxReason, origin: Origin) -> TxPlan {
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, ack_req: true, psn, ..qp.request_bth() };
    TxPlan { bth, ext: Ext::None, payload_len: 0, inline: None, ah: None, reason, origin }
}
