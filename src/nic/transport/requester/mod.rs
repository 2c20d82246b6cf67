//! The requester: sends work requests as request packets, and handles what answers them (IBTA 9.7.2, 9.7.5, 9.7.6).
//!
//! Each method is given the QP's context. The requester changes nothing of the QP but its own state: once a work
//! request has failed (`Sending::Ended`), [`Qp`](super::Qp) enters the error state.
//!
//! * `window`: the send queue and the position in it. `requests`: the next packet. `ack_requests`: which packets ask
//!   for an acknowledgement. `probe_test`: whether the peer answers probes. `credits`: end-to-end credits.
//!   `local`: work requests that send no packet.
//!   `unacknowledged`: UC, datagrams and raw packets.
//! * `completer`: responses. `completion`: the oldest work request completes or fails.
//! * `retry`: timer and retry counters. `retransmission`: what they cause. `selective`: selective repeat.
//! * `fast_path`: first transmissions of SENDs and WRITEs, and READ responses in order.

mod ack_requests;
mod completer;
mod completion;
mod credits;
pub(crate) mod fast_path;
mod local;
mod probe_test;
mod requests;
mod retransmission;
mod retry;
mod selective;
mod unacknowledged;
mod window;

pub use retransmission::Awaits;

#[cfg(feature = "planted-bugs")]
use super::Cause;
use super::pacing::{Departure, Pacing};
use super::send_queue::SendQueue;
use super::{Origin, QpConfig, QpContext, TxPlan, Verdict};
use crate::congestion::{Rate, Settings, SharedRate};
use crate::verbs::{QpAttr, QpState, QpType, WcStatus};
use ack_requests::AckRequests;
use credits::Credits;
use retry::Retry;
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Gid, Operation, Packet, Psn};
use selective::Scoreboard;
use window::SendWindow;

/// State of the send queue: whether its work requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Work requests are sent, as far as windows and limits allow.
    Open,
    /// The peer has no receive. Nothing is sent until then (RNR NAK).
    RnrWait(Nanos),
    /// The work request at `next` cannot be sent. It fails with this status once it is the oldest.
    Failed(WcStatus),
    /// The oldest work request has failed. The QP is to enter an error state.
    Ended,
    /// Work requests before this position were queued when the error state was left. They are flushed before another is
    /// sent.
    Flushing(u32),
}

impl Sending {
    /// True while the peer has no receive.
    fn waits(self) -> bool {
        matches!(self, Sending::RnrWait(_))
    }

    /// Returns the status of the work request that cannot be sent, if there is one.
    fn failure(self) -> Option<WcStatus> {
        if let Sending::Failed(status) = self { Some(status) } else { None }
    }

    /// Ends an RNR wait.
    fn end_wait(&mut self) {
        if self.waits() {
            *self = Sending::Open;
        }
    }

    /// Forgets that the work request at `next` cannot be sent, because the position moves. If it still cannot, this is
    /// noticed again.
    fn forget_failure(&mut self) {
        if self.failure().is_some() {
            *self = Sending::Open;
        }
    }
}

/// State of the requester.
#[derive(Debug)]
pub(super) struct Requester {
    window: SendWindow,
    ack_requests: AckRequests,
    /// Selective repeat, if agreed with the peer.
    scoreboard: Option<Box<Scoreboard>>,
    retry: Retry,
    /// Whether work requests are sent.
    sending: Sending,
    /// The oldest unacknowledged PSN when a work request failed, or was flushed, for the first time since the QP was
    /// made or reset.
    failed_at: Option<Psn>,
    credits: Credits,
    /// Local GID of the last datagram sent to a multicast group.
    group_source: Option<Gid>,
    /// Congestion control and pacing.
    pacing: Pacing,
}

impl Requester {
    /// Bytes that selective repeat takes.
    pub(super) const SELECTIVE_REPEAT: usize = size_of::<Scoreboard>();

