//! Computes when the next frame of a QP may leave at its rate.
//!
//! A pacer keeps an account in bytes: a sent frame is a debt, which time pays off at the rate. The next frame
//! may leave when the debt is zero. Time beyond that earns credit, up to `max_burst_sz`, for the frames that
//! should have left while the QP waited for its turn; they may leave back to back. The mean rate is therefore
//! exact for any timer tick, as long as the credit covers the bytes of one tick and its delay.
//!
//! In any interval, a QP sends at most what the rate allows, `max_burst_sz` and one frame.

use super::Rate;
use roxie_base::time::Nanos;

/// Paces the frames of one QP.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// Time to which `debt` refers.
    at: Nanos,
    /// Debt in bytes; negative is credit.
    debt: f64,
    /// Bytes per nanosecond from `at` on. 0 before the first frame.
    speed: f64,
    /// Maximum credit in bytes.
    burst: f64,
    ready_at: Nanos,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer::new()
    }
}

impl Pacer {
    /// Default burst after a late wake-up, in bytes. Sent in 1.3 us at 400 Gb/s, in 52 us at 10 Gb/s, in 0.5
    /// ms at 1 Gb/s.
    pub const MAX_BURST: u32 = 65_536;

    /// Creates a pacer; the first frame may leave immediately.
    pub fn new() -> Pacer {
        Pacer {
            at: Nanos::ZERO,
            debt: 0.0,
            speed: 0.0,
            burst: f64::from(Self::MAX_BURST),
            ready_at: Nanos::ZERO,
        }
    }

    /// Sets the burst, as `ibv_qp_rate_limit_attr` does: `max_burst_sz` bytes, 0 for the default, but at
    /// least one packet of `typical_pkt_sz` bytes. Frames are always accounted with their actual size.
    pub fn set_burst(&mut self, max_burst_sz: u32, typical_pkt_sz: u16) {
        self.burst = Pacer::burst_of(max_burst_sz, typical_pkt_sz);
        self.debt = self.debt.max(-self.burst);
    }

    fn burst_of(max_burst_sz: u32, typical_pkt_sz: u16) -> f64 {
        let burst = if max_burst_sz == 0 { Self::MAX_BURST } else { max_burst_sz };
        f64::from(burst.max(typical_pkt_sz.into()))
    }

    /// True if the credit is within the burst that [`set_burst`](Self::set_burst) sets.
    pub fn is_bounded(&self, max_burst_sz: u32, typical_pkt_sz: u16) -> bool {
        let burst = Pacer::burst_of(max_burst_sz, typical_pkt_sz);
        self.burst <= burst && -self.debt <= burst
    }

    /// Returns the earliest time at which the next frame may leave.
    pub fn ready_at(&self) -> Nanos {
        self.ready_at
    }

    /// Records that a frame of `bytes` was sent, and sets the rate from now on.
    pub fn sent(&mut self, now: Nanos, bytes: u64, rate: Rate) {
        self.settle(now);
        self.debt += bytes as f64;
        self.schedule(rate);
    }

    /// Sets the rate from now on, which also applies to the current debt.
    pub fn rate_changed(&mut self, now: Nanos, rate: Rate) {
        self.settle(now);
        self.schedule(rate);
    }

    /// Discards the credit, because the QP had nothing to send until now, or was not paced. Must be called
    /// before the next frame or change of the rate is recorded.
    pub fn was_idle(&mut self, now: Nanos) {
        self.settle(now);
        self.debt = self.debt.max(0.0);
    }

    /// Updates the account to `now`.
    fn settle(&mut self, now: Nanos) {
        self.debt = (self.debt - (now - self.at).0 as f64 * self.speed).max(-self.burst);
        self.at = self.at.max(now);
    }

    fn schedule(&mut self, rate: Rate) {
        // At least 1 bit/s: nearly a stop, without dividing by zero.
        self.speed = rate.0.max(1.0) / 8e9;
        // The cast saturates.
        self.ready_at = self.at + Nanos((self.debt.max(0.0) / self.speed).ceil() as u64);
        invariant!(self.debt > 0.0 || self.ready_at == self.at, "a QP without debt waits");
    }
}
