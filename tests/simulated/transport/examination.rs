//! A peer that may have lost the connection: packets by which a QP hears of it, and the question that the QP asks.

use roxie::nic::{Answer as Reply, Command};
use roxie::time::Nanos;
use roxie::verbs::{QpAttr, QpState, QpType, WcStatus, WrOpcode};
use roxie::wire::{Ext, Opcode, Syndrome};

use crate::transport::{Answer, FIRST, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
/// Resolution of the NIC's timers, and more.
const TICK: Nanos = Nanos(20_000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

impl Stage {
    /// Returns true if the QP has heard from its peer since the last call; else has it ask.
    fn has_received(&mut self) -> bool {
        let command = Command::ExamineQp(self.qp.handle.index, true);
        match self.host.call(self.now, command) {
            Ok(Reply::Heard(has_heard)) => has_heard,
            other => panic!("an answer: {other:?}"),
        }
    }
}

#[test]
fn unused_qp_asks_with_psn_before_the_first() {
    let mut stage = Stage::new();
    assert!(!stage.has_received());
    let (question, payload) = stage.packets().pop().expect("a question");
    let expected = (Opcode::RC_SEND_ONLY, FIRST - 1, true);
    assert_eq!((question.bth.opcode, question.bth.psn, question.bth.ack_req), expected);
    assert!(payload.is_empty());
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), [], "asked once");
    assert!(!stage.has_received());
    stage.packets();
    // The responder of the peer has executed nothing.
    stage.acknowledge(FIRST - 1, ACK, 0);
    stage.wait(SOON);
    assert!(stage.has_received());
    assert_eq!(stage.wait(SOON), [], "no question to a peer that was heard");
    assert_eq!((stage.state(), stage.statuses()), (QpState::Rts, Vec::new()));
}

//= test: IBTA 9.7.5.1: duplicate-is-not-executed
#[test]
fn question_is_acknowledged_in_any_state() {
    let mut stage = Stage::new();
    let before_first = 0xff_ffff;
    let question = |stage: &mut Stage, psn| stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[]);
    assert_eq!(question(&mut stage, before_first), [Answer::ack(before_first)]);
    let reth = Ext::Reth(stage.reth(0, 8));
    stage.request(Opcode::RC_WRITE_ONLY, 0, reth, &[1; 8]);
    assert_eq!(question(&mut stage, 0), [Answer::ack(0)]);
    let reth = Ext::Reth(stage.reth(0, 600));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 1, reth, &[]).len(), 3);
    // An ACK never has the PSN of a READ.
    assert_eq!(question(&mut stage, 3), [Answer::ack(0)]);
    assert_eq!((stage.state(), stage.statuses()), (QpState::Rts, Vec::new()));
}

/// The timer, the retries and the PSNs are those of a QP that was not examined.
#[test]
fn question_changes_nothing_outstanding() {
    let mut both = [false, true].map(|examined| {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Send, 4);
        let mut sent = stage.wait(Nanos(TIMEOUT.0 / 2));
        if examined {
            assert!(!stage.has_received());
            assert_eq!(stage.packets()[0].0.bth.psn, FIRST - 1);
        }
        sent.extend(stage.wait(Nanos(TIMEOUT.0 * 2)));
        stage.acknowledge(FIRST, ACK, 1);
        stage.wait(SOON);
        let counters = ["local_ack_timeout_err", "retransmitted_packets"].map(|name| stage.counter(name));
        (sent, counters, stage.statuses(), stage)
    });
    let [(sent, counters, statuses, _), other] = &mut both;
    assert_eq!((&*sent, &*counters, &*statuses), (&other.0, &other.1, &other.2));
    assert_eq!(sent.len(), 3, "{sent:?}");
}

#[test]
fn answer_acknowledges_what_is_outstanding() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    assert!(!stage.has_received());
    assert_eq!(stage.packets()[0].0.bth.psn, FIRST - 1);
    stage.acknowledge(FIRST, ACK, 1);
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), []);
    assert_eq!((stage.has_received(), stage.statuses()), (true, vec![(0, WcStatus::Success)]));
}

#[test]
fn requests_and_responses_are_heard() {
    let mut stage = Stage::new();
    let notify = |stage: &mut Stage| {
        let has_received = stage.has_received();
        stage.wait(TICK);
        has_received
    };
    let reth = Ext::Reth(stage.reth(0, 8));
    // By the fast path, as a duplicate, and by the slow path.
    stage.request(Opcode::RC_WRITE_ONLY, 0, reth, &[1; 8]);
    assert!(notify(&mut stage));
    stage.request(Opcode::RC_WRITE_ONLY, 0, reth, &[1; 8]);
    assert!(notify(&mut stage));
    stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[]);
    assert!(notify(&mut stage));
    assert!(!notify(&mut stage));
    // A PSN ahead is a guess.
    stage.request(Opcode::RC_SEND_ONLY, 77, Ext::None, &[]);
    assert!(!notify(&mut stage));
    // An acknowledgement of nothing may be the answer of rdma_rxe, if the QP has asked.
    stage.acknowledge(FIRST + 77, ACK, 1);
    stage.wait(SOON);
    assert!(notify(&mut stage));
    stage.acknowledge(FIRST + 77, ACK, 1);
    stage.wait(SOON);
    assert!(!notify(&mut stage));
    stage.template = super::template(3);
    stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[]);
    assert!(!notify(&mut stage), "another host's packet");
}

#[test]
fn failed_or_unreliable_qp_asks_nothing() {
    let mut stage = Stage::new();
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    assert!(!stage.has_received());
    stage.host.modify(stage.now, &stage.qp, &error).expect("a legal transition");
    stage.wait(SOON);
    assert!(!stage.has_received());
    assert_eq!(stage.packets().len(), 0);
    let mut stage = Stage::with(Setup { qp_type: QpType::Uc, ..Setup::default() });
    assert!(!stage.has_received());
    assert_eq!(stage.packets().len(), 0);
}

#[test]
fn drained_queue_asks_nothing() {
    let mut stage = Stage::new();
    let drain = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &drain).expect("a legal transition");
    assert!(!stage.has_received());
    assert_eq!(stage.packets().len(), 0);
}
