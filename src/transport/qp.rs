//! The transport's queue pair: its state, its attributes, and who handles what.

use super::address::template_of;
use super::check::Check;
use super::pace::Pace;
use super::planted::PlantedBug;
use super::replies::Reply;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::{Ctx, Origin, Span, TxPlan, TxReason, User, Verdict};
use crate::limits::Limits;
use crate::shared::work_queue::FetchedSend;
use crate::time::Nanos;
use crate::verbs::{
    Access, AddressVector, AsyncEvent, CqIndex, EventKind, PdId, QpAttr, QpAttributes, QpCaps, QpIndex,
    QpInit, QpState, QpType, SendWr, Sge,
};
use crate::wire::{
    Bth, Ends, Ext, Gid, Opcode, Packet, Psn, Qpn, Reth, Service, Template, Usual, entropy_port, flow_port,
};

/// The default partition's key: full member.
const PKEY: u16 = 0xffff;

/// What a QP is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its place in the table.
    pub index: QpIndex,
    /// Its number on the wire.
    pub qpn: Qpn,
    /// The protection domain of the memory that it uses.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqIndex,
    /// Where receive completions go.
    pub recv_cq: CqIndex,
    /// Its service and its queues' sizes.
    pub init: QpInit,
    /// READs and atomics, both ways, at most.
    pub rd_atomic_limit: u8,
    /// It takes its receives from a shared queue: the domain of their memory.
    pub srq_pd: Option<PdId>,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its place in the table.
    pub index: QpIndex,
    /// Its number on the wire.
    pub qpn: Qpn,
    /// The protection domain of the memory that it uses.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqIndex,
    /// Where receive completions go.
    pub recv_cq: CqIndex,
    /// Every send completes, whether or not it asks to be signalled.
    pub sig_all: bool,
    /// The service, which never changes.
    pub qp_type: QpType,
    /// The sizes that it was made with.
    pub caps: QpCaps,
    /// What its packets' opcodes are of; `None`: they are no RoCE.
    pub(super) service: Option<Service>,
    state: QpState,
    attributes: QpAttributes,
    template: Option<Template>,
    /// Between which addresses its peer's packets travel, if they are of IPv4.
    ends: Option<Ends>,
    /// The 802.1Q tag of its frames.
    tag: Option<u16>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// Its receives are of a shared queue: they outlive its errors.
    pub(super) shares_receives: bool,
    established: bool,
    drain_requested: bool,
    /// A READ response has just left: a request goes before the next one.
    pub(super) request_is_due: bool,
    /// A request has gone ahead of an acknowledgement: that is next.
    pub(super) acknowledgement_is_due: bool,
    /// Our address in what was last sent to a multicast group.
    pub(super) group_source: Option<Gid>,
    /// Who says how fast it sends, if anybody does.
    pub(super) pace: Option<Box<Pace>>,
    /// Its data waits for its time.
    pub(super) held: bool,
}

