//! Selective repeat, what the responder knows: which packets came before they were due. `early_packets` uses it.

use super::early_writes::EarlyWrites;
use super::scoreboard::mask;
use roxie_wire::{Psn, Sack};

/// Last packet of the SEND in progress, if it came early.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEnd {
    pub(super) psn: Psn,
    pub(super) length: u16,
    pub(super) solicited: bool,
}

/// What came before it was due. Bit `i` of the bitmap stands for the expected PSN plus `i`; bit 0 is clear.
#[derive(Debug, Default)]
pub(super) struct Early {
    pub(super) came: u128,
    /// Number of PSNs from the expected one to the highest that came, kept or not.
    pub(super) seen: u32,
    /// PSN of the packet that came last.
    pub(super) latest: Psn,
    pub(super) send_end: Option<SendEnd>,
    pub(super) writes: EarlyWrites,
}

impl Early {
    /// True if a packet came early that is not passed yet.
    pub(super) fn is_empty(&self) -> bool {
        self.came == 0 && self.seen == 0
    }

    /// Moves the bitmap by `count` PSNs from `expected` on, which are executed.
    pub(super) fn pass(&mut self, count: u32, expected: Psn) {
        self.came = self.came.checked_shr(count).unwrap_or(0);
        self.seen = self.seen.saturating_sub(count);
        self.writes.pass(count, expected);
    }

    /// Returns what came and what is missing, from the expected PSN on.
    pub(super) fn sack(&self) -> Sack {
        let count = self.seen.clamp(1, Sack::BITS) as u8;
        Sack { count, latest: self.latest, bitmap: self.came }
    }

    /// True if two adjacent PSNs before the one at `index` are missing.
    pub(super) fn has_wide_gap(&self, index: u32) -> bool {
        let missing = !self.came & mask(index);
        missing & missing >> 1 != 0
    }

    /// Takes back `count` packets, of which the first is `index` behind the expected one.
    pub(super) fn take_back(&mut self, index: u32, count: u32) {
        self.came &= !mask(count).checked_shl(index).unwrap_or(0);
    }

    pub(super) fn forget(&mut self, first: Psn) {
        self.writes.forget(first);
    }

    /// Drops all that came early: it is asked for again.
    pub(super) fn drop_all(&mut self) {
        self.came = 0;
        self.send_end = None;
        self.writes = EarlyWrites::default();
    }

    pub(super) fn assert_invariants(&self, expected: Psn) {
        invariant!(self.came & 1 == 0, "the expected PSN {expected} came early");
        invariant!(self.came & !mask(self.seen) == 0, "{:#x} came of {} PSNs", self.came, self.seen);
    }
}
