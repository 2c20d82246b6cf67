//! The requester: what it sends, and what answers do to it (IBTA 9.7.2, 9.7.6, 9.9.2).

use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{LKey, QpState, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, NakCode, Opcode, Syndrome, rnr_timer_ns};

use crate::{FIRST, RETRIES, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

#[test]
fn an_acknowledgement_completes_everything_before_it_in_order() {
    let mut stage = Stage::new();
    for id in 0..4 {
        let flags = if id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        stage.post_as(id, WrOpcode::Write, flags, 4);
    }
    stage.wait(SOON);
    stage.acknowledge(FIRST + 2, ACK, 3);
    stage.wait(SOON);
    // Every send of this QP completes, signaled or not.
    let success = |id| (id, WcStatus::Success);
    assert_eq!(stage.statuses(), [success(0), success(1), success(2)]);
    stage.acknowledge(FIRST + 3, ACK, 4);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [success(3)]);
}

#[test]
fn each_nak_gives_its_status_and_flushes_the_rest() {
    let cases = [
        (NakCode::InvalidRequest, WcStatus::RemInvReq),
        (NakCode::RemoteAccess, WcStatus::RemAccess),
        (NakCode::RemoteOperational, WcStatus::RemOp),
    ];
    for (code, status) in cases {
        let mut stage = Stage::new();
        stage.receive(100, 0, 8);
        stage.receive(101, 8, 8);
        for id in 0..4 {
            stage.post_as(id, WrOpcode::Write, SendFlags::empty(), 4);
        }
        stage.wait(SOON);
        stage.acknowledge(FIRST + 1, Syndrome::Nak(code), 1);
        stage.wait(SOON);
        let flushed = |id| (id, WcStatus::WrFlush);
        let expected =
            [(0, WcStatus::Success), (1, status), flushed(2), flushed(3), flushed(100), flushed(101)];
        assert_eq!(stage.statuses(), expected, "{code:?}");
        let counted =
            ["req_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error"].map(|c| stage.counter(c));
        assert_eq!(counted, [1, 2, 2], "{code:?}");
        assert_eq!(stage.state(), QpState::Err);
        stage.acknowledge(FIRST + 3, ACK, 4);
        assert_eq!(stage.wait(TIMEOUT), [], "a dead QP says nothing");
        assert_eq!(stage.statuses(), []);
        // What is posted later flushes too.
        stage.post_as(9, WrOpcode::Write, SendFlags::empty(), 4);
        stage.receive(109, 0, 8);
        stage.wait(SOON);
        let mut later = stage.statuses();
        later.sort_by_key(|(id, _)| *id);
        assert_eq!(later, [flushed(9), flushed(109)]);
    }
}

#[test]
fn silence_costs_retries_and_then_the_connection() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 4);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 4);
    let both = [(Opcode::RC_SEND_ONLY, FIRST), (Opcode::RC_SEND_ONLY, FIRST + 1)];
    assert_eq!(stage.wait(SOON), both);
    for attempt in 0..RETRIES {
        assert_eq!(stage.wait(TIMEOUT - SOON - SOON), [], "attempt {attempt}: not before the timeout");
        assert_eq!(stage.wait(SOON + SOON + SOON), both, "attempt {attempt}");
    }
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 4)), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::RetryExc), (2, WcStatus::WrFlush)]);
    assert_eq!(stage.counter("local_ack_timeout_err"), u64::from(RETRIES) + 1);
    assert_eq!(stage.counter("retry_exceeded_err"), 1);
}

#[test]
fn progress_gives_the_retries_back() {
    let mut stage = Stage::new();
    for _ in 0..5 {
        stage.post(WrOpcode::Send, 4);
    }
    stage.wait(SOON);
    for k in 0..5 {
        for _ in 0..RETRIES {
            assert!(!stage.wait(TIMEOUT + SOON).is_empty());
        }
        stage.acknowledge(FIRST + k, ACK, k + 1);
        stage.wait(SOON);
    }
    assert_eq!(stage.statuses().len(), 5);
    assert_eq!(stage.state(), QpState::Rts);
}

