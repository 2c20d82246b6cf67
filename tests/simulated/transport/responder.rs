//! The responder: execution of requests, responses and refusals (IBTA 9.7.4, 9.7.5.1, 9.9.3).

use roxie::verbs::{Access, EventKind, QpState, WcFlags, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::{AtomicEth, Bth, Ext, NakCode, Opcode, Psn, Reth, Syndrome};

use crate::transport::{Answer, Setup, Stage};

const MTU: usize = 256;

/// Asserts a refusal: NAK, error state, event, memory unchanged.
fn assert_refused(stage: &mut Stage, answers: &[Answer], psn: u32, code: NakCode, event: EventKind) {
    assert_eq!(answers, [Answer::nak(psn, code)]);
    assert_eq!(stage.state(), QpState::Err);
    assert_eq!(stage.events(), [event]);
    let untouched = stage.memory.bytes(0, stage.memory.memory.len()).iter().all(|byte| *byte == 0);
    assert!(untouched, "memory was written");
}

//= test: IBTA 9.7.5.1: response-has-the-requests-psn
//= test: IBTA 9.4.1: send-takes-one-receive, immediate-is-delivered
#[test]
fn send_fills_a_receive_and_is_acknowledged() {
    let mut stage = Stage::new();
    stage.receive(7, 100, 500);
    assert_eq!(stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; MTU]), [Answer::ack(0)]);
    assert_eq!(stage.completions(), [], "half a message is no message");
    assert_eq!(stage.request(Opcode::RC_SEND_LAST_IMM, 1, Ext::Imm(9), &[2; 3]), [Answer::ack(1)]);
    let done = stage.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len, done[0].imm), (1, 7, 259, 9));
    assert_eq!((done[0].opcode, done[0].flags), (WcOpcode::Recv, WcFlags::WITH_IMM));
    assert_eq!(stage.memory.bytes(99, 261), [&[0][..], &[1; 256], &[2; 3], &[0]].concat());
}

//= test: IBTA 9.7.5.1: ack-answers-ack-request
#[test]
fn ack_is_sent_only_on_request() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 1000);
    let quiet = Bth { opcode: Opcode::RC_SEND_FIRST, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&quiet, &Ext::None, &[1; MTU]);
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.request(Opcode::RC_SEND_LAST, 1, Ext::None, &[1]), [Answer::ack(1)]);
}

//= test: IBTA 9.5: requests-are-executed-in-psn-order
//= test: IBTA 9.7.5.2: gap-is-nakd-once
#[test]
fn psn_gap_is_nakd_once() {
    let mut stage = Stage::new();
    for id in 0..3 {
        stage.receive(id, 0, 100);
    }
    assert_eq!(
        stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[5]),
        [Answer::nak(0, NakCode::PsnSequence)]
    );
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 2, Ext::None, &[5]), []);
    assert_eq!(stage.statuses(), []);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[6]), [Answer::ack(0)]);
    assert_eq!(
        stage.request(Opcode::RC_SEND_ONLY, 2, Ext::None, &[5]),
        [Answer::nak(1, NakCode::PsnSequence)],
        "a new gap is told again"
    );
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(stage.counter("out_of_sequence"), 3);
}

//= test: IBTA 9.7.5.1: duplicate-is-not-executed, duplicate-ack-covers-what-is-done
#[test]
fn duplicate_send_is_acknowledged_but_not_executed() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 10);
    stage.receive(2, 10, 10);
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2; 4]);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[9; 4]), [Answer::ack(1)]);
    assert_eq!(stage.statuses().len(), 2);
    assert_eq!(stage.memory.bytes(0, 4), [1; 4]);
    assert_eq!(stage.counter("duplicate_request"), 1);
}

//= test: IBTA 9.7.5.2.8: rnr-nak-without-a-receive, rnr-nak-has-the-qps-timer, rnr-nak-is-followed-by-silence
#[test]
fn send_without_a_receive_gets_an_rnr_nak() {
    let mut stage = Stage::new();
    let rnr = Answer::acknowledge(0, Syndrome::RnrNak { timer: 12 });
    let rnr = [rnr];
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), rnr);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), []);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), rnr);
    stage.receive(3, 0, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(3, WcStatus::Success)]);
    assert_eq!((stage.counter("send_rnr_err"), stage.state()), (2, QpState::Rts));
}

