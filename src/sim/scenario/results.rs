//! Results of a scenario.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::file::Scenario;
use super::flow_result::FlowResult;
use super::record::Record;
use super::table::Table;
use super::tables::{self, Network, PortQueue, counter};
use super::traffic::Flow;
use crate::fabric::QueueStats;

/// Key figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the scenario.
    pub name: String,
    /// Seed of the scenario.
    pub seed: u64,
    /// End of the run, in ns.
    pub time_ns: u64,
    /// Events handled.
    pub events: u64,
    /// Flows of the scenario.
    pub flows: u64,
    /// Flows that completed.
    pub ended: u64,
    /// Flows that failed with their queue pair.
    pub failed: u64,
    /// Median completion time, in ns.
    pub fct_p50_ns: u64,
    /// 99th percentile of the completion time, in ns.
    pub fct_p99_ns: u64,
    /// Maximum completion time, in ns.
    pub fct_max_ns: u64,
    /// Mean slowdown compared to an empty network.
    pub slowdown_mean: f64,
    /// Median slowdown.
    pub slowdown_p50: f64,
    /// 99th percentile of the slowdown.
    pub slowdown_p99: f64,
    /// Jain's fairness index of the completed flows' rates: 1 if all are equal.
    pub fairness: f64,
    /// Bytes of completed flows divided by the duration of the run, in bits per second.
    pub goodput_bps: f64,
    /// Frames sent by switches.
    pub frames: u64,
    /// Frames marked by switches.
    pub marked: u64,
    /// Frames dropped by switches, for any reason.
    pub dropped: u64,
    /// Frames damaged by link errors.
    pub damaged: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Congestion notifications received by senders.
    pub cnps: u64,
    /// XOFF frames sent, by all ports.
    pub pauses: u64,
    /// Total pause time requested, summed over all ports, in ns.
    pub pause_ns: u64,
    /// Maximum depth of a single queue, in bytes.
    pub depth_peak: u64,
    /// Number of times a watchdog found a queue stuck.
    pub storms: u64,
    /// First deadlock: its queues as `SWITCH:PORT`. Each waits for the next.
    pub deadlock: Option<String>,
    /// Time since which all queues of the first deadlock had been paused, in ns.
    pub deadlock_since_ns: Option<u64>,
    /// Total duration of deadlocks in ns, with the resolution of the output interval.
    pub deadlock_ns: u64,
}

/// Results of a scenario: tables and a summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Key figures.
    pub summary: Summary,
    /// Result of each flow, by number.
    pub flows: Vec<FlowResult>,
    /// `flows`, `ports`, `hosts`, `queues`, `rates`; also `control` if the output asks for it.
    pub tables: Vec<Table>,
}

impl Results {
    /// Returns the results of these flows of a scenario.
    pub(super) fn of(
        scenario: &Scenario,
        flows: &[Flow],
        results: Vec<FlowResult>,
        network: Network<'_>,
        record: &Record,
    ) -> Results {
        let shape = network.shape;
        let queues = tables::active_queues(network);
        let mut tables = vec![
            tables::flow_table(flows, &results, &scenario.traffic, shape),
            tables::port_table(&queues, network),
            tables::host_table(network),
            tables::queue_table(&queues, shape),
            tables::rate_table(record.rates(), record.interval(), &shape.stations),
        ];
        if scenario.output.control {
            tables.push(tables::control_table(record.control()));
        }
        let summary = summary(scenario, flows, &results, network, &queues, record);
        Results { summary, flows: results, tables }
    }

    /// Returns the table of this name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }
}

fn summary(
    scenario: &Scenario,
    flows: &[Flow],
    results: &[FlowResult],
    Network { shape, fabric }: Network<'_>,
    ports: &[PortQueue],
    record: &Record,
) -> Summary {
    let now = fabric.now();
    let mut times = Histogram::<u64>::new_with_bounds(1, 1 << 50, 3).expect("bounds as documented");
    let mut slowdowns: Vec<f64> = results.iter().filter_map(FlowResult::slowdown).collect();
    slowdowns.sort_unstable_by(f64::total_cmp);
    results.iter().filter_map(FlowResult::completion_time).for_each(|time| times.saturating_record(time.0));
    let rate = |(flow, result): (&Flow, &FlowResult)| {
        result.completion_time().map(|time| flow.bytes as f64 * 8e9 / time.0.max(1) as f64)
    };
    let rates: Vec<f64> = flows.iter().zip(results).filter_map(rate).collect();
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    let done = flows.iter().zip(results).filter(|(_, result)| result.completion_time().is_some());
    let bytes: u64 = done.map(|(flow, _)| flow.bytes).sum();
    let quantile = |share: f64| {
        let last = slowdowns.len().saturating_sub(1);
        slowdowns.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
    };
    let queues = |of: fn(&QueueStats) -> u64| ports.iter().map(|queue| of(&queue.stats)).sum::<u64>();
    let hosts = 0..shape.stations.len();
    let ends = shape.links.iter().flat_map(|link| link.ends);
    let unrouted = (0..shape.switches.len()).flat_map(|switch| {
        let ports = 0..usize::from(shape.switches[switch].ports);
        ports.map(move |port| fabric.switch(switch).ingress(port).drops.all())
    });
    Summary {
        name: scenario.name.clone(),
        seed: scenario.seed,
        time_ns: now.0,
        events: fabric.events(),
        flows: results.len() as u64,
        ended: times.len(),
        failed: results.iter().filter(|flow| flow.failed.is_some()).count() as u64,
        fct_p50_ns: times.value_at_quantile(0.5),
        fct_p99_ns: times.value_at_quantile(0.99),
        fct_max_ns: times.max(),
        slowdown_mean: slowdowns.iter().fold(0.0, |sum, of| sum + of) / slowdowns.len().max(1) as f64,
        slowdown_p50: quantile(0.5),
        slowdown_p99: quantile(0.99),
        fairness: if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 0.0 },
        goodput_bps: bytes as f64 * 8e9 / now.0.max(1) as f64,
        frames: queues(|stats| stats.sent),
        marked: queues(|stats| stats.marked),
        dropped: queues(|stats| stats.drops.all() + stats.flushed) + unrouted.sum::<u64>(),
        damaged: ends.map(|end| fabric.link(end).damaged).sum(),
        retransmitted: hosts.map(|host| counter(fabric, host, "retransmitted_packets")).sum(),
        cnps: results.iter().map(|flow| flow.flow_stats.notified).sum(),
        pauses: queues(|stats| stats.xoff_sent),
        pause_ns: queues(|stats| stats.pause_sent.0),
        depth_peak: ports.iter().map(|queue| queue.stats.depth.peak()).max().unwrap_or(0),
        storms: queues(|stats| stats.storms),
        deadlock: record.deadlock().map(|(_, names)| names.to_owned()),
        deadlock_since_ns: record.deadlock().map(|(found, _)| found.since.0),
        deadlock_ns: record.deadlock_time().0,
    }
}
