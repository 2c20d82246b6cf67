//! When the next frame of a QP may leave, by its rate.
//!
//! A pacer keeps an account in bytes: a frame is a debt, which time pays back at the rate. The next frame may leave when
//! nothing is owed. What is paid beyond that is credit, up to `max_burst_sz`: it stands for the frames that should have
//! left while the QP's turn came late, and those may follow one another at once. So the mean rate is exact whatever
//! the clock's tick, as long as the credit holds what a tick and its delay send.
//!
//! In any span of time leaves at most what the rate gives, `max_burst_sz` and one frame.

use super::Rate;
use crate::time::Nanos;

/// Paces the frames of a QP.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// When `owed` was right.
    at: Nanos,
    /// Bytes that were sent and that time has not paid back; negative: credit.
    owed: f64,
    /// Bytes per nanosecond since then. 0 before the first frame.
    speed: f64,
    /// The most credit, in bytes.
    burst: f64,
    ready_at: Nanos,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer::new()
    }
}

impl Pacer {
    /// Bytes that may be caught up after a late wake-up unless another number is set: what 400 Gb/s send in 1.3 us, 10 Gb/s
    /// in 52 us and 1 Gb/s in half a millisecond.
    pub const MAX_BURST: u32 = 65_536;

    /// A pacer whose first frame may leave at once.
    pub fn new() -> Pacer {
        Pacer {
            at: Nanos::ZERO,
            owed: 0.0,
            speed: 0.0,
            burst: f64::from(Self::MAX_BURST),
            ready_at: Nanos::ZERO,
        }
    }

    /// Bounds bursts, as `ibv_qp_rate_limit_attr` does: `max_burst_sz` bytes, 0 for the default; one packet of
    /// `typical_pkt_sz` bytes at least. The schedule itself goes by the size that each frame has.
    pub fn set_burst(&mut self, max_burst_sz: u32, typical_pkt_sz: u16) {
        let burst = if max_burst_sz == 0 { Self::MAX_BURST } else { max_burst_sz };
        self.burst = f64::from(burst.max(typical_pkt_sz.into()));
        self.owed = self.owed.max(-self.burst);
    }

    /// When the next frame may leave: not before.
    pub fn ready_at(&self) -> Nanos {
        self.ready_at
    }

    /// A frame of `bytes` left, and from now on the rate is this.
    pub fn sent(&mut self, now: Nanos, bytes: u64, rate: Rate) {
        self.settle(now);
        self.owed += bytes as f64;
        self.schedule(rate);
    }

    /// From now on the rate is this: what is owed is paid at it.
    pub fn rate_changed(&mut self, now: Nanos, rate: Rate) {
        self.settle(now);
        self.schedule(rate);
    }

    /// There was nothing to send until now, or nobody paced it: the time since the last frame could leave is no delay to catch up
    /// with. To be called before what follows is told of, a change of the rate too.
    pub fn was_idle(&mut self, now: Nanos) {
        self.settle(now);
        self.owed = self.owed.max(0.0);
    }

    /// Brings the account up to `now`.
    fn settle(&mut self, now: Nanos) {
        self.owed = (self.owed - (now - self.at).0 as f64 * self.speed).max(-self.burst);
        self.at = self.at.max(now);
    }

    fn schedule(&mut self, rate: Rate) {
        // A bit in a second is as good as never, and no division by zero.
        self.speed = rate.0.max(1.0) / 8e9;
        // The cast saturates.
        self.ready_at = self.at + Nanos((self.owed.max(0.0) / self.speed).ceil() as u64);
    }
}
