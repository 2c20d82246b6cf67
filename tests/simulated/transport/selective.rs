//! Selective repeat: what the responder keeps, what it asks for, and what the requester sends again.

use roxie::time::Nanos;
use roxie::verbs::{Psn, QpState, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Bth, Ext, Opcode, Reth, Sack, Syndrome};

use crate::transport::{Answer, FIRST, MTU, RETRIES, Setup, Stage, TIMEOUT};

pub(super) const FULL: usize = MTU.bytes();
const NOTHING: [u32; 0] = [];

pub(super) fn stage() -> Stage {
    Stage::with(Setup { selective: true, ..Setup::default() })
}

/// A packet that the NIC sent, as far as selective repeat is concerned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// An ACK for this PSN.
    Ack(u32),
    /// A SACK: first PSN missing, number of PSNs described, PSNs that came.
    Sack(u32, u8, Vec<u32>),
    Other(Opcode, u32),
}

impl Stage {
    /// Sends a request without AckReq and returns what the NIC sent.
    pub(super) fn hand(&mut self, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) -> Vec<Seen> {
        let bth = Bth { opcode, dest_qp: self.qp.handle.qpn, psn: Psn::new(psn), ..Bth::default() };
        self.send(&bth, &ext, payload);
        self.seen()
    }

    fn seen(&mut self) -> Vec<Seen> {
        let seen = |(packet, _): &(roxie::wire::Packet, Vec<u8>)| {
            let psn = packet.bth.psn.value();
            match (packet.bth.opcode, packet.sack()) {
                (Opcode::RC_ACKNOWLEDGE, _) => Seen::Ack(psn),
                (_, Some(sack)) => {
                    let received = (0..128).filter(|bit| sack.bitmap >> bit & 1 == 1).map(|bit| psn + bit);
                    Seen::Sack(psn, sack.count, received.collect())
                }
                (opcode, None) => Seen::Other(opcode, psn),
            }
        };
        self.packets().iter().map(seen).collect()
    }

    /// Sends a SACK from the peer: the first PSN missing, the PSNs behind it that came, and the one that came last. All
    /// relative to the first PSN that the NIC sends.
    fn sack(&mut self, missing: u32, came: &[u32], latest: u32) {
        let bits = came.iter().fold(0, |bits, psn| bits | 1u128 << (psn - missing));
        let count = latest.max(came.iter().copied().max().unwrap_or(missing)) - missing + 1;
        let sack = Sack { count: count as u8, latest: FIRST + latest, bitmap: bits };
        self.sack_as(FIRST + missing, sack);
    }

    fn sack_as(&mut self, psn: Psn, sack: Sack) {
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }.into(), msn: 0 };
        self.answer(Opcode::RC_SELECTIVE_ACKNOWLEDGE, psn, Ext::Sack(aeth, sack), &[]);
    }

    /// Runs for 1 us and returns the PSNs that leave, relative to the first one.
    fn leaves(&mut self) -> Vec<u32> {
        self.wait(Nanos(1000)).iter().map(|(_, psn)| (*psn - FIRST.value()).value()).collect()
    }

    pub(super) fn write(&mut self, opcode: Opcode, psn: u32, ext: Ext, byte: u8) -> Vec<Seen> {
        self.hand(opcode, psn, ext, &[byte; FULL])
    }
}

#[test]
pub(crate) fn early_send_packets_fill_the_receive() {
    let mut stage = stage();
    stage.receive(7, 0, 4 * FULL as u32);
    assert_eq!(stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]), []);
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 2, Ext::None, &[3; FULL]), [Seen::Sack(1, 2, vec![2])]);
    assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 3, Ext::None, &[4; 8]), [Seen::Sack(1, 3, vec![2, 3])]);
    assert_eq!(stage.completions(), [], "nothing completes before the hole is filled");
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 1, Ext::None, &[2; FULL]), [Seen::Ack(3)]);
    let wc = stage.completions()[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, WcStatus::Success, 3 * FULL as u32 + 8));
    let bytes = stage.memory.bytes(0, 3 * FULL + 8);
    assert_eq!(bytes, [vec![1; FULL], vec![2; FULL], vec![3; FULL], vec![4; 8]].concat());
    assert_eq!((stage.counter("early_kept"), stage.msn), (2, None));
}

