use std::net::Ipv4Addr;

use roxie_wire::cm::{Rep, Req};
use roxie_wire::frame::FrameMut;
use roxie_wire::parse::ICRC_LEN;
use roxie_wire::{Opcode, Psn, Sack};

use super::*;
use crate::packet::Craft;

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

/// A capture, which has what is shown to it.
struct Capture {
    judge: WireJudge,
    frames: u64,
    now: Nanos,
}

impl Capture {
    fn new() -> Capture {
        Capture { judge: WireJudge::of_capture(), frames: 0, now: Nanos::ZERO }
    }

    /// Shows a packet, 1 us after the one before.
    fn has(&mut self, craft: &Craft) {
        self.show(craft, craft.bth.dest_qp == Qpn::new(QPS[1]));
    }

    /// Shows a packet from A to B, of any queue pair.
    fn right(&mut self, craft: &Craft) {
        self.show(craft, true);
    }

    fn show(&mut self, craft: &Craft, goes_right: bool) {
        (self.frames, self.now) = (self.frames + 1, self.now + Nanos(1000));
        let bytes = Line::bytes(craft, goes_right);
        let packet = parse(&Frame::whole(&bytes)).expect("a packet");
        self.judge.captured(&packet, self.frames, self.now, false);
    }

    fn ruling(&mut self, name: &str) -> Ruling {
        let rulings = self.judge.rulings(self.now);
        rulings.into_iter().find(|ruling| ruling.rule == name).expect("a rule")
    }

    /// Checks that no rule is broken, and that none is undecided.
    #[track_caller]
    fn is_clean(&mut self) {
        let wrong: Vec<_> = self
            .judge
            .rulings(self.now)
            .into_iter()
            .filter(|ruling| ruling.broken + ruling.undecided > 0)
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// Checks that a rule is broken once, by these frames, and no other.
    #[track_caller]
    fn breaks(&mut self, name: &str, side: Ipv4Addr, frames: &[u64], words: &str) {
        let rulings = self.judge.rulings(self.now);
        let broken: Vec<_> = rulings.iter().filter(|ruling| ruling.broken > 0).collect();
        assert!(broken.len() == 1 && broken[0].rule == name, "{broken:?}");
        let [finding] = &broken[0].findings[..] else { panic!("{broken:?}") };
        assert_eq!((finding.side, &finding.frames[..]), (side.into(), frames));
        assert!(finding.why.contains(words), "{}", finding.why);
    }
}

fn send(opcode: Opcode, ahead: u32, length: usize) -> Craft {
    request(opcode, ahead).data(&vec![7; length])
}

#[test]
fn capture_of_sender_shows_lost_request_twice() {
    let mut capture = Capture::new();
    (0..4).for_each(|ahead| capture.has(&write(ahead)));
    capture.has(&nak(1, 1));
    (1..4).for_each(|ahead| capture.has(&write(ahead)));
    capture.has(&ack(3, 4));
    capture.is_clean();
    for rule in ["again_from_the_gap", "nak_names_the_gap", "nak_once", "again_alike", "messages_once"] {
        assert!(capture.ruling(rule).kept > 0, "{rule}");
    }
}

#[test]
fn capture_of_receiver_lacks_lost_request() {
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&write(2));
    capture.has(&nak(1, 1));
    capture.has(&write(1));
    capture.has(&write(2));
    capture.has(&ack(2, 3));
    capture.is_clean();
}

#[test]
fn skipped_request_may_be_lost_before_a_capture() {
    let skips = |is_own: bool| {
        let mut capture = Capture::new();
        (0..2).for_each(|ahead| capture.has(&write(ahead)));
        capture.has(&write(3));
        capture.has(&nak(2, 2));
        let stream = &mut capture.judge.streams[0].1;
        stream.is_upstream |= is_own;
        // The request of the NAK is left out, or lost.
        capture.has(&write(3));
        capture
    };
    // A receiver's capture: PSN 2 did not come at first either.
    let mut capture = skips(false);
    let ruling = capture.ruling("again_from_the_gap");
    assert_eq!((ruling.broken, ruling.undecided), (0, 1));
    assert_eq!(ruling.why_undecided, "requests may be lost before the capture: frame 5");
    assert_eq!(skips(true).ruling("again_from_the_gap").broken, 1);
    // A sender's capture shows that what was lost had left: it is nearer to the sender than the loss.
    let mut capture = Capture::new();
    (0..4).for_each(|ahead| capture.has(&write(ahead)));
    capture.has(&nak(1, 1));
    capture.has(&write(2));
    assert_eq!(capture.ruling("again_from_the_gap").broken, 1);
}

