//! The unreliable connection (IBTA 9.8.2, 9.9.2.2, 9.9.3.2).

use roxie::nic::{Answer as Reply, Command};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, LKey, MwType, QpAttr, QpCaps, QpInit, QpState, QpType, RKey, SendFlags, SendWr, Sge,
    WcOpcode, WcStatus, WindowBind, WrOpcode,
};
use roxie::wire::{Ext, Opcode, Reth};

use crate::transport::regions::{ON_DEMAND, Pages};
use crate::transport::states::modify_to;
use crate::transport::{Answer, FIRST, MTU, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
const FULL: [u8; 256] = [0x5a; MTU.bytes()];
const SILENT: [Answer; 0] = [];

fn stage() -> Stage {
    Stage::with(Setup { qp_type: QpType::Uc, ..Setup::default() })
}

fn success(id: u64) -> (u64, WcStatus) {
    (id, WcStatus::Success)
}

//= test: IBTA 9.7.3: psn-counts-packets
//= test: IBTA 9.8.2: uc-is-done-when-it-has-left
//= test: IBTA 9.5: requests-leave-in-order
#[test]
fn request_completes_when_its_last_packet_leaves() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 3 * 256);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 10);
    let packets = stage.packets();
    let seen: Vec<_> = packets.iter().map(|(p, _)| (p.bth.opcode, p.bth.psn)).collect();
    let expected = [
        (Opcode::UC_SEND_FIRST, FIRST),
        (Opcode::UC_SEND_MIDDLE, FIRST + 1),
        (Opcode::UC_SEND_LAST, FIRST + 2),
        (Opcode::UC_WRITE_ONLY, FIRST + 3),
    ];
    assert_eq!(seen, expected);
    assert!(packets.iter().all(|(p, _)| !p.bth.ack_req), "UC has no ACKs");
    assert_eq!(stage.statuses(), [success(1), success(2)]);
    assert_eq!(stage.wait(Nanos(100 * TIMEOUT.0)), [], "nothing is sent again");
    assert_eq!(stage.counter("retransmitted_packets"), 0);
}

//= test: IBTA 10.8: completion-means-memory-is-free
#[test]
fn completion_means_the_buffer_is_free() {
    let mut stage = stage();
    stage.memory.memory.write(0, &[7; 600]).expect("within the region");
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 600);
    stage.host.worker.poll(stage.now);
    assert_eq!(stage.statuses(), [success(1)]);
    stage.memory.memory.write(0, &[8; 600]).expect("within the region");
    let bytes: Vec<u8> = stage.packets().into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(bytes, [7; 600], "the packets carry the bytes from before the completion");
}

//= test: IBTA 9.7.3: message-is-cut-at-the-path-mtu
//= test: IBTA 9.4: immediate-is-in-the-last-packet
#[test]
fn operations_map_to_their_opcodes() {
    let cases = [
        (WrOpcode::Send, 8, vec![Opcode::UC_SEND_ONLY]),
        (WrOpcode::SendImm, 8, vec![Opcode::UC_SEND_ONLY_IMM]),
        (WrOpcode::SendImm, 300, vec![Opcode::UC_SEND_FIRST, Opcode::UC_SEND_LAST_IMM]),
        (WrOpcode::Write, 0, vec![Opcode::UC_WRITE_ONLY]),
        (WrOpcode::WriteImm, 8, vec![Opcode::UC_WRITE_ONLY_IMM]),
        (
            WrOpcode::WriteImm,
            600,
            vec![Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_MIDDLE, Opcode::UC_WRITE_LAST_IMM],
        ),
    ];
    for (opcode, length, expected) in cases {
        let mut stage = stage();
        stage.post(opcode, length);
        let seen: Vec<_> = stage.packets().iter().map(|(p, _)| p.bth.opcode).collect();
        assert_eq!(seen, expected, "{opcode:?} of {length} bytes");
    }
}