//= test: IBTA 9.4.3: write-with-immediate-takes-a-receive
//= test: IBTA 9.7.5.2.8: rnr-nak-without-a-receive
#[test]
fn write_imm_without_receive_gets_an_rnr_nak() {
    let mut stage = Stage::new();
    let reth = stage.reth(0, 260);
    assert_eq!(stage.request(Opcode::RC_WRITE_FIRST, 0, Ext::Reth(reth), &[3; MTU]), [Answer::ack(0)]);
    let rnr = Answer::acknowledge(1, Syndrome::RnrNak { timer: 12 });
    assert_eq!(stage.request(Opcode::RC_WRITE_LAST_IMM, 1, Ext::Imm(4), &[3; 4]), [rnr]);
    stage.receive(8, 1000, 0);
    assert_eq!(stage.request(Opcode::RC_WRITE_LAST_IMM, 1, Ext::Imm(4), &[3; 4]), [Answer::ack(1)]);
    let done = stage.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len, done[0].imm), (1, 8, 260, 4));
    assert_eq!(done[0].opcode, WcOpcode::RecvWriteImm);
    assert_eq!(stage.memory.bytes(0, 261), [vec![3; 260], vec![0]].concat());
}

//= test: IBTA 9.7.4.1.6: receive-holds-the-message
//= test: IBTA 9.9.3: failing-receive-carries-the-cause
#[test]
fn message_longer_than_its_receive_is_refused() {
    let mut stage = Stage::new();
    stage.receive(5, 0, 3);
    stage.receive(6, 0, 100);
    let answers = stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    assert_eq!(stage.statuses(), [(5, WcStatus::LocLen), (6, WcStatus::WrFlush)]);
    assert_refused(&mut stage, &answers, 0, NakCode::InvalidRequest, EventKind::QpRequestError);
}

//= test: IBTA 9.9.3: receive-memory-is-writable
#[test]
fn receive_with_a_bad_sge_naks_remote_operational() {
    let mut stage = Stage::new();
    stage.host.post_recv(&stage.qp, 5, &[stage.memory.sge(1 << 16, 4)]).expect("room");
    let answers = stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    assert_eq!(stage.statuses(), [(5, WcStatus::LocProt)]);
    assert_refused(&mut stage, &answers, 0, NakCode::RemoteOperational, EventKind::QpFatal);
}

