//! Contents of request packets, when they are sent again, and what completes them (IBTA 9.4, 9.7.3, 9.7.6).

use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    AddressVector, QpAttr, QpCaps, QpInit, QpState, QpType, RKey, SendFlags, SendWr, WcStatus, WrOpcode,
};
use roxie::wire::{Aeth, AtomicEth, Ext, NakCode, NetHeader, Opcode, Reth, Syndrome};

use crate::transport::{FIRST, Setup, Stage, TIMEOUT, attributes};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const SUCCESS: WcStatus = WcStatus::Success;

/// RETH of a request from [`Stage::post`].
fn there(offset: u64, dma_len: u32) -> Reth {
    Reth { va: 0x1000 + offset, rkey: 1, dma_len }
}

//= test: IBTA 9.7.3: psn-counts-packets, message-is-cut-at-the-path-mtu
#[test]
fn message_is_segmented_at_the_path_mtu() {
    use Opcode as O;
    let cases: [(u32, &[(Opcode, usize)]); 5] = [
        (0, &[(O::RC_SEND_ONLY, 0)]),
        (256, &[(O::RC_SEND_ONLY, 256)]),
        (257, &[(O::RC_SEND_FIRST, 256), (O::RC_SEND_LAST, 1)]),
        (512, &[(O::RC_SEND_FIRST, 256), (O::RC_SEND_LAST, 256)]),
        (600, &[(O::RC_SEND_FIRST, 256), (O::RC_SEND_MIDDLE, 256), (O::RC_SEND_LAST, 88)]),
    ];
    for (length, expected) in cases {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Send, length);
        let packets = stage.packets();
        let seen: Vec<_> =
            packets.iter().map(|(packet, payload)| (packet.bth.opcode, payload.len())).collect();
        assert_eq!(seen, expected, "{length} bytes");
        let psns: Vec<_> = packets.iter().map(|(packet, _)| packet.bth.psn).collect();
        let counted: Vec<_> = (0..expected.len() as u32).map(|k| FIRST + k).collect();
        assert_eq!(psns, counted, "{length} bytes");
    }
}

//= test: IBTA 9.4.3: write-names-its-whole-length-first
//= test: IBTA 9.4: immediate-is-in-the-last-packet
#[test]
fn write_carries_its_reth_in_the_first_packet() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::WriteImm, 600);
    stage.post(WrOpcode::Write, 8);
    let named: Vec<_> = stage.packets().iter().map(|(packet, _)| (packet.reth(), packet.imm())).collect();
    assert_eq!(
        named,
        [(Some(there(0, 600)), None), (None, None), (None, Some(0)), (Some(there(0, 8)), None)]
    );
}

//= test: IBTA 9.7.3: read-takes-a-psn-for-each-response
//= test: IBTA 9.4.4: read-request-names-what-it-wants
#[test]
fn read_consumes_the_psns_of_its_response() {
    for (length, psns) in [(0, 1), (256, 1), (257, 2), (600, 3)] {
        let mut stage = Stage::new();
        stage.post(WrOpcode::Read, length);
        stage.post(WrOpcode::Write, 8);
        let packets = stage.packets();
        let (read, payload) = &packets[0];
        assert_eq!((read.bth.opcode, read.bth.psn), (Opcode::RC_READ_REQUEST, FIRST));
        assert_eq!((read.reth(), payload.len()), (Some(there(0, length)), 0));
        assert_eq!(packets[1].0.bth.psn, FIRST + psns, "behind a READ of {length} bytes");
    }
}

//= test: IBTA 9.7.6: read-is-asked-again-from-the-hole
#[test]
fn resumed_read_requests_the_missing_range() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Read, 600);
    stage.packets();
    let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, aeth, &[1; 256]);
    assert_eq!(stage.packets(), []);
    stage.now = stage.now + TIMEOUT;
    let again = stage.packets();
    let (read, _) = &again[0];
    assert_eq!((again.len(), read.bth.opcode, read.bth.psn), (1, Opcode::RC_READ_REQUEST, FIRST + 1));
    assert_eq!(read.reth(), Some(there(256, 344)));
}