//= test: IBTA 9.4: operation-is-of-the-service
//= test: IBTA 9.8.2: uc-has-no-reads
//= test: IBTA 9.9.2.2: requester-error-stops-uc-and-ud
#[test]
fn unsupported_operation_fails_without_a_packet() {
    for opcode in [WrOpcode::Read, WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
        let mut stage = stage();
        stage.post_as(1, opcode, SendFlags::SIGNALED, 8);
        assert_eq!(stage.packets(), [], "{opcode:?}");
        assert_eq!(stage.statuses(), [(1, WcStatus::LocQpOp)], "{opcode:?}");
        assert_eq!(stage.state(), QpState::Sqe);
    }
}

//= test: IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
#[test]
fn failed_send_stops_only_the_send_queue() {
    let mut stage = stage();
    stage.receive(100, 0, 8);
    let bad = [stage.memory.sge(0, 256), Sge { lkey: LKey(1), ..stage.memory.sge(256, 256) }];
    let wr = SendWr { wr_id: 1, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&bad)).expect("room for a request");
    stage.post_as(2, WrOpcode::Send, SendFlags::empty(), 8);
    assert_eq!(stage.wait(SOON), [(Opcode::UC_SEND_FIRST, FIRST)], "the rest of the message cannot be read");
    assert_eq!(stage.statuses(), [(1, WcStatus::LocProt), (2, WcStatus::WrFlush)]);
    assert_eq!(stage.state(), QpState::Sqe);
    // The receive queue still works.
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 0, Ext::None, &[1, 2]), SILENT);
    assert_eq!(stage.statuses(), [success(100)]);
    // Requests posted in SQE are flushed.
    stage.post_as(3, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), [(3, WcStatus::WrFlush)]);
    let attr = QpAttr { state: Some(QpState::Rts), cur_state: Some(QpState::Sqe), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("SQE leads to RTS");
    stage.post_as(4, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::UC_SEND_ONLY, FIRST + 1)], "the PSN sequence has no gap");
    assert_eq!(stage.statuses(), [success(4)]);
}

#[test]
fn send_queue_is_flushed_before_it_sends_again() {
    let mut stage = stage();
    let caps = QpCaps { max_send_wr: 256, ..QpCaps::default() };
    let init = QpInit { qp_type: QpType::Uc, caps, sq_sig_all: true };
    stage.qp = stage.host.queue_pair().init(init).cq_entries(512).create();
    stage.connect(&Setup { qp_type: QpType::Uc, ..Setup::default() });
    modify_to(&mut stage, QpState::Sqd);
    stage.post_as(0, WrOpcode::Read, SendFlags::SIGNALED, 8);
    (1..200).for_each(|id| stage.post_as(id, WrOpcode::Send, SendFlags::SIGNALED, 8));
    assert_eq!(stage.wait(SOON), [], "nothing starts");
    modify_to(&mut stage, QpState::Rts);
    assert_eq!(stage.statuses(), [(0, WcStatus::LocQpOp)], "the others wait");
    modify_to(&mut stage, QpState::Rts);
    stage.post_as(200, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::UC_SEND_ONLY, FIRST)]);
    let flushed = (1..200).map(|id| (id, WcStatus::WrFlush));
    assert_eq!(stage.statuses(), flushed.chain([success(200)]).collect::<Vec<_>>());
}

//= test: IBTA 10.8.3: receives-complete-in-order
//= test: IBTA 9.8.2: uc-is-never-answered
//= test: IBTA 9.4.1: immediate-is-delivered, send-takes-one-receive
#[test]
fn messages_are_received_without_acks() {
    let mut stage = stage();
    stage.receive(1, 0, 1000);
    stage.receive(2, 1000, 8);
    assert_eq!(stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL), SILENT);
    assert_eq!(stage.statuses(), [], "the message is not complete");
    assert_eq!(stage.request(Opcode::UC_SEND_MIDDLE, 1, Ext::None, &FULL), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST_IMM, 2, Ext::Imm(9), &[1, 2, 3]), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 3, Ext::None, &[4]), SILENT);
    let done = stage.completions();
    let seen: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm)).collect();
    let ok = WcStatus::Success;
    assert_eq!(seen, [(1, ok, WcOpcode::Recv, 515, 9), (2, ok, WcOpcode::Recv, 1, 0)]);
    assert_eq!(stage.memory.bytes(0, 515), [&FULL[..], &FULL, &[1, 2, 3]].concat());
    assert_eq!(stage.memory.bytes(1000, 2), [4, 0]);
}

