//! Raw packet QPs and their flow steering.

use roxie::flow::{FlowField, FlowMatch, MAX_FLOWS, RX_HASH_KEY, RxHash, RxHashFields};
use roxie::limits::Limits;
use roxie::nic::{Answer as NicAnswer, Command, ControlError, NicConfig, ObjectKind};
use roxie::port::unclaimed::UnclaimedPort;
use roxie::shared::work_queue::Payload;
use roxie::verbs::{
    FlowId, FlowRule, LKey, QpAttr, QpCaps, QpInit, QpState, QpType, Rss, SendFlags, SendWr, Sge, WcOpcode,
    WcStatus, WrOpcode,
};
use roxie::wire::{Bth, Ext, Opcode};
use roxie_sim::{Host, HostQp, joined_ports};

use crate::transport::regions::{ON_DEMAND, Pages};
use crate::transport::{Setup, Stage};

/// An experimental EtherType (IEEE 802).
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Length in bytes of a frame without payload.
const SHORTEST: u32 = 14;
/// Offset of the receive buffers in the region.
const ROOM: u64 = 0x1000;

/// Attributes that move a raw packet QP to RTS.
pub(crate) fn attributes() -> [QpAttr; 3] {
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    [QpAttr { port: Some(1), ..to(QpState::Init) }, to(QpState::Rtr), to(QpState::Rts)]
}

fn stage() -> Stage {
    Stage::with(Setup { qp_type: QpType::RawPacket, ..Setup::default() })
}

pub(crate) fn another(stage: &mut Stage) -> HostQp {
    let init = QpInit { qp_type: QpType::RawPacket, caps: QpCaps::default(), sq_sig_all: true };
    let qp = stage.host.queue_pair().init(init).create();
    for attr in attributes() {
        stage.host.modify(stage.now, &qp, &attr).expect("a legal transition");
    }
    qp
}

/// A frame to the NIC's MAC address.
fn frame(ether_type: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ether_type, payload].concat()
}

/// A rule that matches an EtherType.
pub(crate) fn of_type(priority: u32, ether_type: [u8; 2]) -> FlowRule {
    FlowRule { priority, matching: FlowMatch::default().with(FlowField::EtherType, &ether_type) }
}

pub(crate) fn flow(stage: &mut Stage, qp: &HostQp, rule: FlowRule) -> Result<FlowId, ControlError> {
    match stage.host.call(stage.now, Command::CreateFlow(qp.handle.index, Box::new(rule)))? {
        NicAnswer::Flow(id) => Ok(id),
        other => panic!("a flow: {other:?}"),
    }
}

/// Steers an EtherType to the stage's QP and returns the flow.
fn steer(stage: &mut Stage, ether_type: [u8; 2]) -> FlowId {
    let command = Command::CreateFlow(stage.qp.handle.index, Box::new(of_type(0, ether_type)));
    match stage.host.call(stage.now, command) {
        Ok(NicAnswer::Flow(id)) => id,
        other => panic!("a flow: {other:?}"),
    }
}

/// Delivers a frame and asserts that the NIC sends nothing.
fn arrive(stage: &mut Stage, bytes: &[u8]) {
    let id = stage.peer.tx_alloc(bytes.len()).expect("room");
    stage.peer.tx_frame(&id).write(0, bytes);
    stage.peer.tx_commit(id);
    stage.peer.tx_flush(stage.now).expect("memory does not fail");
    assert_eq!(leaving(stage), [[0; 0]; 0]);
}

/// Runs four passes and returns the frames that the NIC sent.
fn leaving(stage: &mut Stage) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..4 {
        stage.host.worker.poll(stage.now);
        for i in 0..stage.peer.rx_burst(stage.now) {
            all.push(stage.peer.rx_frame(i).frame.to_vec());
        }
        stage.peer.rx_release();
    }
    all
}

/// Polls the completions of `qp`: `wr_id`, status, length in bytes.
fn received(stage: &Stage, qp: &HostQp) -> Vec<(u64, WcStatus, u32)> {
    std::iter::from_fn(|| stage.host.poll_cq(qp)).map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
}

