//! What a switch counts, and how deep its queues were.

use hdrhistogram::Histogram;

use crate::time::Nanos;

/// Why a frame went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Its queue has the share of the buffer that it may have.
    Threshold,
    /// The shared buffer is full.
    Full,
    /// A lossless priority whose headroom is full: its peer did not pause in time, or the headroom is too small.
    Headroom,
    /// Nobody is known at its destination address, or only whom it comes from.
    NoRoute,
    /// Longer than the switch carries.
    TooLong,
    /// No Ethernet header.
    Malformed,
}

/// How many reasons there are.
const REASONS: usize = 6;

impl DropReason {
    /// All of them.
    pub const ALL: [DropReason; REASONS] = [
        DropReason::Threshold,
        DropReason::Full,
        DropReason::Headroom,
        DropReason::NoRoute,
        DropReason::TooLong,
        DropReason::Malformed,
    ];
}

/// Frames dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; REASONS]);

impl Drops {
    /// For this reason.
    pub fn by(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// For any.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }
}

/// What came in at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressStats {
    /// Frames that came in.
    pub frames: u64,
    /// Bytes of the frames that came in.
    pub bytes: u64,
    /// MAC control frames, which go no further.
    pub control: u64,
    /// Copies offered to queues: one for each frame to one station, and one a port for those to groups.
    pub copies: u64,
    /// Frames of which no copy was offered to any queue.
    pub drops: Drops,
}

/// One queue of a port, that of one priority; and what the peer at this port was told about that priority.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Copies offered to it.
    pub offered: u64,
    /// Those that it took.
    pub enqueued: u64,
    /// Those that it did not.
    pub drops: Drops,
    /// Frames that have begun to leave.
    pub sent: u64,
    /// Bytes of the frames that have begun to leave.
    pub sent_bytes: u64,
    /// Frames that it marked.
    pub marked: u64,
    /// How often the peer was told to pause, again and again for as long as it shall.
    pub xoff_sent: u64,
    /// How often it was told to go on.
    pub xon_sent: u64,
    /// For how long the peer was to be silent, up to when it was told to go on last.
    pub pause_sent: Nanos,
    /// For how long the queue was told to be silent.
    pub pause_received: Nanos,
    /// The most bytes of headroom that what came in at this port took.
    pub headroom_peak: u64,
    /// Its depth, without the frame that is leaving.
    pub depth: Depth,
}

impl QueueStats {
    /// Frames that wait in it, if all were counted right.
    pub fn queued(&self) -> u64 {
        self.enqueued - self.sent
    }
}

/// Points of a series at most. When there are more, every second goes: of two that follow each other, the lower.
const MOST_POINTS: usize = 4096;

/// A depth in bytes over time. It costs nothing until there is one.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    now: u64,
    since: Nanos,
    peak: u64,
    kept: Option<Box<Kept>>,
}

#[derive(Clone, Debug)]
struct Kept {
    /// Time by depth, in ns.
    histogram: Histogram<u64>,
    series: Vec<(Nanos, u64)>,
    /// Points closer than this to the one before are merged with it: the higher counts.
    resolution: u64,
}

impl Depth {
    /// In bytes.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The most that there was, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// The depth that was not exceeded for `share` (0 to 1) of the time up to the last change, to one part in a hundred.
    pub fn quantile(&self, share: f64) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.histogram.value_at_quantile(share))
    }

    /// The mean over time up to the last change, in bytes.
    pub fn mean(&self) -> f64 {
        self.kept.as_ref().map_or(0.0, |kept| kept.histogram.mean())
    }

    /// The depth after each change, or at coarser steps the highest.
    pub fn series(&self) -> &[(Nanos, u64)] {
        self.kept.as_ref().map_or(&[], |kept| &kept.series)
    }

    pub(super) fn set(&mut self, now: Nanos, depth: u64) {
        let kept = self.kept.get_or_insert_with(|| {
            let histogram = Histogram::new_with_bounds(1, 1 << 40, 2).expect("bounds as documented");
            Box::new(Kept { histogram, series: Vec::new(), resolution: 0 })
        });
        kept.histogram.saturating_record_n(self.now, now.since(self.since).0);
        kept.note(now, depth);
        (self.now, self.since) = (depth, now);
        self.peak = self.peak.max(depth);
    }
}

impl Kept {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_time_and_not_of_changes() {
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
    fn a_series_stays_bounded_and_keeps_its_peaks() {
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
