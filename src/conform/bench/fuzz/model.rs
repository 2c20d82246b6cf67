//! A reference model of a responder: after each packet, every state in which the specification allows the queue pair to
//! be.
//!
//! Where the specification leaves a choice, or where both reactions do no harm, the model follows both. A packet that
//! it cannot follow makes it loose: effects of the sequence are then not compared, and memory that no packet may reach
//! still is.

use std::collections::HashSet;

use roxie_wire::{OpcodeInfo, Operation, Position, Psn};

use super::draft::{MTU, Nature, Place, Regions};
use super::script::{Sent, Sequence};
use crate::bench::QKEY;
use crate::service::Service;

/// Bytes of each region.
pub(crate) const REGION: usize = 4096;
/// READs and atomics that the queue pair takes at a time.
pub(crate) const READS: u32 = 16;
/// Bytes of a global route header, in front of a datagram.
const GRH: u32 = 40;
/// Most states that are followed.
const MOST_STATES: usize = 96;
/// Longest READ or WRITE (9.7.4.1.5).
const LONGEST: u32 = 1 << 31;

/// A receive that completes with success.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Received {
    pub(crate) length: u32,
    pub(crate) imm: Option<u32>,
    /// Bytes of a SEND; `None` for a WRITE with immediate data.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A message of which more packets are due.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Send { bytes: Vec<u8> },
    Write { at: usize, left: u32, length: u32 },
}

/// A state of the queue pair and of what it has done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// True in the error state.
    pub(crate) is_dead: bool,
    /// PSN of the next request in order.
    pub(crate) next: Psn,
    message: Option<Message>,
    /// Number of receives used.
    used: u32,
    reads: u32,
    /// The granted region.
    pub(crate) memory: Vec<u8>,
    /// Receives that completed with success.
    pub(crate) received: Vec<Received>,
    /// PSNs of atomics with the value that each has found.
    pub(crate) originals: Vec<(Psn, u64)>,
}

/// The states of a queue pair.
#[derive(Debug)]
pub(crate) struct Model<'a> {
    sequence: &'a Sequence,
    regions: &'a Regions,
    pub(crate) states: Vec<State>,
    /// True once a packet could not be followed.
    pub(crate) is_loose: bool,
}

impl<'a> Model<'a> {
    /// Begins with `memory` in the granted region.
    pub(crate) fn new(sequence: &'a Sequence, regions: &'a Regions, memory: Vec<u8>) -> Model<'a> {
        let state = State {
            is_dead: false,
            next: Psn::new(sequence.first),
            message: None,
            used: 0,
            reads: 0,
            memory,
            received: Vec::new(),
            originals: Vec::new(),
        };
        Model { sequence, regions, states: vec![state], is_loose: false }
    }

    /// Follows all packets of the sequence.
    pub(crate) fn follow(&mut self) {
        for packet in self.sequence.sent() {
            self.take(&packet);
        }
    }

    fn take(&mut self, packet: &Sent<'_>) {
        let service = self.sequence.service;
        let info = match (packet.draft.nature(service), packet.draft.info(service)) {
            (Nature::Void, _) | (_, None) => return,
            (Nature::Open, _) => {
                self.is_loose = true;
                return;
            }
            (Nature::Plain, Some(info)) => info,
        };
        let step = Step { sequence: self.sequence, regions: self.regions, packet, info };
        let mut known = HashSet::new();
        let states: Vec<State> = self.states.drain(..).flat_map(|state| step.next(state)).collect();
        self.states.extend(states.into_iter().filter(|state| known.insert(state.clone())));
        if self.states.len() > MOST_STATES {
            self.states.truncate(MOST_STATES);
            self.is_loose = true;
        }
    }
}

/// One packet at a queue pair.
struct Step<'a> {
    sequence: &'a Sequence,
    regions: &'a Regions,
    packet: &'a Sent<'a>,
    info: &'static OpcodeInfo,
}

