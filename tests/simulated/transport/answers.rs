//! Responses that no conforming responder sends (IBTA 9.9.2). The request that they match fails with BAD_RESP.

use roxie::time::Nanos;
use roxie::verbs::{QpState, SendFlags, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Bth, Ext, NakCode, Opcode, Psn, Syndrome};

use crate::transport::{FIRST, Stage, TIMEOUT, template};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const FULL: [u8; 256] = [7; 256];

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome: syndrome.into(), msn: 1 }
}

/// A stage that has sent one request.
fn requested(opcode: WrOpcode, length: u32) -> Stage {
    let mut stage = Stage::new();
    stage.post_as(1, opcode, SendFlags::SIGNALED, length);
    assert!(!stage.wait(SOON).is_empty());
    stage
}

fn assert_bad_response(stage: &mut Stage, what: &str) {
    assert_eq!(stage.wait(SOON), [], "{what}");
    assert_eq!(stage.statuses(), [(1, WcStatus::BadResp)], "{what}");
    assert_eq!(stage.state(), QpState::Err, "{what}");
    assert_eq!(stage.memory.bytes(0, 64), [0; 64], "{what}: nothing was stored");
}

//= test: IBTA 9.9.2: ack-has-no-payload
#[test]
fn acknowledgement_with_payload_is_a_bad_response() {
    let naks = [
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
    ];
    for syndrome in [ACK].into_iter().chain(naks) {
        let mut stage = requested(WrOpcode::Write, 4);
        stage.answer(Opcode::RC_ACKNOWLEDGE, FIRST, Ext::Aeth(aeth(syndrome)), &[1; 4]);
        assert_bad_response(&mut stage, &format!("{syndrome:?} with 4 bytes"));
    }
    let mut stage = requested(WrOpcode::FetchAdd, 8);
    stage.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, FIRST, Ext::AtomicAck(aeth(ACK), 5), &[1; 4]);
    assert_bad_response(&mut stage, "an ATOMIC ACKNOWLEDGE with 4 bytes");
}

/// A response that matches no outstanding request is dropped before its payload is judged.
//= test: IBTA 9.7.6: ghost-ack-is-dropped, old-ack-is-dropped
#[test]
fn old_and_ghost_acks_with_payload_are_dropped() {
    let mut stage = requested(WrOpcode::Write, 4);
    for psn in [FIRST - 1, FIRST + 1] {
        stage.answer(Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth(ACK)), &[1; 4]);
        assert_eq!(stage.wait(SOON), []);
        assert_eq!(stage.statuses(), []);
    }
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn single_packet_read_requires_an_only_response() {
    let mut stage = requested(WrOpcode::Read, 8);
    stage.answer(Opcode::RC_READ_RESPONSE_LAST, FIRST, Ext::Aeth(aeth(ACK)), &[7; 8]);
    assert_bad_response(&mut stage, "LAST");
}

//= test: IBTA 9.9.2: response-fits-its-request
#[test]
fn misplaced_read_response_opcode_is_a_bad_response() {
    let with_aeth = Ext::Aeth(aeth(ACK));
    let mut stage = requested(WrOpcode::Read, 768);
    stage.read_middle(FIRST, 7);
    assert_bad_response(&mut stage, "MIDDLE at the beginning");

    let begun = || {
        let mut stage = requested(WrOpcode::Read, 768);
        stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, with_aeth, &FULL);
        assert_eq!(stage.wait(SOON), []);
        stage
    };
    let mut stage = begun();
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST + 1, with_aeth, &FULL);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::BadResp)], "FIRST where MIDDLE is due");
    assert_eq!(stage.memory.bytes(256, 256), [0; 256]);

    let mut stage = begun();
    stage.read_middle(FIRST + 1, 7);
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 2, with_aeth, &FULL);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::BadResp)], "ONLY where LAST is due");
}

/// The response to the rest of a READ begins with FIRST by the specification, and with MIDDLE in rdma_rxe.
#[test]
fn resumed_read_accepts_first_or_middle() {
    let with_aeth = Ext::Aeth(aeth(ACK));
    let rest = |stage: &mut Stage, from: Psn| {
        let again = stage.wait(TIMEOUT + SOON);
        assert_eq!(again, [(Opcode::RC_READ_REQUEST, from)]);
    };
    for first in [true, false] {
        let mut stage = requested(WrOpcode::Read, 768);
        stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, with_aeth, &FULL);
        stage.wait(SOON);
        rest(&mut stage, FIRST + 1);
        match first {
            true => stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST + 1, with_aeth, &FULL),
            false => stage.read_middle(FIRST + 1, 7),
        }
        stage.wait(SOON);
        assert_eq!(stage.statuses(), []);
        rest(&mut stage, FIRST + 2);
        let opcode = if first { Opcode::RC_READ_RESPONSE_ONLY } else { Opcode::RC_READ_RESPONSE_LAST };
        stage.answer(opcode, FIRST + 2, with_aeth, &FULL);
        stage.wait(SOON);
        assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(stage.memory.bytes(0, 768), [7; 768]);
    }
    // The READ was resumed at the second packet, so ONLY is wrong at the third.
    let mut stage = requested(WrOpcode::Read, 768);
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, with_aeth, &FULL);
    stage.wait(SOON);
    rest(&mut stage, FIRST + 1);
    stage.read_middle(FIRST + 1, 7);
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 2, with_aeth, &FULL);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::BadResp)]);
}

/// A response from another address, or with another P_Key, is dropped. The peer's own response still completes the
/// READ.
#[test]
fn read_response_from_a_stranger_is_dropped() {
    let mut stage = requested(WrOpcode::Read, 8);
    let only = Bth {
        opcode: Opcode::RC_READ_RESPONSE_ONLY,
        dest_qp: stage.qp.handle.qpn,
        psn: FIRST,
        ..Bth::default()
    };
    let ext = Ext::Aeth(aeth(ACK));
    let peers = std::mem::replace(&mut stage.template, template(3));
    stage.send(&only, &ext, &[9; 8]);
    stage.template = peers;
    stage.send(&Bth { pkey: 0x1234, ..only }, &ext, &[9; 8]);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!((stage.counter("rx_wrong_source"), stage.counter("rx_bad_pkey")), (1, 1));
    assert_eq!((stage.statuses(), stage.memory.bytes(0, 8)), (vec![], vec![0; 8]));
    stage.send(&only, &ext, &[7; 8]);
    stage.wait(SOON);
    assert_eq!((stage.statuses(), stage.memory.bytes(0, 8)), (vec![(1, WcStatus::Success)], vec![7; 8]));
}
