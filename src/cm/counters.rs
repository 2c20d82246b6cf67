//! What a manager counts.

use crate::wire::cm::Kind;

/// Messages by kind, as Linux counts them (`/sys/class/infiniband/*/ports/*/counters`, `cm_tx_msgs` …), and what was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    pub(super) tx: [u64; Kind::ALL.len()],
    pub(super) tx_retries: [u64; Kind::ALL.len()],
    pub(super) rx: [u64; Kind::ALL.len()],
    pub(super) rx_duplicates: [u64; Kind::ALL.len()],
    /// Bytes that are no message of communication management.
    pub not_cm: u64,
    /// Messages that came from another QP than QP1.
    pub not_from_gsi: u64,
    /// Messages of a connection that came from elsewhere than its peer.
    pub not_from_peer: u64,
    /// Messages of connections that there are not, or of others' names.
    pub unknown_id: u64,
    /// Messages that do not belong in the connection's state.
    pub out_of_state: u64,
    /// Requests that found the listener's backlog full.
    pub backlog_full: u64,
    /// Requests that found the table full.
    pub table_full: u64,
    /// Requests of addresses that have too many already, of which no connection has come.
    pub address_full: u64,
    /// Half-made connections that were given up for a new request when the table was full.
    pub evicted: u64,
    /// Requests that found too many events waiting.
    pub events_full: u64,
    /// Messages that were not sent because too many wait.
    pub transmits_full: u64,
}

fn slot(kind: Kind) -> usize {
    usize::from(kind as u16 - Kind::Req as u16)
}

impl CmCounters {
    /// Messages sent, those sent again included.
    pub fn sent(&self, kind: Kind) -> u64 {
        self.tx[slot(kind)]
    }

    /// Messages sent again.
    pub fn sent_again(&self, kind: Kind) -> u64 {
        self.tx_retries[slot(kind)]
    }

    /// Messages received.
    pub fn received(&self, kind: Kind) -> u64 {
        self.rx[slot(kind)]
    }

    /// Messages received that had come before.
    pub fn received_again(&self, kind: Kind) -> u64 {
        self.rx_duplicates[slot(kind)]
    }

    pub(super) fn count_sent(&mut self, kind: Kind, again: bool) {
        self.tx[slot(kind)] += 1;
        self.tx_retries[slot(kind)] += u64::from(again);
    }

    pub(super) fn count_received(&mut self, kind: Kind) {
        self.rx[slot(kind)] += 1;
    }

    pub(super) fn count_duplicate(&mut self, kind: Kind) {
        self.rx_duplicates[slot(kind)] += 1;
    }

    /// What was dropped, by name.
    pub fn drops(&self) -> [(&'static str, u64); 11] {
        [
            ("cm_not_cm", self.not_cm),
            ("cm_not_from_gsi", self.not_from_gsi),
            ("cm_not_from_peer", self.not_from_peer),
            ("cm_unknown_id", self.unknown_id),
            ("cm_out_of_state", self.out_of_state),
            ("cm_backlog_full", self.backlog_full),
            ("cm_table_full", self.table_full),
            ("cm_address_full", self.address_full),
            ("cm_evicted", self.evicted),
            ("cm_events_full", self.events_full),
            ("cm_transmits_full", self.transmits_full),
        ]
    }
}
