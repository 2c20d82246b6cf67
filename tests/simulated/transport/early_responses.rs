//! Selective repeat: READ responses that come before they are due, and those that are asked for alone.

use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{QpState, RKey, SendFlags, SendWr, WcOpcode, WrOpcode};
use roxie::wire::{Aeth, Bth, Ext, Opcode, Reth, Sack, Syndrome};

use crate::transport::selective::{FULL, stage};
use crate::transport::{Answer, FIRST, Stage};

const NOTHING: [(u32, u32); 0] = [];

impl Stage {
    /// Posts a READ of `packets` packets, from the address 0x1000 on, to the region's byte `to`.
    fn read(&self, to: usize, packets: usize) {
        let wr = SendWr {
            opcode: WrOpcode::Read,
            flags: SendFlags::SIGNALED,
            remote_addr: 0x1000,
            rkey: RKey(1),
            ..SendWr::default()
        };
        let sges = [self.memory.sge(to as u64, (packets * FULL) as u32)];
        self.host.post_send(&self.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    }

    /// Returns the READ requests that leave: PSN relative to the first one, and number of packets asked for.
    fn requests(&mut self) -> Vec<(u32, u32)> {
        let of = |reth: Reth, psn: u32| {
            assert_eq!(reth.va - 0x1000, u64::from(psn) * FULL as u64, "the address belongs to the PSN");
            (psn, reth.dma_len / FULL as u32)
        };
        let packets = self.packets();
        let psns = packets.iter().map(|(packet, _)| (packet, (packet.bth.psn - FIRST.value()).value()));
        psns.filter_map(|(packet, psn)| packet.reth().map(|reth| of(reth, psn))).collect()
    }

    /// Sends a READ response full of `byte` from the peer.
    fn answer_read(&mut self, opcode: Opcode, psn: u32, byte: u8) {
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 0 };
        let ext = if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) };
        self.answer(opcode, FIRST + psn, ext, &[byte; FULL]);
        self.host.worker.poll(self.now);
    }

    /// Returns the byte with which each packet of memory begins.
    fn stored(&self, packets: usize) -> Vec<u8> {
        self.memory.bytes(0, packets * FULL).chunks(FULL).map(|packet| packet[0]).collect()
    }

    fn done(&self) -> Vec<WcOpcode> {
        self.completions().iter().map(|wc| wc.opcode).collect()
    }
}

const ONLY: Opcode = Opcode::RC_READ_RESPONSE_ONLY;
const MIDDLE: Opcode = Opcode::RC_READ_RESPONSE_MIDDLE;

#[test]
fn lost_responses_are_asked_for_alone() {
    let mut stage = stage();
    stage.read(0, 6);
    assert_eq!(stage.requests(), [(0, 6)]);
    stage.answer_read(Opcode::RC_READ_RESPONSE_FIRST, 0, 1);
    stage.answer_read(MIDDLE, 2, 3);
    assert_eq!(stage.requests(), [(1, 1)]);
    stage.answer_read(MIDDLE, 4, 5);
    assert_eq!(stage.requests(), [(3, 1)]);
    stage.answer_read(Opcode::RC_READ_RESPONSE_LAST, 5, 6);
    assert_eq!(stage.requests(), NOTHING);
    assert_eq!(stage.stored(7), [1, 0, 3, 0, 5, 6, 0]);
    stage.answer_read(ONLY, 3, 4);
    assert_eq!((stage.done(), stage.requests()), (vec![], NOTHING.to_vec()));
    stage.answer_read(ONLY, 1, 2);
    assert_eq!(stage.done(), [WcOpcode::Read]);
    assert_eq!(stage.stored(7), [1, 2, 3, 4, 5, 6, 0]);
    assert_eq!((stage.counter("early_kept"), stage.counter("retransmitted_packets")), (4, 2));
}