fn post(stage: &Stage, wr_id: u64, length: u32) {
    let wr = SendWr { wr_id, ..SendWr::default() };
    let sges = [stage.memory.sge(0, 5), stage.memory.sge(5, length - 5)];
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
}

fn of_sends(stage: &Stage) -> Vec<(u64, WcStatus)> {
    stage.statuses()
}

//= test: IBTA 9.8.4: raw-frame-is-sent-as-it-is
#[test]
fn raw_frames_are_sent_unmodified() {
    let mut stage = stage();
    let first = frame(TYPE, b"anything at all, with no checksum behind it");
    stage.memory.memory.write(0, &first).expect("within the region");
    post(&stage, 1, first.len() as u32);
    let inline = frame([8, 6], b"inline");
    let wr = SendWr { wr_id: 2, flags: SendFlags::SIGNALED | SendFlags::INLINE, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Inline(&inline)).expect("room for a request");
    assert_eq!(leaving(&mut stage), [first, inline]);
    assert_eq!(of_sends(&stage), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

//= test: IBTA 9.8.4: raw-is-no-longer-than-the-link
//= test: IBTA 9.9.2.2: requester-error-stops-uc-and-ud
#[test]
fn invalid_frame_length_stops_the_send_queue() {
    // 1518: MTU 1500, Ethernet header and VLAN tag.
    for (length, fits) in [(SHORTEST, true), (SHORTEST - 1, false), (1518, true), (1519, false)] {
        let mut stage = stage();
        post(&stage, 1, length);
        let sent = leaving(&mut stage);
        if fits {
            assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [length as usize]);
            assert_eq!(of_sends(&stage), [(1, WcStatus::Success)]);
        } else {
            assert_eq!((sent.len(), stage.state()), (0, QpState::Sqe));
            assert_eq!(of_sends(&stage), [(1, WcStatus::LocLen)]);
        }
    }
}

//= test: IBTA 9.4: operation-is-of-the-service
#[test]
fn operations_other_than_send_fail() {
    for opcode in [WrOpcode::SendImm, WrOpcode::Write, WrOpcode::Read, WrOpcode::CompareSwap] {
        let mut stage = stage();
        let wr = SendWr { wr_id: 1, opcode, ..SendWr::default() };
        stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[stage.memory.sge(0, 64)])).expect("room");
        assert_eq!(leaving(&mut stage).len(), 0);
        assert_eq!(of_sends(&stage), [(1, WcStatus::LocQpOp)], "{opcode:?}");
    }
}

#[test]
fn flow_delivers_frames_until_destroyed() {
    let mut stage = stage();
    stage.receive(1, ROOM, 100);
    stage.receive(2, ROOM + 100, 100);
    let (ours, other) = (frame(TYPE, b"ours"), frame([0x88, 0xb6], b"another's"));
    arrive(&mut stage, &ours);
    assert_eq!((stage.completions().len(), stage.counter("rx_not_roce")), (0, 1), "no flow exists yet");
    let id = steer(&mut stage, TYPE);
    arrive(&mut stage, &ours);
    arrive(&mut stage, &other);
    let [wc] = stage.completions()[..] else { panic!("one frame") };
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len, wc.qpn),
        (1, WcOpcode::Recv, ours.len() as u32, stage.qp.handle.qpn)
    );
    assert_eq!(stage.memory.bytes(ROOM, ours.len()), ours);
    assert_eq!((stage.counter("rx_steered"), stage.counter("rx_not_roce")), (1, 2));
    assert!(matches!(stage.host.call_now(Command::DestroyFlow(id)), Ok(NicAnswer::Done)));
    arrive(&mut stage, &ours);
    assert_eq!(stage.completions().len(), 0);
    let removed = stage.host.call_now(Command::DestroyFlow(id));
    assert_eq!(removed.map(drop), Err(ControlError::NotFound(ObjectKind::Flow)));
}

