//! Selective repeat, the responder's half: packets that came early, before others that are missing (in the manner of IRN, SIGCOMM
//! 2018, 3.1 and 5.3).
//!
//! A packet is placed early only where it is certain where its bytes go:
//!
//! * packets of the message in progress. A SEND's receive is taken, a WRITE's address is known. The end of a SEND is not known, so
//!   that no two adjacent packets before this one may be missing: they could end one message and begin the next;
//! * WRITEs behind it, of which the first packet came: it names the memory. A few are remembered.
//!
//! All other packets are dropped and asked for again: later SENDs, READs, atomics, immediate data, invalidations. No payload is
//! kept anywhere but in its place. An early packet is never refused: it is dropped, and judged when it is due.
//!
//! When the missing packet comes, the expected PSN advances over those that came early, and completions, counters and
//! acknowledgements follow in order. Bytes that a later WRITE has placed early are cut out of it, so that the later of two WRITEs
//! stays the later one.

use super::early::{Early, SendEnd};
use super::early_writes::EarlyWrite;
use super::message::Message;
use super::planted::PlantedBug;
use super::replies::Reply;
use super::responder::{Responder, payload_of};
use super::rules::{length_fits, packets_for};
use super::scatter::{self, FramePayload};
use super::{Ctx, DmaIn, Qp, Span, Verdict};
use crate::verbs::{Access, QpType, WcFlags, WcOpcode};
use roxie_wire::{Operation, Packet, Position, Psn, Reth};

/// Destination of an early packet.
enum Place {
    /// The receive of the SEND in progress, at this offset.
    Receive(u64),
    /// This address of the WRITE in progress, or of a remembered one.
    Memory { va: u64, rkey: u32, begins: Option<Reth> },
}

impl Qp {
    /// True if packets came early that are not passed yet.
    pub(crate) fn has_early(&self) -> bool {
        self.responder.early.as_ref().is_some_and(|early| !early.is_empty())
    }

    /// True for an RC QP to which nothing came early. [`Qp::takes_fast_path`] remembers the answer.
    pub(super) fn may_take_fast_path(&self) -> bool {
        self.qp_type == QpType::Rc
            && !self.parked
            && !self.has_early()
            && !self.requester.has_early_responses()
    }

    /// Handles a request ahead of the expected PSN: places it if it is certain where its bytes go, and asks for what is missing.
    pub(super) fn handle_early(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
        ahead: u32,
    ) -> Verdict {
        let expected = self.responder.expected;
        // During an RNR wait the peer sends everything again anyway.
        if ctx.now < self.responder.silent_until() {
            return Verdict::OutOfSequence { expected, nak: false };
        }
        let bit = 1u128.checked_shl(ahead).unwrap_or(0);
        let known = self.responder.early.as_ref().is_some_and(|early| early.came & bit != 0);
        let kept = known || (bit != 0 && self.place_early(ctx, packet, frame, ahead));
        let r = &mut self.responder;
        if let Some(early) = &mut r.early {
            early.came |= if kept { bit } else { 0 };
            early.seen = early.seen.max(ahead + 1);
            early.latest = packet.bth.psn;
        }
        r.ask_for_missing();
        self.note_fast_path();
        ctx.counters.early_kept += u64::from(kept && !known);
        Verdict::Early { expected, kept }
    }

    /// Places the payload of an early packet. Returns false if the packet is not to be kept.
    fn place_early(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16, ahead: u32) -> bool {
        let is_plain = packet.imm().is_none() && packet.ieth().is_none();
        let mtu = self.attributes().path_mtu.bytes();
        let (length, ends) = (packet.payload.len(), packet.info().position.ends());
        if !is_plain || length == 0 || !length_fits(length, mtu, ends) {
            return false;
        }
        let place = match packet.info().operation {
            Operation::Send => self.place_in_receive(packet, ahead),
            Operation::Write => self.place_in_memory(packet, ahead),
            _ => None,
        };
        let Some(place) = place else { return false };
        let payload = payload_of(packet, frame);
        let before = ctx.out.dma_in.len();
        let psn = packet.bth.psn;
        let placed = match place {
            Place::Receive(offset) => {
                let r = &self.responder;
                let sges = &r.sges[..r.receive.map_or(0, |wr| wr.num_sge as usize)];
                scatter::plan(ctx.memory, r.receive_pd, sges, offset, payload, ctx.out).is_ok()
            }
            Place::Memory { va, rkey, begins } => self.plan_early_write(ctx, payload, va, rkey, begins),
        };
        let Some(early) = self.responder.early.as_mut().filter(|_| placed) else { return false };
        match place {
            Place::Receive(_) if ends => {
                let (length, solicited) = (length as u16, packet.bth.solicited);
                early.send_end = Some(SendEnd { psn, length, solicited });
            }
            Place::Memory { begins: Some(reth), .. } => {
                early.writes.add(EarlyWrite { first: psn, reth });
            }
            _ => {}
        }
        self.yield_to_later(ctx, before, psn);
        ctx.counters.rcvd_bytes += length as u64;
        true
    }