#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_sends_from_there() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 3 * 256);
    stage.wait(SOON);
    stage.acknowledge(FIRST + 2, Syndrome::Nak(NakCode::PsnSequence), 1);
    let again = [(Opcode::RC_WRITE_MIDDLE, FIRST + 2), (Opcode::RC_WRITE_LAST, FIRST + 3)];
    assert_eq!(stage.wait(SOON), again);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    assert_eq!((stage.counter("packet_seq_err"), stage.counter("retransmitted_packets")), (1, 2));
}

#[test]
fn the_wait_for_a_receiver_takes_as_long_as_the_peer_says() {
    for timer in 0..32 {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Send, 4);
        stage.wait(SOON);
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer }, 0);
        let wait = Nanos(rnr_timer_ns(timer));
        assert_eq!(stage.wait(wait - Nanos(2000)), [], "timer {timer}");
        assert_eq!(stage.wait(Nanos(6000)), [(Opcode::RC_SEND_ONLY, FIRST)], "timer {timer}");
    }
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_ghosts() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    for syndrome in [ACK, Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak { timer: 1 }] {
        stage.acknowledge(FIRST + 1, syndrome, 2);
        stage.acknowledge(FIRST + 0x7f_ffff, syndrome, 2);
    }
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.counter("ghost_acks"), 6);
    assert_eq!(stage.state(), QpState::Rts);
}

#[test]
fn reserved_syndromes_are_dropped() {
    for syndrome in [0x40, 0x80, 0xa0, 0xc0, 0xe0, 0x65, 0x7f] {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Send, 4);
        stage.wait(SOON);
        stage.answer(Opcode::RC_ACKNOWLEDGE, FIRST, Ext::Aeth(Aeth { syndrome, msn: 1 }), &[]);
        stage.wait(SOON);
        assert_eq!((stage.statuses().len(), stage.state()), (0, QpState::Rts), "syndrome {syndrome:#04x}");
    }
}

#[test]
fn a_read_is_stored_in_order_and_asked_for_again_from_the_hole() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Read, 4 * 256);
    stage.wait(SOON);
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, aeth, &[1; 256]);
    stage.answer(Opcode::RC_READ_RESPONSE_MIDDLE, FIRST + 2, Ext::None, &[3; 256]);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_READ_REQUEST, FIRST + 1)]);
    assert_eq!(stage.counter("implied_nak_seq_err"), 1);
    stage.answer(Opcode::RC_READ_RESPONSE_LAST, FIRST + 3, aeth, &[4; 256]);
    assert_eq!(stage.wait(SOON), [], "asked for once");
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST + 1, aeth, &[2; 256]);
    stage.answer(Opcode::RC_READ_RESPONSE_MIDDLE, FIRST + 2, Ext::None, &[3; 256]);
    stage.answer(Opcode::RC_READ_RESPONSE_LAST, FIRST + 3, aeth, &[4; 256]);
    stage.wait(SOON);
    let done = stage.completions();
    assert_eq!((done.len(), done[0].opcode, done[0].byte_len), (1, WcOpcode::Read, 1024));
    assert_eq!(stage.memory.bytes(0, 1025), [&[1; 256][..], &[2; 256], &[3; 256], &[4; 256], &[0]].concat());
}

#[test]
fn an_acknowledgement_does_not_complete_a_read() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Read, SendFlags::SIGNALED, 8);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 8);
    stage.wait(SOON);
    stage.acknowledge(FIRST + 1, ACK, 2);
    let both = [(Opcode::RC_READ_REQUEST, FIRST), (Opcode::RC_WRITE_ONLY, FIRST + 1)];
    assert_eq!(stage.wait(SOON), both, "overtaken: both again");
    assert_eq!(stage.statuses(), []);
}

