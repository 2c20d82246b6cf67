//! Selective repeat, the requester's half: which of the outstanding packets came, and which are sent again (in the
//! manner of IRN, SIGCOMM 2018, 3.1).
//!
//! A selective acknowledgement (SACK) tells what came and what is missing. Only missing packets are sent again, once
//! for each loss: a retransmission counts as lost if the SACK was caused by a packet that was sent after it. The
//! position walks over the packets to send again, then returns to new ones.
//!
//! If nothing is acknowledged for a short time, a probe finds a loss at the tail: the last packet is sent again. The
//! peer's answer tells what is missing.

use super::Scoreboard;
use crate::transport::bitmap::mask;
use crate::transport::requester::window::SendWindow;
use roxie_base::time::Nanos;
use roxie_wire::{Psn, Sack};

/// What a selective acknowledgement asks for.
pub(in crate::transport::requester) struct Missing {
    /// Number of PSNs that are missing.
    pub missing: u8,
    /// Something is lost that was not known to be.
    pub is_news: bool,
    /// The oldest packet is lost once more.
    pub oldest_again: bool,
    /// The first PSN to send again. `None`: nothing is, or everything is in order.
    pub first: Option<Psn>,
}

/// Order and PSN of the packet that caused a SACK, if that proves anything.
type SackCause = Option<((u8, i32), Psn)>;

impl Scoreboard {
    /// Marks everything that is outstanding and did not come to be sent again, after a rewind.
    pub(crate) fn mark_all_lost(&mut self, window: &SendWindow) {
        self.rebase(window.una());
        self.again = 0;
        self.whole = window.outstanding() > Sack::BITS;
        self.lost = if self.whole { 0 } else { mask(window.outstanding()) & !self.received & !self.stored() };
        self.timed_at = Nanos::MAX;
    }

    /// Returns where the position belongs: at the next packet to send again, or at the first one never sent. `None` if
    /// it is there.
    pub(crate) fn next_position(&mut self, window: &SendWindow) -> Option<Psn> {
        let (una, end, position) = (window.una(), window.sent_end(), window.position());
        self.rebase(una);
        if self.whole {
            self.whole = position.is_before(end);
            return None;
        }
        let to = if self.lost == 0 { end } else { una + self.lost.trailing_zeros() };
        (to != position && (position.is_before(end) || to.is_before(end))).then_some(to)
    }

    /// Handles progress after a loss: the time before a probe is short again.
    pub(crate) fn note_progress(&mut self, now: Nanos, una: Psn) {
        self.probes = 0;
        self.retry_from = Nanos::MAX;
        self.measure(now, |psn| psn.is_before(una));
    }

    /// Measures a round trip by a SACK with this PSN. Returns what caused the SACK.
    pub(crate) fn note_sack(&mut self, now: Nanos, una: Psn, first: Psn, sack: &Sack) -> SackCause {
        self.rebase(una);
        let order = self.order_of(sack.latest, una);
        let arrived =
            |psn: Psn| sack.bitmap.checked_shr(psn.distance_from(first) as u32).unwrap_or(0) & 1 == 1;
        self.measure(now, arrived);
        // What of the order is older than `una` proves nothing.
        (sack.latest.distance_from(una) >= 0).then_some((order, sack.latest))
    }

    /// Marks what a SACK asks for. `before`: `una` before the SACK.
    pub(crate) fn mark_missing(&mut self, una: Psn, sack: &Sack, before: Psn, cause: SackCause) -> Missing {
        self.rebase(una);
        // The newest SACK counts: the peer may have dropped what it had kept.
        let dropped = self.received & sack.covered() & !sack.bitmap;
        self.received = sack.bitmap | self.received & !sack.covered();
        self.again &= !(self.received | dropped);
        let missing = sack.covered() & !sack.bitmap;
        let mut lost = missing & !self.again & !self.lost;
        let mut tries = missing & self.again & !self.lost;
        // A peer that drops packets, because they may not be placed yet, drops them until the oldest comes.
        let latest = cause.map(|(_, latest)| latest.distance_from(una));
        let drops =
            latest.is_some_and(|at| at >= 0 && sack.bitmap.checked_shr(at as u32).unwrap_or(0) & 1 == 0);
        if drops {
            tries &= 1;
        }
        while tries != 0 {
            let index = tries.trailing_zeros();
            tries &= tries - 1;
            let psn = una + index;
            let sent = self.order_of(psn, una);
            let sent = (
                sent.0.wrapping_add((una.value() as u8).wrapping_sub(before.value() as u8)),
                psn.distance_from(before),
            );
            if cause.is_some_and(|(cause, _)| cause > sent) {
                lost |= 1 << index;
            }
        }
        let oldest_again = lost & self.again & 1 == 1;
        if oldest_again && drops {
            lost = missing & !self.lost;
        }
        self.lost = (self.lost | lost) & !self.received & !self.stored();
        invariant!(self.lost & self.received == 0, "PSNs that came are sent again");
        let is_none = self.whole || self.lost == 0;
        let first = (!is_none).then(|| una + self.lost.trailing_zeros());
        Missing { missing: missing.count_ones() as u8, is_news: lost != 0, oldest_again, first }
    }

    /// Marks the last packet to be sent again, or the oldest READ or atomic, if the silence is shorter than `longest`,
    /// the local ACK timeout. Returns false if that is reached.
    pub(crate) fn probe(&mut self, window: &SendWindow, longest: Nanos) -> bool {
        if self.patience(longest) >= longest || window.is_idle() {
            return false;
        }
        self.rebase(window.una());
        self.probes += 1;
        self.timed_at = Nanos::MAX;
        self.whole = false;
        let oldest = window.oldest();
        self.lost |= if oldest.wr.opcode.takes_resource() {
            self.bits(window.una(), oldest.end_psn()) & !self.stored()
        } else if window.reads_outstanding() > 0 {
            1
        } else {
            1u128.checked_shl((window.sent_end() - 1).distance_from(window.una()) as u32).unwrap_or(1)
        };
        true
    }
}
