//! Invalid requests, by script: the responder's reactions that the specification wants, that rdma_rxe shows, and that
//! Roxie must show.
//!
//! [`RULES`] is the table. A row checks the peer against its reaction, `tests/guests/wrong.rs` Roxie against the
//! required one, and the page `wrong.md` against the table.

use std::fmt;

use roxie::verbs::Qpn;
use roxie::wire::{Aeth, Bth, Deth, Opcode, Psn, Reth};

use super::rule::{self, Rule};
use super::{Failure, must};
use crate::end::{Access, Connection, End, Pair, PairKind, Receive, Registration, State, Status};
use crate::rows::{Family, Wrong};
use crate::wire::{Packet, Wire};

const MTU: usize = 1024;
const REGION: usize = 8192;
/// Bytes of each posted receive.
const ROOM: usize = 100;
const RECEIVES: u64 = 4;
/// The script's QPN, and its first PSN: the wrap is near.
const OWN_QPN: u32 = 0x77;
const FIRST: Psn = Psn::new(0xff_fffe);
/// A PSN that the responder has not sent and will not send soon.
const GHOST: u32 = 5000;

/// A responder's reaction to a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// Its responses; PSNs count from the script's first.
    pub answers: &'static [&'static str],
    /// State of its queue pair afterwards.
    pub state: State,
    /// Number of receives that completed with success.
    pub received: usize,
}

const fn stays_rts(answers: &'static [&'static str], received: usize) -> Reaction {
    Reaction { answers, state: State::Rts, received }
}

const fn enters_err(answers: &'static [&'static str]) -> Reaction {
    Reaction { answers, state: State::Err, received: 0 }
}

const fn same(
    case: Wrong,
    script: &'static str,
    specification: &'static str,
    all: Reaction,
) -> Rule<Wrong, Reaction> {
    Rule { case, script, specification, rxe_6_1: all, rxe_newest: all, roxie: all }
}

/// Makes the rule of an operation that Linux 6.1 does not know.
const fn since_6_2(
    case: Wrong,
    script: &'static str,
    specification: &'static str,
    rxe_newest: Reaction,
    roxie: Reaction,
) -> Rule<Wrong, Reaction> {
    Rule { case, script, specification, rxe_6_1: stays_rts(&[], 0), rxe_newest, roxie }
}

