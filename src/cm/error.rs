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
        /// What was called.
        call: &'static str,
        /// Of what.
        id: CommId,
    },
    /// The call does not belong in the connection's state.
    #[error("{call}: connection {id} is in state {state:?}, where this cannot be done")]
    State {
        /// What was called.
        call: &'static str,
        /// Of what.
        id: CommId,
        /// Where it is.
        state: State,
    },
    /// More private data than the message has room for.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// A bound is reached.
    #[error("{limit} {what} are open, which is the limit; close some, or raise the limit")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u32,
    },
    /// Somebody listens there already.
    #[error("service ID {service} is listened to already on {on:?}")]
    InUse {
        /// Where.
        service: ServiceId,
        /// On which addresses.
        on: ListenOn,
    },
    /// A value that cannot be sent.
    #[error("{what} = {value} is out of range, allowed: 0..={largest}")]
    Value {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: u64,
        /// What may be given at most.
        largest: u64,
    },
}