#[test]
fn early_writes_behind_a_hole_are_kept() {
    let mut stage = stage();
    let two = Ext::Reth(stage.reth(0, 2 * FULL as u32));
    let other = Ext::Reth(stage.reth(0x1000, 2 * FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 0, two, 1), []);
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 2, other, 3), [Seen::Sack(1, 2, vec![2])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 3, Ext::None, 4), [Seen::Sack(1, 3, vec![2, 3])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 1, Ext::None, 2), [Seen::Ack(3)]);
    assert_eq!(stage.memory.bytes(0, 2 * FULL), [[1; FULL], [2; FULL]].concat());
    assert_eq!(stage.memory.bytes(0x1000, 2 * FULL), [[3; FULL], [4; FULL]].concat());
    assert_eq!(stage.counter("rx_write_requests"), 2);
}

#[test]
fn unplaceable_early_packets_are_asked_for_again() {
    let mut stage = stage();
    stage.receive(1, 0, 8);
    stage.receive(2, 64, 8);
    // A SEND behind a hole: which receive it takes is unknown.
    assert_eq!(stage.hand(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2; 8]), [Seen::Sack(0, 2, vec![])]);
    let read = Ext::Reth(stage.reth(0, 8));
    assert_eq!(stage.hand(Opcode::RC_READ_REQUEST, 2, read, &[]), [Seen::Sack(0, 3, vec![])]);
    let imm = Ext::RethImm(stage.reth(0x100, 8), 5);
    assert_eq!(stage.hand(Opcode::RC_WRITE_ONLY_IMM, 3, imm, &[1; 8]), [Seen::Sack(0, 4, vec![])]);
    assert_eq!(stage.hand(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]), [Seen::Sack(1, 3, vec![])]);
    assert_eq!(stage.hand(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2; 8]), [Seen::Sack(2, 2, vec![])]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(stage.counter("early_kept"), 0);
}

#[test]
pub(crate) fn wide_gap_hides_the_end_of_a_send() {
    let mut stage = stage();
    stage.receive(1, 0, 0x1000);
    stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]);
    // PSNs 1 and 2 are missing: they may end this SEND and begin the next.
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 3, Ext::None, &[4; FULL]), [Seen::Sack(1, 3, vec![])]);
    assert_eq!(stage.memory.bytes(2 * FULL as u64, 2 * FULL), [0; 2 * FULL], "nothing is placed");
}

#[test]
fn early_writes_beyond_the_table_are_dropped() {
    let mut stage = stage();
    for psn in 1..=8 {
        let reth = Ext::Reth(stage.reth(u64::from(psn) * 0x400, FULL as u32));
        let retained = (1..=psn.min(7)).collect();
        assert_eq!(
            stage.write(Opcode::RC_WRITE_ONLY, psn, reth, psn as u8),
            [Seen::Sack(0, psn as u8 + 1, retained)]
        );
    }
    let reth = Ext::Reth(stage.reth(0, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 0, reth, 9), [Seen::Sack(8, 1, vec![])]);
    assert_eq!(stage.memory.bytes(0x2000, FULL), [0; FULL]);
}

/// The later of two WRITEs to the same bytes stays the later one.
#[test]
fn late_write_does_not_overwrite_an_early_one() {
    let mut stage = stage();
    let reth = Ext::Reth(stage.reth(0, FULL as u32));
    let apart = Ext::Reth(stage.reth(0x800, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 1, reth, 2), [Seen::Sack(0, 2, vec![1])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 2, apart, 3), [Seen::Sack(0, 3, vec![1, 2])]);
    // The first WRITE comes late: the bytes of the second are cut out of it.
    let longer = Ext::Reth(stage.reth(0x10, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 0, longer, 1), [Seen::Ack(2)]);
    assert_eq!(stage.memory.bytes(0, FULL), [2; FULL]);
    assert_eq!(stage.memory.bytes(FULL as u64, 0x10), [1; 0x10], "what no other WRITE has is written");
    assert_eq!(stage.memory.bytes(0x800, FULL), [3; FULL]);
}

#[test]
fn early_write_without_rights_is_judged_when_due() {
    let mut stage = stage();
    let wrong = Ext::Reth(Reth { rkey: 0x1234_5678, ..stage.reth(0, FULL as u32) });
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 1, wrong, 1), [Seen::Sack(0, 2, vec![])]);
    assert_eq!(stage.state(), QpState::Rts, "an early packet is never refused");
    let good = Ext::Reth(stage.reth(0, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 0, good, 1), [Seen::Sack(1, 1, vec![])]);
    stage.write(Opcode::RC_WRITE_ONLY, 1, wrong, 1);
    assert_eq!(stage.state(), QpState::Err);
}

