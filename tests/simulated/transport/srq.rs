//! Shared receive queues (IBTA 10.2.9, 10.3.1.6, 11.6.3).

use std::sync::atomic::Ordering::Relaxed;

use roxie::limits::MAX_WR;
use roxie::nic::{Answer as Reply, Command, ControlError, MemoryCommand, ObjectKind, ReceiveSource};
use roxie::shared::{PostError, RecvRing};
use roxie::verbs::{
    AsyncEvent, EventKind, LKey, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, Sge, SrqInit, WcStatus,
};
use roxie::wire::{Bth, Deth, Ext, NakCode, Opcode, Syndrome};
use roxie_sim::{HostQp, HostSrq};

use crate::transport::{Answer, PEER_QPN, Setup, Stage};

const SILENT: [Answer; 0] = [];
const NOTHING: [(u64, WcStatus); 0] = [];
/// Length in bytes of a receive. Receives do not overlap.
const ROOM: u32 = 600;
const FULL: [u8; 256] = [0x5a; 256];

/// A stage with a QP that uses a shared receive queue of `max_wr` receives.
fn stage(qp_type: QpType, max_wr: u32) -> (Stage, HostSrq) {
    staged(Setup { qp_type, ..Setup::default() }, max_wr)
}

fn staged(setup: Setup, max_wr: u32) -> (Stage, HostSrq) {
    let qp_type = setup.qp_type;
    let mut stage = Stage::with(setup);
    let srq = stage.host.create_srq(SrqInit::default(), max_wr, 2);
    stage.qp = another(&mut stage, &srq, qp_type);
    (stage, srq)
}

fn another(stage: &mut Stage, srq: &HostSrq, qp_type: QpType) -> HostQp {
    let init = QpInit { qp_type, caps: QpCaps::default(), sq_sig_all: true };
    let qp = stage.host.queue_pair().init(init).receives(ReceiveSource::Shared(srq.index)).create();
    let setup = Setup { qp_type, ..Setup::default() };
    for attr in crate::transport::attributes(&stage.host, &setup) {
        stage.host.modify(stage.now, &qp, &attr).expect("a legal transition");
    }
    qp
}

fn post(stage: &Stage, srq: &HostSrq, ids: std::ops::Range<u64>) {
    for id in ids {
        let sges = [stage.memory.sge(id % 32 * u64::from(ROOM), ROOM)];
        srq.ring.post(id, &sges).expect("room for a receive");
    }
}

/// Sends a packet from the peer to one of the QPs and returns the NIC's packets.
fn send(stage: &mut Stage, to: Qpn, opcode: Opcode, psn: u32, payload: &[u8]) -> Vec<Answer> {
    let bth = Bth { opcode, dest_qp: to, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
    stage.send(&bth, &Ext::None, payload);
    stage.answers()
}

/// Sends a message to the stage's own QP and asserts that it is acknowledged.
fn deliver(stage: &mut Stage, psn: u32) {
    let to = stage.qp.handle.qpn;
    assert_eq!(send(stage, to, Opcode::RC_SEND_ONLY, psn, &[1]), [Answer::ack(psn)]);
}

/// Polls the completions of a QP: `wr_id` and status.
fn completed(stage: &Stage, qp: &HostQp) -> Vec<(u64, WcStatus)> {
    let all = std::iter::from_fn(|| stage.host.poll_cq(qp));
    all.inspect(|wc| assert_eq!(wc.qpn, qp.handle.qpn)).map(|wc| (wc.wr_id, wc.status)).collect()
}

fn success(id: u64) -> (u64, WcStatus) {
    (id, WcStatus::Success)
}

fn events(stage: &Stage) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| stage.host.event()).collect()
}

fn modify_to(stage: &mut Stage, state: QpState) {
    let attr = QpAttr { state: Some(state), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("every state leads there");
}

//= test: IBTA 10.2.9: srq-serves-in-order
#[test]
fn srq_serves_qps_in_posting_order() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    let other = another(&mut stage, &srq, QpType::Rc);
    post(&stage, &srq, 0..4);
    let (one, two) = (stage.qp.handle.qpn, other.handle.qpn);
    for psn in 0..2 {
        let byte = psn as u8;
        assert_eq!(send(&mut stage, one, Opcode::RC_SEND_ONLY, psn, &[10 + byte]), [Answer::ack(psn)]);
        assert_eq!(send(&mut stage, two, Opcode::RC_SEND_ONLY, psn, &[20 + byte]), [Answer::ack(psn)]);
    }
    assert_eq!(completed(&stage, &stage.qp), [success(0), success(2)]);
    assert_eq!(completed(&stage, &other), [success(1), success(3)]);
    let bytes: Vec<_> = (0..4).map(|id| stage.memory.bytes(id * u64::from(ROOM), 1)[0]).collect();
    assert_eq!(bytes, [10, 20, 11, 21]);
}

