//! Regressions: peers, applications and losses at the worst moment. Each case once broke something.

use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, LKey, Mtu, Psn, QpAttr, QpState, QpType, RKey, SendFlags, SendWr, Sge, WcStatus,
    WrOpcode,
};
use roxie::wire::{Aeth, Bth, Ext, NakCode, Opcode, Syndrome};
use roxie_sim::{Host, HostQp, joined_ports};

use crate::transport::{Answer, FIRST, MTU, Setup, Stage, TIMEOUT, attributes};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// Posts a WRITE of two packets, the second of which has a bad lkey.
fn post_half_bad(stage: &Stage, wr_id: u64) {
    let length = MTU.bytes() as u32;
    let bad = Sge { lkey: LKey(stage.memory.key ^ 0x100), ..stage.memory.sge(0, length) };
    let wr =
        SendWr { wr_id, remote_addr: 0x1000, rkey: RKey(1), opcode: WrOpcode::Write, ..SendWr::default() };
    let sges = [stage.memory.sge(0, length), bad];
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
}

/// Fills every slot of the send queue once, so that stale requests would show. Then posts one good request and one that
/// aborts after its first packet.
fn with_a_request_that_breaks_off() -> (Stage, Psn) {
    let mut stage = Stage::new();
    for i in 0..150 {
        stage.post_as(i.into(), WrOpcode::Write, SendFlags::SIGNALED, 8);
        stage.wait(SOON);
        stage.acknowledge(FIRST + i, ACK, i + 1);
        stage.wait(SOON);
        assert_eq!(stage.statuses().len(), 1);
    }
    stage.post_as(1000, WrOpcode::Write, SendFlags::SIGNALED, 8);
    post_half_bad(&stage, 1001);
    assert_eq!(stage.wait(SOON).len(), 2, "the good one, and the first packet of the other");
    (stage, FIRST + 151)
}

#[test]
fn ack_of_an_aborted_request_completes_each_once() {
    let (mut stage, psn) = with_a_request_that_breaks_off();
    stage.acknowledge(psn, ACK, 151);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1000, WcStatus::Success), (1001, WcStatus::LocProt)]);
    assert_eq!((stage.state(), stage.counter("cq_overflow")), (QpState::Err, 0));
}

#[test]
fn nak_of_an_aborted_request_completes_each_once() {
    let (mut stage, psn) = with_a_request_that_breaks_off();
    stage.acknowledge(psn, Syndrome::Nak(NakCode::RemoteAccess), 151);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1000, WcStatus::Success), (1001, WcStatus::LocProt)]);
}

//= test: IBTA 9.7.5.1: duplicate-read-is-checked-again
#[test]
fn duplicate_read_of_deregistered_memory_is_dropped() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 8));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 0, reth, &[]).len(), 1);
    let index = stage.memory.index;
    stage.host.call(stage.now, Command::DeregisterMemory(index)).expect("the object exists");
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 0, reth, &[]), []);
    assert_eq!((stage.state(), stage.counter("duplicate_dropped")), (QpState::Rts, 1));
}

//= test: IBTA 9.7.5.1: nothing-follows-a-refusal
#[test]
fn earlier_responses_precede_a_nak() {
    let mut stage = Stage::new();
    let good = stage.reth(0, 8);
    let mut bad = good;
    bad.rkey ^= 0x100;
    let bth = |opcode, psn| Bth {
        opcode,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(psn),
        ack_req: true,
        ..Bth::default()
    };
    let (read, write) = (bth(Opcode::RC_READ_REQUEST, 0), bth(Opcode::RC_WRITE_ONLY, 1));
    stage.send(&read, &Ext::Reth(good), &[]);
    stage.send(&write, &Ext::Reth(bad), &[0; 8]);
    let answers = stage.answers();
    assert_eq!(answers.len(), 2);
    assert_eq!((answers[0].opcode, answers[0].psn), (Opcode::RC_READ_RESPONSE_ONLY, 0));
    assert_eq!(answers[1], Answer::nak(1, NakCode::RemoteAccess));
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 9.7.1: psns-in-flight-are-told-apart
#[test]
fn largest_read_keeps_outstanding_psns_distinct() {
    let mut stage = Stage::new();
    let region = stage.host.register(1 << 29, Access::READ_WRITE);
    let wr = SendWr { wr_id: 1, rkey: RKey(1), opcode: WrOpcode::Read, ..SendWr::default() };
    stage.post_as(0, WrOpcode::Write, SendFlags::SIGNALED, 8);
    let sges = [region.sge(0, 1 << 29); 4];
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 8);
    assert_eq!(
        stage.wait(SOON),
        [(Opcode::RC_WRITE_ONLY, FIRST)],
        "the READ needs half the circle for itself"
    );
    stage.acknowledge(FIRST, ACK, 1);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_READ_REQUEST, FIRST + 1)]);
    let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 2 });
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST + 1, aeth, &[7; 256]);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!((stage.counter("ghost_acks"), region.bytes(0, 1)), (0, vec![7]));
}

