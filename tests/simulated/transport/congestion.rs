//! The notification point: which marked packets are answered with a CNP, and how often. The reaction point: which CNPs
//! count.

use roxie::congestion::Settings;
use roxie::nic::{Command, CongestionConfig, EcnPolicy};
use roxie::time::Nanos;
use roxie::verbs::{QpAttr, QpState, QpType, SendFlags, WrOpcode};
use roxie::wire::{Aeth, Bth, Ext, FlowSpec, NetHeader, Opcode, Packet, Psn, Syndrome, Template};

use crate::transport::{FIRST, MTU, PEER_QPN, Setup, Stage, attributes, template};

const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// A stage with a peer that sends packets with congestion marks (ECN CE).
fn marked() -> Stage {
    let mut stage = Stage::new();
    stage.template = with_class(3);
    stage
}

pub(crate) fn with_class(traffic_class: u8) -> Template {
    use roxie::wire::{Gid, RoceVersion};
    use roxie_sim::Host;
    let gid = |n| Gid::from(Host::address(n, false));
    Template::new(&FlowSpec {
        src_mac: Host::mac(2),
        dst_mac: Host::mac(1),
        vlan: None,
        src: gid(2),
        dst: gid(1),
        traffic_class,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    })
}

fn send_only(stage: &mut Stage, psn: u32) {
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(psn),
        ack_req: true,
        ..Bth::default()
    };
    stage.send(&bth, &Ext::None, &[1; 64]);
}

fn notifications(packets: &[(Packet, Vec<u8>)]) -> usize {
    packets.iter().filter(|(packet, _)| packet.bth.opcode == Opcode::CNP).count()
}

/// Resets the QP and connects it again with `psn` as the next expected PSN.
fn expect_from(stage: &mut Stage, psn: Psn) {
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    let [init, rtr, rts] = attributes(&stage.host, &Setup::default());
    for attr in [reset, init, QpAttr { rq_psn: Some(psn), ..rtr }, rts] {
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
}

fn control(stage: &mut Stage, text: &str) {
    let config = CongestionConfig { control: text.parse().expect("settings"), ..CongestionConfig::default() };
    let command = Command::SetCongestion(Box::new(config));
    stage.host.call(stage.now, command).expect("carried out");
}

//= test: IBTA A17.9.3: cnp-answers-a-mark
#[test]
fn marked_packet_is_answered_with_a_cnp() {
    let mut stage = marked();
    stage.receive(1, 0, 64);
    send_only(&mut stage, 0);
    let packets = stage.packets();
    let opcodes: Vec<_> = packets.iter().map(|(packet, _)| packet.bth.opcode).collect();
    assert_eq!(opcodes, [Opcode::CNP, Opcode::RC_ACKNOWLEDGE], "before everything else");
    let (packet, _) = &packets[0];
    assert_eq!(packet.bth.dest_qp, PEER_QPN);
    assert!(packet.bth.becn && !packet.bth.fecn && !packet.bth.ack_req);
    assert_eq!((packet.bth.psn, packet.bth.pkey), (Psn::new(0), 0xffff));
    let NetHeader::Ipv4(ip) = packet.net else { panic!("IPv4") };
    assert_eq!(ip.tos, 48 << 2 | 2, "DSCP 48, ECT(0)");
    assert_eq!((stage.counter("np_cnp_sent"), stage.counter("np_ecn_marked_roce_packets")), (1, 1));
}

//= test: IBTA A17.9.3: cnp-interval
#[test]
fn cnps_of_one_qp_keep_the_interval() {
    let mut stage = marked();
    let mut sent = 0;
    for psn in 0..40 {
        stage.receive(1, 0, 64);
        send_only(&mut stage, psn);
        sent += notifications(&stage.packets());
        assert_eq!(stage.completions().len(), 1);
        stage.now = stage.now + Nanos(500);
    }
    // 40 packets in 20 us, an interval of 4 us: at 0, 4, 8, 12 and 16.
    assert_eq!((sent, stage.counter("np_cnp_sent"), stage.counter("np_ecn_marked_roce_packets")), (5, 5, 40));
}

//= test: IBTA A17.9.3: cnp-answers-a-mark
#[test]
fn implausible_marked_packets_trigger_no_cnp() {
    // A mark on an acknowledgement.
    let mut stage = marked();
    stage.post(WrOpcode::Send, 16);
    assert_eq!(stage.packets().len(), 1);
    stage.acknowledge(crate::transport::FIRST, roxie::wire::Syndrome::Ack { credits: 31 }, 1);
    assert_eq!(notifications(&stage.packets()), 0, "an acknowledgement");
    // A duplicate, and a packet far ahead: the sender does not know the expected PSN.
    for psn in [0xff_fff0, 0x40_0000] {
        let mut stage = marked();
        send_only(&mut stage, psn);
        assert_eq!(notifications(&stage.packets()), 0, "PSN {psn:#x}");
        assert_eq!(stage.counter("np_ecn_marked_roce_packets"), 1);
    }
    // A little ahead: the packets before it were dropped at the switch that marked this one.
    let mut stage = marked();
    send_only(&mut stage, 7);
    assert_eq!(notifications(&stage.packets()), 1);
    // The plausible and the implausible case across the wrap of the PSN.
    for (psn, answered) in [(5, 1), (0x1_fff0, 0)] {
        let mut stage = marked();
        expect_from(&mut stage, Psn::new(0xff_fff0));
        send_only(&mut stage, psn);
        assert_eq!(notifications(&stage.packets()), answered, "PSN {psn:#x} where 0xfffff0 is due");
    }
    // A packet of another host.
    let mut stage = Stage::new();
    stage.template = template(3);
    send_only(&mut stage, 0);
    assert_eq!(notifications(&stage.packets()), 0);
    // A datagram belongs to no flow that could be slowed.
    let mut stage = Stage::with(Setup { qp_type: QpType::Ud, ..Setup::default() });
    stage.template = with_class(3);
    stage.receive(1, 0, 104);
    let deth = roxie::wire::Deth { qkey: 0x11, src_qp: PEER_QPN };
    let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&bth, &Ext::Deth(deth), &[1; 64]);
    assert_eq!(notifications(&stage.packets()), 0);
}