#[test]
fn duplicates_of_early_packets_change_nothing() {
    let mut stage = stage();
    stage.receive(1, 0, 0x1000);
    stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]);
    for _ in 0..3 {
        assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 2, Ext::None, &[3; FULL]), [Seen::Sack(1, 2, vec![2])]);
    }
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 1, Ext::None, &[2; FULL]), [Seen::Ack(2)]);
    assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 2, Ext::None, &[3; FULL]), [Seen::Ack(2)]);
    assert_eq!(stage.completions().len(), 1);
    assert_eq!(stage.counter("early_kept"), 1);
}

#[test]
fn only_missing_packets_are_sent_again() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 10 * FULL as u32);
    assert_eq!(stage.leaves(), (0..10).collect::<Vec<_>>());
    stage.sack(2, &[3, 4, 6], 6);
    assert_eq!(stage.leaves(), [2, 5]);
    assert_eq!(stage.counter("retransmitted_packets"), 2);
    // The same news cause nothing.
    stage.sack(2, &[3, 4, 6, 7], 7);
    stage.sack(2, &[3, 4, 6, 7, 8, 9], 9);
    assert_eq!(stage.leaves(), NOTHING);
    stage.acknowledge(FIRST + 9, Syndrome::Ack { credits: 31 }, 1);
    assert_eq!(stage.leaves(), NOTHING);
    assert_eq!(stage.completions().iter().map(|wc| wc.opcode).collect::<Vec<_>>(), [WcOpcode::Write]);
    assert_eq!(stage.wait(Nanos(3 * TIMEOUT.0)), []);
}

#[test]
fn lost_retransmission_is_found_by_a_later_packet() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 10 * FULL as u32);
    stage.leaves();
    stage.sack(2, &[3, 4], 4);
    assert_eq!(stage.leaves(), [2]);
    // Packets that were sent before the retransmission prove nothing.
    stage.sack(2, &[3, 4, 5, 6, 7, 8, 9], 9);
    assert_eq!(stage.leaves(), NOTHING);
    stage.post(WrOpcode::Write, FULL as u32);
    assert_eq!(stage.leaves(), [10]);
    stage.sack(2, &[3, 4, 5, 6, 7, 8, 9, 10], 10);
    assert_eq!(stage.leaves(), [2], "PSN 10 left after the retransmission and came before it");
}

/// A full queue on the way loses the oldest packet many times within microseconds. Retries count the time that this
/// lasts.
#[test]
fn oldest_packet_lost_often_costs_time() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 2 * FULL as u32);
    stage.leaves();
    let lose_again = |stage: &mut Stage, round: u32| {
        stage.post(WrOpcode::Write, FULL as u32);
        stage.leaves();
        stage.sack(0, &(1..round + 2).collect::<Vec<_>>(), round + 1);
        stage.leaves()
    };
    stage.sack(0, &[1], 1);
    assert_eq!(stage.leaves(), [0]);
    for round in 1..=3 * u32::from(RETRIES) {
        assert_eq!(lose_again(&mut stage, round), [0], "round {round}");
    }
    assert_eq!(stage.state(), QpState::Rts);
    let (begin, mut round) = (stage.now, 3 * u32::from(RETRIES));
    while stage.state() == QpState::Rts {
        round += 1;
        assert!(round < 100, "the retries do not end");
        lose_again(&mut stage, round);
        stage.wait(Nanos(TIMEOUT.0 / 8));
    }
    let lasted = (stage.now - begin).0 / (TIMEOUT.0 / 8);
    let all = 8 * u64::from(RETRIES + 1);
    assert!((all..all + 2).contains(&lasted), "{lasted} eighths of the timeout");
    assert_eq!(stage.statuses()[0], (0, WcStatus::RetryExc));
    assert_eq!(stage.counter("local_ack_timeout_err"), 0);
}

#[test]
fn silence_sends_the_last_packet_again() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 3 * FULL as u32);
    assert_eq!(stage.leaves(), [0, 1, 2]);
    // Long before the ACK timeout.
    let probes = stage.wait(Nanos(TIMEOUT.0 / 4));
    assert!((1..4).contains(&probes.len()), "{probes:?}: each silence is longer than the one before");
    assert!(probes.iter().all(|(_, psn)| *psn == FIRST + 2), "{probes:?}");
    stage.sack(0, &[2], 2);
    assert_eq!(stage.leaves(), [0, 1]);
    assert_eq!(stage.counter("local_ack_timeout_err"), 0);
    assert!(stage.counter("tail_probes") > 0);
}

