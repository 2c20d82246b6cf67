//! Reasons: the outcome of a received packet, and the cause of a sent one. Captures and logs print them.

use std::fmt;

use super::check::Check;
use crate::congestion::Rate;
use crate::verbs::{QpState, WcStatus};
use roxie_base::time::Nanos;
use roxie_wire::Psn;

/// Outcome of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A request in order; executed.
    Executed,
    /// A request ahead of the expected PSN. The first one causes a sequence NAK (`nak`), the following are dropped
    /// silently.
    OutOfSequence {
        /// The expected PSN.
        expected: Psn,
        /// True if a NAK was queued.
        nak: bool,
    },
    /// A request ahead of the expected PSN, on a QP with selective repeat.
    Early {
        /// The expected PSN.
        expected: Psn,
        /// True if its payload was placed. Otherwise the packet was dropped, and is asked for again.
        is_placed: bool,
    },
    /// A duplicate request; answered again. Only a READ is executed again.
    Duplicate,
    /// A duplicate request, but its result is not stored any more; dropped.
    DuplicateForgotten,
    /// No receive was posted; RNR NAK.
    NotReady,
    /// A request that failed this check. The QP is in the error state.
    Refused(Check),
    /// A response that acknowledges something new.
    Acknowledged,
    /// A response to PSNs that are acknowledged already.
    OldAck,
    /// A response to PSNs that were never sent.
    Ghost,
    /// A response that causes a retransmission.
    GoBack(Cause),
    /// A selective acknowledgement that causes a retransmission of single packets.
    Selective {
        /// Number of packets that the peer asks for.
        requested: u8,
        /// Number of packets that it tells of.
        of: u8,
    },
    /// A response to packets sent before the last rewind; ignored.
    Stale,
    /// A response that ends the connection.
    Failed(WcStatus),
    /// An RNR NAK with this wait.
    Wait(Nanos),
    /// The QP accepts no packets in this state.
    WrongState(QpState),
    /// The packet's addresses are not the peer's and the QP's.
    WrongSource,
    /// The opcode belongs to another service than the QP's.
    WrongService,
    /// The P_Key does not match.
    BadPkey(u16),
    /// Part of a message that lost a packet; dropped silently.
    Incomplete {
        /// The PSN that would have continued the message.
        expected: Psn,
    },
    /// No receive was posted; dropped silently.
    NoReceive,
    /// A request of an unreliable service that failed this check; dropped silently.
    Unsuitable(Check),
    /// The receive failed with this status. The QP is in the error state.
    ReceiveFailed(WcStatus),
    /// A datagram with a wrong Q_Key.
    BadQkey(u32),
    /// A multicast datagram that the QP has sent itself.
    OwnMulticast,
    /// An AETH with a reserved syndrome.
    ReservedSyndrome(u8),
    /// A congestion notification; the QP has adjusted its rate.
    Cnp(RateChange),
    /// A congestion notification that was ignored: the QP has no reaction point, or has sent nothing that can have
    /// caused it.
    CnpIgnored,
    /// A congestion notification without BECN or with an unexpected length.
    BadCnp,
    /// The QP waits for copies from or to the memory of another process.
    AwaitsCopies {
        /// True if the packet was set aside, and is handled afterwards. Otherwise there was no room, and the packet was
        /// dropped.
        is_held: bool,
    },
}

/// Change of a QP's rate by a congestion notification or an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Old rate in bits per second.
    pub from: u64,
    /// New rate in bits per second.
    pub to: u64,
    /// DCQCN's alpha after the change, in thousandths.
    pub alpha: Option<u16>,
}

impl fmt::Display for RateChange {
    /// `rate 40 Gb/s -> 20 Gb/s, alpha 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RateChange { from, to, alpha } = *self;
        if from == to {
            write!(f, "rate stays {}", Rate(to as f64))?;
        } else {
            write!(f, "rate {} -> {}", Rate(from as f64), Rate(to as f64))?;
        }
        alpha.map_or(Ok(()), |alpha| write!(f, ", alpha {}", f64::from(alpha) / 1e3))
    }
}

/// Cause of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A sequence NAK from the peer.
    SequenceNak,
    /// A response that overtook a READ or ATOMIC response.
    ImpliedNak,
    /// No acknowledgement within the timeout.
    Timeout,
    /// An RNR NAK: the peer had no receive.
    Rnr,
    /// A selective acknowledgement asks for the packet.
    Selective,
    /// Selective repeat: no acknowledgement for a few round trips.
    Probe,
}

/// Cause of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxReason {
    /// A request; first transmission.
    New,
    /// A request; retransmission.
    Again {
        /// Cause of the retransmission.
        cause: Cause,
        /// Number of retries used so far; 0 if this retransmission costs none.
        attempt: u8,
        /// Number of retries allowed.
        of: u8,
    },
    /// A probe: asks for an acknowledgement that no request has asked for.
    Probe,
    /// A question to the peer: does it still have the connection?
    PeerProbe,
    /// A packet that finds out whether the peer answers probes.
    ProbeTest,
    /// A response or ACK.
    Answer,
    /// A NAK because of this check.
    Nak(Check),
    /// An RNR NAK, because no receive was posted.
    RnrNak,
    /// A selective acknowledgement: asks for some packets again.
    Asks {
        /// Number of packets that are asked for.
        missing: u8,
        /// Number of packets that the acknowledgement tells of.
        of: u8,
    },
    /// A response or ACK to a duplicate.
    AnswerAgain,
    /// A congestion notification: a packet from the peer was marked by a switch.
    Notification,
}

impl Verdict {
    /// True if the responder has failed, so that the QP enters the error state.
    pub(super) fn ends_connection(&self) -> bool {
        matches!(self, Verdict::Refused(_) | Verdict::ReceiveFailed(_))
    }

