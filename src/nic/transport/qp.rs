//! The queue pair: its state and attributes, and the dispatch of calls to requester, responder and services.

use std::ops::Deref;

use super::address::template_of;
use super::context::{QpConfig, QpContext, Received, is_member};
use super::pacing::Pacing;
use super::requester::{Requester, Sending};
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::turns::Turns;
use super::{Check, Ctx, Origin, PlantedBug, TxPlan, TxReason, Verdict};
use crate::shared::work_queue::FetchedSend;
use crate::verbs::{AddressVector, AsyncEvent, CqIndex, EventKind, QpAttr, QpState, QpType, SendWr, Sge};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{
    Bth, Ends, Ext, FastPacket, Gid, Opcode, Packet, Psn, Service, Template, entropy_port, flow_port,
};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) context: QpContext,
    template: Option<Template>,
    /// Peer's and local IPv4 address, as its packets carry them. `None` over IPv6.
    ends: Option<Ends>,
    /// 802.1Q tag of sent frames.
    tag: Option<u16>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    established: bool,
    /// True for an RC QP in whose sequence nothing is missing, and that is not parked: the fast path may take its packets.
    fast: bool,
    parked: bool,
    drain_requested: bool,
    pub(super) turns: Turns,
    /// Local GID of the last datagram sent to a multicast group.
    pub(super) group_source: Option<Gid>,
    /// Congestion control and pacing.
    pub pacing: Pacing,
}

/// The context of a QP, to be read.
impl Deref for Qp {
    type Target = QpContext;

    #[inline(always)]
    fn deref(&self) -> &QpContext {
        &self.context
    }
}

impl Qp {
    /// Returns a QP in RESET. `queue` is the NIC's copy of its send queue.
    pub fn new(config: &QpConfig, queue: SendQueue) -> Qp {
        let has_addresses = config.init.qp_type.is_datagram() || config.init.qp_type.is_extended();
        Qp {
            context: QpContext::new(config),
            template: None,
            ends: None,
            tag: None,
            requester: Requester::new(queue.with_addresses(has_addresses)),
            responder: Responder::new(config),
            established: false,
            fast: config.init.qp_type == QpType::Rc,
            parked: false,
            drain_requested: false,
            turns: Turns::default(),
            group_source: None,
            pacing: Pacing::default(),
        }
    }

    /// Returns the completion queue for receives.
    pub fn recv_cq(&self) -> CqIndex {
        self.responder.recv_cq()
    }

    /// Returns the next PSNs: (to send, expected).
    pub fn psns(&self) -> (Psn, Psn) {
        (self.requester.psn, self.responder.expected())
    }

    /// Returns the prepared headers, once the QP has a path.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// Returns the send queue position of the oldest incomplete work request.
    pub fn send_tail(&self) -> u32 {
        self.requester.queue.tail()
    }

    /// Applies attributes that `check_transition` has accepted, and changes to state `next`.
    pub fn modify(&mut self, ctx: &mut Ctx<'_>, attr: &QpAttr, next: QpState) {
        if next == QpState::Reset {
            self.reset();
            return;
        }
        self.context.attributes_mut().apply(attr);
        //= IBTA 9.7.1: psn-begins-as-agreed
        if let Some(psn) = attr.rq_psn {
            self.responder.start(psn);
        }
        //= IBTA 9.7.1: psn-begins-as-agreed
        if let Some(psn) = attr.sq_psn {
            self.requester.start(psn);
        }
        if attr.selective_repeat.is_some() {
            self.set_selective_repeat();
        }
        let attributes = *self.attributes();
        self.requester.set_timeout(attributes.ack_timeout());
        if attr.timeout.is_some() && self.requester.una != self.requester.sent_end {
            let timeout = self.requester.ack_timeout;
            self.requester.retransmit_at = timeout.map_or(Nanos::MAX, |timeout| ctx.now + timeout);
        }
        self.requester.set_asking(self.context.qp_type, &attributes, self.pacing.is_on());
        if attr.max_dest_rd_atomic.is_some() {
            self.responder.set_resources(attributes.max_dest_rd_atomic);
        }
        self.requester.retries_left = attributes.retry_cnt;
        self.requester.rnr_retries_left = attributes.rnr_retry;
        self.rebuild_template();
        if next == QpState::Err {
            self.enter_error(ctx);
        }
        let before = self.context.enter(next);
        if before == QpState::Sqe && next == QpState::Rts && !self.requester.queue.is_empty() {
            self.requester.sending = Sending::Flushing(self.requester.queue.head());
        }
        if next != QpState::Sqd {
            self.drain_requested = false;
        } else {
            self.drain_requested |= attr.en_sqd_async_notify == Some(true);
            self.report_drained(ctx);
            self.requester.ask(ctx.limits);
        }
    }