#[test]
fn packets_that_a_capture_lacks_are_said() {
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&write(15));
    capture.has(&ack(15, 16));
    capture.has(&write(16));
    capture.has(&ack(16, 17));
    let ruling = capture.ruling("answers_what_arrived");
    assert_eq!((ruling.broken, ruling.undecided), (0, 1));
    assert_eq!(ruling.why_undecided, "14 packets are missing between frames 1 and 2");
    assert_eq!(capture.ruling("messages_once").broken, 0);
}

#[test]
fn capture_may_begin_within_a_message() {
    let mut capture = Capture::new();
    capture.has(&ack(2, 77));
    capture.has(&send(Opcode::RC_SEND_MIDDLE, 5, 1024));
    capture.has(&send(Opcode::RC_SEND_LAST, 6, 10).ack());
    capture.has(&ack(6, 80));
    capture.has(&send(Opcode::RC_SEND_ONLY, 7, 10).ack());
    capture.has(&ack(7, 81));
    capture.is_clean();
}

#[test]
fn wrong_lengths_are_found() {
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 1024));
    capture.has(&send(Opcode::RC_SEND_MIDDLE, 1, 512));
    capture.breaks("lengths_fit", A, &[2], "512 bytes; the path MTU is 1024 bytes");
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 100));
    capture.breaks("lengths_fit", A, &[1], "RC_SEND_FIRST");
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 1024));
    capture.has(&send(Opcode::RC_SEND_LAST, 1, 0));
    capture.breaks("lengths_fit", A, &[2], "0 bytes");
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 1024));
    capture.has(&send(Opcode::RC_SEND_LAST, 1, 4));
    capture.has(&send(Opcode::RC_SEND_ONLY, 2, 1100));
    capture.breaks("lengths_fit", A, &[3], "1100 bytes");
}

#[test]
fn wrong_order_of_opcodes_is_found() {
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 1024));
    capture.has(&send(Opcode::RC_SEND_ONLY, 1, 8));
    capture.breaks("opcodes_in_order", A, &[2], "Send First is followed by Send Only");
    // Also where the packet between was lost, and comes late.
    let mut capture = Capture::new();
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 1024));
    capture.has(&send(Opcode::RC_SEND_LAST, 2, 8));
    capture.has(&send(Opcode::RC_SEND_ONLY, 1, 8));
    let ruling = capture.ruling("opcodes_in_order");
    assert_eq!((ruling.broken, ruling.kept), (2, 0));
}

#[test]
fn other_request_of_the_same_psn_is_found() {
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&send(Opcode::RC_SEND_ONLY, 0, 8).ack());
    capture.breaks("again_alike", A, &[2], "sent again as RC_SEND_ONLY, and was Write Only");
}

#[test]
fn second_nak_of_a_gap_is_found() {
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&write(2));
    capture.has(&nak(1, 1));
    capture.has(&write(3));
    capture.has(&nak(1, 1));
    capture.breaks("nak_once", B, &[3, 5], "a second sequence NAK of PSN 16777215");
    // After the request came, and was executed, its PSN is not asked for. A third one would be another gap's.
    capture.has(&write(1));
    assert_eq!(capture.ruling("nak_once").broken, 1);
}

#[test]
fn read_responses_have_their_places() {
    let read = |ahead, dma| request(Opcode::RC_READ_REQUEST, ahead).reth(0x1000, 7, dma);
    let part = |opcode, ahead, length| response(opcode, ahead).aeth(0x1f, 1).data(&vec![5; length]);
    let middle = |ahead| response(Opcode::RC_READ_RESPONSE_MIDDLE, ahead).data(&[5; 1024]);
    let begun = || {
        let mut capture = Capture::new();
        capture.has(&read(0, 3000));
        capture.has(&part(Opcode::RC_READ_RESPONSE_FIRST, 0, 1024));
        capture.has(&middle(1));
        capture
    };
    let mut capture = begun();
    capture.has(&part(Opcode::RC_READ_RESPONSE_LAST, 2, 952));
    capture.is_clean();
    assert_eq!(capture.ruling("read_responses_fit").kept, 3);
    let mut capture = begun();
    capture.has(&part(Opcode::RC_READ_RESPONSE_LAST, 2, 900));
    capture.breaks("read_responses_fit", B, &[4], "packet 3 of 3 of the READ of 3000 bytes, which has 952");
    let mut capture = begun();
    capture.has(&middle(2));
    capture.breaks("read_responses_fit", B, &[4], "RC_READ_RESPONSE_MIDDLE of 1024 bytes");
    // A part that is asked for again begins with a FIRST.
    let mut capture = begun();
    capture.has(&read(1, 1976));
    capture.has(&part(Opcode::RC_READ_RESPONSE_FIRST, 1, 1024));
    capture.has(&part(Opcode::RC_READ_RESPONSE_LAST, 2, 952));
    capture.is_clean();
}

