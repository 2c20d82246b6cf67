//! Errors of the manager's calls.

use roxie_wire::ServiceId;
use roxie_wire::cm::{CommId, TooLong};

use super::{ConnectionState, ListenOn};

/// Reason why a call was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection has ended or never existed.
    #[error("{call}: no connection {id}: it has ended (see its last event) or never existed")]
    Unknown {
        /// Name of the call.
        call: &'static str,
        /// The connection that was given.
        id: CommId,
    },
    /// The call is not allowed in the connection's state.
    #[error("{call}: connection {id} is in state {state:?}, where this cannot be done")]
    State {
        /// Name of the call.
        call: &'static str,
        /// The connection that was given.
        id: CommId,
        /// State of the connection.
        state: ConnectionState,
    },
    /// The private data is too long for the message.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// A limit is reached.
    #[error("{limit} {what} are open, which is the limit; close some, or raise the limit")]
    Full {
        /// Kind of object: connections or listeners.
        what: &'static str,
        /// The limit ([`roxie_base::limits::CmLimits`]).
        limit: u32,
    },
    /// Another listener has this service and address.
    #[error("service ID {service} is listened to already on {on:?}")]
    InUse {
        /// The service ID.
        service: ServiceId,
        /// The address or addresses.
        on: ListenOn,
    },
    /// A value is out of range.
    #[error("{what} = {value} is out of range, allowed: 0..={largest}")]
    Value {
        /// Name of the parameter.
        what: &'static str,
        /// The value that was given.
        value: u64,
        /// The largest allowed value.
        largest: u64,
    },
}
