//! The table of checks, by chapter. Each script reads as the rule does: what is sent, what must come, what must not
//! have happened.
//!
//! Packets are expected in words: `ACK+0 msn 1` is an acknowledgement of the PSN 0 after the first, with the message
//! sequence number 1.

use crate::bench::Pair;
use crate::check::{Check, Need};
use crate::packet::Craft;
use roxie_wire::Opcode;

mod congestion;
mod connection;
mod connections;
mod established;
mod headers;
mod psn;
mod reads;
mod requester;
mod requester_answers;
mod requester_timers;
mod rights;
mod rnr;
mod sequence;
mod states;
mod uc;
mod ud;
mod xrc;

/// Returns all checks, in the order of the specification.
pub fn all() -> Vec<Check> {
    [
        headers::checks(),
        psn::checks(),
        sequence::checks(),
        rights::checks(),
        reads::checks(),
        rnr::checks(),
        requester::checks(),
        requester_answers::checks(),
        requester_timers::checks(),
        uc::checks(),
        ud::checks(),
        xrc::checks(),
        congestion::checks(),
        states::checks(),
        connections::checks(),
        established::checks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A kind of RC request of one packet, for rules that apply to each.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Name in those of checks.
    pub(crate) name: &'static str,
    /// The device must have it.
    pub(crate) need: Option<Need>,
    /// Returns a valid request with the next PSN.
    pub(crate) craft: fn(&Pair) -> Craft,
    /// The answer, without PSN: `ACK` or the opcode's name, and what follows.
    answer: (&'static str, &'static str),
    /// Number of receives that the request takes.
    pub(crate) receives: usize,
}

impl Kind {
    /// Returns the answer to the request `ahead` PSNs behind the first, as message `msn`.
    pub(crate) fn answered(&self, ahead: i32, msn: u32) -> String {
        let (name, rest) = self.answer;
        if rest.is_empty() { format!("{name}{ahead:+} msn {msn}") } else { format!("{name}{ahead:+} {rest}") }
    }
}

/// Offset of the bytes that these requests name.
pub(crate) const AT: u64 = 1024;

/// Every kind of RC request of one packet.
pub(crate) const KINDS: [Kind; 7] = [
    Kind {
        name: "send_only",
        need: None,
        craft: |rc| rc.send_only(b"sixteen bytes..."),
        answer: ("ACK", ""),
        receives: 1,
    },
    Kind {
        name: "send_only_imm",
        need: None,
        craft: |rc| rc.request(Opcode::RC_SEND_ONLY_IMM).word(0xaabb_ccdd).data(b"sixteen bytes...").ack(),
        answer: ("ACK", ""),
        receives: 1,
    },
    Kind {
        name: "write_only",
        need: None,
        craft: |rc| rc.write_only(AT, b"sixteen bytes..."),
        answer: ("ACK", ""),
        receives: 0,
    },
    Kind {
        name: "write_only_imm",
        need: None,
        craft: |rc| {
            let request = rc.request(Opcode::RC_WRITE_ONLY_IMM).reth(rc.region.addr + AT, rc.region.rkey, 16);
            request.word(0xaabb_ccdd).data(b"sixteen bytes...").ack()
        },
        answer: ("ACK", ""),
        receives: 1,
    },
    Kind {
        name: "read_request",
        need: None,
        craft: |rc| rc.read(AT, 16),
        answer: ("READ_RESPONSE_ONLY", "len 16"),
        receives: 0,
    },
    Kind {
        name: "compare_swap",
        need: Some(Need::Atomics),
        craft: |rc| {
            rc.request(Opcode::RC_COMPARE_SWAP).atomic(rc.region.addr + AT, rc.region.rkey, 0x1234, 0).ack()
        },
        answer: ("ATOMIC_ACKNOWLEDGE", ""),
        receives: 0,
    },
    Kind {
        name: "fetch_add",
        need: Some(Need::Atomics),
        craft: |rc| {
            rc.request(Opcode::RC_FETCH_ADD).atomic(rc.region.addr + AT, rc.region.rkey, 0x1234, 0).ack()
        },
        answer: ("ATOMIC_ACKNOWLEDGE", ""),
        receives: 0,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_checks_are_unique() {
        let checks = all();
        let names: BTreeSet<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names.len(), checks.len());
        assert!(checks.len() >= 150, "{} checks", checks.len());
    }

    #[test]
    fn each_check_names_stimulus_and_clause() {
        for check in all() {
            assert!(!check.clause.is_empty() && !check.asks.is_empty(), "{}", check.name);
            assert!(check.stimulus.len() > 10 && check.asks.len() > 10, "{}", check.name);
        }
    }

    #[test]
    fn short_subset_covers_every_service() {
        let short: Vec<Check> = all().into_iter().filter(|check| check.is_short).collect();
        let services: BTreeSet<String> = short.iter().map(|check| format!("{:?}", check.service)).collect();
        assert_eq!(services.len(), 4);
        assert!((10..=60).contains(&short.len()), "{} checks", short.len());
    }
}
