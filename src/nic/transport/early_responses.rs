//! Selective repeat, responses to READs: those that come before they are due are stored, and the missing ones are asked for alone.
//!
//! An answer proves that the peer has executed, and answered, all that was sent before. The responses to READs and atomics before it that
//! did not come are lost. Each is asked for once; if that is lost too, a probe finds it.

use super::completer::positive;
use super::requester::Requester;
use super::scatter::{self, FramePayload};
use super::scoreboard::Scoreboard;
use super::send_queue::Wqe;
use super::{Cause, Ctx, Qp, Verdict};
use crate::verbs::{QpState, Sge, WrOpcode};
use roxie_wire::{Operation, Packet, Psn};

impl Requester {
    /// Returns how many bytes to ask for with a READ request from response packet `k` on: the rest of the message, or one packet, if packets
    /// behind it came. `mtu` in bytes.
    pub(super) fn bytes_to_ask_for(&self, wqe: &Wqe, k: u32, mtu: u64) -> u64 {
        let rest = wqe.length() - u64::from(k) * mtu;
        let Some(board) = self.scoreboard.as_ref().filter(|board| wqe.started && !board.whole) else {
            return rest;
        };
        let behind = board.bits(wqe.first_psn + k, wqe.end_psn());
        let is_alone = self.has_begun(wqe, board) && board.lost & behind != behind;
        if is_alone { rest.min(mtu) } else { rest }
    }

    /// True if responses to this READ came: the peer has executed it.
    fn has_begun(&self, wqe: &Wqe, board: &Scoreboard) -> bool {
        wqe.first_psn.is_before(self.una) || board.stored() & board.bits(wqe.first_psn, wqe.end_psn()) != 0
    }

    /// Moves the position to the beginning of its READ or atomic if nothing of that came: it is asked for as a whole.
    pub(super) fn begin_anew(&mut self) {
        let wqe = self.queue.at(self.next);
        let Some(board) = &self.scoreboard else { return };
        if !wqe.wr.opcode.takes_resource() || self.has_begun(wqe, board) {
            return;
        }
        let all = board.bits(wqe.first_psn, wqe.end_psn());
        if let Some(board) = &mut self.scoreboard {
            board.lost |= all;
            self.next_packet = 0;
        }
    }

    /// Returns the position of the READ that asked for `psn`.
    fn read_of(&self, psn: Psn) -> Option<u32> {
        let mut at = self.queue.tail();
        while at != self.queue.head() && self.queue.at(at).started {
            let wqe = self.queue.at(at);
            if psn.is_before(wqe.end_psn()) {
                return (wqe.wr.opcode == WrOpcode::Read && !psn.is_before(wqe.first_psn)).then_some(at);
            }
            at = at.wrapping_add(1);
        }
        None
    }

    /// True if what the READ at `position` stores is certainly apart from what the ones before it store: a late response to one of these
    /// would overwrite it. Different keys may stand for the same memory.
    fn is_apart(&self, position: u32) -> bool {
        let mut at = self.queue.tail();
        while at != position {
            let theirs = self.queue.sges(at);
            let stores = self.queue.at(at).wr.opcode.takes_resource();
            let apart = |a: &Sge| self.queue.sges(position).iter().all(|b| are_apart(a, b));
            if stores && !theirs.iter().all(apart) {
                return false;
            }
            at = at.wrapping_add(1);
        }
        true
    }
}

/// True if two entries name the same region, and different parts of it.
fn are_apart(a: &Sge, b: &Sge) -> bool {
    let end = |it: &Sge| it.addr.saturating_add(it.length.into());
    a.lkey == b.lkey && (end(a) <= b.addr || end(b) <= a.addr)
}

impl Qp {
    /// True if responses came early, or answers that tell of missing ones.
    pub(super) fn has_early_responses(&self) -> bool {
        let board = self.requester.scoreboard.as_ref();
        board.is_some_and(|board| board.data != 0 || board.answered.is_some())
    }

    /// Handles an answer to what was sent before `end`, while the response to a READ or an atomic before that is missing. Asks for what is
    /// missing, once, which costs no retry. Returns `None` without selective repeat.
    pub(super) fn ask_for_responses(&mut self, ctx: &mut Ctx<'_>, end: Psn) -> Option<Verdict> {
        let r = &mut self.requester;
        let una = r.una;
        let board = r.scoreboard.as_mut()?;
        board.rebase(una);
        board.answered = board.answered.filter(|before| end.is_before(*before)).or(Some(end));
        let mut missing = 0;
        let mut at = r.queue.tail();
        while at != r.queue.head() {
            let wqe = r.queue.at(at);
            if !wqe.started || !wqe.first_psn.is_before(end) {
                break;
            }
            if wqe.wr.opcode.takes_resource() {
                let from = if wqe.first_psn.is_before(una) { una } else { wqe.first_psn };
                let to = if end.is_before(wqe.end_psn()) { end } else { wqe.end_psn() };
                missing |= board.bits(from, to);
            }
            at = at.wrapping_add(1);
        }
        missing &= !board.stored();
        let lost = missing & !board.again & !board.lost;
        let asked = missing.count_ones() as u8;
        let of = (end - una.value()).value().min(128) as u8;
        let is_new = lost != 0 && !board.whole;
        if is_new {
            board.lost |= lost;
        }
        self.note_fast_path();
        if !is_new {
            return Some(Verdict::Stale);
        }
        ctx.counters.implied_nak_seq_err += 1;
        self.repeat(Cause::Selective);
        Some(Verdict::Selective { asked, of })
    }

