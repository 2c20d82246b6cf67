//! Datagrams, QP1 and multicast (IBTA 9.8.3, 10.5, 13.5).

use std::net::Ipv4Addr;

use roxie::nic::{Answer as NicAnswer, Command, ControlError, ObjectKind};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    AddressVector, AhId, Gid, LKey, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, SendFlags,
    SendWr, Sge, UdAddress, WcFlags, WcStatus, WrOpcode,
};
use roxie::wire::net::multicast_mac;
use roxie::wire::{Bth, Deth, Ext, FlowSpec, Opcode, RoceVersion, Template};
use roxie_sim::{Host, HostQp};

use crate::transport::{FIRST, PEER_QPN, Setup, Stage};

const SOON: Nanos = Nanos(1000);
const QKEY: u32 = 0x1111_2222;
const GSI_QKEY: u32 = 0x8001_0000;
/// Length in bytes of the network header before the payload in each receive.
const HEADER: usize = 40;

/// Attributes that move a datagram QP to RTS.
pub(crate) fn attributes(qp_type: QpType) -> [QpAttr; 3] {
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    let port = (qp_type == QpType::Ud).then_some(1);
    [
        QpAttr { pkey_index: Some(0), port, qkey: Some(QKEY), ..to(QpState::Init) },
        to(QpState::Rtr),
        QpAttr { sq_psn: Some(FIRST), ..to(QpState::Rts) },
    ]
}

fn stage() -> Stage {
    Stage::with(Setup { qp_type: QpType::Ud, ..Setup::default() })
}

fn way(stage: &mut Stage) -> AhId {
    let path = stage.host.path(2, false);
    stage.host.create_ah(&path)
}

fn datagram(wr_id: u64, ah: AhId, qkey: u32) -> SendWr {
    SendWr { wr_id, ud: UdAddress { ah, remote_qpn: PEER_QPN, remote_qkey: qkey }, ..SendWr::default() }
}

fn post(stage: &Stage, wr: &SendWr, length: u32) {
    let sges = [stage.memory.sge(0, length)];
    stage.host.post_send(&stage.qp, wr, Payload::Sges(&sges)).expect("room for a request");
}

/// Sends a datagram from the peer and asserts that the NIC sends nothing.
fn arrive(stage: &mut Stage, to: Qpn, qkey: u32, payload: &[u8]) {
    let deth = Deth { qkey, src_qp: PEER_QPN };
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: to, ..Bth::default() };
    stage.send(&bth, &Ext::Deth(deth), payload);
    assert_eq!(stage.answers(), []);
}

fn another_qp(stage: &mut Stage, qp_type: QpType) -> HostQp {
    let qp =
        stage.host.queue_pair().init(QpInit { qp_type, caps: QpCaps::default(), sq_sig_all: true }).create();
    for attr in attributes(qp_type) {
        stage.host.modify(stage.now, &qp, &attr).expect("a legal transition");
    }
    qp
}

//= test: IBTA 9.8.3: ud-is-one-packet, ud-names-sender-and-key
#[test]
fn datagram_carries_deth_and_completes_when_sent() {
    let mut stage = stage();
    let ah = way(&mut stage);
    stage.memory.memory.write(0, &[1, 2, 3, 4, 5]).expect("within the region");
    post(&stage, &datagram(1, ah, 0x7654_3210), 5);
    let with_imm = SendWr { opcode: WrOpcode::SendImm, imm: 99, ..datagram(2, ah, 5) };
    post(&stage, &with_imm, 0);
    let packets = stage.packets();
    let own = stage.qp.handle.qpn;
    let (first, payload) = &packets[0];
    assert_eq!((first.bth.opcode, first.bth.dest_qp, first.bth.psn), (Opcode::UD_SEND_ONLY, PEER_QPN, FIRST));
    assert_eq!(first.deth(), Some(Deth { qkey: 0x7654_3210, src_qp: own }));
    assert_eq!(payload, &[1, 2, 3, 4, 5]);
    let (second, _) = &packets[1];
    assert_eq!((second.bth.opcode, second.bth.psn), (Opcode::UD_SEND_ONLY_IMM, FIRST + 1));
    assert_eq!((second.deth(), second.imm()), (Some(Deth { qkey: 5, src_qp: own }), Some(99)));
    assert_eq!(packets.len(), 2);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(stage.wait(Nanos::from_millis(1000)), []);
}

