//! The device's counters, as the files in `ports/1/counters` and `ports/1/hw_counters`.
//!
//! The device is shared, and so are its counters: sums over all processes with a device on the interface, as `roxie
//! show counters` lists them. The counters of an ended process stay in the sums, as they were last read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use roxie::host::inspect::Snapshot;
use roxie::text::Foreign;
use roxie::transport::Counters;

use super::tree::{Entries, Entry};

/// Interval between two reads of the counters, in milliseconds.
pub(super) const LIFESPAN_MS: u64 = 250;

/// Counters by name.
type Values = BTreeMap<Foreign, u64>;

/// The ports' counters of frames dropped before they were sent.
const SEND_ERRORS: [&str; 5] = ["tx_refused", "tx_too_long", "tx_unreachable", "tx_failed", "tx_invalid"];
/// The ports' counters of received frames that `PortRcvErrors` includes (IBTA 16.1.3.5): damaged, malformed, or dropped
/// without a buffer.
const RECEIVE_ERRORS: [&str; 5] =
    ["rx_icrc_encapsulated", "rx_malformed", "rx_out_of_buffer", "rx_ring_full", "rx_dropped"];
/// Counters of an InfiniBand port that are always 0 here: a software Ethernet link has no such event, or drops
/// silently.
const ZEROS: [&str; 8] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "symbol_error",
];
/// rxe's names of counters that have mlx5's names here.
const RXE_NAMES: [(&str, &str); 2] =
    [("out_of_seq_request", "out_of_sequence"), ("rcvd_seq_err", "packet_seq_err")];

/// Counters that a file shows.
static SHOWN: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let own = ["sent_bytes", "sent_pkts", "rcvd_bytes", "rcvd_pkts", "rx_bad_pkey"];
    let ports = SEND_ERRORS.into_iter().chain(RECEIVE_ERRORS);
    own.into_iter().chain(ports).chain(Counters::default().iter().map(|(name, _)| name)).collect()
});

/// Sums of counters; a sum never decreases.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Last values of each existing device.
    last: BTreeMap<String, Values>,
    sums: Values,
    /// Number of times that the link went down.
    pub(super) link_downed: u64,
}

impl Counts {
    /// Adds the increments since the last read. `None` has the meaning of
    /// [`CounterReader`](roxie::host::inspect::CounterReader).
    pub(super) fn add(
        &mut self,
        read: &BTreeMap<String, Option<Snapshot>>,
        is_ours: impl Fn(&Snapshot) -> bool,
    ) {
        self.last.retain(|device, _| read.contains_key(device));
        for (device, snapshot) in read {
            let Some(snapshot) = snapshot.as_ref().filter(|snapshot| is_ours(snapshot)) else { continue };
            let last = self.last.entry(device.clone()).or_default();
            // Another user's device may name anything.
            for (name, value) in
                snapshot.counters.iter().filter(|(name, _)| SHOWN.contains(name.as_received()))
            {
                let before = last.insert(name.clone(), *value).unwrap_or_default();
                // A smaller value means that the counter was reset, as a port's counters are when the device claims its
                // interface.
                let more = value.checked_sub(before).unwrap_or(*value);
                let sum = self.sums.entry(name.clone()).or_default();
                *sum = sum.saturating_add(more);
            }
        }
    }

    /// Returns the files, by their path below the port's folder.
    pub(super) fn entries(&self, port: &str) -> Entries {
        let mut all = Entries::new();
        let mut file = |folder: &str, name: &str, value: u64| {
            all.insert(format!("{port}/{folder}/{name}"), Entry::Line(value.to_string()));
        };
        // Data is counted in words of 4 bytes (IBTA 16.1.3.5).
        for (name, value) in [
            ("port_xmit_data", self.sum(&["sent_bytes"]) / 4),
            ("port_xmit_packets", self.sum(&["sent_pkts"])),
            ("port_xmit_discards", self.sum(&SEND_ERRORS)),
            ("port_rcv_data", self.sum(&["rcvd_bytes"]) / 4),
            ("port_rcv_packets", self.sum(&["rcvd_pkts"])),
            ("port_rcv_errors", self.sum(&RECEIVE_ERRORS)),
            ("port_rcv_constraint_errors", self.sum(&["rx_bad_pkey"])),
            ("link_downed", self.link_downed),
        ] {
            file("counters", name, value);
        }
        for name in ZEROS {
            file("counters", name, 0);
        }
        for (name, _) in Counters::default().iter() {
            file("hw_counters", name, self.sum(&[name]));
        }
        for (name, ours) in RXE_NAMES {
            file("hw_counters", name, self.sum(&[ours]));
        }
        file("hw_counters", "send_err", self.sum(&SEND_ERRORS));
        file("hw_counters", "link_downed", self.link_downed);
        file("hw_counters", "lifespan", LIFESPAN_MS);
        all
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.sums.get(*name)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(devices: &[(&str, Option<u64>)]) -> BTreeMap<String, Option<Snapshot>> {
        let snapshot = |bytes: u64| Snapshot {
            interface: "eth9".into(),
            counters: [("sent_bytes".into(), bytes), ("out_of_sequence".into(), 1)].into(),
            ..Snapshot::default()
        };
        devices.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.map(snapshot))).collect()
    }

    #[test]
    fn sums_include_ended_processes() {
        let mut counts = Counts::default();
        let mut add = |devices: &[(&str, Option<u64>)]| {
            counts.add(&read(devices), |device| device.interface == "eth9");
            counts.sum(&["sent_bytes"])
        };
        assert_eq!(add(&[("a", Some(100)), ("b", Some(10))]), 110);
        assert_eq!(add(&[("a", Some(120)), ("b", Some(10))]), 130);
        assert_eq!(add(&[("a", None), ("b", Some(10))]), 130, "a is stopped");
        assert_eq!(add(&[("a", Some(140)), ("b", Some(10))]), 150);
        assert_eq!(add(&[("b", Some(20))]), 160, "a has ended");
        assert_eq!(add(&[("a", Some(5)), ("b", Some(20))]), 165, "another process has the name");
        assert_eq!(add(&[("a", Some(3)), ("b", Some(20))]), 168, "a counter began anew");
    }

    #[test]
    fn devices_of_other_interfaces_do_not_count() {
        let mut counts = Counts::default();
        counts.add(&read(&[("a", Some(100))]), |device| device.interface == "eth8");
        assert_eq!(counts.sum(&["sent_bytes"]), 0);
    }

    #[test]
    fn data_counts_words_and_errors_have_both_names() {
        let mut counts = Counts::default();
        counts.add(&read(&[("a", Some(4096))]), |_| true);
        let entries = counts.entries("ports/1");
        let line = |path: &str| entries.get(path).cloned();
        let is = |value: &str| Some(Entry::Line(value.into()));
        assert_eq!(line("ports/1/counters/port_xmit_data"), is("1024"));
        assert_eq!(line("ports/1/hw_counters/sent_bytes"), is("4096"));
        assert_eq!(line("ports/1/hw_counters/out_of_sequence"), is("1"));
        assert_eq!(line("ports/1/hw_counters/out_of_seq_request"), is("1"));
    }
}
