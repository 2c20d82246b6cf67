//! The queue pair: its state and attributes, and the dispatch of calls to requester, responder and services.

mod fast_path;
mod leaving;
mod memory_fault;
mod packets;

use std::ops::Deref;

use super::address::template_of;
use super::pacing::Pacing;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::turns::Turns;
use super::{Awaits, Ctx, DmaIn, Gather, Output, QpConfig, QpContext, TxPlan, Verdict, door};
use crate::congestion::{Rate, Settings, SharedRate};
use crate::shared::work_queue::FetchedSend;
use crate::verbs::{AddressVector, AsyncEvent, CqIndex, EventKind, QpAttr, QpState, QpType, SendWr, Sge};
use roxie_base::time::Nanos;
use roxie_wire::{Ends, Packet, Psn, Template, entropy_port, flow_port};

/// Memory of a QP for selective repeat, of both sides, in bytes.
const _: () = assert!(Requester::SELECTIVE_REPEAT + Responder::SELECTIVE_REPEAT <= 256);

/// Bytes of the network header that a datagram's receive begins with.
const GRH_LEN: u64 = 40;

/// ECN bits of a packet that switches may mark: ECT(0) (RFC 3168 5).
const ECT_0: u8 = 2;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    context: QpContext,
    template: Option<Template>,
    /// Peer's and local IPv4 address, as its packets carry them. `None` over IPv6.
    ends: Option<Ends>,
    /// 802.1Q tag of sent frames.
    tag: Option<u16>,
    requester: Requester,
    responder: Responder,
    established: bool,
    /// True for an RC QP in whose sequence nothing is missing, and that is not parked: the fast path may take its
    /// packets.
    fast: bool,
    parked: bool,
    drain_requested: bool,
    turns: Turns,
}

/// The context of a QP, to be read.
impl Deref for Qp {
    type Target = QpContext;

    fn deref(&self) -> &QpContext {
        &self.context
    }
}

impl Qp {
    /// Returns a QP in RESET. `queue` is the NIC's copy of its send queue.
    pub fn new(config: &QpConfig, queue: SendQueue) -> Qp {
        Qp {
            context: QpContext::new(config),
            template: None,
            ends: None,
            tag: None,
            requester: Requester::new(config, queue),
            responder: Responder::new(config),
            established: false,
            fast: config.init.qp_type == QpType::Rc,
            parked: false,
            drain_requested: false,
            turns: Turns::default(),
        }
    }

    /// Returns the completion queue for receives.
    pub fn recv_cq(&self) -> CqIndex {
        self.responder.recv_cq()
    }

    /// Returns the next PSNs: (to send, expected).
    pub fn psns(&self) -> (Psn, Psn) {
        let is_acknowledged = self.context.profile.is_some_and(|profile| profile.sq_psn_is_acknowledged);
        let failed_at =
            self.requester.failed_at().filter(|_| is_acknowledged && self.state() == QpState::Err);
        (failed_at.unwrap_or(self.requester.window().psn()), self.responder.expected())
    }

    /// Returns the prepared headers, once the QP has a path.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// Moves the QP to the error state after an external failure. Returns false if it was in RESET or ERR already.
    pub fn fail(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let in_use = !matches!(self.state(), QpState::Reset | QpState::Err);
        if in_use {
            self.enter_error(ctx);
        }
        in_use
    }

    /// Sets whether the QP waits for copies. Its packets then take the slow path, which sets them aside.
    pub fn set_parked(&mut self, parked: bool) {
        self.parked = parked;
        self.note_fast_path();
    }

    /// True if packets came early that are not passed yet.
    pub(crate) fn has_early(&self) -> bool {
        self.responder.has_early()
    }

    /// True for an RC QP to which nothing came early. `fast` remembers the answer.
    fn may_take_fast_path(&self) -> bool {
        self.qp_type == QpType::Rc
            && !self.parked
            && !self.responder.has_early()
            && !self.requester.has_early_responses()
    }

    /// Decides again whether the fast path may take received packets.
    fn note_fast_path(&mut self) {
        self.fast = self.may_take_fast_path();
    }

    /// Sets the attributes that verbs do not define.
    pub fn configure(&mut self, mig_req: bool, end_to_end_credits: bool) {
        self.context.configure(mig_req, end_to_end_credits);
    }

