//! ConnectionState of one connection or resolution.

use roxie_base::time::Nanos;
use roxie_wire::cm::{CommId, Kind, Stage};
use roxie_wire::mad::MAD_LEN;
use roxie_wire::{Gid, Qpn, ServiceId};

use super::examination::Suspicion;
use super::listeners::BacklogPlace;
use super::{Parameters, Route};

/// ConnectionState of a connection, named as in the diagrams of IBTA 12.9.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Active: our REQ is sent.
    ReqSent,
    /// Active: the peer has announced by MRA that its REP takes longer.
    RepWait,
    /// Passive: the consumer has a REQ to answer.
    ReqRcvd,
    /// Passive: the consumer has a REQ to answer, and the peer has our MRA.
    MraReqSent,
    /// Passive: our REP is sent.
    RepSent,
    /// Passive: the peer has announced by MRA that its RTU takes longer.
    MraRepRcvd,
    /// Active: the consumer has a REP to answer.
    RepRcvd,
    /// Active: the consumer has a REP to answer, and the peer has our MRA.
    MraRepSent,
    /// Connected: both ends may send.
    Established,
    /// Our DREQ is sent.
    DreqSent,
    /// The consumer has a DREQ to answer.
    DreqRcvd,
    /// Ended. Waits for packets and messages in flight.
    TimeWait,
    /// Our SIDR_REQ is sent.
    SidrReqSent,
    /// The consumer has a SIDR_REQ to answer.
    SidrReqRcvd,
}

impl ConnectionState {
    /// True while a host that may not exist has not answered yet.
    pub(super) fn awaits_answer(self) -> bool {
        matches!(self, ConnectionState::ReqSent | ConnectionState::SidrReqSent)
    }

    /// True from a peer's request until the peer confirms our answer.
    pub(super) fn is_half_open(self) -> bool {
        matches!(
            self,
            ConnectionState::ReqRcvd
                | ConnectionState::MraReqSent
                | ConnectionState::RepSent
                | ConnectionState::MraRepRcvd
        )
    }

    /// True until the consumer answers the peer's request.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, ConnectionState::ReqRcvd | ConnectionState::MraReqSent | ConnectionState::SidrReqRcvd)
    }
}

/// The last message, kept for retransmission.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) kind: Kind,
    pub(super) mad: [u8; MAD_LEN],
}

/// Key of `Manager::by_remote`: the peer's identifiers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RemoteKey {
    /// Address of the peer. A host cannot affect the connections of another one.
    pub(super) address: Gid,
    /// GUID of the peer's channel adapter.
    pub(super) ca_guid: u64,
    /// The peer's ID of the connection.
    pub(super) comm_id: CommId,
    /// True for a resolution: its IDs form a separate space.
    pub(super) resolution: bool,
}

/// ConnectionState of a connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: ConnectionState,
    /// True if the consumer gets no further events.
    pub(super) orphan: bool,
    /// Path of the messages.
    pub(super) route: Route,
    /// Transaction ID of the current exchange.
    pub(super) tid: u64,
    /// The peer's ID; 0 if unknown.
    pub(super) remote_id: CommId,
    /// Key in the table of peers' IDs.
    pub(super) remote_key: Option<RemoteKey>,
    /// Peer's adapter and QP, for the table of connected QPs.
    pub(super) connected: Option<(u64, Qpn)>,
    pub(super) local_qpn: Qpn,
    /// Service ID of a resolution (SIDR).
    pub(super) service: ServiceId,
    pub(super) parameters: Parameters,
    /// Active side: maximum lifetime of a packet, as a timeout code.
    pub(super) packet_lifetime: u8,
    /// The place of this request in a backlog.
    pub(super) place: Option<BacklogPlace>,
    /// Time within which the peer of a request in a backlog must repeat it.
    pub(super) patience: Nanos,
    /// The message to retransmit after a timeout, or when the peer evidently lacks it.
    pub(super) outgoing: Option<Outgoing>,
    /// Time to wait for an answer.
    pub(super) answer_timeout: Nanos,
    /// Maximum number of retransmissions of a message.
    pub(super) max_retries: u8,
    /// Remaining retransmissions of the current message.
    pub(super) retries_remaining: u8,
    /// End of the first wait for an answer to the current message.
    pub(super) answer_due: Nanos,
    /// Delay before the next repetition within that wait. Zero: no repetition.
    pub(super) pause: Nanos,
    /// Number of repetitions so far.
    pub(super) repeats: u8,
    /// Arrival time of the peer's REQ or REP that the consumer must answer.
    pub(super) arrived: Nanos,
    /// Time to linger after the end.
    pub(super) linger: Nanos,
    /// Time until which the request is repeated to a peer without a listener.
    pub(super) repeat_until: Nanos,
    /// True once a message from the peer has arrived.
    pub(super) is_answered: bool,
    /// Number of times that the request was repeated because the peer had an old connection of the QP.
    pub(super) stale_refusals: u8,
    /// The examination of the established connection, if there is one.
    pub(super) suspicion: Option<Box<Suspicion>>,
    /// Messages that may be sent to an unproven address before its next one. `None`: any number.
    pub(super) budget: Option<u8>,
}