    /// Moves the QP to the error state after an external failure. Returns false if it was in RESET or ERR already.
    pub fn fail(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let in_use = !matches!(self.state(), QpState::Reset | QpState::Err);
        if in_use {
            self.enter_error(ctx);
        }
        in_use
    }

    /// Turns selective repeat on or off, as agreed with the peer. On RC only.
    fn set_selective_repeat(&mut self) {
        let is_on = self.qp_type == QpType::Rc && self.attributes().selective_repeat;
        self.context.attributes_mut().selective_repeat = is_on;
        self.requester.set_selective(is_on);
        self.responder.set_selective(is_on);
        self.note_fast_path();
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
    pub(super) fn may_take_fast_path(&self) -> bool {
        self.qp_type == QpType::Rc
            && !self.parked
            && !self.responder.has_early()
            && !self.requester.has_early_responses()
    }

    /// True if the fast path may take received packets.
    pub(super) fn takes_fast_path(&self) -> bool {
        self.fast
    }

    /// Decides again whether the fast path may take received packets.
    pub(super) fn note_fast_path(&mut self) {
        self.fast = self.may_take_fast_path();
    }

    /// Sets the attributes that verbs do not define.
    pub fn configure(&mut self, mig_req: bool, end_to_end_credits: bool) {
        let attributes = self.context.attributes_mut();
        attributes.mig_req = mig_req;
        attributes.end_to_end_credits = end_to_end_credits;
    }

    fn reset(&mut self) {
        self.context.enter(QpState::Reset);
        let kept = std::mem::take(self.context.attributes_mut());
        self.configure(kept.mig_req, kept.end_to_end_credits);
        (self.template, self.ends) = (None, None);
        //= IBTA 10.3.1.1: reset-forgets
        self.requester.reset();
        self.responder.reset();
        self.note_fast_path();
        self.established = false;
        self.drain_requested = false;
        self.group_source = None;
        self.pacing = Pacing::default();
    }

    /// Handles a received packet. `frame` is its index in the receive burst.
    pub fn handle_packet(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        if let Some(verdict) = self.unacceptable(ctx, packet) {
            return verdict;
        }
        ctx.counters.rcvd_pkts += 1;
        if self.qp_type != QpType::Rc {
            return self.handle_other_service(ctx, packet, frame);
        }
        self.handle_reliable(ctx, packet, frame)
    }

    #[inline(never)]
    fn handle_other_service(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        if !self.qp_type.is_extended() {
            return self.handle_unacknowledged(ctx, packet, frame);
        }
        // An XRC initiator sends requests alone, a target responses alone.
        //= IBTA A14: xrc-has-one-direction
        match (self.qp_type, packet.info().is_response()) {
            (QpType::XrcSend, false) => {
                ctx.counters.rx_wrong_service += 1;
                Verdict::WrongService
            }
            (QpType::XrcRecv, true) => {
                ctx.counters.ghost_acks += 1;
                Verdict::Ghost
            }
            _ => self.handle_reliable(ctx, packet, frame),
        }
    }

    /// Handles a received packet of an unreliable service. A send queue error does not affect receives.
    fn handle_unacknowledged(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(state);
        }
        let verdict = if self.qp_type.is_datagram() {
            let sent_from = self.group_source;
            self.responder.on_datagram(ctx, Received { qp: &self.context, packet, frame }, sent_from)
        } else {
            if state == QpState::Rtr {
                self.note_established(ctx);
            }
            self.responder.on_uc_request(ctx, Received { qp: &self.context, packet, frame })
        };
        self.after_request(ctx, verdict)
    }