//= test: IBTA 9.8.2.2: uc-gap-drops-the-message, uc-resumes-with-a-message
#[test]
fn psn_gap_drops_the_message_not_its_receive() {
    let mut stage = stage();
    stage.receive(1, 0, 1000);
    stage.receive(2, 1000, 8);
    stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL);
    // PSN 1 is lost.
    assert_eq!(stage.request(Opcode::UC_SEND_MIDDLE, 2, Ext::None, &FULL), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 3, Ext::None, &[1]), SILENT);
    assert_eq!(stage.statuses(), []);
    // Missing packets that arrive late do not revive the message.
    stage.request(Opcode::UC_SEND_MIDDLE, 1, Ext::None, &FULL);
    stage.request(Opcode::UC_SEND_LAST, 2, Ext::None, &[1]);
    assert_eq!(stage.statuses(), []);
    // Reception resumes with any packet that begins a message, also far ahead.
    stage.request(Opcode::UC_SEND_ONLY, 500, Ext::None, &[6, 6]);
    stage.request(Opcode::UC_SEND_ONLY, 501, Ext::None, &[7]);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(done, [(1, 2), (2, 1)]);
    assert_eq!(stage.memory.bytes(0, 3), [6, 6, 0x5a], "written over the lost message's bytes");
    assert_eq!(stage.state(), QpState::Rts);
    assert_eq!(stage.counter("rx_dropped_unacknowledged"), 4);
}

//= test: IBTA 9.8.2.2: uc-message-may-break-off
#[test]
fn new_message_replaces_an_unfinished_one() {
    let mut stage = stage();
    stage.receive(1, 0, 1000);
    stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL);
    stage.request(Opcode::UC_WRITE_ONLY, 1, Ext::Reth(stage.reth(2000, 4)), &[1, 2, 3, 4]);
    stage.request(Opcode::UC_SEND_MIDDLE, 2, Ext::None, &FULL);
    assert_eq!(stage.statuses(), [], "the SEND is gone");
    assert_eq!(stage.memory.bytes(2000, 4), [1, 2, 3, 4]);
    // A WRITE with immediate takes the receive of the abandoned SEND.
    let reth = Ext::RethImm(stage.reth(3000, 1), 77);
    stage.request(Opcode::UC_WRITE_ONLY_IMM, 3, reth, &[5]);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.opcode, wc.imm)).collect();
    assert_eq!(done, [(1, WcOpcode::RecvWriteImm, 77)]);
}

//= test: IBTA 9.8.2.2: uc-without-a-receive-is-lost
#[test]
fn message_without_a_receive_is_dropped() {
    let mut stage = stage();
    assert_eq!(stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL), SILENT);
    stage.receive(1, 0, 1000);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 1, Ext::None, &[1]), SILENT);
    assert_eq!(stage.statuses(), [], "the receive came too late for this message");
    stage.request(Opcode::UC_SEND_ONLY, 2, Ext::None, &[1]);
    assert_eq!(stage.statuses(), [success(1)]);
    let imm = Ext::RethImm(stage.reth(3000, 1), 77);
    assert_eq!(stage.request(Opcode::UC_WRITE_ONLY_IMM, 3, imm, &[5]), SILENT);
    assert_eq!(stage.memory.bytes(3000, 1), [0], "a WRITE with immediate is judged before it is carried out");
    assert_eq!(stage.counter("out_of_buffer"), 2);
    assert_eq!(stage.counter("send_rnr_err"), 0);
    assert_eq!(stage.state(), QpState::Rts);
}

