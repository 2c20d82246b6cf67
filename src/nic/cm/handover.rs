//! Handover: connection state for another manager, which ends the connections if this manager's process dies. A kernel
//! does the same for its programs.

use std::fmt::Debug;

use roxie_base::time::Nanos;
use roxie_wire::cm::{CommId, Kind};
use roxie_wire::{Encapsulation, Gid, Qpn, RoceVersion};

use super::connection::{Connection, ConnectionState};
use super::manager::Manager;
use super::{CmError, Parameters, Route};

/// Time to wait for the answer to a DREQ before it is retransmitted.
const DREQ_TIMEOUT: Nanos = Nanos::from_millis(200);
/// Number of retransmissions: a dead peer costs 1 s.
const DREQ_RETRIES: u8 = 4;
/// Time to keep an ended connection, so that its last message is sent.
const LINGER: Nanos = Nanos::from_millis(50);

/// A connection of which the peer must be notified when this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    pub(super) id: CommId,
    pub(super) remote_id: CommId,
    pub(super) state: ConnectionState,
    pub(super) route: Route,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
}

/// Storage for the handover state of a manager's connections.
pub trait HandoverStore: Debug + Send {
    /// Stores the handover state of connection `id`. Called at each change of the connection's state. `None`: nothing
    /// to hand over.
    fn store(&mut self, id: CommId, handover: Option<&Handover>);
}

/// States to hand over. Their index is part of the encoding.
const STATES: [ConnectionState; 9] = [
    ConnectionState::ReqSent,
    ConnectionState::RepWait,
    ConnectionState::ReqRcvd,
    ConnectionState::MraReqSent,
    ConnectionState::RepSent,
    ConnectionState::RepRcvd,
    ConnectionState::MraRepSent,
    ConnectionState::Established,
    ConnectionState::DreqRcvd,
];

impl Handover {
    /// Length of the encoding in 64-bit words.
    pub const WORDS: usize = 7;

    /// Returns the path to the peer.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Encodes the state in words, to be stored where another process finds them.
    pub fn to_words(&self) -> [u64; Handover::WORDS] {
        let halves = |gid: Gid| {
            let value = u128::from_be_bytes(gid.0);
            [(value >> 64) as u64, value as u64]
        };
        let state = STATES.iter().position(|state| *state == self.state).unwrap_or_default() as u64;
        let Route { local, encapsulation, remote, traffic_class, flow_label, hop_limit } = self.route;
        let is_v1 = u64::from(encapsulation.version == RoceVersion::V1);
        let state = is_v1 << 23 | u64::from(encapsulation.vlan & Encapsulation::VLAN_BITS) << 8 | state;
        let state_word = state << 40 | u64::from(traffic_class) << 32 | u64::from(hop_limit) << 24;
        let ([local_high, local_low], [remote_high, remote_low]) = (halves(local), halves(remote));
        [
            u64::from(self.id.0) << 32 | u64::from(self.remote_id.0),
            u64::from(self.local_qpn.value()) << 32 | u64::from(self.remote_qpn.value()),
            state_word | u64::from(flow_label & 0x000f_ffff),
            local_high,
            local_low,
            remote_high,
            remote_low,
        ]
    }

    /// Decodes the state from words. Returns `None` if they are not valid.
    pub fn from_words(words: &[u64; Handover::WORDS]) -> Option<Handover> {
        let [ids, qpns, state_word, local_high, local_low, remote_high, remote_low] = *words;
        let gid = |high: u64, low: u64| Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        let route = Route {
            local: gid(local_high, local_low),
            encapsulation: Encapsulation {
                vlan: (state_word >> 48) as u16 & Encapsulation::VLAN_BITS,
                version: if state_word >> 63 == 1 { RoceVersion::V1 } else { RoceVersion::V2 },
            },
            remote: gid(remote_high, remote_low),
            traffic_class: (state_word >> 32) as u8,
            flow_label: state_word as u32 & 0x000f_ffff,
            hop_limit: (state_word >> 24) as u8,
        };
        Some(Handover {
            id: CommId((ids >> 32) as u32),
            remote_id: CommId(ids as u32),
            state: *STATES.get(usize::from((state_word >> 40) as u8))?,
            route,
            local_qpn: Qpn::new((qpns >> 32) as u32),
            remote_qpn: Qpn::new(qpns as u32),
        })
    }
}