#[test]
fn flow_priority_decides_the_receiver() {
    let mut stage = stage();
    let (second, third) = (another(&mut stage), another(&mut stage));
    for (n, qp) in [&second, &third].into_iter().enumerate() {
        let at = ROOM + 0x1000 * (n as u64 + 1);
        for id in 0..4 {
            stage.host.post_recv(qp, id, &[stage.memory.sge(at + id * 64, 64)]).expect("room");
        }
    }
    (0..4).for_each(|id| stage.receive(id, ROOM + id * 64, 64));
    let everything = |priority| FlowRule { priority, matching: FlowMatch::default() };
    let ours = frame(TYPE, b"x");
    let takers = |stage: &mut Stage| {
        arrive(stage, &ours);
        let first = received(stage, &stage.qp).len();
        [first, received(stage, &second).len(), received(stage, &third).len()]
    };
    flow(&mut stage, &third, everything(7)).unwrap();
    assert_eq!(takers(&mut stage), [0, 0, 1]);
    let narrow = flow(&mut stage, &second, of_type(7, TYPE)).unwrap();
    assert_eq!(takers(&mut stage), [0, 0, 1], "the older of the same priority");
    steer(&mut stage, TYPE);
    assert_eq!(takers(&mut stage), [1, 0, 0], "priority 0");
    flow(&mut stage, &second, of_type(0, TYPE)).unwrap();
    assert_eq!(takers(&mut stage), [1, 1, 0], "a copy each");
    stage.host.call_now(Command::DestroyFlow(narrow)).unwrap();
    assert_eq!(takers(&mut stage), [1, 1, 0]);
}

//= test: IBTA 9.8.4: raw-without-a-receive-is-lost
#[test]
fn frame_without_fitting_receive_is_dropped() {
    let mut stage = stage();
    steer(&mut stage, TYPE);
    let bytes = frame(TYPE, &[7; 50]);
    arrive(&mut stage, &bytes);
    assert_eq!((stage.counter("out_of_buffer"), stage.state()), (1, QpState::Rts));
    stage.receive(5, ROOM, 63);
    arrive(&mut stage, &bytes);
    assert_eq!(stage.statuses(), []);
    assert_eq!((stage.state(), stage.events()), (QpState::Rts, vec![]));
    assert_eq!(stage.counter("resp_local_length_error"), 1);
    arrive(&mut stage, &bytes[..63]);
    assert_eq!(stage.statuses(), [(5, WcStatus::Success)], "the receive was kept");
}

#[test]
fn missing_page_fails_receive_and_drops_frame() {
    let mut stage = stage();
    let pages = Pages::new(1);
    let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
    pages.take_away(0);
    let sge = Sge { addr: pages.address(), length: 100, lkey: LKey(region.key) };
    let wr = SendWr { wr_id: 8, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[sge])).expect("room");
    assert_eq!((leaving(&mut stage).len(), stage.counter("memory_faults")), (0, 1));
    // As with datagrams, a send completes when its frame has a slot.
    assert_eq!(stage.statuses(), [(8, WcStatus::Success)]);
    steer(&mut stage, TYPE);
    stage.host.post_recv(&stage.qp, 9, &[sge]).expect("room");
    arrive(&mut stage, &frame(TYPE, b"nowhere to go"));
    assert_eq!(stage.statuses(), [(9, WcStatus::LocProt)]);
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 9.8.4: raw-is-never-roce
#[test]
fn raw_qp_never_receives_roce_packets() {
    let mut stage = stage();
    let own = stage.qp.handle.qpn;
    let everything = FlowRule { priority: 0, matching: FlowMatch::default() };
    stage.host.call_now(Command::CreateFlow(stage.qp.handle.index, Box::new(everything))).unwrap();
    stage.receive(1, ROOM, 200);
    let bth = Bth { opcode: Opcode::UC_SEND_ONLY, dest_qp: own, ..Bth::default() };
    stage.send(&bth, &Ext::None, b"to its number");
    assert_eq!(leaving(&mut stage).len(), 0);
    assert_eq!((stage.completions().len(), stage.counter("rx_wrong_service")), (0, 1));
    arrive(&mut stage, &frame([8, 6], b"an ARP packet"));
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

//= test: IBTA 10.3.1.2: init-takes-receives-and-no-packets
#[test]
fn frames_before_rtr_are_dropped() {
    let mut stage = stage();
    steer(&mut stage, TYPE);
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &to(QpState::Reset)).unwrap();
    arrive(&mut stage, &frame(TYPE, b"too early"));
    assert_eq!(stage.counter("rx_wrong_state"), 1);
    let [init, rtr, _] = attributes();
    stage.host.modify(stage.now, &stage.qp, &init).unwrap();
    stage.receive(1, ROOM, 64);
    arrive(&mut stage, &frame(TYPE, b"still too early"));
    stage.host.modify(stage.now, &stage.qp, &rtr).unwrap();
    arrive(&mut stage, &frame(TYPE, b"now"));
    assert_eq!((stage.counter("rx_wrong_state"), stage.statuses()), (2, vec![(1, WcStatus::Success)]));
}

