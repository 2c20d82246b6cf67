//! Durations of passes.

use roxie_base::time::Nanos;

/// Number of buckets. The last one counts all passes of 2^30 ns and more.
pub(super) const BUCKETS: usize = 32;

/// Histogram of the durations of passes that received, sent or completed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Bucket `i` counts durations from 2^(i-1) ns, inclusive, to 2^i ns, exclusive.
    pub buckets: [u64; BUCKETS],
    /// Sum of all durations.
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
        assert_eq!(times.total, Nanos(u64::MAX), "the sum saturates");
    }
}