#[test]
fn queue_pair_may_connect_anew() {
    // By far PSNs.
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&ack(0, 1));
    capture.has(&send(Opcode::RC_SEND_ONLY, 1 << 20, 8).ack());
    capture.has(&response(Opcode::RC_ACKNOWLEDGE, 1 << 20).aeth(0x1f, 1));
    capture.is_clean();
    // By the connection manager, with the same PSN.
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&ack(0, 1));
    connect(&mut capture);
    capture.has(&send(Opcode::RC_SEND_ONLY, 0, 8).ack());
    capture.has(&ack(0, 1));
    capture.is_clean();
    assert_eq!(capture.ruling("begins_as_agreed").kept, 1);
}

/// Shows REQ and REP of a connection between the queue pairs, with a path MTU of 1,024 bytes.
fn connect(capture: &mut Capture) {
    let (first, asks) = (Psn::new(FIRST), Req { path_mtu: 3, ..Req::default() });
    let req = Req { local_comm_id: CommId(5), local_qpn: Qpn::new(QPS[0]), starting_psn: first, ..asks };
    let local_qpn = Qpn::new(QPS[1]);
    let rep = Rep { remote_comm_id: CommId(5), local_qpn, starting_psn: first, ..Rep::default() };
    capture.judge.connected(A.into(), B.into(), &CmMessage::Req(req));
    capture.judge.connected(B.into(), A.into(), &CmMessage::Rep(rep));
}

#[test]
fn connection_is_judged_by_what_was_agreed() {
    let mut capture = Capture::new();
    connect(&mut capture);
    capture.has(&send(Opcode::RC_SEND_FIRST, 0, 512));
    capture.breaks("lengths_fit", A, &[1], "512 bytes; the path MTU is 1024");
    let mut capture = Capture::new();
    connect(&mut capture);
    capture.has(&request(Opcode::RC_SEND_ONLY, 0).data(&[1; 8]).ack());
    assert_eq!(capture.ruling("begins_as_agreed").kept, 1);
    let mut capture = Capture::new();
    connect(&mut capture);
    // The PSN before the first.
    let before = Craft::new(Opcode::RC_SEND_ONLY, Qpn::new(QPS[1]), Psn::new(FIRST - 1)).data(&[1; 8]);
    capture.has(&before);
    capture.breaks("begins_as_agreed", A, &[1], "the peer asked for 16777214");
}

#[test]
fn responses_are_told_apart_by_the_connection_manager() {
    // Another queue pair of A sends the same PSNs to another of B.
    let other = |craft: Craft, qpn: u32| {
        let mut craft = craft;
        craft.bth.dest_qp = Qpn::new(qpn);
        craft
    };
    let play = |capture: &mut Capture| {
        (0..3).for_each(|ahead| capture.has(&write(ahead)));
        (0..3).for_each(|ahead| capture.right(&other(write(ahead), 0x44)));
        capture.has(&nak(1, 1));
        capture.has(&write(2));
    };
    // Which was answered is not known, so that what is sent again is not judged.
    let mut capture = Capture::new();
    play(&mut capture);
    assert_eq!(capture.ruling("again_from_the_gap").broken, 0);
    let mut capture = Capture::new();
    connect(&mut capture);
    play(&mut capture);
    assert_eq!(capture.ruling("again_from_the_gap").broken, 1);
}

#[test]
fn selective_repeat_sends_what_is_missing() {
    let sack = |ahead, msn| {
        let mut sack = response(Opcode::RC_SELECTIVE_ACKNOWLEDGE, ahead).aeth(0x1f, msn);
        let bitmap = Sack { count: 4, latest: Psn::new(FIRST) + 4, bitmap: 0b1010 };
        sack.headers.extend(bitmap.to_bytes());
        sack
    };
    let mut capture = Capture::new();
    (0..5).for_each(|ahead| capture.has(&write(ahead)));
    capture.has(&sack(1, 1));
    capture.has(&write(1));
    capture.has(&write(3));
    capture.has(&ack(4, 5));
    capture.is_clean();
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
