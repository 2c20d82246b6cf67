//! What is looked at while a scenario runs.

use roxie::sim::fabric::{Fabric, QueueStats};
use roxie::time::Nanos;
use serde::Serialize;

use super::scenario::Scenario;

/// What was there at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Since the first.
    pub(super) at: Nanos,
    /// Bytes in the queue.
    pub(super) depth: u64,
    /// Bytes that each receiver has got, all headers included.
    pub(super) delivered: Vec<u64>,
}

/// Samples at equal distances, or the next that could be had.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    senders: usize,
    bottleneck: (usize, usize),
    interval: Nanos,
    start: Option<Nanos>,
    next: Nanos,
    pub(super) samples: Vec<Sample>,
}

impl Trace {
    pub(super) fn new(scenario: &Scenario) -> Trace {
        Trace {
            senders: scenario.senders,
            bottleneck: scenario.bottleneck(),
            interval: scenario.interval(),
            start: None,
            next: Nanos::ZERO,
            samples: Vec::new(),
        }
    }

    /// Looks at a fabric, if it is time to.
    pub(super) fn look(&mut self, fabric: &Fabric) {
        let now = fabric.now();
        if now < self.next {
            return;
        }
        let start = *self.start.get_or_insert(now);
        let (switch, port) = self.bottleneck;
        let delivered = (self.senders..2 * self.senders).map(|n| fabric.station(n).delivered_bytes).collect();
        let depth = fabric.switch(switch).depth(port);
        self.samples.push(Sample { at: now.since(start), depth, delivered });
        self.next = now + self.interval;
    }

    /// Mb/s of a receiver between sample `i - 1` and `i`.
    pub(super) fn rate(&self, receiver: usize, i: usize) -> f64 {
        let [before, after] = [&self.samples[i - 1], &self.samples[i]];
        let bytes = after.delivered[receiver] - before.delivered[receiver];
        bytes as f64 * 8e3 / after.at.since(before.at).0.max(1) as f64
    }
}

/// A run in numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    /// Mb/s that each receiver got in the second half, all headers included.
    pub(super) mbps: Vec<f64>,
    /// 1: all equal; 1/n: one has everything (Jain, Chiu and Hawe 1984).
    pub(super) fairness: f64,
    pub(super) queue_mean: f64,
    pub(super) queue_99: u64,
    pub(super) queue_peak: u64,
    pub(super) frames: u64,
    pub(super) marked: u64,
    pub(super) dropped: u64,
    /// How late frames were given to their interfaces, in us: the median and 99 of 100. In virtual time none is.
    pub(super) late_us: Option<[f64; 2]>,
}

impl Summary {
    pub(super) fn of(trace: &Trace, queue: &QueueStats) -> Summary {
        let half = trace.samples.len() / 2;
        let mbps: Vec<f64> = (0..trace.senders)
            .map(|receiver| {
                let [Some(first), Some(last)] = [trace.samples.get(half), trace.samples.last()] else {
                    return 0.0;
                };
                let bytes = last.delivered[receiver] - first.delivered[receiver];
                bytes as f64 * 8e3 / last.at.since(first.at).0.max(1) as f64
            })
            .collect();
        let (sum, squares) = (mbps.iter().sum::<f64>(), mbps.iter().map(|rate| rate * rate).sum::<f64>());
        Summary {
            fairness: if squares > 0.0 { sum * sum / (mbps.len() as f64 * squares) } else { 0.0 },
            mbps,
            queue_mean: queue.depth.mean(),
            queue_99: queue.depth.quantile(0.99),
            queue_peak: queue.depth.peak(),
            frames: queue.sent,
            marked: queue.marked,
            dropped: queue.drops.all(),
            late_us: None,
        }
    }
}

/// A run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) trace: Trace,
    pub(super) summary: Summary,
}
