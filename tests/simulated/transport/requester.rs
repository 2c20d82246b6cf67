//! The requester: its packets, and its reaction to responses and timeouts (IBTA 9.7.2, 9.7.6, 9.9.2).

use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{Access, LKey, QpCaps, QpState, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, NakCode, Opcode, Syndrome, rnr_timer_ns};

use crate::transport::{FIRST, RETRIES, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

//= test: IBTA 9.7.6: ack-completes-what-is-before
//= test: IBTA 10.8.3: sends-complete-in-order
#[test]
fn ack_completes_all_earlier_requests_in_order() {
    let mut stage = Stage::new();
    for id in 0..4 {
        let flags = if id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        stage.post_as(id, WrOpcode::Write, flags, 4);
    }
    stage.wait(SOON);
    stage.acknowledge(FIRST + 2, ACK, 3);
    stage.wait(SOON);
    // The QP has `sq_sig_all`: unsignaled requests complete too.
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
fn nak_sets_its_status_and_flushes_the_rest() {
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
        assert_eq!(stage.wait(TIMEOUT), [], "a QP in the error state sends nothing");
        assert_eq!(stage.statuses(), []);
        // Requests posted later are flushed too.
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
fn exhausted_retries_end_the_connection() {
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
fn progress_resets_the_retry_counter() {
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
fn sequence_nak_acknowledges_and_retransmits_from_its_psn() {
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
pub(crate) fn rnr_wait_lasts_the_naks_timer() {
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
fn acks_of_unsent_psns_are_dropped_as_ghosts() {
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
fn read_with_a_lost_response_resumes_there() {
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
fn ack_does_not_complete_a_read() {
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
fn response_of_wrong_length_or_opcode_is_bad() {
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
fn outstanding_reads_are_bounded_by_max_rd_atomic() {
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
fn fence_waits_for_earlier_reads() {
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
fn invalid_lkey_fails_in_order() {
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
fn window_of_128_psns_opens_with_acks() {
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
fn zero_timeout_never_expires() {
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
fn exhausted_rnr_retries_end_the_connection() {
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

/// Packets are lost while the receiver stays not ready. Each RNR NAK shows that one packet arrived.
#[test]
fn rnr_nak_resets_the_retry_counter() {
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
fn rnr_retry_seven_never_gives_up() {
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
fn atomic_completion_counts_eight_bytes_on_success() {
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
fn error_completion_carries_qpn_and_syndrome() {
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
fn completed_requests_free_their_send_queue_slots() {
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
fn late_ack_during_rnr_wait_cancels_the_retransmission() {
    const WAIT: Nanos = Nanos(20_000);
    const SLOTS: u32 = 4;
    let caps = QpCaps { max_send_wr: SLOTS, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    // Two rounds of the queue: stale slot contents must not matter.
    for round in 0..2 {
        let first = FIRST + round * (SLOTS + 1);
        for _ in 0..SLOTS {
            stage.post(WrOpcode::Send, 4);
        }
        assert_eq!(stage.wait(SOON).len(), SLOTS as usize);
        stage.acknowledge(first, Syndrome::RnrNak { timer: 1 }, 0);
        stage.wait(SOON);
        // The peer has executed all requests; its ACK was late.
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
fn ack_requests_are_set_periodically() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 200 * 256);
    let requested = |stage: &mut Stage| -> Vec<u32> {
        let packets = stage.packets();
        packets
            .iter()
            .filter(|(packet, _)| packet.bth.ack_req)
            .map(|(packet, _)| packet.bth.psn.distance_from(FIRST) as u32)
            .collect()
    };
    assert_eq!(requested(&mut stage), [63, 127]);
    stage.acknowledge(FIRST + 9, ACK, 0);
    assert_eq!(requested(&mut stage), [137], "ten more, and the window is closed");
    stage.acknowledge(FIRST + 127, ACK, 0);
    assert_eq!(requested(&mut stage), [199]);
}

//= test: IBTA 9.2: solicited-is-in-the-last-packet
#[test]
fn solicited_bit_is_in_the_last_packet_only() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Send, SendFlags::SOLICITED, 3 * 256);
    stage.post_as(2, WrOpcode::Send, SendFlags::empty(), 2 * 256);
    let solicited: Vec<_> = stage.packets().iter().map(|(packet, _)| packet.bth.solicited).collect();
    assert_eq!(solicited, [false, false, true, false, false]);
}

//= test: IBTA 9.2: pkey-of-the-qp-is-sent
#[test]
fn packets_carry_default_pkey_and_configured_mig_req() {
    for mig_req in [false, true] {
        let mut stage = Stage::with(Setup { mig_req, ..Setup::default() });
        stage.post(WrOpcode::Write, 4);
        let sent: Vec<_> =
            stage.packets().iter().map(|(packet, _)| (packet.bth.pkey, packet.bth.mig_req)).collect();
        assert_eq!(sent, [(0xffff, mig_req)]);
    }
}

#[test]
fn inline_payload_is_segmented_at_the_mtu() {
    let caps = QpCaps { max_inline: 512, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    let bytes: Vec<u8> = (0..300u32).map(|i| (i / 3) as u8).collect();
    let wr = SendWr { opcode: WrOpcode::Send, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Inline(&bytes)).expect("room");
    let payloads: Vec<_> = stage.packets().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, [&bytes[..256], &bytes[256..]]);
}

#[test]
fn atomic_with_a_short_buffer_fails_unsent() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::FetchAdd, 7);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!((stage.statuses(), stage.state()), (vec![(0, WcStatus::LocLen)], QpState::Err));
}

//= test: IBTA 10.6.3.1: local-writing-needs-a-right
#[test]
fn request_into_read_only_memory_is_not_sent() {
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
fn message_of_two_gigabytes_is_allowed() {
    let mut stage = Stage::new();
    // The gather list exceeds the region, but its first packets do not.
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 1 << 31);
    let sent = stage.wait(SOON);
    assert_eq!(sent.first(), Some(&(Opcode::RC_WRITE_FIRST, FIRST)));
    assert_eq!((sent.len(), stage.statuses()), (128, vec![]));
}

//= test: IBTA 9.7.6.1.3 C9-140: ack-timeout-is-4-us-times-2-to-the-code
#[test]
fn timeout_fires_exactly_at_its_deadline() {
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
fn data_response_with_nak_syndrome_is_bad() {
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
fn largest_fitting_read_is_sent_at_once() {
    const PIECE: u32 = 1 << 26;
    let caps = QpCaps { max_send_sge: 32, ..QpCaps::default() };
    let mut stage = Stage::with(Setup { caps, ..Setup::default() });
    let region = stage.host.register(PIECE as usize, Access::READ_WRITE);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    // The WRITE takes one PSN, the READ 2^23 - 1.
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
fn read_with_zero_max_rd_atomic_fails_unsent() {
    for opcode in [WrOpcode::Read, WrOpcode::CompareSwap] {
        let mut stage = Stage::with(Setup { max_rd_atomic: 0, ..Setup::default() });
        stage.post(opcode, 8);
        assert_eq!(stage.wait(SOON), [], "{opcode:?}");
        assert_eq!(stage.statuses(), [(0, WcStatus::LocQpOp)], "{opcode:?}");
        assert_eq!(stage.state(), QpState::Err, "{opcode:?}");
    }
}
