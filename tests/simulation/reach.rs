//! How often each operation, fault and recovery was reached: a run that reached nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::workload::Outcome;

/// What must be reached, and how often at least in a thousand seeds.
pub const RELIABLE: &[(&str, u64)] = &[
    ("Send", 1_000),
    ("SendImm", 1_000),
    ("Write", 1_000),
    ("WriteImm", 1_000),
    ("Read", 1_000),
    ("CompareSwap", 1_000),
    ("FetchAdd", 1_000),
    ("AtomicWrite", 1_000),
    ("Flush", 1_000),
    ("inline", 500),
    ("fence", 500),
    ("psn_wrap", 100),
    ("fault_rx_dropped", 500),
    ("fault_rx_duplicated", 500),
    ("fault_rx_reordered", 500),
    ("fault_rx_delayed", 500),
    ("fault_rx_corrupted", 500),
    ("retransmitted_packets", 2_000),
    ("packet_seq_err", 300),
    ("implied_nak_seq_err", 100),
    ("local_ack_timeout_err", 100),
    ("duplicate_request", 500),
    ("rcvd_rnr_err", 300),
    ("out_of_sequence", 500),
    ("duplicate_acks", 100),
    ("rx_icrc_encapsulated", 200),
];

/// The same for the services without acknowledgements.
pub const UNRELIABLE: &[(&str, u64)] = &[
    ("uc_taken", 1_000),
    ("ud_taken", 1_000),
    ("group_taken", 1_000),
    ("missing", 500),
    ("rx_dropped_unacknowledged", 500),
    ("out_of_buffer", 200),
    ("out_of_sequence", 500),
    ("qkey_viol_cntr", 500),
    ("rx_multicast", 500),
    ("psn_wrap", 50),
    ("fault_rx_dropped", 100),
    ("fault_rx_duplicated", 100),
    ("fault_rx_reordered", 100),
    ("fault_rx_delayed", 100),
    ("fault_rx_corrupted", 100),
    ("calm", 10),
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
#[derive(Debug)]
pub struct Reach {
    least: &'static [(&'static str, u64)],
    counts: BTreeMap<&'static str, u64>,
    packets: u64,
}

impl Reach {
    pub fn new(least: &'static [(&'static str, u64)]) -> Reach {
        Reach { least, counts: BTreeMap::new(), packets: 0 }
    }

    pub fn add(&mut self, outcome: &Outcome) {
        for (name, count) in &outcome.counts {
            *self.counts.entry(name).or_default() += count;
        }
        self.packets += outcome.counts.get("sent_pkts").copied().unwrap_or(0);
    }

    pub fn assert_everything_was_reached(&self, seeds: u64) {
        for (name, least) in self.least {
            let least = least * seeds / 1_000;
            let reached = self.counts.get(name).copied().unwrap_or(0);
            assert!(reached >= least, "{name} was reached {reached} times in {seeds} seeds, {least} are due");
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets", self.packets)?;
        for (name, _) in self.least {
            write!(f, ", {name} {}", self.counts.get(name).copied().unwrap_or(0))?;
        }
        Ok(())
    }
}