    fn reset(&mut self) {
        self.context.enter(QpState::Reset);
        let attributes = std::mem::take(self.context.attributes_mut());
        self.configure(attributes.mig_req, attributes.end_to_end_credits);
        (self.template, self.ends) = (None, None);
        //= IBTA 10.3.1.1: reset-forgets
        self.requester.reset();
        self.responder.reset();
        self.note_fast_path();
        self.established = false;
        self.drain_requested = false;
    }

    /// Stores the original value of an atomic that the DMA stage has executed for the peer.
    pub fn atomic_done(&mut self, resource: u8, before: u64) {
        self.responder.atomic_done(resource, before);
    }

    /// Drops the responses that have not left. A QP that has lost a write must not acknowledge it, whatever its state
    /// is.
    pub fn forget_replies(&mut self) {
        self.responder.forget_replies();
    }

    /// Drops the current receive without a completion, because its shared receive queue was destroyed.
    pub fn forget_receive(&mut self) {
        self.responder.forget_receive();
    }

    /// True if the NIC should fetch work requests in this state.
    pub fn takes_sends(&self) -> bool {
        //= IBTA 10.3.1.3: rtr-answers-and-does-not-ask
        matches!(self.state(), QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
    }

    /// Applies `change` to the path. Allowed in every state, because a host's MAC address may change at any time.
    pub fn readdress(&mut self, change: impl FnOnce(&mut AddressVector)) {
        if let Some(av) = &mut self.context.attributes_mut().av {
            change(av);
            self.rebuild_template();
        }
    }

    /// Sets or clears the 802.1Q tag of sent frames.
    pub fn set_tag(&mut self, tag: Option<u16>) {
        if std::mem::replace(&mut self.tag, tag) != tag {
            self.rebuild_template();
        }
    }

    fn rebuild_template(&mut self) {
        let with_ecn = |mut av: AddressVector| {
            if self.context.packets().is_ecn_capable {
                av.traffic_class = av.traffic_class & !3 | ECT_0;
            }
            av
        };
        self.template = self.attributes().av.map(|av| self.template_along(&with_ecn(av), self.tag));
        // The fast path takes only plain packets.
        let plain = self.attributes().av.filter(|av| av.encapsulation.is_plain());
        self.ends = plain.and_then(|av| Ends::of(&av.dgid, &av.sgid));
    }

    /// Returns the headers for a packet along path `av`. `tag` is the 802.1Q tag, if any.
    pub fn template_along(&self, av: &AddressVector, tag: Option<u16>) -> Template {
        // The UDP source port depends on the flow label, or on both QPNs (`rdma_get_udp_sport`, `ib_verbs.h`).
        let port = match av.flow_label {
            _ if self.context.packets().source_port_is_qpn => self.qpn.value() as u16,
            0 => entropy_port(self.qpn, self.attributes().dest_qpn),
            label => flow_port(label),
        };
        template_of(av, port, tag)
    }

    /// Applies attributes that `check_transition` has accepted, and changes to state `next`.
    pub fn modify(&mut self, ctx: &mut Ctx<'_>, attr: &QpAttr, next: QpState) {
        if next == QpState::Reset {
            self.reset();
            return;
        }
        self.context.apply(attr);
        self.requester.configure(&self.context, ctx.now, attr);
        self.responder.configure(&self.context, attr);
        self.note_fast_path();
        self.rebuild_template();
        if next == QpState::Err {
            self.enter_error(ctx);
        }
        let before = self.context.enter(next);
        if before == QpState::Sqe && next == QpState::Rts {
            self.requester.flush_queued();
        }
        if next != QpState::Sqd {
            self.drain_requested = false;
        } else {
            self.drain_requested |= attr.en_sqd_async_notify == Some(true);
            self.settle(ctx);
            self.requester.request_ack(ctx.limits);
        }
    }

    /// Moves the QP to the error state, and flushes the receive in progress. The NIC calls [`flush`](Self::flush) for
    /// all other work requests, in order, and for later ones. A pending NAK that refuses a request is still sent.
    fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.7: error-flushes-both-queues
        let before = self.context.enter(QpState::Err);
        self.requester.abandon();
        self.responder.abandon(&self.context, ctx);
        self.note_fast_path();
        if self.shares_receives && before != QpState::Err {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::LastWqeReached));
        }
    }

    /// Enters the error state if the responder has failed.
    #[inline(always)]
    fn after_request(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) -> Verdict {
        if verdict.ends_connection() {
            self.enter_error(ctx);
        }
        verdict
    }

    /// Enters an error state if the requester has failed. Raises SQ_DRAINED once in SQD, when no started work request
    /// is left.
    #[inline(always)]
    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        if self.requester.has_ended() {
            self.end_sending(ctx);
        }
        //= IBTA 10.3.1.5: sqd-tells-when-it-is-drained
        if self.drain_requested && self.state() == QpState::Sqd && self.requester.is_drained() {
            self.drain_requested = false;
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::SqDrained));
        }
    }

    /// A failed work request ends the connection, or if the service has SQE, the send queue alone: it is flushed, and
    /// accepts no work until `modify_qp` leads out of SQE (IBTA 9.9.2.2, 10.3.1.6).
    #[cold]
    fn end_sending(&mut self, ctx: &mut Ctx<'_>) {
        match self.qp_type {
            //= IBTA 9.9.2.2: requester-error-stops-uc-and-ud
            //= IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
            QpType::Uc | QpType::Ud | QpType::Gsi | QpType::RawPacket => {
                self.context.enter(QpState::Sqe);
                self.requester.abandon();
            }
            //= IBTA 9.9.2.2: requester-error-ends-rc
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.enter_error(ctx),
        }
    }

    /// True in SQD while a started work request is incomplete.
    pub fn is_draining(&self) -> bool {
        self.state() == QpState::Sqd && self.requester.window().has_begun_oldest()
    }
}

