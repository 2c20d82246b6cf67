//! The requester: what it sends, and what answers do to it (IBTA 9.7.2, 9.7.6, 9.9.2).

use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{Access, LKey, QpCaps, QpState, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, NakCode, Opcode, Syndrome, rnr_timer_ns};

use crate::{FIRST, RETRIES, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

//= test: IBTA 9.7.6: ack-completes-what-is-before
//= test: IBTA 10.8.3: sends-complete-in-order
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

//= test: IBTA 9.7.6: nak-ends-the-request
//= test: IBTA 9.9.2.2: requester-error-ends-rc
//= test: IBTA 10.10: oldest-request-carries-the-cause
//= test: IBTA 10.3.1.7: error-flushes-both-queues
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

//= test: IBTA 9.7.1: retransmission-keeps-the-psn
//= test: IBTA 9.7.6.1.3: timeout-sends-again
//= test: IBTA 9.9.2: retries-are-counted
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

//= test: IBTA 9.9.2: progress-gives-the-retries-back
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

//= test: IBTA 9.7.6: sequence-nak-goes-back
//= test: IBTA 9.7.1: retransmission-keeps-the-psn
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

//= test: IBTA 9.7.5.2.8: rnr-nak-waits-for-its-timer
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

//= test: IBTA 9.7.6: ghost-ack-is-dropped
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

//= test: IBTA 9.7.6: reserved-syndrome-is-dropped
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

//= test: IBTA 9.7.6: response-that-overtakes-is-an-implied-nak, read-is-asked-again-from-the-hole
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

//= test: IBTA 9.7.6: only-its-response-completes-a-read, response-that-overtakes-is-an-implied-nak
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

//= test: IBTA 9.9.2: response-fits-its-request
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

//= test: IBTA 9.7.3: reads-and-atomics-are-bounded
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

//= test: IBTA 10.8.3.3: fence-waits-for-reads
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

//= test: IBTA 10.7.2: lkey-is-checked
//= test: IBTA 10.10: oldest-request-carries-the-cause
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

//= test: IBTA 9.7.6: ack-completes-what-is-before
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

//= test: IBTA 9.7.6.1.3 C9-140: zero-timeout-is-none
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

//= test: IBTA 9.9.2: rnr-retries-are-counted
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

/// Heads are lost now and then while a receiver is not ready for long; each refusal shows that one came through.
#[test]
fn a_refusal_for_want_of_a_receive_gives_the_retries_back() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 4);
    stage.wait(SOON);
    for round in 0..10 {
        for _ in 0..RETRIES {
            stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
            assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST)], "round {round}");
        }
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
        let again = stage.wait(Nanos(rnr_timer_ns(1)) + SOON);
        assert_eq!(again, [(Opcode::RC_SEND_ONLY, FIRST)], "round {round}");
    }
    assert_eq!((stage.statuses(), stage.state()), (vec![], QpState::Rts));
}

//= test: IBTA 9.9.2: seven-rnr-retries-are-for-ever
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

//= test: IBTA 9.4.5: atomic-result-is-stored
#[test]
fn an_atomic_completes_with_eight_bytes_and_a_failed_one_with_none() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::FetchAdd, SendFlags::SIGNALED, 16);
    stage.post_as(2, WrOpcode::FetchAdd, SendFlags::SIGNALED, 16);
    stage.wait(SOON);
    let result = Ext::AtomicAck(Aeth { syndrome: 0x1f, msn: 1 }, 0x1122_3344_5566_7788);
    stage.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, FIRST, result, &[]);
    stage.acknowledge(FIRST + 1, Syndrome::Nak(NakCode::RemoteAccess), 1);
    stage.wait(SOON);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(done, [(1, WcStatus::Success, 8), (2, WcStatus::RemAccess, 0)]);
    let stored = [&0x1122_3344_5566_7788u64.to_ne_bytes()[..], &[0; 8]].concat();
    assert_eq!(stage.memory.bytes(0, 16), stored, "the rest of the list is left alone");
}

#[test]
fn a_completion_in_error_names_its_qp_and_carries_the_syndrome() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 4);
    stage.post(WrOpcode::Write, 4);
    stage.wait(SOON);
    let refused = Syndrome::Nak(NakCode::RemoteAccess);
    stage.acknowledge(FIRST, refused, 0);
    stage.wait(SOON);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.qpn, wc.vendor_err)).collect();
    let qpn = stage.qp.handle.qpn;
    assert_eq!(done, [(qpn, u8::from(refused)), (qpn, 0)]);
}

