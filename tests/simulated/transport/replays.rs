//! A peer that goes back and repeats requests, in every order, and the responses that it receives.
//!
//! Responses leave in PSN order (IBTA 9.5), also to duplicates. To the peer, a response that overtakes another is an
//! implied NAK; and some peers complete a READ without data when an ACK carries its PSN.

use roxie::random::splitmix;
use roxie::time::Nanos;
use roxie::wire::{AtomicEth, Bth, Ext, NakCode, Opcode, Psn, Syndrome, rnr_timer_ns};

use crate::transport::{Answer, Stage};

const MTU: u32 = 256;

/// A request of the scripted peer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    Send,
    /// A READ with a response of this number of packets.
    Read(u32),
    Atomic,
}

impl Ask {
    fn packets(self) -> u32 {
        match self {
            Ask::Read(packets) => packets,
            Ask::Send | Ask::Atomic => 1,
        }
    }
}

/// Puts a request on the link without running the NIC. Of a READ, only the part from packet `from` on.
fn request(stage: &mut Stage, ask: Ask, first: u32, from: u32) {
    let (opcode, ext, payload): (_, _, &[u8]) = match ask {
        Ask::Send => (Opcode::RC_SEND_ONLY, Ext::None, &[1; 4]),
        Ask::Read(packets) => {
            let reth = stage.reth(u64::from(from * MTU), (packets - from) * MTU);
            (Opcode::RC_READ_REQUEST, Ext::Reth(reth), &[])
        }
        Ask::Atomic => {
            let (va, rkey) = (stage.memory.address, stage.memory.key);
            (Opcode::RC_FETCH_ADD, Ext::Atomic(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 }), &[])
        }
    };
    let psn = Psn::new(first + from);
    let bth = Bth { opcode, psn, dest_qp: stage.qp.handle.qpn, ack_req: true, ..Bth::default() };
    stage.send(&bth, &ext, payload);
}

/// Formats each packet as its kind and PSN, such as `READ+3`.
fn formatted(answers: &[Answer]) -> Vec<String> {
    let word = |answer: &Answer| match (answer.opcode, answer.syndrome) {
        (Opcode::RC_ACKNOWLEDGE, Some(Syndrome::Ack { .. })) => "ACK".to_owned(),
        (Opcode::RC_ACKNOWLEDGE, syndrome) => format!("{syndrome:?}"),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, _) => "ATOMIC".to_owned(),
        _ => "READ".to_owned(),
    };
    answers.iter().map(|answer| format!("{}+{}", word(answer), answer.psn)).collect()
}

/// A stage that has executed every request once, and the PSN of each. A repetition is a duplicate.
fn requested_before(script: &[Ask]) -> (Stage, Vec<u32>) {
    let mut stage = Stage::new();
    let mut psns = Vec::new();
    let mut psn = 0;
    for (id, it) in script.iter().enumerate() {
        stage.receive(id as u64, 1 << 15, 8);
        request(&mut stage, *it, psn, 0);
        assert_eq!(stage.answers().len(), it.packets() as usize);
        psns.push(psn);
        psn += it.packets();
    }
    stage.completions();
    (stage, psns)
}

