//! Tables of a scenario's results.

use super::file::TrafficTable;
use super::flow_result::FlowResult;
use super::record::{ControlSample, RateSample};
use super::table::{Column, Table};
use super::traffic::Flow;
use crate::fabric::{DropReason, End, Fabric, PRIORITIES, QueueStats, Shape};
use roxie_base::time::Nanos;

/// The network after a run.
#[derive(Clone, Copy)]
pub(super) struct Network<'a> {
    pub(super) shape: &'a Shape,
    pub(super) fabric: &'a Fabric,
}

/// A queue of a switch's port.
pub(super) struct PortQueue {
    switch: usize,
    port: usize,
    priority: usize,
    pub(super) stats: QueueStats,
}

/// Returns the queues of all switches with any activity.
pub(super) fn active_queues(Network { shape, fabric }: Network<'_>) -> Vec<PortQueue> {
    let mut all = Vec::new();
    for switch in 0..shape.switches.len() {
        for port in 0..usize::from(shape.switches[switch].ports) {
            for priority in 0..PRIORITIES {
                let mut stats = fabric.switch(switch).queue(port, priority);
                if let Some(since) = stats.pausing_since {
                    stats.pause_sent = stats.pause_sent + fabric.now().since(since);
                }
                if stats.offered + stats.xoff_sent + stats.pause_received.0 > 0 {
                    all.push(PortQueue { switch, port, priority, stats });
                }
            }
        }
    }
    all
}

/// Returns a counter of a host; 0 if there is none of this name.
pub(super) fn counter(fabric: &Fabric, host: usize, name: &str) -> u64 {
    fabric.hosts()[host].counter(name)
}