//= test: IBTA 9.9.3: uc-receive-holds-the-message
#[test]
fn too_long_message_leaves_its_receive_posted() {
    let mut stage = stage();
    stage.receive(1, 0, 300);
    stage.receive(2, 1000, 8);
    stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 1, Ext::None, &[1; 45]), SILENT, "the peer is not told");
    assert_eq!(stage.statuses(), []);
    assert_eq!((stage.state(), stage.events()), (QpState::Rts, vec![]));
    assert_eq!(stage.counter("resp_local_length_error"), 1);
    assert_eq!(stage.counter("rx_dropped_unacknowledged"), 1);
    // A later packet of the dropped message is dropped too.
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 2, Ext::None, &[2; 4]), SILENT);
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 3, Ext::None, &[3; 4]), SILENT);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(done, [(1, WcStatus::Success, 4)]);
    assert_eq!(stage.memory.bytes(0, 4), [3; 4]);
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 4, Ext::None, &[4; 12]), SILENT, "8 bytes are left");
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 5, Ext::None, &[5; 8]), SILENT);
    assert_eq!(stage.statuses(), [(2, WcStatus::Success)]);
}

//= test: IBTA 9.9.3: receive-memory-is-writable
#[test]
fn receive_with_bad_lkey_fails_the_qp() {
    let mut stage = stage();
    let sge = Sge { lkey: LKey(1), ..stage.memory.sge(0, 8) };
    stage.host.post_recv(&stage.qp, 1, &[sge]).expect("room for a receive");
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 0, Ext::None, &[1]), SILENT);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocProt)]);
    assert_eq!(stage.events(), [EventKind::QpFatal]);
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 9.8.2.2: uc-key-is-checked, uc-length-is-checked
//= test: IBTA 9.8.2: uc-is-never-answered
#[test]
fn invalid_write_is_dropped_silently() {
    let mut stage = stage();
    let good = stage.reth(2000, 4);
    let cases = [
        ("an unknown key", Reth { rkey: good.rkey ^ 0x100, ..good }, 4),
        ("beyond the region", Reth { va: good.va + (1 << 16), ..good }, 4),
        ("fewer bytes than it says", Reth { dma_len: 5, ..good }, 4),
        ("more bytes than it says", Reth { dma_len: 3, ..good }, 4),
    ];
    for (psn, (what, reth, length)) in cases.into_iter().enumerate() {
        let answers = stage.request(Opcode::UC_WRITE_ONLY, psn as u32, Ext::Reth(reth), &[9; 4][..length]);
        assert_eq!(answers, SILENT, "{what}");
        assert_eq!(stage.state(), QpState::Rts, "{what}");
        assert_eq!(stage.memory.bytes(2000, 8), [0; 8], "{what}");
    }
    let attr = QpAttr { access: Some(Access::LOCAL_WRITE), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("RTS allows it");
    stage.request(Opcode::UC_WRITE_ONLY, 4, Ext::Reth(good), &[9; 4]);
    assert_eq!(stage.memory.bytes(2000, 4), [0; 4], "the QP does not let anyone write");
    assert_eq!((stage.events(), stage.statuses()), (vec![], vec![]));
    assert_eq!(stage.counter("resp_remote_access_errors"), 3);
    assert_eq!(stage.counter("resp_invalid_requests"), 2);
}

//= test: IBTA 9.8.2: uc-is-never-answered
#[test]
fn write_to_missing_page_is_dropped_silently() {
    let mut stage = stage();
    let pages = Pages::new(1);
    let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
    let reth = Reth { va: pages.address(), rkey: region.key, dma_len: 4 };
    pages.take_away(0);
    assert_eq!(stage.request(Opcode::UC_WRITE_ONLY, 0, Ext::Reth(reth), &[1; 4]), SILENT);
    assert_eq!((stage.events(), stage.statuses()), (vec![], vec![]));
    assert_eq!((stage.counter("memory_faults"), stage.state()), (1, QpState::Rts));
    assert_eq!(stage.counter("resp_remote_access_errors"), 1);
}

//= test: IBTA 9.8.2: uc-is-never-answered
#[test]
fn write_imm_to_missing_page_fails_its_receive() {
    let mut stage = stage();
    let pages = Pages::new(1);
    let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
    let reth = Reth { va: pages.address(), rkey: region.key, dma_len: 4 };
    pages.take_away(0);
    stage.receive(1, 0, 8);
    assert_eq!(stage.request(Opcode::UC_WRITE_ONLY_IMM, 0, Ext::RethImm(reth, 9), &[1; 4]), SILENT);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocAccess)]);
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 9.8.2.2: uc-length-is-checked
//= test: IBTA 9.8.2: uc-is-never-answered
#[test]
fn wrong_packet_length_drops_its_message() {
    let mut stage = stage();
    stage.receive(1, 0, 1000);
    assert_eq!(stage.request(Opcode::UC_SEND_FIRST, 0, Ext::None, &FULL[1..]), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 1, Ext::None, &[1]), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_FIRST, 2, Ext::None, &FULL), SILENT);
    assert_eq!(stage.request(Opcode::UC_SEND_LAST, 3, Ext::None, &[]), SILENT);
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.counter("resp_invalid_requests"), 2);
    stage.request(Opcode::UC_SEND_ONLY, 4, Ext::None, &[1]);
    assert_eq!(stage.statuses(), [success(1)]);
}

