//! GIDs of VLANs and of RoCE v1: what leaves from them, and what is taken at them.

use roxie::frame::FrameMut;
use roxie::nic::{Command, TrafficClasses, Trust};
use roxie::shared::work_queue::Payload;
use roxie::verbs::{
    AddressVector, EventKind, Gid, LocalGid, Psn, QpAttr, QpState, QpType, SendWr, UdAddress, WcStatus,
    WrOpcode,
};
use roxie::wire::{Bth, Deth, Encapsulation, Ext, FlowSpec, MAX_HEADERS, Opcode, RoceVersion, Template};
use roxie_sim::Host;

use crate::tags::{CUSTOMER, FOREIGN, OWN, PLAIN, SERVICE, Tag, VLAN, tagged};
use crate::transport::{PEER_QPN, Setup, Stage, attributes};

/// Tags with which a frame is no RoCE at all.
const UNKNOWN: [(&str, &[Tag]); 3] = [
    ("an EtherType of old switches", &[(0x9100, 5)]),
    ("three tags", &[(CUSTOMER, 5), (CUSTOMER, 5), (CUSTOMER, 5)]),
    ("three tags, one of service", &[(SERVICE, 5), (CUSTOMER, 5), (CUSTOMER, 5)]),
];

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];
const QKEY: u32 = 0x1111_2222;

fn gid(host: u16) -> Gid {
    Host::address(host, false).into()
}

fn on(encapsulation: Encapsulation) -> LocalGid {
    LocalGid { gid: gid(1), encapsulation }
}