/// rdma_rxe of Linux 6.1 completes a READ with success, and stale memory, when an ACK has its PSN.
//= test: IBTA 9.7.5.1: duplicate-ack-covers-what-is-done
//= test: IBTA 9.5: ack-follows-read-response
#[test]
fn duplicate_ack_stops_before_next_read_or_atomic() {
    for answered in [Ask::Read(1), Ask::Read(3), Ask::Atomic] {
        let (mut stage, psns) = requested_before(&[Ask::Send, answered]);
        // The peer loses both responses, and goes back to the SEND.
        request(&mut stage, Ask::Send, psns[0], 0);
        assert_eq!(formatted(&stage.answers()), ["ACK+0"], "{answered:?}");
        request(&mut stage, answered, psns[1], 0);
        let name = if answered == Ask::Atomic { "ATOMIC" } else { "READ" };
        let again: Vec<_> = (0..answered.packets()).map(|k| format!("{name}+{}", psns[1] + k)).collect();
        assert_eq!(formatted(&stage.answers()), again);
        // The two duplicates in one burst.
        request(&mut stage, Ask::Send, psns[0], 0);
        request(&mut stage, answered, psns[1], 0);
        assert_eq!(formatted(&stage.answers()), [vec!["ACK+0".to_owned()], again].concat(), "{answered:?}");
    }
    let (mut stage, psns) = requested_before(&[Ask::Send, Ask::Send, Ask::Read(2), Ask::Send, Ask::Send]);
    for (send, acknowledged) in [(0, "ACK+1"), (1, "ACK+1"), (3, "ACK+5"), (4, "ACK+5")] {
        request(&mut stage, Ask::Send, psns[send], 0);
        assert_eq!(formatted(&stage.answers()), [acknowledged], "the SEND of PSN {}", psns[send]);
    }
}

/// An ACK must not have the PSN of a READ or an atomic: such a duplicate is acknowledged with the PSN before.
#[test]
fn send_at_psn_of_read_acknowledges_no_read() {
    for answered in [Ask::Read(1), Ask::Read(3), Ask::Atomic] {
        let (mut stage, psns) = requested_before(&[Ask::Send, answered, Ask::Send]);
        for k in 0..answered.packets() {
            let answers = stage.request(Opcode::RC_SEND_ONLY, psns[1] + k, Ext::None, &[]);
            assert_eq!(formatted(&answers), ["ACK+0"], "{answered:?}, packet {k}");
        }
    }
}

/// After the duplicate's first execution, more atomics were executed than the responder remembers. The next PSN with a
/// response of its own is unknown, and the duplicate is acknowledged alone.
#[test]
fn old_duplicate_is_acknowledged_with_its_own_psn() {
    let atomics = [Ask::Atomic; 5];
    let (mut stage, psns) = requested_before(&[&[Ask::Send, Ask::Send][..], &atomics].concat());
    request(&mut stage, Ask::Send, psns[0], 0);
    assert_eq!(formatted(&stage.answers()), ["ACK+0"]);
    request(&mut stage, Ask::Send, psns[1], 0);
    assert_eq!(formatted(&stage.answers()), ["ACK+1"]);
}

/// A pending ACK keeps its PSN when a duplicate of a lower PSN arrives.
#[test]
fn late_duplicate_does_not_lower_a_pending_ack() {
    let (mut stage, psns) = requested_before(&[Ask::Send, Ask::Read(1), Ask::Send]);
    stage.receive(9, 1 << 15, 8);
    request(&mut stage, Ask::Send, 3, 0);
    request(&mut stage, Ask::Send, psns[0], 0);
    assert_eq!(formatted(&stage.answers()).last().map(String::as_str), Some("ACK+3"));
}

/// The peer goes back to the first of two READs while the second is answered for the first time.
//= test: IBTA 9.7.5.1 C9-110: duplicates-are-answered-in-psn-order
#[test]
fn repeated_read_is_answered_in_psn_order() {
    let (mut stage, _) = requested_before(&[Ask::Read(3)]);
    request(&mut stage, Ask::Read(2), 3, 0);
    request(&mut stage, Ask::Read(3), 0, 0);
    request(&mut stage, Ask::Read(2), 3, 0);
    assert_eq!(formatted(&stage.answers()), ["READ+0", "READ+1", "READ+2", "READ+3", "READ+4"]);
}

