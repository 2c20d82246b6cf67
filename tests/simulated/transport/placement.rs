//! ATOMIC WRITE and FLUSH, both roles (IBTA annex A19).

use roxie::port::{Port, Received};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, FlushRange, QpState, RKey, SendFlags, SendWr, WcOpcode, WcStatus, WrOpcode,
};
use roxie::wire::{Aeth, Bth, Ext, Feth, Icrc, MAX_HEADERS, NakCode, Opcode, Psn, Reth, Syndrome};
use roxie_sim::joined_ports;

use crate::transport::{Answer, FIRST, Setup, Stage};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
/// FETH: globally visible, the range of the RETH.
const GLOBAL: Feth = Feth(1);
const BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The response to ATOMIC WRITE and FLUSH: a READ response without payload.
fn done(psn: u32) -> Answer {
    let opcode = Opcode::RC_READ_RESPONSE_ONLY;
    Answer { opcode, psn, syndrome: Some(ACK), original: None, payload: Vec::new() }
}

impl Stage {
    fn atomic_write(&mut self, psn: u32, offset: u64, bytes: &[u8]) -> Vec<Answer> {
        let reth = self.reth(offset, bytes.len() as u32);
        self.request(Opcode::RC_ATOMIC_WRITE, psn, Ext::Reth(reth), bytes)
    }

    fn flush(&mut self, psn: u32, feth: Feth, reth: Reth) -> Vec<Answer> {
        self.request(Opcode::RC_FLUSH, psn, Ext::FlushReth(feth, reth), &[])
    }

    fn assert_refused(&mut self, what: &str, answers: &[Answer], code: NakCode) {
        assert_eq!(answers, [Answer::nak(0, code)], "{what}");
        assert_eq!(self.state(), QpState::Err, "{what}");
        let event = match code {
            NakCode::RemoteAccess => EventKind::QpAccessError,
            _ => EventKind::QpRequestError,
        };
        assert_eq!(self.events(), [event], "{what}");
        assert!(self.memory.bytes(0, 1 << 16).iter().all(|byte| *byte == 0), "{what}: memory was written");
    }

    /// Sends a READ response with `payload` from the peer.
    fn respond(&mut self, opcode: Opcode, psn: Psn, payload: &[u8]) {
        let aeth = Aeth { syndrome: ACK.into(), msn: 1 };
        self.answer(opcode, psn, Ext::Aeth(aeth), payload);
    }

    fn post_flush(&self, wr_id: u64, range: &FlushRange) {
        let wr = SendWr::flush(wr_id, SendFlags::SIGNALED, range);
        self.host.post_send(&self.qp, &wr, Payload::Sges(&[])).expect("room");
    }
}

const RANGE: FlushRange = FlushRange {
    rkey: RKey(7),
    address: 0x1000,
    length: 64,
    global: true,
    persistent: false,
    whole_region: false,
};

//= test: IBTA A19: atomic-write-stores-8-bytes-in-one
#[test]
fn atomic_write_stores_and_gets_an_empty_response() {
    let mut stage = Stage::new();
    assert_eq!(stage.atomic_write(0, 64, &BYTES), [done(0)]);
    assert_eq!(stage.memory.bytes(63, 10), [&[0][..], &BYTES, &[0]].concat());
    assert_eq!(stage.atomic_write(1, 72, &BYTES), [done(1)], "an ATOMIC WRITE takes one PSN");
    assert_eq!(stage.counter("rx_write_requests"), 2);
}

#[test]
fn duplicate_atomic_write_is_answered_but_not_executed() {
    let mut stage = Stage::new();
    assert_eq!(stage.atomic_write(0, 64, &BYTES), [done(0)]);
    stage.memory.memory.write(64, &[9; 8]).expect("inside");
    assert_eq!(stage.atomic_write(0, 64, &BYTES), [done(0)]);
    assert_eq!(stage.memory.bytes(64, 8), [9; 8]);
    assert_eq!(stage.counter("duplicate_request"), 1);
}

//= test: IBTA A19: atomic-write-is-8-aligned-bytes
#[test]
fn misaligned_or_missized_atomic_write_is_invalid() {
    let cases: [(&str, u64, u32, usize); 4] = [
        ("misaligned", 4, 8, 8),
        ("four bytes", 0, 4, 4),
        ("sixteen bytes", 0, 16, 16),
        ("a length that is not the payload's", 0, 16, 8),
    ];
    for (what, offset, dma_len, payload) in cases {
        let mut stage = Stage::new();
        let reth = stage.reth(offset, dma_len);
        let answers = stage.request(Opcode::RC_ATOMIC_WRITE, 0, Ext::Reth(reth), &vec![1; payload]);
        stage.assert_refused(what, &answers, NakCode::InvalidRequest);
    }
}

