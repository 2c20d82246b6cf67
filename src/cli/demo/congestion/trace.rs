//! Samples a running scenario: queue depth, bytes delivered, counters.

use hdrhistogram::Histogram;
use roxie::time::Nanos;
use roxie_sim::fabric::Fabric;
use serde::Serialize;

use super::scenario::{MESSAGE, Scenario};

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Time since the senders began.
    pub(super) at: Nanos,
    /// Bytes in the queue.
    pub(super) depth: u64,
    /// Bytes that each receiver has got, with all headers.
    pub(super) delivered: Vec<u64>,
}

/// Priority of DSCP 48, which congestion notifications have.
const NOTIFICATIONS: usize = 6;

/// Counters of the queues at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    marked: u64,
    dropped: u64,
    /// Frames of the notifications' priority on the way back.
    notifications: u64,
}

impl Counts {
    /// Reads the counters of the switch in front of the link, and of the one behind it for the way back.
    fn of(fabric: &Fabric, (switch, port): (usize, usize)) -> Counts {
        let queue = fabric.switch(switch).queue(port, 0);
        let notifications = fabric.switch(1 - switch).queue(port, NOTIFICATIONS).sent;
        Counts { sent: queue.sent, marked: queue.marked, dropped: queue.drops.all(), notifications }
    }
}

/// The record of a run, from when the senders began until the scenario's time was over.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    senders: usize,
    bottleneck: (usize, usize),
    interval: Nanos,
    time: Nanos,
    /// When the senders began, and the counters then; and the latest counters.
    began: Option<(Nanos, Counts)>,
    counts: Counts,
    /// Time of the next sample.
    next: Nanos,
    /// Time of the last look, and the depth then.
    last: (Nanos, u64),
    /// Time in ns by depth in bytes, in the second half; and the peak depth of the whole run.
    depths: Histogram<u64>,
    peak: u64,
    /// The counters when the second half began.
    settled: Option<Counts>,
    /// Samples at equal intervals, or as close to them as the calls came.
    pub(super) samples: Vec<Sample>,
}

impl Trace {
    pub(super) fn new(scenario: &Scenario) -> Trace {
        Trace {
            senders: scenario.senders,
            bottleneck: scenario.bottleneck(),
            interval: scenario.interval(),
            time: scenario.time(),
            began: None,
            counts: Counts::default(),
            next: Nanos::ZERO,
            last: (Nanos::ZERO, 0),
            depths: Histogram::new_with_bounds(1, 1 << 40, 2).expect("bounds as documented"),
            peak: 0,
            settled: None,
            samples: Vec::new(),
        }
    }

    /// Samples the fabric if a sample is due. Call it often.
    pub(super) fn look(&mut self, fabric: &Fabric) {
        let now = fabric.now();
        let (switch, port) = self.bottleneck;
        let depth = fabric.switch(switch).depth(port);
        let Some((began, _)) = self.began else {
            let bytes: u64 = self.receivers().map(|n| fabric.station(n).delivered_bytes).sum();
            if bytes >= u64::from(MESSAGE) {
                self.began = Some((now, Counts::of(fabric, self.bottleneck)));
                (self.next, self.last) = (now, (now, depth));
                self.sample(fabric, now, depth);
            }
            return;
        };
        if self.is_over() {
            return;
        }
        self.peak = self.peak.max(depth);
        if now.since(began).0 >= self.time.0 / 2 {
            self.settled.get_or_insert_with(|| Counts::of(fabric, self.bottleneck));
            self.depths.saturating_record_n(self.last.1, now.since(self.last.0).0);
        }
        self.last = (now, depth);
        if now >= self.next {
            self.sample(fabric, began, depth);
            if self.is_over() {
                self.counts = Counts::of(fabric, self.bottleneck);
            }
        }
    }

    /// True once the scenario's time is over.
    pub(super) fn is_over(&self) -> bool {
        self.samples.last().is_some_and(|sample| sample.at >= self.time)
    }

    fn sample(&mut self, fabric: &Fabric, began: Nanos, depth: u64) {
        let delivered = self.receivers().map(|n| fabric.station(n).delivered_bytes).collect();
        self.samples.push(Sample { at: fabric.now().since(began), depth, delivered });
        self.next = fabric.now() + self.interval;
    }

    fn receivers(&self) -> std::ops::Range<usize> {
        self.senders..2 * self.senders
    }

    /// Returns a receiver's rate between two samples in Mb/s; 0 for equal samples.
    pub(super) fn rate(&self, receiver: usize, from: usize, to: usize) -> f64 {
        let [before, after] = [&self.samples[from], &self.samples[to]];
        let bytes = after.delivered[receiver] - before.delivered[receiver];
        bytes as f64 * 8e3 / after.at.since(before.at).0.max(1) as f64
    }
}

/// A run in numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    /// Rate of each receiver in the second half, in Mb/s, with all headers.
    pub(super) mbps: Vec<f64>,
    /// Jain's fairness index (Jain, Chiu and Hawe 1984): 1 if all rates are equal, 1/n if one sender has everything.
    pub(super) fairness: f64,
    /// Mean queue depth in bytes, in the second half: the first half includes the start at line rate.
    pub(super) queue_mean: f64,
    pub(super) queue_99: u64,
    /// Peak queue depth of the whole run, in bytes.
    pub(super) queue_peak: u64,
    pub(super) frames: u64,
    pub(super) marked: u64,
    /// Notifications that came back over the link.
    pub(super) notifications: u64,
    pub(super) dropped: u64,
    /// Frames dropped in the second half.
    pub(super) dropped_settled: u64,
    /// How late the forwarder sent frames, in us: median and 99th percentile. `None` in virtual time.
    pub(super) late_us: Option<[f64; 2]>,
}

impl Summary {
    pub(super) fn of(trace: &Trace) -> Summary {
        let before = trace.began.map_or(Counts::default(), |(_, counts)| counts);
        let last = trace.samples.len().saturating_sub(1);
        let rate = |receiver| if last == 0 { 0.0 } else { trace.rate(receiver, last / 2, last) };
        let mbps: Vec<f64> = (0..trace.senders).map(rate).collect();
        let (sum, squares) = (mbps.iter().sum::<f64>(), mbps.iter().map(|rate| rate * rate).sum::<f64>());
        Summary {
            fairness: if squares > 0.0 { sum * sum / (mbps.len() as f64 * squares) } else { 0.0 },
            mbps,
            queue_mean: trace.depths.mean(),
            queue_99: trace.depths.value_at_quantile(0.99),
            queue_peak: trace.peak,
            frames: trace.counts.sent - before.sent,
            marked: trace.counts.marked - before.marked,
            notifications: trace.counts.notifications - before.notifications,
            dropped: trace.counts.dropped - before.dropped,
            dropped_settled: trace.counts.dropped - trace.settled.unwrap_or(trace.counts).dropped,
            late_us: None,
        }
    }
}

/// A run: its record and its numbers.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) trace: Trace,
    pub(super) summary: Summary,
}