/// The kernel's `hash_32`: the highest 14 bits of QPN * 0x61c88647.
//= test: IBTA A17.4.3: roce-v2-source-port-tells-flows-apart
#[test]
fn source_port_matches_the_kernels_hash() {
    let mut stage = stage();
    let ah = way(&mut stage);
    post(&stage, &datagram(1, ah, 5), 5);
    let own = u64::from(stage.qp.handle.qpn.value());
    let hashed = (own * 0x61c8_8647 % (1 << 32)) >> 18;
    let port = stage.packets()[0].0.udp.expect("RoCE v2").source_port;
    assert_eq!(u64::from(port), 0xc000 + hashed);
    assert_eq!(roxie::wire::datagram_port(Qpn::new(0x12)), 63_494);
}

/// The kernel's `rdma_flow_label_to_udp_sport`: the upper 6 bits of the label XOR its lower 14.
#[test]
fn flow_label_selects_the_source_port() {
    let mut stage = stage();
    let labelled = AddressVector { flow_label: 0x12345, ..stage.host.path(2, false) };
    let ah = stage.host.create_ah(&labelled);
    post(&stage, &datagram(1, ah, 5), 5);
    let port = stage.packets()[0].0.udp.expect("RoCE v2").source_port;
    assert_eq!(port, 0xc000 | (0x2345 ^ 4));
}

//= test: IBTA 10.2.5: ud-high-qkey-is-the-qps-own
#[test]
fn high_qkey_selects_the_qps_own_qkey() {
    let mut stage = stage();
    let ah = way(&mut stage);
    post(&stage, &datagram(1, ah, 0x8000_0000), 5);
    assert_eq!(stage.packets()[0].0.deth().map(|deth| deth.qkey), Some(QKEY));
}

//= test: IBTA 9.8.3: ud-is-no-longer-than-the-mtu
//= test: IBTA 9.9.2.2: requester-error-stops-uc-and-ud
//= test: IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
#[test]
fn datagram_over_the_mtu_stops_the_send_queue() {
    let mut stage = stage();
    let ah = way(&mut stage);
    let limit = stage.host.worker.nic().largest_mtu().bytes() as u32;
    post(&stage, &datagram(1, ah, QKEY), limit);
    post(&stage, &datagram(2, ah, QKEY), limit + 1);
    post(&stage, &datagram(3, ah, QKEY), 1);
    stage.receive(100, 0, 64);
    assert_eq!(stage.packets().len(), 1);
    let own = stage.qp.handle.qpn;
    arrive(&mut stage, own, QKEY, &[1]);
    let expected =
        [(1, WcStatus::Success), (2, WcStatus::LocLen), (3, WcStatus::WrFlush), (100, WcStatus::Success)];
    assert_eq!(stage.statuses(), expected);
    assert_eq!(stage.state(), QpState::Sqe);
    let attr = QpAttr { state: Some(QpState::Rts), qkey: Some(7), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("SQE leads to RTS");
    post(&stage, &datagram(4, ah, 0x8000_0000), 1);
    assert_eq!(stage.packets()[0].0.deth().map(|deth| deth.qkey), Some(7));
}

//= test: IBTA 11.2.2.1: ud-handle-is-of-the-domain
#[test]
fn invalid_address_handle_fails_the_work_request() {
    type MakesWay = fn(&mut Stage) -> AhId;
    let destroyed: MakesWay = |stage| {
        let ah = way(stage);
        stage.host.call(stage.now, Command::DestroyAh(ah)).expect("the handle exists");
        // The table entry is used again. The old handle has another generation.
        way(stage);
        ah
    };
    let of_another_domain: MakesWay = |stage| {
        let Ok(NicAnswer::Pd(pd)) = stage.host.call(stage.now, Command::AllocPd) else { panic!("no domain") };
        // The highest service level.
        let path = AddressVector { sl: 7, ..stage.host.path(2, false) };
        match stage.host.call(stage.now, Command::CreateAh(pd, Box::new(path))) {
            Ok(NicAnswer::Ah(ah)) => ah,
            other => panic!("{other:?}"),
        }
    };
    let cases: [(&str, MakesWay); 4] = [
        ("none", |_| AhId::default()),
        ("wild", |_| AhId(u32::MAX)),
        ("destroyed", destroyed),
        ("another domain's", of_another_domain),
    ];
    for (what, ah) in cases {
        let mut stage = stage();
        let ah = ah(&mut stage);
        post(&stage, &datagram(1, ah, QKEY), 1);
        assert_eq!(stage.packets(), [], "{what}");
        assert_eq!(stage.statuses(), [(1, WcStatus::LocQpOp)], "{what}");
    }
}

#[test]
fn destroyed_address_handle_fails_its_pending_request() {
    let mut stage = stage();
    let ah = way(&mut stage);
    let attr = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("RTS leads to SQD");
    post(&stage, &datagram(1, ah, QKEY), 1);
    assert_eq!(stage.wait(SOON), []);
    stage.host.call(stage.now, Command::DestroyAh(ah)).expect("the object exists");
    let destroyed = stage.host.call(stage.now, Command::DestroyAh(ah));
    assert_eq!(destroyed.err(), Some(ControlError::NotFound(ObjectKind::AddressHandle)));
    let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("SQD leads to RTS");
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocQpOp)]);
}

