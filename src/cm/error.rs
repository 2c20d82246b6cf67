//! Why a call was refused.

use crate::wire::ServiceId;
use crate::wire::cm::{CommId, TooLong};

use super::{ListenOn, State};

/// Why a call was refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The connection is over, or never was.
    #[error("{call}: there is no connection {id}; it ended, as an event said, or never was")]
    Unknown {
        /// The manager's call, by its name in this API.
        call: &'static str,
        /// The connection that it was made on.
        id: CommId,
    },
    /// The call does not belong in the connection's state.
    #[error("{call}: connection {id} is in state {state:?}, where this cannot be done")]
    State {
        /// The manager's call, by its name in this API.
        call: &'static str,
        /// The connection that it was made on.
        id: CommId,
        /// The state that the connection is in.
        state: State,
    },
    /// More private data than the message has room for.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// A bound is reached.
    #[error("{limit} {what} are open, which is the limit; close some, or raise the limit")]
    Full {
        /// What there is too much of: connections, listeners.
        what: &'static str,
        /// How many of them there may be ([`crate::limits::CmLimits`]).
        limit: u32,
    },
    /// Somebody listens there already.
    #[error("service ID {service} is listened to already on {on:?}")]
    InUse {
        /// The service identifier that is taken.
        service: ServiceId,
        /// The addresses on which it is listened for already.
        on: ListenOn,
    },
    /// A value that cannot be sent.
    #[error("{what} = {value} is out of range, allowed: 0..={largest}")]
    Value {
        /// The parameter, by its name in the message.
        what: &'static str,
        /// What was given, out of its field's range.
        value: u64,
        /// What may be given at most.
        largest: u64,
    },
}