/// The table.
pub const RULES: [Rule<Wrong, Reaction>; 32] = [
    same(
        Wrong::DuplicateSend,
        "a SEND twice",
        "executed once, acknowledged twice (9.7.5.1.2)",
        stays_rts(&["ACK+0", "ACK+0"], 1),
    ),
    same(
        Wrong::DuplicateFarBehind,
        "a SEND, then one of a PSN 1000 before it",
        "acknowledged with the last PSN (9.7.5.1.2)",
        stays_rts(&["ACK+0", "ACK+0"], 1),
    ),
    same(
        Wrong::Ahead,
        "two SENDs from 100 PSNs ahead",
        "one sequence NAK of the expected PSN, then silence (9.7.5)",
        stays_rts(&["NAK60+0"], 0),
    ),
    same(Wrong::GhostAck, "an ACK of a PSN that was never sent", "dropped (9.9.2)", stays_rts(&[], 0)),
    same(
        Wrong::UnaskedReadResponse,
        "a READ response without a request",
        "dropped (9.9.2)",
        stays_rts(&[], 0),
    ),
    same(Wrong::UnknownOpcode, "RC opcode 0x1f", "dropped (9.6.1)", stays_rts(&[], 0)),
    same(Wrong::OtherService, "a UD SEND", "dropped (9.6.1)", stays_rts(&[], 0)),
    same(Wrong::BadVersion, "a SEND of transport version 1", "dropped (9.6.1)", stays_rts(&[], 0)),
    same(Wrong::BadPkey, "a SEND of another partition", "dropped, counted (9.6.1)", stays_rts(&[], 0)),
    same(Wrong::BadIcrc, "a SEND with a wrong ICRC", "dropped (7.8.1)", stays_rts(&[], 0)),
    same(
        Wrong::MiddleFirst,
        "SEND MIDDLE without FIRST",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::LastFirst,
        "SEND LAST without FIRST",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::FirstTwice,
        "WRITE FIRST, then WRITE FIRST",
        "NAK invalid request (9.7.4)",
        enters_err(&["ACK+0", "NAK61+1"]),
    ),
    same(
        Wrong::OnlyAfterFirst,
        "WRITE FIRST, then SEND ONLY",
        "NAK invalid request (9.7.4)",
        enters_err(&["ACK+0", "NAK61+1"]),
    ),
    same(
        Wrong::OtherMiddle,
        "WRITE FIRST, then SEND MIDDLE",
        "NAK invalid request (9.7.4)",
        enters_err(&["ACK+0", "NAK61+1"]),
    ),
    same(
        Wrong::ShortFirst,
        "WRITE FIRST shorter than the path MTU",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::EmptyLast,
        "WRITE FIRST, then WRITE LAST without a byte",
        "NAK invalid request (9.7.4)",
        enters_err(&["ACK+0", "NAK61+1"]),
    ),
    same(
        Wrong::WrongLength,
        "WRITE ONLY of 8 bytes with a RETH length of 100",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::WrongPad,
        "WRITE ONLY of 8 bytes with a pad count of 1",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::PaddedFirst,
        "WRITE FIRST with a pad count of 1",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    Rule {
        case: Wrong::UnpaddedSend,
        script: "SEND ONLY of 7 bytes without a pad",
        specification: "dropped (9.6.1)",
        rxe_6_1: stays_rts(&["ACK+0"], 1),
        rxe_newest: stays_rts(&["ACK+0"], 1),
        roxie: stays_rts(&[], 0),
    },
    same(
        Wrong::LongOnly,
        "WRITE ONLY longer than the path MTU",
        "NAK invalid request (9.7.4)",
        enters_err(&["NAK61+0"]),
    ),
    Rule {
        case: Wrong::LongSend,
        script: "SEND longer than the receive",
        specification: "NAK invalid request (9.9.3)",
        rxe_6_1: enters_err(&["NAK63+0"]),
        rxe_newest: enters_err(&["NAK63+0"]),
        roxie: enters_err(&["NAK61+0"]),
    },
    same(
        Wrong::PartialReadReplay,
        "READ of 3 packets, then the last 2 of them again",
        "the rest is sent again (9.7.5.1.2)",
        stays_rts(&["READ+0", "READ+1", "READ+2", "READ+1", "READ+2"], 0),
    ),
    same(
        Wrong::WiderReadReplay,
        "READ of 1 packet, then of 2 at the same PSN",
        "dropped (9.7.5.1.2)",
        stays_rts(&["READ+0"], 0),
    ),
    same(
        Wrong::Probe,
        "a SEND, one that does not ask for an acknowledgement, then a SEND of no bytes with the PSN of the first",
        "acknowledged with the last PSN (9.7.5.1.2)",
        stays_rts(&["ACK+0", "ACK+1"], 2),
    ),
    since_6_2(
        Wrong::AtomicWriteOfFour,
        "ATOMIC WRITE of 4 bytes",
        "NAK invalid request (A19)",
        enters_err(&["NAK61+0"]),
        enters_err(&["NAK61+0"]),
    ),
    since_6_2(
        Wrong::AtomicWriteOfSixteen,
        "ATOMIC WRITE of 16 bytes",
        "NAK invalid request (A19)",
        enters_err(&["NAK61+0"]),
        enters_err(&["NAK61+0"]),
    ),
    since_6_2(
        Wrong::FlushOfNoType,
        "FLUSH for nothing",
        "NAK invalid request (A19)",
        stays_rts(&["READ+0"], 0),
        enters_err(&["NAK61+0"]),
    ),
    since_6_2(
        Wrong::FlushOfOtherType,
        "FLUSH for a placement type that does not exist",
        "NAK invalid request (A19)",
        stays_rts(&["READ+0"], 0),
        enters_err(&["NAK61+0"]),
    ),
    since_6_2(
        Wrong::FlushOfOtherLevel,
        "FLUSH of a selectivity that does not exist",
        "NAK invalid request (A19)",
        stays_rts(&["READ+0"], 0),
        enters_err(&["NAK61+0"]),
    ),
    same(
        Wrong::Notification,
        "a congestion notification to a queue pair that has sent nothing",
        "dropped without a reaction point (A17.9.3)",
        stays_rts(&[], 0),
    ),
];

impl Wrong {
    /// Returns its row of the table.
    pub fn rule(self) -> &'static Rule<Wrong, Reaction> {
        RULES.iter().find(|rule| rule.case == self).expect("each case has a row")
    }
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = if self.answers.is_empty() { "silence".to_owned() } else { self.answers.join(", ") };
        match self.state {
            State::Err => write!(f, "{answers}; ERR"),
            _ => write!(f, "{answers}"),
        }
    }
}

/// The responder, as the script addresses it.
struct Target {
    qpn: Qpn,
    region: Registration,
}