//= test: IBTA 9.4: operation-is-of-the-service
#[test]
fn write_on_a_datagram_qp_fails() {
    let mut stage = stage();
    let ah = way(&mut stage);
    post(&stage, &SendWr { opcode: WrOpcode::Write, ..datagram(1, ah, QKEY) }, 1);
    assert_eq!(stage.packets(), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocQpOp)]);
}

//= test: IBTA A17.9.1: ud-receive-begins-with-40-bytes
//= test: IBTA 11.4.2.1: ud-completion-tells-the-sender
//= test: IBTA 9.4.1: immediate-is-delivered
#[test]
fn receive_starts_with_the_network_header() {
    let mut stage = stage();
    stage.receive(1, 0, 100);
    stage.memory.memory.write(0, &[0xee; 100]).expect("within the region");
    let deth = Deth { qkey: QKEY, src_qp: PEER_QPN };
    let own = stage.qp.handle.qpn;
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY_IMM, dest_qp: own, solicited: true, ..Bth::default() };
    stage.send(&bth, &Ext::DethImm(deth, 77), &[1, 2, 3]);
    assert_eq!(stage.answers(), []);
    let done = stage.completions();
    let wc = done.first().expect("a completion");
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.imm), (1, WcStatus::Success, 43, 77));
    assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!((wc.src_qp, wc.vlan, wc.pkey_index), (PEER_QPN, 0, 0));
    assert_eq!(wc.sl, 2, "IPv4, as ConnectX says it");
    let bytes = stage.memory.bytes(0, 44);
    assert_eq!(bytes[..20], [0; 20], "20 zeros");
    assert_eq!(bytes[20], 0x45, "then the IPv4 header");
    assert_eq!(bytes[32..36], [192, 0, 2, 2], "with its source");
    assert_eq!(bytes[36..40], [192, 0, 2, 1], "and its destination");
    assert_eq!(bytes[40..44], [1, 2, 3, 0xee]);
}