/// The queues.
impl Qp {
    /// Takes the memory of the send queue. The QP must not be used afterwards.
    pub fn take_send_queue(&mut self) -> SendQueue {
        self.requester.take_queue()
    }

    /// Returns the send queue position of the oldest incomplete work request.
    pub fn send_tail(&self) -> u32 {
        self.requester.window().queue().tail()
    }

    /// True if work requests have addresses: UD's and XRC's.
    pub(crate) fn has_addresses(&self) -> bool {
        self.requester.window().queue().has_addresses()
    }

    /// True if the send queue has room for another work request.
    pub fn has_send_place(&self) -> bool {
        self.requester.window().queue().has_room()
    }

    /// Appends the work request that `copy` writes. The caller must check [`Qp::has_send_place`] first. In an error
    /// state, [`Qp::flush`] completes the request.
    pub fn post_send(&mut self, copy: impl FnOnce(&mut SendWr, &mut [Sge], &mut [u8]) -> FetchedSend) {
        self.requester.queue_mut().push_with(copy);
    }

    /// True if work requests are left that [`flush`](Self::flush) is to complete.
    #[inline]
    pub fn has_sends_to_flush(&self) -> bool {
        self.requester.has_sends_to_flush(&self.context)
    }

    /// True if [`flush`](Self::flush) completes receives: none of a shared queue, which are other QPs' as well.
    #[inline]
    pub fn flushes_receives(&self) -> bool {
        //= IBTA 10.2.9: srq-outlives-a-qp
        self.state() == QpState::Err && door::flushes_receives(self.shares_receives)
    }

    /// Completes up to `most` work requests and receives of a QP in an error state with `WrFlush`, sends first. Returns
    /// how many.
    ///
    /// The NIC asks for a few at a time, so that a QP with long queues costs no more in a pass than one that sends.
    pub fn flush(&mut self, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        let sends = self.requester.flush(&self.context, ctx, most);
        self.settle(ctx);
        if !self.flushes_receives() {
            return sends;
        }
        // Receives posted meanwhile ring the doorbell.
        let receives = self.responder.flush_receives(&self.context, ctx, most - sends);
        invariant!(receives == 0 || !self.shares_receives, "receives of a shared queue are flushed");
        sends + receives
    }
}

/// Timers, pacing, and what the NIC asks the QP for.
impl Qp {
    /// Returns the latest time to call [`Qp::handle_timeout`]; `Nanos::MAX` for never.
    pub fn deadline(&self) -> Nanos {
        self.requester.deadline()
    }

    /// Continues the retransmission timer of a QP that was parked for this time.
    pub fn continue_timer(&mut self, parked: Nanos) {
        self.requester.continue_timer(parked);
    }

