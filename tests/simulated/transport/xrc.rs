//! The extended reliable connection (IBTA annex A14).

use roxie::nic::{
    Answer as Reply, Command, ControlError, MemoryCommand, ObjectKind, QpHandle, ReceiveSource,
};
use roxie::shared::work_queue::Payload;
use roxie::shared::{CompletionRing, HostMemory, RecvRing, SendRing};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AsyncEvent, CqIndex, EventKind, FileId, OpenXrcd, PdId, Psn, QpAttr, QpCaps, QpInit, QpState,
    QpType, RKey, SendWr, SrqInit, SrqKind, Srqn, Wc, WcOpcode, WcStatus, WrOpcode, XrcdId,
};
use roxie::wire::{Aeth, AtomicEth, Bth, Ext, NakCode, Opcode, Reth, Syndrome, XrcEth};
use roxie_sim::HostSrq;

use crate::transport::{FIRST, Setup, Stage};

const SOON: Nanos = Nanos(1000);
const SRQN: Srqn = Srqn(0x12_3456);
const FULL: [u8; 256] = [0x5a; 256];

/// Opcode, PSN and syndrome of the NIC's packets.
pub(crate) type Said = Vec<(Opcode, u32, Option<Syndrome>)>;

fn ack(psn: u32) -> (Opcode, u32, Option<Syndrome>) {
    (Opcode::XRC_ACKNOWLEDGE, psn, Some(Syndrome::Ack { credits: 31 }))
}

fn nak(psn: u32, code: NakCode) -> (Opcode, u32, Option<Syndrome>) {
    (Opcode::XRC_ACKNOWLEDGE, psn, Some(Syndrome::Nak(code)))
}

/// An XRC target and two shared receive queues in its XRC domain.
pub(crate) struct Target {
    stage: Stage,
    xrcd: XrcdId,
    qp: QpHandle,
    queues: [(HostSrq, CompletionRing); 2],
}

impl Target {
    fn new() -> Target {
        Target::on(Stage::new())
    }

    pub(crate) fn on(mut stage: Stage) -> Target {
        let xrcd = stage.host.open_xrcd();
        let queues = [(); 2].map(|()| queue(&mut stage, xrcd));
        let qp = stage.host.create_xrc_target(xrcd);
        let mut target = Target { stage, xrcd, qp, queues };
        target.connect();
        target
    }

    fn connect(&mut self) {
        let setup = Setup { qp_type: QpType::XrcRecv, ..Setup::default() };
        for attr in crate::transport::attributes(&self.stage.host, &setup) {
            self.stage.host.modify(self.stage.now, self.qp.index, &attr).expect("a legal transition");
        }
    }

    pub(crate) fn post(&self, queue: usize, wr_id: u64, length: u32) {
        let sges = [self.stage.memory.sge(0, length)];
        self.queues[queue].0.ring.post(wr_id, &sges).expect("room");
    }