/// A name, and a script of requests of which the last is invalid.
type Case = (&'static str, fn(&Stage) -> Vec<(Opcode, Ext, Vec<u8>)>);

fn reth_at(stage: &Stage, offset: u64, dma_len: u32, change: fn(&mut Reth)) -> Ext {
    let mut reth = stage.reth(offset, dma_len);
    change(&mut reth);
    Ext::Reth(reth)
}

fn unchanged(_: &mut Reth) {}

/// A name, and a change that makes the RETH invalid.
type Change = (&'static str, fn(&mut Reth));

const INVALID: &[Case] = &[
    ("MIDDLE without FIRST", |_| vec![(Opcode::RC_SEND_MIDDLE, Ext::None, vec![1; MTU])]),
    ("LAST without FIRST", |_| vec![(Opcode::RC_WRITE_LAST, Ext::None, vec![1; 4])]),
    ("FIRST shorter than the MTU", |_| vec![(Opcode::RC_SEND_FIRST, Ext::None, vec![0; MTU - 4])]),
    ("ONLY longer than the MTU", |_| vec![(Opcode::RC_SEND_ONLY, Ext::None, vec![0; MTU + 4])]),
    ("LAST without a byte", |s| {
        vec![
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
            (Opcode::RC_WRITE_LAST, Ext::None, vec![]),
        ]
    }),
    ("LAST of a SEND without a byte", |s| {
        s.receive(1, 0, 1000);
        vec![(Opcode::RC_SEND_FIRST, Ext::None, vec![0; MTU]), (Opcode::RC_SEND_LAST, Ext::None, vec![])]
    }),
    ("LAST longer than the MTU", |s| {
        s.receive(1, 0, 1000);
        vec![
            (Opcode::RC_SEND_FIRST, Ext::None, vec![0; MTU]),
            (Opcode::RC_SEND_LAST, Ext::None, vec![0; MTU + 4]),
        ]
    }),
    ("FIRST in the middle of a message", |s| {
        vec![
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
        ]
    }),
    ("a SEND goes on where a WRITE began", |s| {
        vec![
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
            (Opcode::RC_SEND_LAST, Ext::None, vec![1; 44]),
        ]
    }),
    ("a SEND begins where a SEND goes on", |s| {
        s.receive(1, 0, 1000);
        vec![(Opcode::RC_SEND_FIRST, Ext::None, vec![0; MTU]), (Opcode::RC_SEND_ONLY, Ext::None, vec![1; 4])]
    }),
    ("a WRITE goes on where a SEND began", |s| {
        s.receive(1, 0, 1000);
        vec![(Opcode::RC_SEND_FIRST, Ext::None, vec![0; MTU]), (Opcode::RC_WRITE_LAST, Ext::None, vec![1; 4])]
    }),
    ("a READ in the middle of a message", |s| {
        vec![
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
            (Opcode::RC_READ_REQUEST, reth_at(s, 0, 4, unchanged), vec![]),
        ]
    }),
    ("a WRITE that ends before its length", |s| {
        vec![
            (Opcode::RC_WRITE_FIRST, reth_at(s, 0, 300, unchanged), vec![0; MTU]),
            (Opcode::RC_WRITE_LAST, Ext::None, vec![1; 40]),
        ]
    }),
    ("a WRITE that goes beyond its length", |s| {
        vec![(Opcode::RC_WRITE_ONLY, reth_at(s, 0, 4, unchanged), vec![1; 5])]
    }),
    ("a WRITE that is complete and not at its end", |s| {
        vec![(Opcode::RC_WRITE_FIRST, reth_at(s, 0, 256, unchanged), vec![1; MTU])]
    }),
    ("a READ beyond 2^31", |s| {
        let change = |r: &mut Reth| r.dma_len = (1 << 31) + 1;
        vec![(Opcode::RC_READ_REQUEST, reth_at(s, 0, 0, change), vec![])]
    }),
    ("a WRITE beyond 2^31", |s| {
        let change = |r: &mut Reth| r.dma_len = (1 << 31) + 1;
        vec![(Opcode::RC_WRITE_FIRST, reth_at(s, 0, 0, change), vec![1; MTU])]
    }),
    ("a READ with payload", |s| vec![(Opcode::RC_READ_REQUEST, reth_at(s, 0, 4, unchanged), vec![1; 4])]),
    ("an atomic with payload", |s| {
        let eth = AtomicEth { va: s.memory.address, rkey: s.memory.key, swap_or_add: 1, compare: 0 };
        vec![(Opcode::RC_FETCH_ADD, Ext::Atomic(eth), vec![1; 4])]
    }),
    ("a misaligned atomic", |s| {
        let eth = AtomicEth { va: s.memory.address + 4, rkey: s.memory.key, swap_or_add: 1, compare: 0 };
        vec![(Opcode::RC_FETCH_ADD, Ext::Atomic(eth), vec![])]
    }),
];

//= test: IBTA 9.7.4.1: message-begins-with-first-or-only, message-is-not-interrupted, atomic-is-aligned
//= test: IBTA 9.7.4.1.6: first-and-middle-are-full, only-fits-the-path-mtu, last-is-not-empty
//= test: IBTA 9.7.4.1.6: read-and-atomic-requests-are-empty, write-is-as-long-as-it-said, reth-is-2-to-the-31-at-most
//= test: IBTA 9.7.4.1: refused-request-changes-nothing
//= test: IBTA 9.7.5.2: invalid-request-is-nakd-and-ends
//= test: IBTA 9.9.3: responder-error-ends-rc
#[test]
fn invalid_requests_are_refused_as_invalid() {
    for (what, script) in INVALID {
        let mut stage = Stage::new();
        let script = script(&stage);
        let last = script.len() as u32 - 1;
        let mut answers = Vec::new();
        for (psn, (opcode, ext, payload)) in script.into_iter().enumerate() {
            answers = stage.request(opcode, psn as u32, ext, &payload);
        }
        println!("{what}");
        assert_refused(&mut stage, &answers, last, NakCode::InvalidRequest, EventKind::QpRequestError);
        assert_eq!(stage.counter("resp_invalid_requests"), 1, "{what}");
    }
}

//= test: IBTA 9.7.4.1.5: rkey-is-good, rkey-has-bounds
//= test: IBTA 9.7.5.2.4: access-error-is-nakd-and-ends
//= test: IBTA 9.7.4.1: refused-request-changes-nothing
//= test: IBTA 9.9.3: responder-error-ends-rc
#[test]
fn bad_rkeys_and_bounds_are_access_errors() {
    let changes: &[Change] = &[
        ("an unknown key", |r| r.rkey ^= 0x1234_5600),
        ("another variant of the key", |r| r.rkey ^= 1),
        ("one byte beyond the end", |r| r.va += (1 << 16) - 3),
        ("before the start", |r| r.va -= 1),
        ("an address that wraps", |r| r.va = u64::MAX - 1),
    ];
    for (what, change) in changes {
        for opcode in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
            let mut stage = Stage::new();
            let payload = if opcode == Opcode::RC_WRITE_ONLY { vec![1; 4] } else { vec![] };
            let ext = reth_at(&stage, 0, 4, *change);
            let answers = stage.request(opcode, 0, ext, &payload);
            println!("{what}, {opcode:?}");
            assert_refused(&mut stage, &answers, 0, NakCode::RemoteAccess, EventKind::QpAccessError);
        }
    }
}

//= test: IBTA 9.7.4.1.5: rkey-grants-the-operation
#[test]
fn region_without_write_access_is_refused() {
    let mut stage = Stage::new();
    let read_only = stage.host.register(64, Access::REMOTE_READ);
    let reth = Reth { va: read_only.address, rkey: read_only.key, dma_len: 4 };
    let answers = stage.request(Opcode::RC_WRITE_ONLY, 0, Ext::Reth(reth), &[1; 4]);
    assert_refused(&mut stage, &answers, 0, NakCode::RemoteAccess, EventKind::QpAccessError);
    assert_eq!(read_only.bytes(0, 64), [0; 64]);
}

//= test: IBTA 9.7.4.1.5: empty-access-checks-no-key
#[test]
fn zero_length_access_ignores_the_rkey() {
    let mut stage = Stage::new();
    let nowhere = Ext::Reth(Reth { va: 1, rkey: 2, dma_len: 0 });
    assert_eq!(stage.request(Opcode::RC_WRITE_ONLY, 0, nowhere, &[]), [Answer::ack(0)]);
    let answers = stage.request(Opcode::RC_READ_REQUEST, 1, nowhere, &[]);
    assert_eq!((answers.len(), answers[0].opcode), (1, Opcode::RC_READ_RESPONSE_ONLY));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 1, nowhere, &[]), answers, "and again");
    assert_eq!(stage.counter("duplicate_dropped"), 0);
}

