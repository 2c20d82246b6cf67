//! What passed a wire, and what the rules did.

use roxie::host::{Matched, PacketRule};
use roxie::port::Port;
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::verdict::Verdict;
use serde::Serialize;

use super::cable::Cable;

/// A rule of a run.
pub(super) struct Placed {
    pub(super) rule: PacketRule,
    /// Packets that met its conditions, at each end where it acts.
    pub(super) matched: Vec<Matched>,
}

/// Result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    seconds: f64,
    directions: Vec<DirectionReport>,
    rules: Vec<RuleReport>,
    /// Time from the read of a frame to its write, in us.
    forwarding_us: Forwarding,
    /// Verdicts about the peers, if they are judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) verdicts: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Forwarding {
    median: f64,
    p99: f64,
    max: f64,
}

/// Frames from one end to the other.
#[derive(Debug, Serialize)]
struct DirectionReport {
    from: String,
    to: String,
    received: u64,
    dropped: u64,
    duplicated: u64,
    corrupted: u64,
    marked: u64,
    delayed: u64,
    reordered: u64,
    sent: u64,
    /// Frames that a rule or rate was to change, and that passed unchanged for want of a buffer.
    not_kept: u64,
    /// Frames that the kernel dropped because they arrived faster than they were read.
    missed: u64,
    /// Frames that the other end refused: too long for it, its queue full, its link down.
    refused: u64,
}

#[derive(Debug, Serialize)]
struct RuleReport {
    rule: String,
    matched: u64,
    /// False if too few packets matched for an effect; absent if that is random.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
}

impl Report {
    pub(super) fn of(cable: &Cable, rules: &[Placed], names: &[String; 2]) -> Report {
        let mut counters = [Vec::new(), Vec::new()];
        for (end, all) in cable.ends.iter().zip(&mut counters) {
            end.counters(all);
        }
        let value = |end: usize, name: &str| {
            counters[end].iter().filter(|(known, _)| *known == name).map(|(_, value)| value).sum::<u64>()
        };
        let direction = |from: usize| {
            let to = 1 - from;
            DirectionReport {
                from: names[from].clone(),
                to: names[to].clone(),
                received: value(from, "rx_packets"),
                dropped: value(from, "fault_rx_dropped"),
                duplicated: value(from, "fault_rx_duplicated"),
                corrupted: value(from, "fault_rx_corrupted"),
                marked: value(from, "fault_rx_marked"),
                delayed: value(from, "fault_rx_delayed"),
                reordered: value(from, "fault_rx_reordered"),
                sent: value(to, "tx_packets"),
                not_kept: value(from, "fault_rx_unharmed"),
                missed: value(from, "rx_out_of_buffer"),
                refused: cable.too_long[from] + value(to, "tx_dropped") + value(to, "tx_failed"),
            }
        };
        let rule = |placed: &Placed| {
            let counts: Vec<u64> = placed.matched.iter().map(Matched::get).collect();
            RuleReport {
                rule: placed.rule.to_string(),
                matched: counts.iter().sum(),
                // The rule counts at each end for itself.
                applied: placed.rule.needed().map(|needed| counts.iter().any(|count| *count >= needed)),
            }
        };
        let us = |ns: u64| ns as f64 / 1000.0;
        let times = cable.forwarding();
        Report {
            seconds: cable.now().0 as f64 / 1e9,
            directions: vec![direction(0), direction(1)],
            rules: rules.iter().map(rule).collect(),
            forwarding_us: Forwarding {
                median: us(times.value_at_quantile(0.5)),
                p99: us(times.value_at_quantile(0.99)),
                max: us(times.max()),
            },
            verdicts: Vec::new(),
        }
    }

    /// Returns the number of frames that a rule was to change and did not.
    pub(super) fn not_kept(&self) -> u64 {
        self.directions.iter().map(|direction| direction.not_kept).sum()
    }

    /// Returns the report as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for d in &self.directions {
            let mut line = format!("{} -> {}: {} frames received, {} sent", d.from, d.to, d.received, d.sent);
            for (count, what) in [
                (d.dropped, "dropped"),
                (d.duplicated, "duplicated"),
                (d.corrupted, "corrupted"),
                (d.marked, "marked"),
                (d.delayed, "delayed"),
                (d.reordered, "reordered"),
                (d.not_kept, "passed unchanged for want of a buffer"),
                (d.missed, "missed: they came faster than they were read"),
                (d.refused, "refused by the other end"),
            ] {
                if count > 0 {
                    line += &format!(", {count} {what}");
                }
            }
            lines.push(line);
        }
        for rule in &self.rules {
            let effect = if rule.applied == Some(false) { ", too few for an effect" } else { "" };
            lines.push(format!("rule `{}`: {} packets matched{effect}", rule.rule, rule.matched));
        }
        let f = &self.forwarding_us;
        lines.push(format!(
            "forwarding took {:.1} us (median), {:.1} us (99th percentile), {:.1} us at most, over {:.1} s",
            f.median, f.p99, f.max, self.seconds
        ));
        for outcome in &self.verdicts {
            lines.push(format!("{:<10} {}: {}", outcome.verdict.words(), outcome.name, outcome.asks));
            if outcome.verdict != Verdict::Keeps {
                lines.push(format!("           {}", outcome.came));
            }
        }
        lines
    }
}