//= test: IBTA A17.9.1: ud-receive-begins-with-40-bytes
#[test]
fn ipv6_header_fills_the_grh_area() {
    let mut stage = stage();
    let address = |n| Gid::from(Host::address(n, true));
    stage.template = Template::new(&FlowSpec {
        src_mac: Host::mac(2),
        dst_mac: Host::mac(1),
        vlan: None,
        src: address(2),
        dst: address(1),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    });
    // Three SGEs that split the header and the payload.
    let sges = [stage.memory.sge(0, 3), stage.memory.sge(3, 30), stage.memory.sge(33, 67)];
    stage.host.post_recv(&stage.qp, 1, &sges).expect("room for a receive");
    let own = stage.qp.handle.qpn;
    arrive(&mut stage, own, QKEY, &[1, 2, 3]);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.status, wc.sl)).collect();
    assert_eq!(done, [(1, WcStatus::Success, 1)], "1: IPv6");
    let bytes = stage.memory.bytes(0, 44);
    assert_eq!(bytes[0] >> 4, 6);
    assert_eq!(bytes[8..24], address(2).0);
    assert_eq!(bytes[24..40], address(1).0);
    assert_eq!(bytes[40..44], [1, 2, 3, 0]);
}

//= test: IBTA 9.6.1: pkey-matches, ud-qkey-matches
#[test]
fn wrong_qkey_or_pkey_is_dropped_and_counted() {
    let mut stage = stage();
    stage.receive(1, 0, 100);
    let own = stage.qp.handle.qpn;
    arrive(&mut stage, own, QKEY ^ 1, &[1]);
    assert_eq!(stage.counter("qkey_viol_cntr"), 1);
    let deth = Deth { qkey: QKEY, src_qp: PEER_QPN };
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: own, pkey: 0x8001, ..Bth::default() };
    stage.send(&bth, &Ext::Deth(deth), &[1]);
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.counter("rx_bad_pkey"), 1);
    assert_eq!(stage.statuses(), [], "the receive is still there");
    arrive(&mut stage, own, QKEY, &[1]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

//= test: IBTA 9.8.3: ud-without-a-receive-is-lost
#[test]
fn datagram_without_a_receive_is_dropped() {
    let mut stage = stage();
    let own = stage.qp.handle.qpn;
    arrive(&mut stage, own, QKEY, &[1]);
    assert_eq!(stage.counter("out_of_buffer"), 1);
    stage.receive(1, 0, 41);
    arrive(&mut stage, own, QKEY, &[1]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(stage.state(), QpState::Rts);
}

//= test: IBTA 9.8.3: ud-psn-is-not-checked
//= test: IBTA 9.9.3: ud-receive-holds-the-datagram, datagram-of-a-stranger-ends-nothing
#[test]
fn too_long_datagram_leaves_its_receive_posted() {
    for length in [42, 20, 0] {
        let mut stage = stage();
        stage.receive(1, 0, length);
        stage.receive(2, 100, 100);
        let own = stage.qp.handle.qpn;
        arrive(&mut stage, own, QKEY, &[1, 2, 3]);
        assert_eq!(stage.statuses(), [], "{length} bytes");
        assert_eq!(stage.memory.bytes(0, 64), [0; 64], "{length} bytes: nothing was written");
        assert_eq!((stage.state(), stage.events()), (QpState::Rts, vec![]), "{length} bytes");
        let counted =
            ["resp_local_length_error", "rx_dropped_unacknowledged"].map(|name| stage.counter(name));
        assert_eq!(counted, [1, 1], "{length} bytes");
    }
    // The first receive is still posted. A datagram that fits takes it.
    let mut stage = stage();
    stage.receive(1, 0, 42);
    stage.receive(2, 100, 100);
    let own = stage.qp.handle.qpn;
    for payload in [&[1, 2, 3][..], &[4, 5], &[6, 7, 8]] {
        arrive(&mut stage, own, QKEY, payload);
    }
    assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((stage.memory.bytes(40, 2), stage.memory.bytes(140, 3)), (vec![4, 5], vec![6, 7, 8]));
    // The kept receive is flushed with the others.
    stage.receive(3, 0, 42);
    stage.receive(4, 0, 100);
    arrive(&mut stage, own, QKEY, &[1, 2, 3]);
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &error).expect("any state leads to ERR");
    assert_eq!(stage.statuses(), [(3, WcStatus::WrFlush), (4, WcStatus::WrFlush)]);
}

//= test: IBTA 9.9.3: receive-memory-is-writable
#[test]
fn receive_with_bad_lkey_fails() {
    let mut stage = stage();
    let own = stage.qp.handle.qpn;
    let sge = Sge { lkey: LKey(1), ..stage.memory.sge(0, 100) };
    stage.host.post_recv(&stage.qp, 1, &[sge]).expect("room for a receive");
    arrive(&mut stage, own, QKEY, &[1]);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocProt)]);
}

