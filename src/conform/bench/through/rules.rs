//! Rules for the packets of a reliable connection, whatever is lost, repeated or reordered on their way.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

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
    LengthsFit,
    OpcodesInOrder,
    AgainAlike,
    NakOnce,
    ResponsesFit,
    BeginsAsAgreed,
    NotificationForm,
}

/// Name, clause, what is asked, and the stimulus without which a rule is not tested.
pub(super) const RULES: [(Rule, &str, &str, &str, &str); 16] = [
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
    (
        Rule::LengthsFit,
        "lengths_fit",
        "9.7.4.1.6",
        "FIRST and MIDDLE packets have the length of the path MTU, a LAST has a byte or more, none is longer",
        "a packet with payload",
    ),
    (
        Rule::OpcodesInOrder,
        "opcodes_in_order",
        "9.7.4.1.2",
        "behind a FIRST or MIDDLE comes a MIDDLE or LAST of its operation, behind others a FIRST or ONLY",
        "two requests with successive PSNs",
    ),
    (
        Rule::AgainAlike,
        "again_alike",
        "9.9.2.4",
        "a request that is sent again has the operation and the position that it had",
        "a request that is sent again",
    ),
    (
        Rule::NakOnce,
        "nak_once",
        "9.7.5.2",
        "a responder sends one sequence NAK, and the next one after the request that it asked for",
        "a sequence NAK",
    ),
    (
        Rule::ResponsesFit,
        "read_responses_fit",
        "9.7.5.1",
        "each READ response has the position and the length that its PSN has in the request",
        "a READ response whose request and path MTU are known",
    ),
    (
        Rule::BeginsAsAgreed,
        "begins_as_agreed",
        "12.7.31",
        "the first request of a connection has the PSN that the peer's message of the connection manager asks for",
        "a connection that the connection manager makes",
    ),
    (
        Rule::NotificationForm,
        "notification_form",
        "A17.9.3",
        "a congestion notification has BECN and 16 bytes behind the BTH, and asks for no acknowledgement",
        "a congestion notification",
    ),
];

/// Number of findings of a rule that are kept.
const MOST_FINDINGS: usize = 16;

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Address of the end that broke the rule.
    pub side: IpAddr,
    /// Numbers of the frames that show it, in their order.
    pub frames: Vec<u64>,
    /// The packets, with the numbers.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames: Vec<_> = self.frames.iter().map(u64::to_string).collect();
        write!(f, "{}, frame {}: {}", self.side, frames.join(" and "), self.why)
    }
}

/// The packet that is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// Number of its frame.
    pub(super) frame: u64,
    pub(super) sender: IpAddr,
    /// True if the host that captured the packet has sent it.
    pub(super) is_own: bool,
}

/// Counts and findings of each rule.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) scene: Scene,
    rules: [Ruling; RULES.len()],
    /// Times that a requester went back.
    pub(super) again: u64,
    /// Sequence NAKs.
    pub(super) naks: u64,
}

/// A rule, and what was seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ruling {
    /// Name of the rule.
    pub rule: &'static str,
    /// Clause of the specification.
    pub clause: &'static str,
    /// The rule.
    pub asks: &'static str,
    /// Number of times that it was kept, and broken.
    pub kept: u64,
    /// See `kept`.
    pub broken: u64,
    /// The first breaches.
    pub findings: Vec<Finding>,
    /// Number of times that the packets did not decide, and why at first.
    pub undecided: u64,
    /// See `undecided`.
    pub why_undecided: String,
}

impl Default for Tally {
    fn default() -> Tally {
        let scene = Scene { frame: 0, sender: Ipv4Addr::UNSPECIFIED.into(), is_own: false };
        let rules = RULES.map(|(_, rule, clause, asks, _)| Ruling {
            rule,
            clause,
            asks,
            kept: 0,
            broken: 0,
            findings: Vec::new(),
            undecided: 0,
            why_undecided: String::new(),
        });
        Tally { scene, rules, again: 0, naks: 0 }
    }
}

impl Tally {
    pub(super) fn kept(&mut self, rule: Rule) {
        self.rules[rule as usize].kept += 1;
    }

    pub(super) fn judge(&mut self, rule: Rule, holds: bool, otherwise: impl FnOnce() -> String) {
        self.judge_by(rule, holds, None, otherwise);
    }

    /// Judges the packet by an earlier one, in frame `cause`.
    pub(super) fn judge_by(
        &mut self,
        rule: Rule,
        holds: bool,
        cause: Option<u64>,
        otherwise: impl FnOnce() -> String,
    ) {
        if holds {
            return self.kept(rule);
        }
        let Scene { frame, sender, .. } = self.scene;
        let ruling = &mut self.rules[rule as usize];
        ruling.broken += 1;
        if ruling.findings.len() < MOST_FINDINGS {
            let frames = cause.into_iter().chain([frame]).collect();
            ruling.findings.push(Finding { side: sender, frames, why: otherwise() });
        }
    }

    pub(super) fn undecided(&mut self, rule: Rule, why: impl FnOnce() -> String) {
        let ruling = &mut self.rules[rule as usize];
        ruling.undecided += 1;
        if ruling.undecided == 1 {
            ruling.why_undecided = why();
        }
    }

    /// Returns the rulings, in the order of [`RULES`].
    pub(super) fn rulings(&self) -> &[Ruling] {
        &self.rules
    }

    pub(super) fn of(&self, rule: Rule) -> &Ruling {
        &self.rules[rule as usize]
    }
}