/// Timeout code for the lingering of a resolution: Linux's code for connections on RoCE.
const RESOLUTION_LINGERS: u8 = 17;

impl Connection {
    /// True if the connection counts in the quota of its peer's address.
    pub(super) fn is_half_open(&self) -> bool {
        self.state.is_half_open() && self.remote_key.is_some()
    }

    /// True if the connection may be evicted: its peer has not confirmed our answer, or it lingers without an owner.
    pub(super) fn is_evictable(&self) -> bool {
        match self.state {
            ConnectionState::RepSent => !self.is_answered,
            ConnectionState::TimeWait => self.orphan,
            _ => false,
        }
    }

    /// True if a request in this state keeps its place in the backlog.
    pub(super) fn keeps_place(&self) -> bool {
        let until_confirmed = self.place.is_some_and(|place| place.until_confirmed);
        self.state.is_pending() || until_confirmed && self.state.is_half_open()
    }

    /// Returns the number of times that the current message was sent.
    pub(super) fn transmissions(&self) -> u8 {
        let again = self.max_retries.saturating_sub(self.retries_remaining);
        again.saturating_add(self.repeats).saturating_add(1)
    }

    /// True if a repeated message from the peer comes too early for a timeout: within half of our own wait.
    pub(super) fn is_early_repeat(&self, now: Nanos) -> bool {
        now < self.arrived + Nanos(self.answer_timeout.0 / 2)
    }

    /// Returns a connection without identifiers of the peer and without messages.
    pub(super) fn new(state: ConnectionState, route: Route, parameters: Parameters) -> Connection {
        Connection {
            state,
            orphan: false,
            route,
            tid: 0,
            remote_id: CommId(0),
            remote_key: None,
            connected: None,
            local_qpn: Qpn::default(),
            service: ServiceId(0),
            parameters,
            packet_lifetime: 0,
            place: None,
            patience: Nanos::ZERO,
            outgoing: None,
            answer_timeout: Nanos::ZERO,
            max_retries: 0,
            retries_remaining: 0,
            answer_due: Nanos::ZERO,
            pause: Nanos::ZERO,
            repeats: 0,
            arrived: Nanos::ZERO,
            linger: Nanos::ZERO,
            repeat_until: Nanos::ZERO,
            is_answered: false,
            stale_refusals: 0,
            suspicion: None,
            budget: None,
        }
    }

    /// Returns a resolution, which has no parameters.
    pub(super) fn resolution(state: ConnectionState, route: Route) -> Connection {
        let parameters =
            Parameters { active: state == ConnectionState::SidrReqSent, ..Parameters::unknown(route) };
        let linger = span(RESOLUTION_LINGERS, RESOLUTION_LINGERS);
        Connection { linger, ..Connection::new(state, route, parameters) }
    }

    /// Returns the message of the peer that a REJ would refuse now.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            ConnectionState::ReqRcvd | ConnectionState::MraReqSent => Stage::Req,
            ConnectionState::RepRcvd | ConnectionState::MraRepSent => Stage::Rep,
            _ => Stage::Other,
        }
    }

    /// Returns the key in the table of connected QPs.
    pub(super) fn connected_key(&self) -> Option<(Gid, u64, Qpn)> {
        self.connected.map(|(guid, qpn)| (self.route.remote, guid, qpn))
    }
}

/// Returns 4.096 us * 2^code (IBTA 9.9.2.1.1). Codes are capped at `largest`.
pub(super) fn span(code: u8, largest: u8) -> Nanos {
    Nanos(4096 << code.min(largest).min(31))
}

/// Returns the local ACK timeout code of a path: 2 * packet lifetime + ACK delay of the other end, rounded up as Linux
/// does (`cm_ack_timeout`).
pub(super) fn ack_timeout(ack_delay: u8, packet_lifetime: u8) -> u8 {
    let round_trip = packet_lifetime + 1;
    let code = if round_trip >= ack_delay {
        round_trip + u8::from(ack_delay >= round_trip - 1)
    } else {
        ack_delay + u8::from(round_trip >= ack_delay - 1)
    };
    code.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum has the longer one's code if the times differ by more than one code, otherwise the next code; 31 at
    /// most.
    #[test]
    fn ack_timeout_covers_round_trip_and_ack_delay() {
        for packet_lifetime in 0..=30 {
            for ack_delay in 0..=31 {
                let codes = [packet_lifetime + 1, ack_delay];
                let (longer, shorter) = (codes[0].max(codes[1]), codes[0].min(codes[1]));
                let wanted = if longer - shorter <= 1 { longer + 1 } else { longer };
                let code = ack_timeout(ack_delay, packet_lifetime);
                assert_eq!(code, wanted.min(31), "a lifetime of {packet_lifetime}, a delay of {ack_delay}");
            }
        }
    }

    #[test]
    fn timeout_code_is_capped_at_the_largest() {
        assert_eq!([span(0, 31), span(1, 31), span(20, 31)], [Nanos(4096), Nanos(8192), Nanos(4096 << 20)]);
        assert_eq!([span(21, 20), span(255, 40)], [Nanos(4096 << 20), Nanos(4096 << 31)]);
    }
}
