//! The order of the responder's checks, and the order of its responses (IBTA 9.5, 9.7.4.1, 9.7.5.1).

use roxie::time::Nanos;
use roxie::verbs::{QpState, WcStatus, WrOpcode};
use roxie::wire::{Bth, Ext, NakCode, Opcode, Psn, Reth};

use crate::transport::{Answer, FIRST, Stage};

/// Puts a request on the link without running the NIC.
fn request(stage: &mut Stage, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) {
    let (dest_qp, psn) = (stage.qp.handle.qpn, Psn::new(psn));
    stage.send(&Bth { opcode, dest_qp, psn, ack_req: true, ..Bth::default() }, &ext, payload);
}

/// A RETH with an unknown rkey.
fn nowhere(stage: &Stage, dma_len: u32) -> Ext {
    Ext::Reth(Reth { rkey: stage.memory.key ^ 0x100, ..stage.reth(0, dma_len) })
}

/// Every request also has a bad rkey.
//= test: IBTA 9.7.4.1: checks-have-an-order
#[test]
fn first_failed_check_decides_the_nak() {
    // The PSN is ahead.
    let mut stage = Stage::new();
    let bad = nowhere(&stage, 4);
    let ahead = stage.request(Opcode::RC_WRITE_ONLY, 1, bad, &[1; 4]);
    assert_eq!(ahead, [Answer::nak(0, NakCode::PsnSequence)]);
    assert_eq!(stage.state(), QpState::Rts);
    // The request is a duplicate.
    let mut stage = Stage::new();
    let good = Ext::Reth(stage.reth(0, 4));
    assert_eq!(stage.request(Opcode::RC_WRITE_ONLY, 0, good, &[1; 4]), [Answer::ack(0)]);
    assert_eq!(stage.request(Opcode::RC_WRITE_ONLY, 0, bad, &[2; 4]), [Answer::ack(0)]);
    assert_eq!((stage.state(), stage.memory.bytes(0, 4)), (QpState::Rts, vec![1; 4]));
    // Another message has begun.
    let mut stage = Stage::new();
    stage.receive(1, 0, 1000);
    stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; 256]);
    let bad = nowhere(&stage, 4);
    let interrupts = stage.request(Opcode::RC_WRITE_ONLY, 1, bad, &[1; 4]);
    assert_eq!(interrupts, [Answer::nak(1, NakCode::InvalidRequest)]);
    // The payload of FIRST does not fill the path MTU.
    let mut stage = Stage::new();
    let bad = nowhere(&stage, 600);
    let short = stage.request(Opcode::RC_WRITE_FIRST, 0, bad, &[1; 252]);
    assert_eq!(short, [Answer::nak(0, NakCode::InvalidRequest)]);
    // Only the rkey is wrong.
    let mut stage = Stage::new();
    let bad = nowhere(&stage, 4);
    let key = stage.request(Opcode::RC_WRITE_ONLY, 0, bad, &[1; 4]);
    assert_eq!(key, [Answer::nak(0, NakCode::RemoteAccess)]);
}

//= test: IBTA 9.7.5.1: acks-coalesce
#[test]
fn requests_of_a_burst_share_one_ack() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 4));
    for psn in 0..3 {
        request(&mut stage, Opcode::RC_WRITE_ONLY, psn, reth, &[1; 4]);
    }
    assert_eq!(stage.answers(), [Answer::ack(2)]);
    assert_eq!(stage.msn, Some(3));
}

//= test: IBTA 9.7.4: responder-counts-read-responses
//= test: IBTA 9.5: ack-follows-read-response
#[test]
fn read_response_keeps_its_place_among_acks() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 4));
    let write = |stage: &mut Stage, psn| request(stage, Opcode::RC_WRITE_ONLY, psn, reth, &[1; 4]);
    write(&mut stage, 0);
    write(&mut stage, 1);
    let read = Ext::Reth(stage.reth(0, 300));
    request(&mut stage, Opcode::RC_READ_REQUEST, 2, read, &[]);
    write(&mut stage, 4);
    write(&mut stage, 5);
    let answers: Vec<_> = stage.answers().iter().map(|answer| (answer.opcode, answer.psn)).collect();
    let expected = [
        (Opcode::RC_ACKNOWLEDGE, 1),
        (Opcode::RC_READ_RESPONSE_FIRST, 2),
        (Opcode::RC_READ_RESPONSE_LAST, 3),
        (Opcode::RC_ACKNOWLEDGE, 5),
    ];
    assert_eq!(answers, expected);
}

//= test: IBTA 9.4.3: write-takes-no-receive
#[test]
fn write_consumes_no_receive() {
    let mut stage = Stage::new();
    stage.receive(1, 100, 8);
    let reth = Ext::Reth(stage.reth(0, 260));
    stage.request(Opcode::RC_WRITE_FIRST, 0, reth, &[1; 256]);
    assert_eq!(stage.request(Opcode::RC_WRITE_LAST, 1, Ext::None, &[1; 4]), [Answer::ack(1)]);
    assert_eq!(stage.statuses(), [], "a WRITE generates no completion");
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 2, Ext::None, &[2; 4]), [Answer::ack(2)]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)], "it was there for the SEND");
}

/// A reply that the application posted while its acknowledgement was pending.
#[test]
fn acknowledgement_leaves_first_for_waiting_programs() {
    let reply = (Opcode::RC_WRITE_ONLY, FIRST);
    let ack = (Opcode::RC_ACKNOWLEDGE, Psn::new(0));
    for (waits, order) in [(false, [reply, ack]), (true, [ack, reply])] {
        let mut stage = Stage::new();
        stage.host.worker.order_acknowledgements(waits);
        let reth = Ext::Reth(stage.reth(0, 4));
        request(&mut stage, Opcode::RC_WRITE_ONLY, 0, reth, &[1; 4]);
        stage.post(WrOpcode::Write, 4);
        assert_eq!(stage.wait(Nanos(1000)), order, "the program waits: {waits}");
    }
}