impl Step<'_> {
    /// Returns the states that may follow.
    fn next(&self, state: State) -> Vec<State> {
        if state.is_dead {
            return vec![state];
        }
        match self.sequence.service {
            Service::Rc | Service::Xrc => self.next_rc(state),
            Service::Uc => self.next_uc(state),
            Service::Ud => self.next_ud(state),
        }
    }

    fn next_rc(&self, state: State) -> Vec<State> {
        let ahead = self.packet.psn.distance_from(state.next);
        let is_answered_anew = !matches!(self.info.operation, Operation::Send | Operation::Write);
        match ahead {
            0 => self.in_order(state),
            // A duplicate READ is checked again, and so may be refused.
            ..0 if is_answered_anew => refused(state),
            _ => vec![state],
        }
    }

    fn in_order(&self, state: State) -> Vec<State> {
        let begins = self.info.position.begins();
        let goes_on = match &state.message {
            Some(Message::Send { .. }) => self.info.operation == Operation::Send && !begins,
            Some(Message::Write { .. }) => self.info.operation == Operation::Write && !begins,
            None => begins,
        };
        if !goes_on {
            return refused(state);
        }
        match self.info.operation {
            Operation::Send => self.send(state),
            Operation::Write => self.write(state),
            Operation::ReadRequest => self.read(state),
            Operation::CompareSwap | Operation::FetchAdd => self.atomic(state),
            _ => refused(state),
        }
    }

    /// UC: a packet that begins a message is taken whatever its PSN; another one continues the message, or nothing
    /// (9.8.2.2).
    fn next_uc(&self, state: State) -> Vec<State> {
        let is_send = self.info.operation == Operation::Send;
        let goes_on = self.packet.psn == state.next
            && match &state.message {
                Some(Message::Send { .. }) => is_send,
                Some(Message::Write { .. }) => !is_send,
                None => false,
            };
        let begins = self.info.position.begins();
        if !begins && !goes_on {
            return self.dropped_uc(state);
        }
        let interrupts = begins && state.message.is_some();
        let fresh = if interrupts { self.dropped_uc(state) } else { vec![state] };
        let mut all = Vec::new();
        for from in fresh {
            let from = State { next: self.packet.psn, ..from };
            let reached = if is_send { self.send(from.clone()) } else { self.write(from.clone()) };
            for state in reached {
                // A refused request is dropped, or ends the queue pair.
                if state.next == self.packet.psn {
                    all.extend(self.dropped_uc(state.clone()));
                }
                if state.is_dead || state.next != self.packet.psn {
                    all.push(state);
                }
            }
            // Some responders drop a message that begins within an unfinished one.
            if interrupts {
                all.extend(self.dropped_uc(from));
            }
        }
        all
    }

    /// UC: drops the message under way. Its receive completes with an error, or is kept for the next message.
    fn dropped_uc(&self, state: State) -> Vec<State> {
        let holds_receive = matches!(state.message, Some(Message::Send { .. }));
        let dropped = State { message: None, next: self.packet.psn + 1, is_dead: false, ..state };
        let mut all = vec![dropped.clone()];
        if holds_receive {
            all.push(State { used: dropped.used - 1, ..dropped });
        }
        all
    }

    /// UD: a datagram with the right key that fits its receive is received, any other dropped (9.8.3.2).
    fn next_ud(&self, state: State) -> Vec<State> {
        let draft = self.packet.draft;
        let fits = GRH + draft.length as u32 <= self.sequence.room;
        if draft.qkey != QKEY || state.used >= self.sequence.receives || !fits {
            return vec![state];
        }
        let mut done = state.clone();
        done.used += 1;
        done.received.push(Received {
            length: GRH + draft.length as u32,
            imm: draft.has_imm().then_some(draft.imm),
            bytes: Some(draft.payload(self.packet.line)),
        });
        vec![done]
    }

    /// Returns the state behind this packet, in order.
    fn passed(&self, state: State) -> State {
        State { next: self.packet.psn + self.packet.draft.span(), ..state }
    }

    /// True if the payload has the length that its position asks for: the path MTU, or up to it at the end of a
    /// message.
    fn has_full_length(&self) -> bool {
        let length = self.packet.draft.length;
        match self.info.position {
            Position::First | Position::Middle => length == MTU,
            Position::Last => (1..=MTU).contains(&length),
            Position::Only => length <= MTU,
        }
    }

    fn send(&self, state: State) -> Vec<State> {
        let draft = self.packet.draft;
        let (begins, ends) = (self.info.position.begins(), self.info.position.ends());
        // Without a receive the responder sends an RNR NAK.
        if begins && state.used >= self.sequence.receives {
            return if self.has_full_length() { vec![state] } else { refused(state) };
        }
        let taken: &[u8] = match &state.message {
            Some(Message::Send { bytes }) if !begins => bytes,
            _ => &[],
        };
        let bytes = [taken, &draft.payload(self.packet.line)].concat();
        if bytes.len() > self.sequence.room as usize || draft.length > MTU {
            return refused(state);
        }
        let mut done = State { message: None, ..self.passed(state.clone()) };
        done.used += u32::from(begins);
        if ends {
            let imm = draft.has_imm().then_some(draft.imm);
            done.received.push(Received { length: bytes.len() as u32, imm, bytes: Some(bytes) });
        } else {
            done.message = Some(Message::Send { bytes });
        }
        if self.has_full_length() { vec![done] } else { with(refused(state), done) }
    }

    /// Returns the offset of `length` bytes at `va` in the granted region; `None` if they are not all there or `rkey`
    /// is not its key.
    fn granted(&self, rkey: u32, va: u64, length: u64) -> Option<usize> {
        let region = self.regions.of(Place::Granted);
        within(region.addr, va, length).filter(|_| rkey == region.rkey)
    }

    fn write(&self, state: State) -> Vec<State> {
        let draft = self.packet.draft;
        let (va, rkey) = (draft.address(self.regions), draft.rkey(self.regions));
        let ends = self.info.position.ends();
        let (at, left, length) = match &state.message {
            Some(Message::Write { at, left, length }) if !self.info.position.begins() => {
                (*at, *left, *length)
            }
            _ if draft.dma == 0 => (0, 0, 0),
            _ => match self.granted(rkey, va, draft.dma.into()) {
                Some(at) if draft.dma <= LONGEST => (at, draft.dma, draft.dma),
                _ => return refused(state),
            },
        };
        let fits = if ends { draft.length == left as usize } else { draft.length < left as usize };
        let is_whole = self.has_full_length() || (ends && left == 0 && draft.length == 0);
        let written = draft.length.min(left as usize);
        let mut done = state.clone();
        done.memory[at..at + written].copy_from_slice(&draft.payload(self.packet.line)[..written]);
        // What was placed before the fault was found may stay.
        if !fits || !is_whole {
            let mut all = refused(state);
            all.extend(refused(done));
            return all;
        }
        let takes_receive = ends && draft.has_imm();
        if takes_receive && state.used >= self.sequence.receives {
            return vec![state, done];
        }
        done.message =
            (!ends).then(|| Message::Write { at: at + written, left: left - written as u32, length });
        if takes_receive {
            done.used += 1;
            done.received.push(Received { length, imm: Some(draft.imm), bytes: None });
        }
        vec![self.passed(done)]
    }

    fn read(&self, state: State) -> Vec<State> {
        let draft = self.packet.draft;
        let (va, rkey) = (draft.address(self.regions), draft.rkey(self.regions));
        let readable = self.regions.of(Place::ReadOnly);
        let may_read = self.granted(rkey, va, draft.dma.into()).is_some()
            || rkey == readable.rkey && within(readable.addr, va, draft.dma.into()).is_some();
        if draft.dma > 0 && !may_read {
            return refused(state);
        }
        self.counted(state, |_| {})
    }

    fn atomic(&self, state: State) -> Vec<State> {
        let draft = self.packet.draft;
        let (va, rkey) = (draft.address(self.regions), draft.rkey(self.regions));
        let Some(at) = self.granted(rkey, va, 8).filter(|_| va.is_multiple_of(8)) else {
            return refused(state);
        };
        let psn = self.packet.psn;
        let (operand, compare) = draft.operands;
        let is_add = self.info.operation == Operation::FetchAdd;
        self.counted(state, |state| {
            let word = &mut state.memory[at..at + 8];
            let original = u64::from_le_bytes((&*word).try_into().unwrap_or_default());
            let new = match (is_add, original == compare) {
                (true, _) => original.wrapping_add(operand),
                (false, true) => operand,
                (false, false) => original,
            };
            word.copy_from_slice(&new.to_le_bytes());
            state.originals.push((psn, original));
        })
    }

    /// Executes a READ or an atomic. Payload in the request, or more requests than the queue pair takes at a time, may
    /// be refused.
    fn counted(&self, state: State, execute: impl FnOnce(&mut State)) -> Vec<State> {
        let mut done = self.passed(state.clone());
        done.reads += 1;
        execute(&mut done);
        let is_open = self.packet.draft.length > 0 || done.reads > READS;
        if is_open { with(refused(state), done) } else { vec![done] }
    }
}

/// Returns the states after a refusal: the queue pair ends, or the packet is dropped.
fn refused(state: State) -> Vec<State> {
    vec![State { is_dead: true, ..state.clone() }, state]
}

fn with(mut states: Vec<State>, another: State) -> Vec<State> {
    states.push(another);
    states
}

/// Returns the offset of `length` bytes at `va` in a region that begins at `start`.
fn within(start: u64, va: u64, length: u64) -> Option<usize> {
    let offset = va.checked_sub(start)?;
    let end = offset.checked_add(length)?;
    (end <= REGION as u64).then_some(offset as usize)
}
