//! Counters of a manager.

use roxie_wire::cm::Kind;

/// Counters of messages by kind, as in Linux (`/sys/class/infiniband/*/ports/*/counters`, `cm_tx_msgs` …), and of
/// drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    pub(super) tx: [u64; Kind::ALL.len()],
    pub(super) tx_retries: [u64; Kind::ALL.len()],
    pub(super) rx: [u64; Kind::ALL.len()],
    pub(super) rx_duplicates: [u64; Kind::ALL.len()],
    /// Datagrams that are not valid CM messages.
    pub not_cm: u64,
    /// Messages from another QP than QP1.
    pub not_from_gsi: u64,
    /// Messages of a connection from another address than its peer's.
    pub not_from_peer: u64,
    /// Messages with an unknown connection ID, or with another ID of the peer.
    pub unknown_id: u64,
    /// Messages that are not expected in the connection's state.
    pub out_of_state: u64,
    /// Requests dropped because the listener's backlog was full.
    pub backlog_full: u64,
    /// Requests dropped because the table was full.
    pub table_full: u64,
    /// Requests dropped because their address had too many half-open connections.
    pub address_full: u64,
    /// Connections evicted from a full table or backlog in favour of new requests.
    pub evicted: u64,
    /// Requests removed from a backlog because their peers no longer repeated them.
    pub not_repeated: u64,
    /// Requests dropped because they name the QP of a connected peer.
    pub names_connected_qp: u64,
    /// Examined connections that were alive.
    pub peers_alive: u64,
    /// Requests dropped because too many events were pending.
    pub events_full: u64,
    /// Messages not sent because too many were pending.
    pub transmits_full: u64,
}

fn slot(kind: Kind) -> usize {
    usize::from(kind as u16 - Kind::Req as u16)
}

impl CmCounters {
    /// Returns the number of sent messages, repetitions included.
    pub fn sent(&self, kind: Kind) -> u64 {
        self.tx[slot(kind)]
    }

    /// Returns the number of repeated messages.
    pub fn sent_again(&self, kind: Kind) -> u64 {
        self.tx_retries[slot(kind)]
    }

    /// Returns the number of received messages.
    pub fn received(&self, kind: Kind) -> u64 {
        self.rx[slot(kind)]
    }

    /// Returns the number of received duplicates.
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

    /// Returns the numbers of drops, by name.
    pub fn drops(&self) -> [(&'static str, u64); 14] {
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
            ("cm_not_repeated", self.not_repeated),
            ("cm_names_connected_qp", self.names_connected_qp),
            ("cm_peers_alive", self.peers_alive),
            ("cm_events_full", self.events_full),
            ("cm_transmits_full", self.transmits_full),
        ]
    }
}