#[test]
fn invalid_rkey_of_atomic_write_is_refused() {
    for change in [|r: &mut Reth| r.rkey ^= 1, |r: &mut Reth| r.va += 1 << 16, |r: &mut Reth| r.va -= 8] {
        let mut stage = Stage::new();
        let mut reth = stage.reth(0, 8);
        change(&mut reth);
        let answers = stage.request(Opcode::RC_ATOMIC_WRITE, 0, Ext::Reth(reth), &BYTES);
        stage.assert_refused("ATOMIC WRITE", &answers, NakCode::RemoteAccess);
    }
}

//= test: IBTA A19: flush-follows-what-is-before-it
#[test]
fn flush_is_answered_after_earlier_writes() {
    let mut stage = Stage::new();
    let reth = stage.reth(0, 8);
    stage.request(Opcode::RC_WRITE_ONLY, 0, Ext::Reth(reth), &BYTES);
    assert_eq!(stage.flush(1, GLOBAL, reth), [done(1)]);
    assert_eq!(stage.flush(1, GLOBAL, reth), [done(1)], "a duplicate");
    let whole = Reth { va: 0, dma_len: 0, ..reth };
    assert_eq!(stage.flush(2, Feth(1 | 1 << 4), whole), [done(2)], "the whole region");
    assert_eq!(stage.counter("rx_flush_requests"), 2);
    // A FLUSH of 0 bytes checks no rkey, like a WRITE of 0 bytes.
    let nothing = Reth { va: 3, rkey: reth.rkey ^ 1, dma_len: 0 };
    assert_eq!(stage.flush(3, GLOBAL, nothing), [done(3)]);
}

//= test: IBTA A19: flush-asks-for-what-there-is
#[test]
fn unsupported_flush_is_refused() {
    type Change = fn(&mut Feth, &mut Reth);
    let cases: [(&str, NakCode, Change); 7] = [
        ("no placement", NakCode::InvalidRequest, |f, _| f.0 = 0),
        ("an unknown placement", NakCode::InvalidRequest, |f, _| f.0 = 5),
        ("an unknown selectivity", NakCode::InvalidRequest, |f, _| f.0 = 1 | 2 << 4),
        ("persistence, which the QP does not allow", NakCode::InvalidRequest, |f, _| f.0 = 2),
        ("beyond the region", NakCode::RemoteAccess, |_, r| r.dma_len = (1 << 16) + 1),
        ("a wrong key", NakCode::RemoteAccess, |_, r| r.rkey ^= 1),
        ("a wrong key for the whole region", NakCode::RemoteAccess, |f, r| (f.0, r.rkey) = (1 | 1 << 4, 1)),
    ];
    for (what, code, change) in cases {
        let mut stage = Stage::new();
        let (mut feth, mut reth) = (GLOBAL, stage.reth(0, 64));
        change(&mut feth, &mut reth);
        let answers = stage.flush(0, feth, reth);
        stage.assert_refused(what, &answers, code);
    }
}

//= test: IBTA A19: flush-asks-for-what-there-is
#[test]
fn flush_without_access_right_is_refused() {
    let mut stage = Stage::new();
    let plain = stage.host.register(64, Access::READ_WRITE);
    let reth = Reth { va: plain.address, rkey: plain.key, dma_len: 64 };
    let answers = stage.flush(0, GLOBAL, reth);
    stage.assert_refused("FLUSH", &answers, NakCode::RemoteAccess);
}

//= test: IBTA 9.7.6: only-its-response-completes-a-read
#[test]
fn atomic_write_completes_only_by_its_response() {
    for inline in [false, true] {
        let mut stage = Stage::new();
        stage.memory.memory.write(0, &BYTES).expect("inside");
        let wr = SendWr { wr_id: 4, opcode: WrOpcode::AtomicWrite, remote_addr: 0x1000, ..SendWr::default() };
        let sges = [stage.memory.sge(0, 8)];
        let payload = if inline { Payload::Inline(&BYTES) } else { Payload::Sges(&sges) };
        stage.host.post_send(&stage.qp, &wr, payload).expect("room");
        let sent = stage.answers();
        assert_eq!((sent.len(), sent[0].opcode), (1, Opcode::RC_ATOMIC_WRITE));
        assert_eq!((sent[0].psn, &sent[0].payload[..]), (FIRST.value(), &BYTES[..]));
        // An ACK implies that the response was lost: the request is sent again.
        stage.acknowledge(FIRST, ACK, 1);
        assert_eq!(stage.wait(SOON), [(Opcode::RC_ATOMIC_WRITE, FIRST)]);
        stage.respond(Opcode::RC_READ_RESPONSE_ONLY, FIRST, &[]);
        stage.wait(SOON);
        let completions = stage.completions();
        let first = &completions[0];
        assert_eq!((first.wr_id, first.status, first.opcode), (4, WcStatus::Success, WcOpcode::AtomicWrite));
    }
}

