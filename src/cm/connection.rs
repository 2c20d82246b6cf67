//! One connection, or one resolution.

use crate::time::Nanos;
use crate::wire::cm::{CommId, Kind, Stage};
use crate::wire::mad::MAD_LEN;
use crate::wire::{Gid, Qpn, ServiceId};

use super::{Listener, Parameters, Route};

/// Where a connection is (IBTA 12.9.7; the names are those of its diagrams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active: our REQ is out.
    ReqSent,
    /// Active: the peer said with an MRA that its REP will take longer.
    RepWait,
    /// Passive: the consumer knows of a REQ and has not answered.
    ReqRcvd,
    /// Passive: likewise, and the peer knows that it takes longer.
    MraReqSent,
    /// Passive: our REP is out.
    RepSent,
    /// Passive: the peer said with an MRA that its RTU will take longer.
    MraRepRcvd,
    /// Active: the consumer knows of a REP and is not ready.
    RepRcvd,
    /// Active: likewise, and the peer knows that it takes longer.
    MraRepSent,
    /// Both may send.
    Established,
    /// Our DREQ is out.
    DreqSent,
    /// The consumer knows of a DREQ and has not agreed.
    DreqRcvd,
    /// It is over; what is still under way is waited for.
    TimeWait,
    /// Our SIDR_REQ is out.
    SidrReqSent,
    /// The consumer knows of a SIDR_REQ and has not answered.
    SidrReqRcvd,
}

impl State {
    /// A peer is asked that may not be there at all.
    pub(super) fn is_asking(self) -> bool {
        matches!(self, State::ReqSent | State::SidrReqSent)
    }

    /// A peer has asked, and has not shown that it hears what it is answered.
    pub(super) fn is_half_open(self) -> bool {
        matches!(self, State::ReqRcvd | State::MraReqSent | State::RepSent | State::MraRepRcvd)
    }

    /// The consumer has not answered the peer's request yet.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd)
    }
}

/// The last message that may have to be sent again.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) kind: Kind,
    pub(super) mad: [u8; MAD_LEN],
}

/// Which table knows a connection by the peer's names for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RemoteKey {
    /// The peer's address: what one host says of another's connections counts for nothing.
    pub(super) address: Gid,
    /// The peer's channel adapter.
    pub(super) ca_guid: u64,
    /// Its name for the connection.
    pub(super) comm_id: CommId,
    /// A resolution, whose names are of another kind.
    pub(super) resolution: bool,
}

/// A connection that the manager knows.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// The consumer hears of it no more.
    pub(super) orphan: bool,
    /// The way of its messages.
    pub(super) route: Route,
    /// The transaction of the exchange that is going on.
    pub(super) tid: u64,
    /// The peer's name for it, once it is known.
    pub(super) remote_id: CommId,
    /// What it is found by in the table of peers' names.
    pub(super) remote_key: Option<RemoteKey>,
    /// The peer's QP, as it is found by in the table of connected QPs.
    pub(super) connected: Option<(u64, Qpn)>,
    pub(super) local_qpn: Qpn,
    /// The service identifier that a resolution (SIDR) asks for.
    pub(super) service: ServiceId,
    pub(super) parameters: Parameters,
    /// How long a packet is under way at most, as a code; the active side's.
    pub(super) packet_lifetime: u8,
    /// Whose backlog it counts in.
    pub(super) listener: Option<Listener>,
    /// Sent again when time is up or the peer shows that it did not come.
    pub(super) outgoing: Option<Outgoing>,
    /// How long an answer may take.
    pub(super) patience: Nanos,
    /// How often a message of this connection is sent again.
    pub(super) max_retries: u8,
    /// How often the present one will be.
    pub(super) retries_left: u8,
    /// When the first wait for an answer to the present one ends.
    pub(super) answer_due: Nanos,
    /// How long after the last time it is said again before that. Zero: it is not.
    pub(super) pause: Nanos,
    /// How often that has happened.
    pub(super) repeats: u8,
    /// When the peer's REQ or REP came, which the consumer is to answer.
    pub(super) came: Nanos,
    /// How long it lingers when it is over.
    pub(super) linger: Nanos,
    /// Until when a peer where nobody listens is asked again.
    pub(super) insists_until: Nanos,
    /// The peer has said something of it.
    pub(super) heard: bool,
}

