//! End-to-end credits (IBTA 9.7.7.2): the responder advertises its posted receives, and the requester holds SENDs back
//! without a credit.

use roxie::time::Nanos;
use roxie::verbs::WrOpcode;
use roxie::wire::{Ext, Opcode, Syndrome};

use crate::transport::{Answer, FIRST, Setup, Stage};

const SOON: Nanos = Nanos(1000);

//= test: IBTA 9.7.7.2: credits-hold-sends-back, message-without-credit-may-probe
#[test]
fn credits_limit_sends_but_not_writes() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    // One message executed, one more receive posted.
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 1 }, 1);
    stage.post(WrOpcode::Send, 4);
    stage.post(WrOpcode::Send, 4);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 1)], "the second send has no credit");
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 0 }, 2);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 2)], "the only message may always probe");
    stage.post(WrOpcode::Write, 4);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 3)], "a WRITE needs none");
}

//= test: IBTA 9.7.7.2: credits-hold-sends-back
#[test]
fn credits_count_from_the_acknowledged_msn() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    stage.wait(SOON);
    // The peer has executed two messages and has two more receives.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 2 }, 2);
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    // The third message, already sent, takes one of them.
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 3)]);
}

#[test]
fn late_ack_never_lowers_the_credit_limit() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 3 }, 1);
    // An older advertisement that arrives late: the limit stays at the fourth message.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 0 }, 2);
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    assert_eq!(stage.wait(SOON).len(), 2, "the fifth waits");
    // The peer posts a receive and repeats its last ACK with the new credit count.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 3 }, 2);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 4)]);
}

//= test: IBTA 9.7.7.2: credits-are-told
#[test]
fn acks_carry_the_posted_receives_as_credits() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    for id in 0..6 {
        stage.receive(id, 0, 8);
    }
    // Credit codes encode 0 1 2 3 4 6 8 ...: five receives are advertised as four.
    let advertised = [(0, 4), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)];
    for (psn, credits) in advertised {
        let answers = stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
        assert_eq!(answers, [Answer::acknowledge(psn, Syndrome::Ack { credits })], "PSN {psn}");
    }
}

//= test: IBTA 9.7.7.2: credits-are-told
#[test]
fn read_response_carries_credits() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.receive(1, 0, 8);
    stage.receive(2, 0, 8);
    let reth = stage.reth(0, 8);
    let answers = stage.request(Opcode::RC_READ_REQUEST, 0, Ext::Reth(reth), &[]);
    assert_eq!(answers[0].syndrome, Some(Syndrome::Ack { credits: 2 }));
}