    /// Returns the place of a packet of the SEND in progress.
    fn place_in_receive(&self, packet: &Packet, ahead: u32) -> Option<Place> {
        let (r, early) = (&self.responder, self.responder.early.as_ref()?);
        let Message::Send { received } = r.message else { return None };
        let continues = matches!(packet.info().position, Position::Middle | Position::Last);
        let psn = packet.bth.psn;
        let is_behind = early.send_end.is_some_and(|end| end.psn.is_before(psn));
        let is_certain = !early.has_wide_gap(ahead) || PlantedBug::WideGapsAreIgnored.is();
        if !continues || is_behind || !is_certain {
            return None;
        }
        let other = early.writes.iter(r.expected).any(|write| write.first.is_before(psn));
        let mtu = self.attributes().path_mtu.bytes() as u64;
        (!other).then_some(Place::Receive(received + u64::from(ahead) * mtu))
    }

    /// Returns the place of a packet of a WRITE whose address is known.
    fn place_in_memory(&self, packet: &Packet, ahead: u32) -> Option<Place> {
        let (psn, early) = (packet.bth.psn, self.responder.early.as_ref()?);
        let mtu = self.attributes().path_mtu.bytes();
        let position = packet.info().position;
        let (reth, index, begins) = match packet.reth() {
            Some(reth) => early.writes.has_room(reth.rkey).then_some((reth, 0, Some(reth)))?,
            None => match self.responder.message {
                Message::Write { reth, received }
                    if u64::from(ahead) * mtu as u64 + received < u64::from(reth.dma_len) =>
                {
                    (reth, (received / mtu as u64) as u32 + ahead, None)
                }
                _ => {
                    let began = |write: &EarlyWrite| !psn.is_before(write.first);
                    let newest = |write: &EarlyWrite| psn.distance_from(write.first);
                    let write =
                        early.writes.iter(self.responder.expected).filter(began).min_by_key(newest)?;
                    (write.reth, psn.distance_from(write.first) as u32, None)
                }
            },
        };
        let total = u64::from(reth.dma_len);
        let offset = u64::from(index) * mtu as u64;
        let is_last = index + 1 == packets_for(total, mtu);
        let fits = (index == 0) == position.begins()
            && is_last == position.ends()
            && packet.payload.len() as u64 == total.saturating_sub(offset).min(mtu as u64);
        let va = reth.va.wrapping_add(offset);
        fits.then_some(Place::Memory { va, rkey: reth.rkey, begins })
    }

    /// Checks an early WRITE packet as one that is due, and appends its copy.
    fn plan_early_write(
        &self,
        ctx: &mut Ctx<'_>,
        payload: FramePayload,
        va: u64,
        rkey: u32,
        begins: Option<Reth>,
    ) -> bool {
        if begins.is_some_and(|reth| self.check_write_start(ctx, &reth).is_err()) {
            return false;
        }
        let FramePayload { frame, offset, length } = payload;
        let checked = self.check_remote(ctx, va, rkey, length.into(), Access::REMOTE_WRITE);
        let Ok(to) = checked else { return false };
        ctx.out.push_dma(DmaIn::Scatter { frame, offset, length, to });
        true
    }

    /// Cuts the bytes of later WRITEs that came early out of the operations from number `from` on. `psn`: the packet that these
    /// operations belong to.
    fn yield_to_later(&mut self, ctx: &mut Ctx<'_>, from: usize, psn: Psn) {
        let expected = self.responder.expected;
        let Some(early) = self.responder.early.as_ref() else { return };
        if early.writes.is_empty() {
            return;
        }
        let later = early.writes.iter(expected).filter(|write| psn.is_before(write.first));
        for write in later {
            let mut number = from;
            while number < ctx.out.dma_in.len() {
                self.yield_write(ctx, &write, number);
                number += 1;
            }
        }
        let mut number = 0;
        ctx.out.dma_in.retain(|operation| {
            number += 1;
            number <= from || !matches!(operation, DmaIn::Scatter { length: 0, .. })
        });
    }

    /// Cuts the bytes of an early WRITE out of operation `number`. Regions may share memory, and an atomic reads what it changes:
    /// then the WRITE is taken back, and asked for again.
    fn yield_write(&mut self, ctx: &mut Ctx<'_>, write: &EarlyWrite, number: usize) {
        let EarlyWrite { first, reth } = *write;
        let Some((to, length)) = written(&ctx.out.dma_in[number]) else { return };
        let (mtu, total) = (self.attributes().path_mtu.bytes() as u64, u64::from(reth.dma_len));
        let index = first.distance_from(self.responder.expected).max(0) as u32;
        let at = self.check_remote(ctx, reth.va, reth.rkey, total, Access::REMOTE_WRITE);
        let Some(early) = &mut self.responder.early else { return };
        let same = at.ok().filter(|at| at.mr == to.mr);
        let (start, end) = match same {
            Some(at) => (to.offset.max(at.offset), (to.offset + length).min(at.offset + total)),
            None => (0, 1),
        };
        if start >= end {
            return;
        }
        let (Some(at), DmaIn::Scatter { .. }) = (same, &ctx.out.dma_in[number]) else {
            early.take_back(index, packets_for(total, mtu as usize));
            early.forget(first);
            return;
        };
        for k in (start - at.offset) / mtu..=(end - 1 - at.offset) / mtu {
            if early.came.checked_shr(index + k as u32).unwrap_or(0) & 1 == 1 {
                let covered = at.offset + k * mtu..at.offset + ((k + 1) * mtu).min(total);
                cut(&mut ctx.out.dma_in, number, covered);
            }
        }
    }