impl Qp {
    /// A QP in RESET, with the NIC's copy of its send queue.
    pub fn new(config: &QpConfig, queue: SendQueue) -> Qp {
        let caps = &config.init.caps;
        // Only a reliable responder keeps what it answered.
        let reliable = config.init.qp_type.is_reliable_responder();
        let resources = if reliable { config.rd_atomic_limit } else { 0 };
        Qp {
            index: config.index,
            qpn: config.qpn,
            pd: config.pd,
            send_cq: config.send_cq,
            recv_cq: config.recv_cq,
            sig_all: config.init.sq_sig_all,
            qp_type: config.init.qp_type,
            caps: *caps,
            service: service_of(config.init.qp_type),
            state: QpState::Reset,
            attributes: QpAttributes::default(),
            template: None,
            ends: None,
            tag: None,
            requester: Requester::new(queue),
            //= IBTA 10.2.9.1: srq-lists-are-of-its-domain
            responder: Responder::new(caps.max_recv_sge, resources, config.srq_pd.unwrap_or(config.pd)),
            shares_receives: config.srq_pd.is_some(),
            established: false,
            drain_requested: false,
            request_is_due: false,
            acknowledgement_is_due: false,
            group_source: None,
            pace: None,
            held: false,
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Its attributes.
    pub fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// The PSNs that come next: sent, expected.
    pub fn psns(&self) -> (Psn, Psn) {
        (self.requester.psn, self.responder.expected)
    }

    /// Headers of its flow, once there is a path.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// The position of the oldest send work request that is not complete.
    pub fn send_tail(&self) -> u32 {
        self.requester.queue.tail()
    }

    /// Sets attributes that `check_transition` has found good, and goes to `next`.
    pub fn modify(&mut self, ctx: &mut Ctx<'_>, attr: &QpAttr, next: QpState) {
        if next == QpState::Reset {
            self.reset();
            return;
        }
        self.attributes.apply(attr);
        //= IBTA 9.7.1: psn-begins-as-agreed
        if let Some(psn) = attr.rq_psn {
            self.responder.expected = psn;
        }
        //= IBTA 9.7.1: psn-begins-as-agreed
        if let Some(psn) = attr.sq_psn {
            self.requester.start(psn);
        }
        if attr.timeout.is_some() && self.requester.una != self.requester.sent_end {
            let timeout = self.attributes.ack_timeout();
            self.requester.retransmit_at = timeout.map_or(Nanos::MAX, |timeout| ctx.now + timeout);
        }
        if attr.max_dest_rd_atomic.is_some() {
            self.responder.set_resources(self.attributes.max_dest_rd_atomic);
        }
        self.requester.retries_left = self.attributes.retry_cnt;
        self.requester.rnr_retries_left = self.attributes.rnr_retry;
        self.rebuild_template();
        if next == QpState::Err {
            self.enter_error(ctx);
        }
        if self.state == QpState::Sqe && next == QpState::Rts && !self.requester.queue.is_empty() {
            self.requester.flush_end = Some(self.requester.queue.head());
        }
        self.state = next;
        if next != QpState::Sqd {
            self.drain_requested = false;
        } else {
            self.drain_requested |= attr.en_sqd_async_notify == Some(true);
            self.report_drained(ctx);
        }
    }

    /// Something around the QP broke: goes to the error state. False: it is not in use, or already there.
    pub fn fail(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let in_use = !matches!(self.state, QpState::Reset | QpState::Err);
        if in_use {
            self.enter_error(ctx);
        }
        in_use
    }

    /// Sets what verbs has no attribute for.
    pub fn configure(&mut self, mig_req: bool, end_to_end_credits: bool) {
        self.attributes.mig_req = mig_req;
        self.attributes.end_to_end_credits = end_to_end_credits;
    }

    fn reset(&mut self) {
        self.state = QpState::Reset;
        let kept = self.attributes;
        self.attributes = QpAttributes::default();
        self.configure(kept.mig_req, kept.end_to_end_credits);
        (self.template, self.ends) = (None, None);
        //= IBTA 10.3.1.1: reset-forgets
        self.requester.reset();
        self.responder.reset();
        self.established = false;
        self.drain_requested = false;
        self.group_source = None;
        (self.pace, self.held) = (None, false);
    }

    /// The BTH that all packets of this QP have in common.
    pub(super) fn bth(&self) -> Bth {
        Bth {
            //= IBTA 9.2: pkey-of-the-qp-is-sent
            pkey: PKEY,
            mig_req: self.attributes.mig_req,
            dest_qp: self.attributes.dest_qpn,
            ..Bth::default()
        }
    }

    /// A packet for this QP arrived; `frame` is its number in the receive burst.
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
        match self.wrong_direction(ctx, packet) {
            Some(verdict) => verdict,
            None => self.handle_reliable(ctx, packet, frame),
        }
    }

    // Twice in the program: RC's way stays free of a call for XRC's sake.
    #[inline(always)]
    fn handle_reliable(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let is_response = packet.info().is_response();
        match (self.state, is_response) {
            // Nothing is expected yet, or any more.
            //= IBTA 10.3.1.2: init-takes-receives-and-no-packets
            (QpState::Reset | QpState::Init | QpState::Err | QpState::Sqe, _) => {
                ctx.counters.rx_wrong_state += 1;
                Verdict::WrongState(self.state)
            }
            // Nothing was sent, so nothing can be answered.
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

    /// The first packet of the peer, before the application has gone on to RTS.
    pub(super) fn note_established(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.3: rtr-tells-of-the-first-packet
        if !std::mem::replace(&mut self.established, true) {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::CommunicationEstablished));
        }
    }

    /// True if a request of RC is one that this QP may take in now, from its peer, and the one that is due.
    //= IBTA 9.6.1: opcode-is-of-the-qps-service, pkey-matches, source-is-the-peer, destination-is-our-address
    #[inline(always)]
    pub(super) fn is_due(&self, packet: &Usual<'_>, bth: &Bth) -> bool {
        let takes = match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.established,
            _ => false,
        };
        takes && bth.psn == self.responder.expected && self.is_from_its_peer(packet, bth)
    }

