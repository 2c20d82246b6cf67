//! Consistency check of a manager's redundant state, for tests that call it after each step.
//!
//! The look-up tables and the quotas of peers must follow from the connections. A forgotten entry in a table does
//! little harm, but a forgotten unit of an address's quota locks the address out forever.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::connection::{Connection, ConnectionState};
use super::manager::Manager;
use roxie_wire::cm::CommId;

impl Manager {
    /// Returns a description of the first inconsistency, or `None`.
    #[doc(hidden)]
    pub fn inconsistency(&self) -> Option<String> {
        let all: Vec<(CommId, &Connection)> =
            self.table.ids().filter_map(|id| Some((id, self.table.get(id)?))).collect();
        let mut half_open = BTreeMap::new();
        let mut pending = BTreeMap::new();
        let mut by_remote = BTreeMap::new();
        let mut by_peer_qp = BTreeMap::new();
        for (id, connection) in &all {
            if connection.is_half_open() {
                *half_open.entry(connection.route.remote).or_insert(0) += 1;
            }
            if let Some(place) = connection.place {
                *pending.entry(place.listener).or_insert(0) += 1;
            }
            by_remote.extend(connection.remote_key.map(|key| (key, *id)));
            let key = connection.connected_key().filter(|_| connection.state != ConnectionState::TimeWait);
            by_peer_qp.extend(key.map(|key| (key, *id)));
        }
        let unanswered = all.iter().filter(|(_, connection)| connection.state.awaits_answer()).count();
        let mut examined = BTreeMap::new();
        let is_open = |c: &&Connection| c.suspicion.as_ref().is_some_and(|suspicion| suspicion.is_open());
        for connection in all.iter().map(|(_, connection)| *connection).filter(is_open) {
            *examined.entry(connection.route.remote).or_insert(0) += 1;
        }
        let (open, open_by_address) = self.open_examinations.counts();
        let examined_in_all = examined.values().sum::<u32>() as usize;
        let waits = all.iter().filter(|(_, connection)| connection.place.is_some());
        let waits = waits.filter(|(_, connection)| !connection.keeps_place()).count();
        differ("half-open connections by address", &self.half_open, &half_open)
            .or_else(|| differ("connections by the peer's names", &self.by_remote, &by_remote))
            .or_else(|| differ("connections by the peer's QPs", &self.by_peer_qp, &by_peer_qp))
            .or_else(|| differ("requests in backlogs", &self.listeners.pending(&pending), &pending))
            .or_else(|| {
                differ("connections that wait for a first answer", &self.unanswered, &(unanswered as u32))
            })
            .or_else(|| differ("examined connections by address", open_by_address, &examined))
            .or_else(|| differ("connections that are examined", &open, &examined_in_all))
            .or_else(|| differ("answered requests that are in a backlog", &waits, &0))
    }
}

fn differ<T: Debug + PartialEq>(what: &str, kept: &T, counted: &T) -> Option<String> {
    (kept != counted).then(|| format!("{what}: stored {kept:?}, counted {counted:?}"))
}
