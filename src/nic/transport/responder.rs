//! The responder: executes requests as memory operations and replies (IBTA 9.7.4, 9.7.5.1, 9.9.3).
//!
//! Checks follow the order of the specification: the PSN (expected, ahead, duplicate), then the opcode in the message
//! sequence, then the length, then the access rights. Only a request that passes all checks accesses memory.

use super::check::Check;
use super::early::Early;
use super::message::Message;
use super::planted::PlantedBug;
use super::replies::{Replies, Reply};
use super::rules::{packets_for, write_fits};
use super::scatter::{self, FramePayload, ListError, ReceiveList};
use super::{AtomicOp, Ctx, DmaIn, Qp, TxReason, Verdict};
use crate::verbs::{
    Access, AsyncEvent, EventKind, PdId, QpType, RecvWr, Srqn, Wc, WcFlags, WcOpcode, WcStatus,
};
use roxie_base::limits::{Limits, MAX_SGE};
use roxie_base::time::Nanos;
use roxie_wire::{NakCode, Operation, Packet, Position, Psn, Reth, rnr_timer_ns};

/// An executed READ or atomic, kept for its response and for duplicates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) operation: Operation,
    pub(super) first_psn: Psn,
    pub(super) packets: u32,
    /// Index of the response packet to send next.
    pub(super) next: u32,
    pub(super) reth: Reth,
    pub(super) msn: u32,
    /// Protection domain in which the key was valid.
    pub(super) pd: PdId,
    /// Original value found by an atomic.
    pub(super) result: u64,
    /// True while its reply is queued.
    pub(super) queued: bool,
    pub(super) again: bool,
}

/// Reason why a request is refused.
pub(super) struct RequestRefused {
    pub(super) check: Check,
    /// Completion status of the receive that the request took. `None`: the receive is flushed.
    pub(super) receive: Option<WcStatus>,
}

impl From<Check> for RequestRefused {
    fn from(check: Check) -> RequestRefused {
        RequestRefused { check, receive: None }
    }
}

/// Outcome of a request that passed all checks.
pub(super) enum Executed {
    Done,
    /// No receive is posted.
    NotReady,
}

/// State of the responder.
#[derive(Debug)]
pub(super) struct Responder {
    /// The expected PSN.
    pub(super) expected: Psn,
    /// Number of completed messages, modulo 2^24.
    pub(super) msn: u32,
    pub(super) message: Message,
    pub(super) receive: Option<RecvWr>,
    pub(super) sges: ReceiveList,
    /// Protection domain of the memory in `sges`.
    pub(super) receive_pd: PdId,
    /// XRC: the shared receive queue of the message in progress.
    pub(super) srqn: Srqn,
    /// Packets ahead of `expected` are dropped without a NAK until this time. `Nanos::MAX` after a sequence NAK: until
    /// `expected` arrives. After an RNR NAK, until its wait ends. A packet ahead that arrives after the wait belongs to
    /// the retransmission, and shows that its first packet was lost. Without a NAK, only the peer's timer would reveal
    /// the loss.
    silent_until: Nanos,
    /// Selective repeat, if agreed with the peer.
    pub(super) early: Option<Box<Early>>,
    /// True if the last ACK in the queue answers duplicates only.
    pub(super) answers_duplicates: bool,
    /// Number of packets executed since an acknowledgement was queued.
    unacknowledged: u32,
    pub(super) replies: Replies,
    pub(super) resources: Vec<Option<Resource>>,
    pub(super) next_resource: usize,
}

impl Responder {
    pub(super) fn new(max_sge: u32, receive_pd: PdId) -> Responder {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            message: Message::None,
            receive: None,
            sges: ReceiveList::new((max_sge as usize).min(MAX_SGE)),
            receive_pd,
            srqn: Srqn::default(),
            silent_until: Nanos::ZERO,
            early: None,
            answers_duplicates: false,
            unacknowledged: 0,
            replies: Replies::new(),
            resources: Vec::new(),
            next_resource: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        self.expected = Psn::new(0);
        self.msn = 0;
        self.message = Message::None;
        self.receive = None;
        self.silent_until = Nanos::ZERO;
        self.early = None;
        self.unacknowledged = 0;
        self.replies.clear();
        self.resources.clear();
        self.next_resource = 0;
    }

