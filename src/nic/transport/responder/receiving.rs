//! The message that a QP receives, and the receive that it takes.

use crate::transport::message::Message;
use crate::transport::rules::is_last;
use crate::transport::scatter::{self, FramePayload, ListError, ReceiveList};
use crate::transport::{Check, Ctx, MemoryTable, QpConfig, QpContext, ReceiveQueue, Span};
use crate::verbs::{Access, CqIndex, PdId, RecvWr, Sge, Wc, WcFlags, WcOpcode, WcStatus};
use roxie_base::limits::MAX_SGE;
use roxie_wire::Packet;

/// The message in progress and its receive.
#[derive(Debug)]
pub(super) struct Receiving {
    message: Message,
    receive: Option<RecvWr>,
    list: ReceiveList,
    /// Protection domain of the memory in `list`.
    pd: PdId,
    /// Completion queue of the receives.
    cq: CqIndex,
}

impl Receiving {
    pub(super) fn new(config: &QpConfig) -> Receiving {
        Receiving {
            message: Message::None,
            receive: None,
            list: ReceiveList::new((config.init.caps.max_recv_sge as usize).min(MAX_SGE)),
            //= IBTA 10.2.9.1: srq-lists-are-of-its-domain
            pd: config.srq_pd.unwrap_or(config.pd),
            cq: config.recv_cq,
        }
    }

    /// Forgets the message and its receive, without a completion.
    pub(super) fn reset(&mut self) {
        (self.message, self.receive) = (Message::None, None);
    }

    /// Returns the message in progress.
    pub(super) fn message(&self) -> Message {
        self.message
    }

    /// Checks the packet's position: FIRST and ONLY start a message, MIDDLE and LAST continue one of the same kind.
    pub(super) fn check_sequence(&self, packet: &Packet) -> Result<(), Check> {
        let info = packet.info();
        match self.message {
            message if message.admits(info.operation, info.position.begins()) => Ok(()),
            Message::None => Err(Check::NotBegun),
            _ => Err(Check::MidMessage),
        }
    }

    /// Sets the message in progress.
    pub(super) fn set(&mut self, message: Message) {
        self.message = message;
    }

    /// Returns the completion queue of the receives.
    pub(super) fn cq(&self) -> CqIndex {
        self.cq
    }

    /// Takes receives of another queue from now on, with lists of domain `pd`.
    pub(super) fn take_from(&mut self, pd: PdId, cq: CqIndex) {
        (self.pd, self.cq) = (pd, cq);
    }

    /// Takes the next receive for a new message. Returns false if there is none.
    pub(super) fn take(&mut self, receives: &mut dyn ReceiveQueue) -> bool {
        let taken = receives.take(&mut self.list);
        self.receive = taken.or(self.receive);
        taken.is_some()
    }

    /// Returns the receive of a message that was dropped, or takes the next one. `None` if there is none.
    pub(super) fn keep_or_take(&mut self, receives: &mut dyn ReceiveQueue) -> bool {
        self.receive.is_some() || self.take(receives)
    }

    /// Returns the buffer for the list of a receive that the caller takes.
    pub(super) fn list_mut(&mut self) -> &mut [Sge] {
        &mut self.list
    }

    /// Sets the receive that was taken with the list in `list_mut`.
    pub(super) fn hold(&mut self, receive: Option<RecvWr>) {
        self.receive = receive.or(self.receive);
    }

    fn list(&self) -> &[Sge] {
        &self.list[..self.receive.map_or(0, |receive| receive.num_sge as usize)]
    }

    /// Appends the copies of a packet's payload to byte `offset` of the receive. On error nothing was appended.
    ///
    /// # Errors
    /// If the receive is too short, or names memory that is not writable.
    pub(super) fn scatter(
        &self,
        ctx: &mut Ctx<'_>,
        offset: u64,
        payload: FramePayload,
    ) -> Result<(), ListError> {
        scatter::plan(ctx.memory, self.pd, self.list(), offset, payload, ctx.out)
    }

    /// Appends stores of zeros to the first `length` bytes of the receive, as [`scatter`](Self::scatter) does.
    pub(super) fn zero(&self, ctx: &mut Ctx<'_>, length: u64) -> Result<(), ListError> {
        scatter::zero(ctx.memory, self.pd, self.list(), length, ctx.out)
    }

    /// Returns where `length` bytes at `offset` of `receive` lie, or of the receive at hand. `None` if its list has
    /// more than one entry, or does not allow the access.
    #[inline(always)]
    pub(super) fn place(
        &self,
        memory: &MemoryTable,
        receive: Option<RecvWr>,
        offset: u64,
        length: u64,
    ) -> Option<Span> {
        let list = self.list.get(..receive.or(self.receive)?.num_sge as usize)?;
        //= IBTA 9.9.3: receive-memory-is-writable
        scatter::one(memory, self.pd, list, offset, length, Access::LOCAL_WRITE)
    }

    /// Returns the receive at hand, which its completion ends.
    pub(super) fn end(&mut self) -> Option<RecvWr> {
        self.receive.take()
    }

    /// Completes the receive, if there is one, as `wc` says.
    pub(super) fn finish(&mut self, ctx: &mut Ctx<'_>, wc: Wc) {
        if let Some(RecvWr { wr_id, .. }) = self.receive.take() {
            ctx.out.completions.push((self.cq, Wc { wr_id, ..wc }));
        }
    }

    /// Counts the payload of a SEND's packet, which follows `before` bytes of the message. If the packet is the last
    /// one, completes the receive and returns true.
    pub(super) fn part_of_send(
        &mut self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        before: u64,
        length: u16,
    ) -> bool {
        let received = before + u64::from(length);
        ctx.counters.rcvd_bytes += u64::from(length);
        self.message = Message::Send { received };
        let is_last = is_last(packet);
        if is_last {
            ctx.counters.rdma_recvs += 1;
            self.complete(qp, ctx, packet, WcOpcode::Recv, received);
        }
        is_last
    }

    /// Completes the receive of a message of `bytes` bytes, which `packet` ends.
    pub(super) fn complete(
        &mut self,
        qp: &QpContext,
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
        self.finish(ctx, Wc { opcode, flags, qpn: qp.qpn, byte_len: bytes as u32, imm, ..Wc::default() });
    }

    /// Fails the receive. Returns false if there is none.
    pub(super) fn fail(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, status: WcStatus) -> bool {
        let is_held = self.receive.is_some();
        ctx.counters.resp_cqe_error += u64::from(is_held);
        self.finish(ctx, Wc { status, opcode: WcOpcode::Recv, qpn: qp.qpn, ..Wc::default() });
        is_held
    }

    /// Flushes the receive, if there is one.
    pub(super) fn flush(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        self.message = Message::None;
        ctx.counters.resp_cqe_flush_error += u64::from(self.receive.is_some());
        let status = WcStatus::WrFlush;
        self.finish(ctx, Wc { status, opcode: WcOpcode::Recv, qpn: qp.qpn, ..Wc::default() });
    }

    /// Takes back a receive: its completion was withdrawn.
    pub(super) fn take_back(&mut self, wr_id: u64) {
        self.receive = Some(RecvWr { wr_id, num_sge: 0 });
    }
}