#[test]
fn interleaved_messages_fill_separate_receives() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    let other = another(&mut stage, &srq, QpType::Rc);
    post(&stage, &srq, 0..2);
    let (one, two) = (stage.qp.handle.qpn, other.handle.qpn);
    send(&mut stage, one, Opcode::RC_SEND_FIRST, 0, &[1; 256]);
    send(&mut stage, two, Opcode::RC_SEND_FIRST, 0, &[2; 256]);
    send(&mut stage, two, Opcode::RC_SEND_LAST, 1, &[2; 9]);
    send(&mut stage, one, Opcode::RC_SEND_LAST, 1, &[1; 7]);
    assert_eq!(completed(&stage, &stage.qp), [success(0)]);
    assert_eq!(completed(&stage, &other), [success(1)]);
    assert_eq!(stage.memory.bytes(0, 263), [1; 263]);
    assert_eq!(stage.memory.bytes(ROOM.into(), 265), [2; 265]);
}

#[test]
fn empty_srq_answers_rnr_nak() {
    let (mut stage, srq) = stage(QpType::Rc, 4);
    let to = stage.qp.handle.qpn;
    let not_ready = Answer::acknowledge(0, Syndrome::RnrNak { timer: 12 });
    assert_eq!(send(&mut stage, to, Opcode::RC_SEND_ONLY, 0, &[1]), [not_ready]);
    assert_eq!(stage.counter("out_of_buffer"), 1);
    post(&stage, &srq, 0..1);
    deliver(&mut stage, 0);
    assert_eq!(completed(&stage, &stage.qp), [success(0)]);
}

#[test]
fn uc_and_ud_drop_on_an_empty_srq() {
    let (mut stage, srq) = stage(QpType::Uc, 4);
    let to = stage.qp.handle.qpn;
    assert_eq!(send(&mut stage, to, Opcode::UC_SEND_ONLY, 0, &[1]), SILENT);
    post(&stage, &srq, 0..2);
    assert_eq!(send(&mut stage, to, Opcode::UC_SEND_ONLY, 1, &[2]), SILENT);
    assert_eq!(completed(&stage, &stage.qp), [success(0)]);

    let datagrams = another(&mut stage, &srq, QpType::Ud);
    let deth = Ext::Deth(Deth { qkey: 0x1111_2222, src_qp: PEER_QPN });
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: datagrams.handle.qpn, ..Bth::default() };
    for byte in [3, 4] {
        stage.send(&bth, &deth, &[byte]);
        assert_eq!(stage.answers(), SILENT);
    }
    assert_eq!(completed(&stage, &datagrams), [success(1)], "the second found none");
    assert_eq!(stage.memory.bytes(u64::from(ROOM) + 40, 1), [3]);
    assert_eq!(stage.counter("out_of_buffer"), 2);
}

//= test: IBTA 10.2.9: srq-limit-is-told-once
#[test]
fn srq_limit_event_fires_once_per_arming() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    let reached = AsyncEvent::Srq(srq.index, EventKind::SrqLimitReached);
    post(&stage, &srq, 0..4);
    stage.host.arm_srq(stage.now, &srq, 3).expect("within its size");
    deliver(&mut stage, 0);
    assert_eq!(events(&stage), [], "three are left, which is not below the limit");
    assert_eq!(stage.host.query_srq(stage.now, &srq).limit, 3);
    deliver(&mut stage, 1);
    assert_eq!(events(&stage), [reached]);
    assert_eq!(stage.host.query_srq(stage.now, &srq).limit, 0, "disarmed");
    deliver(&mut stage, 2);
    assert_eq!(events(&stage), [], "once");
    stage.host.arm_srq(stage.now, &srq, 2).expect("within its size");
    assert_eq!(events(&stage), [reached], "one is left already");
    let refused = stage.host.arm_srq(stage.now, &srq, 9);
    assert_eq!(refused, Err(ControlError::TooLarge { what: "srq_limit", value: 9, limit: 8 }));
}

//= test: IBTA 10.2.9: srq-outlives-a-qp
#[test]
fn qp_error_flushes_only_its_begun_receive() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    let other = another(&mut stage, &srq, QpType::Rc);
    post(&stage, &srq, 0..3);
    let to = stage.qp.handle.qpn;
    send(&mut stage, to, Opcode::RC_SEND_FIRST, 0, &FULL);
    modify_to(&mut stage, QpState::Err);
    assert_eq!(completed(&stage, &stage.qp), [(0, WcStatus::WrFlush)]);
    let last = AsyncEvent::Qp(stage.qp.handle.index, EventKind::LastWqeReached);
    assert_eq!(events(&stage), [last]);
    modify_to(&mut stage, QpState::Err);
    assert_eq!(events(&stage), [], "the QP is already in the error state");
    assert_eq!(stage.host.query_srq(stage.now, &srq).waiting, 2);
    stage.qp = other;
    deliver(&mut stage, 0);
    assert_eq!(completed(&stage, &stage.qp), [success(1)], "the other QP continues");
}

