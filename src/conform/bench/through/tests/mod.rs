use std::net::Ipv4Addr;

use roxie_wire::frame::FrameMut;
use roxie_wire::parse::ICRC_LEN;
use roxie_wire::{Opcode, Psn};

use super::*;
use crate::packet::Craft;

mod capture;
mod unreliable;

const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// QPNs of requester (at A) and responder (at B).
const QPS: [u32; 2] = [0x11, 0x22];
const FIRST: u32 = 0x00ff_fffe;
const NAK: u8 = 0x60;

/// A wire with a clock.
#[derive(Default)]
struct Line {
    judge: WireJudge,
    now: Nanos,
}

/// Returns a request `ahead` PSNs behind the first.
fn request(opcode: Opcode, ahead: u32) -> Craft {
    Craft::new(opcode, Qpn::new(QPS[1]), Psn::new(FIRST) + ahead)
}

/// Returns a response to the request `ahead` PSNs behind the first.
fn response(opcode: Opcode, ahead: u32) -> Craft {
    Craft::new(opcode, Qpn::new(QPS[0]), Psn::new(FIRST) + ahead)
}

fn write(ahead: u32) -> Craft {
    request(Opcode::RC_WRITE_ONLY, ahead).reth(0x1000, 7, 8).data(&[1; 8]).ack()
}

fn ack(ahead: u32, msn: u32) -> Craft {
    response(Opcode::RC_ACKNOWLEDGE, ahead).aeth(0x1f, msn)
}

fn nak(ahead: u32, msn: u32) -> Craft {
    response(Opcode::RC_ACKNOWLEDGE, ahead).aeth(NAK, msn)
}

impl Line {
    fn frame(craft: &Craft) -> Vec<u8> {
        Line::bytes(craft, craft.bth.dest_qp == Qpn::new(QPS[1]))
    }

    fn bytes(craft: &Craft, goes_right: bool) -> Vec<u8> {
        let (from, to) = if goes_right { (A, B) } else { (B, A) };
        let (head, body) = craft.parts([2; 6], [4; 6], from.into(), to.into());
        let mut bytes = [head, body, vec![0; ICRC_LEN]].concat();
        craft.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
        bytes
    }

    /// Passes a packet.
    fn pass(&mut self, craft: &Craft) {
        self.lose(craft);
        self.judge.delivered(&Frame::whole(&Line::frame(craft)), self.now);
    }

    /// Takes a packet that is lost.
    fn lose(&mut self, craft: &Craft) {
        self.now = self.now + Nanos(1000);
        self.judge.sent(&Frame::whole(&Line::frame(craft)), self.now);
    }

    /// Returns the verdict of a rule, and why.
    fn verdict(&mut self, name: &str) -> (Verdict, String) {
        let later = self.now + Nanos::from_millis(10_000);
        let outcomes = self.judge.outcomes(later, "test", None);
        let found = outcomes.into_iter().find(|outcome| outcome.name == format!("wire/{name}"));
        found.map(|outcome| (outcome.verdict, outcome.came)).expect("a rule")
    }

    #[track_caller]
    fn keeps(&mut self, name: &str) {
        let (verdict, came) = self.verdict(name);
        assert_eq!(verdict, Verdict::Keeps, "{name}: {came}");
    }

    #[track_caller]
    fn breaks(&mut self, name: &str, words: &str) {
        let (verdict, came) = self.verdict(name);
        assert!(verdict == Verdict::Breaks && came.contains(words), "{name}: {verdict:?} {came}");
    }
}

#[test]
fn lost_write_is_recovered_by_nak() {
    let mut line = Line::default();
    line.pass(&write(0));
    line.pass(&ack(0, 1));
    line.lose(&write(1));
    line.pass(&write(2));
    line.pass(&nak(1, 1));
    line.pass(&write(1));
    line.pass(&write(2));
    line.pass(&ack(2, 3));
    for rule in [
        "again_from_the_gap",
        "again_from_the_oldest",
        "nak_names_the_gap",
        "answers_what_arrived",
        "messages_once",
        "recovers",
    ] {
        line.keeps(rule);
    }
    assert_eq!(line.verdict("adds_once").0, Verdict::NotTested);
    assert_eq!((line.judge.tally.naks, line.judge.tally.again), (1, 1));
}

#[test]
fn requester_that_skips_the_gap_breaks() {
    let mut line = Line::default();
    for ahead in 0..4 {
        line.pass(&write(ahead));
    }
    line.pass(&nak(1, 1));
    line.pass(&write(2));
    line.breaks("again_from_the_gap", "goes back to 0");
    line.breaks("again_from_the_oldest", "is not acknowledged");
}

#[test]
fn acknowledged_gap_is_not_sent_again() {
    let mut line = Line::default();
    for ahead in 0..4 {
        line.pass(&write(ahead));
    }
    line.pass(&nak(1, 1));
    // The missing request came late.
    line.pass(&ack(1, 2));
    line.pass(&write(2));
    line.keeps("again_from_the_gap");
}

#[test]
fn nak_and_answer_ahead_break() {
    let mut line = Line::default();
    line.pass(&write(0));
    line.lose(&write(1));
    line.pass(&write(2));
    line.pass(&nak(2, 1));
    line.pass(&ack(2, 2));
    line.breaks("nak_names_the_gap", "has not arrived");
    line.breaks("answers_what_arrived", "RC_ACKNOWLEDGE of PSN 0");
    line.breaks("messages_once", "1 messages have arrived");
}

#[test]
fn damaged_request_has_not_arrived() {
    let mut line = Line::default();
    line.pass(&write(0));
    line.lose(&write(1));
    line.judge.delivered(&Frame::whole(&Line::frame(&write(1).spoiled())), line.now);
    line.pass(&ack(1, 2));
    line.breaks("answers_what_arrived", "has not arrived");
}