#[test]
fn atomic_write_of_wrong_length_is_not_sent() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::AtomicWrite, SendFlags::SIGNALED, 7);
    assert_eq!(stage.wait(SOON), []);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocLen)]);
}

#[test]
fn flush_carries_its_range_and_completes() {
    let mut stage = Stage::new();
    stage.post_flush(5, &FlushRange { persistent: true, whole_region: true, ..RANGE });
    stage.host.worker.poll(stage.now);
    let count = stage.peer.rx_burst(stage.now);
    assert_eq!(count, 1);
    let packet = roxie::wire::parse(&stage.peer.rx_frame(0).frame).expect("a good packet");
    assert_eq!((packet.bth.opcode, packet.bth.psn), (Opcode::RC_FLUSH, FIRST));
    assert_eq!(packet.feth(), Some(Feth(1 | 2 | 1 << 4)));
    assert_eq!(packet.reth(), Some(Reth { va: 0x1000, rkey: 7, dma_len: 64 }));
    assert!(packet.payload.is_empty() && packet.bth.ack_req);
    stage.peer.rx_release();
    stage.respond(Opcode::RC_READ_RESPONSE_ONLY, FIRST, &[]);
    stage.wait(SOON);
    let completions = stage.completions();
    let first = &completions[0];
    assert_eq!((first.wr_id, first.status, first.opcode), (5, WcStatus::Success, WcOpcode::Flush));
}

#[test]
fn invalid_flush_request_is_not_sent() {
    let cases = [
        (FlushRange { global: false, ..RANGE }, WcStatus::LocQpOp),
        (FlushRange { length: (1 << 31) + 1, ..RANGE }, WcStatus::LocLen),
    ];
    for (range, status) in cases {
        let mut stage = Stage::new();
        stage.post_flush(1, &range);
        assert_eq!(stage.wait(SOON), []);
        assert_eq!(stage.statuses(), [(1, status)]);
    }
}

#[test]
fn flush_response_with_payload_is_bad() {
    for (opcode, payload) in [(Opcode::RC_READ_RESPONSE_ONLY, 4), (Opcode::RC_READ_RESPONSE_FIRST, 256)] {
        let mut stage = Stage::new();
        stage.post_flush(1, &RANGE);
        stage.wait(SOON);
        stage.respond(opcode, FIRST, &vec![1; payload]);
        stage.wait(SOON);
        assert_eq!(stage.statuses(), [(1, WcStatus::BadResp)]);
    }
}

//= test: IBTA A19: atomic-write-and-flush-count-among-reads
#[test]
fn flush_and_atomic_write_count_against_read_limit() {
    let mut stage = Stage::new();
    for id in 0..3 {
        stage.post_flush(id, &RANGE);
    }
    stage.post_as(3, WrOpcode::AtomicWrite, SendFlags::SIGNALED, 8);
    stage.post_as(4, WrOpcode::AtomicWrite, SendFlags::SIGNALED, 8);
    let sent = stage.wait(SOON);
    assert_eq!(sent.len(), 4, "max_rd_atomic is 4: {sent:?}");
    stage.respond(Opcode::RC_READ_RESPONSE_ONLY, FIRST, &[]);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_ATOMIC_WRITE, FIRST + 4)]);
}

