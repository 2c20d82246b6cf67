//! Weather: what somebody else decides to happen to frames on their way, for tests.

use std::fmt;

use super::cable::LinkStats;
use super::classify;
use super::topology::End;
use crate::time::Nanos;

/// One arrival of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// How much later than without trouble.
    pub delay: Nanos,
    /// Which bit is flipped.
    pub flipped_bit: Option<usize>,
    /// A queue on its way was long: it is marked, if its sender let it be.
    pub marked: bool,
}

impl Arrival {
    /// Does to a copy what is to be done, and counts it.
    pub(super) fn befall(self, frame: &mut [u8], stats: &mut LinkStats) {
        if self.marked {
            let sight = classify::look(frame);
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

/// What happens to frames on links.
pub trait Weather: fmt::Debug + Send {
    /// Decides about one frame that is put on the link that ends at `to`. `arrivals` is empty: what is put there arrives, so that
    /// nothing is a loss and two entries are a duplicate.
    fn judge(&mut self, now: Nanos, to: End, frame: &[u8], arrivals: &mut Vec<Arrival>);
}
