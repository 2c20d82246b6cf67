//! Results of the demo: a row for each port, the table, the JSON object.

use std::fmt::Write as _;

use serde::Serialize;

use super::figures::number;
use super::programs::Programs;
use super::site::Kind;

/// Results on one port.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) port: Kind,
    /// How the port moves frames.
    pub(super) mode: String,
    /// Path MTU: payload bytes of a full packet.
    pub(super) payload_bytes: usize,
    pub(super) floor_gbps: f64,
    pub(super) write_gbps: f64,
    /// Median of the ratios of neighbouring rounds, as `send64_ratio` and `rtt_ratio` are.
    pub(super) write_ratio: f64,
    pub(super) floor_mpps: f64,
    pub(super) send64_mpps: f64,
    pub(super) send64_ratio: f64,
    pub(super) floor_rtt_us: f64,
    pub(super) rtt_us: f64,
    pub(super) rtt_ratio: f64,
    pub(super) lossy_write_gbps: f64,
    pub(super) retransmitted_packets: u64,
    pub(super) verified_bytes: u64,
    pub(super) corrupt_bytes: u64,
    /// Capture of the near end of the recovery.
    pub(super) capture: String,
}

/// A port that was not measured, and why.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Skipped {
    pub(super) port: Kind,
    pub(super) reason: String,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    /// Unmodified programs beside their counterparts in Rust.
    pub(super) programs: Vec<Programs>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) network: String,
    pub(super) threads: u8,
    pub(super) seed: u64,
}

impl Report {
    /// Returns the number of compared bytes, and of wrong ones among them.
    pub(super) fn compared(&self) -> (u64, u64) {
        let sum = |field: fn(&Row) -> u64| self.rows.iter().map(field).sum();
        (sum(|row| row.verified_bytes), sum(|row| row.corrupt_bytes))
    }
}

/// Formats the rows as a table.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<7} {:>7} | {:^25} | {:^25} | {:^25} | {:>9} {:>7} | {:>9} {:>7}",
        "",
        "",
        "RC WRITE, Gb/s",
        "RC SEND 64 B, M/s",
        "round trip 8 B, us",
        "1 % loss",
        "sent",
        "verified",
        "corrupt"
    );
    let three = format!("{:>8} {:>8} {:>7}", "floor", "roxie", "ratio");
    let _ = writeln!(
        text,
        "{:<7} {:>7} | {three} | {three} | {three} | {:>9} {:>7} | {:>9} {:>7}",
        "port", "payload", "Gb/s", "again", "bytes", "bytes"
    );
    for row in rows {
        let three = |floor: f64, ours: f64, ratio: f64| {
            format!("{:>8} {:>8} {:>7.2}", number(floor), number(ours), ratio)
        };
        let _ = writeln!(
            text,
            "{:<7} {:>7} | {} | {} | {} | {:>9} {:>7} | {:>9} {:>7}",
            row.port,
            row.payload_bytes,
            three(row.floor_gbps, row.write_gbps, row.write_ratio),
            three(row.floor_mpps, row.send64_mpps, row.send64_ratio),
            three(row.floor_rtt_us, row.rtt_us, row.rtt_ratio),
            number(row.lossy_write_gbps),
            row.retransmitted_packets,
            row.verified_bytes,
            row.corrupt_bytes
        );
    }
    text
}