    /// True if a whole packet of RC is its peer's.
    #[inline(always)]
    pub(super) fn is_from_its_peer(&self, packet: &Usual<'_>, bth: &Bth) -> bool {
        self.qp_type == QpType::Rc
            && bth.pkey & 0x7fff == PKEY & 0x7fff
            && self.ends == Some(packet.ends())
            && (packet.payload().len() + usize::from(bth.pad)).is_multiple_of(4)
    }

    /// Why a packet is not for this QP at all (IBTA 9.6.1): service, partition, addresses.
    fn unacceptable(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Option<Verdict> {
        let service = packet.info().service;
        let is_notification = service == Service::Cnp;
        // Who sends datagrams to many has no one flow that could be slowed.
        //= IBTA 9.6.1: opcode-is-of-the-qps-service
        if Some(service) != self.service && !(is_notification && self.qp_type.is_connected()) {
            ctx.counters.rx_wrong_service += 1;
            return Some(Verdict::WrongService);
        }
        // Full and limited members of the default partition.
        //= IBTA 9.6.1: pkey-matches
        //= IBTA 10.9.3: limited-member-is-a-member
        if packet.bth.pkey & 0x7fff != PKEY & 0x7fff {
            ctx.counters.rx_bad_pkey += 1;
            return Some(Verdict::BadPkey(packet.bth.pkey));
        }
        let av = self.attributes.av.as_ref();
        // Its own GIDs are of RoCE v2, and so are its answers.
        //= IBTA 9.6.1: source-is-the-peer, destination-is-our-address
        let from_peer = av.is_some_and(|av| packet.is_on_path(&av.dgid, &av.sgid));
        if av.is_some() && !from_peer && !PlantedBug::AnySource.is() {
            ctx.counters.rx_wrong_source += 1;
            return Some(Verdict::WrongSource);
        }
        // A packet is whole words on every link: one that is not was made by nobody who keeps to any of it.
        //= IBTA 9.6.1: packet-is-whole-words
        if !(packet.payload.len() + usize::from(packet.bth.pad)).is_multiple_of(4) {
            ctx.counters.rx_malformed += 1;
            return Some(Verdict::Unsuitable(Check::Padding));
        }
        is_notification.then(|| self.judge_notification(ctx, packet))
    }

    /// A congestion notification from the peer: BECN, 16 bytes that mean nothing, and no more (IBTA annex A17.9.3).
    #[cold]
    fn judge_notification(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        //= IBTA A17.9.3: cnp-is-checked
        if !packet.bth.becn || !packet.payload.is_empty() || packet.bth.pad != 0 {
            ctx.counters.rx_malformed += 1;
            return Verdict::BadCnp;
        }
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rcvd_pkts += 1;
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(self.state);
        }
        //= IBTA A17.9.3: cnp-slows-its-qp
        match self.notified(ctx.now) {
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

    /// Takes the memory of its send queue away. Nothing may be asked of it then.
    pub fn take_send_queue(&mut self) -> SendQueue {
        std::mem::take(&mut self.requester.queue)
    }

    /// True if another work request can be fetched.
    #[inline(always)]
    pub fn has_send_place(&self) -> bool {
        self.requester.queue.has_room()
    }

    /// Takes in the work request that `copy` brings, and for which there is a place. In an error state it is to be flushed:
    /// [`Qp::flush`].
    #[inline(always)]
    pub fn post_send(&mut self, copy: impl FnOnce(&mut SendWr, &mut [Sge], &mut [u8]) -> FetchedSend) {
        self.requester.queue.push_with(copy);
    }

    /// True if the NIC should fetch work requests in this state.
    pub fn takes_sends(&self) -> bool {
        //= IBTA 10.3.1.3: rtr-answers-and-does-not-ask
        matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
    }

    /// True if `next_packet` has something to look at. What must wait for a response or a timer does not count: the
    /// QP is looked after again when that comes.
    pub fn wants_transmit(&self, limits: &Limits) -> bool {
        if self.held {
            return self.has_unpaced();
        }
        self.responder.has_replies() || (self.may_send_requests() && !self.must_wait(limits.window))
    }

    /// What would leave next: replies first, but READ responses and requests take turns, so that neither starves
    /// the other. One request goes ahead of an acknowledgement: an answer that the application gives at once leaves before what is
    /// shorter and less urgent, and over sockets both make one train. Its payload is described in `Output::gather`.
    pub fn next_packet(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if self.held {
            return self.next_unpaced(ctx);
        }
        match self.qp_type {
            QpType::Rc => {}
            QpType::XrcSend | QpType::XrcRecv => return self.next_extended(ctx),
            _ => return self.next_unacknowledged(ctx),
        }
        if !self.responder.has_replies() {
            return self.next_request(ctx);
        }
        let request_first = match self.responder.replies.front() {
            Some(Reply::Ack { .. }) => !self.acknowledgement_is_due,
            _ => self.request_is_due,
        };
        if request_first {
            return self.next_request(ctx).or_else(|| self.next_reply(ctx));
        }
        self.next_reply(ctx).or_else(|| self.next_request(ctx))
    }

    /// True if it is RC in RTS, nobody decides its rate, and a request would leave before what it has to answer.
    #[inline(always)]
    pub(super) fn request_goes_first(&self) -> bool {
        let first = match self.responder.replies.front() {
            None => true,
            Some(Reply::Ack { .. }) => !self.acknowledgement_is_due,
            _ => false,
        };
        first && self.state == QpState::Rts && self.qp_type == QpType::Rc && self.pace.is_none()
    }

    /// A request has left.
    #[inline(always)]
    pub(super) fn request_left(&mut self) {
        self.request_is_due = false;
        self.acknowledgement_is_due = self.responder.has_replies();
    }

    /// The planned packet has left.
    pub fn sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        ctx.counters.sent_pkts += 1;
        ctx.counters.sent_bytes += u64::from(plan.payload_len);
        self.request_is_due = plan.origin == Origin::Reply && plan.payload_len > 0;
        self.acknowledgement_is_due = plan.origin == Origin::Request && self.responder.has_replies();
        match plan.origin {
            Origin::Request => self.request_sent(ctx, plan),
            Origin::Reply => self.reply_sent(),
            Origin::Unacknowledged => self.unacknowledged_sent(ctx, plan),
            Origin::Notification => {}
        }
        if self.pace.is_some() {
            self.note_departure(ctx, plan);
        }
    }

    /// The packet that tells its peer of congestion on the way from there (IBTA annex A17.9.3).
    pub fn notification(&self) -> TxPlan {
        //= IBTA A17.9.3: cnp-answers-a-mark
        let mut bth = Bth { opcode: Opcode::CNP, becn: true, ..self.bth() };
        if PlantedBug::NotifiesItself.is() {
            bth.dest_qp = self.qpn;
        }
        let (ext, origin) = (Ext::None, Origin::Notification);
        TxPlan { bth, ext, payload_len: 0, inline: None, way: None, reason: TxReason::Notification, origin }
    }

    /// The inline payload of a planned packet.
    pub fn inline_payload(&self, plan: &TxPlan) -> Option<&[u8]> {
        let (position, offset) = plan.inline?;
        Some(self.requester.queue.inline(position, offset, plan.payload_len))
    }

    /// The dma stage ran an atomic for this QP's peer: what was there before.
    pub fn atomic_done(&mut self, resource: u8, before: u64) {
        self.responder.atomic_done(resource, before);
    }

    /// The receive that is under way is flushed. The NIC has [`flush`](Self::flush) complete everything else, in order, and what is posted
    /// later. A refusal that waits still leaves.
    pub(super) fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.7: error-flushes-both-queues
        let before = std::mem::replace(&mut self.state, QpState::Err);
        self.requester.retransmit_at = Nanos::MAX;
        self.requester.rnr_until = None;
        self.requester.failed = None;
        self.requester.abandon();
        self.flush_begun_receive(ctx);
        self.responder.keep_up_to_refusal();
        if self.shares_receives && before != QpState::Err {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::LastWqeReached));
        }
    }

    /// Changes the path by `change`, whatever the state: stations of a link may get other addresses at any time.
    pub fn readdress(&mut self, change: impl FnOnce(&mut AddressVector)) {
        if let Some(mut av) = self.attributes.av {
            change(&mut av);
            self.attributes.av = Some(av);
            self.rebuild_template();
        }
    }

    /// Gives its frames a tag of 802.1Q, or none.
    pub fn set_tag(&mut self, tag: Option<u16>) {
        if std::mem::replace(&mut self.tag, tag) != tag {
            self.rebuild_template();
        }
    }

    fn rebuild_template(&mut self) {
        self.template = self.attributes.av.map(|av| self.template_along(&av, self.tag));
        self.ends = self.attributes.av.and_then(|av| Ends::of(&av.dgid, &av.sgid));
    }

    /// The headers of what it would send along this path, with a tag of 802.1Q or none.
    pub fn template_along(&self, av: &AddressVector, tag: Option<u16>) -> Template {
        // A flow label that was given says which way to take; else the pair of QPs does (`rdma_get_udp_sport`, `ib_verbs.h`).
        let port = match av.flow_label {
            0 => entropy_port(self.qpn, self.attributes.dest_qpn),
            label => flow_port(label),
        };
        template_of(av, port, tag)
    }

    /// Only the state: `enter_send_queue_error` does the rest.
    pub(super) fn set_send_queue_error(&mut self) {
        self.state = QpState::Sqe;
    }

    /// In SQD, and something that was started is not complete yet.
    pub fn is_draining(&self) -> bool {
        let queue = &self.requester.queue;
        self.state == QpState::Sqd && !queue.is_empty() && queue.at(queue.tail()).started
    }

    pub(super) fn take_drain_request(&mut self) -> bool {
        std::mem::take(&mut self.drain_requested)
    }

    /// As whom it and its peer present keys.
    pub(super) fn user(&self) -> User {
        User { pd: self.pd, qp: self.index }
    }

    /// Checks what a request asks for against the domain that it was taken in.
    pub(super) fn check_remote_in(
        &self,
        pd: PdId,
        ctx: &Ctx<'_>,
        reth: &Reth,
        access: Access,
    ) -> Result<Span, Check> {
        let user = User { pd, qp: self.index };
        let checked = ctx.memory.check_remote(user, reth.rkey, reth.va, reth.dma_len.into(), access);
        checked.map_err(Check::from)
    }

    /// Checks a peer's key against the QP's own domain.
    pub(super) fn check_remote(
        &self,
        ctx: &Ctx<'_>,
        va: u64,
        rkey: u32,
        length: u64,
        access: Access,
    ) -> Result<Span, Check> {
        ctx.memory.check_remote(self.user(), rkey, va, length, access).map_err(Check::from)
    }
}

fn service_of(qp_type: QpType) -> Option<Service> {
    match qp_type {
        QpType::Rc => Some(Service::Rc),
        QpType::Uc => Some(Service::Uc),
        QpType::Ud | QpType::Gsi => Some(Service::Ud),
        QpType::XrcSend | QpType::XrcRecv => Some(Service::Xrc),
        //= IBTA 9.8.4: raw-is-never-roce
        QpType::RawPacket => None,
    }
}