//= test: IBTA 9.7.5.1: response-has-the-requests-psn, read-response-is-cut-at-the-path-mtu
//= test: IBTA 9.7.5.1: duplicate-read-is-read-again, duplicate-read-may-be-a-part
#[test]
fn duplicate_read_resumes_at_any_response_packet() {
    let mut stage = Stage::new();
    let bytes: Vec<u8> = (0..600u32).map(|i| i as u8).collect();
    stage.memory.memory.write(0, &bytes).expect("within");
    let whole = stage.request(Opcode::RC_READ_REQUEST, 0, Ext::Reth(stage.reth(0, 600)), &[]);
    let opcodes: Vec<_> = whole.iter().map(|a| (a.opcode, a.psn)).collect();
    assert_eq!(
        opcodes,
        [
            (Opcode::RC_READ_RESPONSE_FIRST, 0),
            (Opcode::RC_READ_RESPONSE_MIDDLE, 1),
            (Opcode::RC_READ_RESPONSE_LAST, 2)
        ]
    );
    assert_eq!(whole.iter().flat_map(|a| a.payload.clone()).collect::<Vec<_>>(), bytes);
    let rest = Ext::Reth(stage.reth(256, 344));
    let again = stage.request(Opcode::RC_READ_REQUEST, 1, rest, &[]);
    assert_eq!(again.iter().map(|a| a.psn).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(again.iter().flat_map(|a| a.payload.clone()).collect::<Vec<_>>(), bytes[256..]);
    assert_eq!((stage.counter("duplicate_request"), stage.counter("duplicate_dropped")), (1, 0));
    // A READ with this PSN and another rkey, address or length is not a duplicate.
    for wrong in [stage.reth(257, 343), stage.reth(256, 345), Reth { rkey: 1, ..stage.reth(256, 344) }] {
        assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 1, Ext::Reth(wrong), &[]), []);
    }
    assert_eq!(stage.state(), QpState::Rts, "a wrong duplicate is dropped, not refused");
}