impl Connection {
    fn handover(&self, id: CommId) -> Option<Handover> {
        let state = match self.state {
            // The peer may not have received the DREQ.
            ConnectionState::DreqSent => ConnectionState::Established,
            ConnectionState::TimeWait if self.outgoing.as_ref()?.kind == Kind::Drep => {
                ConnectionState::DreqRcvd
            }
            ConnectionState::TimeWait | ConnectionState::SidrReqSent | ConnectionState::SidrReqRcvd => {
                return None;
            }
            ConnectionState::MraRepRcvd => ConnectionState::RepSent,
            state => state,
        };
        Some(Handover {
            id,
            remote_id: self.remote_id,
            state,
            route: self.route,
            local_qpn: self.local_qpn,
            remote_qpn: self.parameters.dest_qpn.unwrap_or_default(),
        })
    }
}

impl Manager {
    /// Sets the storage for handover state, and stores the state of all connections.
    pub fn hand_over_to(&mut self, handover_store: Box<dyn HandoverStore>) {
        self.handover_store = Some(handover_store);
        let ids: Vec<_> = self.ids().collect();
        ids.into_iter().for_each(|id| self.bequeath(id));
    }

    /// Returns the handover state of a connection. `None`: it does not exist, or its peer needs no further message.
    pub fn handover(&self, id: CommId) -> Option<Handover> {
        self.table.get(id)?.handover(id)
    }

    /// Takes over a connection of a manager that has ended, and ends it as [`destroy`](Manager::destroy) does. The
    /// managers must have the same [seed](super::Config::seed). The connection is gone after 1 s at most.
    ///
    /// # Errors
    /// If the ID is in use or beyond the table's limit.
    pub fn take_over(&mut self, now: Nanos, handover: &Handover) -> Result<(), CmError> {
        let Handover { id, remote_id, state, route, local_qpn, remote_qpn } = *handover;
        let parameters = Parameters { dest_qpn: Some(remote_qpn), ..Parameters::unknown(route) };
        let connection = Connection {
            remote_id,
            local_qpn,
            answer_timeout: DREQ_TIMEOUT,
            max_retries: DREQ_RETRIES,
            linger: LINGER,
            ..Connection::new(state, route, parameters)
        };
        if !self.table.insert_as(id, connection) {
            return Err(CmError::Unknown { call: "take_over", id });
        }
        self.unanswered += u32::from(state.awaits_answer());
        self.begin_transaction(id);
        self.destroy(now, id);
        Ok(())
    }

    /// Stores the handover state of a changed connection.
    pub(super) fn bequeath(&mut self, id: CommId) {
        let Some(handover_store) = &mut self.handover_store else { return };
        let handover = self.table.get(id).and_then(|connection| connection.handover(id));
        handover_store.store(id, handover.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_keeps_all_fields_in_each_state() {
        for state in STATES {
            let handover = Handover {
                id: CommId(0x8123_4567),
                remote_id: CommId(0xfedc_ba98),
                state,
                route: Route {
                    local: Gid([0xf1; 16]),
                    encapsulation: Encapsulation { vlan: 0xabc, version: RoceVersion::V1 },
                    remote: Gid(std::array::from_fn(|i| i as u8)),
                    traffic_class: 0x9a,
                    flow_label: 0x000e_5432,
                    hop_limit: 0xc3,
                },
                local_qpn: Qpn::new(0x00fe_0001),
                remote_qpn: Qpn::new(0x0012_3456),
            };
            assert_eq!(Handover::from_words(&handover.to_words()), Some(handover));
        }
        let mut none = [u64::MAX; Handover::WORDS];
        assert_eq!(Handover::from_words(&none), None, "no such state");
        none[2] = 0;
        assert!(Handover::from_words(&none).is_some());
    }
}