impl Target {
    fn bth(&self, opcode: u8, psn: u32) -> Bth {
        Bth {
            opcode: Opcode(opcode),
            dest_qp: self.qpn,
            psn: Psn::new(FIRST.value().wrapping_add(psn) & 0xff_ffff),
            pkey: 0xffff,
            ack_req: true,
            ..Bth::default()
        }
    }

    /// Makes a packet; pads the payload.
    fn packet(&self, opcode: u8, psn: u32, ext: &[u8], payload: usize) -> Packet {
        let pad = payload.wrapping_neg() & 3;
        let bth = Bth { pad: pad as u8, ..self.bth(opcode, psn) };
        let mut rest = ext.to_vec();
        rest.extend(std::iter::repeat_n(0x5a, payload));
        rest.extend(std::iter::repeat_n(0, pad));
        Packet { bth, rest, spoiled: false }
    }

    fn reth(&self, offset: usize, dma_len: usize) -> [u8; Reth::LEN] {
        let (va, rkey) = (self.region.addr + offset as u64, self.region.rkey);
        Reth { va, rkey, dma_len: dma_len as u32 }.to_bytes()
    }

    /// Makes a FLUSH. `feth`: the placement type in the lowest four bits, the selectivity in the next two.
    fn flush(&self, feth: u32) -> Packet {
        let reth = self.reth(0, 64);
        let ext: Vec<u8> = feth.to_be_bytes().into_iter().chain(reth).collect();
        self.packet(0x1c, 0, &ext, 0)
    }

    /// Returns the script's packets for a case.
    fn script(&self, case: Wrong) -> Vec<Packet> {
        let send = |psn| self.packet(0x04, psn, &[], 8);
        let with = |bth: Bth| Packet { bth, ..send(0) };
        let write_first = self.packet(0x06, 0, &self.reth(0, 2 * MTU), MTU);
        let read = |psn: u32, packets: usize| {
            self.packet(0x0c, psn, &self.reth(psn as usize * MTU, packets * MTU), 0)
        };
        let probe = |psn| self.packet(0x04, psn, &[], 0);
        let ack = Aeth { syndrome: 0x1f, msn: 1 }.to_bytes();
        match case {
            Wrong::DuplicateSend => vec![send(0), send(0)],
            Wrong::DuplicateFarBehind => vec![send(0), send(1000u32.wrapping_neg())],
            Wrong::Ahead => vec![send(100), send(101)],
            Wrong::GhostAck => vec![self.packet(0x11, GHOST, &ack, 0)],
            Wrong::UnaskedReadResponse => vec![self.packet(0x10, GHOST, &ack, 8)],
            Wrong::UnknownOpcode => vec![with(self.bth(0x1f, 0))],
            Wrong::OtherService => vec![self.packet(0x64, 0, &Deth::default().to_bytes(), 8)],
            Wrong::BadVersion => vec![with(Bth { tver: 1, ..self.bth(0x04, 0) })],
            Wrong::BadPkey => vec![with(Bth { pkey: 0x8123, ..self.bth(0x04, 0) })],
            Wrong::BadIcrc => vec![Packet { spoiled: true, ..send(0) }],
            Wrong::Notification => {
                let bth = Bth { becn: true, ack_req: false, pkey: 0xffff, ..self.bth(0x81, 0) };
                vec![Packet { bth, rest: vec![0; 16], spoiled: false }]
            }
            Wrong::MiddleFirst => vec![self.packet(0x01, 0, &[], MTU)],
            Wrong::LastFirst => vec![self.packet(0x02, 0, &[], 8)],
            Wrong::FirstTwice => vec![write_first.clone(), self.packet(0x06, 1, &self.reth(0, 2 * MTU), MTU)],
            Wrong::OnlyAfterFirst => vec![write_first, send(1)],
            Wrong::OtherMiddle => vec![write_first, self.packet(0x01, 1, &[], MTU)],
            Wrong::ShortFirst => vec![self.packet(0x06, 0, &self.reth(0, 2 * MTU), MTU - 4)],
            Wrong::EmptyLast => vec![write_first, self.packet(0x08, 1, &[], 0)],
            Wrong::WrongLength => vec![self.packet(0x0a, 0, &self.reth(0, 100), 8)],
            Wrong::WrongPad => vec![padded(self.packet(0x0a, 0, &self.reth(0, 8), 8))],
            Wrong::PaddedFirst => vec![padded(write_first)],
            Wrong::UnpaddedSend => {
                let mut short = send(0);
                short.rest.pop();
                vec![short]
            }
            Wrong::LongOnly => vec![self.packet(0x0a, 0, &self.reth(0, MTU + 4), MTU + 4)],
            Wrong::LongSend => vec![self.packet(0x04, 0, &[], ROOM + 4)],
            Wrong::PartialReadReplay => vec![read(0, 3), read(1, 2)],
            Wrong::WiderReadReplay => vec![read(0, 1), read(0, 2)],
            Wrong::Probe => vec![send(0), unasked(send(1)), probe(0)],
            Wrong::AtomicWriteOfFour => vec![self.packet(0x1d, 0, &self.reth(0, 4), 4)],
            Wrong::AtomicWriteOfSixteen => vec![self.packet(0x1d, 0, &self.reth(0, 16), 16)],
            Wrong::FlushOfNoType => vec![self.flush(0)],
            Wrong::FlushOfOtherType => vec![self.flush(4)],
            Wrong::FlushOfOtherLevel => vec![self.flush(0x21)],
        }
    }
}

