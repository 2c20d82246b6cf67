//! End-to-end credits (IBTA 9.7.7.2), where they are in use: how many receives the responder says it has, and what the requester holds back.

use roxie::time::Nanos;
use roxie::verbs::WrOpcode;
use roxie::wire::{Ext, Opcode, Syndrome};

use crate::{Answer, FIRST, Setup, Stage};

const SOON: Nanos = Nanos(1000);

//= test: IBTA 9.7.7.2: credits-hold-sends-back, message-without-credit-may-probe
#[test]
fn credits_hold_sends_back_and_not_writes() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    // One message done, one more receive is there.
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
fn credits_count_from_the_messages_that_the_peer_has_done() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    stage.wait(SOON);
    // The second is the last that the peer knows of, and it has two receives more.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 2 }, 2);
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    // The third is under way and takes one of them.
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 3)]);
}

#[test]
fn credits_that_were_given_are_not_taken_back_and_new_ones_may_come_with_an_old_ack() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 3 }, 1);
    // Said before the first was told of, and late: up to the fourth message it stays.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 0 }, 2);
    for _ in 0..3 {
        stage.post(WrOpcode::Send, 4);
    }
    assert_eq!(stage.wait(SOON).len(), 2, "the fifth waits");
    // The peer posts a receive and says so with its last acknowledgement.
    stage.acknowledge(FIRST + 1, Syndrome::Ack { credits: 3 }, 2);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 4)]);
}

//= test: IBTA 9.7.7.2: credits-are-told
#[test]
fn credits_say_how_many_receives_wait_where_they_are_in_use() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    for id in 0..6 {
        stage.receive(id, 0, 8);
    }
    // Codes stand for 0 1 2 3 4 6 8 ...: five receives are told as four.
    let told = [(0, 4), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)];
    for (psn, credits) in told {
        let answers = stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
        assert_eq!(answers, [Answer::acknowledge(psn, Syndrome::Ack { credits })], "PSN {psn}");
    }
}

//= test: IBTA 9.7.7.2: credits-are-told
#[test]
fn an_answer_to_a_read_tells_credits_too() {
    let mut stage = Stage::with(Setup { credits: true, ..Setup::default() });
    stage.receive(1, 0, 8);
    stage.receive(2, 0, 8);
    let reth = stage.reth(0, 8);
    let answers = stage.request(Opcode::RC_READ_REQUEST, 0, Ext::Reth(reth), &[]);
    assert_eq!(answers[0].syndrome, Some(Syndrome::Ack { credits: 2 }));
}