/// How long a resolution lingers: as long as a connection with the timeout code that Linux uses on RoCE.
const RESOLUTION_LINGERS: u8 = 17;

impl Connection {
    /// It counts among those that its peer's address may have.
    pub(super) fn is_half_open(&self) -> bool {
        self.state.is_half_open() && self.remote_key.is_some()
    }

    /// Another may have its place when there is no other: nobody has shown to be there.
    pub(super) fn may_make_room(&self) -> bool {
        match self.state {
            State::RepSent => !self.heard,
            State::TimeWait => self.orphan,
            _ => false,
        }
    }

    /// How often the peer was sent the present message.
    pub(super) fn asked(&self) -> u8 {
        let again = self.max_retries.saturating_sub(self.retries_left);
        again.saturating_add(self.repeats).saturating_add(1)
    }

    /// The peer says something again to be sure, and not because its time is up: about as long as ours.
    pub(super) fn is_hasty(&self, now: Nanos) -> bool {
        now < self.came + Nanos(self.patience.0 / 2)
    }

    /// One whose messages are not known yet.
    pub(super) fn new(state: State, route: Route, parameters: Parameters) -> Connection {
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
            listener: None,
            outgoing: None,
            patience: Nanos::ZERO,
            max_retries: 0,
            retries_left: 0,
            answer_due: Nanos::ZERO,
            pause: Nanos::ZERO,
            repeats: 0,
            came: Nanos::ZERO,
            linger: Nanos::ZERO,
            insists_until: Nanos::ZERO,
            heard: false,
        }
    }

    /// A resolution, which has no parameters.
    pub(super) fn resolution(state: State, route: Route) -> Connection {
        let parameters = Parameters { active: state == State::SidrReqSent, ..Parameters::unknown(route) };
        let linger = span(RESOLUTION_LINGERS, RESOLUTION_LINGERS);
        Connection { linger, ..Connection::new(state, route, parameters) }
    }

    /// Which message of the peer's a REJ would refuse now.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::ReqRcvd | State::MraReqSent => Stage::Req,
            State::RepRcvd | State::MraRepSent => Stage::Rep,
            _ => Stage::Other,
        }
    }

    /// The peer's QP and adapter, for the table of connected QPs.
    pub(super) fn connected_key(&self) -> Option<(Gid, u64, Qpn)> {
        self.connected.map(|(guid, qpn)| (self.route.remote, guid, qpn))
    }
}

/// 4.096 us * 2^code (IBTA 9.9.2.1.1), of the codes up to `largest`.
pub(super) fn span(code: u8, largest: u8) -> Nanos {
    Nanos(4096 << code.min(largest).min(31))
}

/// The local ACK timeout code for a path, from how long packets are under way and the other end takes to acknowledge: 2 *
/// lifetime + delay, rounded up to a code as Linux does (`cm_ack_timeout`).
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

    /// Two times that differ by more than one code add up to the longer one's code, others to the next; nothing is beyond 31.
    #[test]
    fn the_ack_timeout_holds_the_way_there_and_back_and_the_peers_delay() {
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
    fn a_code_is_a_power_of_two_of_4096_ns_up_to_the_largest_that_is_believed() {
        assert_eq!([span(0, 31), span(1, 31), span(20, 31)], [Nanos(4096), Nanos(8192), Nanos(4096 << 20)]);
        assert_eq!([span(21, 20), span(255, 40)], [Nanos(4096 << 20), Nanos(4096 << 31)]);
    }
}