    /// `queue`: the NIC's copy of the send queue.
    pub(super) fn new(config: &QpConfig, queue: SendQueue) -> Requester {
        let has_addresses = config.init.qp_type.is_datagram() || config.init.qp_type.is_extended();
        let queue = queue.with_addresses(has_addresses);
        let is_special = config.profile.is_some_and(|profile| profile.packets.differs_in_requests());
        Requester::with(SendWindow::new(if is_special { queue.without_fast_path() } else { queue }))
    }

    fn with(window: SendWindow) -> Requester {
        Requester {
            window,
            ack_requests: AckRequests::default(),
            scoreboard: None,
            retry: Retry::new(),
            sending: Sending::Open,
            failed_at: None,
            credits: Credits::default(),
            group_source: None,
            pacing: Pacing::default(),
        }
    }

    /// Removes all work requests and resets the state.
    pub(super) fn reset(&mut self) {
        let mut queue = self.take_queue();
        queue.reset();
        *self = Requester::with(SendWindow::new(queue));
    }

    /// Applies attributes, of which `attr` are new.
    pub(super) fn configure(&mut self, qp: &QpContext, now: Nanos, attr: &QpAttr) {
        let attributes = qp.attributes();
        //= IBTA 9.7.1: psn-begins-as-agreed
        if let Some(psn) = attr.sq_psn {
            self.window.start(psn);
            self.ack_requests.start(psn);
        }
        if attr.selective_repeat.is_some() {
            self.scoreboard = attributes.selective_repeat.then(|| Box::new(Scoreboard::new()));
        }
        self.set_timeout(attributes.ack_timeout());
        // Selective repeat has a timer of its own.
        let timer = qp.profile.and_then(|profile| profile.ack_timer.as_ref());
        self.retry.run_as(timer.filter(|_| self.scoreboard.is_none()), attributes, qp.qpn.value().into());
        if attr.timeout.is_some() && !self.window.is_idle() {
            self.retry.stop();
            self.retry.start(now, Nanos::MAX);
        }
        self.configure_ack_requests(qp, attr);
        self.retry.restore(attributes);
    }

    /// Gives up sending: no queued work request is sent, and nothing that was sent is waited for.
    pub(super) fn abandon(&mut self) {
        self.window.abandon();
        self.retry.stop();
        self.sending = Sending::Open;
        self.ack_requests.abandon();
    }

    /// Moves the position back to `psn`.
    fn rewind_to(&mut self, psn: Psn) {
        self.window.rewind_to(psn);
        self.ack_requests.rewound();
    }

    /// Moves the position to the next packet to send again, or to the first one never sent, with selective repeat.
    fn skip_received(&mut self) {
        let Some(board) = &mut self.scoreboard else { return };
        let Some(to) = board.next_position(&self.window) else { return };
        self.sending.forget_failure();
        self.rewind_to(to);
        if let Some(board) = &mut self.scoreboard
            && to.is_before(self.window.sent_end())
            && board.requests_whole(&self.window)
        {
            self.window.restart_message();
        }
    }

    /// Notes that `count` packets from `psn` on were sent again.
    fn sent_again(&mut self, now: Nanos, psn: Psn, count: u32) {
        if let Some(board) = &mut self.scoreboard {
            board.rebase(self.window.una());
            board.sent_again(now, psn, count, self.window.sent_end());
            self.skip_received();
        }
    }

    /// Returns the oldest unacknowledged PSN at the first failure or flush.
    pub(super) fn failed_at(&self) -> Option<Psn> {
        self.failed_at
    }

    /// Sets the time after which silence is a loss. `longest`: the local ACK timeout.
    fn set_timeout(&mut self, longest: Option<Nanos>) {
        let patience = |longest: Nanos| {
            self.scoreboard.as_ref().map_or(longest, |board| longest.min(board.patience(longest)))
        };
        self.retry.set_timeout(longest.map(patience));
    }