#[test]
fn flows_are_limited_and_destroyed_with_their_qp() {
    let mut stage = stage();
    let second = another(&mut stage);
    for n in 0..MAX_FLOWS as u32 {
        flow(&mut stage, &second, of_type(n, TYPE)).unwrap();
    }
    let more = flow(&mut stage, &second, of_type(0, TYPE));
    assert_eq!(more, Err(ControlError::Full { object: ObjectKind::Flow, limit: MAX_FLOWS as u32 }));
    assert_eq!(stage.host.worker.nic().objects().flows, MAX_FLOWS);
    stage.host.call_now(Command::DestroyQp(second.handle.index)).unwrap();
    assert_eq!(stage.host.worker.nic().objects().flows, 0);
    arrive(&mut stage, &frame(TYPE, b"no owner"));
    assert_eq!(stage.counter("rx_not_roce"), 1);
}

#[test]
fn flow_on_an_rc_qp_is_refused() {
    let mut stage = Stage::new();
    let command = Command::CreateFlow(stage.qp.handle.index, Box::new(of_type(0, TYPE)));
    assert_eq!(stage.host.call_now(command).map(drop), Err(ControlError::NotRawPacket(QpType::Rc)));
}

/// IPv4 without a transport, from 10.0.0.`host`.
fn from_host(host: u8) -> Vec<u8> {
    frame([8, 0], &[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, host, 192, 0, 2, 1])
}

#[test]
fn rss_spreads_frames_by_source_address() {
    let mut stage = stage();
    let queues = [another(&mut stage), another(&mut stage)];
    for queue in &queues {
        for id in 0..64 {
            stage.host.post_recv(queue, id, &[stage.memory.sge(ROOM + id * 64, 64)]).expect("room");
        }
    }
    let hash =
        RxHash { key: std::array::from_fn(|i| (37 * i + 11) as u8), fields: RxHashFields::SOURCE_IPV4 };
    let [a, b] = queues.each_ref().map(|queue| queue.handle.index);
    let rss = Rss { hash, table: vec![a, b, b, a] };
    let pd = stage.host.pd();
    let Ok(NicAnswer::Qp(spreading)) = stage.host.call_now(Command::CreateRssQp(pd, Box::new(rss))) else {
        panic!("a QP")
    };
    let everything = FlowRule { priority: 0, matching: FlowMatch::default() };
    stage.host.call_now(Command::CreateFlow(spreading.index, Box::new(everything))).unwrap();
    let mut counts = [0, 0];
    for host in 0..64 {
        for _ in 0..2 {
            arrive(&mut stage, &from_host(host));
        }
        let now = queues.each_ref().map(|queue| received(&stage, queue).len());
        assert!(now == [2, 0] || now == [0, 2], "frames of a flow stay together: {now:?}");
        (0..2).for_each(|i| counts[i] += now[i]);
        for queue in &queues {
            stage.host.post_recv(queue, 0, &[stage.memory.sge(ROOM, 64)]).ok();
            stage.host.post_recv(queue, 0, &[stage.memory.sge(ROOM, 64)]).ok();
        }
    }
    assert!(counts[0] > 30 && counts[1] > 30, "both get their share: {counts:?}");
    // A frame without the hashed fields goes to the first QP of the table.
    arrive(&mut stage, &frame(TYPE, b"no address"));
    assert_eq!(received(&stage, &queues[0]).len(), 1);

    let busy = stage.host.call_now(Command::DestroyQp(a)).map(drop);
    assert_eq!(busy, Err(ControlError::Busy { object: ObjectKind::QueuePair, users: 2 }));
    stage.host.call_now(Command::DestroyQp(spreading.index)).unwrap();
    stage.host.call_now(Command::DestroyQp(a)).unwrap();
}