#[test]
fn worker_sleeps_while_a_fence_waits() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Read, SendFlags::SIGNALED, 8);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED | SendFlags::FENCE, 8);
    stage.wait(SOON);
    let now = stage.now;
    assert!((0..100).all(|_| stage.host.worker.poll(now).is_idle()));
    assert!(stage.host.worker.prepare_sleep());
    let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, aeth, &[1; 8]);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 1)], "and goes when it comes");
}

#[test]
fn pending_response_survives_max_dest_rd_atomic_change() {
    let mut stage = Stage::new();
    let drained = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &drained).expect("RTS to SQD");
    let read = Bth { opcode: Opcode::RC_READ_REQUEST, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    let reth = Ext::Reth(stage.reth(0, 8));
    stage.send(&read, &reth, &[]);
    stage.host.worker.take_in(stage.now);
    for count in [8, 2] {
        let attr = QpAttr { max_dest_rd_atomic: Some(count), ..QpAttr::default() };
        stage.host.modify(stage.now, &stage.qp, &attr).expect("SQD to SQD");
    }
    assert_eq!(stage.answers().len(), 1);
    stage.send(&read, &reth, &[]);
    assert_eq!(stage.answers().len(), 1, "and is there for a duplicate");
}

#[test]
fn read_responses_do_not_starve_own_requests() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 1 << 16));
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 8);
    for n in 0..2 {
        let psn = Psn::new(n * 256);
        let read =
            Bth { opcode: Opcode::RC_READ_REQUEST, dest_qp: stage.qp.handle.qpn, psn, ..Bth::default() };
        stage.send(&read, &reth, &[]);
    }
    stage.host.worker.poll(stage.now);
    let first: Vec<_> = stage.arrived().into_iter().map(|(opcode, _)| opcode).take(2).collect();
    assert_eq!(first, [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_WRITE_ONLY]);
}

//= test: IBTA 9.7.5.1: duplicate-read-may-be-a-part
#[test]
fn partial_read_short_of_the_end_is_dropped() {
    let mut stage = Stage::new();
    let whole = Ext::Reth(stage.reth(0, 4 * 256));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 0, whole, &[]).len(), 4);
    let middle = Ext::Reth(stage.reth(256, 256));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 1, middle, &[]), []);
    let rest = Ext::Reth(stage.reth(256, 3 * 256));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 1, rest, &[]).len(), 3);
}

#[test]
fn largest_packet_fits_the_link_mtu() {
    for link_mtu in [1104, 1111, 1112, 4183, 4184] {
        let (local, mut remote) = joined_ports(link_mtu, None);
        let path_mtu = Mtu::largest_for_link(link_mtu).expect("large enough");
        let config = NicConfig { limits: Limits::small(), largest_mtu: path_mtu, ..NicConfig::default() };
        let mut host = Host::new(1, config, local);
        let memory = host.register(4096, Access::READ_WRITE);
        let qp = host.queue_pair().signal_all().create();
        for mut attr in attributes(&host, &Setup::default()) {
            if attr.av.is_some() {
                attr.av = Some(host.path(2, true));
                attr.path_mtu = Some(path_mtu);
            }
            host.modify(Nanos::ZERO, &qp, &attr).expect("a legal transition");
        }
        let wr = SendWr { opcode: WrOpcode::WriteImm, ..SendWr::default() };
        let sges = [memory.sge(0, path_mtu.bytes() as u32)];
        host.post_send(&qp, &wr, Payload::Sges(&sges)).expect("room for a request");
        host.worker.poll(Nanos::ZERO);
        assert_eq!(remote.rx_burst(Nanos::ZERO), 1);
        let length = remote.rx_frame(0).frame.len();
        assert!(length <= 14 + link_mtu, "{} bytes from the IP header on, link {link_mtu}", length - 14);
    }
}

#[test]
fn repeated_rnr_nak_costs_no_further_retry() {
    let mut stage = Stage::with(Setup { rnr_retry: 1, ..Setup::default() });
    stage.post(WrOpcode::Send, 8);
    stage.wait(SOON);
    // RNR timer code 0 is the longest: 655 ms.
    for _ in 0..3 {
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 0 }, 0);
        assert_eq!(stage.wait(SOON), []);
    }
    assert_eq!(stage.state(), QpState::Rts);
    stage.acknowledge(FIRST, ACK, 1);
    stage.post(WrOpcode::Send, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST + 1)]);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
}