    /// True if the packet shows that the peer has the connection: a request that is due or was executed, or a response
    /// to what was sent.
    #[inline]
    pub fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Verdict::Executed
                | Verdict::Duplicate
                | Verdict::Early { .. }
                | Verdict::NotReady
                | Verdict::NoReceive
                | Verdict::Incomplete { .. }
                | Verdict::Acknowledged
                | Verdict::OldAck
                | Verdict::GoBack(_)
                | Verdict::Selective { .. }
                | Verdict::Stale
                | Verdict::Wait(_)
        )
    }

    /// True if the outcome is not worth a log message: the packet had its intended effect, or a notification was
    /// ignored.
    #[inline]
    pub fn is_routine(&self) -> bool {
        matches!(
            self,
            Verdict::Executed
                | Verdict::Acknowledged
                | Verdict::CnpIgnored
                | Verdict::AwaitsCopies { is_held: true }
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::SequenceNak => "sequence NAK",
            Cause::ImpliedNak => "implied NAK",
            Cause::Timeout => "timeout",
            Cause::Rnr => "RNR NAK",
            Cause::Selective => "selective acknowledgement",
            Cause::Probe => "silence",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Executed => f.write_str("executed"),
            Verdict::OutOfSequence { expected, nak: true } => {
                write!(f, "ahead of its turn: PSN {expected} is due; sequence NAK")
            }
            Verdict::OutOfSequence { expected, nak: false } => {
                write!(f, "ahead of its turn: PSN {expected} is due; silent, already asked for")
            }
            Verdict::Early { expected, is_placed: true } => {
                write!(f, "came early, kept: PSN {expected} is due")
            }
            Verdict::Early { expected, is_placed: false } => {
                write!(f, "came early, dropped and asked for again: PSN {expected} is due")
            }
            Verdict::Duplicate => f.write_str("duplicate: answered again, not executed again"),
            Verdict::DuplicateForgotten => f.write_str("duplicate whose saved result is gone: dropped"),
            Verdict::NotReady => f.write_str("no receive posted: RNR NAK"),
            Verdict::Refused(check) => write!(f, "refused: NAK {:?}: {check}; QP to error", check.nak()),
            Verdict::Acknowledged => f.write_str("acknowledges"),
            Verdict::OldAck => f.write_str("old acknowledgement"),
            Verdict::Ghost => f.write_str("ghost: acknowledges nothing that was sent; dropped"),
            Verdict::GoBack(Cause::Probe) => f.write_str("silence: probe with one packet"),
            Verdict::Selective { requested: asked, of } => write!(f, "asked for: {asked} of {of}"),
            Verdict::GoBack(cause) => write!(f, "{cause}: go back and send again"),
            Verdict::Stale => f.write_str("stale: already going back"),
            Verdict::Failed(status) => write!(f, "work request fails, QP to error: {status}"),
            Verdict::Wait(time) => write!(f, "receiver not ready: wait {time}"),
            Verdict::WrongState(state) => write!(f, "dropped: QP is in {state:?}"),
            Verdict::WrongSource => f.write_str("dropped: not the QP's peer"),
            Verdict::WrongService => f.write_str("dropped: not the QP's service"),
            Verdict::BadPkey(pkey) => write!(f, "dropped: P_Key {pkey:#06x}"),
            Verdict::Incomplete { expected } => {
                write!(f, "dropped: part of a message that lost a packet, PSN {expected} was due")
            }
            Verdict::NoReceive => f.write_str("dropped: no receive posted"),
            Verdict::Unsuitable(check) => write!(f, "dropped: {check}"),
            Verdict::ReceiveFailed(status) => write!(f, "receive fails, QP to error: {status}"),
            Verdict::BadQkey(qkey) => write!(f, "dropped: Q_Key {qkey:#010x} is not the QP's"),
            Verdict::AwaitsCopies { is_held: true } => f.write_str("set aside: the QP waits for copies"),
            Verdict::AwaitsCopies { is_held: false } => {
                f.write_str("dropped: the QP waits for copies, and too much waits")
            }
            Verdict::OwnMulticast => f.write_str("not to the sender itself"),
            Verdict::ReservedSyndrome(code) => write!(f, "dropped: reserved syndrome {code:#04x}"),
            Verdict::Cnp(change) => write!(f, "congestion notification: {change}"),
            Verdict::CnpIgnored => f.write_str("congestion notification, ignored"),
            Verdict::BadCnp => f.write_str("dropped: congestion notification without BECN or with a payload"),
        }
    }
}

impl fmt::Display for TxReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TxReason::New => f.write_str("request"),
            TxReason::Again { cause: Cause::Selective, .. } => f.write_str("asked for, sent again"),
            TxReason::Again { cause: Cause::Probe, .. } => f.write_str("probe: sent again after silence"),
            TxReason::Again { cause, attempt, of } => {
                write!(f, "retransmit after {cause}, try {attempt} of {of}")
            }
            TxReason::Probe => f.write_str("probe: asks for an acknowledgement"),
            TxReason::PeerProbe => f.write_str("question: has the peer the connection?"),
            TxReason::ProbeTest => f.write_str("question: does the peer answer probes?"),
            TxReason::Answer => f.write_str("answer"),
            TxReason::Nak(Check::PsnAhead) => f.write_str("asks for everything from this PSN again"),
            TxReason::Nak(check) => write!(f, "refuses: {check}; QP to error"),
            TxReason::RnrNak => f.write_str("no receive is posted: asks to come again later"),
            TxReason::Asks { missing, of } => write!(f, "asks for {missing} of {of}"),
            TxReason::AnswerAgain => f.write_str("answer to a duplicate"),
            TxReason::Notification => f.write_str("a switch marked what came: asks the peer to slow down"),
        }
    }
}