    pub(crate) fn request(&mut self, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) -> Said {
        let dest_qp = self.qp.qpn;
        let bth = Bth { opcode, dest_qp, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
        self.stage.send(&bth, &ext, payload);
        self.stage.answers().into_iter().map(|a| (a.opcode, a.psn, a.syndrome)).collect()
    }

    fn send(&mut self, queue: usize, psn: u32) -> Said {
        let srqn = self.queues[queue].0.number;
        self.request(Opcode::XRC_SEND_ONLY, psn, Ext::Xrc(XrcEth { srqn: srqn.0 }), &[7, 8, 9])
    }

    pub(crate) fn number(&self, queue: usize) -> Srqn {
        self.queues[queue].0.number
    }

    fn completed(&self, queue: usize) -> Vec<Wc> {
        std::iter::from_fn(|| self.queues[queue].1.poll()).collect()
    }

    fn ids(&self, queue: usize) -> Vec<(u64, WcStatus)> {
        self.completed(queue).into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn state(&mut self) -> QpState {
        self.stage.host.query(self.stage.now, self.qp.index).state
    }

    fn call(&mut self, command: impl Into<Command>) -> Result<Reply, ControlError> {
        self.stage.host.call(self.stage.now, command)
    }
}

fn queue(stage: &mut Stage, xrcd: XrcdId) -> (HostSrq, CompletionRing) {
    let (cq, ring) = stage.host.create_cq(16, None);
    let init = SrqInit { kind: SrqKind::Xrc { xrcd, cq }, limit: 0 };
    (stage.host.create_srq(init, 4, 2), ring)
}

fn xrc(srqn: Srqn) -> XrcEth {
    XrcEth { srqn: srqn.0 }
}

#[test]
fn request_consumes_from_the_named_srq() {
    let mut target = Target::new();
    target.post(0, 10, 64);
    target.post(1, 20, 64);
    target.post(0, 11, 64);
    assert_eq!(target.send(1, 0), [ack(0)]);
    assert_eq!(target.send(0, 1), [ack(1)]);
    assert_eq!(target.send(0, 2), [ack(2)]);
    let first = target.completed(0);
    let expected =
        |wr_id| Wc { wr_id, opcode: WcOpcode::Recv, qpn: target.qp.qpn, byte_len: 3, ..Wc::default() };
    assert_eq!(first, [expected(10), expected(11)]);
    assert_eq!(target.completed(1), [expected(20)]);
    assert_eq!(target.stage.memory.bytes(0, 3), [7, 8, 9]);
}

#[test]
fn empty_named_srq_answers_rnr_nak() {
    let mut target = Target::new();
    target.post(1, 20, 64);
    let not_ready = (Opcode::XRC_ACKNOWLEDGE, 0, Some(Syndrome::RnrNak { timer: 12 }));
    assert_eq!(target.send(0, 0), [not_ready]);
    target.post(0, 10, 64);
    assert_eq!(target.send(0, 0), [ack(0)]);
    assert_eq!(target.ids(0), [(10, WcStatus::Success)]);
    assert_eq!(target.ids(1), []);
}

//= test: IBTA A14: xrc-queue-is-of-the-domain
#[test]
fn unknown_srq_number_is_an_invalid_request() {
    type Number = fn(&mut Target) -> Srqn;
    let guessed: Number = |target| Srqn(target.queues[0].0.number.0 ^ 1);
    let of_another_domain: Number = |target| {
        let other = target.stage.host.open_xrcd();
        queue(&mut target.stage, other).0.number
    };
    let not_of_xrc: Number = |target| target.stage.host.create_srq(SrqInit::default(), 4, 1).number;
    let destroyed: Number = |target| {
        let xrcd = target.xrcd;
        let srq = queue(&mut target.stage, xrcd).0;
        target.call(Command::DestroySrq(srq.index)).expect("the object exists");
        srq.number
    };
    for (what, number) in [
        ("guessed", guessed),
        ("of another domain", of_another_domain),
        ("not of XRC", not_of_xrc),
        ("destroyed", destroyed),
    ] {
        let mut target = Target::new();
        target.post(0, 10, 64);
        let srqn = number(&mut target);
        let answer = target.request(Opcode::XRC_SEND_ONLY, 0, Ext::Xrc(xrc(srqn)), &[1]);
        assert_eq!(answer, [nak(0, NakCode::InvalidRequest)], "{what}");
        assert_eq!(target.state(), QpState::Err, "{what}");
        assert_eq!(target.ids(0), [], "{what}: no receive is touched");
        let events = target.stage.events();
        assert_eq!(events, [EventKind::QpRequestError, EventKind::LastWqeReached], "{what}");
    }
}

//= test: IBTA A14: xrc-message-names-one-queue
#[test]
fn message_cannot_change_its_srq() {
    let mut target = Target::new();
    target.post(0, 10, 600);
    let [one, two] = [0, 1].map(|i| Ext::Xrc(xrc(target.queues[i].0.number)));
    assert_eq!(target.request(Opcode::XRC_SEND_FIRST, 0, one, &FULL), [ack(0)]);
    let answer = target.request(Opcode::XRC_SEND_LAST, 1, two, &[1]);
    assert_eq!(answer, [nak(1, NakCode::InvalidRequest)]);
    assert_eq!(target.ids(0), [(10, WcStatus::WrFlush)], "flushed to the queue that it came from");
    assert_eq!(target.ids(1), []);
}

/// Creates a queue in a protection domain of its own, and a region in that domain.
fn foreign(target: &mut Target) -> (Srqn, PdId, u32, HostMemory) {
    let Ok(Reply::Pd(pd)) = target.call(Command::AllocPd) else { panic!("no domain") };
    let memory = HostMemory::allocate(64).expect("memory");
    let register = MemoryCommand::RegisterMemory {
        pd,
        access: Access::READ_WRITE,
        start: 0x5000,
        memory: memory.clone(),
    };
    let Ok(Reply::Memory(_, key)) = target.call(register) else { panic!("no region") };
    let (cq, _) = target.stage.host.create_cq(16, None);
    let init = SrqInit { kind: SrqKind::Xrc { xrcd: target.xrcd, cq }, limit: 0 };
    let ring = RecvRing::new(4, 1).expect("memory");
    let Ok(Reply::Srq(_, srqn)) = target.call(MemoryCommand::CreateSrq { pd, init, ring }) else {
        panic!("no queue")
    };
    (srqn, pd, key, memory)
}

//= test: IBTA A14: xrc-keys-are-of-the-queues-domain
#[test]
fn rkeys_use_the_named_srqs_pd() {
    let mut target = Target::new();
    let (srqn, _, key, memory) = foreign(&mut target);
    let there = Reth { va: 0x5000, rkey: key, dma_len: 8 };
    let write = Ext::XrcReth(xrc(srqn), there);
    assert_eq!(target.request(Opcode::XRC_WRITE_ONLY, 0, write, &[3; 8]), [ack(0)]);
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).expect("within");
    assert_eq!(bytes, [3; 8]);
    let atomic = AtomicEth { va: 0x5000, rkey: key, swap_or_add: 1, compare: 0 };
    let answer = target.request(Opcode::XRC_FETCH_ADD, 1, Ext::XrcAtomic(xrc(srqn), atomic), &[]);
    assert_eq!(answer, [(Opcode::XRC_ATOMIC_ACKNOWLEDGE, 1, ack(1).2)]);
    let answer = target.request(Opcode::XRC_READ_REQUEST, 2, Ext::XrcReth(xrc(srqn), there), &[]);
    assert_eq!(answer, [(Opcode::XRC_READ_RESPONSE_ONLY, 2, ack(2).2)]);
    // The rkey is invalid with a queue of another protection domain.
    let number = target.queues[0].0.number;
    let answer = target.request(Opcode::XRC_READ_REQUEST, 3, Ext::XrcReth(xrc(number), there), &[]);
    assert_eq!(answer, [nak(3, NakCode::RemoteAccess)]);
}

/// A READ response leaves after the next request has named a queue of another protection domain.
#[test]
fn read_response_uses_the_pd_of_its_request() {
    let mut target = Target::new();
    let (srqn, _, key, memory) = foreign(&mut target);
    memory.write(0, &[9; 8]).expect("within");
    let there = Reth { va: 0x5000, rkey: key, dma_len: 8 };
    let ours = Reth { va: target.stage.memory.address, rkey: target.stage.memory.key, dma_len: 8 };
    let number = target.queues[0].0.number;
    for (psn, ext) in [(0, Ext::XrcReth(xrc(srqn), there)), (1, Ext::XrcReth(xrc(number), ours))] {
        let (opcode, dest_qp) = (Opcode::XRC_READ_REQUEST, target.qp.qpn);
        let bth = Bth { opcode, dest_qp, psn: Psn::new(psn), ..Bth::default() };
        target.stage.send(&bth, &ext, &[]);
    }
    let answers: Vec<_> = target.stage.answers().into_iter().map(|a| (a.psn, a.payload)).collect();
    assert_eq!(answers, [(0, vec![9; 8]), (1, vec![0; 8])]);
    // A duplicate is answered in the same protection domain.
    let answer = target.request(Opcode::XRC_READ_REQUEST, 0, Ext::XrcReth(xrc(srqn), there), &[]);
    assert_eq!(answer, [(Opcode::XRC_READ_RESPONSE_ONLY, 0, ack(0).2)]);
}

//= test: IBTA A14: xrc-has-one-direction
#[test]
fn xrc_target_drops_responses() {
    let mut target = Target::new();
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 1 };
    assert_eq!(target.request(Opcode::XRC_ACKNOWLEDGE, FIRST.value(), Ext::Aeth(aeth), &[]), []);
    assert_eq!(target.stage.counter("ghost_acks"), 1);
    assert_eq!(target.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [], "another service");
    assert_eq!(target.stage.counter("rx_wrong_service"), 1);
    assert_eq!(target.state(), QpState::Rts);
}

