//! The checks of a request, by what it is refused for.
//!
//! The order in which they are made is [`super::responder`]'s. A request that fails one is refused with the NAK that
//! [`Check::nak`] gives (IBTA 9.7.4.1, 9.9.3); a service without acknowledgements drops it for the same reason.
//! Those that a packet and the message under way decide are here; keys are [`super::memory`]'s.

use std::fmt;

use super::Qp;
use super::memory::Refusal;
use super::message::Message;
use crate::limits::MAX_MESSAGE;
use crate::verbs::Access;
use crate::wire::{NakCode, Operation, Packet, Position, Reth};

/// A check that a request did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It is ahead of its turn: another PSN is due.
    Turn,
    /// MIDDLE or LAST, and no message is under way.
    NotBegun,
    /// A message is under way, and it does not go on with that.
    MidMessage,
    /// Its payload and pad are no multiple of 4 bytes. Dropped on either side and by every service.
    Padding,
    /// Its payload does not fit its place in the message, or the path MTU.
    PacketLength,
    /// The payload of a WRITE is not what its RETH says.
    MessageLength,
    /// Its RETH says more than 2^31 bytes.
    TooLong,
    /// Nothing here serves its opcode.
    Opcode,
    /// The access flags of the QP.
    NotEnabled,
    /// An atomic elsewhere than at a multiple of 8 bytes.
    Alignment,
    /// READs and atomics outstanding beyond `max_dest_rd_atomic`.
    Resources,
    /// A FLUSH of a kind that there is not.
    Placement,
    /// A message longer than the receive that it takes.
    ReceiveLength,
    /// XRC: no shared receive queue of the domain has its number.
    NoSuchQueue,
    /// XRC: another shared receive queue than its message began with.
    OtherQueue,
    /// Nothing has this key.
    UnknownKey,
    /// The key belongs to another protection domain.
    OtherDomain,
    /// The key is a window of another QP.
    OtherQp,
    /// The bytes are not all in what the key opens.
    Bounds,
    /// The key does not grant this.
    Rights,
    /// The key is of a kind that no peer may invalidate, or has windows bound to it.
    NotToInvalidate,
    /// A READ's memory went away before all of its answer had left.
    Gone,
    /// Memory on demand had no page there.
    NoPage,
    /// The receive that it takes names memory that is not to be written.
    ReceiveProtection,
    /// The receive that it takes names memory on demand, which had no page there.
    ReceiveNoPage,
}

impl Check {
    /// The NAK that refuses what fails it.
    pub fn nak(self) -> NakCode {
        use Check as C;
        match self {
            C::Turn => NakCode::PsnSequence,
            //= IBTA 9.7.5.2: invalid-request-is-nakd-and-ends
            C::NotBegun | C::MidMessage | C::PacketLength | C::MessageLength | C::TooLong => {
                NakCode::InvalidRequest
            }
            C::Opcode | C::NotEnabled | C::Alignment | C::Resources | C::Placement | C::ReceiveLength => {
                NakCode::InvalidRequest
            }
            C::NoSuchQueue | C::OtherQueue | C::Padding => NakCode::InvalidRequest,
            //= IBTA 9.7.5.2.4: access-error-is-nakd-and-ends
            C::UnknownKey | C::OtherDomain | C::OtherQp | C::Bounds | C::Rights | C::NotToInvalidate => {
                NakCode::RemoteAccess
            }
            C::Gone | C::NoPage => NakCode::RemoteAccess,
            C::ReceiveProtection | C::ReceiveNoPage => NakCode::RemoteOperational,
        }
    }
}