/// The link carries more than the port's MTU, 1024 bytes here.
//= test: IBTA 9.9.3: datagram-of-a-stranger-ends-nothing
#[test]
fn oversized_datagram_fails_no_qp() {
    let mut stage = stage();
    let limit = stage.host.worker.nic().largest_mtu().bytes();
    let gsi = another_qp(&mut stage, QpType::Gsi);
    let member = another_qp(&mut stage, QpType::Ud);
    attach(&mut stage, member.handle.index);
    let own = stage.qp.handle.qpn;
    for (room, length) in [(HEADER + limit, limit + 4), (HEADER + limit + 100, limit + 4)] {
        let sges = [stage.memory.sge(0, room as u32)];
        for qp in [&stage.qp, &gsi, &member] {
            stage.host.post_recv(qp, 1, &sges).expect("room for a receive");
        }
        let long = vec![9; length];
        arrive(&mut stage, own, QKEY, &long);
        arrive(&mut stage, Qpn::GSI, GSI_QKEY, &long);
        to_group(&mut stage, 2, PEER_QPN, &long);
        stage.template = crate::transport::template(2);
        for (name, qp) in [("a QP", &stage.qp), ("QP1", &gsi), ("a member", &member)] {
            assert_eq!(qp.cq.poll(), None, "{name}, a receive of {room}");
        }
        assert_eq!(stage.memory.bytes(0, 64), [0; 64], "a receive of {room}: nothing was written");
    }
    assert_eq!(stage.events(), []);
    assert_eq!(stage.counter("resp_invalid_requests"), 6);
    assert_eq!(stage.counter("rx_dropped_unacknowledged"), 6);
    // Every QP still works, with the same receive.
    let full = vec![7; limit];
    arrive(&mut stage, own, QKEY, &full);
    arrive(&mut stage, Qpn::GSI, GSI_QKEY, &full);
    to_group(&mut stage, 2, PEER_QPN, &full);
    for (name, qp) in [("a QP", &stage.qp), ("QP1", &gsi), ("a member", &member)] {
        assert_eq!(qp.cq.poll().map(|wc| (wc.wr_id, wc.status)), Some((1, WcStatus::Success)), "{name}");
    }
}

//= test: IBTA 9.6.1: opcode-is-of-the-qps-service
#[test]
fn packets_of_connected_services_are_dropped() {
    let mut stage = stage();
    stage.receive(1, 0, 100);
    for opcode in [Opcode::RC_SEND_ONLY, Opcode::UC_SEND_ONLY] {
        assert_eq!(stage.request(opcode, 0, Ext::None, &[1]), []);
    }
    assert_eq!(stage.counter("rx_wrong_service"), 2);
    assert_eq!(stage.statuses(), []);
}