    /// Handles progress after a loss. `longest`: the local ACK timeout.
    #[cold]
    fn note_progress(&mut self, now: Nanos, longest: Option<Nanos>) {
        if let Some(board) = &mut self.scoreboard {
            board.note_progress(now, self.window.una());
            self.set_timeout(longest);
        }
        self.retry.run_again();
        if self.window.is_idle() {
            self.retry.end();
        }
    }

    /// True if responses came early, or answers that tell of missing ones.
    pub(super) fn has_early_responses(&self) -> bool {
        self.scoreboard.as_ref().is_some_and(|board| board.has_early_responses())
    }

    /// Takes back an early response, because its copy failed: it is judged when it is due. Returns `None` if the packet
    /// is no such response.
    pub(super) fn take_back_response(&mut self, packet: &Packet) -> Option<Verdict> {
        let (una, psn) = (self.window.una(), packet.bth.psn);
        let is_early = packet.info().operation == Operation::ReadResponse && una.is_before(psn);
        self.scoreboard.as_mut().filter(|_| is_early)?.take_back_response(psn);
        Some(Verdict::Early { expected: una, is_placed: false })
    }

    /// Decides whether unsignaled messages ask for an acknowledgement. Selective repeat, credits and pacing learn from
    /// acknowledgements, without a timeout nothing repeats a probe, and a probe of XRC would have to name a queue.
    fn configure_ack_requests(&mut self, qp: &QpContext, attr: &QpAttr) {
        self.ack_requests.end_peer_probe();
        if self.ack_requests.end_test() {
            self.retry.stop();
        }
        if attr.state == Some(QpState::Rtr) || attr.av.is_some() {
            // Of a peer on the old path, which may not answer, those ask that have not.
            self.request_each_ack();
            self.ack_requests.meet_peer(qp.ack_requests);
        }
        let may_be_late = qp.qp_type == QpType::Rc
            && self.retry.timeout().is_some()
            && self.scoreboard.is_none()
            && !qp.attributes().end_to_end_credits
            && !self.pacing.is_on();
        if may_be_late {
            self.ack_requests.request_late();
        } else {
            self.request_each_ack();
        }
    }

    /// Has every message ask from now on. For those that did not, a probe asks immediately.
    fn request_each_ack(&mut self) {
        let ends_test = self.ack_requests.end_test();
        if self.ack_requests.request_each_time(&self.window, self.sending.waits()) || ends_test {
            self.retry.stop();
        }
    }

    /// Has the next packet ask for an acknowledgement, a probe if there is no other.
    pub(super) fn request_ack(&mut self, limits: &Limits) {
        self.ack_requests.request(&self.window, self.sending.waits(), limits);
    }

    /// Has the peer show that it still has the connection: see [`AckRequests::probe_peer`].
    pub(super) fn probe_peer(&mut self, qp: &QpContext) -> bool {
        self.ack_requests.probe_peer(qp)
    }

    /// True if a probe of the peer is due.
    pub(super) fn peer_probe_due(&self) -> bool {
        self.ack_requests.peer_probe_due()
    }

    /// Advances the state past the question to the peer, which is sent.
    pub(super) fn peer_probe_sent(&mut self, now: Nanos) {
        self.ack_requests.peer_probe_sent(now, &mut self.retry);
    }

    /// Returns the PSN of the next packet, a first transmission or not.
    pub(super) fn position(&self) -> Psn {
        self.window.position()
    }

    /// True if the peer owes no acknowledgement: the timer is a probe's.
    pub(super) fn is_quiet(&self) -> bool {
        self.ack_requests.is_quiet(self.window.una())
    }

    /// Starts the timer of a retransmission, or, if the peer owes nothing, of a probe.
    fn start_timer(&mut self, now: Nanos) {
        self.retry.start(now, if self.is_quiet() { ack_requests::QUIET } else { Nanos::MAX });
    }

    /// Takes the memory of the send queue. The requester must not be used afterwards.
    pub(super) fn take_queue(&mut self) -> SendQueue {
        std::mem::take(self.window.queue_mut())
    }