/// Takes the AckReq bit from a packet.
fn unasked(packet: Packet) -> Packet {
    Packet { bth: Bth { ack_req: false, ..packet.bth }, ..packet }
}

/// Increments the pad count of a packet.
fn padded(packet: Packet) -> Packet {
    Packet { bth: Bth { pad: packet.bth.pad + 1, ..packet.bth }, ..packet }
}

/// Returns the PSN of the first message that the responder has not executed.
fn next_psn(case: Wrong, answered: bool) -> u32 {
    match case {
        Wrong::DuplicateSend | Wrong::DuplicateFarBehind | Wrong::WiderReadReplay => 1,
        Wrong::Probe => 2,
        Wrong::FlushOfNoType | Wrong::FlushOfOtherType | Wrong::FlushOfOtherLevel => u32::from(answered),
        Wrong::PartialReadReplay => 3,
        Wrong::UnpaddedSend => u32::from(answered),
        _ => 0,
    }
}

/// Plays the script to a responder and compares the reaction. If the queue pair stays usable, checks that the next
/// message arrives.
pub fn run(
    case: Wrong,
    family: Family,
    wire: &mut Wire,
    responder: &mut dyn End,
    want: &Reaction,
) -> Result<(), Failure> {
    let access = Access { flush_global: responder.has_placement(), ..Access::ALL };
    let region = responder.register(REGION, access)?;
    let pair = responder.create_pair(PairKind::Rc)?;
    connect(family, wire, responder, pair)?;
    for wr_id in 0..RECEIVES {
        let to = Some((region, wr_id as usize * ROOM, ROOM));
        responder.post_receive(pair, &Receive { wr_id, to })?;
    }
    let to = responder.address(family)?;
    let target = Target { qpn: Qpn::new(pair.qpn), region };
    let mut seen = Vec::new();
    for packet in target.script(case) {
        wire.send(to, &packet)?;
        // One at a time: one response could acknowledge two packets sent together.
        let due = want.answers.len().saturating_sub(seen.len()).min(usize::from(packet.bth.ack_req));
        seen.extend(wire.answers(due, FIRST));
    }
    let texts: Vec<String> = seen.iter().map(ToString::to_string).collect();
    must!(texts == want.answers, "the answers are {texts:?} and should be {:?}", want.answers);
    let state = responder.state(pair)?;
    must!(state == want.state, "the queue pair is in {state:?} and should be in {:?}", want.state);
    let received = |responder: &mut dyn End, least| -> Result<usize, Failure> {
        let seen = responder.poll(pair, least, super::PATIENCE)?;
        Ok(seen.iter().filter(|c| c.status == Status::SUCCESS).count())
    };
    let got = received(responder, want.received)?;
    must!(got == want.received, "{got} receives completed and should have: {}", want.received);
    if want.state == State::Rts {
        let psn = next_psn(case, !want.answers.is_empty());
        wire.send(to, &target.packet(0x04, psn, &[], 8))?;
        let texts: Vec<String> = wire.answers(1, FIRST).iter().map(ToString::to_string).collect();
        must!(texts == [format!("ACK+{psn}")], "the next message was answered with {texts:?}");
        must!(received(responder, 1)? == 1, "the next message did not arrive");
    }
    Ok(())
}

fn connect(family: Family, wire: &Wire, responder: &mut dyn End, pair: Pair) -> Result<(), Failure> {
    Ok(responder.connect(
        pair,
        &Connection {
            family,
            remote: wire.address(),
            remote_qpn: OWN_QPN,
            mtu: MTU,
            rq_psn: FIRST.value(),
            sq_psn: 1,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
        },
    )?)
}

/// Returns the table as Markdown.
pub(super) fn lines() -> String {
    rule::lines(&RULES, "the script sends")
}
