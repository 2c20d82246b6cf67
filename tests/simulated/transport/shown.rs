//! A peer has to show that it answers probes before a QP relies on that (`AckRequestPolicy::Shown`).

use roxie::time::Nanos;
use roxie::transport::AckRequestPolicy;
use roxie::verbs::{QpAttr, QpState, SendFlags, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, NakCode, Opcode, Psn, Syndrome};

use crate::transport::{FIRST, RETRIES, Setup, Stage, TIMEOUT, attributes};

const SOON: Nanos = Nanos(1000);
/// Time without anything outstanding before a test, and time after which a late message is asked for.
const REST: Nanos = Nanos(1_000_000);
/// Resolution of the NIC's timers, and more.
const TICK: Nanos = Nanos(20_000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const UNSIGNALED: SendFlags = SendFlags::empty();

fn setup(ack_requests: AckRequestPolicy) -> Setup {
    Setup { sq_sig_all: false, ack_requests, ..Setup::default() }
}

/// Returns a stage whose peer has yet to show that it answers.
fn stage() -> Stage {
    Stage::with(setup(AckRequestPolicy::Shown))
}

impl Stage {
    /// Sends a message of one packet, and returns its PSN and whether it asks.
    fn sent(&mut self, flags: SendFlags) -> (Psn, bool) {
        self.post_as(1, WrOpcode::Send, flags, 4);
        let [(packet, _)] = &self.packets()[..] else { panic!("a packet") };
        (packet.bth.psn, packet.bth.ack_req)
    }

    /// Sends a message of one packet, which is acknowledged. Returns its PSN and whether it asks.
    fn exchange(&mut self, flags: SendFlags) -> (Psn, bool) {
        let (psn, requests_ack) = self.sent(flags);
        self.acknowledge(psn, ACK, 1);
        self.wait(SOON);
        (psn, requests_ack)
    }

    /// Waits for a test, which must have this PSN.
    fn test(&mut self, psn: Psn) {
        assert_eq!(self.wait(REST + TICK), [(Opcode::RC_SEND_ONLY, psn)], "a test");
    }

    /// Has the peer answer the next test, which must have this PSN.
    fn passed(&mut self, psn: Psn) {
        self.test(psn);
        self.acknowledge(psn, ACK, 1);
        self.wait(SOON);
    }
}

//= test: IBTA 9.7.3: ack-is-asked-for
#[test]
fn two_answers_let_messages_ask_late() {
    let mut stage = stage();
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST, true));
    assert_eq!(stage.wait(REST - SOON - SOON), []);
    stage.now = stage.now + TICK;
    let (test, payload) = stage.packets().pop().expect("a test");
    assert_eq!((test.bth.opcode, test.bth.psn), (Opcode::RC_SEND_ONLY, FIRST));
    assert_eq!((test.bth.ack_req, payload.len()), (true, 0));
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST + 1, true), "one answer is not enough");
    stage.passed(FIRST + 1);
    assert_eq!(stage.wait(TIMEOUT), [], "it has shown enough");
    assert_eq!(stage.sent(UNSIGNALED), (FIRST + 2, false));
    assert_eq!(stage.wait(REST + TICK), [(Opcode::RC_SEND_ONLY, FIRST + 1)], "a probe");
    assert_eq!((stage.state(), stage.statuses()), (QpState::Rts, Vec::new()));
}

#[test]
fn refused_unanswered_and_void_tests_end_the_attempt() {
    let mut stage = stage();
    stage.exchange(UNSIGNALED);
    stage.passed(FIRST);
    stage.test(FIRST);
    // An answer that comes later than a quarter of the timeout is none.
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 4) + TICK), []);
    stage.acknowledge(FIRST, ACK, 1);
    stage.passed(FIRST);
    stage.test(FIRST);
    stage.acknowledge(FIRST, INVALID, 1);
    stage.passed(FIRST);
    stage.test(FIRST);
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST + 1, true), "a request makes the test void");
    assert_eq!(stage.wait(TIMEOUT), [], "three failures are enough");
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST + 2, true));
    assert_eq!((stage.state(), stage.counter("local_ack_timeout_err")), (QpState::Rts, 0));
}

