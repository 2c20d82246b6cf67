//! Packets of a capture, which may lack some.

use roxie_wire::Sack;
use roxie_wire::cm::{Rep, Req};

use super::*;

/// A capture, which has what is shown to it.
pub(super) struct Capture {
    judge: WireJudge,
    frames: u64,
    now: Nanos,
    is_own: bool,
    ip_id: Option<u16>,
}

impl Capture {
    pub(super) fn new() -> Capture {
        Capture {
            judge: WireJudge::of_capture(false),
            frames: 0,
            now: Nanos::ZERO,
            is_own: false,
            ip_id: None,
        }
    }

    /// Shows a packet, 1 us after the one before.
    pub(super) fn has(&mut self, craft: &Craft) {
        self.show(craft, craft.bth.dest_qp == Qpn::new(QPS[1]));
    }

    /// Shows a packet from A to B, of any queue pair.
    fn right(&mut self, craft: &Craft) {
        self.show(craft, true);
    }

    fn show(&mut self, craft: &Craft, goes_right: bool) {
        (self.frames, self.now) = (self.frames + 1, self.now + Nanos(1000));
        let mut bytes = Line::bytes(craft, goes_right);
        if let Some(id) = self.ip_id {
            // Identification and checksum of the IPv4 header; the ICRC is not checked again.
            bytes[18..20].copy_from_slice(&id.to_be_bytes());
            bytes[24..26].fill(0);
            let words = bytes[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
            let sum: u32 = words.sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let packet = parse(&Frame::whole(&bytes)).expect("a packet");
        self.judge.captured(&packet, self.frames, self.now, self.is_own);
    }

    pub(super) fn ruling(&mut self, name: &str) -> Ruling {
        let rulings = self.judge.rulings(self.now);
        rulings.into_iter().find(|ruling| ruling.rule == name).expect("a rule")
    }

    /// Checks that no rule is broken, and that none is undecided.
    #[track_caller]
    pub(super) fn is_clean(&mut self) {
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
    pub(super) fn breaks(&mut self, name: &str, side: Ipv4Addr, frames: &[u64], words: &str) {
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
        capture.is_own = is_own;
        (0..4).for_each(|ahead| capture.has(&write(ahead)));
        capture.is_own = false;
        capture.has(&nak(1, 1));
        capture.is_own = is_own;
        capture.has(&write(2));
        capture.ruling("again_from_the_gap")
    };
    let elsewhere = skips(false);
    assert_eq!((elsewhere.broken, elsewhere.undecided), (0, 1));
    assert_eq!(elsewhere.why_undecided, "requests may be lost before the capture: frame 6");
    assert_eq!(skips(true).broken, 1);
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
    let doubled = |id: u16| {
        let mut capture = Capture::new();
        capture.has(&write(0));
        capture.has(&write(2));
        capture.ip_id = Some(7);
        capture.has(&nak(1, 1));
        capture.ip_id = Some(id);
        capture.has(&nak(1, 1));
        capture.ruling("nak_once")
    };
    let broken = doubled(8);
    assert_eq!((broken.broken, &broken.findings[0].frames[..]), (1, &[3, 4][..]));
    assert!(broken.findings[0].why.contains("a second sequence NAK of PSN 16777215"));
    // One with the same identification may be a copy that the network made.
    assert_eq!((doubled(7).broken, doubled(7).undecided), (0, 1));
}

#[test]
fn path_mtu_does_not_follow_from_missing_requests() {
    let read = |ahead| request(Opcode::RC_READ_REQUEST, ahead).reth(0x1000, 7, 4096);
    let only = |ahead| response(Opcode::RC_READ_RESPONSE_ONLY, ahead).aeth(0x1f, 1).data(&[5; 4096]);
    let mut capture = Capture::new();
    capture.has(&read(0));
    // The request in between is missing: two PSNs for 4096 bytes would be a path MTU of 2048.
    capture.has(&read(2));
    capture.has(&only(0));
    capture.has(&only(2));
    assert_eq!(capture.ruling("lengths_fit").broken, 0);
    assert_eq!(capture.ruling("read_responses_fit").broken, 0);
}

#[test]
fn queue_pair_may_answer_another_one_later() {
    // Without the connection manager, the requester's queue pair is connected to another one.
    let mut capture = Capture::new();
    capture.has(&write(0));
    capture.has(&ack(0, 1));
    let other = |ahead: u32| {
        let mut craft = write(ahead + (1 << 20));
        craft.bth.dest_qp = Qpn::new(0x44);
        craft
    };
    capture.right(&other(0));
    capture.has(&ack(1 << 20, 1));
    capture.right(&other(1));
    capture.has(&ack((1 << 20) + 1, 2));
    capture.is_clean();
    assert_eq!(capture.ruling("answers_what_arrived").kept, 3);
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
    let mut capture = Capture { is_own: true, ..Capture::new() };
    play(&mut capture);
    assert_eq!(capture.ruling("again_from_the_gap").broken, 0);
    let mut capture = Capture { is_own: true, ..Capture::new() };
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
