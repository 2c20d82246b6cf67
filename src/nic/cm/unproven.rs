//! Messages to addresses that have not shown that they receive any.
//!
//! A request names any address as its source, and the host there may never have sent one. An accepted request therefore
//! causes a bounded number of messages: the REP, one repetition, and the REJ that ends the wait. An address proves
//! itself by a message that names our communication ID, which only a receiver of our messages knows.

use std::collections::{BTreeSet, VecDeque};

use roxie_wire::Gid;

use super::connection::Connection;
use super::manager::Manager;

/// Number of addresses that are remembered, the newest ones.
const ADDRESSES: usize = 4096;

/// Addresses that have completed a handshake.
#[derive(Debug, Default)]
pub(super) struct ProvenAddresses {
    known: BTreeSet<Gid>,
    by_age: VecDeque<Gid>,
}

impl ProvenAddresses {
    pub(super) fn add(&mut self, address: Gid) {
        if !self.known.insert(address) {
            return;
        }
        self.by_age.push_back(address);
        if self.by_age.len() > ADDRESSES
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        let (known, in_order) = (self.known.len(), self.by_age.len());
        invariant!(known == in_order, "{known} addresses are known, and {in_order} by age");
    }
}

impl Manager {
    /// Returns the number of messages that a request from `address` may cause. `None`: unlimited.
    pub(super) fn message_budget(&self, address: Gid) -> Option<u8> {
        (!self.proven.known.contains(&address)).then_some(self.config.unproven_messages)
    }
}

impl Connection {
    /// Counts a message to the peer. Returns false if it must not be sent.
    pub(super) fn may_send(&mut self) -> bool {
        match &mut self.budget {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// True if the peer's silence ends the setup: the only message left is the REJ.
    pub(super) fn has_last_message(&self) -> bool {
        self.budget.is_some_and(|left| left <= 1)
    }
}
