//! Results of a scenario.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::run::{ControlSample, FlowProgress, Simulation};
use super::table::{Column, Table};
use super::traffic::Flow;
use crate::fabric::{DropReason, End, FlowStats, PRIORITIES, QueueStats};
use roxie_base::time::Nanos;

/// Result of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowResult {
    /// Start time. `None`: the flow did not start.
    pub began: Option<Nanos>,
    /// End time. `None`: the flow did not end during the run.
    pub ended: Option<Nanos>,
    /// Completion time in an empty network.
    pub ideal: Nanos,
    /// Cause of the failure, if the flow failed.
    pub failed: Option<String>,
    /// Statistics of its frames: data, responses, and notifications to the data's sender.
    pub flow_stats: FlowStats,
}

impl FlowResult {
    /// Returns the time from start to end, if the flow completed.
    pub fn completion_time(&self) -> Option<Nanos> {
        Some(self.ended.filter(|_| self.failed.is_none())?.since(self.began?))
    }

    /// Returns the completion time divided by [`FlowResult::ideal`].
    pub fn slowdown(&self) -> Option<f64> {
        Some(self.completion_time()?.0 as f64 / self.ideal.0.max(1) as f64)
    }
}

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
    /// Returns the table of this name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }
}

impl Simulation {
    /// Returns the results up to now.
    pub fn results(&self) -> Results {
        let flows = self.flow_results();
        let ports = self.ports();
        let summary = self.summary(&flows, &ports);
        let mut tables = vec![
            self.flow_table(&flows),
            self.port_table(&ports),
            self.host_table(),
            self.queue_table(&ports),
            self.rate_table(),
        ];
        if self.scenario.output.control {
            tables.push(self.control_table());
        }
        Results { summary, flows, tables }
    }

    fn flow_results(&self) -> Vec<FlowResult> {
        let Simulation { flows, flow_progress, .. } = self;
        let mut paths = self.paths.clone();
        let flow_stats = |number: usize, flow: &Flow, conn| {
            self.applications.flow_stats(&self.fabric, number as u32, conn, flow.read)
        };
        let result = |(number, (flow, progress)): (usize, (&Flow, &FlowProgress))| FlowResult {
            began: progress.began,
            ended: progress.ended,
            ideal: paths.time(flow),
            failed: progress.failed.map(|status| status.to_string()),
            flow_stats: progress.conn.map_or_else(FlowStats::default, |conn| flow_stats(number, flow, conn)),
        };
        flows.iter().zip(flow_progress.iter()).enumerate().map(result).collect()
    }

    /// Returns switch, port, priority and counters of all queues with any activity.
    fn ports(&self) -> Vec<(usize, usize, usize, QueueStats)> {
        let fabric = &self.fabric;
        let mut all = Vec::new();
        for switch in 0..self.shape.switches.len() {
            for port in 0..usize::from(self.shape.switches[switch].ports) {
                for priority in 0..PRIORITIES {
                    let mut stats = fabric.switch(switch).queue(port, priority);
                    if let Some(since) = stats.pausing_since {
                        stats.pause_sent = stats.pause_sent + fabric.now().since(since);
                    }
                    if stats.offered + stats.xoff_sent + stats.pause_received.0 > 0 {
                        all.push((switch, port, priority, stats));
                    }
                }
            }
        }
        all
    }

    fn counter(&self, host: usize, name: &str) -> u64 {
        let counters = self.fabric.hosts()[host].worker.counters();
        counters.iter().find(|(of, _)| *of == name).map_or(0, |(_, count)| *count)
    }

    fn summary(&self, flows: &[FlowResult], ports: &[(usize, usize, usize, QueueStats)]) -> Summary {
        let now = self.fabric.now();
        let mut times = Histogram::<u64>::new_with_bounds(1, 1 << 50, 3).expect("bounds as documented");
        let mut slowdowns: Vec<f64> = flows.iter().filter_map(FlowResult::slowdown).collect();
        slowdowns.sort_unstable_by(f64::total_cmp);
        flows.iter().filter_map(FlowResult::completion_time).for_each(|time| times.saturating_record(time.0));
        let rate = |(flow, result): (&Flow, &FlowResult)| {
            result.completion_time().map(|time| flow.bytes as f64 * 8e9 / time.0.max(1) as f64)
        };
        let rates: Vec<f64> = self.flows.iter().zip(flows).filter_map(rate).collect();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
        let done = self.flows.iter().zip(flows).filter(|(_, result)| result.completion_time().is_some());
        let bytes: u64 = done.map(|(flow, _)| flow.bytes).sum();
        let quantile = |share: f64| {
            let last = slowdowns.len().saturating_sub(1);
            slowdowns.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
        };
        let queues = |of: fn(&QueueStats) -> u64| ports.iter().map(|(_, _, _, stats)| of(stats)).sum::<u64>();
        let hosts = 0..self.shape.stations.len();
        let ends = self.shape.links.iter().flat_map(|link| link.ends);
        let unrouted = (0..self.shape.switches.len()).flat_map(|switch| {
            let ports = 0..usize::from(self.shape.switches[switch].ports);
            ports.map(move |port| self.fabric.switch(switch).ingress(port).drops.all())
        });
        Summary {
            name: self.scenario.name.clone(),
            seed: self.scenario.seed,
            time_ns: now.0,
            events: self.fabric.events(),
            flows: flows.len() as u64,
            ended: times.len(),
            failed: flows.iter().filter(|flow| flow.failed.is_some()).count() as u64,
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
            damaged: ends.map(|end| self.fabric.link(end).damaged).sum(),
            retransmitted: hosts.map(|host| self.counter(host, "retransmitted_packets")).sum(),
            cnps: flows.iter().map(|flow| flow.flow_stats.notified).sum(),
            pauses: queues(|stats| stats.xoff_sent),
            pause_ns: queues(|stats| stats.pause_sent.0),
            depth_peak: ports.iter().map(|(_, _, _, stats)| stats.depth.peak()).max().unwrap_or(0),
            storms: queues(|stats| stats.storms),
            deadlock: self.deadlock().map(|(_, names)| names.to_owned()),
            deadlock_since_ns: self.deadlock().map(|(found, _)| found.since.0),
            deadlock_ns: self.deadlocks.looks * self.scenario.output.interval.0.0,
        }
    }

