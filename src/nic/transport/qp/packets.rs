//! Packets in and out of a QP: a received packet goes to its part, and requester and responder take turns to send.

use super::Qp;
use crate::transport::context::{Received, is_member};
use crate::transport::xrc;
use crate::transport::{Check, Ctx, Origin, Reply, TxPlan, TxReason, Verdict};
use crate::verbs::{AsyncEvent, EventKind, QpState, QpType, Srqn};
use roxie_base::limits::Limits;
use roxie_wire::{Bth, Ext, FastPacket, Opcode, Packet, Service};

/// Received packets.
impl Qp {
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
        if av.is_some() && !from_peer {
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
        match self.pacing_mut().notified(ctx.now) {
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
    fn note_established(&mut self, ctx: &mut Ctx<'_>) {
        //= IBTA 10.3.1.3: rtr-tells-of-the-first-packet
        if !std::mem::replace(&mut self.established, true) {
            ctx.out.events.push(AsyncEvent::Qp(self.index, EventKind::CommunicationEstablished));
        }
    }

    /// Handles a request packet of a reliable service.
    fn handle_request(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let verdict = self.responder.on_request(ctx, Received { qp: &self.context, packet, frame });
        if self.attributes().selective_repeat {
            self.note_fast_path();
        }
        self.after_request(ctx, verdict)
    }

    /// Handles a response packet.
    fn handle_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let verdict = self.requester.on_response(ctx, Received { qp: &self.context, packet, frame });
        if self.attributes().selective_repeat {
            self.note_fast_path();
        }
        self.settle(ctx);
        verdict
    }

    /// Handles a received packet of an unreliable service. A send queue error does not affect receives.
    fn handle_unacknowledged(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(state);
        }
        let verdict = if self.qp_type.is_datagram() {
            let sent_from = self.requester.group_source();
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

    /// Advances over the packets that came early and are due now. Called after a request was executed.
    pub(crate) fn advance_over_early(&mut self, ctx: &mut Ctx<'_>) {
        self.responder.advance_over_early(&self.context, ctx);
        self.note_fast_path();
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

    /// True if the fast path may take an RC packet: nothing is missing before it, it comes from the peer, its partition
    /// matches, and its length is a multiple of 4 bytes.
    #[inline(always)]
    pub(super) fn fits_fast_path(&self, packet: &FastPacket<'_>, bth: &Bth) -> bool {
        self.fast
            && is_member(bth.pkey)
            && self.ends == Some(packet.ends())
            && (packet.payload().len() + usize::from(bth.pad)).is_multiple_of(4)
    }
}

/// Sent packets.
impl Qp {
    /// True if `next_packet` may have a packet to send. Packets that wait for a response or a timer do not count.
    pub fn wants_transmit(&self, limits: &Limits) -> bool {
        if self.pacing().holds() {
            return self.has_unpaced();
        }
        self.responder.has_replies() || self.requester.has_request(&self.context, limits)
    }

    /// True if something other than an ACK is ready to be sent: a request, a response or a NAK.
    pub fn is_pressing(&self, limits: &Limits) -> bool {
        let acknowledges = matches!(self.responder.front(), None | Some(Reply::Ack { .. }));
        !acknowledges || (!self.pacing().holds() && self.requester.has_request(&self.context, limits))
    }

    /// True if the reply at the front of the queue is not paced.
    pub(crate) fn has_unpaced(&self) -> bool {
        self.responder.has_unpaced()
    }

    /// Plans the next packet. Its payload is described in `Output::gather`.
    pub fn next_packet(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if self.pacing().holds() {
            return self.next_unpaced(ctx);
        }
        match self.qp_type {
            QpType::Rc => {}
            QpType::XrcRecv => return self.next_extended_reply(ctx),
            QpType::XrcSend => {
                let plan = self.next_request(ctx)?;
                let window = self.requester.window();
                let srqn = window.queue().operands(window.next()).remote_srqn;
                return Some(xrc::extended(plan, srqn));
            }
            _ => {
                let plan = self.requester.next_unacknowledged(&self.context, ctx);
                self.settle(ctx);
                return plan;
            }
        }
        if self.turns.request_precedes(self.responder.front(), ctx.acknowledges_first) {
            return self.next_request(ctx).or_else(|| self.next_reply(ctx));
        }
        self.next_reply(ctx).or_else(|| self.next_request(ctx))
    }

    /// Plans an ACK or an atomic response while data is held back.
    #[cold]
    pub(crate) fn next_unpaced(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        match self.qp_type {
            _ if !self.has_unpaced() => None,
            QpType::XrcRecv => self.next_extended_reply(ctx),
            _ => self.next_reply(ctx),
        }
    }

    fn next_request(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        let plan = self.requester.next_request(&self.context, ctx);
        self.settle(ctx);
        plan
    }

    fn next_extended_reply(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        Some(xrc::extended(self.next_reply(ctx)?, Srqn::default()))
    }

    /// Plans the packet of the oldest pending reply.
    fn next_reply(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
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
            if self.pacing().holds() && !self.has_unpaced() {
                return None;
            }
        }
    }

    /// Advances the state past `plan`, which the port has accepted, and charges it to the pacer.
    pub fn sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        self.advance(ctx, plan);
        if self.pacing().is_on() {
            self.charge(ctx, plan);
        }
    }

    /// Advances the state past `plan`.
    #[inline(always)]
    pub(crate) fn advance(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        ctx.counters.sent_pkts += 1;
        ctx.counters.sent_bytes += u64::from(plan.payload_len);
        match plan.origin {
            Origin::Request | Origin::Probe => {
                self.turns.request_sent(self.responder.has_replies());
                self.requester.request_sent(&self.context, ctx, plan);
            }
            Origin::Reply => {
                self.turns.reply_sent(plan.payload_len > 0);
                self.responder.reply_sent();
            }
            Origin::Unacknowledged => {
                self.requester.unacknowledged_sent(&self.context, ctx, plan);
                self.settle(ctx);
            }
            Origin::PeerProbe => self.requester.peer_probe_sent(ctx.now),
            Origin::Notification => {}
        }
    }

    /// Charges a sent packet to the pacer.
    #[cold]
    fn charge(&mut self, ctx: &Ctx<'_>, plan: &TxPlan) {
        if !plan.carries_data() {
            return;
        }
        let length = usize::from(plan.payload_len);
        let template = match plan.ah {
            None => self.template(),
            Some(way) => ctx.handles.find(way).map(|handle| &handle.template),
        };
        let bytes = template.map_or(length, |template| template.frame_len(plan.bth.opcode, length)) as u64;
        let is_last = !self.wants_transmit(ctx.limits);
        self.requester.charge(ctx.now, plan, bytes, is_last);
    }

    /// Returns a congestion notification packet (CNP) for the peer (IBTA annex A17.9.3).
    pub fn notification(&self) -> TxPlan {
        //= IBTA A17.9.3: cnp-answers-a-mark
        let bth = Bth { opcode: Opcode::CNP, becn: true, ..self.context.bth() };
        let (ext, origin) = (Ext::None, Origin::Notification);
        TxPlan { bth, ext, payload_len: 0, inline: None, ah: None, reason: TxReason::Notification, origin }
    }

    /// Returns the inline payload of a planned packet.
    pub fn inline_payload(&self, plan: &TxPlan) -> Option<&[u8]> {
        let (position, offset) = plan.inline?;
        Some(self.requester.window().queue().inline(position, offset, plan.payload_len))
    }
}