//= test: IBTA 10.2.4: gsi-has-its-number-and-key
#[test]
fn qp1_is_unique_and_has_the_gsi_qkey() {
    let mut stage = stage();
    let gsi = another_qp(&mut stage, QpType::Gsi);
    assert_eq!(gsi.handle.qpn, Qpn::GSI);
    let sges = [stage.memory.sge(0, 300)];
    stage.host.post_recv(&gsi, 1, &sges).expect("room for a receive");
    arrive(&mut stage, Qpn::GSI, QKEY, &[1; 256]);
    assert_eq!(gsi.cq.poll(), None, "QP1 uses the GSI Q_Key, not the attribute");
    arrive(&mut stage, Qpn::GSI, GSI_QKEY, &[1; 256]);
    let wc = gsi.cq.poll().expect("a completion");
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, 296));
    let ah = way(&mut stage);
    let to = UdAddress { ah, remote_qpn: Qpn::GSI, remote_qkey: GSI_QKEY };
    let wr = SendWr { ud: to, flags: SendFlags::SIGNALED, ..SendWr::default() };
    stage.host.post_send(&gsi, &wr, Payload::Sges(&sges)).expect("room for a request");
    let packet = &stage.packets()[0].0;
    assert_eq!(packet.deth(), Some(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI }));
    // A second QP1 is refused until the first is destroyed.
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| another_qp(&mut stage, QpType::Gsi)));
    let panic = refused.err().and_then(|why| why.downcast_ref::<String>().cloned()).expect("a refusal");
    assert!(panic.contains(&format!("{:?}", ControlError::Taken("QP1"))), "{panic}");
    stage.host.call(stage.now, Command::DestroyQp(gsi.handle.index)).expect("the object exists");
    arrive(&mut stage, Qpn::GSI, GSI_QKEY, &[1; 256]);
    assert_eq!(stage.counter("rx_unknown_qp"), 1);
    assert_eq!(another_qp(&mut stage, QpType::Gsi).handle.qpn, Qpn::GSI);
}

// Multicast.

fn group() -> Gid {
    Gid::from(Ipv4Addr::new(239, 1, 2, 3))
}

fn to_group(stage: &mut Stage, from: u8, src_qp: Qpn, payload: &[u8]) {
    let ip = group().to_ip();
    stage.template = Template::new(&FlowSpec {
        src_mac: Host::mac(from.into()),
        dst_mac: multicast_mac(ip).expect("a group"),
        vlan: None,
        src: Gid::from(Host::address(from.into(), false)),
        dst: group(),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        source_port: 0xc000,
        version: RoceVersion::V2,
    });
    let bth =
        Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: Qpn::MULTICAST, psn: Psn::new(3), ..Bth::default() };
    stage.send(&bth, &Ext::Deth(Deth { qkey: QKEY, src_qp }), payload);
    assert_eq!(stage.answers(), []);
}

fn attach(stage: &mut Stage, qp: QpIndex) {
    stage.host.call(stage.now, Command::AttachMulticast(qp, group())).expect("a datagram QP and a group");
}

/// Destroying one member leaves the others attached.
#[test]
fn group_survives_a_destroyed_member() {
    let mut stage = stage();
    let destroyed = another_qp(&mut stage, QpType::Ud);
    let stays = stage.qp.handle.index;
    attach(&mut stage, destroyed.handle.index);
    attach(&mut stage, stays);
    stage.host.call(stage.now, Command::DestroyQp(destroyed.handle.index)).expect("the object exists");
    stage.receive(9, 1000, 100);
    to_group(&mut stage, 2, PEER_QPN, &[5, 6]);
    assert_eq!(stage.statuses(), [(9, WcStatus::Success)]);
}

//= test: IBTA 10.5: multicast-goes-to-all-members
#[test]
fn each_group_member_gets_its_own_copy() {
    let mut stage = stage();
    let members: Vec<_> = (0..3).map(|_| another_qp(&mut stage, QpType::Ud)).collect();
    let other_key = QpAttr { qkey: Some(1), ..QpAttr::default() };
    stage.host.modify(stage.now, &members[1], &other_key).expect("RTS allows it");
    for (i, qp) in members.iter().enumerate() {
        attach(&mut stage, qp.handle.index);
        let sges = [stage.memory.sge(i as u64 * 100, 100)];
        stage.host.post_recv(qp, i as u64, &sges).expect("room for a receive");
    }
    attach(&mut stage, members[0].handle.index);
    stage.receive(9, 1000, 100);
    to_group(&mut stage, 2, PEER_QPN, &[5, 6]);
    let received: Vec<_> = members.iter().map(|qp| qp.cq.poll().map(|wc| (wc.wr_id, wc.byte_len))).collect();
    assert_eq!(received, [Some((0, 42)), None, Some((2, 42))], "the second has another key");
    assert_eq!(members[0].cq.poll(), None, "attached twice is attached once");
    assert_eq!(stage.statuses(), [], "the stage's own QP is not in the group");
    for (i, bytes) in [(0, [5, 6]), (1, [0, 0]), (2, [5, 6])] {
        assert_eq!(stage.memory.bytes(i * 100 + HEADER as u64, 2), bytes, "member {i}");
    }
    assert_eq!((stage.counter("rx_multicast"), stage.counter("qkey_viol_cntr")), (1, 1));
}

