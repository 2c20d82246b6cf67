//! Selective repeat, responses to READs: those that come before they are due are stored, and the missing ones are asked for alone.
//!
//! An answer proves that the peer has executed, and answered, all that was sent before. The responses to READs and atomics before it that
//! did not come are lost. Each is asked for once; if that is lost too, a probe finds it.

use super::Verdict;
use super::requester::Requester;
use super::rules::is_packet_of;
use super::scoreboard::Scoreboard;
use super::send_queue::Wqe;
use crate::verbs::{Sge, WrOpcode};
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

    /// True with selective repeat.
    pub(super) fn is_selective(&self) -> bool {
        self.scoreboard.is_some()
    }

    /// True if responses came early, or answers that tell of missing ones.
    pub(super) fn has_early_responses(&self) -> bool {
        self.scoreboard.as_ref().is_some_and(|board| board.data != 0 || board.answered.is_some())
    }

    /// Marks the responses to READs and atomics that are missing behind an answer to what was sent before `end`, each once. Returns `None` if
    /// nothing new is missing.
    pub(super) fn mark_missing_responses(&mut self, end: Psn) -> Option<Verdict> {
        let una = self.una;
        let board = self.scoreboard.as_mut()?;
        board.rebase(una);
        board.answered = board.answered.filter(|before| end.is_before(*before)).or(Some(end));
        let mut missing = 0;
        let mut at = self.queue.tail();
        while at != self.queue.head() {
            let wqe = self.queue.at(at);
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
        if board.whole || lost == 0 {
            return None;
        }
        board.lost |= lost;
        let of = (end - una.value()).value().min(128) as u8;
        Some(Verdict::Selective { asked: missing.count_ones() as u8, of })
    }

    /// True if the READ response with this PSN came early, and is stored.
    pub(super) fn has_response(&self, psn: Psn) -> bool {
        self.scoreboard.as_ref().is_some_and(|board| board.stored() & board.bits(psn, psn + 1) != 0)
    }

    /// Returns the place of an early READ response: the position of its READ, and the number of the packet. `None` if it is not to be kept.
    /// `mtu` in bytes.
    pub(super) fn early_place(&self, packet: &Packet, mtu: usize) -> Option<(u32, u32)> {
        let psn = packet.bth.psn;
        let is_near = self.scoreboard.as_ref()?.bits(psn, psn + 1) as u64 != 0;
        let position = self.read_of(psn).filter(|position| is_near && self.is_apart(*position))?;
        let wqe = self.queue.at(position);
        let k = (psn - wqe.first_psn.value()).value();
        let length = packet.payload.len();
        (length > 0 && is_packet_of(wqe, k, length, mtu)).then_some((position, k))
    }

    /// Notes a READ response that is stored early.
    pub(super) fn note_response(&mut self, psn: Psn) {
        let Some(board) = &mut self.scoreboard else { return };
        let bit = board.bits(psn, psn + 1);
        board.data |= bit as u64;
        if board.lost & bit != 0 {
            board.lost &= !bit;
            self.skip_what_came();
        }
    }

    /// Takes back an early response whose copy failed: it is judged when it is due.
    pub(super) fn take_back_response(&mut self, packet: &Packet) -> Option<Verdict> {
        let (una, psn) = (self.una, packet.bth.psn);
        let is_response = packet.info().operation == Operation::ReadResponse;
        let board = self.scoreboard.as_mut().filter(|_| is_response && una.is_before(psn))?;
        board.data &= !(board.bits(psn, psn + 1) as u64);
        Some(Verdict::Early { expected: una, kept: false })
    }

    /// Returns the PSN behind the early responses to the oldest READ that are due, and whether it ends there. `None` if there are none.
    pub(super) fn due_run(&mut self) -> Option<(Psn, bool)> {
        let board = self.scoreboard.as_mut()?;
        board.rebase(self.una);
        if self.queue.is_empty() {
            return None;
        }
        let wqe = self.queue.at(self.queue.tail());
        let left = (wqe.end_psn() - self.una.value()).value();
        let run = board.data.trailing_ones().min(left);
        let is_due = run > 0 && wqe.started && wqe.wr.opcode == WrOpcode::Read;
        is_due.then(|| (self.una + run, run == left))
    }

    /// Returns the PSN up to which the peer has answered, if the oldest work request is not one that waits for its response.
    pub(super) fn answered_end(&mut self) -> Option<Psn> {
        let una = self.una;
        let board = self.scoreboard.as_mut()?;
        board.rebase(una);
        board.answered = board.answered.filter(|end| una.is_before(*end));
        let waits = self.queue.is_empty() || self.queue.at(self.queue.tail()).wr.opcode.takes_resource();
        board.answered.filter(|_| !waits)
    }
}

/// True if two entries name the same region, and different parts of it.
fn are_apart(a: &Sge, b: &Sge) -> bool {
    let end = |it: &Sge| it.addr.saturating_add(it.length.into());
    a.lkey == b.lkey && (end(a) <= b.addr || end(b) <= a.addr)
}
