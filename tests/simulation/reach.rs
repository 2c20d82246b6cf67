//! Minimum counts of operations, faults, actions and recoveries. A run below them proves too little.

use std::collections::BTreeMap;
use std::fmt;

use crate::world::Outcome;

/// Minimum counts for a thousand seeds: half of the lowest of 20 runs, rounded down to two digits.
///
/// Measured: 20 runs of 2,000 seeds each, with first seeds 1 + 37,000,003 n. Runs that must reach the minimum have at
/// least twice as many seeds. The relative standard deviation between such runs is 10 % or less for most counts, 14 %
/// for `rp_cnp_ignored` (461 to 733 in a thousand seeds), and 15 to 26 % for the rarest (`flushed under way`: 4.5 to
/// 10). The minimum is more than 3 standard deviations of a run of 4,000 seeds below the mean.
pub const LEAST: &[(&str, u64)] = &[
    // Completed operations.
    ("rc Send", 1_600),
    ("rc SendImm", 1_400),
    ("rc SendInvalidate", 1_500),
    ("rc Write", 1_400),
    ("rc WriteImm", 1_300),
    ("rc Read", 1_700),
    ("rc CompareSwap", 1_400),
    ("rc FetchAdd", 1_600),
    ("rc AtomicWrite", 1_400),
    ("rc Flush", 1_400),
    ("uc Send", 1_100),
    ("uc SendImm", 1_200),
    ("uc Write", 1_000),
    ("uc WriteImm", 1_100),
    ("xrc Send", 1_300),
    ("xrc Write", 700),
    ("xrc Read", 420),
    ("xrc atomic", 750),
    ("xrc AtomicWrite or Flush", 720),
    ("taken from a shared queue", 4_100),
    ("taken from a named queue", 1_600),
    ("flushed under way", 2),
    ("ud", 4_700),
    ("group", 2_300),
    ("inline", 2_900),
    ("fence", 6_100),
    ("granted", 15_000),
    ("lives", 4_100),
    ("calm", 2),
    // Faults of frames.
    ("frames lost", 15_000),
    ("frames doubled", 29_000),
    ("frames delayed", 51_000),
    ("frames harmed", 1_700),
    ("frames marked", 6_400),
    // Actions.
    ("restart", 51),
    ("link_mtu", 53),
    ("move", 46),
    ("readdress", 50),
    ("down", 50),
    ("up", 50),
    ("jump", 53),
    ("questions", 1),
    ("reset", 1_200),
    ("destroy", 220),
    ("error", 200),
    ("drain", 1_700),
    ("resume", 1_600),
    ("sleep", 290),
    ("deregister source", 170),
    ("deregister landing", 12),
    ("deregister target", 120),
    ("deregister inbox", 62),
    ("destroy_handle", 33),
    ("grant", 2_200),
    ("revoke", 580),
    ("free_window", 48),
    ("region busy", 11),
    ("moderate", 100),
    ("arm", 270),
    ("resize_srq", 280),
    ("srq resized", 170),
    ("srq resize refused", 32),
    ("destroy_srq", 60),
    ("srq destroyed", 17),
    ("srq busy", 21),
    ("intrude long", 280),
    ("intrude spoof", 590),
    ("intrude notice", 290),
    ("intrude unknown", 280),
    ("intrude forged", 470),
    ("intrude marked", 220),
    ("intrude pause", 230),
    ("intrude pfc", 230),
    ("brake", 980),
    ("limit", 510),
    ("rates limited", 440),
    ("intrusions", 2_400),
    ("connect again", 1_800),
    ("connect anew", 580),
    // Events.
    ("event SqDrained", 820),
    ("event CqError", 45),
    ("event QpFatal", 60),
    ("event QpAccessError", 8),
    ("event QpRequestError", 5),
    ("event LastWqeReached", 130),
    ("event SrqLimitReached", 110),
    ("event of the port", 150),
    // Recovery.
    ("retransmitted_packets", 54_000),
    ("packet_seq_err", 5_300),
    ("implied_nak_seq_err", 1_500),
    ("local_ack_timeout_err", 2_600),
    ("rcvd_rnr_err", 930),
    ("retry_exceeded_err", 180),
    ("retry_rnr_exceeded_err", 7),
    ("duplicate_request", 15_000),
    ("duplicate_dropped", 200),
    ("duplicate_acks", 10_000),
    ("out_of_sequence", 51_000),
    ("out_of_buffer", 3_200),
    ("cq_overflow", 390),
    ("req_cqe_flush_error", 3_900),
    ("resp_cqe_flush_error", 1_900),
    ("req_remote_access_errors", 7),
    ("resp_cqe_error", 13),
    ("rx_icrc_encapsulated", 1_100),
    ("rx_unknown_qp", 4_000),
    ("rx_wrong_state", 5_200),
    ("rx_wrong_source", 850),
    ("rx_multicast", 3_100),
    ("qkey_viol_cntr", 2_400),
    ("rx_dropped_unacknowledged", 8_600),
    ("tx_stalled", 4_100),
    ("np_ecn_marked_roce_packets", 5_900),
    ("np_cnp_sent", 2_300),
    ("rp_cnp_handled", 2_400),
    ("rp_cnp_ignored", 230),
    ("pauses heeded", 100),
];

/// Counts summed over seeds.
#[derive(Debug)]
pub struct Reach {
    least: &'static [(&'static str, u64)],
    counts: BTreeMap<&'static str, u64>,
}

impl Reach {
    pub fn new(least: &'static [(&'static str, u64)]) -> Reach {
        Reach { least, counts: BTreeMap::new() }
    }

    pub fn add(&mut self, outcome: &Outcome) {
        for (name, count) in &outcome.counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// Number of faults of frames, and of actions on hosts, links and objects.
    pub fn troubles(&self) -> u64 {
        const ACTIONS: [&str; 26] = [
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
            "arm",
            "resize_srq",
            "destroy_srq",
            "brake",
            "limit",
        ];
        ACTIONS.iter().map(|name| self.of(name)).sum()
    }

    pub fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub fn assert_everything_was_reached(&self, seeds: u64) {
        let low: Vec<_> = self
            .least
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
        self.least.iter().try_for_each(|(name, _)| write!(f, ", {name} {}", self.of(name)))
    }
}