/// Repeats four requests in one burst in all 256 orders, with repetitions.
//= test: IBTA 9.7.4: responder-counts-read-responses
//= test: IBTA 9.7.5.1 C9-110: duplicates-are-answered-in-psn-order
//= test: IBTA 9.5: ack-follows-read-response
#[test]
fn duplicates_in_any_order_are_answered_in_order() {
    let script = [Ask::Read(2), Ask::Send, Ask::Atomic, Ask::Read(3)];
    for order in 0..4u32.pow(4) {
        let (mut stage, psns) = requested_before(&script);
        let order: Vec<usize> = (0..4).map(|k| (order >> (2 * k) & 3) as usize).collect();
        for at in &order {
            request(&mut stage, script[*at], psns[*at], 0);
        }
        let answers = stage.answers();
        let mut due: Vec<u32> =
            order.iter().flat_map(|at| psns[*at]..psns[*at] + script[*at].packets()).collect();
        due.sort_unstable();
        due.dedup();
        let answered: Vec<u32> = answers.iter().map(|answer| answer.psn).collect();
        assert_eq!(answered, due, "asked in the order {order:?}: {:?}", formatted(&answers));
    }
}

/// Requests a part of a READ again while its response is being sent.
//= test: IBTA 9.7.5.1 C9-110: duplicates-are-answered-in-psn-order
#[test]
fn partial_duplicate_rewinds_an_active_read_response() {
    let mut stage = Stage::new();
    let packets = 200;
    request(&mut stage, Ask::Read(packets), 0, 0);
    let before = pass(&mut stage).len() as u32;
    assert!((10..packets).contains(&before), "{before} packets have left");
    request(&mut stage, Ask::Read(packets), 0, 5);
    let answers = stage.answers();
    let psns: Vec<u32> = answers.iter().map(|answer| answer.psn).collect();
    assert_eq!(psns, (5..packets).collect::<Vec<_>>(), "from packet 5 on, though {before} had left");
}

/// Runs one pass and returns the PSNs that it sent.
fn pass(stage: &mut Stage) -> Vec<u32> {
    stage.host.worker.poll(stage.now);
    let bursts = std::iter::repeat_with(|| stage.arrived()).take_while(|burst| !burst.is_empty());
    bursts.flatten().map(|(_, psn)| psn.value()).collect()
}

/// Seeds choose which requests are repeated, whole or in part, between passes that send some of the responses. The sent
/// PSNs never go back further than the lowest requested one.
#[test]
fn responses_rewind_only_to_a_requested_psn() {
    for seed in 1..300u64 {
        let mut state = seed;
        let mut draw = |below: u64| (splitmix(&mut state) % below) as u32;
        let script: Vec<Ask> =
            (0..4).map(|_| if draw(4) == 0 { Ask::Atomic } else { Ask::Read(1 + draw(120)) }).collect();
        let (mut stage, psns) = requested_before(&script);
        let mut last: Option<u32> = None;
        for _ in 0..12 {
            let mut lowest = u32::MAX;
            for _ in 0..=draw(3) {
                let at = draw(4) as usize;
                let from = if draw(2) == 0 { 0 } else { draw(u64::from(script[at].packets())) };
                request(&mut stage, script[at], psns[at], from);
                lowest = lowest.min(psns[at] + from);
            }
            for psn in pass(&mut stage) {
                let continues = last.is_none_or(|last| psn > last) || psn >= lowest;
                assert!(continues, "seed {seed}: {psn} behind {last:?}, lowest requested is {lowest}");
                lowest = u32::MAX;
                last = Some(psn);
            }
        }
    }
}

/// After the RNR wait, the first retransmitted packet is lost. The sequence NAK spares the peer its ACK timeout.
//= test: IBTA 9.7.5.2.8: rnr-nak-is-followed-by-silence
#[test]
fn packet_ahead_after_rnr_wait_is_nakd() {
    let mut stage = Stage::new();
    let wait = Nanos(rnr_timer_ns(12));
    let rnr = || [Answer::acknowledge(0, Syndrome::RnrNak { timer: 12 })];
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), rnr());
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), [], "sent before the NAK");
    stage.now = stage.now + Nanos(wait.0 - 1);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), [], "the peer still waits");
    stage.now = stage.now + Nanos(1);
    let missing = [Answer::nak(0, NakCode::PsnSequence)];
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), missing, "the head was lost");
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 2, Ext::None, &[2]), [], "told once");
    // The cycle repeats with a new RNR NAK.
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), rnr());
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), []);
    stage.now = stage.now + wait;
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[2]), missing);
    stage.receive(3, 0, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
}
