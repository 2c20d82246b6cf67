//! Sequences between valid and invalid, from a seed: valid messages, repetitions, and packets of which one or two
//! fields are wrong.

use roxie_base::random::splitmix;
use roxie_wire::Opcode;

use super::draft::{Draft, Fault, MTU, Place};
use super::model::READS;
use super::script::{Line, Sequence, Step};
use crate::bench::QKEY;
use crate::service::Service;

/// Fewest and most steps of a sequence; a message of several packets is one step.
const STEPS: (u64, u64) = (3, 22);
/// Sequences of each kind in a hundred: those with UC, those with UD, the rest with RC.
const UC: u64 = 20;
const UD: u64 = 20;

/// Abilities of bench and target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// The bench makes IP headers and the ICRC.
    pub(crate) has_raw: bool,
    /// The target's device has atomics.
    pub(crate) has_atomics: bool,
}

/// Returns the `n`-th sequence of a seed.
pub(crate) fn sequence(seed: u64, n: u64, abilities: Abilities) -> Sequence {
    let mut draw = Draw { state: seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
    draw.next();
    let service = match draw.below(100) {
        n if n < UC => Service::Uc,
        n if n < UC + UD => Service::Ud,
        _ => Service::Rc,
    };
    let first = match draw.below(4) {
        0 => 0x00ff_ffff - draw.below(4) as u32,
        1 => 0x007f_ffff - draw.below(4) as u32,
        _ => draw.below(1 << 24) as u32,
    };
    let receives = if draw.one_in(5) { draw.below(3) } else { 4 + draw.below(12) } as u32;
    let room = [256, 1024, 1088, 2500][draw.below(4) as usize];
    let sequence = Sequence { service, first, receives, room, lines: Vec::new() };
    let mut generator = Generator { draw, sequence, abilities, next: 1, reads: 0 };
    let steps = STEPS.0 + generator.draw.below(STEPS.1 - STEPS.0);
    for _ in 0..steps {
        generator.step();
    }
    generator.sequence
}

struct Draw {
    state: u64,
}

impl Draw {
    fn next(&mut self) -> u64 {
        splitmix(&mut self.state)
    }

    /// Returns a number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct Generator {
    draw: Draw,
    sequence: Sequence,
    abilities: Abilities,
    /// Number of the next line.
    next: u32,
    /// READs and atomics so far.
    reads: u32,
}

impl Generator {
    fn push(&mut self, mut step: Step) {
        if let Step::Send(draft) = &mut step {
            draft.forget_unused();
        }
        self.sequence.lines.push(Line { number: self.next, step });
        self.next += 1;
    }

    fn step(&mut self) {
        match self.draw.below(100) {
            0..50 => {
                for draft in self.message() {
                    self.push(Step::Send(draft));
                }
            }
            50..72 if self.next > 1 => {
                let number = 1 + self.draw.below(u64::from(self.next) - 1) as u32;
                self.push(Step::Again(number));
            }
            72..76 => {
                let draft = self.response();
                self.push(Step::Send(draft));
            }
            _ => self.mutated(),
        }
    }

    /// Sends a message of which one packet is changed.
    fn mutated(&mut self) {
        let mut message = self.message();
        let at = self.draw.below(message.len() as u64) as usize;
        for _ in 0..=u64::from(self.draw.one_in(4)) {
            self.mutate(&mut message[at]);
        }
        // A message may break off behind the changed packet.
        if self.draw.one_in(3) {
            message.truncate(at + 1);
        }
        for draft in message {
            self.push(Step::Send(draft));
        }
    }

    /// Returns the opcode of an operation of RC in the sequence's service.
    fn opcode(&self, rc: Opcode) -> Opcode {
        match self.sequence.service {
            Service::Rc => rc,
            Service::Uc => Opcode(rc.0 | 0x20),
            Service::Ud => Opcode(rc.0 | 0x60),
            Service::Xrc => Opcode(rc.0 | 0xa0),
        }
    }

    fn message(&mut self) -> Vec<Draft> {
        match self.sequence.service {
            Service::Ud => vec![self.datagram()],
            Service::Uc => self.send_or_write(),
            Service::Rc | Service::Xrc => match self.draw.below(10) {
                0 | 1 if self.reads < READS => vec![self.read()],
                2 | 3 if self.reads < READS && self.abilities.has_atomics => vec![self.atomic()],
                _ => self.send_or_write(),
            },
        }
    }

    fn datagram(&mut self) -> Draft {
        let most = u64::from(self.sequence.room.min(MTU as u32 + 40)) - 40;
        let rc = if self.draw.one_in(3) { Opcode::RC_SEND_ONLY_IMM } else { Opcode::RC_SEND_ONLY };
        let mut draft = Draft::new(self.opcode(rc));
        draft.length = self.draw.below(most + 1) as usize;
        draft.imm = self.draw.next() as u32;
        draft
    }

    fn send_or_write(&mut self) -> Vec<Draft> {
        let is_write = self.draw.one_in(2);
        let room = if is_write { 3000 } else { u64::from(self.sequence.room) };
        let length = match self.draw.below(3) {
            0 => self.draw.below(room.min(3000) + 1),
            _ => self.draw.below(65),
        } as usize;
        let (imm, offset) = (self.draw.one_in(4), self.draw.below(1000) as i64);
        let mut drafts = Vec::new();
        let packets = length.div_ceil(MTU).max(1);
        for n in 0..packets {
            let (begins, ends) = (n == 0, n + 1 == packets);
            let mut draft = Draft::new(self.opcode(opcode_at(is_write, begins, ends, imm)));
            draft.length = if ends { length - n * MTU } else { MTU };
            draft.ack = ends || self.draw.one_in(3);
            draft.solicited = ends && self.draw.one_in(4);
            (draft.dma, draft.at.1, draft.imm) = (length as u32, offset, self.draw.next() as u32);
            drafts.push(draft);
        }
        drafts
    }

    fn read(&mut self) -> Draft {
        self.reads += 1;
        let mut draft = Draft::new(Opcode::RC_READ_REQUEST);
        draft.dma = self.draw.below(2500) as u32;
        draft.at.1 = self.draw.below(1500) as i64;
        draft.ack = true;
        if self.draw.one_in(4) {
            (draft.at.0, draft.key.0) = (Place::ReadOnly, Place::ReadOnly);
        }
        draft
    }

    fn atomic(&mut self) -> Draft {
        self.reads += 1;
        let is_add = self.draw.one_in(2);
        let mut draft = Draft::new(if is_add { Opcode::RC_FETCH_ADD } else { Opcode::RC_COMPARE_SWAP });
        draft.at.1 = self.draw.below(4) as i64 * 8;
        draft.operands = (1 + self.draw.below(1000), self.draw.below(3));
        draft.ack = true;
        draft
    }

    /// Returns a response, though the target has no request outstanding.
    fn response(&mut self) -> Draft {
        const RESPONSES: [Opcode; 6] = [
            Opcode::RC_ACKNOWLEDGE,
            Opcode::RC_READ_RESPONSE_ONLY,
            Opcode::RC_READ_RESPONSE_FIRST,
            Opcode::RC_READ_RESPONSE_MIDDLE,
            Opcode::RC_READ_RESPONSE_LAST,
            Opcode::RC_ATOMIC_ACKNOWLEDGE,
        ];
        let rc = RESPONSES[self.draw.below(RESPONSES.len() as u64) as usize];
        let mut draft = Draft::new(self.opcode(rc));
        let has_payload = draft.opcode.info().is_some() && rc != Opcode::RC_ACKNOWLEDGE;
        draft.length = if has_payload && rc != Opcode::RC_ATOMIC_ACKNOWLEDGE { 64 } else { 0 };
        draft.aeth = (self.draw.below(256) as u8, self.draw.below(4) as u32);
        draft.psn = self.draw.below(5) as i32 - 2;
        draft
    }

    /// Changes a field.
    fn mutate(&mut self, draft: &mut Draft) {
        match self.draw.below(14) {
            0 | 12 | 13 => {
                draft.psn = [1, 2, -1, -2, 7, (1 << 23) - 1, -(1 << 23)][self.draw.below(7) as usize]
            }
            1 => draft.opcode = self.any_opcode(),
            2 => draft.ack = !draft.ack,
            3 => draft.length = self.other_length(draft.length),
            4 => {
                let room = u64::from(self.sequence.room);
                draft.dma = [
                    0,
                    1,
                    draft.dma.wrapping_add(1),
                    draft.dma.wrapping_sub(1),
                    4097,
                    1 << 31,
                    u32::MAX,
                    room as u32,
                ][self.draw.below(8) as usize];
            }
            5 => draft.at.1 = [-8, -1, 4095, 4096, 4088, 3, 1 << 40, i64::MIN][self.draw.below(8) as usize],
            6 => draft.at.0 = Place::ALL[self.draw.below(4) as usize].1,
            7 => draft.key.0 = Place::ALL[self.draw.below(4) as usize].1,
            8 => draft.key.1 = 1 << self.draw.below(32),
            9 => draft.qkey = QKEY ^ 1 << self.draw.below(32),
            _ => draft.faults.push(self.fault()),
        }
    }

    /// Returns an opcode of the sequence's service mostly, else any.
    fn any_opcode(&mut self) -> Opcode {
        if self.draw.one_in(3) {
            return Opcode(self.draw.below(256) as u8);
        }
        let operation = Opcode(self.draw.below(0x15) as u8);
        self.opcode(operation)
    }

    fn other_length(&mut self, length: usize) -> usize {
        let room = self.sequence.room as usize;
        let any = self.draw.below(MTU as u64 + 1) as usize;
        [0, length + 1, length.saturating_sub(1), (room + 1).min(MTU), MTU, MTU + 4, any]
            [self.draw.below(7) as usize]
    }

    fn fault(&mut self) -> Fault {
        loop {
            let fault = match self.draw.below(40) {
                0..8 => Fault::BadIcrc,
                8..13 => Fault::PKey([0x8001, 0x7ffe, 0, 0x7fff][self.draw.below(4) as usize]),
                13..18 => Fault::Version(1 + self.draw.below(15) as u8),
                18..23 => Fault::Stranger,
                23..29 => Fault::OtherSource,
                29..33 => Fault::OtherPort,
                33..38 => Fault::Reserved,
                38 => Fault::Cut(1 + self.draw.below(20) as u8),
                _ => Fault::Pad(self.draw.below(4) as u8),
            };
            let takes_raw = matches!(fault, Fault::OtherSource | Fault::OtherPort);
            if self.abilities.has_raw || !takes_raw {
                return fault;
            }
        }
    }
}

/// Returns the opcode of RC for a packet of a SEND or WRITE.
fn opcode_at(is_write: bool, begins: bool, ends: bool, imm: bool) -> Opcode {
    match (is_write, begins, ends, imm) {
        (false, true, true, false) => Opcode::RC_SEND_ONLY,
        (false, true, true, true) => Opcode::RC_SEND_ONLY_IMM,
        (false, true, false, _) => Opcode::RC_SEND_FIRST,
        (false, false, false, _) => Opcode::RC_SEND_MIDDLE,
        (false, false, true, false) => Opcode::RC_SEND_LAST,
        (false, false, true, true) => Opcode::RC_SEND_LAST_IMM,
        (true, true, true, false) => Opcode::RC_WRITE_ONLY,
        (true, true, true, true) => Opcode::RC_WRITE_ONLY_IMM,
        (true, true, false, _) => Opcode::RC_WRITE_FIRST,
        (true, false, false, _) => Opcode::RC_WRITE_MIDDLE,
        (true, false, true, false) => Opcode::RC_WRITE_LAST,
        (true, false, true, true) => Opcode::RC_WRITE_LAST_IMM,
    }
}
