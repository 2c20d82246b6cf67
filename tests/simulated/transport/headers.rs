//! Which header fields are checked, which are ignored, and in which QP states packets are handled (IBTA 9.6.1, 10.3.1).

use roxie::time::Nanos;
use roxie::verbs::{Gid, Psn, QpAttr, QpState, QpType, WcStatus, WrOpcode};
use roxie::wire::{Bth, Ext, FlowSpec, Opcode, RoceVersion, Template};
use roxie_sim::Host;

use crate::transport::{Answer, FIRST, Setup, Stage, attributes};

const SOON: Nanos = Nanos(1000);

fn send_only(stage: &Stage, qp_type: QpType) -> Bth {
    let opcode = if qp_type == QpType::Uc { Opcode::UC_SEND_ONLY } else { Opcode::RC_SEND_ONLY };
    Bth { opcode, dest_qp: stage.qp.handle.qpn, ack_req: true, ..Bth::default() }
}

/// Resets the QP and applies the first `steps` of the transitions INIT, RTR, RTS.
fn restart(stage: &mut Stage, rq_psn: Psn, steps: usize) {
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    advance(stage, rq_psn, 0..steps);
}

fn advance(stage: &mut Stage, rq_psn: Psn, steps: std::ops::Range<usize>) {
    for attr in &attributes(&stage.host, &Setup::default())[steps] {
        let attr = QpAttr { rq_psn: attr.rq_psn.map(|_| rq_psn), ..*attr };
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
}

/// A station may have several IP addresses; a connection is between one local and one remote address.
//= test: IBTA 9.6.1: destination-is-our-address
#[test]
fn packet_to_another_local_address_is_dropped() {
    let gid = |n| Gid::from(Host::address(n, false));
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut stage = Stage::with(Setup { qp_type, ..Setup::default() });
        stage.receive(1, 0, 100);
        let bth = send_only(&stage, qp_type);
        let other = Template::new(&FlowSpec {
            src_mac: Host::mac(2),
            dst_mac: Host::mac(1),
            vlan: None,
            src: gid(2),
            dst: gid(9),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source_port: 0xc000,
            version: RoceVersion::V2,
        });
        let own = std::mem::replace(&mut stage.template, other);
        stage.send(&bth, &Ext::None, &[1; 4]);
        assert_eq!(stage.answers(), [], "{qp_type:?}");
        assert_eq!((stage.statuses(), stage.counter("rx_wrong_source")), (vec![], 1), "{qp_type:?}");
        stage.template = own;
        stage.send(&bth, &Ext::None, &[1; 4]);
        stage.answers();
        assert_eq!(stage.statuses(), [(1, WcStatus::Success)], "{qp_type:?}");
    }
}

//= test: IBTA 9.2: reserved-bits-mean-nothing
#[test]
fn reserved_header_bits_are_ignored() {
    let mut stage = Stage::new();
    let good = send_only(&stage, QpType::Rc);
    let cases = [
        Bth { reserved6: 0x3f, ..good },
        Bth { reserved7: 0x7f, ..good },
        Bth { fecn: true, ..good },
        Bth { mig_req: true, ..good },
    ];
    for (psn, bth) in (0..).zip(cases) {
        stage.receive(u64::from(psn), 0, 8);
        stage.send(&Bth { psn: Psn::new(psn), ..bth }, &Ext::None, &[1; 4]);
        assert_eq!(stage.answers(), [Answer::ack(psn)], "{bth:?}");
        assert_eq!(stage.statuses(), [(psn.into(), WcStatus::Success)], "{bth:?}");
    }
}

/// Flips single bits that the ICRC covers: of the BTH, the payload and the ICRC itself.
//= test: IBTA 7.8.1: bad-icrc-is-dropped
#[test]
fn packet_with_a_flipped_bit_is_dropped_silently() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 64);
    let mut dropped = 0;
    // Without opcode, pad count and QPN: a flip there may make the packet malformed, or another QP's.
    for (at, byte) in
        [("P_Key", 44), ("PSN", 51), ("PSN", 53), ("payload", 54), ("payload", 61), ("ICRC", 65)]
    {
        for bit in 0..8 {
            stage.send_bytes(|bytes| bytes[byte] ^= 1 << bit);
            assert_eq!(stage.answers(), [], "bit {bit} of byte {byte}, {at}");
            dropped += 1;
            assert_eq!(stage.counter("rx_icrc_encapsulated"), dropped, "bit {bit} of byte {byte}, {at}");
        }
    }
    assert_eq!((stage.statuses(), stage.memory.bytes(0, 64)), (vec![], vec![0; 64]));
    stage.send_bytes(|_| ());
    stage.answers();
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)], "the undamaged packet");
}

//= test: IBTA 9.7.1: psn-is-24-bits, psn-begins-as-agreed
#[test]
fn psns_start_as_agreed_and_wrap() {
    let mut stage = Stage::new();
    for first in [0x12_3456, 0xff_ffff] {
        restart(&mut stage, Psn::new(first), 3);
        let bth = send_only(&stage, QpType::Rc);
        for k in 0..3 {
            stage.receive(k, 0, 8);
            let psn = Psn::new(first) + k as u32;
            stage.send(&Bth { psn, ..bth }, &Ext::None, &[1; 4]);
            assert_eq!(stage.answers(), [Answer::ack(psn.value())]);
        }
        assert_eq!(stage.statuses().len(), 3, "from {first:#x} on");
        stage.post(WrOpcode::Write, 8);
        assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)]);
    }
}

//= test: IBTA 10.3.1.2: init-takes-receives-and-no-packets
#[test]
fn init_state_keeps_receives_and_drops_packets() {
    let mut stage = Stage::new();
    restart(&mut stage, Psn::new(0), 1);
    stage.receive(1, 0, 8);
    let bth = send_only(&stage, QpType::Rc);
    stage.send(&bth, &Ext::None, &[1; 4]);
    assert_eq!(stage.answers(), []);
    assert_eq!((stage.statuses(), stage.counter("rx_wrong_state")), (vec![], 1));
    advance(&mut stage, Psn::new(0), 1..3);
    stage.send(&bth, &Ext::None, &[1; 4]);
    assert_eq!(stage.answers(), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

//= test: IBTA 10.3.1.3: rtr-answers-and-does-not-ask
#[test]
fn rtr_state_answers_requests_but_sends_none() {
    let mut stage = Stage::new();
    restart(&mut stage, Psn::new(0), 2);
    stage.post(WrOpcode::Write, 8);
    stage.receive(1, 0, 8);
    let bth = send_only(&stage, QpType::Rc);
    stage.send(&bth, &Ext::None, &[1; 4]);
    assert_eq!(stage.answers(), [Answer::ack(0)], "and no WRITE");
    assert_eq!(stage.wait(Nanos::from_millis(500)), []);
    advance(&mut stage, Psn::new(0), 2..3);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)], "it waited");
}