#[test]
fn unanswered_request_is_not_recovered() {
    let mut line = Line::default();
    line.pass(&write(0));
    line.pass(&ack(0, 1));
    line.lose(&write(1));
    line.breaks("recovers", "not acknowledged");
}

#[test]
fn probe_is_no_retransmission() {
    let probed = || {
        let mut line = Line::default();
        line.pass(&write(0));
        line.pass(&ack(0, 1));
        line.pass(&request(Opcode::RC_SEND_ONLY, 1).data(&[1; 8]));
        line.pass(&request(Opcode::RC_SEND_ONLY, 0).ack());
        line
    };
    probed().breaks("recovers", "not acknowledged");
    let mut line = probed();
    line.pass(&ack(1, 2));
    line.keeps("recovers");
    assert_eq!(line.verdict("again_from_the_oldest").0, Verdict::NotTested);
}

#[test]
fn rnr_wait_is_measured() {
    // Code 12: 0.64 ms.
    for (pause, is_kept) in [(Nanos(100_000), false), (Nanos(700_000), true)] {
        let mut line = Line::default();
        line.pass(&request(Opcode::RC_SEND_ONLY, 0).data(&[1; 8]).ack());
        line.pass(&response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x2c, 0));
        line.now = line.now + pause;
        line.pass(&request(Opcode::RC_SEND_ONLY, 0).data(&[1; 8]).ack());
        line.pass(&ack(0, 1));
        if is_kept {
            line.keeps("waits_after_rnr");
        } else {
            line.breaks("waits_after_rnr", "before its RNR wait ends");
        }
        line.keeps("recovers");
    }
}

#[test]
fn lost_read_response_is_asked_again() {
    let read = |ahead, dma| request(Opcode::RC_READ_REQUEST, ahead).reth(0x1000, 7, dma);
    let part = |opcode, ahead| response(opcode, ahead).aeth(0x1f, 1).data(&[5; 1024]);
    let mut line = Line::default();
    line.pass(&read(0, 4096));
    // The path MTU follows from the PSN of the second READ.
    line.pass(&read(4, 4096));
    line.pass(&part(Opcode::RC_READ_RESPONSE_FIRST, 0));
    line.lose(&response(Opcode::RC_READ_RESPONSE_MIDDLE, 1).data(&[5; 1024]));
    line.pass(&response(Opcode::RC_READ_RESPONSE_MIDDLE, 2).data(&[5; 1024]));
    line.pass(&read(1, 3072));
    line.pass(&read(4, 4096));
    for (opcode, ahead) in [
        (Opcode::RC_READ_RESPONSE_FIRST, 1),
        (Opcode::RC_READ_RESPONSE_LAST, 3),
        (Opcode::RC_READ_RESPONSE_FIRST, 4),
        (Opcode::RC_READ_RESPONSE_LAST, 7),
    ] {
        line.pass(&part(opcode, ahead));
        let middle = Opcode::RC_READ_RESPONSE_MIDDLE;
        match ahead {
            1 => line.pass(&response(middle, 2).data(&[5; 1024])),
            4 => [5, 6].into_iter().for_each(|ahead| line.pass(&response(middle, ahead).data(&[5; 1024]))),
            _ => {}
        }
    }
    for rule in ["again_from_the_oldest", "answers_what_arrived", "recovers"] {
        line.keeps(rule);
    }
}

#[test]
fn atomic_executed_again_breaks() {
    let add = |ahead| request(Opcode::RC_FETCH_ADD, ahead).atomic(0x1000, 7, 5, 0).ack();
    let answer = |ahead, msn, original: u64| {
        let mut answer = response(Opcode::RC_ATOMIC_ACKNOWLEDGE, ahead).aeth(0x1f, msn);
        answer.headers.extend(original.to_be_bytes());
        answer
    };
    let mut line = Line::default();
    line.pass(&add(0));
    line.lose(&answer(0, 1, 100));
    line.pass(&add(0));
    line.pass(&answer(0, 1, 100));
    line.pass(&add(1));
    line.pass(&answer(1, 2, 105));
    line.keeps("atomics_are_answered_alike");
    line.keeps("adds_once");
    line.pass(&add(2));
    line.lose(&answer(2, 3, 115));
    line.breaks("adds_once", "finds 115, expected 110");
    line.pass(&add(2));
    line.pass(&answer(2, 3, 120));
    line.breaks("atomics_are_answered_alike", "answered by 120");
}

#[test]
fn script_asks_for_what_follows() {
    let mut line = Line::default();
    line.pass(&write(0));
    line.pass(&ack(0, 1));
    let verdict = |line: &mut Line, name: &str| {
        let script = script(name).expect("a script");
        let outcomes = line.judge.outcomes(line.now, "test", Some(&script));
        outcomes.last().map(|outcome| (outcome.name.clone(), outcome.verdict)).expect("an outcome")
    };
    let lost = "write/middle_lost";
    assert_eq!(verdict(&mut line, lost), (format!("wire/script/{lost}"), Verdict::Breaks));
    assert_eq!(verdict(&mut line, "write/acknowledgement_lost").1, Verdict::Keeps);
}

#[test]
fn flood_of_queue_pairs_is_bounded() {
    let mut judge = WireJudge::default();
    for qpn in 0..3000 {
        let mut craft = write(0);
        craft.bth.dest_qp = Qpn::new(0x100 + qpn);
        let (head, body) = craft.parts([2; 6], [4; 6], A.into(), B.into());
        let mut bytes = [head, body, vec![0; ICRC_LEN]].concat();
        craft.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
        judge.sent(&Frame::whole(&bytes), Nanos::ZERO);
    }
    assert_eq!(judge.streams.len(), MOST_STREAMS);
}