    /// Applies `max_dest_rd_atomic`: makes room for results, of which a new QP has none. Stored results are kept for
    /// duplicates. The table never shrinks, because the peer
    /// observes the limit by itself.
    pub(super) fn set_resources(&mut self, count: u8) {
        let count = usize::from(count).max(self.resources.len());
        //= IBTA 9.7.5.1: as-many-results-are-kept-as-agreed
        self.resources.resize(count, None);
        self.replies.make_room_for(count);
    }

    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    pub(super) fn atomic_done(&mut self, resource: u8, before: u64) {
        if let Some(Some(resource)) = self.resources.get_mut(usize::from(resource)) {
            resource.result = before;
        }
    }

    /// Drops the pending replies on entry to the error state. A NAK that refuses a request is still sent, and so are
    /// the replies before it, which answer earlier requests.
    pub(super) fn keep_up_to_refusal(&mut self) {
        let is_refusal = |r: &Reply| matches!(r, Reply::Nak { why, .. } if *why != Check::PsnAhead);
        //= IBTA 9.7.5.1: nothing-follows-a-refusal
        self.replies.truncate_behind(is_refusal);
    }

    /// Checks the packet's position: FIRST and ONLY start a message, MIDDLE and LAST continue one of the same kind.
    pub(super) fn check_sequence(&self, packet: &Packet) -> Result<(), Check> {
        let info = packet.info();
        if self.message.admits(info.operation, info.position.begins()) {
            Ok(())
        } else {
            Err(self.out_of_order())
        }
    }

    /// Returns the check that fails when a packet does not continue the message in progress.
    #[cold]
    pub(super) fn out_of_order(&self) -> Check {
        if self.message == Message::None { Check::NotBegun } else { Check::MidMessage }
    }

    /// Returns the reason for sending the ACK at the front of the queue.
    pub(super) fn reason_of_ack(&self) -> TxReason {
        let again = self.answers_duplicates && self.replies.len() == 1;
        if again { TxReason::AnswerAgain } else { TxReason::Answer }
    }

    /// Returns the end of the silence after an RNR NAK or a sequence NAK.
    pub(super) fn silent_until(&self) -> Nanos {
        self.silent_until
    }

    #[inline(always)]
    pub(super) fn acknowledge(&mut self) {
        self.unacknowledged = 0;
        self.answers_duplicates = false;
        let ack = Reply::Ack { psn: self.last_executed(), msn: self.msn };
        if PlantedBug::AckBeforeReadResponse.is() {
            self.replies.push_front(ack);
        } else {
            self.replies.push(ack);
        }
    }

    /// Ends the silence after a NAK: the expected packet has arrived.
    pub(super) fn end_silence(&mut self) {
        self.silent_until = Nanos::ZERO;
    }

    /// Expects the next PSN after an executed SEND or WRITE packet. Queues an ACK if the packet asks for one, or if
    /// `ack_coalesce` packets are unacknowledged.
    #[inline(always)]
    pub(super) fn expect_next(&mut self, ack_req: bool, limits: &Limits) {
        self.expected = self.expected.next();
        self.unacknowledged += 1;
        //= IBTA 9.7.5.1: ack-answers-ack-request
        if ack_req || self.unacknowledged >= limits.ack_coalesce {
            self.acknowledge();
        }
    }

    pub(super) fn message_done(&mut self) {
        //= IBTA 9.7.7.1: msn-counts-messages
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.message = Message::None;
    }

