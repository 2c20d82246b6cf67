//! When unsignaled messages ask for an acknowledgement.

use std::fmt;
use std::str::FromStr;

/// When an unsignaled message of an RC QP asks for an acknowledgement (the AckReq bit, IBTA 9.7.3). A signaled message
/// always asks.
///
/// A QP whose messages ask late relies on the peer's answer to a probe: a SEND ONLY of no bytes whose PSN is
/// acknowledged already. Every responder has to acknowledge such a duplicate (IBTA 9.7.5.1.2). No adapter is known to
/// have been asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckRequestPolicy {
    /// At its end, as ConnectX and rdma_rxe do.
    Always,
    /// At its end, until the peer has answered two probes in a row; then late.
    #[default]
    Shown,
    /// Late: a later message or a probe asks for it. The peer is known to answer probes.
    Late,
}

impl AckRequestPolicy {
    /// Names of all values.
    pub const NAMES: [(&str, AckRequestPolicy); 3] = [
        ("always", AckRequestPolicy::Always),
        ("shown", AckRequestPolicy::Shown),
        ("late", AckRequestPolicy::Late),
    ];
}

impl fmt::Display for AckRequestPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = AckRequestPolicy::NAMES.iter().find(|(_, value)| value == self);
        f.pad(named.map_or("", |(name, _)| name))
    }
}

/// A name that is none of an [`AckRequestPolicy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAckRequestPolicy(String);

impl fmt::Display for UnknownAckRequestPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of always, shown and late", self.0)
    }
}

impl std::error::Error for UnknownAckRequestPolicy {}

impl FromStr for AckRequestPolicy {
    type Err = UnknownAckRequestPolicy;

    fn from_str(text: &str) -> Result<AckRequestPolicy, UnknownAckRequestPolicy> {
        let named = AckRequestPolicy::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, value)| *value).ok_or_else(|| UnknownAckRequestPolicy(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for (name, value) in AckRequestPolicy::NAMES {
            assert_eq!((name.parse(), value.to_string().as_str()), (Ok(value), name));
        }
        assert!("never".parse::<AckRequestPolicy>().unwrap_err().to_string().contains("shown"));
    }
}