#[test]
fn detached_or_destroyed_member_receives_nothing() {
    let mut stage = stage();
    let (a, b) = (another_qp(&mut stage, QpType::Ud), another_qp(&mut stage, QpType::Ud));
    let sges = [stage.memory.sge(0, 100)];
    for qp in [&a, &b] {
        attach(&mut stage, qp.handle.index);
        stage.host.post_recv(qp, 1, &sges).expect("room for a receive");
    }
    let detach = Command::DetachMulticast(a.handle.index, group());
    stage.host.call(stage.now, detach).expect("it is in the group");
    let again = stage.host.call(stage.now, Command::DetachMulticast(a.handle.index, group()));
    assert_eq!(again.err(), Some(ControlError::NotFound(ObjectKind::GroupMember)));
    to_group(&mut stage, 2, PEER_QPN, &[1]);
    assert_eq!(a.cq.poll(), None);
    assert!(b.cq.poll().is_some());
    stage.host.call(stage.now, Command::DestroyQp(b.handle.index)).expect("the object exists");
    to_group(&mut stage, 2, PEER_QPN, &[1]);
    assert_eq!(stage.counter("rx_unknown_qp"), 1, "the group is empty");
}

//= test: IBTA 10.5: multicast-does-not-come-back
#[test]
fn sender_does_not_receive_its_own_multicast() {
    let mut stage = stage();
    let (a, b) = (another_qp(&mut stage, QpType::Ud), another_qp(&mut stage, QpType::Ud));
    let sges = [stage.memory.sge(0, 100)];
    for qp in [&a, &b] {
        attach(&mut stage, qp.handle.index);
        stage.host.post_recv(qp, 1, &sges).expect("room for a receive");
    }
    let mut path = stage.host.path(2, false);
    path.dgid = group();
    let ah = stage.host.create_ah(&path);
    let to = UdAddress { ah, remote_qpn: Qpn::MULTICAST, remote_qkey: QKEY };
    let wr = SendWr { ud: to, ..SendWr::default() };
    stage.host.post_send(&a, &wr, Payload::Inline(&[1])).expect("room for a request");
    assert_eq!(stage.packets().len(), 1);
    assert!(a.cq.poll().is_some(), "sent");
    // The link returns the frame, as a loopback does.
    let own = a.handle.qpn;
    to_group(&mut stage, 1, own, &[1]);
    assert_eq!(a.cq.poll(), None);
    assert!(b.cq.poll().is_some());
    // A QP of another host may have the same QPN.
    to_group(&mut stage, 2, own, &[1]);
    assert!(a.cq.poll().is_some());
}

//= test: IBTA 10.5: multicast-is-for-datagrams
#[test]
fn multicast_attach_requires_ud_qp_and_multicast_gid() {
    let mut stage = stage();
    let caps = QpCaps::default();
    let rc = stage.host.queue_pair().caps(caps).signal_all().create();
    let refused = stage.host.call(stage.now, Command::AttachMulticast(rc.handle.index, group()));
    assert_eq!(refused.err(), Some(ControlError::NotDatagram(QpType::Rc)));
    let unicast = Gid::from(Host::address(2, false));
    let index = stage.qp.handle.index;
    let refused = stage.host.call(stage.now, Command::AttachMulticast(index, unicast));
    assert_eq!(refused.err(), Some(ControlError::NotMulticast(unicast)));
    // The number of groups is limited.
    let mut last = None;
    for n in 0..=16 {
        let gid = Gid::from(Ipv4Addr::new(239, 0, 0, n));
        last = stage.host.call(stage.now, Command::AttachMulticast(index, gid)).err();
    }
    assert_eq!(last, Some(ControlError::Full { object: ObjectKind::MulticastGroup, limit: 16 }));
}