    /// Allocates a resource for a READ or atomic. Returns `None` if the oldest resource's first response is still
    /// queued, so that the peer exceeds its limit. A queued response to a duplicate is dropped instead: a peer within
    /// its limit has the first response already, and the duplicate was a delayed packet.
    fn place_resource(&mut self, resource: Resource) -> Option<u8> {
        let slot = self.next_resource;
        let old = self.resources.get(slot)?.filter(|r| r.queued);
        if let Some(old) = old {
            if !old.again {
                return None;
            }
            self.replies.remove(reply_for(old.operation, slot as u8));
        }
        self.resources[slot] = Some(resource);
        self.next_resource = (slot + 1) % self.resources.len();
        Some(slot as u8)
    }
}

/// Returns the first PSN that a reply answers. `resources`: those of the responder.
pub(super) fn psn_of(reply: &Reply, resources: &[Option<Resource>]) -> Option<Psn> {
    match *reply {
        Reply::Ack { psn, .. }
        | Reply::Nak { psn, .. }
        | Reply::RnrNak { psn, .. }
        | Reply::Sack { psn, .. }
        | Reply::ReadPart(psn) => Some(psn),
        Reply::Read(slot) | Reply::Atomic(slot) => {
            resources.get(usize::from(slot)).and_then(Option::as_ref).map(|it| it.first_psn)
        }
    }
}

impl Qp {
    /// Handles a request packet.
    pub(super) fn handle_request(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        let r = &mut self.responder;
        //= IBTA 9.7.1: psn-half-circle
        let mut ahead = packet.bth.psn.distance_from(r.expected);
        if PlantedBug::PsnCompareWithoutWrap.is() {
            ahead = packet.bth.psn.value() as i32 - r.expected.value() as i32;
        }
        if ahead < 0 && PlantedBug::NoDuplicateCheck.is() && packet.info().position == Position::Only {
            ahead = 0;
        }
        //= IBTA 9.5: requests-are-executed-in-psn-order
        if ahead > 0 {
            ctx.counters.out_of_sequence += 1;
            if r.early.is_some() {
                return self.handle_early(ctx, packet, frame, ahead as u32);
            }
            let (expected, nak) = (r.expected, ctx.now >= r.silent_until);
            if nak {
                r.silent_until = Nanos::MAX;
                //= IBTA 9.7.5.2: gap-is-nakd-once
                r.replies.push(Reply::Nak { psn: expected, msn: r.msn, why: Check::PsnAhead });
            }
            return Verdict::OutOfSequence { expected, nak };
        }
        if ahead < 0 {
            return self.handle_duplicate(ctx, packet);
        }
        r.end_silence();
        let (before, from) = (r.expected, ctx.out.dma_in.len());
        match self.execute(ctx, packet, frame) {
            Ok(Executed::Done) => {
                self.after_request(ctx, packet);
                self.passed_due(ctx, packet, before, from);
                Verdict::Executed
            }
            Ok(Executed::NotReady) => {
                ctx.counters.out_of_buffer += 1;
                ctx.counters.send_rnr_err += 1;
                //= IBTA 9.7.5.2.8: rnr-nak-has-the-qps-timer
                let timer = self.attributes().min_rnr_timer;
                let r = &mut self.responder;
                // Packets ahead are dropped silently during the wait: the peer will send them again.
                //= IBTA 9.7.5.2.8: rnr-nak-is-followed-by-silence
                r.silent_until = match PlantedBug::SilentAfterRnr.is() {
                    false => ctx.now + Nanos(rnr_timer_ns(timer)),
                    true => Nanos::MAX,
                };
                //= IBTA 9.7.5.2.8: rnr-nak-without-a-receive
                r.replies.push(Reply::RnrNak { psn: packet.bth.psn, msn: r.msn, timer });
                Verdict::NotReady
            }
            Err(refusal) => self.refuse(ctx, packet, refusal),
        }
    }