    /// Handles a raw packet of `length` bytes, steered to this QP. `frame` is its index in the receive burst.
    pub fn handle_frame(&mut self, ctx: &mut Ctx<'_>, length: usize, frame: u16) -> Verdict {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(state);
        }
        ctx.counters.rcvd_pkts += 1;
        let verdict = self.responder.on_frame(&self.context, ctx, length, frame);
        self.after_request(ctx, verdict)
    }

    /// Handles a request packet of a reliable service.
    fn handle_request(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let verdict = self.responder.on_request(ctx, Received { qp: &self.context, packet, frame });
        if self.attributes().selective_repeat {
            self.note_fast_path();
        }
        self.after_request(ctx, verdict)
    }

    /// Enters the error state if the responder has failed.
    #[inline(always)]
    pub(super) fn after_request(&mut self, ctx: &mut Ctx<'_>, verdict: Verdict) -> Verdict {
        if verdict.ends_connection() {
            self.enter_error(ctx);
        }
        verdict
    }

    /// Advances over the packets that came early and are due now. Called after a request was executed.
    pub(crate) fn advance_over_early(&mut self, ctx: &mut Ctx<'_>) {
        self.responder.advance_over_early(&self.context, ctx);
        self.note_fast_path();
    }

    /// Stores the original value of an atomic that the DMA stage has executed for the peer.
    pub fn atomic_done(&mut self, resource: u8, before: u64) {
        self.responder.atomic_done(resource, before);
    }

    /// Drops the responses that have not left. A QP that has lost a write must not acknowledge it, whatever its state is.
    pub fn forget_replies(&mut self) {
        self.responder.forget_replies();
    }

    /// Drops the current receive without a completion, because its shared receive queue was destroyed.
    pub fn forget_receive(&mut self) {
        self.responder.forget_receive();
    }

    // Inlined twice: XRC's dispatch must not cost RC a call.
    #[inline(always)]
    fn handle_reliable(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let is_response = packet.info().is_response();
        match (self.state(), is_response) {
            // No packets are accepted in these states.
            //= IBTA 10.3.1.2: init-takes-receives-and-no-packets
            (QpState::Reset | QpState::Init | QpState::Err | QpState::Sqe, _) => {
                ctx.counters.rx_wrong_state += 1;
                Verdict::WrongState(self.state())
            }
            // Nothing was sent in RTR, so there is nothing to respond to.
            (QpState::Rtr, true) => {
                ctx.counters.ghost_acks += 1;
                Verdict::Ghost
            }
            (QpState::Rtr, false) => {
                self.note_established(ctx);
                self.handle_request(ctx, packet, frame)
            }
            (QpState::Rts | QpState::Sqd, false) => self.handle_request(ctx, packet, frame),
            (QpState::Rts | QpState::Sqd, true) => self.handle_response(ctx, packet, frame),
        }
    }

    /// Raises COMM_EST for the peer's first packet, if the application has not moved the QP to RTS yet.
    pub(super) fn note_established(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.3: rtr-tells-of-the-first-packet
        if !std::mem::replace(&mut self.established, true) {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::CommunicationEstablished));
        }
    }

    /// True if an RC request comes from the peer, and the QP's state accepts it.
    //= IBTA 9.6.1: opcode-is-of-the-qps-service, pkey-matches, source-is-the-peer, destination-is-our-address
    #[inline(always)]
    pub(super) fn takes_request(&self, packet: &FastPacket<'_>, bth: &Bth) -> bool {
        let takes = match self.state() {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.established,
            _ => false,
        };
        takes && self.fits_fast_path(packet, bth)
    }

    /// True if the fast path may take an RC packet: nothing is missing before it, it comes from the peer, its partition matches, and its
    /// length is a multiple of 4 bytes.
    #[inline(always)]
    pub(super) fn fits_fast_path(&self, packet: &FastPacket<'_>, bth: &Bth) -> bool {
        self.fast
            && is_member(bth.pkey)
            && self.ends == Some(packet.ends())
            && (packet.payload().len() + usize::from(bth.pad)).is_multiple_of(4)
    }

    /// Checks service, partition and addresses (IBTA 9.6.1), and handles CNPs. Returns `None` if the packet passes.
    fn unacceptable(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Option<Verdict> {
        let service = packet.info().service;
        let is_notification = service == Service::Cnp;
        // A datagram QP has no single flow to slow down: notifications are for connected QPs.
        //= IBTA 9.6.1: opcode-is-of-the-qps-service
        if Some(service) != self.service && !(is_notification && self.qp_type.is_connected()) {
            ctx.counters.rx_wrong_service += 1;
            return Some(Verdict::WrongService);
        }
        // Full and limited members of the default partition are accepted.
        //= IBTA 9.6.1: pkey-matches
        //= IBTA 10.9.3: limited-member-is-a-member
        if !is_member(packet.bth.pkey) {
            ctx.counters.rx_bad_pkey += 1;
            return Some(Verdict::BadPkey(packet.bth.pkey));
        }
        let av = self.attributes().av.as_ref();
        // Responses carry the addresses, the VLAN and the RoCE version of requests.
        //= IBTA 9.6.1: source-is-the-peer, destination-is-our-address
        let from_peer = av.is_some_and(|av| {
            packet.is_between(&av.dgid, &av.sgid) && packet.encapsulation() == av.encapsulation
        });
        if av.is_some() && !from_peer && !PlantedBug::AnySource.is() {
            ctx.counters.rx_wrong_source += 1;
            return Some(Verdict::WrongSource);
        }
        // Payload and pad of a conforming packet are a multiple of 4 bytes.
        //= IBTA 9.6.1: packet-is-whole-words
        if !(packet.payload.len() + usize::from(packet.bth.pad)).is_multiple_of(4) {
            ctx.counters.rx_malformed += 1;
            return Some(Verdict::Unsuitable(Check::Padding));
        }
        is_notification.then(|| self.judge_notification(ctx, packet))
    }

    /// Handles a congestion notification packet (CNP) from the peer: BECN and 16 reserved bytes (IBTA annex A17.9.3).
    #[cold]
    fn judge_notification(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        //= IBTA A17.9.3: cnp-is-checked
        if !packet.bth.becn || !packet.payload.is_empty() || packet.bth.pad != 0 {
            ctx.counters.rx_malformed += 1;
            return Verdict::BadCnp;
        }
        if matches!(self.state(), QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rcvd_pkts += 1;
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(self.state());
        }
        //= IBTA A17.9.3: cnp-slows-its-qp
        match self.pacing.notified(ctx.now) {
            None => {
                ctx.counters.rp_cnp_ignored += 1;
                Verdict::CnpIgnored
            }
            Some(change) => {
                ctx.counters.rp_cnp_handled += 1;
                Verdict::Cnp(change)
            }
        }
    }

    /// Takes the memory of the send queue. The QP must not be used afterwards.
    pub fn take_send_queue(&mut self) -> SendQueue {
        std::mem::take(&mut self.requester.queue)
    }

    /// Appends the work request that `copy` writes. The caller must check [`Qp::has_send_place`] first. In an error
    /// state, [`Qp::flush`] completes the request.
    #[inline(always)]
    pub fn post_send(&mut self, copy: impl FnOnce(&mut SendWr, &mut [Sge], &mut [u8]) -> FetchedSend) {
        self.requester.queue.push_with(copy);
    }

    /// True if the NIC should fetch work requests in this state.
    pub fn takes_sends(&self) -> bool {
        //= IBTA 10.3.1.3: rtr-answers-and-does-not-ask
        matches!(self.state(), QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
    }

    /// True if `next_packet` may have a packet to send. Packets that wait for a response or a timer do not count.
    pub fn wants_transmit(&self, limits: &Limits) -> bool {
        if self.pacing.holds() {
            return self.has_unpaced();
        }
        self.responder.has_replies() || self.has_request(limits)
    }

    /// Plans the next packet. Its payload is described in `Output::gather`.
    pub fn next_packet(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if self.pacing.holds() {
            return self.next_unpaced(ctx);
        }
        match self.qp_type {
            QpType::Rc => {}
            QpType::XrcSend | QpType::XrcRecv => return self.next_extended(ctx),
            _ => return self.next_unacknowledged(ctx),
        }
        if self.turns.request_precedes(self.responder.front(), ctx.acknowledges_first) {
            return self.next_request(ctx).or_else(|| self.next_reply(ctx));
        }
        self.next_reply(ctx).or_else(|| self.next_request(ctx))
    }

    /// Plans the packet of the oldest pending reply.
    pub(super) fn next_reply(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        loop {
            let reply = self.responder.front()?;
            let plan = self.responder.plan_reply(&self.context, ctx, reply);
            if plan.is_some() {
                return plan;
            }
            if self.responder.drop_reply(&self.context, ctx) {
                self.enter_error(ctx);
            }
            // A READ response behind it is paced.
            if self.pacing.holds() && !self.has_unpaced() {
                return None;
            }
        }
    }

    /// True if the QP is an unpaced RC QP in RTS, and a request takes precedence over its pending replies.
    #[inline(always)]
    pub(super) fn request_goes_first(&self, acknowledges_first: bool) -> bool {
        let first = self.turns.request_precedes(self.responder.front(), acknowledges_first);
        first && self.state() == QpState::Rts && self.qp_type == QpType::Rc && !self.pacing.is_on()
    }

    /// Advances the state past `plan`, which the port has accepted.
    pub fn sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        ctx.counters.sent_pkts += 1;
        ctx.counters.sent_bytes += u64::from(plan.payload_len);
        match plan.origin {
            Origin::Request | Origin::Probe => {
                self.turns.request_left(self.responder.has_replies());
                self.request_sent(ctx, plan);
            }
            Origin::Reply => {
                self.turns.reply_left(plan.payload_len > 0);
                self.responder.reply_sent();
            }
            Origin::Unacknowledged => self.unacknowledged_sent(ctx, plan),
            Origin::Question => self.requester.asks_peer = false,
            Origin::Notification => {}
        }
        if self.pacing.is_on() {
            self.note_departure(ctx, plan);
        }
    }

    /// Returns a congestion notification packet (CNP) for the peer (IBTA annex A17.9.3).
    pub fn notification(&self) -> TxPlan {
        //= IBTA A17.9.3: cnp-answers-a-mark
        let mut bth = Bth { opcode: Opcode::CNP, becn: true, ..self.context.bth() };
        if PlantedBug::NotifiesItself.is() {
            bth.dest_qp = self.qpn;
        }
        let (ext, origin) = (Ext::None, Origin::Notification);
        TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason: TxReason::Notification, origin }
    }

    /// Returns the inline payload of a planned packet.
    pub fn inline_payload(&self, plan: &TxPlan) -> Option<&[u8]> {
        let (position, offset) = plan.inline?;
        Some(self.requester.queue.inline(position, offset, plan.payload_len))
    }

    /// Moves the QP to the error state, and flushes the receive in progress. The NIC calls [`flush`](Self::flush) for all other work
    /// requests, in order, and for later ones. A pending NAK that refuses a request is still sent.
    pub(super) fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.7: error-flushes-both-queues
        let before = self.context.enter(QpState::Err);
        self.requester.abandon();
        self.responder.abandon(&self.context, ctx);
        self.note_fast_path();
        if self.shares_receives && before != QpState::Err {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::LastWqeReached));
        }
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
        self.template = self.attributes().av.map(|av| self.template_along(&av, self.tag));
        // The fast path takes only plain packets.
        let plain = self.attributes().av.filter(|av| av.encapsulation.is_plain());
        self.ends = plain.and_then(|av| Ends::of(&av.dgid, &av.sgid));
    }

    /// Returns the headers for a packet along path `av`. `tag` is the 802.1Q tag, if any.
    pub fn template_along(&self, av: &AddressVector, tag: Option<u16>) -> Template {
        // The UDP source port depends on the flow label, or on both QPNs (`rdma_get_udp_sport`, `ib_verbs.h`).
        let port = match av.flow_label {
            0 => entropy_port(self.qpn, self.attributes().dest_qpn),
            label => flow_port(label),
        };
        template_of(av, port, tag)
    }

    /// Sets the state to SQE. [`Qp::enter_send_queue_error`] also flushes.
    pub(super) fn set_send_queue_error(&mut self) {
        self.context.enter(QpState::Sqe);
    }

    /// True in SQD while a started work request is incomplete.
    pub fn is_draining(&self) -> bool {
        let queue = &self.requester.queue;
        self.state() == QpState::Sqd && !queue.is_empty() && queue.at(queue.tail()).started
    }

    pub(super) fn take_drain_request(&mut self) -> bool {
        std::mem::take(&mut self.drain_requested)
    }
}