#[test]
fn destroyed_srq_drops_the_begun_receive() {
    let mut target = Target::new();
    target.post(0, 10, 600);
    let number = target.queues[0].0.number;
    target.request(Opcode::XRC_SEND_FIRST, 0, Ext::Xrc(xrc(number)), &FULL);
    let index = target.queues[0].0.index;
    target.call(Command::DestroySrq(index)).expect("targets do not hold it");
    let answer = target.request(Opcode::XRC_SEND_LAST, 1, Ext::Xrc(xrc(number)), &[1]);
    assert_eq!(answer, [nak(1, NakCode::InvalidRequest)]);
    assert_eq!(target.ids(0), [], "the queue is destroyed");
}

#[test]
fn cq_overflow_fails_the_srq_and_target() {
    let mut target = Target::new();
    let (cq, _) = target.stage.host.create_cq(1, None);
    let init = SrqInit { kind: SrqKind::Xrc { xrcd: target.xrcd, cq }, limit: 0 };
    let srq = target.stage.host.create_srq(init, 4, 1);
    for id in 0..4 {
        srq.ring.post(id, &[target.stage.memory.sge(0, 8)]).expect("room");
    }
    let ext = Ext::Xrc(xrc(srq.number));
    target.request(Opcode::XRC_SEND_ONLY, 0, ext, &[1]);
    target.request(Opcode::XRC_SEND_ONLY, 1, ext, &[1]);
    let events: Vec<_> = std::iter::from_fn(|| target.stage.host.event()).collect();
    for expected in [
        AsyncEvent::Cq(cq, EventKind::CqError),
        AsyncEvent::Srq(srq.index, EventKind::SrqError),
        AsyncEvent::Qp(target.qp.index, EventKind::QpFatal),
    ] {
        assert_eq!(
            events.iter().filter(|event| **event == expected).count(),
            1,
            "{expected:?} in {events:?}"
        );
    }
    assert_eq!(target.state(), QpState::Err);
    assert!(target.stage.host.query_srq(target.stage.now, &srq).failed);
}