    fn execute(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
    ) -> Result<Executed, RequestRefused> {
        let info = packet.info();
        let (psn, expected) = (packet.bth.psn, self.responder.expected);
        invariant!(psn == expected, "PSN {psn} is executed, {expected} is expected");
        //= IBTA 9.7.4.1: checks-have-an-order, refused-request-changes-nothing
        self.responder.check_sequence(packet)?;
        self.check_length(packet)?;
        if self.qp_type == QpType::XrcRecv {
            self.choose_receives(ctx, packet)?;
        }
        match info.operation {
            Operation::Send => self.execute_send(ctx, packet, frame),
            Operation::Write => self.execute_write(ctx, packet, frame),
            Operation::ReadRequest => self.execute_read(ctx, packet),
            Operation::CompareSwap | Operation::FetchAdd => self.execute_atomic(ctx, packet),
            Operation::AtomicWrite => self.execute_atomic_write(ctx, packet, frame),
            Operation::Flush => self.execute_flush(ctx, packet),
            _ => Err(Check::Opcode.into()),
        }
    }

    fn execute_send(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
    ) -> Result<Executed, RequestRefused> {
        let received = match self.responder.message {
            Message::Send { received } => received,
            _ => {
                let r = &mut self.responder;
                //= IBTA 9.4.1: send-takes-one-receive
                let Some(receive) = ctx.receives.take(&mut r.sges) else { return Ok(Executed::NotReady) };
                r.receive = Some(receive);
                0
            }
        };
        let payload = payload_of(packet, frame);
        let r = &mut self.responder;
        let sges = &r.sges[..r.receive.map_or(0, |w| w.num_sge as usize)];
        scatter::plan(ctx.memory, r.receive_pd, sges, received, payload, ctx.out).map_err(
            |error| match error {
                //= IBTA 9.7.4.1.6: receive-holds-the-message
                ListError::TooShort => {
                    RequestRefused { check: Check::ReceiveLength, receive: Some(WcStatus::LocLen) }
                }
                //= IBTA 9.9.3: receive-memory-is-writable
                ListError::Protection => {
                    RequestRefused { check: Check::ReceiveProtection, receive: Some(WcStatus::LocProt) }
                }
            },
        )?;
        //= IBTA 9.4.1.1.3: send-with-invalidate-invalidates
        if let Some(key) = packet.ieth() {
            self.invalidate(ctx, key)?;
        }
        let received = received + u64::from(payload.length);
        ctx.counters.rcvd_bytes += u64::from(payload.length);
        self.responder.message = Message::Send { received };
        if is_last(packet) {
            ctx.counters.rdma_recvs += 1;
            self.complete_receive(ctx, packet, WcOpcode::Recv, received);
            self.responder.message_done();
        }
        Ok(Executed::Done)
    }

    fn execute_write(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
    ) -> Result<Executed, RequestRefused> {
        let (reth, received) = match (self.responder.message, packet.reth()) {
            (Message::Write { reth, received }, _) => (reth, received),
            (_, Some(reth)) => {
                self.check_write_start(ctx, &reth)?;
                (reth, 0)
            }
            (_, None) => return Err(Check::Opcode.into()),
        };
        let payload = payload_of(packet, frame);
        let after = received + u64::from(payload.length);
        let total = u64::from(reth.dma_len);
        if !write_fits(after, total, is_last(packet)) {
            return Err(Check::MessageLength.into());
        }
        //= IBTA 9.4.3: write-takes-no-receive
        let with_imm = packet.imm().is_some();
        //= IBTA 9.4.3: write-with-immediate-takes-a-receive
        if with_imm {
            let r = &mut self.responder;
            let Some(receive) = ctx.receives.take(&mut r.sges) else { return Ok(Executed::NotReady) };
            r.receive = Some(receive);
        }
        if payload.length > 0 {
            //= IBTA 9.7.4.1.5: key-is-checked-with-each-packet
            // The region may have been deregistered since the first packet.
            let va = reth.va.wrapping_add(received);
            let FramePayload { frame, offset, length } = payload.written(packet.bth.pad);
            let to = self
                .check_remote(ctx, va, reth.rkey, length.into(), Access::REMOTE_WRITE)
                .map_err(|check| RequestRefused { check, receive: Some(WcStatus::LocAccess) })?;
            ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
        }
        ctx.counters.rcvd_bytes += u64::from(payload.length);
        self.responder.message = Message::Write { reth, received: after };
        if is_last(packet) {
            ctx.counters.rx_write_requests += 1;
            if with_imm {
                self.complete_receive(ctx, packet, WcOpcode::RecvWriteImm, total);
            }
            self.responder.message_done();
        }
        Ok(Executed::Done)
    }