/// Makes a NIC whose GIDs are these, with a QP whose path begins at the first.
fn stage(qp_type: QpType, gids: &[LocalGid]) -> Stage {
    let setup = Setup { qp_type, ..Setup::default() };
    let mut stage = Stage::with(Setup { qp_type, ..Setup::default() });
    stage.host.call(stage.now, Command::SetGids(gids.to_vec())).expect("carried out");
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    for mut attr in attributes(&stage.host, &setup) {
        attr.av = attr.av.map(|av| AddressVector { encapsulation: gids[0].encapsulation, ..av });
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    stage
}

/// Returns the headers of packets from the peer, without a tag.
fn template(version: RoceVersion) -> Template {
    Template::new(&FlowSpec {
        src_mac: Host::mac(2),
        dst_mac: Host::mac(1),
        vlan: None,
        src: gid(2),
        dst: gid(1),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version,
    })
}

/// Returns a SEND of 8 bytes to the QP without a tag, which the QP would take without a VLAN.
fn send(stage: &Stage, qp_type: QpType, version: RoceVersion, psn: u32) -> Vec<u8> {
    let (opcode, ext) = match qp_type {
        QpType::Rc => (Opcode::RC_SEND_ONLY, Ext::None),
        QpType::Uc => (Opcode::UC_SEND_ONLY, Ext::None),
        _ => (Opcode::UD_SEND_ONLY, Ext::Deth(Deth { qkey: QKEY, src_qp: PEER_QPN })),
    };
    let bth =
        Bth { opcode, dest_qp: stage.qp.handle.qpn, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
    let template = template(version);
    let mut headers = [0; MAX_HEADERS];
    let at = template.write_headers(&mut headers, &bth, &ext, 8);
    let mut bytes = vec![0x5a; template.frame_len(opcode, 8)];
    bytes[..at].copy_from_slice(&headers[..at]);
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    bytes
}

/// Sends a frame from the peer.
fn deliver(stage: &mut Stage, frame: &[u8]) {
    let id = stage.peer.tx_alloc(frame.len()).expect("room");
    stage.peer.tx_frame(&id).write(0, frame);
    stage.peer.tx_commit(id);
    stage.peer.tx_flush(stage.now).expect("memory does not fail");
}

/// Sends a frame from the peer. Returns the tags of the NIC's answers.
fn put(stage: &mut Stage, frame: &[u8]) -> Vec<Option<u16>> {
    deliver(stage, frame);
    stage.packets().iter().map(|(packet, _)| packet.vlan).collect()
}

fn refused(stage: &Stage) -> u64 {
    stage.counter("rx_other_network") + stage.counter("rx_not_roce")
}

/// Each frame differs from one that the QP takes in its tags alone. None may be taken, and each is counted once.
fn assert_isolated(gids: &[LocalGid], foreign: &[(&str, &[Tag])], own: &[(&str, &[Tag])]) {
    for qp_type in TYPES {
        let mut stage = stage(qp_type, gids);
        (0..8).for_each(|id| stage.receive(id, 0, 100));
        let version = gids[0].encapsulation.version;
        for (what, tags) in foreign {
            let before = refused(&stage);
            let frame = tagged(&send(&stage, qp_type, version, 0), tags);
            assert_eq!(put(&mut stage, &frame), [], "{qp_type:?}, {what}: an answer");
            assert_eq!(stage.completions().len(), 0, "{qp_type:?}, {what}: taken");
            assert_eq!(refused(&stage), before + 1, "{qp_type:?}, {what}: not counted");
        }
        for (psn, (what, tags)) in own.iter().enumerate() {
            let frame = tagged(&send(&stage, qp_type, version, psn as u32), tags);
            let answers = put(&mut stage, &frame);
            let wanted = tags.first().map(|_| VLAN).filter(|_| gids[0].encapsulation.vlan != 0);
            let expected = if qp_type == QpType::Rc { vec![wanted] } else { Vec::new() };
            assert_eq!(answers, expected, "{qp_type:?}, {what}: the tag of the acknowledgement");
            let taken: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(taken, [(psn as u64, WcStatus::Success)], "{qp_type:?}, {what}");
        }
    }
}

//= test: IBTA A17.4.5: vlan-is-that-of-the-gid
#[test]
fn gid_of_a_vlan_takes_its_tag_alone() {
    let foreign = [&FOREIGN[..], &PLAIN, &UNKNOWN].concat();
    assert_eq!(foreign.len(), 30);
    assert_isolated(&[on(Encapsulation::vlan(VLAN))], &foreign, &OWN);
}

#[test]
fn gid_of_no_vlan_takes_no_vlan_tag() {
    let foreign = [&FOREIGN[..], &OWN, &UNKNOWN].concat();
    assert_isolated(&[LocalGid::from(gid(1))], &foreign, &PLAIN);
    // Another GID of the NIC is on the VLAN.
    let other = LocalGid::on_vlan(Host::address(3, false), VLAN);
    assert_isolated(&[LocalGid::from(gid(1)), other], &foreign, &PLAIN);
}

/// The same address on the interface and on two VLANs, as link-local addresses are.
#[test]
fn connection_takes_its_own_vlan_alone() {
    let (five, six) = (on(Encapsulation::vlan(VLAN)), on(Encapsulation::vlan(6)));
    let mut stage = stage(QpType::Rc, &[five, six, LocalGid::from(gid(1))]);
    stage.receive(1, 0, 100);
    for tags in [&[][..], &[(CUSTOMER, 6)]] {
        let before = stage.counter("rx_wrong_source");
        let frame = tagged(&send(&stage, QpType::Rc, RoceVersion::V2, 0), tags);
        assert_eq!(put(&mut stage, &frame), []);
        assert_eq!(stage.counter("rx_wrong_source"), before + 1, "{tags:?}");
    }
    let frame = tagged(&send(&stage, QpType::Rc, RoceVersion::V2, 0), &[(CUSTOMER, VLAN)]);
    assert_eq!(put(&mut stage, &frame), [Some(VLAN)]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

fn post(stage: &Stage, wr: &SendWr) {
    stage.host.post_send(&stage.qp, wr, Payload::Sges(&[stage.memory.sge(0, 8)])).expect("room");
}

#[test]
fn vlan_tag_carries_the_path_priority() {
    let path = |stage: &Stage, sl, traffic_class| AddressVector {
        sl,
        traffic_class,
        encapsulation: Encapsulation::vlan(VLAN),
        ..stage.host.path(2, false)
    };
    // By service level; by DSCP 26, which maps to priority 3.
    for (trust, sl, traffic_class, priority) in [(Trust::Pcp, 6, 0, 6_u16), (Trust::Dscp, 0, 26 << 2, 3)] {
        let mut stage = stage(QpType::Ud, &[on(Encapsulation::vlan(VLAN))]);
        crate::transport::pacing::classes(&mut stage, TrafficClasses { trust, ..TrafficClasses::default() });
        let path = path(&stage, sl, traffic_class);
        let ah = stage.host.create_ah(&path);
        let ud = UdAddress { ah, remote_qpn: PEER_QPN, remote_qkey: 5 };
        post(&stage, &SendWr { ud, ..SendWr::default() });
        let tags: Vec<_> = stage.packets().iter().map(|(packet, _)| packet.vlan).collect();
        assert_eq!(tags, [Some(priority << 13 | VLAN)], "{trust:?}");
    }
}

#[test]
fn completion_names_the_vlan_of_a_datagram() {
    let mut stage = stage(QpType::Ud, &[on(Encapsulation::vlan(VLAN)), LocalGid::from(gid(1))]);
    for (id, (tags, vlan)) in [(&[(CUSTOMER, 3 << 13 | VLAN)][..], VLAN), (&[], 0)].into_iter().enumerate() {
        stage.receive(id as u64, 0, 100);
        let frame = tagged(&send(&stage, QpType::Ud, RoceVersion::V2, 0), tags);
        put(&mut stage, &frame);
        assert_eq!(stage.completions().iter().map(|wc| wc.vlan).collect::<Vec<_>>(), [vlan]);
    }
}

#[test]
fn removed_vlan_fails_its_connections_and_handles() {
    let five = on(Encapsulation::vlan(VLAN));
    let mut connected = stage(QpType::Rc, &[five]);
    connected.host.call(connected.now, Command::SetGids(vec![LocalGid::from(gid(1))])).expect("carried out");
    assert_eq!(connected.state(), QpState::Err);
    assert_eq!(connected.events(), [EventKind::QpFatal]);
    let frame = tagged(&send(&connected, QpType::Rc, RoceVersion::V2, 0), &[(CUSTOMER, VLAN)]);
    assert_eq!(put(&mut connected, &frame), []);
    assert_eq!(connected.counter("rx_other_network"), 1, "frames of the VLAN are for no GID now");

    let mut datagrams = stage(QpType::Ud, &[five]);
    let path = AddressVector { encapsulation: five.encapsulation, ..datagrams.host.path(2, false) };
    let ah = datagrams.host.create_ah(&path);
    let wr = SendWr { ud: UdAddress { ah, remote_qpn: PEER_QPN, remote_qkey: 5 }, ..SendWr::default() };
    datagrams.host.call(datagrams.now, Command::SetGids(Vec::new())).expect("carried out");
    post(&datagrams, &wr);
    assert_eq!(datagrams.packets(), []);
    assert_eq!(datagrams.statuses(), [(0, WcStatus::LocQpOp)], "nothing leaves with a tag that is gone");
    let Ok(_) = datagrams.host.call(datagrams.now, Command::DestroyAh(ah)) else {
        panic!("it is still there")
    };
}

#[test]
fn vlan_beyond_the_last_is_refused() {
    let mut stage = Stage::new();
    let gids = vec![on(Encapsulation::vlan(4095))];
    let refused = stage.host.call(stage.now, Command::SetGids(gids)).expect_err("reserved").to_string();
    assert_eq!(refused, "VLAN ID = 4095 is more than the device offers, 4094");
}

//= test: IBTA A16: roce-v1-has-a-grh
#[test]
fn roce_v1_connection_asks_and_answers_with_grhs() {
    let v1 = on(Encapsulation::v1());
    let mut stage = stage(QpType::Rc, &[v1, LocalGid::from(gid(1))]);
    stage.receive(1, 0, 100);
    // RoCE v2 to the same address and QP is not of this connection.
    let other = send(&stage, QpType::Rc, RoceVersion::V2, 0);
    assert_eq!(put(&mut stage, &other), []);
    assert_eq!(stage.counter("rx_wrong_source"), 1);
    let frame = send(&stage, QpType::Rc, RoceVersion::V1, 0);
    assert_eq!(frame[12..14], [0x89, 0x15]);
    deliver(&mut stage, &frame);
    let answers = stage.packets();
    assert_eq!(answers.len(), 1);
    assert!(answers[0].0.is_roce_v1() && answers[0].0.udp.is_none());
    assert_eq!((answers[0].0.source_gid(), answers[0].0.dest_gid()), (gid(1), gid(2)));
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    stage.post(WrOpcode::Write, 8);
    let sent = stage.packets();
    assert!(sent.len() == 1 && sent[0].0.is_roce_v1());
}

//= test: IBTA A17.4.5: roce-v1-is-for-a-gid-of-its-type
#[test]
fn nic_without_roce_v1_gids_takes_none() {
    for qp_type in TYPES {
        let mut stage = stage(qp_type, &[LocalGid::from(gid(1))]);
        stage.receive(1, 0, 100);
        let frame = send(&stage, qp_type, RoceVersion::V1, 0);
        assert_eq!(put(&mut stage, &frame), []);
        assert_eq!((stage.counter("rx_other_network"), stage.completions().len()), (1, 0), "{qp_type:?}");
    }
}

//= test: IBTA A16: ud-receive-over-v1-begins-with-the-grh
#[test]
fn roce_v1_receive_starts_with_the_grh() {
    let mut stage = stage(QpType::Ud, &[on(Encapsulation::v1())]);
    stage.receive(1, 0, 100);
    let frame = send(&stage, QpType::Ud, RoceVersion::V1, 0);
    put(&mut stage, &frame);
    let wc = stage.completions()[0];
    assert_eq!((wc.status, wc.byte_len, wc.sl, wc.src_qp), (WcStatus::Success, 48, 0, PEER_QPN));
    // The GRH as received: version 6, payload length, next header 0x1b, both GIDs.
    assert_eq!(stage.memory.bytes(0, 40), frame[14..54]);
    assert_eq!((frame[14] >> 4, frame[20]), (6, 0x1b));
    assert_eq!(stage.memory.bytes(40, 8), [0x5a; 8]);
}