//= test: IBTA 9.7.5.2.4: read-that-fails-later-is-nakd
#[test]
fn read_of_deregistered_memory_is_nakd() {
    let mut stage = Stage::new();
    // The region is deregistered after the READ was executed and before its response leaves.
    let reth = Ext::Reth(stage.reth(0, 4096));
    let index = stage.memory.index;
    let bth = Bth {
        opcode: Opcode::RC_READ_REQUEST,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(0),
        ack_req: true,
        ..Bth::default()
    };
    stage.send(&bth, &reth, &[]);
    stage.host.worker.take_in(stage.now);
    stage.host.call(stage.now, roxie::nic::Command::DeregisterMemory(index)).expect("the region exists");
    let answers = stage.answers();
    assert_eq!(answers, [Answer::nak(0, NakCode::RemoteAccess)]);
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 9.6.1: transport-version-is-zero, opcode-is-of-the-qps-service, destination-qp-is-there, pkey-matches
//= test: IBTA 10.9.3: limited-member-is-a-member
#[test]
fn foreign_packets_are_dropped_and_counted() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 100);
    let good =
        Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: stage.qp.handle.qpn, ack_req: true, ..Bth::default() };
    let unknown = roxie::verbs::Qpn::new(stage.qp.handle.qpn.value() ^ 1);
    let cases = [
        ("rx_bad_pkey", Bth { pkey: 0x8001, ..good }),
        ("rx_wrong_service", Bth { opcode: Opcode::UC_SEND_ONLY, ..good }),
        ("rx_unknown_qp", Bth { dest_qp: unknown, ..good }),
        ("rx_malformed", Bth { tver: 1, ..good }),
    ];
    for (counter, bth) in cases {
        stage.send(&bth, &Ext::None, &[1; 4]);
        assert_eq!(stage.answers(), [], "{counter}");
        assert_eq!(stage.counter(counter), 1, "{counter}");
    }
    assert_eq!(stage.statuses(), []);
    stage.send(&Bth { pkey: 0x7fff, ..good }, &Ext::None, &[1; 4]);
    assert_eq!(stage.answers(), [Answer::ack(0)], "a limited member is a member");
}

//= test: IBTA 9.6.1: source-is-the-peer
#[test]
fn packet_from_another_address_is_dropped() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 100);
    let unknown_peer = crate::transport::template(3);
    let peer = std::mem::replace(&mut stage.template, unknown_peer);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]), []);
    assert_eq!(stage.counter("rx_wrong_source"), 1);
    stage.template = peer;
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]), [Answer::ack(0)]);
}

//= test: IBTA 9.7.4.1: responder-resources-suffice
#[test]
fn reads_beyond_max_dest_rd_atomic_are_refused() {
    let mut stage = Stage::new();
    // Five requests arrive before any response leaves; `max_dest_rd_atomic` is 4.
    for psn in 0..5 {
        let bth = Bth {
            opcode: Opcode::RC_READ_REQUEST,
            dest_qp: stage.qp.handle.qpn,
            psn: Psn::new(psn),
            ..Bth::default()
        };
        let ext = Ext::Reth(stage.reth(0, 8));
        stage.send(&bth, &ext, &[]);
    }
    let answers = stage.answers();
    let psns: Vec<_> = answers.iter().map(|answer| answer.psn).collect();
    assert_eq!(psns, [0, 1, 2, 3, 4], "the four are answered");
    assert_eq!(answers[4], Answer::nak(4, NakCode::InvalidRequest));
    assert_eq!(stage.state(), QpState::Err);
}