    /// Returns the send queue, and how far it is sent.
    pub(super) fn window(&self) -> &SendWindow {
        &self.window
    }

    /// Returns the send queue, for a new work request.
    pub(super) fn queue_mut(&mut self) -> &mut SendQueue {
        self.window.queue_mut()
    }

    /// Installs a reaction point: see [`Pacing::set`].
    pub(super) fn set_control(
        &mut self,
        qp: &QpContext,
        now: Nanos,
        control: &Settings,
        line_rate: Rate,
        share: Option<&SharedRate>,
    ) {
        self.pacing.set(now, control, line_rate, share, qp.attributes());
        if self.pacing.is_on() {
            self.request_each_ack();
        }
    }

    /// Charges a sent packet of `bytes` bytes to the pacer. `is_last`: the QP has nothing more to send.
    #[cold]
    pub(super) fn charge(&mut self, now: Nanos, plan: &TxPlan, bytes: u64, is_last: bool) {
        let is_request = plan.origin == Origin::Request;
        // A retransmitted packet measures nothing, because its acknowledgement is ambiguous (Karn).
        let measures = is_request && plan.bth.ack_req && plan.is_first();
        let is_response = plan.origin == Origin::Reply;
        let probe = measures.then_some((plan.bth.psn, self.window.una()));
        self.pacing.sent(now, &Departure { bytes, is_response, is_last, probe });
        if is_request {
            // Packets are sent far apart: the timeout counts from the last one.
            self.retry.postpone(now);
        }
    }

    /// True if a work request is waiting and neither failed nor blocked by the QP's state or an RNR wait.
    pub(super) fn may_send_requests(&self, qp: &QpContext) -> bool {
        self.window.has_next()
            && self.sending == Sending::Open
            && match qp.state() {
                QpState::Rts => true,
                // In SQD, started work requests are finished, and no new one is started.
                //= IBTA 10.3.1.5: sqd-finishes-what-has-begun
                QpState::Sqd => self.window.next_wqe().started,
                _ => false,
            }
    }

    /// Returns the QP's pacing.
    pub(super) fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// Returns the QP's pacing, to change it.
    pub(super) fn pacing_mut(&mut self) -> &mut Pacing {
        &mut self.pacing
    }

    /// Returns the local GID of the last datagram sent to a multicast group.
    pub(super) fn group_source(&self) -> Option<Gid> {
        self.group_source
    }

    /// True if the oldest work request has failed, and the QP is to enter an error state.
    pub(super) fn has_ended(&self) -> bool {
        self.sending == Sending::Ended
    }

    /// Asserts the part's invariants.
    pub(super) fn assert_invariants(&self, qp: &QpContext) {
        let sends = matches!(qp.state(), QpState::Rts | QpState::Sqd);
        self.window.assert_invariants(sends && qp.qp_type.is_reliable_requester());
        let begins = self.window.has_next() && matches!(self.sending, Sending::Failed(_));
        invariant!(begins || self.sending.failure().is_none(), "no work request is left that cannot be sent");
        let has_failed = self.has_ended() && matches!(qp.state(), QpState::Rts | QpState::Sqd);
        invariant!(!has_failed, "a work request has failed, and the QP is in {:?}", qp.state());
        let tests = self.ack_requests.is_testing();
        let may_test = self.window.is_idle() && self.ack_requests.may_be_late();
        invariant!(!tests || may_test, "the peer is tested, and something is outstanding, or no use for it");
        self.pacing.assert_invariants(qp.attributes());
    }
}

/// What the door sees and changes.
#[cfg(feature = "planted-bugs")]
impl Requester {
    pub(super) fn is_in_rnr_wait(&self) -> bool {
        self.sending.waits()
    }

    pub(super) fn tests_peer(&self) -> bool {
        self.ack_requests.is_testing()
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.retry.cause()
    }

    pub(super) fn stop_timer(&mut self) {
        self.retry.stop();
    }
}