    /// Returns what ends the wait for what is outstanding. `None`: nothing does.
    pub fn awaits(&self) -> Option<Awaits> {
        self.requester.awaits(&self.context)
    }

    /// Starts the timer if nothing else ends the wait. Call this after each event, before [`Qp::deadline`].
    pub fn ensure_timer(&mut self, now: Nanos) {
        self.requester.ensure_timer(&self.context, now);
    }

    /// Handles an expired timer. Does nothing if none has expired.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        let verdict = self.requester.on_timeout(&self.context, ctx);
        self.settle(ctx);
        verdict
    }

    /// Has the peer show that it still has the connection. Returns false if the QP cannot ask. A change of the QP's
    /// attributes or state takes the question back.
    pub fn probe_peer(&mut self) -> bool {
        self.requester.probe_peer(&self.context)
    }

    /// Returns the QP's congestion control and pacing.
    pub fn pacing(&self) -> &Pacing {
        self.requester.pacing()
    }

    /// Returns the QP's congestion control and pacing, to change them.
    pub fn pacing_mut(&mut self) -> &mut Pacing {
        self.requester.pacing_mut()
    }

    /// Installs the reaction point `control` and evaluates the rate. The QP's own attributes and `share`, the rate
    /// shared with other QPs, limit the rate further.
    pub fn set_control(
        &mut self,
        now: Nanos,
        control: &Settings,
        line_rate: Rate,
        share: Option<&SharedRate>,
    ) {
        self.requester.set_control(&self.context, now, control, line_rate, share);
    }

    /// Returns the send queue position behind the last work request.
    pub(crate) fn send_head(&self) -> u32 {
        self.requester.window().queue().head()
    }

    /// True if the QP waits for copies.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    /// Asserts what a planned packet must keep, in debug builds. `gathers`: where its payload lies, unless that is
    /// inline.
    #[inline(always)]
    pub(crate) fn assert_leaving(&self, plan: &TxPlan, gathers: &[Gather]) {
        if cfg!(debug_assertions) {
            leaving::check(self, plan, gathers);
        }
    }

    /// Asserts what a received packet may cause at most, in debug builds: copies of its own bytes, and if it is an
    /// executed request one completion. `copied`: bytes that copies of its frame write. `completions`: those it added.
    pub(crate) fn assert_received(
        &self,
        packet: &Packet,
        verdict: &Verdict,
        out: &Output,
        before: (usize, usize),
    ) {
        let carried = packet.payload.len() as u64 + if self.qp_type.is_datagram() { GRH_LEN } else { 0 };
        let copied: u64 = out.dma_in.iter().skip(before.0).map(DmaIn::copied).sum();
        invariant!(copied <= carried, "{copied} bytes are copied from a packet with {carried}");
        let completed = out.completions.len() - before.1;
        let is_executed = *verdict == Verdict::Executed && !packet.info().is_response();
        invariant!(!is_executed || completed <= 1, "one request has {completed} completions");
    }

    /// Asserts the QP's invariants (see the page of this folder), in debug builds.
    #[inline(always)]
    pub fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            self.requester.assert_invariants(&self.context);
            let (una, end) = (self.requester.window().una(), self.requester.window().sent_end());
            invariant!(self.awaits().is_some(), "PSNs from {una} to {end} wait without a timer");
            let may = self.may_take_fast_path();
            invariant!(self.fast == may, "the fast path is taken, but packets came early");
            let may_drain =
                !matches!(self.state(), QpState::Reset | QpState::Init | QpState::Rtr | QpState::Rts);
            invariant!(
                may_drain || !self.drain_requested,
                "a QP in {:?} is to tell when it is drained",
                self.state()
            );
            let (has_path, av) = (self.template.is_some(), self.attributes().av.is_some());
            invariant!(has_path == av, "the prepared headers and the path disagree");
            self.responder.assert_invariants();
        }
    }
}

/// What the door sees and changes.
#[cfg(feature = "planted-bugs")]
impl Qp {
    pub(super) fn requester(&self) -> &Requester {
        &self.requester
    }

    pub(super) fn responder(&self) -> &Responder {
        &self.responder
    }

    pub(super) fn take_drain_request(&mut self) -> bool {
        std::mem::take(&mut self.drain_requested)
    }

    pub(super) fn stop_timer(&mut self) {
        self.requester.stop_timer();
    }
}