#[test]
fn a_response_of_the_wrong_length_or_kind_is_a_bad_response() {
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    let cases: [(Opcode, Ext, usize); 5] = [
        (Opcode::RC_READ_RESPONSE_FIRST, aeth, 255),
        (Opcode::RC_READ_RESPONSE_ONLY, aeth, 256),
        (Opcode::RC_READ_RESPONSE_LAST, aeth, 44),
        (Opcode::RC_READ_RESPONSE_MIDDLE, Ext::None, 0),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, Ext::AtomicAck(Aeth { syndrome: 0x1f, msn: 1 }, 5), 0),
    ];
    for (opcode, ext, length) in cases {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Read, 300);
        stage.wait(SOON);
        stage.answer(opcode, FIRST, ext, &vec![9; length]);
        stage.wait(SOON);
        assert_eq!(stage.statuses(), [(0, WcStatus::BadResp)], "{opcode:?} of {length} bytes");
        assert_eq!(stage.memory.bytes(0, 300), [0; 300], "{opcode:?} of {length} bytes");
    }
}

#[test]
fn no_more_reads_are_outstanding_than_agreed() {
    let mut stage = Stage::new();
    for id in 0..6 {
        stage.post_as(id, WrOpcode::Read, SendFlags::SIGNALED, 8);
    }
    assert_eq!(stage.wait(SOON).len(), 4);
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, aeth, &[1; 8]);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_READ_REQUEST, FIRST + 4)]);
}

#[test]
fn a_fence_waits_for_reads_before_it() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Read, SendFlags::SIGNALED, 8);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED | SendFlags::FENCE, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_READ_REQUEST, FIRST)]);
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, aeth, &[1; 8]);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 1)]);
}

#[test]
fn a_list_that_is_not_allowed_fails_in_its_turn() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 8);
    let bad = Sge { lkey: LKey(stage.memory.key ^ 0x100), ..stage.memory.sge(0, 8) };
    let wr = SendWr { wr_id: 2, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[bad])).expect("room");
    stage.post_as(3, WrOpcode::Write, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)]);
    assert_eq!(stage.statuses(), [], "the first is still under way");
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocProt), (3, WcStatus::WrFlush)];
    assert_eq!(stage.statuses(), expected);
}

#[test]
fn the_window_is_bounded_and_opens_with_acknowledgements() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 200 * 256);
    let first = stage.wait(SOON);
    assert_eq!(first.len(), 128);
    assert_eq!(stage.wait(SOON), []);
    stage.acknowledge(FIRST + 63, ACK, 0);
    assert_eq!(stage.wait(SOON).len(), 64);
    assert_eq!(stage.statuses(), [], "part of a message is not a message");
}

#[test]
fn a_zero_timeout_waits_for_ever() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    assert_eq!(stage.wait(SOON).len(), 1);
    assert_eq!(stage.wait(Nanos::from_millis(60_000)), []);
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
}

#[test]
fn a_receiver_that_never_gets_ready_ends_the_connection_after_the_agreed_tries() {
    let mut stage = Stage::with(Setup { rnr_retry: 2, ..Setup::default() });
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 4);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 4);
    stage.wait(SOON);
    for _ in 0..2 {
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
        assert_eq!(stage.wait(Nanos(20_000)).len(), 2);
    }
    assert_eq!(stage.statuses(), []);
    stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
    assert_eq!(stage.wait(Nanos(20_000)), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::RnrRetryExc), (2, WcStatus::WrFlush)]);
    assert_eq!(stage.counter("retry_rnr_exceeded_err"), 1);
}

#[test]
fn seven_rnr_retries_stand_for_ever() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    for _ in 0..50 {
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
        assert_eq!(stage.wait(Nanos(20_000)), [(Opcode::RC_SEND_ONLY, FIRST)]);
    }
    assert_eq!((stage.statuses().len(), stage.state()), (0, QpState::Rts));
}

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