//= test: IBTA 9.6.1: opcode-is-of-the-qps-service
#[test]
fn packets_of_another_service_are_dropped() {
    let mut stage = stage();
    stage.receive(1, 0, 1000);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), SILENT);
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.counter("rx_wrong_service"), 1);
}

//= test: IBTA 10.6.7: bind-takes-effect-in-its-turn
#[test]
fn key_changing_requests_execute_in_order() {
    let mut stage = stage();
    let pd = stage.host.pd();
    let Ok(Reply::Window(index, window)) =
        stage.host.call(stage.now, Command::AllocWindow { pd, kind: MwType::One })
    else {
        panic!("no window")
    };
    let Ok(Reply::Key(key)) = stage.host.call(stage.now, Command::NextWindowKey(index)) else {
        panic!("no key")
    };
    let bind = WindowBind {
        window: RKey(window),
        new_key: RKey(key),
        region: LKey(stage.memory.key),
        address: stage.memory.address,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    let post = |stage: &Stage, wr: &SendWr| {
        stage.host.post_send(&stage.qp, wr, Payload::Sges(&[])).expect("room for a request");
    };
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 300);
    post(&stage, &SendWr::bind_window(2, SendFlags::SIGNALED, &bind));
    stage.post_as(3, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.packets().len(), 3, "a bind sends nothing");
    assert_eq!(stage.statuses(), [success(1), success(2), success(3)]);
    let reth = Reth { va: stage.memory.address, rkey: key, dma_len: 4 };
    stage.request(Opcode::UC_WRITE_ONLY, 0, Ext::Reth(reth), &[7; 4]);
    assert_eq!(stage.memory.bytes(0, 4), [7; 4]);
    // An unknown key fails like any other invalid request.
    post(&stage, &SendWr::local_invalidate(4, SendFlags::SIGNALED, RKey(1)));
    stage.post_as(5, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.packets(), []);
    assert_eq!(stage.statuses(), [(4, WcStatus::LocQpOp), (5, WcStatus::WrFlush)]);
    assert_eq!(stage.state(), QpState::Sqe);
}

//= test: IBTA 10.3.1.5: sqd-finishes-what-has-begun, sqd-tells-when-it-is-drained
#[test]
fn sqd_finishes_a_begun_message() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 200 * 256);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 8);
    // One pass sends at most one burst.
    stage.host.worker.poll(stage.now);
    assert_eq!(stage.statuses(), []);
    let attr = QpAttr { state: Some(QpState::Sqd), en_sqd_async_notify: Some(true), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("RTS leads to SQD");
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [success(1)]);
    assert_eq!(stage.events(), [EventKind::SqDrained]);
    let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("SQD leads to RTS");
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [success(2)]);
}
