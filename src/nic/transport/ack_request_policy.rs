//! When unsignaled messages ask for an acknowledgement.

use roxie_base::named;

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

named!(AckRequestPolicy: "always" => Always, "shown" => Shown, "late" => Late);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for (name, value) in AckRequestPolicy::NAMES {
            assert_eq!((name.parse(), value.to_string().as_str()), (Ok(*value), *name));
        }
        assert!("never".parse::<AckRequestPolicy>().unwrap_err().to_string().contains("shown"));
    }
}