#[test]
fn qp_without_srq_raises_no_last_wqe_event() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 8);
    modify_to(&mut stage, QpState::Err);
    assert_eq!(stage.statuses(), [(1, WcStatus::WrFlush)]);
    assert_eq!(events(&stage), []);
}

#[test]
fn refused_message_consumes_one_srq_receive() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    srq.ring.post(7, &[stage.memory.sge(0, 1)]).expect("room");
    post(&stage, &srq, 8..9);
    let to = stage.qp.handle.qpn;
    let refused = send(&mut stage, to, Opcode::RC_SEND_ONLY, 0, &[1, 2]);
    assert_eq!(refused, [Answer::nak(0, NakCode::InvalidRequest)]);
    assert_eq!(completed(&stage, &stage.qp), [(7, WcStatus::LocLen)]);
    assert_eq!(stage.host.query_srq(stage.now, &srq).waiting, 1);
}

/// After the reset, the begun receive never completes (IBTA 10.2.9.4: move to ERR first), and the QP takes the next
/// one.
#[test]
fn reset_drops_only_the_begun_receive() {
    let (mut stage, srq) = stage(QpType::Rc, 8);
    post(&stage, &srq, 0..2);
    let to = stage.qp.handle.qpn;
    send(&mut stage, to, Opcode::RC_SEND_FIRST, 0, &FULL);
    modify_to(&mut stage, QpState::Reset);
    stage.connect(&Setup::default());
    deliver(&mut stage, 0);
    assert_eq!(completed(&stage, &stage.qp), [success(1)]);
}

#[test]
fn srq_resize_keeps_the_order_of_receives() {
    let (mut stage, mut srq) = stage(QpType::Rc, 4);
    post(&stage, &srq, 0..4);
    let to = stage.qp.handle.qpn;
    send(&mut stage, to, Opcode::RC_SEND_FIRST, 0, &FULL);
    let small = stage.host.resize_srq(stage.now, &mut srq, 2);
    let refused = ControlError::TooSmall { object: ObjectKind::SharedReceiveQueue, size: 2, holds: 3 };
    assert_eq!(small, Err(refused));
    stage.host.resize_srq(stage.now, &mut srq, 9).expect("larger");
    post(&stage, &srq, 4..10);
    let full = srq.ring.post(10, &[]);
    assert_eq!(full, Err(PostError::QueueFull { outstanding: 9, capacity: 9 }));
    send(&mut stage, to, Opcode::RC_SEND_LAST, 1, &[1]);
    for psn in 2..11 {
        deliver(&mut stage, psn);
    }
    assert_eq!(completed(&stage, &stage.qp), (0..10).map(success).collect::<Vec<_>>());
    stage.host.resize_srq(stage.now, &mut srq, 1).expect("nothing waits");
    assert_eq!(stage.host.query_srq(stage.now, &srq).max_wr, 1);
}

#[test]
fn srq_resize_with_fewer_sges_is_refused() {
    let (mut stage, srq) = stage(QpType::Rc, 4);
    let ring = Some(RecvRing::new(8, 1).expect("memory"));
    let refused = stage.host.call(stage.now, MemoryCommand::ModifySrq { srq: srq.index, ring, limit: None });
    assert!(matches!(refused, Err(ControlError::TooSmall { .. })), "{refused:?}");
    assert_eq!(stage.host.query_srq(stage.now, &srq).max_sge, 2);
}

/// Scatter lists belong to the SRQ's protection domain, rkeys to the QP's (IBTA 10.2.9.1).
//= test: IBTA 10.2.9.1: srq-lists-are-of-its-domain
#[test]
fn srq_sges_use_the_srqs_pd() {
    let (mut stage, _) = stage(QpType::Rc, 4);
    let Ok(Reply::Pd(pd)) = stage.host.call(stage.now, Command::AllocPd) else { panic!("no domain") };
    let memory = roxie::shared::HostMemory::allocate(64).expect("memory");
    let access = roxie::verbs::Access::LOCAL_WRITE;
    let register = MemoryCommand::RegisterMemory { pd, access, start: 0x5000, memory: memory.clone() };
    let Ok(Reply::Memory(_, key)) = stage.host.call(stage.now, register) else { panic!("no region") };
    let ring = RecvRing::new(4, 1).expect("memory");
    let make = MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring: ring.clone() };
    let Ok(Reply::Srq(index, _)) = stage.host.call(stage.now, make) else { panic!("no queue") };
    let init = QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: true };
    stage.qp = stage.host.queue_pair().init(init).receives(ReceiveSource::Shared(index)).create();
    stage.connect(&Setup::default());
    ring.post(1, &[Sge { addr: 0x5000, length: 8, lkey: LKey(key) }]).expect("room");
    ring.post(2, &[stage.memory.sge(0, 8)]).expect("room");
    deliver(&mut stage, 0);
    let to = stage.qp.handle.qpn;
    let refused = send(&mut stage, to, Opcode::RC_SEND_ONLY, 1, &[1]);
    assert_eq!(refused, [Answer::nak(1, NakCode::RemoteOperational)]);
    assert_eq!(completed(&stage, &stage.qp), [success(1), (2, WcStatus::LocProt)]);
    let mut byte = [0];
    memory.read(0, &mut byte).expect("within");
    assert_eq!(byte, [1]);
}