/// The first probe follows four round trips, each further one twice the time before, and progress begins anew.
#[test]
fn probe_follows_four_round_trips() {
    let silent = |stage: &mut Stage, us: u64| {
        let sent = stage.wait(Nanos::from_micros(us));
        assert_eq!(sent, [], "in {us} us");
    };
    let probes = |stage: &mut Stage, us: u64| {
        let sent: Vec<_> = stage.wait(Nanos::from_micros(us)).iter().map(|(_, psn)| *psn).collect();
        assert_eq!(sent.len(), 1, "in {us} us: {sent:?}");
    };
    let mut stage = stage();
    stage.post(WrOpcode::Write, 3 * FULL as u32);
    stage.leaves();
    stage.sack(0, &[1, 2], 2);
    assert_eq!(stage.leaves(), [0]);
    // A round trip of 400 us.
    silent(&mut stage, 399);
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 31 }, 1);
    stage.post(WrOpcode::Write, FULL as u32);
    assert_eq!(stage.leaves(), [3]);
    silent(&mut stage, 1_500);
    probes(&mut stage, 200);
    silent(&mut stage, 2_900);
    probes(&mut stage, 300);
    // A sample of 0.1 to 0.4 ms: (7 x 400 us + sample) / 8.
    stage.acknowledge(FIRST + 3, Syndrome::Ack { credits: 31 }, 2);
    stage.post(WrOpcode::Write, FULL as u32);
    assert_eq!(stage.leaves(), [4]);
    silent(&mut stage, 1_400);
    probes(&mut stage, 300);
}

#[test]
fn timeout_spares_what_came() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 4 * FULL as u32);
    stage.leaves();
    stage.sack(0, &[2], 2);
    assert_eq!(stage.leaves(), [0, 1]);
    let mut last = Vec::new();
    while stage.counter("local_ack_timeout_err") == 0 {
        last = stage.wait(Nanos::from_micros(100));
    }
    let again: Vec<_> = last.iter().map(|(_, psn)| (*psn - FIRST.value()).value()).collect();
    assert_eq!(again, [0, 1, 3]);
}

#[test]
fn probes_end_at_the_ack_timeout() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, FULL as u32);
    stage.wait(Nanos(20 * TIMEOUT.0));
    assert_eq!(stage.statuses(), [(0, WcStatus::RetryExc)]);
    assert_eq!(stage.counter("local_ack_timeout_err"), u64::from(RETRIES) + 1);
}

#[test]
fn packets_the_peer_dropped_are_sent_again() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 6 * FULL as u32);
    stage.leaves();
    stage.sack(0, &[1, 2, 3], 3);
    assert_eq!(stage.leaves(), [0]);
    stage.sack(1, &[3], 0);
    assert_eq!(stage.leaves(), [1, 2], "PSN 1 and 2 had come, and are asked for");
}

#[test]
fn invalid_sacks_are_dropped() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 6 * FULL as u32);
    stage.leaves();
    let sack = |count, latest: u32, bitmap| Sack { count, latest: FIRST + latest, bitmap };
    // Beyond what was sent; a latest packet never sent; the first missing one came; bits beyond the count; no count.
    let invalid =
        [sack(7, 5, 2), sack(3, 6, 2), sack(3, 2, 1), sack(2, 1, 4), sack(0, 1, 0), sack(200, 1, 2)];
    for sack in invalid {
        stage.sack_as(FIRST, sack);
    }
    stage.sack_as(FIRST + 6, sack(1, 5, 0));
    stage.sack_as(FIRST - 3, sack(2, 1, 2));
    assert_eq!(stage.leaves(), NOTHING);
    assert_eq!(stage.completions(), []);
    assert_eq!(stage.counter("rcvd_sacks"), 0);
    stage.acknowledge(FIRST + 5, Syndrome::Ack { credits: 31 }, 1);
    stage.leaves();
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
}

/// A hostile peer repeats and contradicts itself: each packet leaves a bounded number of times without progress.
#[test]
fn flood_of_sacks_causes_few_retransmissions() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, 100 * FULL as u32);
    stage.leaves();
    let mut again = 0;
    for round in 0..2000u32 {
        let latest = 1 + round * 7 % 99;
        let bitmap =
            (u128::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15_5555_1234_5678_9abc) | 1 << latest) & !1;
        let count = 128 - bitmap.leading_zeros().max(28);
        let bitmap = bitmap & (u128::MAX >> (128 - count));
        stage.sack_as(FIRST, Sack { count: count as u8, latest: FIRST + latest.min(count - 1), bitmap });
        again += stage.leaves().len();
    }
    let bound = 2000 * 100;
    assert!(again < bound / 2, "{again} packets were sent again");
    assert!(matches!(stage.state(), QpState::Rts | QpState::Err));
}