#[test]
fn the_send_queue_takes_more_than_it_holds_as_it_completes() {
    const SLOTS: u32 = 4;
    let caps = QpCaps { max_send_wr: SLOTS, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    for round in 0..3 {
        for _ in 0..SLOTS {
            stage.post(WrOpcode::Write, 4);
        }
        let first = FIRST + round * SLOTS;
        assert_eq!(stage.wait(SOON).len(), SLOTS as usize, "round {round}");
        stage.acknowledge(first + (SLOTS - 1), ACK, (round + 1) * SLOTS);
        stage.wait(SOON);
        assert_eq!(stage.statuses().len(), SLOTS as usize, "round {round}");
    }
}

#[test]
fn an_answer_that_comes_during_an_rnr_wait_leaves_nothing_to_repeat() {
    const WAIT: Nanos = Nanos(20_000);
    const SLOTS: u32 = 4;
    let caps = QpCaps { max_send_wr: SLOTS, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    // Twice round the queue: what stood in a slot before must not matter.
    for round in 0..2 {
        let first = FIRST + round * (SLOTS + 1);
        for _ in 0..SLOTS {
            stage.post(WrOpcode::Send, 4);
        }
        assert_eq!(stage.wait(SOON).len(), SLOTS as usize);
        stage.acknowledge(first, Syndrome::RnrNak { timer: 1 }, 0);
        stage.wait(SOON);
        // The peer had executed all of them: its answers were late.
        stage.acknowledge(first + (SLOTS - 1), ACK, SLOTS);
        assert_eq!(stage.wait(WAIT), [], "round {round}");
        assert_eq!(stage.statuses().len(), SLOTS as usize, "round {round}");
        stage.post(WrOpcode::Send, 4);
        assert_eq!(stage.wait(WAIT), [(Opcode::RC_SEND_ONLY, first + SLOTS)], "round {round}");
        stage.acknowledge(first + SLOTS, ACK, SLOTS + 1);
        stage.wait(SOON);
        assert_eq!(stage.statuses().len(), 1, "round {round}");
    }
}

//= test: IBTA 9.7.3: ack-is-asked-for
#[test]
fn acknowledgements_are_asked_for_at_the_end_now_and_then_and_when_the_window_closes() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 200 * 256);
    let asking = |stage: &mut Stage| -> Vec<u32> {
        let packets = stage.packets();
        packets
            .iter()
            .filter(|(packet, _)| packet.bth.ack_req)
            .map(|(packet, _)| packet.bth.psn.distance_from(FIRST) as u32)
            .collect()
    };
    assert_eq!(asking(&mut stage), [63, 127]);
    stage.acknowledge(FIRST + 9, ACK, 0);
    assert_eq!(asking(&mut stage), [137], "ten more, and the window is closed");
    stage.acknowledge(FIRST + 127, ACK, 0);
    assert_eq!(asking(&mut stage), [199]);
}

//= test: IBTA 9.2: solicited-is-in-the-last-packet
#[test]
fn the_last_packet_of_a_solicited_message_says_so_and_no_other() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Send, SendFlags::SOLICITED, 3 * 256);
    stage.post_as(2, WrOpcode::Send, SendFlags::empty(), 2 * 256);
    let solicited: Vec<_> = stage.packets().iter().map(|(packet, _)| packet.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true, false, false]);
}

//= test: IBTA 9.2: pkey-of-the-qp-is-sent
#[test]
fn packets_carry_the_default_partition_and_mig_req_as_configured() {
    for mig_req in [false, true] {
        let mut stage = Stage::with(Setup { mig_req, ..Setup::default() });
        stage.post(WrOpcode::Write, 4);
        let sent: Vec<_> =
            stage.packets().iter().map(|(packet, _)| (packet.bth.pkey, packet.bth.mig_req)).collect();
        assert_eq!(sent, [(0xffff, mig_req)]);
    }
}

#[test]
fn inline_payload_of_several_packets_is_cut_where_they_are() {
    let caps = QpCaps { max_inline: 512, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    let bytes: Vec<u8> = (0..300u32).map(|i| (i / 3) as u8).collect();
    let wr = SendWr { opcode: WrOpcode::Send, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Inline(&bytes)).expect("room");
    let payloads: Vec<_> = stage.packets().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, [&bytes[..256], &bytes[256..]]);
}

#[test]
fn an_atomic_without_a_place_for_eight_bytes_fails_without_a_packet() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::FetchAdd, 7);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!((stage.statuses(), stage.state()), (vec![(0, WcStatus::LocLen)], QpState::Err));
}