#[test]
fn invalid_rss_table_is_refused() {
    let mut stage = stage();
    let hash = RxHash { key: [1; RX_HASH_KEY], fields: RxHashFields::SOURCE_IPV4 };
    let (pd, own) = (stage.host.pd(), stage.qp.handle.index);
    let rc = stage.host.queue_pair().signal_all().cq_entries(4).create().handle.index;
    let mut make = |table: Vec<_>| {
        let made = stage.host.call_now(Command::CreateRssQp(pd, Box::new(Rss { hash, table })))?;
        if let NicAnswer::Qp(handle) = made { Ok(handle.index) } else { panic!("a QP: {made:?}") }
    };
    assert!(matches!(make(vec![]), Err(ControlError::WrongKind(_))));
    assert!(matches!(make(vec![own; 3]), Err(ControlError::WrongKind(_))));
    assert!(matches!(make(vec![own, rc]), Err(ControlError::WrongKind(_))));
    assert!(matches!(make(vec![own; 256]), Err(ControlError::TooLarge { .. })));
    let spreading = make(vec![own]).unwrap();
    assert!(matches!(make(vec![spreading]), Err(ControlError::WrongKind(_))));
    let to_init = Command::ModifyQp(spreading, Box::new(attributes()[0]));
    assert!(matches!(stage.host.call_now(to_init), Err(ControlError::WrongKind(_))));
}

#[test]
fn flow_is_refused_if_the_port_cannot_steer() {
    // The port claims to carry any frame, but is not open yet.
    let (local, _) = joined_ports(1500, None);
    let closed = UnclaimedPort::new(local.info().clone());
    let config = NicConfig { limits: Limits::small(), ..NicConfig::default() };
    let mut host = Host::new(1, config, Box::new(closed));
    let init = QpInit { qp_type: QpType::RawPacket, caps: QpCaps::default(), sq_sig_all: true };
    let qp = host.queue_pair().init(init).create().handle.index;
    let refused = host.call_now(Command::CreateFlow(qp, Box::new(of_type(0, TYPE))));
    assert!(matches!(&refused, Err(ControlError::Steer(why)) if why.contains("not open yet")), "{refused:?}");
    assert_eq!(host.worker.nic().objects().flows, 0);
}

#[test]
fn log_lists_dropped_frames_and_refused_transitions() {
    let mut stage = stage();
    steer(&mut stage, TYPE);
    arrive(&mut stage, &frame(TYPE, b"no receive"));
    let backwards = QpAttr { state: Some(QpState::Init), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &backwards).unwrap_err();
    let Ok(NicAnswer::QpLog(log)) = stage.host.call_now(Command::QueryLog(stage.qp.handle.index)) else {
        panic!("a log")
    };
    let text: Vec<_> = log.iter().map(ToString::to_string).collect();
    assert!(text.iter().any(|line| line.contains("a frame of 24 bytes: ")), "{text:?}");
    assert!(text.last().is_some_and(|line| line.ends_with("modify_qp Rts -> Init refused")), "{text:?}");
}