impl From<Refusal> for Check {
    fn from(refusal: Refusal) -> Check {
        match refusal {
            Refusal::UnknownKey => Check::UnknownKey,
            Refusal::OtherPd => Check::OtherDomain,
            Refusal::OtherQp => Check::OtherQp,
            Refusal::OutOfBounds => Check::Bounds,
            Refusal::AccessDenied => Check::Rights,
            Refusal::WrongState | Refusal::WrongKind | Refusal::WindowsBound(_) => Check::NotToInvalidate,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Turn => "ahead of its turn",
            Check::NotBegun => "goes on with a message that has not begun",
            Check::MidMessage => "does not go on with the message under way",
            Check::Padding => "payload and pad are no multiple of 4 bytes",
            Check::PacketLength => "payload does not fit its place in the message or the path MTU",
            Check::MessageLength => "payload is not as long as its RETH said",
            Check::TooLong => "longer than 2^31 bytes",
            Check::Opcode => "opcode is not served",
            Check::NotEnabled => "the QP's access flags forbid it",
            Check::Alignment => "address is no multiple of 8",
            Check::Resources => "more READs and atomics outstanding than agreed",
            Check::Placement => "asks for no FLUSH that there is",
            Check::ReceiveLength => "message is longer than the receive",
            Check::NoSuchQueue => "names no shared receive queue of the domain",
            Check::OtherQueue => "names another shared receive queue than its message began with",
            Check::UnknownKey => "key unknown",
            Check::OtherDomain => "key of another protection domain",
            Check::OtherQp => "key of another QP's window",
            Check::Bounds => "bytes outside of what the key opens",
            Check::Rights => "the key does not grant this",
            Check::NotToInvalidate => "the key is not for a peer to invalidate",
            Check::Gone => "memory went away before the answer had left",
            Check::NoPage => "memory has no page there",
            Check::ReceiveProtection => "the receive names memory that is not to be written",
            Check::ReceiveNoPage => "the receive's memory has no page there",
        })
    }
}

impl Qp {
    /// FIRST and ONLY start a message, MIDDLE and LAST go on with one of the same kind.
    pub(super) fn check_sequence(&self, packet: &Packet) -> Result<(), Check> {
        let info = packet.info();
        let goes_on = matches!(info.position, Position::Middle | Position::Last);
        let fits = match self.responder.message {
            //= IBTA 9.7.4.1: message-begins-with-first-or-only
            Message::None => !goes_on,
            //= IBTA 9.7.4.1: message-is-not-interrupted
            Message::Send { .. } => goes_on && info.operation == Operation::Send,
            Message::Write { .. } => goes_on && info.operation == Operation::Write,
        };
        if fits { Ok(()) } else { Err(self.responder.out_of_order()) }
    }

    pub(super) fn check_length(&self, packet: &Packet) -> Result<(), Check> {
        let mtu = self.attributes().path_mtu.bytes();
        let length = packet.payload.len();
        let fits = match (packet.info().operation, packet.info().position) {
            //= IBTA 9.7.4.1.6: first-and-middle-are-full
            (Operation::Send | Operation::Write, Position::First | Position::Middle) => length == mtu,
            //= IBTA 9.7.4.1.6: last-is-not-empty
            (Operation::Send | Operation::Write, Position::Last) => (1..=mtu).contains(&length),
            //= IBTA 9.7.4.1.6: only-fits-the-path-mtu
            (Operation::Send | Operation::Write, Position::Only) => length <= mtu,
            (Operation::AtomicWrite, _) => length == 8,
            //= IBTA 9.7.4.1.6: read-and-atomic-requests-are-empty
            _ => length == 0,
        };
        if fits { Ok(()) } else { Err(Check::PacketLength) }
    }

    /// What the QP's peer may ask for at all.
    pub(super) fn check_allowed(&self, needed: Access, reth: &Reth) -> Result<(), Check> {
        //= IBTA 9.7.4.1: operation-is-enabled
        if !self.attributes().access.contains(needed) {
            return Err(Check::NotEnabled);
        }
        //= IBTA 9.7.4.1.6: reth-is-2-to-the-31-at-most
        if reth.dma_len > MAX_MESSAGE { Err(Check::TooLong) } else { Ok(()) }
    }
}