#[test]
fn duplicate_response_gives_way_to_new_reads() {
    let mut stage = Stage::new();
    let read = |stage: &Stage, psn: u32| {
        let (opcode, dest_qp) = (Opcode::RC_READ_REQUEST, stage.qp.handle.qpn);
        (Bth { opcode, dest_qp, psn: Psn::new(psn), ..Bth::default() }, Ext::Reth(stage.reth(0, 8)))
    };
    let (bth, ext) = read(&stage, 0);
    stage.send(&bth, &ext, &[]);
    assert_eq!(stage.answers().len(), 1);
    // In one burst: a late duplicate of the first READ, and four new READs, as many as `max_dest_rd_atomic`.
    for psn in 0..5 {
        let (bth, ext) = read(&stage, psn);
        stage.send(&bth, &ext, &[]);
    }
    let answered: Vec<_> = stage.answers().iter().map(|a| (a.opcode, a.psn)).collect();
    assert_eq!(answered, [1, 2, 3, 4].map(|psn| (Opcode::RC_READ_RESPONSE_ONLY, psn)));
    assert_eq!(stage.state(), QpState::Rts);
}

//= test: IBTA 9.7.4.1.5: write-is-checked-as-a-whole
#[test]
fn range_is_checked_at_the_first_packet() {
    // The first packet lies inside the region, the second does not. A length of 2^31 is valid only in a region of that
    // size.
    for (offset, dma_len) in [((1 << 16) - 256, 257), (0, 1 << 31)] {
        for (opcode, payload) in [(Opcode::RC_WRITE_FIRST, vec![1; MTU]), (Opcode::RC_READ_REQUEST, vec![])] {
            let mut stage = Stage::new();
            let reth = Ext::Reth(stage.reth(offset, dma_len));
            let answers = stage.request(opcode, 0, reth, &payload);
            println!("{opcode:?} of {dma_len} bytes");
            assert_refused(&mut stage, &answers, 0, NakCode::RemoteAccess, EventKind::QpAccessError);
            assert_eq!(stage.counter("rx_read_requests"), 0);
        }
    }
}

//= test: IBTA 9.7.4.1: operation-is-enabled
#[test]
fn qp_access_flags_override_the_regions() {
    let atomic =
        |s: &Stage| AtomicEth { va: s.memory.address, rkey: s.memory.key, swap_or_add: 1, compare: 0 };
    type Request = fn(&Stage) -> Ext;
    let cases: [(Access, Opcode, Request, usize); 3] = [
        (Access::REMOTE_WRITE, Opcode::RC_WRITE_ONLY, |s| Ext::Reth(s.reth(0, 4)), 4),
        (Access::REMOTE_READ, Opcode::RC_READ_REQUEST, |s| Ext::Reth(s.reth(0, 4)), 0),
        (Access::REMOTE_ATOMIC, Opcode::RC_FETCH_ADD, |_| Ext::None, 0),
    ];
    for (right, opcode, ext, length) in cases {
        let mut stage = Stage::with(Setup { access: Setup::default().access - right, ..Setup::default() });
        let ext = if right == Access::REMOTE_ATOMIC { Ext::Atomic(atomic(&stage)) } else { ext(&stage) };
        let answers = stage.request(opcode, 0, ext, &vec![1; length]);
        println!("{opcode:?}");
        assert_refused(&mut stage, &answers, 0, NakCode::InvalidRequest, EventKind::QpRequestError);
    }
}

//= test: IBTA 9.7.5.2.4: read-that-fails-later-is-nakd
#[test]
fn nak_of_aborted_read_has_the_next_psn() {
    let mut stage = Stage::new();
    let bth = Bth { opcode: Opcode::RC_READ_REQUEST, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    let reth = Ext::Reth(stage.reth(0, 1 << 16));
    stage.send(&bth, &reth, &[]);
    // One pass sends a part of the 256 packets.
    stage.host.worker.poll(stage.now);
    let index = stage.memory.index;
    stage.host.call(stage.now, roxie::nic::Command::DeregisterMemory(index)).expect("the region exists");
    let mut answers = stage.answers();
    let last = answers.pop().expect("an answer");
    assert!((1..256).contains(&answers.len()), "{} packets left before", answers.len());
    assert!(answers.iter().all(|a| a.opcode != Opcode::RC_READ_RESPONSE_LAST));
    assert_eq!(last, Answer::nak(answers.len() as u32, NakCode::RemoteAccess));
}

#[test]
fn unrequested_acks_are_sent_every_64_packets() {
    let mut stage = Stage::new();
    let reth = stage.reth(0, 1 << 16);
    let dest_qp = stage.qp.handle.qpn;
    let mut answered = Vec::new();
    for psn in 0..200 {
        let opcode = if psn == 0 { Opcode::RC_WRITE_FIRST } else { Opcode::RC_WRITE_MIDDLE };
        let ext = if psn == 0 { Ext::Reth(reth) } else { Ext::None };
        let bth = Bth { opcode, dest_qp, psn: Psn::new(psn), ..Bth::default() };
        stage.send(&bth, &ext, &[1; MTU]);
        answered.extend(stage.answers());
    }
    assert_eq!(answered, [63, 127, 191].map(Answer::ack));
}

//= test: IBTA 9.7.5.1: read-response-acknowledges-what-is-before
#[test]
fn read_response_acknowledges_earlier_requests() {
    let mut stage = Stage::new();
    let (ext, dest_qp) = (Ext::Reth(stage.reth(0, 4)), stage.qp.handle.qpn);
    let write = |stage: &mut Stage, psn| {
        let bth = Bth { opcode: Opcode::RC_WRITE_ONLY, dest_qp, psn: Psn::new(psn), ..Bth::default() };
        stage.send(&bth, &ext, &[1; 4]);
        stage.answers()
    };
    // One packet fewer than the interval of unrequested ACKs.
    assert!((0..63).all(|psn| write(&mut stage, psn).is_empty()));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 63, ext, &[]).len(), 1);
    assert!((64..127).all(|psn| write(&mut stage, psn).is_empty()), "the count restarts at the READ");
    assert_eq!(write(&mut stage, 127), [Answer::ack(127)]);
}

