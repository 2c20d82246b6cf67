//! What outlives a manager: enough of each connection for another manager to end it in the first one's place, as a kernel does for
//! a program that dies.

use std::fmt::Debug;

use crate::time::Nanos;
use crate::wire::cm::{CommId, Kind};
use crate::wire::{Gid, Qpn};

use super::connection::{Connection, State};
use super::manager::Manager;
use super::{CmError, Parameters, Route};

/// How long an heir waits for the answer to a DREQ before it says it again.
const PATIENCE: Nanos = Nanos::from_millis(200);
/// How often it says it again: a peer that is gone as well costs a second.
const RETRIES: u8 = 4;
/// How long it keeps a connection that is over: its last message has left by then.
const LINGER: Nanos = Nanos::from_millis(50);

/// A connection whose peer has to hear something yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bequest {
    pub(super) id: CommId,
    pub(super) remote_id: CommId,
    pub(super) state: State,
    pub(super) route: Route,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
}

/// Who keeps what a manager would leave. It is told at each change of a connection's state.
pub trait Keeper: Debug + Send {
    /// `bequest` is what the connection `id` leaves from now on; `None`: nothing.
    fn keep(&mut self, id: CommId, bequest: Option<&Bequest>);
}

/// States in which a connection leaves something, by their place in the words of a bequest.
const STATES: [State; 9] = [
    State::ReqSent,
    State::RepWait,
    State::ReqRcvd,
    State::MraReqSent,
    State::RepSent,
    State::RepRcvd,
    State::MraRepSent,
    State::Established,
    State::DreqRcvd,
];

impl Bequest {
    /// 64-bit words of one.
    pub const WORDS: usize = 7;

    /// The way to the peer.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// As words, to be kept where another process finds them.
    pub fn to_words(&self) -> [u64; Bequest::WORDS] {
        let halves = |gid: Gid| {
            let value = u128::from_be_bytes(gid.0);
            [(value >> 64) as u64, value as u64]
        };
        let state = STATES.iter().position(|state| *state == self.state).unwrap_or_default() as u64;
        let Route { local, remote, traffic_class, flow_label, hop_limit } = self.route;
        let way = state << 40 | u64::from(traffic_class) << 32 | u64::from(hop_limit) << 24;
        let ([local_high, local_low], [remote_high, remote_low]) = (halves(local), halves(remote));
        [
            u64::from(self.id.0) << 32 | u64::from(self.remote_id.0),
            u64::from(self.local_qpn.value()) << 32 | u64::from(self.remote_qpn.value()),
            way | u64::from(flow_label & 0x000f_ffff),
            local_high,
            local_low,
            remote_high,
            remote_low,
        ]
    }

    /// From such words. `None`: they are none.
    pub fn from_words(words: &[u64; Bequest::WORDS]) -> Option<Bequest> {
        let [ids, qpns, way, local_high, local_low, remote_high, remote_low] = *words;
        let gid = |high: u64, low: u64| Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        let route = Route {
            local: gid(local_high, local_low),
            remote: gid(remote_high, remote_low),
            traffic_class: (way >> 32) as u8,
            flow_label: way as u32 & 0x000f_ffff,
            hop_limit: (way >> 24) as u8,
        };
        Some(Bequest {
            id: CommId((ids >> 32) as u32),
            remote_id: CommId(ids as u32),
            state: *STATES.get((way >> 40) as usize)?,
            route,
            local_qpn: Qpn::new((qpns >> 32) as u32),
            remote_qpn: Qpn::new(qpns as u32),
        })
    }
}

impl Connection {
    fn bequest(&self, id: CommId) -> Option<Bequest> {
        let state = match self.state {
            // The peer may not have heard it.
            State::DreqSent => State::Established,
            State::TimeWait if self.outgoing.as_ref()?.kind == Kind::Drep => State::DreqRcvd,
            State::TimeWait | State::SidrReqSent | State::SidrReqRcvd => return None,
            State::MraRepRcvd => State::RepSent,
            state => state,
        };
        Some(Bequest {
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
    /// From now on `keeper` knows what each connection would leave if this manager were no more.
    pub fn bequeath_to(&mut self, keeper: Box<dyn Keeper>) {
        self.keeper = Some(keeper);
        let ids: Vec<_> = self.ids().collect();
        ids.into_iter().for_each(|id| self.bequeath(id));
    }

    /// What a connection would leave. `None`: it is none, or its peer needs to hear nothing more.
    pub fn bequest(&self, id: CommId) -> Option<Bequest> {
        self.table.get(id)?.bequest(id)
    }

    /// Ends a connection for a manager that is no more, whose [seed](super::Config::seed) this one has too: as its consumer's
    /// [`destroy`](Manager::destroy) would have. It is over when the manager does not know it any more, after a second at most.
    ///
    /// # Errors
    /// If the name is in use, or beyond what the table holds.
    pub fn inherit(&mut self, now: Nanos, bequest: &Bequest) -> Result<(), CmError> {
        let Bequest { id, remote_id, state, route, local_qpn, remote_qpn } = *bequest;
        let parameters = Parameters { dest_qpn: Some(remote_qpn), ..Parameters::unknown(route) };
        let connection = Connection {
            remote_id,
            local_qpn,
            patience: PATIENCE,
            max_retries: RETRIES,
            linger: LINGER,
            ..Connection::new(state, route, parameters)
        };
        if !self.table.insert_as(id, connection) {
            return Err(CmError::Unknown { call: "inherit", id });
        }
        self.asking += u32::from(state.is_asking());
        self.begin_transaction(id);
        self.destroy(now, id);
        Ok(())
    }

    /// A connection has changed.
    pub(super) fn bequeath(&mut self, id: CommId) {
        let Some(keeper) = &mut self.keeper else { return };
        let bequest = self.table.get(id).and_then(|connection| connection.bequest(id));
        keeper.keep(id, bequest.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_all_of_it_in_each_state() {
        for state in STATES {
            let bequest = Bequest {
                id: CommId(0x8123_4567),
                remote_id: CommId(0xfedc_ba98),
                state,
                route: Route {
                    local: Gid([0xf1; 16]),
                    remote: Gid(std::array::from_fn(|i| i as u8)),
                    traffic_class: 0x9a,
                    flow_label: 0x000e_5432,
                    hop_limit: 0xc3,
                },
                local_qpn: Qpn::new(0x00fe_0001),
                remote_qpn: Qpn::new(0x0012_3456),
            };
            assert_eq!(Bequest::from_words(&bequest.to_words()), Some(bequest));
        }
        let mut none = [u64::MAX; Bequest::WORDS];
        assert_eq!(Bequest::from_words(&none), None, "no such state");
        none[2] = 0;
        assert!(Bequest::from_words(&none).is_some());
    }
}
