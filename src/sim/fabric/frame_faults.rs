//! Faults that a test injects into frames on links.

use std::fmt;

use super::cable::LinkStats;
use super::classify;
use super::topology::End;
use roxie_base::time::Nanos;

/// One arrival of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Additional delay.
    pub delay: Nanos,
    /// The bit to flip.
    pub flipped_bit: Option<usize>,
    /// Mark the frame (CE) if it is ECN-capable, as a long queue would.
    pub marked: bool,
}

impl Arrival {
    /// Applies the faults to a copy, and counts them.
    pub(super) fn befall(self, frame: &mut [u8], stats: &mut LinkStats) {
        if self.marked {
            let sight = classify::classify(frame);
            if sight.can_be_marked() {
                sight.mark(frame);
                stats.marked += 1;
            }
        }
        if let Some(bit) = self.flipped_bit {
            let byte = bit / 8 % frame.len();
            frame[byte] ^= 1 << (bit % 8);
            stats.flipped += 1;
        }
        stats.delayed += u64::from(self.delay > Nanos::ZERO);
    }
}

/// Decides the faults of frames on links.
pub trait FrameFaults: fmt::Debug + Send {
    /// Decides about one frame put on the link that ends at `to`. `arrivals` is empty on entry. Each entry added is one
    /// arrival: none means a loss, two a duplicate.
    fn judge(&mut self, now: Nanos, to: End, frame: &[u8], arrivals: &mut Vec<Arrival>);
}