//= test: IBTA 9.4.5: atomic-request-has-its-operands
//= test: IBTA 9.5: requests-leave-in-order
#[test]
fn atomics_carry_their_operands() {
    let mut stage = Stage::new();
    for opcode in [WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
        let (compare_add, swap, rkey) = (0x1111, 0x2222, RKey(1));
        let wr = SendWr { opcode, remote_addr: 0x1000, rkey, compare_add, swap, ..SendWr::default() };
        stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[stage.memory.sge(0, 8)])).expect("room");
    }
    let sent: Vec<_> = stage.packets().iter().map(|(p, _)| (p.bth.opcode, p.atomic_eth())).collect();
    let eth = |swap_or_add, compare| Some(AtomicEth { va: 0x1000, rkey: 1, swap_or_add, compare });
    assert_eq!(sent[0], (Opcode::RC_COMPARE_SWAP, eth(0x2222, 0x1111)));
    assert_eq!(sent[1], (Opcode::RC_FETCH_ADD, eth(0x1111, 0)));
}

//= test: IBTA A17.4.5: addresses-and-class-come-from-the-path
#[test]
fn packets_carry_the_paths_network_header() {
    let mut stage = Stage::new();
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    for mut attr in attributes(&stage.host, &Setup::default()) {
        attr.av = attr.av.map(|av| AddressVector { traffic_class: 0x28, hop_limit: 7, ..av });
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    let path = stage.host.path(2, false);
    stage.post(WrOpcode::Send, 8);
    let packet = stage.packets().remove(0).0;
    assert_eq!((packet.source_gid(), packet.dest_gid()), (path.sgid, path.dgid));
    let NetHeader::Ipv4(ip) = packet.net else { panic!("IPv4") };
    assert_eq!((ip.tos, ip.ttl), (0x28, 7));
}

//= test: IBTA 9.7.6: read-response-completes-what-is-before
#[test]
fn read_response_completes_earlier_requests() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 8);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 300);
    stage.post_as(3, WrOpcode::Read, SendFlags::SIGNALED, 8);
    stage.wait(SOON);
    let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 3 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 3, aeth, &[1; 8]);
    assert_eq!(stage.wait(SOON), [], "nothing is missing");
    assert_eq!(stage.statuses(), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
}

/// An ACK of the first request gives the second a whole timeout from then on.
//= test: IBTA 9.7.6.1.3: timer-runs-while-something-is-outstanding
#[test]
fn new_ack_restarts_the_timer() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 8);
    stage.post(WrOpcode::Write, 8);
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 4 * 3)).len(), 2);
    stage.acknowledge(FIRST, ACK, 1);
    assert_eq!(stage.wait(TIMEOUT - Nanos(1)), [], "a timeout after the first transmission");
    // A duplicate ACK does not restart the timer.
    stage.acknowledge(FIRST, ACK, 1);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 1)]);
    stage.acknowledge(FIRST + 1, ACK, 2);
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 8)), [], "nothing is outstanding");
    assert_eq!((stage.counter("local_ack_timeout_err"), stage.state()), (1, QpState::Rts));
}

//= test: IBTA 10.8: unsignaled-success-does-not-complete
#[test]
fn unsignaled_request_completes_only_on_error() {
    let mut stage = Stage::new();
    let init = QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: false };
    stage.qp = stage.host.queue_pair().init(init).create();
    stage.connect(&Setup::default());
    let flags = [SendFlags::empty(), SendFlags::SIGNALED, SendFlags::empty(), SendFlags::empty()];
    for (id, flags) in (1..).zip(flags) {
        stage.post_as(id, WrOpcode::Write, flags, 8);
    }
    stage.wait(SOON);
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [], "the first asked for none");
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.acknowledge(FIRST + 2, Syndrome::Nak(NakCode::RemoteAccess), 2);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(2, SUCCESS), (3, WcStatus::RemAccess), (4, WcStatus::WrFlush)]);
}