#[test]
fn reads_complete_in_order_behind_a_loss() {
    let mut stage = stage();
    for at in 0..4 {
        let to = at * FULL;
        let wr = SendWr {
            opcode: WrOpcode::Read,
            flags: SendFlags::SIGNALED,
            wr_id: at as u64,
            remote_addr: 0x1000 + to as u64,
            rkey: RKey(1),
            ..SendWr::default()
        };
        let sges = [stage.memory.sge(to as u64, FULL as u32)];
        stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    }
    assert_eq!(stage.requests(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    stage.answer_read(ONLY, 1, 2);
    stage.answer_read(ONLY, 3, 4);
    assert_eq!(stage.requests(), [(0, 1), (2, 1)]);
    stage.answer_read(ONLY, 0, 1);
    assert_eq!(stage.statuses().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
    stage.answer_read(ONLY, 2, 3);
    assert_eq!(stage.statuses().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(stage.stored(4), [1, 2, 3, 4]);
}

/// An acknowledgement behind a READ whose response is missing is remembered: the WRITE is not sent again.
#[test]
fn acknowledged_write_waits_for_the_read() {
    let mut stage = stage();
    stage.read(0, 2);
    stage.post(WrOpcode::Write, FULL as u32);
    stage.packets();
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 31 }, 2);
    assert_eq!(stage.requests(), [(0, 2)]);
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 31 }, 2);
    assert_eq!(stage.requests(), NOTHING);
    stage.answer_read(Opcode::RC_READ_RESPONSE_FIRST, 0, 1);
    assert_eq!(stage.done(), []);
    stage.answer_read(Opcode::RC_READ_RESPONSE_LAST, 1, 2);
    assert_eq!(stage.done(), [WcOpcode::Read, WcOpcode::Write]);
    assert_eq!(stage.wait(Nanos::from_micros(50_000)), []);
}

#[test]
fn lost_repetition_is_found_by_a_probe() {
    let mut stage = stage();
    stage.read(0, 4);
    stage.requests();
    stage.answer_read(Opcode::RC_READ_RESPONSE_FIRST, 0, 1);
    stage.answer_read(Opcode::RC_READ_RESPONSE_LAST, 3, 4);
    assert_eq!(stage.requests(), [(1, 1), (2, 1)]);
    let again = stage.wait(Nanos::from_micros(1_100));
    let psns: Vec<_> = again.iter().map(|(_, psn)| (*psn - FIRST.value()).value()).collect();
    assert_eq!(psns, [1, 2]);
    assert_eq!(stage.counter("tail_probes"), 1);
}

/// A late response of the first READ would overwrite what the second one stored.
#[test]
fn overlapping_reads_are_stored_in_order() {
    let mut stage = stage();
    stage.read(0, 2);
    stage.read(FULL, 2);
    stage.packets();
    stage.answer_read(Opcode::RC_READ_RESPONSE_FIRST, 2, 3);
    assert_eq!(stage.stored(3), [0, 0, 0]);
    assert_eq!(stage.counter("early_kept"), 0);
}

#[test]
fn wrong_early_responses_are_not_kept() {
    let mut stage = stage();
    stage.read(0, 4);
    stage.post(WrOpcode::Write, FULL as u32);
    stage.packets();
    stage.answer_read(Opcode::RC_READ_RESPONSE_FIRST, 0, 1);
    // A packet that is not full; a PSN that no READ has; one never sent.
    stage.answer(MIDDLE, FIRST + 2, Ext::None, &[3; 8]);
    stage.answer_read(ONLY, 4, 5);
    stage.answer_read(ONLY, 5, 5);
    assert_eq!((stage.counter("early_kept"), stage.stored(5)), (0, vec![1, 0, 0, 0, 0]));
    // A SACK tells nothing of responses.
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 0 };
    let sack = Sack { count: 4, latest: FIRST + 4, bitmap: 0b1110 };
    stage.answer(Opcode::RC_SELECTIVE_ACKNOWLEDGE, FIRST + 1, Ext::Sack(aeth, sack), &[]);
    stage.answer_read(MIDDLE, 1, 2);
    assert_eq!((stage.done(), stage.state()), (vec![], QpState::Rts));
}

#[test]
fn responder_sends_single_responses_again() {
    let mut stage = stage();
    for at in 0..6u8 {
        stage.memory.memory.write(u64::from(at) * FULL as u64, &[at + 1; FULL]).expect("within the region");
    }
    let whole = Ext::Reth(stage.reth(0, 6 * FULL as u32));
    assert_eq!(stage.request(Opcode::RC_READ_REQUEST, 0, whole, &[]).len(), 6);
    let mut request = |psns: &[u32]| {
        for psn in psns {
            let reth = stage.reth(u64::from(*psn) * FULL as u64, FULL as u32);
            let (opcode, dest_qp) = (Opcode::RC_READ_REQUEST, stage.qp.handle.qpn);
            let bth = Bth { opcode, dest_qp, psn: roxie::verbs::Psn::new(*psn), ..Bth::default() };
            stage.send(&bth, &Ext::Reth(reth), &[]);
        }
        let part = |it: &Answer| (it.opcode, it.psn, it.payload[0]);
        stage.answers().iter().map(part).collect::<Vec<_>>()
    };
    assert_eq!(request(&[1, 4]), [(ONLY, 1, 2), (ONLY, 4, 5)]);
    assert_eq!(request(&[5]), [(ONLY, 5, 6)]);
    assert_eq!(request(&[0, 0, 2]), [(ONLY, 0, 1), (ONLY, 2, 3)]);
    assert_eq!(stage.counter("duplicate_dropped"), 0);
}
