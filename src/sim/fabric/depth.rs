//! Queue depth over time.

use roxie_base::time::Nanos;

/// Maximum number of points of a series. Beyond it, close points are merged, and the highest depth is kept.
const MOST_POINTS: usize = 1024;
/// Buckets per power of two: the relative error of a depth is at most 1 in 64.
const PARTS: u64 = 64;

/// Depth of a queue in bytes over time. Allocates nothing until the first change.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    now: u64,
    since: Nanos,
    peak: u64,
    statistics: Option<Box<DepthStatistics>>,
}

#[derive(Clone, Debug, Default)]
struct DepthStatistics {
    /// Time in ns spent at each depth, by bucket. Grows on demand.
    times: Vec<u64>,
    /// Integral of depth over time in bytes times ns, and the total time.
    area: u128,
    total: u64,
    series: Vec<(Nanos, u64)>,
    /// Points closer than this to the previous one are merged with it; the higher depth is kept.
    resolution: u64,
}

impl Depth {
    /// Returns the current depth in bytes.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the maximum depth in bytes.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the depth that was not exceeded for `share` (0 to 1) of the time up to the last change. Relative error:
    /// 1 in 64.
    pub fn quantile(&self, share: f64) -> u64 {
        self.statistics.as_ref().map_or(0, |kept| kept.quantile(share))
    }

    /// Returns the mean over time up to the last change, in bytes.
    pub fn mean(&self) -> f64 {
        self.statistics.as_ref().map_or(0.0, |kept| kept.area as f64 / kept.total.max(1) as f64)
    }

    /// Returns the depth after each change; after merging, the highest depth of each interval.
    pub fn series(&self) -> &[(Nanos, u64)] {
        self.statistics.as_ref().map_or(&[], |kept| &kept.series)
    }

    pub(super) fn set(&mut self, now: Nanos, depth: u64) {
        let histogram = self.statistics.get_or_insert_default();
        histogram.record(self.now, now.since(self.since).0);
        histogram.note(now, depth);
        (self.now, self.since) = (depth, now);
        self.peak = self.peak.max(depth);
    }
}

impl DepthStatistics {
    fn record(&mut self, depth: u64, time: u64) {
        let bucket = bucket(depth);
        if self.times.len() <= bucket {
            self.times.resize(bucket + 1, 0);
        }
        self.times[bucket] += time;
        self.area += u128::from(depth) * u128::from(time);
        self.total += time;
    }

    fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.total as f64).ceil() as u64).max(1);
        let mut passed = 0;
        let reaches = |time: &u64| {
            passed += time;
            passed >= wanted
        };
        self.times.iter().position(reaches).map_or(0, least)
    }

    fn note(&mut self, now: Nanos, depth: u64) {
        if let Some((time, last)) = self.series.last_mut()
            && now.since(*time).0 < self.resolution
        {
            *last = (*last).max(depth);
            return;
        }
        if self.series.len() == MOST_POINTS {
            self.thin();
        }
        self.series.push((now, depth));
    }

    fn thin(&mut self) {
        let first = self.series[0].0;
        let span = self.series[MOST_POINTS - 1].0.since(first).0;
        self.resolution = (2 * span / MOST_POINTS as u64).max(2 * self.resolution).max(1);
        let mut thinned: Vec<(Nanos, u64)> = Vec::with_capacity(MOST_POINTS);
        for (time, depth) in self.series.drain(..) {
            match thinned.last_mut() {
                Some((start, most)) if time.since(*start).0 < self.resolution => *most = (*most).max(depth),
                _ => thinned.push((time, depth)),
            }
        }
        self.series = thinned;
    }
}

/// Returns the bucket of a depth. Depths below twice [`PARTS`] have a bucket each.
fn bucket(depth: u64) -> usize {
    let beyond = (depth / PARTS).checked_ilog2().unwrap_or(0);
    (u64::from(beyond) * PARTS + (depth >> beyond)) as usize
}

/// Returns the lowest depth of a bucket.
fn least(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let beyond = (bucket / PARTS).saturating_sub(1);
    (bucket - beyond * PARTS) << beyond
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_weight_time_and_not_changes() {
        let mut depth = Depth::default();
        for i in 0..100 {
            depth.set(Nanos(i), i % 2 * 1000);
        }
        depth.set(Nanos(100), 50);
        depth.set(Nanos(1000), 0);
        assert_eq!((depth.now(), depth.peak(), depth.quantile(0.5)), (0, 1000, 50));
        assert!((depth.mean() - 95.0).abs() < 1.0, "{}", depth.mean());
    }

    #[test]
    fn depth_lies_within_its_bucket() {
        let depths = (0..100_000).chain([u64::from(u32::MAX), 1 << 40]);
        for depth in depths {
            let at = bucket(depth);
            assert!(least(at) <= depth && depth < least(at + 1), "{depth}");
            assert!(depth - least(at) <= depth / PARTS, "{depth}");
        }
    }

    #[test]
    fn series_stays_bounded_and_keeps_its_peaks() {
        let mut depth = Depth::default();
        for i in 0..1_000_000_u64 {
            depth.set(Nanos(i * 10), if i == 500_001 { 9999 } else { i % 7 });
        }
        let series = depth.series();
        assert!((MOST_POINTS / 8..=MOST_POINTS).contains(&series.len()), "{}", series.len());
        assert!(series.iter().any(|(time, depth)| *depth == 9999 && time.0.abs_diff(5_000_010) < 50_000));
        assert!(series.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