//= test: IBTA A17.9: ecn-capable-where-heeded
#[test]
fn data_is_ecn_capable_under_ecn_based_control() {
    let ecn = |packet: &Packet| packet.traffic_class() & 3;
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 16);
    assert_eq!(ecn(&stage.packets()[0].0), 0, "no control reacts to a CNP");
    for (settings, policy, expected) in [
        ("dcqcn", None, 2),
        ("swift", None, 0),
        ("off", Some(EcnPolicy::On), 2),
        ("dcqcn", Some(EcnPolicy::Off), 0),
        ("dcqcn", Some(EcnPolicy::Dscp(1)), 2),
        ("dcqcn", Some(EcnPolicy::Dscp(2)), 0),
    ] {
        let mut stage = Stage::new();
        let control: Settings = settings.parse().expect("settings");
        let config = CongestionConfig { control, ecn: policy, ..CongestionConfig::default() };
        stage.host.call(stage.now, Command::SetCongestion(Box::new(config))).expect("carried out");
        stage.post(WrOpcode::Send, 16);
        let packets = stage.packets();
        assert_eq!(ecn(&packets[0].0), expected, "{settings} {policy:?}");
        stage.receive(1, 0, 64);
        send_only(&mut stage, 0);
        let packets = stage.packets();
        assert_eq!((packets[0].0.bth.opcode, ecn(&packets[0].0)), (Opcode::RC_ACKNOWLEDGE, 0));
    }
}

/// In a deep incast, CNPs arrive after the data has stopped. Each refers to a packet that was sent before.
#[test]
fn each_data_packet_allows_one_cnp() {
    let heeded = |stage: &mut Stage| {
        let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
        let before = stage.counter("rp_cnp_handled");
        for _ in 0..6 {
            stage.send(&bth, &Ext::None, &[]);
        }
        stage.packets();
        stage.counter("rp_cnp_handled") - before
    };
    let sends = |packets: u32| {
        let mut stage = Stage::new();
        control(&mut stage, "dcqcn,preset=paper");
        stage.post_as(0, WrOpcode::Write, SendFlags::SIGNALED, packets * MTU.bytes() as u32);
        assert_eq!(stage.packets().len() as u32, packets);
        stage
    };
    assert_eq!(heeded(&mut sends(3)), 3);
    // Acknowledged packets allow no CNP, except the last one: its CNP may still be on its way.
    let mut stage = sends(4);
    stage.acknowledge(FIRST + 1, ACK, 0);
    assert_eq!(heeded(&mut stage), 2);
    let mut stage = sends(4);
    stage.acknowledge(FIRST + 3, ACK, 1);
    assert_eq!(heeded(&mut stage), 1);

    let mut stage = Stage::new();
    control(&mut stage, "dcqcn,preset=paper");
    let length = 3 * MTU.bytes() as u32;
    let bth = Bth { opcode: Opcode::RC_READ_REQUEST, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&bth, &Ext::Reth(stage.reth(0, length)), &[]);
    assert_eq!(stage.packets().len(), 3, "responses");
    assert_eq!(heeded(&mut stage), 3);
}

//= test: IBTA A17.9.3: cnp-slows-its-qp
#[test]
fn cnp_slows_only_a_sending_qp() {
    let mut stage = Stage::new();
    control(&mut stage, "dcqcn,preset=paper");
    let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&bth, &Ext::None, &[]);
    assert!(stage.packets().is_empty());
    assert_eq!(
        (stage.counter("rp_cnp_handled"), stage.counter("rp_cnp_ignored")),
        (0, 1),
        "it has sent nothing"
    );
    stage.post_as(0, WrOpcode::Write, SendFlags::SIGNALED, 256);
    stage.packets();
    for _ in 0..5 {
        stage.send(&bth, &Ext::None, &[]);
    }
    stage.packets();
    // One data packet can have caused one notification.
    assert_eq!((stage.counter("rp_cnp_handled"), stage.counter("rp_cnp_ignored")), (1, 5));
    let records = stage.log();
    let is_recorded = |text: &str| records.iter().any(|record| record.contains(text));
    assert!(
        is_recorded("CNP psn 0: congestion notification: rate 10 Gb/s -> 5 Gb/s, alpha 1"),
        "{records:#?}"
    );
}

#[test]
fn marked_read_response_completes_and_triggers_a_cnp() {
    let mut stage = marked();
    stage.post(WrOpcode::Read, 64);
    assert_eq!(stage.packets().len(), 1);
    let ext = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, ext, &[1; 64]);
    assert_eq!(notifications(&stage.packets()), 1);
    assert_eq!(stage.completions().len(), 1);
}
