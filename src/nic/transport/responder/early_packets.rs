//! Selective repeat, the responder's half: packets that came early, before others that are missing (in the manner of
//! IRN, SIGCOMM 2018, 3.1 and 5.3).
//!
//! A packet is placed early only where it is certain where its bytes go:
//!
//! * packets of the message in progress. A SEND's receive is taken, a WRITE's address is known. The end of a SEND is
//!   not known, so that no two adjacent packets before this one may be missing: they could end one message and begin
//!   the next;
//! * WRITEs behind it, of which the first packet came: it names the memory. A few are remembered.
//!
//! All other packets are dropped and asked for again: later SENDs, READs, atomics, immediate data, invalidations. No
//! payload is kept anywhere but in its place. An early packet is never refused: it is dropped, and judged when it is
//! due.
//!
//! When the missing packet comes, the expected PSN advances over those that came early, and completions, counters and
//! acknowledgements follow in order. Bytes that a later WRITE has placed early are cut out of it, so that the later of
//! two WRITEs stays the later one.

use super::early::{Early, SendEnd};
use super::early_writes::EarlyWrite;
use super::{Received, Reply, Responder};
use crate::transport::message::Message;
use crate::transport::rules::{length_fits, packets_for};
use crate::transport::scatter::FramePayload;
use crate::transport::{Ctx, DmaIn, QpContext, Span, Verdict};
use crate::verbs::{Access, Wc, WcFlags, WcOpcode};
use roxie_wire::{Operation, Position, Psn, Reth};

/// Destination of an early packet.
enum EarlyPlace {
    /// The receive of the SEND in progress, at this offset.
    Receive(u64),
    /// These bytes of the WRITE in progress, of a remembered one, or of one that begins.
    Memory { to: Reth, begins: Option<Reth> },
}

impl Responder {
    /// Handles a request ahead of the expected PSN: places it if it is certain where its bytes go, and asks for what is
    /// missing.
    pub(super) fn on_early(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>, ahead: u32) -> Verdict {
        let Received { packet, .. } = request;
        let expected = self.expected;
        // During an RNR wait the peer sends everything again anyway.
        if ctx.now < self.silent_until {
            return Verdict::OutOfSequence { expected, nak: false };
        }
        let known = self.early.as_ref().is_some_and(|early| early.has(ahead));
        let is_placed = known || self.place_early(ctx, request, ahead);
        if let Some(early) = &mut self.early {
            early.note(packet.bth.psn, ahead, is_placed);
        }
        self.request_missing();
        ctx.counters.early_kept += u64::from(is_placed && !known);
        Verdict::Early { expected, is_placed }
    }

    /// Places the payload of an early packet. Returns false if the packet is not to be kept.
    fn place_early(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>, ahead: u32) -> bool {
        let Received { qp, packet, frame } = request;
        let is_plain = packet.imm().is_none() && packet.ieth().is_none() && Early::reaches(ahead);
        let (length, ends) = (packet.payload.len(), packet.info().position.ends());
        if !is_plain || length == 0 || !length_fits(length, qp.mtu(), ends) {
            return false;
        }
        let place = match packet.info().operation {
            Operation::Send => self.place_in_receive(request, ahead),
            Operation::Write => self.place_in_memory(request, ahead),
            _ => None,
        };
        let Some(place) = place else { return false };
        let payload = FramePayload::of(packet, frame);
        let before = ctx.out.dma_in.len();
        let psn = packet.bth.psn;
        let placed = match &place {
            EarlyPlace::Receive(offset) => self.receiving.scatter(ctx, *offset, payload).is_ok(),
            EarlyPlace::Memory { to, begins } => self.plan_early_write(qp, ctx, payload, to, begins.as_ref()),
        };
        let Some(early) = self.early.as_mut().filter(|_| placed) else { return false };
        match place {
            EarlyPlace::Receive(_) if ends => {
                early.note_end(SendEnd { psn, length: length as u16, solicited: packet.bth.solicited });
            }
            EarlyPlace::Memory { begins: Some(reth), .. } => early.note_write(psn, reth),
            _ => {}
        }
        self.yield_to_later(qp, ctx, before, psn);
        ctx.counters.rcvd_bytes += length as u64;
        true
    }

    /// Returns the place of a packet of the SEND in progress.
    fn place_in_receive(&self, Received { qp, packet, .. }: Received<'_>, ahead: u32) -> Option<EarlyPlace> {
        let early = self.early.as_ref()?;
        let Message::Send { received } = self.receiving.message() else { return None };
        let continues = matches!(packet.info().position, Position::Middle | Position::Last);
        let is_of_send = continues && early.is_of_send(packet.bth.psn, ahead, self.expected);
        is_of_send.then(|| EarlyPlace::Receive(received + u64::from(ahead) * qp.mtu() as u64))
    }