/// Payload and pad must be a multiple of 4 bytes, in requests and responses (IBTA 9.6.1).
//= test: IBTA 9.6.1: packet-is-whole-words
#[test]
fn unpadded_payload_is_dropped_by_every_service() {
    let send = |qp_type, opcode, pad, payload: &[u8]| {
        let mut stage = Stage::with(Setup { qp_type, ..Setup::default() });
        stage.receive(1, 4096, 300);
        if qp_type == QpType::Rc {
            stage.post(WrOpcode::Read, 768);
            stage.wait(SOON);
        }
        let psn = if opcode == Opcode::RC_READ_RESPONSE_FIRST { FIRST } else { Psn::new(0) };
        let bth = Bth { opcode, dest_qp: stage.qp.handle.qpn, psn, ..Bth::default() };
        stage.send_padded(&bth, payload, pad);
        let what = format!("{opcode:?} of {} bytes, {pad} of them pad", payload.len());
        assert_eq!(stage.answers(), [], "{what}");
        assert_eq!((stage.statuses(), stage.state()), (vec![], QpState::Rts), "{what}");
        assert_eq!((stage.counter("rx_malformed"), stage.counter("resp_invalid_requests")), (1, 0), "{what}");
    };
    // A DETH with the QP's Q_Key, and 1 byte.
    let datagram = [0x11, 0x11, 0x22, 0x22, 0, 0, 0, 0x77, 9];
    for (length, pad) in [(5, 0), (6, 1), (7, 2), (7, 0)] {
        for (qp_type, opcode) in [(QpType::Rc, Opcode::RC_SEND_ONLY), (QpType::Uc, Opcode::UC_SEND_ONLY)] {
            send(qp_type, opcode, pad, &[1; 8][..length]);
        }
    }
    send(QpType::Ud, Opcode::UD_SEND_ONLY, 0, &datagram);
    // An AETH, and 255 bytes.
    let response = [&[0x1f, 0, 0, 1][..], &[7; 255]].concat();
    send(QpType::Rc, Opcode::RC_READ_RESPONSE_FIRST, 0, &response);
}

#[test]
fn overflowed_cq_accepts_no_more_completions() {
    let (local, _remote) = joined_ports(1500, None);
    let mut host = Host::new(1, NicConfig { limits: Limits::small(), ..NicConfig::default() }, local);
    let qp = host.queue_pair().signal_all().cq_entries(2).create();
    for attr in attributes(&host, &Setup::default()) {
        host.modify(Nanos::ZERO, &qp, &attr).expect("a legal transition");
    }
    // None of the requests can be sent: each fails or is flushed. The queue holds two completions.
    for wr_id in 0..3 {
        let wr = SendWr { wr_id, ..SendWr::default() };
        let sges = [Sge { addr: 0, length: 8, lkey: LKey(1) }];
        host.post_send(&qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    }
    // One fails, and the next pass flushes the others.
    for _ in 0..2 {
        host.worker.poll(Nanos::ZERO);
    }
    let events: Vec<_> = std::iter::from_fn(|| host.event()).collect();
    assert!(
        events.iter().any(|e| matches!(e, roxie::verbs::AsyncEvent::Cq(_, EventKind::CqError))),
        "{events:?}"
    );
    let taken =
        |host: &Host, qp: &HostQp| std::iter::from_fn(|| host.poll_cq(qp)).map(|wc| wc.wr_id).collect();
    let first: Vec<u64> = taken(&host, &qp);
    assert_eq!(first, [0, 1]);
    host.post_recv(&qp, 9, &[]).expect("room for a receive");
    host.worker.poll(Nanos::ZERO);
    let later: Vec<u64> = taken(&host, &qp);
    assert!(later.is_empty(), "what follows a lost completion does not look as if nothing were lost");
}

#[test]
fn changed_timeout_applies_to_outstanding_requests() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    stage.post(WrOpcode::Write, 8);
    stage.wait(SOON);
    let sqd = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &sqd).expect("RTS to SQD");
    let attr = QpAttr { timeout: Some(12), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("SQD to SQD");
    assert_eq!(stage.wait(Nanos(2 * TIMEOUT.0)), [(Opcode::RC_WRITE_ONLY, FIRST)]);
}

#[test]
fn qpns_are_not_reused_soon() {
    let (local, _remote) = joined_ports(1500, None);
    let mut host = Host::new(1, NicConfig { limits: Limits::small(), ..NicConfig::default() }, local);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let qp = host.queue_pair().signal_all().cq_entries(1).create();
        assert!(seen.insert(qp.handle.qpn), "QPN {} again after {}", qp.handle.qpn, seen.len());
        host.call(Nanos::ZERO, Command::DestroyQp(qp.handle.index)).expect("the object exists");
        host.call(Nanos::ZERO, Command::DestroyCq(qp.cq_index)).expect("nothing uses it");
    }
    assert_eq!(seen.len(), 1000);
}
