//! How long passes take.

use crate::time::Nanos;

/// Buckets: the last takes all that took longer, 2^30 ns and more.
pub(super) const BUCKETS: usize = 32;

/// Passes that brought or sent something, by how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Bucket `i` counts those that took less than 2^i ns, and not less than 2^(i-1).
    pub buckets: [u64; BUCKETS],
    /// What all of them took together.
    pub total: Nanos,
}

impl PassTimes {
    pub(super) fn record(&mut self, took: Nanos) {
        let bucket = (u64::BITS - took.0.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.total = self.total + took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_before_its_power_of_two() {
        let mut times = PassTimes::default();
        for ns in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            times.record(Nanos(ns));
        }
        let at = |bucket: usize| times.buckets[bucket];
        assert_eq!([at(0), at(1), at(2), at(3), at(10), at(11), at(BUCKETS - 1)], [1, 1, 2, 1, 1, 1, 1]);
        assert_eq!(times.total, Nanos(u64::MAX), "it stays at the end of the clock");
    }
}