    /// Returns the place of a packet of a WRITE whose address is known.
    fn place_in_memory(&self, Received { qp, packet, .. }: Received<'_>, ahead: u32) -> Option<EarlyPlace> {
        let (psn, early) = (packet.bth.psn, self.early.as_ref()?);
        let mtu = qp.mtu();
        let position = packet.info().position;
        let (reth, index, begins) = match packet.reth() {
            Some(reth) => early.has_room(reth.rkey).then_some((reth, 0, Some(reth)))?,
            None => match self.receiving.message() {
                Message::Write { reth, received }
                    if u64::from(ahead) * mtu as u64 + received < u64::from(reth.dma_len) =>
                {
                    (reth, (received / mtu as u64) as u32 + ahead, None)
                }
                _ => {
                    let write = early.write_of(psn, self.expected)?;
                    (write.reth, psn.distance_from(write.first) as u32, None)
                }
            },
        };
        let total = u64::from(reth.dma_len);
        let offset = u64::from(index) * mtu as u64;
        let is_last = index + 1 == packets_for(total, mtu);
        let length = packet.payload.len();
        let fits = (index == 0) == position.begins()
            && is_last == position.ends()
            && length as u64 == total.saturating_sub(offset).min(mtu as u64);
        let to = Reth { va: reth.va.wrapping_add(offset), dma_len: length as u32, ..reth };
        fits.then_some(EarlyPlace::Memory { to, begins })
    }

    /// Checks an early WRITE packet as one that is due, and appends its copy.
    fn plan_early_write(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        payload: FramePayload,
        to: &Reth,
        begins: Option<&Reth>,
    ) -> bool {
        if begins.is_some_and(|reth| self.check_write_start(qp, ctx, reth).is_err()) {
            return false;
        }
        let FramePayload { frame, offset, length } = payload;
        let Ok(to) = self.check_key(qp, ctx, to, Access::REMOTE_WRITE) else { return false };
        ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
        true
    }

    /// Cuts the bytes of later WRITEs that came early out of the operations from number `from` on. `psn`: the packet
    /// that these operations belong to.
    fn yield_to_later(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, from: usize, psn: Psn) {
        let Some(early) = self.early.as_ref().filter(|early| !early.has_no_writes()) else { return };
        for write in early.writes_behind(psn, self.expected) {
            let mut number = from;
            while number < ctx.out.dma_in.len() {
                self.yield_write(qp, ctx, &write, number);
                number += 1;
            }
        }
        let mut number = 0;
        ctx.out.dma_in.retain(|operation| {
            number += 1;
            number <= from || !matches!(operation, DmaIn::Scatter { length: 0, .. })
        });
    }

    /// Cuts the bytes of an early WRITE out of operation `number`. Regions may share memory, and an atomic reads what
    /// it changes: then the WRITE is taken back, and asked for again.
    fn yield_write(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, write: &EarlyWrite, number: usize) {
        let EarlyWrite { first, reth } = *write;
        let Some((to, length)) = written(&ctx.out.dma_in[number]) else { return };
        let (mtu, total) = (qp.mtu() as u64, u64::from(reth.dma_len));
        let index = first.distance_from(self.expected).max(0) as u32;
        let at = self.check_key(qp, ctx, &reth, Access::REMOTE_WRITE);
        let Some(early) = &mut self.early else { return };
        let same = at.ok().filter(|at| at.mr == to.mr);
        let (start, end) = match same {
            Some(at) => (to.offset.max(at.offset), (to.offset + length).min(at.offset + total)),
            None => (0, 1),
        };
        if start >= end {
            return;
        }
        let (Some(at), DmaIn::Scatter { .. }) = (same, &ctx.out.dma_in[number]) else {
            early.take_back_write(first, index, packets_for(total, mtu as usize));
            return;
        };
        for k in (start - at.offset) / mtu..=(end - 1 - at.offset) / mtu {
            if early.has(index + k as u32) {
                let covered = at.offset + k * mtu..at.offset + ((k + 1) * mtu).min(total);
                cut(&mut ctx.out.dma_in, number, covered);
            }
        }
    }