#[test]
fn srq_in_use_cannot_be_destroyed() {
    let (mut stage, srq) = stage(QpType::Rc, 4);
    post(&stage, &srq, 0..2);
    let busy = stage.host.call(stage.now, Command::DestroySrq(srq.index));
    assert_eq!(busy.err(), Some(ControlError::Busy { object: ObjectKind::SharedReceiveQueue, users: 1 }));
    stage.host.call(stage.now, Command::DestroyQp(stage.qp.handle.index)).expect("the QP exists");
    stage.host.call(stage.now, Command::DestroySrq(srq.index)).expect("no users left");
    let status = stage.host.call(stage.now, Command::QuerySrq(srq.index));
    assert_eq!(status.err(), Some(ControlError::NotFound(ObjectKind::SharedReceiveQueue)));
    assert_eq!(completed(&stage, &stage.qp), NOTHING);
}

#[test]
fn query_srq_returns_sizes_and_limit() {
    let (mut stage, srq) = stage(QpType::Rc, 5);
    post(&stage, &srq, 0..3);
    stage.host.arm_srq(stage.now, &srq, 2).expect("within its size");
    let status = stage.host.query_srq(stage.now, &srq);
    assert_eq!((status.max_wr, status.max_sge, status.limit, status.waiting), (5, 2, 2, 3));
    assert_eq!((status.number, status.failed), (srq.number, false));
    let qp = stage.host.query(stage.now, &stage.qp);
    assert_eq!((qp.srq, qp.caps.max_recv_wr, qp.caps.max_recv_sge), (Some(srq.index), 0, 0));
    assert_eq!((qp.caps.max_send_wr, qp.sq_sig_all), (QpCaps::default().max_send_wr, true));
}

#[test]
fn post_recv_on_an_srq_qp_is_refused() {
    let (stage, _) = stage(QpType::Rc, 5);
    assert_eq!(stage.host.post_recv(&stage.qp, 1, &[]), Err(PostError::NoReceiveQueue));
}

/// Receives that other QPs may take are no credit (IBTA 9.7.7.2).
//= test: IBTA 9.7.7.2: credits-are-told
#[test]
fn acks_of_srq_qps_carry_no_credits() {
    let setup = Setup { credits: true, ..Setup::default() };
    let (mut stage, srq) = staged(setup, 4);
    post(&stage, &srq, 0..3);
    deliver(&mut stage, 0);
    assert_eq!(completed(&stage, &stage.qp), [success(0)]);
}

#[test]
fn corrupted_srq_fails_with_its_qps() {
    let (mut stage, srq) = stage(QpType::Rc, 4);
    post(&stage, &srq, 0..1);
    // The first word is the producer index, which now exceeds the ring's size.
    srq.ring.words()[0].store(1 << 20, Relaxed);
    let to = stage.qp.handle.qpn;
    send(&mut stage, to, Opcode::RC_SEND_ONLY, 0, &[1]);
    let qp = stage.qp.handle.index;
    let expected = [
        AsyncEvent::Srq(srq.index, EventKind::SrqError),
        AsyncEvent::Qp(qp, EventKind::LastWqeReached),
        AsyncEvent::Qp(qp, EventKind::QpFatal),
    ];
    assert_eq!(events(&stage), expected);
    assert_eq!(stage.state(), QpState::Err);
    assert!(stage.host.query_srq(stage.now, &srq).failed);
    assert_eq!(completed(&stage, &stage.qp), NOTHING);
}

#[test]
fn srq_size_is_bounded_by_max_wr() {
    let mut stage = Stage::new();
    let pd = stage.host.pd();
    let mut create = |size| {
        let ring = RecvRing::new(size, 1).expect("memory");
        stage.host.call(stage.now, MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring })
    };
    assert!(create(MAX_WR).is_ok());
    let (value, limit) = (u64::from(MAX_WR) + 1, u64::from(MAX_WR));
    let Err(error) = create(MAX_WR + 1) else { panic!("it is larger") };
    assert_eq!(error, ControlError::TooLarge { what: "max_wr", value, limit });
}
