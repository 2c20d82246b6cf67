//! Selective repeat, what the responder knows: which packets came before they were due. `early_packets` uses it.

use super::early_writes::{EarlyWrite, EarlyWrites};
use crate::transport::bitmap::mask;
use crate::transport::door;
use roxie_wire::{Psn, Reth, Sack};

/// Last packet of the SEND in progress, if it came early.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEnd {
    pub psn: Psn,
    pub length: u16,
    pub solicited: bool,
}

/// What came before it was due. Bit `i` of the bitmap stands for the expected PSN plus `i`; bit 0 is clear.
#[derive(Debug, Default)]
pub(in crate::transport) struct Early {
    received: u128,
    /// Number of PSNs from the expected one to the highest that came, kept or not.
    seen: u32,
    /// PSN of the packet that came last.
    latest: Psn,
    send_end: Option<SendEnd>,
    writes: EarlyWrites,
}

impl Early {
    /// True if a packet came early that is not passed yet.
    pub(super) fn is_empty(&self) -> bool {
        self.received == 0 && self.seen == 0
    }

    /// True if the packet came and was kept that is `index` behind the expected one.
    pub(super) fn has(&self, index: u32) -> bool {
        self.received & bit(index) != 0
    }

    /// True if the packet that is `index` behind the expected one may be kept.
    pub(super) fn reaches(index: u32) -> bool {
        bit(index) != 0
    }

    /// Notes a packet that came, `index` behind the expected one.
    pub(super) fn note(&mut self, psn: Psn, index: u32, kept: bool) {
        self.received |= if kept { bit(index) } else { 0 };
        self.seen = self.seen.max(index + 1);
        self.latest = psn;
    }

    /// Remembers the last packet of the SEND in progress.
    pub(super) fn note_end(&mut self, end: SendEnd) {
        self.send_end = Some(end);
    }

    /// Remembers a WRITE of which the first packet came.
    pub(super) fn note_write(&mut self, first: Psn, reth: Reth) {
        self.writes.add(EarlyWrite { first, reth });
    }

    /// True if another WRITE with this key can be remembered.
    pub(super) fn has_room(&self, rkey: u32) -> bool {
        self.writes.has_room(rkey)
    }

    /// True if the packet with this PSN, `index` behind the expected one, certainly belongs to the SEND in progress.
    pub(super) fn is_of_send(&self, psn: Psn, index: u32, expected: Psn) -> bool {
        let is_behind = self.send_end.is_some_and(|end| end.psn.is_before(psn));
        let is_certain = door::is_certain(self.has_wide_gap(index));
        !is_behind && is_certain && !self.writes.iter(expected).any(|write| write.first.is_before(psn))
    }

    /// True if two adjacent PSNs before the one at `index` are missing.
    fn has_wide_gap(&self, index: u32) -> bool {
        let missing = !self.received & mask(index);
        missing & missing >> 1 != 0
    }

    /// Returns the remembered WRITE to which the packet with this PSN may belong.
    pub(super) fn write_of(&self, psn: Psn, expected: Psn) -> Option<EarlyWrite> {
        let began = self.writes.iter(expected).filter(|write| !psn.is_before(write.first));
        began.min_by_key(|write| psn.distance_from(write.first))
    }

    /// Returns the remembered WRITE that begins with this PSN.
    pub(super) fn write_at(&self, psn: Psn) -> Option<EarlyWrite> {
        self.writes.iter(psn).find(|write| write.first == psn)
    }

    /// True if no WRITE is remembered.
    pub(super) fn has_no_writes(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the remembered WRITEs behind this PSN.
    pub(super) fn writes_behind(&self, psn: Psn, expected: Psn) -> impl Iterator<Item = EarlyWrite> + use<> {
        self.writes.iter(expected).filter(move |write| psn.is_before(write.first))
    }

    /// True if the expected packet came early.
    pub(super) fn is_due(&self) -> bool {
        self.received & 1 == 1
    }

    /// Drops the expected packet: it is asked for again.
    pub(super) fn drop_due(&mut self) {
        self.received &= !1;
    }

    /// Notes that the packet with this PSN was executed, and all before PSN `expected + count`. `invalidates`: it has
    /// invalidated a key.
    pub(super) fn executed(&mut self, psn: Psn, count: u32, expected: Psn, invalidates: bool) {
        // The key of an early WRITE may be the invalid one.
        if invalidates {
            self.drop_all();
        }
        self.latest = psn;
        self.pass(count, expected);
    }

    /// Moves the bitmap by `count` PSNs from `expected` on, which are executed.
    pub(super) fn pass(&mut self, count: u32, expected: Psn) {
        self.received = self.received.checked_shr(count).unwrap_or(0);
        self.seen = self.seen.saturating_sub(count);
        self.writes.pass(count, expected);
    }

    /// Returns the last packet of the SEND in progress if it has this PSN, and forgets it.
    pub(super) fn take_end(&mut self, psn: Psn) -> Option<SendEnd> {
        self.send_end.take_if(|end| end.psn == psn)
    }

    /// Forgets the last packet of the SEND in progress.
    pub(super) fn forget_end(&mut self) {
        self.send_end = None;
    }

    /// Returns what came and what is missing, from the expected PSN on.
    pub(super) fn sack(&self) -> Sack {
        let count = self.seen.clamp(1, Sack::BITS) as u8;
        Sack { count, latest: self.latest, bitmap: self.received }
    }

    /// Takes back a WRITE of `count` packets, of which the first is `index` behind the expected one.
    pub(super) fn take_back_write(&mut self, first: Psn, index: u32, count: u32) {
        self.received &= !mask(count).checked_shl(index).unwrap_or(0);
        self.writes.forget(first);
    }

    /// Takes back the packet that is `index` behind the expected one.
    pub(super) fn take_back(&mut self, psn: Psn, index: u32) {
        self.received &= !bit(index);
        self.writes.forget(psn);
        self.take_end(psn);
    }

    /// Drops all that came early: it is asked for again.
    fn drop_all(&mut self) {
        self.received = 0;
        self.send_end = None;
        self.writes = EarlyWrites::default();
    }

    pub(super) fn assert_invariants(&self, expected: Psn) {
        invariant!(self.received & 1 == 0, "the expected PSN {expected} came early");
        invariant!(self.received & !mask(self.seen) == 0, "{:#x} came of {} PSNs", self.received, self.seen);
    }
}

fn bit(index: u32) -> u128 {
    1u128.checked_shl(index).unwrap_or(0)
}
