//! Selective repeat, what the requester knows: which of the outstanding packets came, and which are sent again.
//! `sacks` and `early_responses` use it.

mod early_responses;
mod sacks;

use crate::transport::bitmap::mask;
use roxie_base::time::Nanos;
use roxie_wire::Psn;

/// Shortest time without progress before a probe (RTO_low of IRN, SIGCOMM 2018, 3.1: 100 us). Four round trips of 25
/// us.
const PROBE_MIN: Nanos = Nanos(100_000);
/// Time before a probe while no round trip is known: the scheduling delay of two processes that share a processor ...
const PROBE_FIRST: Nanos = Nanos(1_000_000);
/// ... or this share of the ACK timeout, if that is less: the application knows the link.
const PROBE_TIMEOUT_SHARE: u64 = 8;
/// Longest time before the first probe, whatever the round trip.
const PROBE_MAX: Nanos = Nanos(4_000_000);
/// Round trips without progress before a probe.
const PROBE_ROUND_TRIPS: u64 = 4;

/// What the requester knows of the PSNs from `base` on. Bit `i` of a bitmap stands for `base + i`.
#[derive(Debug)]
pub(super) struct Scoreboard {
    base: Psn,
    /// PSNs that came, by the newest SACK.
    received: u128,
    /// PSNs of READ responses that came before they were due, and were stored: up to 64 from `base` on.
    data: u64,
    /// The peer has answered something behind a READ or an atomic whose response is missing, and so has executed all
    /// before this PSN.
    answered: Option<Psn>,
    /// PSNs to send again.
    lost: u128,
    /// PSNs that were sent again, and are not known to be lost again.
    again: u128,
    /// For each PSN in `again`: the order of its transmission, as the low 8 bits of a PSN. First transmissions from
    /// that PSN on were sent later. Four adjacent PSNs share a place, which has the time of the latest transmission.
    order: [u8; 32],
    /// The packet sent again that measures a round trip.
    timed: Psn,
    /// Time when it was sent; `Nanos::MAX`: there is none.
    timed_at: Nanos,
    /// Smoothed round trip in nanoseconds; 0: unknown.
    round_trip: u32,
    /// Probes since the last progress.
    probes: u8,
    /// Time from which the oldest packet, lost again, costs a retry; `Nanos::MAX`: it was not lost again since the last
    /// progress.
    retry_from: Nanos,
    /// More is outstanding than the bitmaps hold: everything is sent again in order.
    whole: bool,
}

impl Scoreboard {
    pub(super) fn new() -> Scoreboard {
        Scoreboard {
            base: Psn::new(0),
            received: 0,
            data: 0,
            answered: None,
            lost: 0,
            again: 0,
            order: [0; 32],
            timed: Psn::new(0),
            timed_at: Nanos::MAX,
            round_trip: 0,
            probes: 0,
            retry_from: Nanos::MAX,
            whole: false,
        }
    }

    /// Moves the bitmaps to `una`.
    pub(super) fn rebase(&mut self, una: Psn) {
        let by = una.distance_from(self.base);
        let shift = |map: u128| u32::try_from(by).ok().and_then(|by| map.checked_shr(by)).unwrap_or(0);
        (self.received, self.lost, self.again) = (shift(self.received), shift(self.lost), shift(self.again));
        self.data = shift(self.data.into()) as u64;
        self.base = una;
    }

    /// Returns the bits of the READ responses that came early.
    fn stored(&self) -> u128 {
        self.data.into()
    }

    /// Returns the bits of the PSNs from `from` on that are before `end`. Both are at or behind `base`.
    fn bits(&self, from: Psn, end: Psn) -> u128 {
        let below = |psn: Psn| mask((psn - self.base.value()).value());
        below(end) & !below(from)
    }

    /// Returns the time without progress before the next probe. `timeout`: the local ACK timeout.
    pub(super) fn patience(&self, timeout: Nanos) -> Nanos {
        let first = match self.round_trip {
            0 => PROBE_FIRST.min(Nanos(timeout.0 / PROBE_TIMEOUT_SHARE)).max(PROBE_MIN),
            round_trip => Nanos(u64::from(round_trip) * PROBE_ROUND_TRIPS).clamp(PROBE_MIN, PROBE_MAX),
        };
        Nanos(first.0 << self.probes.min(16))
    }

    /// Returns true if it costs a retry that the oldest packet was lost again at `now`: one for each `timeout`, the
    /// local ACK timeout, without progress, as silence would cost. A full queue on the way may lose it several times
    /// within a round trip or two.
    pub(super) fn costs_retry(&mut self, now: Nanos, timeout: Option<Nanos>) -> bool {
        let is_due = self.retry_from != Nanos::MAX && now >= self.retry_from;
        if is_due || self.retry_from == Nanos::MAX {
            self.retry_from = timeout.map_or(Nanos::MAX, |timeout| now + timeout);
        }
        is_due
    }

    /// Returns the place of `psn` in the order of transmissions, from `una` on.
    fn order_of(&self, psn: Psn, una: Psn) -> (u8, i32) {
        let index = psn.distance_from(una);
        let again = (0..128).contains(&index) && self.again >> index & 1 == 1;
        let order = if again { self.order[place_of(psn)] } else { psn.value() as u8 };
        (order.wrapping_sub(una.value() as u8), index)
    }

    /// Updates the smoothed round trip (RFC 6298 2, without the variance) if `psn` is the timed packet.
    fn measure(&mut self, now: Nanos, has_come: impl Fn(Psn) -> bool) {
        if self.timed_at == Nanos::MAX || !has_come(self.timed) {
            return;
        }
        let sample = u32::try_from(now.since(self.timed_at).0).unwrap_or(u32::MAX).max(1);
        self.timed_at = Nanos::MAX;
        self.round_trip = match self.round_trip {
            0 => sample,
            before => before - before / 8 + sample / 8,
        };
    }

    /// Records that the `count` PSNs from `psn` on were sent again. `end`: the PSN after the last one ever sent.
    pub(super) fn sent_again(&mut self, now: Nanos, psn: Psn, count: u32, end: Psn) {
        let index = psn.distance_from(self.base).clamp(0, 127) as u32;
        let bits = mask(count.min(128)) << index;
        let before = self.order_of(psn, self.base).0;
        let newest = (end.value() as u8).wrapping_sub(self.base.value() as u8);
        // A second retransmission before anything new is sent counts as later than all retransmissions by then.
        let order = if self.again & bits == 0 { newest } else { newest.max(before.saturating_add(1)) };
        for k in 0..count.min(128) {
            self.order[place_of(psn + k)] = order.wrapping_add(self.base.value() as u8);
        }
        self.lost &= !bits;
        self.again |= bits;
        if self.timed_at == Nanos::MAX {
            (self.timed, self.timed_at) = (psn, now);
        }
    }
}

/// Returns the place of a PSN in the order of transmissions.
fn place_of(psn: Psn) -> usize {
    (psn.value() >> 2 & 31) as usize
}