    pub(super) fn check_write_start(&self, ctx: &Ctx<'_>, reth: &Reth) -> Result<(), RequestRefused> {
        self.check_allowed(Access::REMOTE_WRITE, reth)?;
        //= IBTA 9.7.4.1.5: empty-access-checks-no-key
        // The key of an empty WRITE is not checked (IBTA 9.7.4.1.5).
        if reth.dma_len > 0 {
            //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole
            self.check_remote(ctx, reth.va, reth.rkey, reth.dma_len.into(), Access::REMOTE_WRITE)?;
        }
        Ok(())
    }

    fn execute_read(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Result<Executed, RequestRefused> {
        let reth = packet.reth().ok_or(Check::Opcode)?;
        self.check_allowed(Access::REMOTE_READ, &reth)?;
        if reth.dma_len > 0 {
            self.check_remote(ctx, reth.va, reth.rkey, reth.dma_len.into(), Access::REMOTE_READ)?;
        }
        let packets = packets_for(reth.dma_len.into(), self.attributes().path_mtu.bytes());
        self.enqueue_resource(Operation::ReadRequest, packet.bth.psn, packets, reth)?;
        ctx.counters.rx_read_requests += 1;
        Ok(Executed::Done)
    }

    fn execute_atomic(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Result<Executed, RequestRefused> {
        let eth = packet.atomic_eth().ok_or(Check::Opcode)?;
        if !self.attributes().access.contains(Access::REMOTE_ATOMIC) {
            return Err(Check::NotEnabled.into());
        }
        let at = self.check_aligned(ctx, eth.va, eth.rkey, Access::REMOTE_ATOMIC)?;
        let is_swap = packet.info().operation == Operation::CompareSwap;
        let operation = if is_swap {
            AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_or_add }
        };
        let reth = Reth { va: eth.va, rkey: eth.rkey, dma_len: 8 };
        let kind = Operation::AtomicAcknowledge;
        let resource = self.enqueue_resource(kind, packet.bth.psn, 1, reth)?;
        ctx.out.push_dma(DmaIn::Atomic { qp: self.index, resource, at, operation });
        ctx.counters.rx_atomic_requests += 1;
        Ok(Executed::Done)
    }

    /// Allocates a resource and queues its reply. Fails if the peer exceeds the agreed number of READs and atomics.
    pub(super) fn enqueue_resource(
        &mut self,
        operation: Operation,
        psn: Psn,
        packets: u32,
        reth: Reth,
    ) -> Result<u8, Check> {
        let pd = self.pd;
        let r = &mut self.responder;
        let msn = (r.msn + 1) & 0xff_ffff;
        let resource = r.place_resource(Resource {
            operation,
            first_psn: psn,
            packets,
            next: 0,
            reth,
            msn,
            pd,
            result: 0,
            queued: true,
            again: false,
        });
        //= IBTA 9.7.4.1: responder-resources-suffice
        let resource = resource.ok_or(Check::Resources)?;
        r.replies.push(reply_for(operation, resource));
        r.message_done();
        Ok(resource)
    }

    /// Expects the next PSN after an executed request, and queues an acknowledgement if one is due.
    fn after_request(&mut self, ctx: &Ctx<'_>, packet: &Packet) {
        let r = &mut self.responder;
        let operation = packet.info().operation;
        //= IBTA 9.7.5.1: read-response-acknowledges-what-is-before
        let answers_itself = !matches!(operation, Operation::Send | Operation::Write);
        if answers_itself {
            // The response acknowledges the request.
            let packets = match packet.reth().filter(|_| operation == Operation::ReadRequest) {
                Some(reth) => packets_for(reth.dma_len.into(), self.attributes().path_mtu.bytes()),
                None => 1,
            };
            let r = &mut self.responder;
            //= IBTA 9.7.4: responder-counts-read-responses
            r.expected = r.expected + packets;
            r.unacknowledged = 0;
            return;
        }
        r.expect_next(packet.bth.ack_req, ctx.limits);
    }

    /// Queues the NAK, completes the receive in error if one was taken, raises the event, and enters the error state.
    pub(super) fn refuse(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, refusal: RequestRefused) -> Verdict {
        let r = &mut self.responder;
        let nak = Reply::Nak { psn: packet.bth.psn, msn: r.msn, why: refusal.check };
        r.replies.push_last(nak);
        let kind = match refusal.check.nak() {
            NakCode::RemoteAccess => {
                ctx.counters.resp_remote_access_errors += 1;
                EventKind::QpAccessError
            }
            NakCode::RemoteOperational => EventKind::QpFatal,
            _ => {
                ctx.counters.resp_invalid_requests += 1;
                EventKind::QpRequestError
            }
        };
        //= IBTA 9.9.3: failing-receive-carries-the-cause
        if let Some(status) = refusal.receive
            && let Some(receive) = r.receive.take()
        {
            ctx.counters.resp_cqe_error += 1;
            ctx.counters.resp_local_length_error += u64::from(status == WcStatus::LocLen);
            let wc =
                Wc { wr_id: receive.wr_id, status, opcode: WcOpcode::Recv, qpn: self.qpn, ..Wc::default() };
            ctx.out.completions.push((self.recv_cq, wc));
        }
        //= IBTA 9.9.3: responder-error-ends-rc
        ctx.out.events.push(AsyncEvent::Qp(self.index, kind));
        self.enter_error(ctx);
        Verdict::Refused(refusal.check)
    }

    pub(super) fn complete_receive(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        opcode: WcOpcode,
        bytes: u64,
    ) {
        let mut flags = WcFlags::empty();
        //= IBTA 9.4.1: immediate-is-delivered
        flags.set(WcFlags::WITH_IMM, packet.imm().is_some());
        flags.set(WcFlags::WITH_INV, packet.ieth().is_some());
        flags.set(WcFlags::SOLICITED, packet.bth.solicited);
        let imm = packet.imm().or_else(|| packet.ieth()).unwrap_or(0);
        self.finish_receive(ctx, opcode, bytes, flags, imm);
    }

    /// Completes the receive of a message of `bytes` bytes.
    pub(super) fn finish_receive(
        &mut self,
        ctx: &mut Ctx<'_>,
        opcode: WcOpcode,
        bytes: u64,
        flags: WcFlags,
        imm: u32,
    ) {
        let Some(receive) = self.responder.receive.take() else { return };
        let (wr_id, qpn, byte_len) = (receive.wr_id, self.qpn, bytes as u32);
        let wc = Wc { wr_id, opcode, flags, qpn, byte_len, imm, ..Wc::default() };
        ctx.out.completions.push((self.recv_cq, wc));
    }
}

pub(super) fn reply_for(operation: Operation, resource: u8) -> Reply {
    match operation {
        Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicAcknowledge => {
            Reply::Atomic(resource)
        }
        // ATOMIC WRITE and FLUSH are answered like an empty READ.
        _ => Reply::Read(resource),
    }
}

pub(super) fn payload_of(packet: &Packet, frame: u16) -> FramePayload {
    FramePayload { frame, offset: packet.payload.start as u16, length: packet.payload.len() as u16 }
}

pub(super) fn is_last(packet: &Packet) -> bool {
    packet.info().position.ends()
}