    fn flow_table(&self, results: &[FlowResult]) -> Table {
        let flows = &self.flows;
        let count = |of: &dyn Fn(usize) -> u64| Column::Count((0..flows.len()).map(of).collect());
        let maybe = |of: &dyn Fn(usize) -> Option<u64>| Column::Maybe((0..flows.len()).map(of).collect());
        let real = |of: &dyn Fn(usize) -> Option<f64>| Column::Real((0..flows.len()).map(of).collect());
        let text = |of: &dyn Fn(usize) -> String| Column::Text((0..flows.len()).map(of).collect());
        let time = |n: usize| results[n].completion_time().map(|time| time.0);
        let columns = vec![
            ("flow".into(), count(&|n| n as u64)),
            ("traffic".into(), text(&|n| self.traffic_name(flows[n].traffic))),
            ("verb".into(), text(&|n| if flows[n].read { "read" } else { "write" }.to_owned())),
            ("from".into(), text(&|n| self.shape.stations[flows[n].from].clone())),
            ("to".into(), text(&|n| self.shape.stations[flows[n].to].clone())),
            ("bytes".into(), count(&|n| flows[n].bytes)),
            ("start_ns".into(), maybe(&|n| results[n].began.map(|time| time.0))),
            ("end_ns".into(), maybe(&|n| results[n].ended.map(|time| time.0))),
            ("fct_ns".into(), maybe(&time)),
            ("ideal_ns".into(), count(&|n| results[n].ideal.0)),
            ("slowdown".into(), real(&|n| results[n].slowdown())),
            (
                "rate_bps".into(),
                real(&|n| time(n).map(|time| flows[n].bytes as f64 * 8e9 / time.max(1) as f64)),
            ),
            ("marked".into(), count(&|n| results[n].flow_stats.marked)),
            ("dropped".into(), count(&|n| results[n].flow_stats.dropped)),
            ("damaged".into(), count(&|n| results[n].flow_stats.damaged)),
            ("retransmitted_packets".into(), count(&|n| results[n].flow_stats.again)),
            ("cnps".into(), count(&|n| results[n].flow_stats.notified)),
            ("failed".into(), text(&|n| results[n].failed.clone().unwrap_or_default())),
        ];
        Table { name: "flows", columns }
    }

    /// Returns the name of a traffic pattern.
    pub(super) fn traffic_name(&self, number: usize) -> String {
        let table = &self.scenario.traffic[number];
        let pattern = || serde_json::to_value(table.pattern).ok().and_then(|v| v.as_str().map(str::to_owned));
        table.name.clone().or_else(pattern).unwrap_or_default()
    }

    fn port_table(&self, ports: &[(usize, usize, usize, QueueStats)]) -> Table {
        type Queue = (usize, usize, usize, QueueStats);
        let count = |of: &dyn Fn(&Queue) -> u64| Column::Count(ports.iter().map(of).collect());
        let text = |of: &dyn Fn(&Queue) -> String| Column::Text(ports.iter().map(of).collect());
        let peer = |(switch, port, _, _): &Queue| {
            self.shape
                .peer(*switch, *port as u16)
                .map_or_else(String::new, |end| self.shape.name(end).to_owned())
        };
        let damaged = |(switch, port, _, _): &Queue| {
            self.shape.peer(*switch, *port as u16).map_or(0, |end: End| self.fabric.link(end).damaged)
        };
        let mut columns = vec![
            ("switch".into(), text(&|q| self.shape.switches[q.0].name.clone())),
            ("port".into(), count(&|q| q.1 as u64)),
            ("peer".into(), text(&peer)),
            ("priority".into(), count(&|q| q.2 as u64)),
            ("sent_frames".into(), count(&|q| q.3.sent)),
            ("sent_bytes".into(), count(&|q| q.3.sent_bytes)),
            ("marked".into(), count(&|q| q.3.marked)),
        ];
        for reason in [DropReason::Threshold, DropReason::Full, DropReason::Headroom, DropReason::Watchdog] {
            columns.push((format!("dropped_{reason}"), count(&|q| q.3.drops.by(reason))));
        }
        columns.extend([
            ("flushed".into(), count(&|q| q.3.flushed)),
            ("damaged".into(), count(&damaged)),
            ("xoff_sent".into(), count(&|q| q.3.xoff_sent)),
            ("xon_sent".into(), count(&|q| q.3.xon_sent)),
            ("pause_sent_ns".into(), count(&|q| q.3.pause_sent.0)),
            ("pause_received_ns".into(), count(&|q| q.3.pause_received.0)),
            ("headroom_peak_bytes".into(), count(&|q| q.3.headroom_peak)),
            ("depth_peak_bytes".into(), count(&|q| q.3.depth.peak())),
            ("depth_p99_bytes".into(), count(&|q| q.3.depth.quantile(0.99))),
            ("depth_mean_bytes".into(), Column::Real(ports.iter().map(|q| Some(q.3.depth.mean())).collect())),
        ]);
        Table { name: "ports", columns }
    }