fn initiator() -> Stage {
    let mut stage = Stage::new();
    let init = QpInit { qp_type: QpType::XrcSend, caps: QpCaps::default(), sq_sig_all: true };
    stage.qp = stage.host.queue_pair().init(init).receives(ReceiveSource::None).create();
    stage.connect(&Setup { qp_type: QpType::XrcSend, ..Setup::default() });
    stage
}

fn post_request(stage: &Stage, opcode: WrOpcode, length: u32) {
    let wr = SendWr {
        opcode,
        imm: if opcode == WrOpcode::Flush { 1 } else { 5 },
        remote_addr: 0x1000,
        rkey: RKey(1),
        remote_srqn: SRQN,
        ..SendWr::default()
    };
    let sges = [stage.memory.sge(0, length)];
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
}

//= test: IBTA A14: xrc-request-names-its-queue
#[test]
fn every_request_carries_its_srq_number() {
    use WrOpcode as W;
    let cases: [(W, u32, &[Opcode]); 12] = [
        (W::Send, 8, &[Opcode::XRC_SEND_ONLY]),
        (W::Send, 600, &[Opcode::XRC_SEND_FIRST, Opcode::XRC_SEND_MIDDLE, Opcode::XRC_SEND_LAST]),
        (W::SendImm, 300, &[Opcode::XRC_SEND_FIRST, Opcode::XRC_SEND_LAST_IMM]),
        (W::SendInvalidate, 8, &[Opcode::XRC_SEND_ONLY_INVALIDATE]),
        (W::Write, 300, &[Opcode::XRC_WRITE_FIRST, Opcode::XRC_WRITE_LAST]),
        (W::WriteImm, 8, &[Opcode::XRC_WRITE_ONLY_IMM]),
        (W::WriteImm, 300, &[Opcode::XRC_WRITE_FIRST, Opcode::XRC_WRITE_LAST_IMM]),
        (W::Read, 8, &[Opcode::XRC_READ_REQUEST]),
        (W::CompareSwap, 8, &[Opcode::XRC_COMPARE_SWAP]),
        (W::FetchAdd, 8, &[Opcode::XRC_FETCH_ADD]),
        (W::AtomicWrite, 8, &[Opcode::XRC_ATOMIC_WRITE]),
        (W::Flush, 0, &[Opcode::XRC_FLUSH]),
    ];
    for (opcode, length, expected) in cases {
        let mut stage = initiator();
        post_request(&stage, opcode, length);
        let packets = stage.packets();
        let seen: Vec<_> = packets.iter().map(|(p, _)| p.bth.opcode).collect();
        assert_eq!(seen, expected, "{opcode:?} of {length} bytes");
        assert!(packets.iter().all(|(p, _)| p.xrceth() == Some(xrc(SRQN))), "{opcode:?}");
        let bytes: usize = packets.iter().map(|(_, payload)| payload.len()).sum();
        let sent = if opcode.returns_data() { 0 } else { length as usize };
        assert_eq!(bytes, sent, "{opcode:?}");
    }
}