    /// Moves on after the request `packet` was executed. `before`: the expected PSN before; `from`: number of the first
    /// of its operations.
    pub(super) fn passed_due(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>, before: Psn, from: usize) {
        let Received { qp, packet, .. } = request;
        let psn = packet.bth.psn;
        let Some(early) = self.early.as_mut().filter(|early| !early.is_empty()) else { return };
        early.executed(psn, (self.expected - before.value()).value(), before, packet.ieth().is_some());
        self.yield_to_later(qp, ctx, from, psn);
    }

    /// Advances over the packets that came early and are due now. Called after a request was executed.
    pub(crate) fn advance_over_early(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        let mut passed = false;
        while self.early.as_ref().is_some_and(|early| early.is_due()) {
            passed = true;
            if !self.pass_early(qp, ctx) {
                break;
            }
        }
        let Some(early) = &mut self.early else { return };
        if self.receiving.message() == Message::None {
            early.forget_end();
        }
        if !early.is_empty() {
            self.request_missing();
        } else if passed {
            self.acknowledge();
        }
    }

    /// Passes the early packet that is due. Returns false if it has no place in a message, and must come again.
    fn pass_early(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> bool {
        let mtu = qp.mtu() as u64;
        let Some(early) = &mut self.early else { return false };
        let expected = self.expected;
        let message = match (self.receiving.message(), early.write_at(expected)) {
            (Message::None, Some(write)) => Message::Write { reth: write.reth, received: 0 },
            // The message ended earlier than its packets said.
            (Message::None, None) => {
                early.drop_due();
                return false;
            }
            (message, _) => message,
        };
        early.pass(1, expected);
        self.expected = expected.next();
        match message {
            Message::Send { received } => {
                let end = early.take_end(expected);
                let received = received + end.map_or(mtu, |end| end.length.into());
                self.receiving.set(Message::Send { received });
                if let Some(end) = end {
                    ctx.counters.rdma_recvs += 1;
                    let mut flags = WcFlags::empty();
                    flags.set(WcFlags::SOLICITED, end.solicited);
                    let (opcode, byte_len) = (WcOpcode::Recv, received as u32);
                    self.receiving.finish(ctx, Wc { opcode, flags, qpn: qp.qpn, byte_len, ..Wc::default() });
                    self.message_done();
                }
            }
            Message::Write { reth, received } => {
                let total = u64::from(reth.dma_len);
                let received = received + mtu.min(total.saturating_sub(received));
                self.receiving.set(Message::Write { reth, received });
                if received >= total {
                    ctx.counters.rx_write_requests += 1;
                    self.message_done();
                }
            }
            Message::None => {}
        }
        true
    }

    /// Forgets that the packet came early, because its bytes could not be stored. Returns `None` if it did not come
    /// early.
    pub(crate) fn early_failed(&mut self, psn: Psn) -> Option<Verdict> {
        let ahead = psn.distance_from(self.expected);
        let early = self.early.as_mut().filter(|_| ahead > 0)?;
        early.take_back(psn, ahead as u32);
        Some(Verdict::Early { expected: self.expected, is_placed: false })
    }

    /// Queues a selective acknowledgement.
    fn request_missing(&mut self) {
        let (psn, msn) = (self.expected, self.msn);
        let may_be_ack = !self.resources.answers(psn - 1);
        self.replies.push(Reply::Sack { psn, msn, may_be_ack });
    }
}

/// Cuts a range of bytes out of copy `number`. A second piece goes to the end of the list.
fn cut(operations: &mut Vec<DmaIn>, number: usize, covered: std::ops::Range<u64>) {
    let DmaIn::Scatter { frame, offset, length, to } = operations[number] else { return };
    let (start, end) = (to.offset, to.offset + u64::from(length));
    if covered.end <= start || end <= covered.start {
        return;
    }
    let before = covered.start.saturating_sub(start) as u16;
    operations[number] = DmaIn::Scatter { frame, offset, length: before, to };
    if covered.end < end {
        let skipped = covered.end - start;
        let (offset, to) = (offset + skipped as u16, Span { offset: covered.end, ..to });
        operations.push(DmaIn::Scatter { frame, offset, length: length - skipped as u16, to });
    }
}

/// Returns the memory that an operation for a request overwrites.
fn written(operation: &DmaIn) -> Option<(Span, u64)> {
    match *operation {
        DmaIn::Scatter { to, length, .. } => Some((to, length.into())),
        DmaIn::AtomicWrite { to, .. } => Some((to, 8)),
        DmaIn::Atomic { at, .. } => Some((at, 8)),
        DmaIn::Flush { .. } | DmaIn::Store { .. } => None,
    }
}
