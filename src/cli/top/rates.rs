//! Rates between two snapshots of the devices.

use std::collections::HashMap;
use std::time::Duration;

use roxie::host::inspect::Snapshot;
use roxie::text::Foreign;
use serde::Serialize;

/// A device, and its rates since the previous snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) name: Foreign,
    pub(super) interface: Foreign,
    pub(super) port: Foreign,
    /// Number of queue pairs, and of those that can send or receive (RTR, RTS, SQD).
    pub(super) qps: usize,
    pub(super) ready: usize,
    pub(super) mrs: usize,
    /// Payload bytes a second.
    pub(super) tx_bytes: f64,
    pub(super) rx_bytes: f64,
    /// Packets a second.
    pub(super) tx_packets: f64,
    pub(super) rx_packets: f64,
    /// Retransmitted packets a second.
    pub(super) retransmitted: f64,
    /// RNR NAKs a second, sent and received.
    pub(super) rnr: f64,
    /// Congestion notifications a second, sent and received.
    pub(super) cnps: f64,
    /// Frames a second that were dropped as damaged, or addressed to no QP.
    pub(super) dropped: f64,
    /// Duration of an engine pass in microseconds since the device was opened: median and 99th percentile.
    pub(super) pass_us: Option<f64>,
    pub(super) pass_p99_us: Option<f64>,
}

/// Compares each snapshot with the previous one.
#[derive(Debug, Default)]
pub(super) struct Rates {
    before: HashMap<(u32, Foreign, Foreign), Snapshot>,
}

const DROPPED: [&str; 6] = [
    "rx_icrc_encapsulated",
    "rx_malformed",
    "rx_unknown_qp",
    "rx_wrong_source",
    "rx_wrong_state",
    "rx_bad_pkey",
];

impl Rates {
    /// Returns the rows of a snapshot. For a new device, rates are averages since it was opened.
    pub(super) fn next(&mut self, seen: &[Snapshot], since: Duration) -> Vec<Row> {
        let key = |s: &Snapshot| (s.pid, s.device.clone(), s.interface.clone());
        let rows = seen.iter().map(|now| row(now, self.before.get(&key(now)), since)).collect();
        self.before = seen.iter().map(|s| (key(s), s.clone())).collect();
        rows
    }
}

fn row(now: &Snapshot, before: Option<&Snapshot>, since: Duration) -> Row {
    // The interval is measured by the device's clock, because the reader may be late. A clock that went back means a
    // new device of the same process.
    let before = before.filter(|before| before.now_ns < now.now_ns);
    let seconds = before.map_or(since.as_secs_f64(), |before| (now.now_ns - before.now_ns) as f64 / 1e9);
    let rate = |names: &[&str]| {
        let values =
            |s: &Snapshot| names.iter().filter_map(|name| s.counters.get(*name).copied()).collect::<Vec<_>>();
        let count = |s: &Snapshot| values(s).into_iter().fold(0, u64::saturating_add);
        let more = count(now).saturating_sub(before.map_or(0, count));
        if seconds > 0.0 { more as f64 / seconds } else { 0.0 }
    };
    let ready = now.qps.iter().filter(|qp| matches!(qp.state.as_received(), "RTR" | "RTS" | "SQD"));
    Row {
        pid: now.pid,
        name: now.name.clone(),
        interface: now.interface.clone(),
        port: now.transport(),
        qps: now.qps.len(),
        ready: ready.count(),
        mrs: now.mrs.len(),
        tx_bytes: rate(&["sent_bytes"]),
        rx_bytes: rate(&["rcvd_bytes"]),
        tx_packets: rate(&["sent_pkts"]),
        rx_packets: rate(&["rcvd_pkts"]),
        retransmitted: rate(&["retransmitted_packets"]),
        rnr: rate(&["send_rnr_err", "rcvd_rnr_err"]),
        cnps: rate(&["np_cnp_sent", "rp_cnp_handled"]),
        dropped: rate(&DROPPED),
        pass_us: now.passes.quantile(0.5).map(|ns| ns as f64 / 1e3),
        pass_p99_us: now.passes.quantile(0.99).map(|ns| ns as f64 / 1e3),
    }
}

/// Formats a number to three digits with a prefix: `1.23 G`, `45.6 M`, `789`.
pub(super) fn short(value: f64) -> String {
    let mut left = value;
    for prefix in ["", " k", " M", " G", " T"] {
        if left < 999.5 {
            let digits = if prefix.is_empty() || left >= 99.95 {
                0
            } else if left >= 9.995 {
                1
            } else {
                2
            };
            return format!("{left:.digits$}{prefix}");
        }
        left /= 1000.0;
    }
    format!("{value:.2e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pid: u32, now_ns: u64, counters: &[(&str, u64)]) -> Snapshot {
        let counters = counters.iter().map(|(name, value)| ((*name).into(), *value)).collect();
        Snapshot { pid, now_ns, counters, ..Snapshot::default() }
    }

    #[test]
    fn rates_use_the_device_clock() {
        let mut rates = Rates::default();
        rates
            .next(&[snapshot(7, 1_000_000_000, &[("sent_bytes", 100), ("send_rnr_err", 1)])], Duration::ZERO);
        let rows = rates.next(
            &[snapshot(7, 3_000_000_000, &[("sent_bytes", 4100), ("send_rnr_err", 3), ("rcvd_rnr_err", 4)])],
            Duration::from_secs(50),
        );
        assert_eq!((rows[0].tx_bytes, rows[0].rnr), (2000.0, 3.0));
    }

    #[test]
    fn reopened_device_starts_new_rates() {
        let mut rates = Rates::default();
        rates.next(&[snapshot(7, 9_000_000_000, &[("sent_pkts", 1000)])], Duration::ZERO);
        let rows = rates.next(&[snapshot(7, 1_000_000_000, &[("sent_pkts", 10)])], Duration::from_secs(2));
        assert_eq!(rows[0].tx_packets, 5.0);
        assert!(rates.next(&[], Duration::from_secs(1)).is_empty());
    }

    #[test]
    fn numbers_have_three_digits_and_prefix() {
        for (value, text) in [
            (0.0, "0"),
            (7.4, "7"),
            (999.4, "999"),
            (999.5, "1.00 k"),
            (12_345.0, "12.3 k"),
            (999_499.0, "999 k"),
            (2_345_678_901.0, "2.35 G"),
            (1e18, "1.00e18"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