#[test]
fn test_needs_an_acknowledged_message_before_it() {
    let untested = |why: &str, stage: &mut Stage| assert_eq!(stage.wait(TIMEOUT), [], "{why}");
    untested("nothing was sent", &mut stage());
    let mut signaled = stage();
    signaled.exchange(SendFlags::SIGNALED);
    untested("no message is unsignaled", &mut signaled);
    let mut reads = stage();
    reads.exchange(UNSIGNALED);
    reads.post_as(2, WrOpcode::Read, UNSIGNALED, 4);
    assert_eq!(reads.packets().len(), 1);
    let aeth = Aeth { syndrome: ACK.into(), msn: 2 };
    reads.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 1, Ext::Aeth(aeth), &[7; 4]);
    untested("the last request was a READ", &mut reads);
    let mut always = Stage::with(setup(AckRequestPolicy::Always));
    always.exchange(UNSIGNALED);
    untested("each message asks in any case", &mut always);
}

#[test]
fn request_keeps_its_own_timeout_after_a_test() {
    for (before, is_polled) in [(SOON, true), (REST + TICK, true), (REST + TICK, false)] {
        let mut stage = stage();
        stage.exchange(UNSIGNALED);
        match is_polled {
            true => drop(stage.wait(before)),
            // The request leaves in the pass in which the test is due.
            false => stage.now = stage.now + before,
        }
        let (psn, _) = stage.sent(UNSIGNALED);
        assert_eq!(stage.wait(TIMEOUT - TICK), []);
        assert_eq!(stage.wait(TICK + TICK), [(Opcode::RC_SEND_ONLY, psn)]);
    }
}

/// A probe that has no answer costs no retry, and is the last one.
#[test]
fn unanswered_probe_ends_late_requests() {
    let mut stage = Stage::with(setup(AckRequestPolicy::Late));
    stage.exchange(UNSIGNALED);
    assert_eq!(stage.sent(UNSIGNALED), (FIRST + 1, false));
    assert_eq!(stage.wait(REST + TICK), [(Opcode::RC_SEND_ONLY, FIRST)]);
    for _ in 0..=RETRIES {
        assert_eq!(stage.wait(TIMEOUT), [(Opcode::RC_SEND_ONLY, FIRST + 1)]);
    }
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.wait(SOON);
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST + 2, true));
    assert_eq!((stage.state(), stage.counter("retry_exceeded_err")), (QpState::Rts, 0));
    stage.sent(UNSIGNALED);
    stage.wait(Nanos(TIMEOUT.0 * (u64::from(RETRIES) + 2)));
    assert_eq!(stage.statuses(), [(1, WcStatus::RetryExc)], "the retries are counted as before");
}

/// What was sent along the old path may be unanswered there, which says nothing of the new one.
#[test]
fn change_of_path_begins_anew() {
    let mut stage = stage();
    stage.exchange(UNSIGNALED);
    stage.passed(FIRST);
    stage.passed(FIRST);
    assert_eq!(stage.sent(UNSIGNALED), (FIRST + 1, false));
    let drained = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    let moved = QpAttr { av: Some(stage.host.path(2, false)), ..drained };
    for attr in [drained, moved] {
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
        stage.wait(SOON);
    }
    assert_eq!(stage.wait(TIMEOUT + TICK), [(Opcode::RC_SEND_ONLY, FIRST + 1)], "sent again");
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.wait(SOON);
    let resumed = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &resumed).expect("a legal transition");
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST + 2, true));
    stage.test(FIRST + 2);
}

#[test]
fn new_connection_begins_anew() {
    let mut stage = stage();
    stage.exchange(UNSIGNALED);
    stage.passed(FIRST);
    stage.passed(FIRST);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("a legal transition");
    for attr in attributes(&stage.host, &setup(AckRequestPolicy::Shown)) {
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    assert_eq!(stage.exchange(UNSIGNALED), (FIRST, true));
    stage.test(FIRST);
}