    /// Stores a READ response that came before it is due. Returns `None` without selective repeat, or if the QP has failed.
    pub(super) fn keep_response(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet,
        frame: u16,
    ) -> Option<Verdict> {
        let (una, psn) = (self.requester.una, packet.bth.psn);
        if self.requester.scoreboard.is_none() || self.state() == QpState::Err {
            return None;
        }
        let kept = self.store_early(ctx, packet, frame);
        let board = self.requester.scoreboard.as_mut()?;
        if kept {
            let bit = board.bits(psn, psn + 1);
            board.data |= bit as u64;
            if board.lost & bit != 0 {
                board.lost &= !bit;
                self.requester.skip_what_came();
            }
        }
        self.note_fast_path();
        Some(Verdict::Early { expected: una, kept })
    }

    /// Plans the copy of an early READ response. Returns false if it is not to be kept, and true for one that is kept already.
    fn store_early(&self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> bool {
        let (r, psn) = (&self.requester, packet.bth.psn);
        let Some(board) = &r.scoreboard else { return false };
        let bit = board.bits(psn, psn + 1) as u64;
        let Some(position) = r.read_of(psn).filter(|_| bit != 0 && positive(packet)) else { return false };
        if board.data & bit != 0 {
            return true;
        }
        if !r.is_apart(position) {
            return false;
        }
        let wqe = r.queue.at(position);
        let mtu = self.attributes().path_mtu.bytes();
        let offset = u64::from((psn - wqe.first_psn.value()).value()) * mtu as u64;
        let length = packet.payload.len();
        let left = wqe.length().saturating_sub(offset);
        if length == 0 || length as u64 != left.min(mtu as u64) {
            return false;
        }
        let payload = FramePayload { frame, offset: packet.payload.start as u16, length: length as u16 };
        if scatter::plan(ctx.memory, self.pd, r.queue.sges(position), offset, payload, ctx.out).is_err() {
            return false;
        }
        ctx.counters.rcvd_bytes += length as u64;
        ctx.counters.early_kept += 1;
        true
    }

    /// Moves `una` over responses that came early and are due now, and over what was answered behind them.
    pub(super) fn pass_early_responses(&mut self, ctx: &mut Ctx<'_>) {
        loop {
            while self.pass_run(ctx) {}
            let r = &mut self.requester;
            let una = r.una;
            let Some(board) = &mut r.scoreboard else { break };
            board.rebase(una);
            board.answered = board.answered.filter(|end| una.is_before(*end));
            let Some(end) = board.answered.filter(|_| !r.queue.is_empty()) else { break };
            if r.queue.at(r.queue.tail()).wr.opcode.takes_resource() {
                break;
            }
            let _ = self.acknowledge_before(ctx, end);
            if self.requester.una == una {
                break;
            }
        }
        self.note_fast_path();
    }

    /// Moves `una` over the responses to the oldest READ that came early. Returns false if there are none.
    fn pass_run(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let state = self.state();
        let r = &mut self.requester;
        let Some(board) = &mut r.scoreboard else { return false };
        board.rebase(r.una);
        if r.queue.is_empty() || !matches!(state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        let wqe = r.queue.at(r.queue.tail());
        let left = (wqe.end_psn() - r.una.value()).value();
        let run = board.data.trailing_ones().min(left);
        if run == 0 || !wqe.started || wqe.wr.opcode != WrOpcode::Read {
            return false;
        }
        let end = r.una + run;
        self.advance(ctx, end);
        if run == left {
            self.complete_oldest(ctx);
        }
        true
    }

    /// Takes back an early response whose copy failed: it is judged when it is due.
    pub(super) fn early_response_failed(&mut self, packet: &Packet) -> Option<Verdict> {
        let (una, psn) = (self.requester.una, packet.bth.psn);
        let is_response = packet.info().operation == Operation::ReadResponse;
        let board = self.requester.scoreboard.as_mut().filter(|_| is_response && una.is_before(psn))?;
        board.data &= !(board.bits(psn, psn + 1) as u64);
        Some(Verdict::Early { expected: una, kept: false })
    }
}
