//! Which counters packets and completions increment.

use roxie::nic::Command;
use roxie::time::Nanos;
use roxie::verbs::{Access, SendFlags, WcStatus, WrOpcode};
use roxie::wire::{Aeth, AtomicEth, Bth, Ext, NakCode, Opcode, Psn, Reth, Syndrome};

use crate::transport::{FIRST, Stage};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

fn assert_counters(stage: &Stage, expected: &[(&str, u64)]) {
    for (name, count) in expected {
        assert_eq!(stage.counter(name), *count, "{name}");
    }
}

#[test]
fn each_received_request_is_counted_once() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 8);
    let eth = AtomicEth { va: stage.memory.address, rkey: stage.memory.key, swap_or_add: 1, compare: 0 };
    let reth = Ext::Reth(stage.reth(0, 8));
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    stage.request(Opcode::RC_WRITE_ONLY, 1, reth, &[2; 8]);
    stage.request(Opcode::RC_READ_REQUEST, 2, reth, &[]);
    stage.request(Opcode::RC_FETCH_ADD, 3, Ext::Atomic(eth), &[]);
    stage.request(Opcode::RC_SEND_ONLY, 4, Ext::None, &[1; 8]);
    let expected = [
        ("rcvd_pkts", 5),
        ("sent_pkts", 5),
        ("sent_bytes", 8),
        ("rcvd_bytes", 16),
        ("rdma_recvs", 1),
        ("rx_write_requests", 1),
        ("rx_read_requests", 1),
        ("rx_atomic_requests", 1),
        ("out_of_buffer", 1),
        ("send_rnr_err", 1),
    ];
    assert_counters(&stage, &expected);
}

//= test: IBTA 9.7.6: old-ack-is-dropped
#[test]
fn each_received_response_is_counted_once() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 4);
    stage.post(WrOpcode::Write, 4);
    stage.post(WrOpcode::Read, 8);
    stage.wait(SOON);
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.acknowledge(FIRST, ACK, 1);
    let aeth = Aeth { syndrome: 0x1f, msn: 3 };
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 2, Ext::Aeth(aeth), &[1; 8]);
    stage.wait(SOON);
    assert_eq!(stage.statuses().len(), 3);
    assert_counters(
        &stage,
        &[("rdma_sends", 1), ("duplicate_acks", 1), ("rcvd_bytes", 8), ("ghost_acks", 0)],
    );
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    stage.answer(Opcode::RC_ACKNOWLEDGE, FIRST + 3, Ext::Aeth(Aeth { syndrome: 0x80, msn: 3 }), &[]);
    stage.acknowledge(FIRST + 3, Syndrome::RnrNak { timer: 1 }, 3);
    stage.wait(SOON);
    assert_counters(&stage, &[("ghost_acks", 1), ("rcvd_rnr_err", 1)]);
}

#[test]
fn received_naks_are_counted_by_code() {
    let names = ["req_remote_access_errors", "req_remote_invalid_request"];
    let cases = [
        (NakCode::RemoteAccess, [1, 0]),
        (NakCode::InvalidRequest, [0, 1]),
        (NakCode::RemoteOperational, [0, 0]),
    ];
    for (code, expected) in cases {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Write, 4);
        stage.wait(SOON);
        stage.acknowledge(FIRST, Syndrome::Nak(code), 0);
        stage.wait(SOON);
        assert_eq!(names.map(|name| stage.counter(name)), expected, "{code:?}");
    }
}

//= test: IBTA 10.6.3.1: local-writing-needs-a-right
#[test]
fn refused_requests_are_counted_by_cause() {
    let names = ["resp_remote_access_errors", "resp_cqe_error", "resp_local_length_error"];
    let counted = |stage: &Stage| names.map(|name| stage.counter(name));

    let mut stage = Stage::new();
    let nowhere = Reth { rkey: 1, ..stage.reth(0, 4) };
    stage.request(Opcode::RC_WRITE_ONLY, 0, Ext::Reth(nowhere), &[1; 4]);
    assert_eq!(counted(&stage), [1, 0, 0], "an unknown key");

    let mut stage = Stage::new();
    stage.receive(1, 0, 3);
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    assert_eq!(counted(&stage), [0, 1, 1], "a message too long");

    let mut stage = Stage::new();
    let read_only = stage.host.register(64, Access::REMOTE_READ);
    stage.host.post_recv(&stage.qp, 1, &[read_only.sge(0, 8)]).expect("room");
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    assert_eq!(counted(&stage), [0, 1, 0], "a receive that must not be written");
}

#[test]
fn read_of_deregistered_memory_counts_an_access_error() {
    let mut stage = Stage::new();
    let (opcode, dest_qp) = (Opcode::RC_READ_REQUEST, stage.qp.handle.qpn);
    let bth = Bth { opcode, dest_qp, psn: Psn::new(0), ..Bth::default() };
    let ext = Ext::Reth(stage.reth(0, 8));
    stage.send(&bth, &ext, &[]);
    stage.host.worker.take_in(stage.now);
    let index = stage.memory.index;
    stage.host.call(stage.now, Command::DeregisterMemory(index)).expect("the region exists");
    stage.answers();
    assert_counters(&stage, &[("rx_read_requests", 1), ("resp_remote_access_errors", 1)]);
}

#[test]
fn cnp_without_congestion_control_is_counted_and_ignored() {
    let mut stage = Stage::new();
    let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&bth, &Ext::None, &[]);
    assert_eq!(stage.answers(), []);
    assert_counters(&stage, &[("rp_cnp_ignored", 1), ("rcvd_pkts", 0)]);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    assert_eq!(stage.wait(SOON).len(), 1, "it sends as before");
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}