#[test]
fn unacknowledged_request_is_retransmitted() {
    let mut stage = initiator();
    post_request(&stage, WrOpcode::Send, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::XRC_SEND_ONLY, FIRST)]);
    assert_eq!(stage.wait(crate::transport::TIMEOUT), [(Opcode::XRC_SEND_ONLY, FIRST)]);
    assert_eq!(stage.statuses(), []);
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 1 };
    stage.answer(Opcode::XRC_ACKNOWLEDGE, FIRST, Ext::Aeth(aeth), &[]);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
}

#[test]
fn read_response_completes_the_initiators_read() {
    let mut stage = initiator();
    post_request(&stage, WrOpcode::Read, 8);
    stage.wait(SOON);
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 1 };
    stage.answer(Opcode::XRC_READ_RESPONSE_ONLY, FIRST, Ext::Aeth(aeth), &[4; 8]);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(stage.memory.bytes(0, 8), [4; 8]);
}

//= test: IBTA A14: xrc-has-one-direction
#[test]
fn xrc_initiator_drops_requests() {
    let mut stage = initiator();
    let ext = Ext::Xrc(xrc(SRQN));
    assert_eq!(stage.request(Opcode::XRC_SEND_ONLY, 0, ext, &[1]), []);
    assert_eq!(stage.counter("rx_wrong_service"), 1);
    assert_eq!(stage.state(), QpState::Rts);
}

#[test]
fn receive_queue_must_match_the_qp_type() {
    let mut stage = Stage::new();
    let cq = stage.qp.cq_index;
    let rings = || (SendRing::new(4, 1, 0).expect("memory"), RecvRing::new(4, 1).expect("memory"));
    let mut make = |qp_type, own: bool| {
        let (sends, receives) = rings();
        let receives = if own { ReceiveSource::Own(receives) } else { ReceiveSource::None };
        let init = QpInit { qp_type, ..QpInit::default() };
        let pd = stage.host.pd();
        let command = MemoryCommand::CreateQp { pd, send_cq: cq, recv_cq: cq, init, sends, receives };
        stage.host.call(stage.now, command).map(drop)
    };
    assert_eq!(make(QpType::XrcSend, true), Err(ControlError::Receives(QpType::XrcSend)));
    assert_eq!(make(QpType::XrcRecv, true), Err(ControlError::Receives(QpType::XrcRecv)));
    assert_eq!(make(QpType::Rc, false), Err(ControlError::Receives(QpType::Rc)));
    assert_eq!(make(QpType::XrcSend, false), Ok(()));
}