/// SACKs at random, coherent and not, none of which acknowledges the last packet: the WRITE does not complete, or its
/// retries are used up, and each packet leaves again a few times only.
#[test]
fn random_sacks_cause_bounded_harm() {
    const PACKETS: u32 = 60;
    const SACKS: u32 = 400;
    let mut most = 0;
    for seed in 0..60 {
        let mut random = seed;
        let mut below = |bound: u32| (roxie::random::splitmix(&mut random) % u64::from(bound)) as u32;
        let mut stage = stage();
        stage.post(WrOpcode::Write, PACKETS * FULL as u32);
        stage.leaves();
        let mut again = 0;
        for _ in 0..SACKS {
            // Half of them describe packets that were sent, as a peer would.
            let coherent = below(2) == 0;
            let missing = below(if coherent { PACKETS / 2 } else { PACKETS });
            let sent = if coherent { PACKETS - missing } else { 130 };
            let count = 1 + below(sent);
            let bits = u128::from(roxie::random::splitmix(&mut u64::from(below(u32::MAX)))) << below(64);
            let bitmap = if coherent { bits & !1 & (u128::MAX >> (128 - count)) } else { bits };
            let latest = FIRST + missing + below(sent);
            stage.sack_as(FIRST + missing, Sack { count: count as u8, latest, bitmap });
            again += stage.leaves().len();
        }
        assert!(stage.counter("rcvd_sacks") > 0, "seed {seed}: none is coherent");
        let statuses = stage.statuses();
        if stage.state() == QpState::Rts {
            assert_eq!(statuses, [], "seed {seed}");
            stage.acknowledge(FIRST + (PACKETS - 1), Syndrome::Ack { credits: 31 }, 1);
            stage.leaves();
            assert_eq!(stage.statuses(), [(0, WcStatus::Success)], "seed {seed}");
        } else {
            assert_eq!(statuses, [(0, WcStatus::RetryExc)], "seed {seed}");
        }
        most = most.max(again);
    }
    // As many sequence NAKs would send all packets again, each.
    let bound = (SACKS * PACKETS / 20) as usize;
    assert!(most <= bound, "{most} packets were sent again, {bound} at most");
}

#[test]
fn sack_without_agreement_is_dropped() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 6 * FULL as u32);
    stage.leaves();
    stage.sack(0, &[1], 1);
    assert_eq!(stage.leaves(), NOTHING);
    assert_eq!(stage.counter("rx_wrong_service"), 1);
    assert_eq!(
        stage.request(Opcode::RC_SEND_ONLY, 3, Ext::None, &[1; 8]),
        [Answer::nak(0, roxie::wire::NakCode::PsnSequence)]
    );
}

#[test]
fn read_behind_a_hole_is_executed_in_order() {
    let mut stage = stage();
    stage.memory.memory.write(0, &[5; 8]).expect("within the region");
    let read = Ext::Reth(stage.reth(0, 8));
    assert_eq!(stage.hand(Opcode::RC_READ_REQUEST, 1, read, &[]), [Seen::Sack(0, 2, vec![])]);
    let reth = Ext::Reth(stage.reth(0, 8));
    assert_eq!(stage.hand(Opcode::RC_WRITE_ONLY, 0, reth, &[6; 8]), [Seen::Sack(1, 1, vec![])]);
    let answers = stage.request(Opcode::RC_READ_REQUEST, 1, read, &[]);
    assert_eq!(answers[0].payload, [6; 8]);
}

#[test]
fn requester_sends_a_read_again_as_a_whole() {
    let mut stage = stage();
    stage.post(WrOpcode::Write, FULL as u32);
    stage.post(WrOpcode::Read, 4 * FULL as u32);
    stage.post(WrOpcode::Write, FULL as u32);
    assert_eq!(stage.leaves(), [0, 1, 5]);
    stage.sack(0, &[], 5);
    assert_eq!(stage.leaves(), [0, 1, 5]);
    // The retransmission of PSN 5 came, which left after that of PSN 0: so all three are asked for once more.
    stage.sack(0, &[], 5);
    assert_eq!(stage.leaves(), [0, 1, 5]);
}
