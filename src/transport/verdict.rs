//! Why: what became of a packet that arrived, and why one leaves. Captures and logs print these.

use std::fmt;

use super::check::Check;
use crate::congestion::Rate;
use crate::time::Nanos;
use crate::verbs::{QpState, WcStatus};
use crate::wire::Psn;

/// What a QP did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A request in its turn; executed.
    Executed,
    /// A request ahead of its turn; `nak`: a sequence NAK answers it, else silence until back in order.
    OutOfSequence {
        /// The PSN that is due.
        expected: Psn,
        /// A NAK was queued.
        nak: bool,
    },
    /// A request seen before; answered again, its memory effect not repeated.
    Duplicate,
    /// A request seen before whose answer is gone.
    DuplicateForgotten,
    /// No receive is posted: RNR NAK.
    NotReady,
    /// A request that is refused for this; the QP is in the error state.
    Refused(Check),
    /// A response that moves the requester on.
    Acknowledged,
    /// A response that says nothing new.
    OldAck,
    /// A response to nothing.
    Ghost,
    /// A response after which the requester goes back.
    GoBack(Cause),
    /// A response that was due to a request sent before the last going back.
    Stale,
    /// A response that ends the connection.
    Failed(WcStatus),
    /// The peer asked to wait.
    Wait(Nanos),
    /// The QP takes no packets in this state.
    WrongState(QpState),
    /// Not from the QP's peer, or not to its address.
    WrongSource,
    /// Another service's opcode.
    WrongService,
    /// A foreign partition.
    BadPkey(u16),
    /// Part of a message that lost a packet; dropped in silence.
    Incomplete {
        /// The PSN that would have gone on with it.
        expected: Psn,
    },
    /// No receive is posted, and nobody is told.
    NoReceive,
    /// A request of a service without acknowledgements that is not allowed for this; nobody is told.
    Unsuitable(Check),
    /// The receive cannot hold the message; the QP is in the error state.
    ReceiveFailed(WcStatus),
    /// A datagram with another key than the QP's.
    BadQkey(u32),
    /// What the QP itself sent to a group.
    OwnMulticast,
    /// A reserved AETH syndrome.
    ReservedSyndrome(u8),
    /// A congestion notification that the QP heeds.
    Cnp(RateChange),
    /// One that it does not: nothing that it sent can have caused it, or it has no reaction point.
    CnpIgnored,
    /// One that notifies of nothing, or is too long.
    BadCnp,
}

/// What a notification or an acknowledgement did to the rate of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Bits per second before.
    pub from: u64,
    /// The rate after it, in bits per second.
    pub to: u64,
    /// DCQCN's alpha then, in thousandths.
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

/// Why the requester goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer's sequence NAK.
    SequenceNak,
    /// A response overtook a READ or ATOMIC response.
    ImpliedNak,
    /// No answer in time.
    Timeout,
    /// The peer had no receive.
    Rnr,
}

/// Why a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxReason {
    /// A request, for the first time.
    New,
    /// A request, again.
    Again {
        /// What made it leave again.
        cause: Cause,
        /// Retries used up so far: 0 if this going back costs none.
        attempt: u8,
        /// How many there are.
        of: u8,
    },
    /// An answer.
    Answer,
    /// An answer that says no, for this.
    Nak(Check),
    /// There was no receive.
    RnrNak,
    /// An answer, again.
    AnswerAgain,
    /// A packet of the peer's came marked by a switch.
    Notification,
}

impl Verdict {
    /// True if there is nothing to tell: the packet did what it was sent for.
    #[inline]
    pub fn is_routine(&self) -> bool {
        matches!(self, Verdict::Executed | Verdict::Acknowledged | Verdict::CnpIgnored)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::SequenceNak => "sequence NAK",
            Cause::ImpliedNak => "implied NAK",
            Cause::Timeout => "timeout",
            Cause::Rnr => "RNR NAK",
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
            Verdict::Duplicate => f.write_str("duplicate: answered again, not executed again"),
            Verdict::DuplicateForgotten => f.write_str("duplicate whose saved result is gone: dropped"),
            Verdict::NotReady => f.write_str("no receive posted: RNR NAK"),
            Verdict::Refused(check) => write!(f, "refused: NAK {:?}: {check}; QP to error", check.nak()),
            Verdict::Acknowledged => f.write_str("acknowledges"),
            Verdict::OldAck => f.write_str("old acknowledgement"),
            Verdict::Ghost => f.write_str("ghost: acknowledges nothing that was sent; dropped"),
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
            TxReason::Again { cause, attempt, of } => {
                write!(f, "retransmit after {cause}, try {attempt} of {of}")
            }
            TxReason::Answer => f.write_str("answer"),
            TxReason::Nak(Check::Turn) => f.write_str("asks for everything from this PSN again"),
            TxReason::Nak(check) => write!(f, "refuses: {check}; QP to error"),
            TxReason::RnrNak => f.write_str("no receive is posted: asks to come again later"),
            TxReason::AnswerAgain => f.write_str("answer to a duplicate"),
            TxReason::Notification => f.write_str("a switch marked what came: asks the peer to slow down"),
        }
    }
}
