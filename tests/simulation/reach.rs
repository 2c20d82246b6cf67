//! How often each operation, trouble, action and recovery was reached: a run that reached nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::world::Outcome;

/// What must be reached, and how often at least in a thousand seeds.
const LEAST: &[(&str, u64)] = &[
    ("rc Send", 1_000),
];

/// The same for connections that share receive queues.
pub const SHARED: &[(&str, u64)] = &[
    ("shared_taken", 1_000),
    ("extended_taken", 1_000),
    ("limit_reached", 500),
    ("resized", 500),
    ("resize_refused", 100),
    ("ended_by_error", 50),
    ("ended_by_reset", 50),
    ("ended_by_destruction", 50),
    ("flushed_under_way", 5),
    ("rcvd_rnr_err", 300),
    ("retransmitted_packets", 1_000),
    ("fault_rx_dropped", 100),
    ("fault_rx_reordered", 100),
];

/// The same for objects that come and go.
pub const CHAOS: &[(&str, u64)] = &[
    ("completions", 20_000),
    ("connected", 2_000),
    ("destroyed", 1_000),
    ("reset", 1_000),
    ("failed", 1_000),
    ("drains", 200),
    ("resumes", 50),
    ("drained", 50),
    ("last_wqe", 500),
    ("handles_destroyed", 500),
    ("windows_freed", 500),
    ("regions_deregistered", 500),
    ("regions_busy", 20),
    ("shared_queue_busy", 500),
    ("shared_queues_destroyed", 100),
    ("rx_unknown_qp", 500),
    ("rx_wrong_state", 500),
    ("req_cqe_flush_error", 1_000),
    ("resp_cqe_flush_error", 1_000),
];

/// Sums over seeds.
#[derive(Debug, Default)]
pub struct Reach {
    pub counts: BTreeMap<&'static str, u64>,
}

impl Reach {
    pub fn add(&mut self, outcome: &Outcome) {
        for (name, count) in &outcome.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// Frames that something happened to, and what was done to hosts, links and objects.
    pub fn troubles(&self) -> u64 {
        const ACTIONS: [&str; 21] = [
            "frames lost",
            "frames doubled",
            "frames delayed",
            "frames harmed",
            "restart",
            "link_mtu",
            "move",
            "readdress",
            "down",
            "jump",
            "reset",
            "destroy",
            "error",
            "drain",
            "sleep",
            "deregister source",
            "deregister landing",
            "deregister target",
            "deregister inbox",
            "destroy_handle",
            "free_window",
        ];
        ACTIONS.iter().map(|name| self.of(name)).sum()
    }

    pub fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub fn assert_everything_was_reached(&self, seeds: u64) {
        let low: Vec<_> = LEAST
            .iter()
            .map(|(name, least)| (name, least * seeds / 1_000, self.of(name)))
            .filter(|(_, least, reached)| reached < least)
            .map(|(name, least, reached)| format!("{name}: {reached} times, {least} are due"))
            .collect();
        assert!(low.is_empty(), "in {seeds} seeds: {}", low.join("; "));
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets", self.of("sent_pkts"))?;
        self.counts.iter().filter(|(_, count)| **count > 0).try_for_each(|(name, count)| write!(f, ", {name} {count}"))
    }
}
