//! The checks of a request, named for the reason of refusal.
//!
//! [`super::responder`] defines their order. A request that fails a check is refused with the NAK of [`Check::nak`]
//! (IBTA 9.7.4.1, 9.9.3). Services without acknowledgements drop it.
//!
//! The checks of a packet against the current message are implemented here, the checks of keys in [`super::memory`].

use std::fmt;

use super::QpContext;
use super::memory::Refusal;
use super::rules::length_fits;
use crate::verbs::Access;
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::{NakCode, Operation, Packet, Position, Reth};

/// A check that a request has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The PSN is ahead of the expected one.
    PsnAhead,
    /// MIDDLE or LAST without a message in progress.
    NotBegun,
    /// The packet does not continue the message in progress.
    MidMessage,
    /// Payload and pad are not a multiple of 4 bytes. Requests and responses of every service are then dropped.
    Padding,
    /// The payload length does not match the packet's position in the message, or exceeds the path MTU.
    PacketLength,
    /// The payload of a WRITE differs in length from its RETH.
    MessageLength,
    /// The RETH asks for more than 2^31 bytes.
    TooLong,
    /// The opcode is not supported.
    Opcode,
    /// The QP's access flags do not allow the operation.
    NotEnabled,
    /// The address of an atomic is not a multiple of 8 bytes.
    Alignment,
    /// More READs and atomics outstanding than `max_dest_rd_atomic`.
    Resources,
    /// The FLUSH asks for an unknown placement or selectivity.
    Placement,
    /// The message is longer than its receive.
    ReceiveLength,
    /// XRC: the domain has no shared receive queue with this number.
    NoSuchQueue,
    /// XRC: the packet names another shared receive queue than the first one of its message.
    OtherQueue,
    /// The key is unknown.
    UnknownKey,
    /// The key belongs to another protection domain.
    OtherDomain,
    /// The key belongs to a window that is bound to another QP.
    OtherQp,
    /// Some of the bytes are outside of the memory that the key grants.
    Bounds,
    /// The key does not grant this kind of access.
    Rights,
    /// The key must not be invalidated by a peer, or windows are bound to its region.
    NotToInvalidate,
    /// The memory of a READ was deregistered before its response was complete.
    Gone,
    /// Application memory had no page at the address.
    NoPage,
    /// The receive names memory that is not writable.
    ReceiveProtection,
    /// The receive names application memory that had no page at the address.
    ReceiveNoPage,
}

impl Check {
    /// Returns the NAK code that refuses a request for this reason.
    pub fn nak(self) -> NakCode {
        use Check as C;
        match self {
            C::PsnAhead => NakCode::PsnSequence,
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
            Check::PsnAhead => "ahead of its turn",
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

impl QpContext {
    pub(super) fn check_length(&self, packet: &Packet) -> Result<(), Check> {
        let mtu = self.mtu();
        let length = packet.payload.len();
        let fits = match (packet.info().operation, packet.info().position) {
            //= IBTA 9.7.4.1.6: last-is-not-empty
            (Operation::Send | Operation::Write, Position::Last) if length == 0 => false,
            (Operation::Send | Operation::Write, position) => length_fits(length, mtu, position.ends()),
            (Operation::AtomicWrite, _) => length == 8,
            //= IBTA 9.7.4.1.6: read-and-atomic-requests-are-empty
            _ => length == 0,
        };
        if fits { Ok(()) } else { Err(Check::PacketLength) }
    }

    /// Checks the QP's access flags, and the length in the RETH.
    pub(super) fn check_allowed(&self, needed: Access, reth: &Reth) -> Result<(), Check> {
        //= IBTA 9.7.4.1: operation-is-enabled
        if !self.attributes().access.contains(needed) {
            return Err(Check::NotEnabled);
        }
        //= IBTA 9.7.4.1.6: reth-is-2-to-the-31-at-most
        if reth.dma_len > MAX_MESSAGE { Err(Check::TooLong) } else { Ok(()) }
    }
}
