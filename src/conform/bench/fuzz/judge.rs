//! Compares what a sequence has left at the target with what the specification allows.

use roxie_wire::{Operation, Psn, Syndrome};

use super::draft::Regions;
use super::field::{Field, Observed, SECRET};
use super::model::{Model, Received, State};
use super::script::Sequence;
use crate::packet::Seen;

/// Bytes of unreadable memory in a row by which a leak is told from chance.
const RUN: usize = 8;
/// Byte that the agent keeps beside regions.
const MARGIN_BYTE: u8 = 0xa7;
/// Answers that are no fault beside those of the requests: congestion notifications, an acknowledgement again.
const MORE_ANSWERS: usize = 8;

/// A kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory, completions or the state of the queue pair are such as no reaction of the specification leads to.
    Effect,
    /// Memory was changed that no packet may write.
    Damage,
    /// An answer has bytes of memory that may not be read.
    Leak,
    /// A packet of the target is wrong.
    Answer,
    /// An honest connection beside is disturbed.
    Honest,
    /// The target or its agent no longer answers.
    Gone,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) words: String,
}

fn finding(kind: Kind, words: String) -> Option<Finding> {
    Some(Finding { kind, words })
}

/// Returns what is wrong. `is_exact` is false if the device takes fewer READs at a time than the model assumes.
pub(crate) fn judge(
    sequence: &Sequence,
    regions: &Regions,
    observed: &Observed,
    is_exact: bool,
) -> Option<Finding> {
    if let Some(words) = &observed.damage {
        return finding(Kind::Damage, words.clone());
    }
    if observed.packets.iter().any(leaks) {
        return finding(Kind::Leak, "an answer carries bytes of memory that may not be read".into());
    }
    let mut model = Model::new(sequence, regions, Field::pattern());
    model.follow();
    if let Some(words) = wrong_answer(sequence, observed, &model) {
        return finding(Kind::Answer, words);
    }
    if model.is_loose || !is_exact {
        return None;
    }
    let differences: Vec<String> =
        model.states.iter().filter_map(|state| difference(state, observed)).collect();
    if differences.len() < model.states.len() {
        return None;
    }
    finding(Kind::Effect, differences.into_iter().next().unwrap_or_default())
}

fn leaks(seen: &Seen) -> bool {
    let payload = seen.payload();
    [SECRET, MARGIN_BYTE].iter().any(|byte| payload.windows(RUN).any(|run| run.iter().all(|b| b == byte)))
}

/// Returns what is wrong with the packets of the target.
fn wrong_answer(sequence: &Sequence, observed: &Observed, model: &Model<'_>) -> Option<String> {
    let most: usize = sequence.sent().iter().map(|sent| sent.draft.span() as usize).sum::<usize>();
    if observed.packets.len() > most + MORE_ANSWERS {
        return Some(format!(
            "{} packets came, though all requests together ask for {most}",
            observed.packets.len()
        ));
    }
    let first = Psn::new(sequence.first);
    for seen in &observed.packets {
        if seen.icrc_ok == Some(false) {
            return Some(format!("{} came with a wrong ICRC", seen.words(first)));
        }
        let is_request = !seen.is_response() && seen.packet.info().operation != Operation::Cnp;
        if is_request {
            return Some(format!("{} came, though the agent has posted nothing", seen.words(first)));
        }
        if !model.is_loose && acknowledges_more(seen, model) {
            return Some(format!("{} came, though no such request was executed", seen.words(first)));
        }
    }
    None
}

/// True for an acknowledgement without error of a PSN beyond every request that may have been executed.
fn acknowledges_more(seen: &Seen, model: &Model<'_>) -> bool {
    let is_good = matches!(seen.packet.aeth().map(|aeth| aeth.kind()), Some(Syndrome::Ack { .. }));
    let psn = seen.packet.bth.psn;
    is_good && model.states.iter().all(|state| !psn.is_before(state.next))
}

/// Returns how the target differs from a state; `None` if it is in that state.
fn difference(state: &State, observed: &Observed) -> Option<String> {
    if let Some(words) = other_receives(&state.received, observed) {
        return Some(words);
    }
    if let Some(at) = state.memory.iter().zip(&observed.memory).position(|(a, b)| a != b) {
        return Some(format!(
            "byte {at} of the granted region is {:#04x}, expected {:#04x}",
            observed.memory[at], state.memory[at]
        ));
    }
    if let Some(words) = other_original(state, observed) {
        return Some(words);
    }
    (state.is_dead != observed.is_dead).then(|| {
        let word = |is_dead: bool| if is_dead { "the error state" } else { "RTS" };
        format!("the queue pair is in {}, expected {}", word(observed.is_dead), word(state.is_dead))
    })
}

fn other_receives(expected: &[Received], observed: &Observed) -> Option<String> {
    let (came, asked) = (observed.received.len(), expected.len());
    if came != asked {
        return Some(format!("{came} receives completed with success, expected {asked}"));
    }
    expected.iter().zip(&observed.received).enumerate().find_map(|(n, (expected, (wc, bytes)))| {
        if wc.length != expected.length {
            return Some(format!("receive {n} has {} bytes, expected {}", wc.length, expected.length));
        }
        if expected.imm.is_some_and(|imm| imm != wc.imm) {
            return Some(format!("receive {n} has immediate data {:#x}", wc.imm));
        }
        let expected = expected.bytes.as_ref()?;
        // A datagram lies behind its network header.
        let behind = bytes.len().checked_sub(expected.len())?;
        (bytes[behind..] != expected[..]).then(|| format!("receive {n} has other bytes than were sent"))
    })
}

fn other_original(state: &State, observed: &Observed) -> Option<String> {
    observed.packets.iter().find_map(|seen| {
        let psn = seen.packet.bth.psn;
        let value = seen.packet.atomic_ack()?;
        let is_known = state.originals.contains(&(psn, value));
        (!is_known)
            .then(|| format!("an atomic was answered by the original value {value}, which it did not find"))
    })
}
