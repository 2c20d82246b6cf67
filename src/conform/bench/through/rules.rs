//! What must hold for the packets that pass a wire, whatever is done to them.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    AgainFromTheGap,
    AgainFromTheOldest,
    WaitsAfterRnr,
    NakNamesTheGap,
    AnswersWhatArrived,
    MessagesOnce,
    AtomicsOnce,
    AddsOnce,
    Recovers,
}

/// Name, clause, what is asked, and the stimulus without which a rule is not tested.
pub(super) const RULES: [(Rule, &str, &str, &str, &str); 9] = [
    (
        Rule::AgainFromTheGap,
        "again_from_the_gap",
        "9.9.2.4.2",
        "behind a sequence NAK the requester sends again from the PSN of the NAK",
        "a sequence NAK that arrives",
    ),
    (
        Rule::AgainFromTheOldest,
        "again_from_the_oldest",
        "9.9.2.4",
        "a requester that sends again leaves out no request that is not acknowledged",
        "a request that is sent again",
    ),
    (
        Rule::WaitsAfterRnr,
        "waits_after_rnr",
        "9.7.5.2.8",
        "behind an RNR NAK the requester waits for the time of the NAK at least",
        "an RNR NAK that arrives",
    ),
    (
        Rule::NakNamesTheGap,
        "nak_names_the_gap",
        "9.7.5.2.8",
        "a sequence NAK names the first PSN that has not arrived",
        "a sequence NAK",
    ),
    (
        Rule::AnswersWhatArrived,
        "answers_what_arrived",
        "9.7.5.1",
        "a responder acknowledges and answers no request that has not arrived in order",
        "an acknowledgement or a response",
    ),
    (
        Rule::MessagesOnce,
        "messages_once",
        "9.7.5.1",
        "the message sequence number counts each message that has arrived once",
        "an acknowledgement of a connection that the wire has seen from its begin",
    ),
    (
        Rule::AtomicsOnce,
        "atomics_are_answered_alike",
        "9.4.5",
        "a repeated atomic is answered by the value that it found when it was executed",
        "an atomic that is answered twice",
    ),
    (
        Rule::AddsOnce,
        "adds_once",
        "9.4.5",
        "each FETCH_ADD finds the sum of those before it: each is executed once",
        "two answers to FETCH_ADDs of one queue pair at one address",
    ),
    (
        Rule::Recovers,
        "recovers",
        "9.7.5",
        "every request is acknowledged in the end, whatever was lost",
        "a connection",
    ),
];

/// What was seen of each rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    kept: [u64; RULES.len()],
    broken: [u64; RULES.len()],
    first: [Option<String>; RULES.len()],
    /// Times that a requester went back.
    pub(super) again: u64,
    /// Sequence NAKs.
    pub(super) naks: u64,
}

impl Tally {
    pub(super) fn kept(&mut self, rule: Rule) {
        self.kept[rule as usize] += 1;
    }

    pub(super) fn judge(&mut self, rule: Rule, holds: bool, otherwise: impl FnOnce() -> String) {
        if holds {
            return self.kept(rule);
        }
        self.broken[rule as usize] += 1;
        self.first[rule as usize].get_or_insert_with(otherwise);
    }

    /// Returns how often a rule was kept and broken, and how first.
    pub(super) fn of(&self, rule: Rule) -> (u64, u64, &str) {
        let at = rule as usize;
        (self.kept[at], self.broken[at], self.first[at].as_deref().unwrap_or_default())
    }
}
