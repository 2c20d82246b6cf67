//! How often each operation, trouble, action and recovery was reached: a run that reached nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::world::Outcome;

/// What must be reached, and how often at least in a thousand seeds.
pub const LEAST: &[(&str, u64)] = &[
    // What was done, to the end.
    ("rc Send", 1_500),
    ("rc SendImm", 1_500),
    ("rc SendInvalidate", 1_500),
    ("rc Write", 1_500),
    ("rc WriteImm", 1_500),
    ("rc Read", 1_500),
    ("rc CompareSwap", 1_500),
    ("rc FetchAdd", 1_500),
    ("rc AtomicWrite", 1_500),
    ("rc Flush", 1_500),
    ("uc Send", 1_500),
    ("uc SendImm", 1_500),
    ("uc Write", 1_500),
    ("uc WriteImm", 1_500),
    ("xrc Send", 1_500),
    ("xrc Write", 1_000),
    ("xrc Read", 500),
    ("xrc atomic", 500),
    ("xrc AtomicWrite or Flush", 500),
    ("taken from a shared queue", 1_000),
    ("taken from a named queue", 1_000),
    ("flushed under way", 5),
    ("ud", 3_000),
    ("group", 3_000),
    ("inline", 2_500),
    ("fence", 5_000),
    ("granted", 10_000),
    ("lives", 2_000),
    ("calm", 6),
    // What happened to frames.
    ("frames lost", 600),
    ("frames doubled", 600),
    ("frames delayed", 1_200),
    ("frames harmed", 600),
    ("frames marked", 8_000),
    // What somebody did.
    ("restart", 50),
    ("link_mtu", 50),
    ("move", 50),
    ("readdress", 50),
    ("down", 50),
    ("up", 50),
    ("jump", 50),
    ("reset", 50),
    ("destroy", 50),
    ("error", 50),
    ("drain", 50),
    ("resume", 80),
    ("sleep", 50),
    ("deregister source", 10),
    ("deregister landing", 10),
    ("deregister target", 10),
    ("deregister inbox", 10),
    ("destroy_handle", 15),
    ("grant", 1_000),
    ("revoke", 500),
    ("free_window", 50),
    ("region busy", 20),
    ("moderate", 50),
    ("arm", 100),
    ("resize_srq", 100),
    ("srq resized", 100),
    ("srq resize refused", 20),
    ("destroy_srq", 50),
    ("srq destroyed", 20),
    ("srq busy", 20),
    ("intrude long", 200),
    ("intrude spoof", 400),
    ("intrude notice", 200),
    ("intrude unknown", 200),
    ("intrude forged", 500),
    ("intrude marked", 200),
    ("intrude pause", 200),
    ("intrude pfc", 200),
    ("brake", 1_000),
    ("limit", 500),
    ("rates limited", 400),
    ("intrusions", 800),
    ("connect again", 150),
    ("connect anew", 150),
    // Events.
    ("event SqDrained", 40),
    ("event CqError", 40),
    ("event QpFatal", 50),
    ("event QpAccessError", 3),
    ("event QpRequestError", 3),
    ("event LastWqeReached", 100),
    ("event SrqLimitReached", 100),
    ("event of the port", 150),
    // How the NICs coped.
    ("retransmitted_packets", 10_000),
    ("packet_seq_err", 700),
    ("implied_nak_seq_err", 150),
    ("local_ack_timeout_err", 400),
    ("rcvd_rnr_err", 300),
    ("retry_exceeded_err", 60),
    ("retry_rnr_exceeded_err", 4),
    ("duplicate_request", 1_300),
    ("duplicate_dropped", 10),
    ("duplicate_acks", 600),
    ("out_of_sequence", 10_000),
    ("out_of_buffer", 1_500),
    ("cq_overflow", 400),
    ("req_cqe_flush_error", 1_000),
    ("resp_cqe_flush_error", 1_000),
    ("req_remote_access_errors", 3),
    ("resp_cqe_error", 3),
    ("rx_icrc_encapsulated", 500),
    ("rx_unknown_qp", 1_000),
    ("rx_wrong_state", 1_000),
    ("rx_wrong_source", 3),
    ("rx_multicast", 3_000),
    ("qkey_viol_cntr", 2_000),
    ("rx_dropped_unacknowledged", 5_000),
    ("tx_stalled", 3_000),
    ("np_ecn_marked_roce_packets", 7_000),
    ("np_cnp_sent", 3_000),
    ("rp_cnp_handled", 2_500),
    ("rp_cnp_ignored", 600),
    ("pauses heeded", 80),
];

/// Sums over seeds.
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

    /// Frames that something happened to, and what was done to hosts, links and objects.
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