/// Returns the table `flows`. `traffic`: the tables of traffic that made the flows.
pub(super) fn flow_table(
    flows: &[Flow],
    results: &[FlowResult],
    traffic: &[TrafficTable],
    shape: &Shape,
) -> Table {
    let count = |of: &dyn Fn(usize) -> u64| Column::Count((0..flows.len()).map(of).collect());
    let maybe = |of: &dyn Fn(usize) -> Option<u64>| Column::Maybe((0..flows.len()).map(of).collect());
    let real = |of: &dyn Fn(usize) -> Option<f64>| Column::Real((0..flows.len()).map(of).collect());
    let text = |of: &dyn Fn(usize) -> String| Column::Text((0..flows.len()).map(of).collect());
    let time = |n: usize| results[n].completion_time().map(|time| time.0);
    let columns = vec![
        ("flow".into(), count(&|n| n as u64)),
        ("traffic".into(), text(&|n| traffic_name(&traffic[flows[n].traffic]))),
        ("verb".into(), text(&|n| if flows[n].read { "read" } else { "write" }.to_owned())),
        ("from".into(), text(&|n| shape.stations[flows[n].from].clone())),
        ("to".into(), text(&|n| shape.stations[flows[n].to].clone())),
        ("bytes".into(), count(&|n| flows[n].bytes)),
        ("start_ns".into(), maybe(&|n| results[n].began.map(|time| time.0))),
        ("end_ns".into(), maybe(&|n| results[n].ended.map(|time| time.0))),
        ("fct_ns".into(), maybe(&time)),
        ("ideal_ns".into(), count(&|n| results[n].ideal.0)),
        ("slowdown".into(), real(&|n| results[n].slowdown())),
        ("rate_bps".into(), real(&|n| time(n).map(|time| flows[n].bytes as f64 * 8e9 / time.max(1) as f64))),
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
fn traffic_name(table: &TrafficTable) -> String {
    let pattern = || serde_json::to_value(table.pattern).ok().and_then(|v| v.as_str().map(str::to_owned));
    table.name.clone().or_else(pattern).unwrap_or_default()
}

/// Returns the table `ports`.
pub(super) fn port_table(queues: &[PortQueue], Network { shape, fabric }: Network<'_>) -> Table {
    let count = |of: &dyn Fn(&PortQueue) -> u64| Column::Count(queues.iter().map(of).collect());
    let text = |of: &dyn Fn(&PortQueue) -> String| Column::Text(queues.iter().map(of).collect());
    let peer = |q: &PortQueue| {
        shape.peer(q.switch, q.port as u16).map_or_else(String::new, |end| shape.name(end).to_owned())
    };
    let damaged =
        |q: &PortQueue| shape.peer(q.switch, q.port as u16).map_or(0, |end: End| fabric.link(end).damaged);
    let mut columns = vec![
        ("switch".into(), text(&|q| shape.switches[q.switch].name.clone())),
        ("port".into(), count(&|q| q.port as u64)),
        ("peer".into(), text(&peer)),
        ("priority".into(), count(&|q| q.priority as u64)),
        ("sent_frames".into(), count(&|q| q.stats.sent)),
        ("sent_bytes".into(), count(&|q| q.stats.sent_bytes)),
        ("marked".into(), count(&|q| q.stats.marked)),
    ];
    for reason in [DropReason::Threshold, DropReason::Full, DropReason::Headroom, DropReason::Watchdog] {
        columns.push((format!("dropped_{reason}"), count(&|q| q.stats.drops.by(reason))));
    }
    columns.extend([
        ("flushed".into(), count(&|q| q.stats.flushed)),
        ("damaged".into(), count(&damaged)),
        ("xoff_sent".into(), count(&|q| q.stats.xoff_sent)),
        ("xon_sent".into(), count(&|q| q.stats.xon_sent)),
        ("pause_sent_ns".into(), count(&|q| q.stats.pause_sent.0)),
        ("pause_received_ns".into(), count(&|q| q.stats.pause_received.0)),
        ("headroom_peak_bytes".into(), count(&|q| q.stats.headroom_peak)),
        ("depth_peak_bytes".into(), count(&|q| q.stats.depth.peak())),
        ("depth_p99_bytes".into(), count(&|q| q.stats.depth.quantile(0.99))),
        (
            "depth_mean_bytes".into(),
            Column::Real(queues.iter().map(|q| Some(q.stats.depth.mean())).collect()),
        ),
    ]);
    Table { name: "ports", columns }
}

/// Returns the table `hosts`.
pub(super) fn host_table(Network { shape, fabric }: Network<'_>) -> Table {
    let hosts = 0..shape.stations.len();
    let stats: Vec<_> = hosts.clone().map(|host| fabric.station(host)).collect();
    let column = |of: &dyn Fn(usize) -> u64| Column::Count(hosts.clone().map(of).collect());
    let mut columns = vec![
        ("host".into(), Column::Text(shape.stations.clone())),
        ("sent_frames".into(), column(&|n| stats[n].sent)),
        ("sent_bytes".into(), column(&|n| stats[n].sent_bytes)),
        ("delivered_frames".into(), column(&|n| stats[n].delivered)),
        ("delivered_bytes".into(), column(&|n| stats[n].delivered_bytes)),
        ("control_frames".into(), column(&|n| stats[n].control)),
    ];
    for (name, counted) in [
        ("retransmitted_packets", "retransmitted_packets"),
        ("cnps_sent", "np_cnp_sent"),
        ("cnps_handled", "rp_cnp_handled"),
        ("marked_received", "np_ecn_marked_roce_packets"),
    ] {
        columns.push((name.into(), column(&|n| counter(fabric, n, counted))));
    }
    Table { name: "hosts", columns }
}

/// Returns the table `queues`: depths over time.
pub(super) fn queue_table(queues: &[PortQueue], shape: &Shape) -> Table {
    let (mut times, mut switches, mut at, mut priorities, mut depths) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for PortQueue { switch, port, priority, stats } in queues {
        for (time, depth) in stats.depth.series() {
            times.push(time.0);
            switches.push(shape.switches[*switch].name.clone());
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

/// Returns the table `control`: states of congestion control over time.
pub(super) fn control_table(samples: &[ControlSample]) -> Table {
    let real = |of: &dyn Fn(&ControlSample) -> Option<f64>| Column::Real(samples.iter().map(of).collect());
    let columns = vec![
        ("time_ns".into(), Column::Count(samples.iter().map(|sample| sample.at.0).collect())),
        ("flow".into(), Column::Count(samples.iter().map(|sample| sample.flow as u64).collect())),
        ("rate_bps".into(), real(&|sample| Some(sample.state.rate.0))),
        ("target_bps".into(), real(&|sample| sample.state.target.map(|target| target.0))),
        ("alpha".into(), real(&|sample| sample.state.alpha)),
    ];
    Table { name: "control", columns }
}

/// Returns the table `rates`: traffic of the hosts over time, from samples `interval` apart.
pub(super) fn rate_table(samples: &[RateSample], interval: Nanos, hosts: &[String]) -> Table {
    let mut before = vec![(0, 0, 0); hosts.len()];
    let (mut sent, mut delivered) = (Vec::new(), Vec::new());
    for sample in samples {
        let (at, bytes_sent, bytes_delivered) = before[sample.host];
        // Counters had not changed up to the sample interval before.
        let since = sample.at.0.saturating_sub(interval.0).max(at);
        let rate = |bytes: u64| Some(bytes as f64 * 8e9 / (sample.at.0 - since).max(1) as f64);
        sent.push(rate(sample.sent - bytes_sent));
        delivered.push(rate(sample.delivered - bytes_delivered));
        before[sample.host] = (sample.at.0, sample.sent, sample.delivered);
    }
    let names = samples.iter().map(|sample| hosts[sample.host].clone());
    let columns = vec![
        ("time_ns".into(), Column::Count(samples.iter().map(|sample| sample.at.0).collect())),
        ("host".into(), Column::Text(names.collect())),
        ("sent_bps".into(), Column::Real(sent)),
        ("delivered_bps".into(), Column::Real(delivered)),
    ];
    Table { name: "rates", columns }
}