//= test: IBTA 9.7.7.1: msn-counts-messages
#[test]
fn msn_counts_messages() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 300));
    let eth = AtomicEth { va: stage.memory.address, rkey: stage.memory.key, swap_or_add: 1, compare: 0 };
    let script = [
        (Opcode::RC_WRITE_FIRST, reth, vec![0; MTU], 0),
        (Opcode::RC_WRITE_LAST, Ext::None, vec![0; 44], 1),
        (Opcode::RC_READ_REQUEST, Ext::Reth(stage.reth(0, 8)), vec![], 2),
        (Opcode::RC_FETCH_ADD, Ext::Atomic(eth), vec![], 3),
        (Opcode::RC_WRITE_ONLY, Ext::Reth(stage.reth(0, 0)), vec![], 4),
    ];
    for (psn, (opcode, ext, payload, msn)) in script.into_iter().enumerate() {
        assert_eq!(stage.request(opcode, psn as u32, ext, &payload).len(), 1, "{opcode:?}");
        assert_eq!(stage.msn, Some(msn), "{opcode:?}");
    }
}

#[test]
fn error_completion_of_a_receive_carries_its_qpn() {
    let mut stage = Stage::new();
    stage.receive(5, 0, 3);
    stage.receive(6, 0, 100);
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    let done: Vec<_> = stage.completions().iter().map(|wc| (wc.wr_id, wc.opcode, wc.qpn)).collect();
    let qpn = stage.qp.handle.qpn;
    assert_eq!(done, [(5, WcOpcode::Recv, qpn), (6, WcOpcode::Recv, qpn)]);
}

#[test]
fn own_requests_alternate_with_read_responses() {
    let eth = |s: &Stage| AtomicEth { va: s.memory.address, rkey: s.memory.key, swap_or_add: 1, compare: 0 };
    let sent = |opcode: Opcode, ext: fn(&Stage, AtomicEth) -> Ext, requests: u32| {
        let mut stage = Stage::new();
        for psn in 0..requests {
            let bth = Bth { opcode, dest_qp: stage.qp.handle.qpn, psn: Psn::new(psn), ..Bth::default() };
            let ext = ext(&stage, eth(&stage));
            stage.send(&bth, &ext, &[]);
        }
        stage.post(WrOpcode::Write, 8);
        stage.packets().into_iter().map(|(packet, _)| packet.bth.opcode).collect::<Vec<_>>()
    };
    let read = sent(Opcode::RC_READ_REQUEST, |s, _| Ext::Reth(s.reth(0, 600)), 1);
    let parts =
        [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST];
    assert_eq!(read, [parts[0], Opcode::RC_WRITE_ONLY, parts[1], parts[2]]);
    let atomics = sent(Opcode::RC_FETCH_ADD, |_, eth| Ext::Atomic(eth), 2);
    let answer = Opcode::RC_ATOMIC_ACKNOWLEDGE;
    assert_eq!(atomics, [answer, answer, Opcode::RC_WRITE_ONLY]);
}