//= test: IBTA 10.6.3.1: local-writing-needs-a-right
#[test]
fn what_could_not_be_stored_is_not_asked_for() {
    for opcode in [WrOpcode::Read, WrOpcode::FetchAdd] {
        let mut stage = Stage::new();
        let read_only = stage.host.register(64, Access::REMOTE_READ);
        let wr = SendWr { wr_id: 1, opcode, flags: SendFlags::SIGNALED, ..SendWr::default() };
        stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[read_only.sge(0, 8)])).expect("room");
        assert_eq!(stage.wait(SOON), [], "{opcode:?}");
        assert_eq!(stage.statuses(), [(1, WcStatus::LocProt)], "{opcode:?}");
    }
}

//= test: IBTA 9.7.7: message-is-2-to-the-31-bytes-at-most
#[test]
fn a_message_of_two_gigabytes_is_not_too_long() {
    let mut stage = Stage::new();
    // The list goes beyond the region; its first packets do not.
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 1 << 31);
    let sent = stage.wait(SOON);
    assert_eq!(sent.first(), Some(&(Opcode::RC_WRITE_FIRST, FIRST)));
    assert_eq!((sent.len(), stage.statuses()), (128, vec![]));
}

//= test: IBTA 9.7.6.1.3 C9-140: ack-timeout-is-4-us-times-2-to-the-code
#[test]
fn the_timeout_is_over_when_its_time_has_come_and_not_a_moment_later() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 4);
    let sent = [(Opcode::RC_SEND_ONLY, FIRST)];
    assert_eq!(stage.wait(Nanos(1)), sent);
    assert_eq!(stage.wait(TIMEOUT - Nanos(1)), []);
    assert_eq!(stage.now, TIMEOUT);
    assert_eq!(stage.wait(Nanos(1)), sent);
}

//= test: IBTA 9.9.2: response-fits-its-request
#[test]
fn an_answer_that_says_nak_in_its_own_aeth_is_a_bad_response() {
    for syndrome in [Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak { timer: 1 }] {
        let aeth = Aeth { syndrome: syndrome.into(), msn: 1 };
        let cases: [(WrOpcode, Opcode, Ext, &[u8]); 2] = [
            (WrOpcode::Read, Opcode::RC_READ_RESPONSE_ONLY, Ext::Aeth(aeth), &[9; 8]),
            (WrOpcode::FetchAdd, Opcode::RC_ATOMIC_ACKNOWLEDGE, Ext::AtomicAck(aeth, 5), &[]),
        ];
        for (request, opcode, ext, payload) in cases {
            let mut stage = Stage::new();
            stage.post(request, 8);
            stage.wait(SOON);
            stage.answer(opcode, FIRST, ext, payload);
            stage.wait(SOON);
            assert_eq!(stage.statuses(), [(0, WcStatus::BadResp)], "{opcode:?}, {syndrome:?}");
            assert_eq!(stage.memory.bytes(0, 8), [0; 8], "{opcode:?}, {syndrome:?}");
        }
    }
}

//= test: IBTA 9.7.1: psns-in-flight-are-told-apart
#[test]
fn a_read_that_just_fits_into_half_the_circle_goes_behind_what_is_in_flight() {
    const PIECE: u32 = 1 << 26;
    let caps = QpCaps { max_send_sge: 32, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    let region = stage.host.register(PIECE as usize, Access::READ_WRITE);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    // One PSN is taken, and this takes 2^23 - 1.
    let mut sges = [region.sge(0, PIECE); 32];
    sges[31].length -= 256;
    let wr = SendWr { wr_id: 2, opcode: WrOpcode::Read, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room");
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST), (Opcode::RC_READ_REQUEST, FIRST + 1)]);
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

//= test: IBTA 9.7.3: no-read-where-none-is-agreed
#[test]
fn a_read_or_an_atomic_where_none_is_agreed_fails_without_a_packet() {
    for opcode in [WrOpcode::Read, WrOpcode::CompareSwap] {
        let mut stage = Stage::with(Setup { max_rd_atomic: 0, ..Setup::default() });
        stage.post(opcode, 8);
        assert_eq!(stage.wait(SOON), [], "{opcode:?}");
        assert_eq!(stage.statuses(), [(0, WcStatus::LocQpOp)], "{opcode:?}");
        assert_eq!(stage.state(), QpState::Err, "{opcode:?}");
    }
}