    /// Moves on after the request `packet` was executed. `before`: the expected PSN before; `from`: number of the first of its
    /// operations.
    pub(super) fn passed_due(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, before: Psn, from: usize) {
        if self.responder.early.as_ref().is_none_or(|early| early.is_empty()) {
            return;
        }
        let expected = self.responder.expected;
        let Some(early) = &mut self.responder.early else { return };
        // The key of an early WRITE may be the invalid one.
        if packet.ieth().is_some() {
            early.drop_all();
        }
        early.latest = packet.bth.psn;
        early.pass((expected - before.value()).value(), before);
        self.yield_to_later(ctx, from, packet.bth.psn);
        self.note_fast_path();
    }

    /// Advances over the packets that came early and are due now. Called after a request was executed.
    pub(crate) fn advance_over_early(&mut self, ctx: &mut Ctx<'_>) {
        let mut passed = false;
        while self.responder.early.as_ref().is_some_and(|early| early.came & 1 == 1) {
            passed = true;
            if !self.pass_early(ctx) {
                break;
            }
        }
        let r = &mut self.responder;
        let Some(early) = &mut r.early else { return };
        if r.message == Message::None {
            early.send_end = None;
        }
        if !early.is_empty() {
            r.ask_for_missing();
        } else if passed {
            r.acknowledge();
        }
        self.note_fast_path();
    }

    /// Passes the early packet that is due. Returns false if it has no place in a message, and must come again.
    fn pass_early(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let r = &mut self.responder;
        let Some(early) = &mut r.early else { return false };
        let expected = r.expected;
        if r.message == Message::None {
            let began = early.writes.iter(expected).find(|write| write.first == expected);
            match began {
                Some(write) => {
                    r.message = Message::Write { reth: write.reth, received: 0 };
                }
                // The message ended earlier than its packets said.
                None => {
                    early.came &= !1;
                    return false;
                }
            }
        }
        early.pass(1, expected);
        r.expected = expected.next();
        match &mut r.message {
            Message::Send { received } => {
                let end = early.send_end.filter(|end| end.psn == expected);
                *received += end.map_or(mtu, |end| u64::from(end.length));
                let received = *received;
                if let Some(end) = end {
                    early.send_end = None;
                    ctx.counters.rdma_recvs += 1;
                    let mut flags = WcFlags::empty();
                    flags.set(WcFlags::SOLICITED, end.solicited);
                    if !PlantedBug::EarlyPacketsAreSilent.is() {
                        self.finish_receive(ctx, WcOpcode::Recv, received, flags, 0);
                    }
                    self.responder.message_done();
                }
            }
            Message::Write { reth, received } => {
                let total = u64::from(reth.dma_len);
                *received += mtu.min(total.saturating_sub(*received));
                if *received >= total {
                    ctx.counters.rx_write_requests += 1;
                    r.message_done();
                }
            }
            Message::None => {}
        }
        true
    }

    /// Forgets that the packet came early, because its bytes could not be stored. Returns `None` if it did not come early.
    pub(super) fn early_failed(&mut self, packet: &Packet) -> Option<Verdict> {
        let r = &mut self.responder;
        let ahead = packet.bth.psn.distance_from(r.expected);
        let early = r.early.as_mut().filter(|_| ahead > 0)?;
        early.came &= !(1u128.checked_shl(ahead as u32).unwrap_or(0));
        early.forget(packet.bth.psn);
        early.send_end = early.send_end.filter(|end| end.psn != packet.bth.psn);
        Some(Verdict::Early { expected: r.expected, kept: false })
    }
}

impl Responder {
    /// Turns selective repeat on or off.
    pub(super) fn set_selective(&mut self, on: bool) {
        self.early = on.then(Box::default);
        self.end_silence();
    }

    /// Forgets what came early: none of it becomes due any more.
    pub(super) fn forget_early(&mut self) {
        if let Some(early) = &mut self.early {
            **early = Early::default();
        }
    }

    /// Queues a selective acknowledgement.
    fn ask_for_missing(&mut self) {
        let (psn, msn) = (self.expected, self.msn);
        let may_be_ack = !self.answers_itself(psn - 1);
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