/// rdma_rxe of Linux 6.12 to 7.2 computes a FLUSH's ICRC over the part from the BTH on twice, and drops packets with
/// the correct ICRC.
#[test]
fn rxe_flush_icrc_is_used_only_when_configured() {
    for quirk in [false, true] {
        let mut stage = Stage::with(Setup { rxe_flush_icrc: quirk, ..Setup::default() });
        stage.post_flush(1, &RANGE);
        stage.host.worker.poll(stage.now);
        assert_eq!(stage.peer.rx_burst(stage.now), 1);
        let frame = stage.peer.rx_frame(0).frame;
        let packet = roxie::wire::parse(&frame).expect("a good packet");
        assert_eq!(packet.check_icrc(&frame) == Icrc::Ok, !quirk);
        stage.peer.rx_release();

        let reth = stage.reth(0, 8);
        let bth = Bth { opcode: Opcode::RC_FLUSH, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
        let ext = Ext::FlushReth(GLOBAL, reth);
        let mut headers = [0; MAX_HEADERS];
        let at = stage.template.write_headers(&mut headers, &bth, &ext, 0);
        let id = stage.peer.tx_alloc(stage.template.frame_len(Opcode::RC_FLUSH, 0)).expect("room");
        let mut frame = stage.peer.tx_frame(&id);
        frame.write(0, &headers[..at]);
        stage.template.seal(&mut frame);
        stage.template.seal_as_rxe(&mut frame);
        stage.peer.tx_commit(id);
        stage.peer.tx_flush(stage.now).expect("memory does not fail");
        let answers = stage.answers();
        assert_eq!(answers, if quirk { vec![done(0)] } else { vec![] });
        assert_eq!(stage.counter("rx_icrc_encapsulated"), u64::from(!quirk));
        // The correct ICRC is accepted in either setting.
        let psn = u32::from(quirk);
        assert_eq!(stage.flush(psn, GLOBAL, reth), [done(psn)]);
    }
}

/// Offset of the IPv4 identification: behind the Ethernet header and the first word of the IPv4 header.
pub(crate) const IDENTIFICATION: usize = 14 + 4;

/// Methods of a port that passes everything on to the port in its first field, except received frames and flows.
macro_rules! passed_on {
    () => {
        fn info(&self) -> &roxie::port::PortInfo {
            self.0.info()
        }
        fn rx_burst(&mut self, now: roxie::time::Nanos) -> usize {
            self.0.rx_burst(now)
        }
        fn rx_release(&mut self) {
            self.0.rx_release();
        }
        fn tx_alloc(&mut self, len: usize) -> Option<roxie::port::TxId> {
            self.0.tx_alloc(len)
        }
        fn tx_frame(&mut self, id: &roxie::port::TxId) -> roxie::frame::FrameMut<'_> {
            self.0.tx_frame(id)
        }
        fn tx_commit(&mut self, id: roxie::port::TxId) {
            self.0.tx_commit(id);
        }
        fn tx_cancel(&mut self, id: roxie::port::TxId) {
            self.0.tx_cancel(id);
        }
        fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
            self.0.counters(out);
        }
        fn tx_flush(&mut self, now: roxie::time::Nanos) -> std::io::Result<()> {
            self.0.tx_flush(now)
        }
    };
}
pub(crate) use passed_on;

/// A port that behaves like the UDP port: the IPv4 identification is hidden, and the arrival time may be known.
pub(crate) struct Sockets(pub(crate) Box<dyn Port>, pub(crate) Option<Nanos>);

impl Port for Sockets {
    passed_on!();

    fn rx_frame(&self, i: usize) -> Received<'_> {
        Received { ip_id_hidden: true, arrived: self.1, ..self.0.rx_frame(i) }
    }
}

/// Over IPv4, rdma_rxe's ICRC of a FLUSH also covers the identification, which sockets do not show.
#[test]
fn rxe_flush_icrc_works_with_hidden_identification() {
    for rxes in [false, true] {
        let (local, remote) = joined_ports(1500, None);
        let setup = Setup { rxe_flush_icrc: true, ..Setup::default() };
        let mut stage = Stage::on(setup, Box::new(Sockets(local, None)), remote);
        for (psn, id, spoiled) in [(0, 0x66d3u16, 0), (1, 0xfffe, 0), (2, 0x66d4, 1)] {
            let bth = Bth {
                opcode: Opcode::RC_FLUSH,
                dest_qp: stage.qp.handle.qpn,
                psn: Psn::new(psn),
                ..Bth::default()
            };
            let ext = Ext::FlushReth(GLOBAL, stage.reth(0, 8));
            let mut headers = [0; MAX_HEADERS];
            let at = stage.template.write_headers(&mut headers, &bth, &ext, 0);
            let slot = stage.peer.tx_alloc(stage.template.frame_len(Opcode::RC_FLUSH, 0)).expect("room");
            let mut frame = stage.peer.tx_frame(&slot);
            frame.write(0, &headers[..at]);
            frame.write(IDENTIFICATION, &id.to_be_bytes());
            stage.template.seal(&mut frame);
            if rxes {
                stage.template.seal_as_rxe(&mut frame);
            }
            frame.write(IDENTIFICATION, &[0, 0]);
            let [last] = frame.as_frame().array(at + 3).expect("the last byte of the ICRC");
            frame.write(at + 3, &[last ^ spoiled]);
            stage.peer.tx_commit(slot);
            stage.peer.tx_flush(stage.now).expect("memory does not fail");
            assert_eq!(
                stage.answers(),
                if spoiled == 0 { vec![done(psn)] } else { vec![] },
                "{rxes} {id:#x}"
            );
            assert_eq!(stage.counter("rx_icrc_encapsulated"), u64::from(spoiled));
        }
    }
}