#[test]
fn xrc_domain_is_shared_by_file() {
    let mut target = Target::new();
    let file = Some(FileId { device: 1, inode: 2 });
    let open = |target: &mut Target, create, exclusive| match target.call(Command::OpenXrcd(OpenXrcd {
        file,
        create,
        exclusive,
    })) {
        Ok(Reply::Xrcd(xrcd)) => Ok(xrcd),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let missing = ControlError::NotFound(ObjectKind::XrcDomainOfFile);
    assert_eq!(open(&mut target, false, false), Err(missing));
    let one = open(&mut target, true, true).expect("there was none");
    assert_eq!(open(&mut target, true, true), Err(ControlError::Taken("XRC domain of this file")));
    assert_eq!(open(&mut target, false, false), Ok(one));
    assert_ne!(one, target.xrcd);
    let srq = queue(&mut target.stage, one).0;
    target.call(Command::CloseXrcd(one)).expect("another has it open");
    let busy = target.call(Command::CloseXrcd(one)).err();
    assert_eq!(busy, Some(ControlError::Busy { object: ObjectKind::XrcDomain, users: 1 }));
    target.call(Command::DestroySrq(srq.index)).expect("the object exists");
    target.call(Command::CloseXrcd(one)).expect("nothing is in it");
    let again = target.call(Command::CloseXrcd(one)).err();
    assert_eq!(again, Some(ControlError::NotFound(ObjectKind::XrcDomain)));
}

#[test]
fn objects_used_by_xrc_cannot_be_destroyed() {
    let mut target = Target::new();
    let xrcd = target.xrcd;
    let users = |target: &mut Target, command| match target.call(command) {
        Err(ControlError::Busy { users, .. }) => users,
        other => panic!("{other:?}"),
    };
    assert_eq!(users(&mut target, Command::CloseXrcd(xrcd)), 3, "two queues and a target");
    let status = target.stage.host.query_srq(target.stage.now, &target.queues[0].0);
    let SrqKind::Xrc { cq, .. } = status.kind else { panic!("{status:?}") };
    assert_eq!(users(&mut target, Command::DestroyCq(cq)), 1);
    target.call(Command::DestroyQp(target.qp.index)).expect("the object exists");
    let queues = [0, 1].map(|i| target.queues[i].0.index);
    for index in queues {
        target.call(Command::DestroySrq(index)).expect("the object exists");
    }
    target.call(Command::DestroyCq(cq)).expect("no users left");
    target.call(Command::CloseXrcd(xrcd)).expect("nothing is in it");
    let foreign_cq = CqIndex(200);
    let pd = target.stage.host.pd();
    let init = SrqInit { kind: SrqKind::Xrc { xrcd, cq: foreign_cq }, limit: 0 };
    let ring = RecvRing::new(4, 1).expect("memory");
    let refused = target.call(MemoryCommand::CreateSrq { pd, init, ring }).err();
    assert_eq!(refused, Some(ControlError::NotFound(ObjectKind::CompletionQueue)));
}

#[test]
fn rc_qp_on_an_xrc_srq_is_refused() {
    let mut target = Target::new();
    let receives = ReceiveSource::Shared(target.queues[0].0.index);
    let (pd, cq) = (target.stage.host.pd(), target.stage.qp.cq_index);
    let sends = SendRing::new(4, 1, 0).expect("memory");
    let command =
        MemoryCommand::CreateQp { pd, send_cq: cq, recv_cq: cq, init: QpInit::default(), sends, receives };
    assert!(matches!(target.call(command), Err(ControlError::WrongKind(_))));
}

#[test]
fn reset_xrc_target_connects_again() {
    let mut target = Target::new();
    target.post(0, 10, 64);
    target.send(0, 0);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    target.stage.host.modify(target.stage.now, target.qp.index, &reset).expect("from every state");
    target.connect();
    target.post(0, 11, 64);
    assert_eq!(target.send(0, 0), [ack(0)]);
    assert_eq!(target.ids(0), [(10, WcStatus::Success), (11, WcStatus::Success)]);
}

/// Waiting would not help: a request that names a failed queue is refused, not answered by an RNR NAK.
#[test]
fn corrupted_srq_is_refused() {
    let mut target = Target::new();
    target.post(0, 1, 8);
    // The first word is the producer index, which now exceeds the ring's size.
    target.queues[0].0.ring.words()[0].store(1 << 20, std::sync::atomic::Ordering::Relaxed);
    let not_ready = (Opcode::XRC_ACKNOWLEDGE, 0, Some(Syndrome::RnrNak { timer: 12 }));
    assert_eq!(target.send(0, 0), [not_ready], "the corruption is found");
    assert_eq!(target.send(0, 0), [nak(0, NakCode::InvalidRequest)]);
    assert_eq!(target.state(), QpState::Err);
    assert_eq!((target.ids(0), target.ids(1)), (vec![], vec![]));
}
