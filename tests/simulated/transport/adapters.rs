//! Packets of adapters: those of a NIC with their profile, and what does a NIC without one no harm.

use roxie::profile::{CnpProfile, PacketProfile, Profile};
use roxie::time::Nanos;
use roxie::verbs::{QpState, SendFlags, WcStatus, WrOpcode};
use roxie::wire::{Bth, Ext, FlowSpec, NetHeader, Opcode, Packet, Syndrome, Template};

use crate::transport::{FIRST, Setup, Stage, TIMEOUT, flow};

const SOON: Nanos = Nanos(1000);
/// ECN bits of a packet that switches may mark (ECT(0)).
const ECT_0: u8 = 2;

/// The packets of a Huawei Hi1822, as captured (oferby/proxy, `roce.pcap`).
const HI1822: PacketProfile = PacketProfile {
    mig_req: Some(true),
    source_port_is_qpn: true,
    is_ecn_capable: true,
    request_bits: 0x10,
    first_requests_ack: true,
    has_credits: true,
};

fn stage(profile: Profile) -> Stage {
    Stage::with(Setup { profile: Some(Box::leak(Box::new(profile))), ..Setup::default() })
}

/// Asserts the header fields that requests and ACKs have in common.
fn assert_headers(stage: &Stage, packet: &Packet) {
    let NetHeader::Ipv4(ip) = packet.net else { panic!("{packet}") };
    assert_eq!((ip.tos, ip.id, ip.ttl, ip.dont_fragment, ip.checksum_ok), (ECT_0, 0, 64, true, true));
    let port = packet.udp.map(|udp| u32::from(udp.source_port));
    assert_eq!(port, Some(stage.qp.handle.qpn.value() & 0xffff));
    assert!(packet.bth.mig_req, "{packet}");
}

#[test]
fn packets_have_the_fields_of_the_adapter() {
    let mut stage = stage(Profile { packets: HI1822, ..Profile::default() });
    stage.post(WrOpcode::Send, 600);
    stage.post(WrOpcode::Write, 600);
    stage.post(WrOpcode::Read, 4);
    let sent = stage.packets();
    let requests_ack: Vec<_> = sent.iter().map(|(packet, _)| packet.bth.ack_req).collect();
    assert_eq!(
        requests_ack,
        [true, false, true, false, false, true, true],
        "the first FIRST asks, no later one"
    );
    for (packet, _) in &sent {
        assert_headers(&stage, packet);
        assert_eq!(packet.bth.reserved6, 0x10, "{packet}");
    }
    for id in 0..6 {
        stage.receive(id, 0, 64);
    }
    let bth =
        Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: stage.qp.handle.qpn, ack_req: true, ..Bth::default() };
    stage.send(&bth, &Ext::None, &[1; 8]);
    let (ack, _) = stage.packets().pop().expect("an ACK");
    assert_headers(&stage, &ack);
    assert_eq!(ack.bth.reserved6, 0, "{ack}");
    let five = Syndrome::Ack { credits: 4 };
    assert_eq!(ack.aeth().map(|aeth| aeth.kind()), Some(five), "of the five receives left, the code below");
}

#[test]
fn first_packet_asks_without_other_differences() {
    let packets = PacketProfile { first_requests_ack: true, ..PacketProfile::default() };
    let mut stage = stage(Profile { packets, ..Profile::default() });
    stage.post(WrOpcode::Write, 600);
    let sent: Vec<_> = stage.packets().iter().map(|(packet, _)| packet.bth.ack_req).collect();
    assert_eq!(sent, [true, false, true]);
}

#[test]
fn gap_brings_a_notification_if_the_adapter_does() {
    for answers_gaps in [false, true] {
        let cnp = CnpProfile { answers_gaps, ..CnpProfile::default() };
        let mut stage = stage(Profile { cnp, ..Profile::default() });
        let answers = stage.request(Opcode::RC_SEND_ONLY, 2, Ext::None, &[1; 8]);
        let count = |opcode| answers.iter().filter(|answer| answer.opcode == opcode).count();
        assert_eq!((count(Opcode::RC_ACKNOWLEDGE), count(Opcode::CNP)), (1, usize::from(answers_gaps)));
    }
}

/// An ACK of a FIRST that did not ask, with the MSN of the message before and credits that nobody agreed to: the
/// Hi1822 sends one before the LAST of a burst.
#[test]
fn unasked_ack_of_a_first_changes_nothing() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 600);
    assert_eq!(stage.packets().len(), 3);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 0 }, 0);
    assert_eq!(stage.wait(SOON), []);
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 0 }, 1);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
    stage.post(WrOpcode::Send, 4);
    stage.post(WrOpcode::Send, 4);
    assert_eq!(stage.packets().len(), 2, "credits without an agreement limit nothing");
    // The ACK of the later message comes before that of the earlier.
    stage.acknowledge(FIRST + 4, Syndrome::Ack { credits: 5 }, 3);
    stage.acknowledge(FIRST + 3, Syndrome::Ack { credits: 6 }, 2);
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), [], "nothing is repeated");
    assert_eq!(stage.statuses(), [(0, WcStatus::Success); 2]);
    assert_eq!((stage.state(), stage.counter("retransmitted_packets")), (QpState::Rts, 0));
}

/// Reserved bits of an adapter's request, and a CNP from UDP source port 0.
#[test]
fn reserved_bits_and_port_0_are_taken() {
    let mut stage = Stage::new();
    stage.receive(7, 0, 64);
    let dest_qp = stage.qp.handle.qpn;
    let request =
        Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp, ack_req: true, reserved6: 0x10, ..Bth::default() };
    stage.send(&request, &Ext::None, &[1; 8]);
    assert_eq!(stage.answers().len(), 1);
    assert_eq!(stage.statuses(), [(7, WcStatus::Success)]);
    stage.post_as(1, WrOpcode::Send, SendFlags::SIGNALED, 4);
    assert_eq!(stage.packets().len(), 1);
    stage.template = Template::new(&FlowSpec { source_port: 0, ..flow(2) });
    let notification = Bth { opcode: Opcode::CNP, dest_qp, becn: true, ..Bth::default() };
    stage.send(&notification, &Ext::None, &[]);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 31 }, 1);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(
        (stage.counter("rp_cnp_handled") + stage.counter("rp_cnp_ignored"), stage.state()),
        (1, QpState::Rts)
    );
}
