//! Selective repeat, responses to READs: those that come before they are due are stored, and the missing ones are asked
//! for alone.
//!
//! An answer proves that the peer has executed, and answered, all that was sent before. The responses to READs and
//! atomics before it that did not come are lost. Each is asked for once; if that is lost too, a probe finds it.

use super::Scoreboard;
use crate::transport::Verdict;
use crate::transport::requester::window::SendWindow;
use crate::transport::rules::is_packet_of;
use crate::transport::send_queue::Wqe;
use crate::verbs::{Sge, WrOpcode};
use roxie_wire::{Packet, Psn};

impl Scoreboard {
    /// True if a READ request from response packet `k` on asks for that packet alone, because packets behind it came.
    pub(crate) fn requests_one_packet(&self, window: &SendWindow, wqe: &Wqe, k: u32) -> bool {
        let behind = self.bits(wqe.first_psn + k, wqe.end_psn());
        wqe.started && !self.whole && self.has_begun(window.una(), wqe) && self.lost & behind != behind
    }

    /// True if responses to this READ came: the peer has executed it.
    fn has_begun(&self, una: Psn, wqe: &Wqe) -> bool {
        wqe.first_psn.is_before(una) || self.stored() & self.bits(wqe.first_psn, wqe.end_psn()) != 0
    }

    /// True if the next work request is a READ or atomic of which nothing came: it is asked for as a whole.
    pub(crate) fn requests_whole(&mut self, window: &SendWindow) -> bool {
        let wqe = window.next_wqe();
        if !wqe.wr.opcode.takes_resource() || self.has_begun(window.una(), wqe) {
            return false;
        }
        self.lost |= self.bits(wqe.first_psn, wqe.end_psn());
        true
    }

    /// True if responses came early, or answers that tell of missing ones.
    pub(crate) fn has_early_responses(&self) -> bool {
        self.data != 0 || self.answered.is_some()
    }

    /// Marks the responses to READs and atomics that are missing behind an answer to what was sent before `end`, each
    /// once. Returns `None` if nothing new is missing.
    pub(crate) fn mark_missing_responses(&mut self, window: &SendWindow, end: Psn) -> Option<Verdict> {
        let una = window.una();
        self.rebase(una);
        self.answered = self.answered.filter(|before| end.is_before(*before)).or(Some(end));
        let mut missing = 0;
        for (_, wqe) in window.started().take_while(|(_, wqe)| wqe.first_psn.is_before(end)) {
            if wqe.wr.opcode.takes_resource() {
                let from = if wqe.first_psn.is_before(una) { una } else { wqe.first_psn };
                let to = if end.is_before(wqe.end_psn()) { end } else { wqe.end_psn() };
                missing |= self.bits(from, to);
            }
        }
        missing &= !self.stored();
        let lost = missing & !self.again & !self.lost;
        if self.whole || lost == 0 {
            return None;
        }
        self.lost |= lost;
        let of = (end - una.value()).value().min(128) as u8;
        Some(Verdict::Selective { requested: missing.count_ones() as u8, of })
    }

    /// True if the READ response with this PSN came early, and is stored.
    pub(crate) fn has_response(&self, psn: Psn) -> bool {
        self.stored() & self.bits(psn, psn + 1) != 0
    }

    /// Returns the place of an early READ response: the position of its READ, and the number of the packet. `None` if
    /// it is not to be kept. `mtu` in bytes.
    pub(crate) fn early_place(&self, window: &SendWindow, packet: &Packet, mtu: usize) -> Option<(u32, u32)> {
        let psn = packet.bth.psn;
        let is_in_map = self.bits(psn, psn + 1) as u64 != 0;
        let (position, wqe) = window.started().find(|(_, wqe)| psn.is_before(wqe.end_psn()))?;
        let is_read = wqe.wr.opcode == WrOpcode::Read && !psn.is_before(wqe.first_psn);
        if !is_in_map || !is_read || !is_apart(window, position) {
            return None;
        }
        let k = (psn - wqe.first_psn.value()).value();
        let length = packet.payload.len();
        (length > 0 && is_packet_of(wqe, k, length, mtu)).then_some((position, k))
    }

    /// Notes a READ response that is stored early. Returns true if it was to be asked for again.
    pub(crate) fn note_response(&mut self, psn: Psn) -> bool {
        let bit = self.bits(psn, psn + 1);
        self.data |= bit as u64;
        let was_lost = self.lost & bit != 0;
        self.lost &= !bit;
        was_lost
    }

    /// Takes back an early response whose copy failed: it is judged when it is due.
    pub(crate) fn take_back_response(&mut self, psn: Psn) {
        self.data &= !(self.bits(psn, psn + 1) as u64);
    }

    /// Returns the PSN behind the early responses to the oldest READ that are due, and whether it ends there. `None` if
    /// there are none.
    pub(crate) fn due_run(&mut self, window: &SendWindow) -> Option<(Psn, bool)> {
        let una = window.una();
        self.rebase(una);
        let wqe = window.has_begun_oldest().then(|| window.oldest())?;
        let remaining = (wqe.end_psn() - una.value()).value();
        let run = self.data.trailing_ones().min(remaining);
        (run > 0 && wqe.wr.opcode == WrOpcode::Read).then(|| (una + run, run == remaining))
    }

    /// Returns the PSN up to which the peer has answered, if the oldest work request is not one that waits for its
    /// response.
    pub(crate) fn answered_end(&mut self, window: &SendWindow) -> Option<Psn> {
        let una = window.una();
        self.rebase(una);
        self.answered = self.answered.filter(|end| una.is_before(*end));
        let waits = window.queue().is_empty() || window.oldest().wr.opcode.takes_resource();
        self.answered.filter(|_| !waits)
    }
}

/// True if what the READ at `position` stores is certainly apart from what the ones before it store: a late response to
/// one of these would overwrite it. Different keys may stand for the same memory.
fn is_apart(window: &SendWindow, position: u32) -> bool {
    let list = |position| window.queue().sges(position);
    let apart = |a: &Sge| list(position).iter().all(|b| are_apart(a, b));
    let mut before = window.started().take_while(|(at, _)| *at != position);
    before.all(|(at, wqe)| !wqe.wr.opcode.takes_resource() || list(at).iter().all(apart))
}

/// True if two entries name the same region, and different parts of it.
fn are_apart(a: &Sge, b: &Sge) -> bool {
    let end = |it: &Sge| it.addr.saturating_add(it.length.into());
    a.lkey == b.lkey && (end(a) <= b.addr || end(b) <= a.addr)
}