    fn host_table(&self) -> Table {
        let hosts = 0..self.shape.stations.len();
        let stats: Vec<_> = hosts.clone().map(|host| self.fabric.station(host)).collect();
        let column = |of: &dyn Fn(usize) -> u64| Column::Count(hosts.clone().map(of).collect());
        let mut columns = vec![
            ("host".into(), Column::Text(self.shape.stations.clone())),
            ("sent_frames".into(), column(&|n| stats[n].sent)),
            ("sent_bytes".into(), column(&|n| stats[n].sent_bytes)),
            ("delivered_frames".into(), column(&|n| stats[n].delivered)),
            ("delivered_bytes".into(), column(&|n| stats[n].delivered_bytes)),
            ("control_frames".into(), column(&|n| stats[n].control)),
        ];
        for (name, counter) in [
            ("retransmitted_packets", "retransmitted_packets"),
            ("cnps_sent", "np_cnp_sent"),
            ("cnps_handled", "rp_cnp_handled"),
            ("marked_received", "np_ecn_marked_roce_packets"),
        ] {
            columns.push((name.into(), column(&|n| self.counter(n, counter))));
        }
        Table { name: "hosts", columns }
    }

    fn queue_table(&self, ports: &[(usize, usize, usize, QueueStats)]) -> Table {
        let (mut times, mut switches, mut at, mut priorities, mut depths) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (switch, port, priority, stats) in ports {
            for (time, depth) in stats.depth.series() {
                times.push(time.0);
                switches.push(self.shape.switches[*switch].name.clone());
                at.push(*port as u64);
                priorities.push(*priority as u64);
                depths.push(*depth);
            }
        }
        let columns = vec![
            ("time_ns".into(), Column::Count(times)),
            ("switch".into(), Column::Text(switches)),
            ("port".into(), Column::Count(at)),
            ("priority".into(), Column::Count(priorities)),
            ("bytes".into(), Column::Count(depths)),
        ];
        Table { name: "queues", columns }
    }

    fn control_table(&self) -> Table {
        let samples = &self.control_samples;
        let real =
            |of: &dyn Fn(&ControlSample) -> Option<f64>| Column::Real(samples.iter().map(of).collect());
        let columns = vec![
            ("time_ns".into(), Column::Count(samples.iter().map(|sample| sample.at.0).collect())),
            ("flow".into(), Column::Count(samples.iter().map(|sample| sample.flow as u64).collect())),
            ("rate_bps".into(), real(&|sample| Some(sample.state.rate.0))),
            ("target_bps".into(), real(&|sample| sample.state.target.map(|target| target.0))),
            ("alpha".into(), real(&|sample| sample.state.alpha)),
        ];
        Table { name: "control", columns }
    }

    fn rate_table(&self) -> Table {
        let count = self.shape.stations.len();
        let mut before = vec![(0, 0, 0); count];
        let (mut sent, mut delivered) = (Vec::new(), Vec::new());
        let interval = self.scenario.output.interval.0.0;
        for sample in &self.samples {
            let (at, bytes_sent, bytes_delivered) = before[sample.host];
            // Counters had not changed up to the sample interval before.
            let since = sample.at.0.saturating_sub(interval).max(at);
            let rate = |bytes: u64| Some(bytes as f64 * 8e9 / (sample.at.0 - since).max(1) as f64);
            sent.push(rate(sample.sent - bytes_sent));
            delivered.push(rate(sample.delivered - bytes_delivered));
            before[sample.host] = (sample.at.0, sample.sent, sample.delivered);
        }
        let names = self.samples.iter().map(|sample| self.shape.stations[sample.host].clone());
        let columns = vec![
            ("time_ns".into(), Column::Count(self.samples.iter().map(|sample| sample.at.0).collect())),
            ("host".into(), Column::Text(names.collect())),
            ("sent_bps".into(), Column::Real(sent)),
            ("delivered_bps".into(), Column::Real(delivered)),
        ];
        Table { name: "rates", columns }
    }
}
