//! Packet sequence numbers at a responder: duplicates, gaps, the two halves of the circle, message sequence numbers
//! (9.7.1, 9.7.5).

use roxie_wire::Opcode;

use super::{AT, KINDS, Kind};
use crate::bench::{Bench, Pair, Setup};
use crate::check::{Chapter, Check, Role};
use crate::service::Service;
use crate::verdict::{Script, must};

/// PSNs of one half of the circle.
const HALF: i32 = 1 << 23;

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Packet sequence numbers", Service::Rc, Role::Responder);
    for kind in KINDS {
        in_order(&mut chapter, kind);
        out_of_order(&mut chapter, kind);
        variants(&mut chapter, kind);
    }
    for kind in KINDS.into_iter().filter(|kind| matches!(kind.name, "send_only" | "write_only")) {
        probe(&mut chapter, kind);
    }
    chapter.add(
        "rc/msn/counts_messages",
        "9.7.5.1",
        "a WRITE of two packets, each asking for an acknowledgement",
        "the message sequence number counts messages, not packets: 0 in the first acknowledgement, 1 in the second",
        |bench| {
            let mut rc = bench.rc()?;
            let first = rc.request(Opcode::RC_WRITE_FIRST).reth(rc.region.addr, rc.region.rkey, 1032);
            bench.ask(&rc, &first.data(&[7; 1024]).ack(), &["ACK+0 msn 0"])?;
            rc.advance(1);
            let last = rc.request(Opcode::RC_WRITE_LAST).data(&[8; 8]).ack();
            bench.ask(&rc, &last, &["ACK+1 msn 1"])?;
            rc.advance(1);
            bench.works(&rc, 2)
        },
    );
    chapter.add(
        "rc/nak/repeated_after_gap_again",
        "9.7.5.2.8",
        "a gap, the missing WRITE, and another gap",
        "each new gap is told once: the second causes a second sequence NAK",
        |bench| {
            let mut rc = bench.rc()?;
            bench.ask(&rc, &rc.request_at(Opcode::RC_SEND_ONLY, 2).ack(), &["NAK_PSN_SEQUENCE+0 msn 0"])?;
            bench.works(&rc, 1)?;
            rc.advance(1);
            bench.ask(&rc, &rc.request_at(Opcode::RC_SEND_ONLY, 2).ack(), &["NAK_PSN_SEQUENCE+1 msn 1"])?;
            bench.works(&rc, 2)
        },
    );
    chapter.done()
}

/// A request with the expected PSN, once and twice.
fn in_order(chapter: &mut Chapter, kind: Kind) {
    let upper = kind.name.to_uppercase();
    chapter
        .add(
            format!("rc/valid/{}", kind.name),
            "9.7.5.1",
            format!("a valid {upper}"),
            "the request is executed, and answered with its PSN and the number of messages completed",
            move |bench| {
                let rc = bench.rc()?;
                bench.receive(&rc, 64, 1)?;
                bench.ask(&rc, &(kind.craft)(&rc), &[&kind.answered(0, 1)])?;
                bench.completes(&rc, &vec![(0, 0); kind.receives]).map(drop)
            },
        )
        .needs(kind.need)
        .short();
    chapter
        .add(
            format!("rc/duplicate/{}", kind.name),
            "9.7.5.1.2",
            format!("the same {upper} twice"),
            "a duplicate is answered again and executed once",
            move |bench| {
                let rc = bench.rc()?;
                duplicate(bench, rc.clone(), &rc, kind)
            },
        )
        .needs(kind.need)
        .short();
}

/// The question of a requester that asks late for acknowledgements, as Roxie does.
fn probe(chapter: &mut Chapter, kind: Kind) {
    let upper = kind.name.to_uppercase();
    chapter.add(
        format!("rc/probe/{}", kind.name),
        "9.7.5.1.2",
        format!("a {upper}, then twice a SEND of no bytes with its PSN, while no receive is posted"),
        "a duplicate SEND is acknowledged with the last PSN executed, whatever it carries, and takes no receive",
        move |bench| {
            let mut rc = bench.rc()?;
            if kind.receives > 0 {
                bench.receive(&rc, 64, 1)?;
            }
            bench.ask(&rc, &(kind.craft)(&rc), &[&kind.answered(0, 1)])?;
            for _ in 0..2 {
                bench.ask(&rc, &rc.request(Opcode::RC_SEND_ONLY).ack(), &["ACK+0 msn 1"])?;
            }
            rc.advance(1);
            bench.works(&rc, 2)?;
            bench.completes(&rc, &vec![(0, 0); kind.receives]).map(drop)
        },
    );
}

/// A request with a PSN ahead of the expected one, or behind it.
fn out_of_order(chapter: &mut Chapter, kind: Kind) {
    let upper = kind.name.to_uppercase();
    chapter
        .add(
            format!("rc/ahead/{}", kind.name),
            "9.7.5.2.8",
            format!("a {upper} three PSNs ahead, twice, then a valid WRITE"),
            "a gap is answered by one sequence NAK of the expected PSN; what is ahead is not executed",
            move |bench| {
                let rc = bench.rc()?;
                ahead(bench, &rc, &rc, kind, 3)
            },
        )
        .needs(kind.need);
    chapter
        .add(
            format!("rc/ahead_by_half/{}", kind.name),
            "9.7.1",
            format!("a {upper} 2^23 - 1 PSNs ahead"),
            "half of all PSNs lie ahead of the expected one: the last of them causes a sequence NAK",
            move |bench| {
                let rc = bench.rc()?;
                ahead(bench, &rc, &rc, kind, HALF - 1)
            },
        )
        .needs(kind.need);
    chapter.add(
        format!("rc/behind/{}", kind.name),
        "9.7.5.1.2",
        format!("a {upper} 1000 PSNs before a WRITE that was executed"),
        "a SEND or WRITE that is behind is acknowledged with the last PSN executed; a READ or atomic that the responder no longer \
         has is dropped",
        move |bench| behind(bench, kind, 1000),
    ).needs(kind.need);
}

/// A request that asks for no acknowledgement, and one with the last PSN.
fn variants(chapter: &mut Chapter, kind: Kind) {
    let upper = kind.name.to_uppercase();
    chapter.add(
        format!("rc/without_ack_request/{}", kind.name),
        "9.7.5.1",
        format!("a {upper} that asks for no acknowledgement, then a WRITE that does"),
        "a READ or atomic is answered always; a SEND or WRITE is acknowledged, if not at once, with what follows",
        move |bench| without_ack_request(bench, kind),
    ).needs(kind.need);
    chapter
        .add(
            format!("rc/psn_wrap/{}", kind.name),
            "9.7.1",
            format!("a {upper} with PSN 0xffffff, then a WRITE with PSN 0"),
            "PSNs wrap at 24 bits",
            move |bench| {
                let mut rc = bench.connect(&Setup { first: 0x00ff_ffff, ..Setup::new(Service::Rc) })?;
                bench.receive(&rc, 64, 1)?;
                bench.ask(&rc, &(kind.craft)(&rc), &[&kind.answered(0, 1)])?;
                rc.advance(1);
                bench.works(&rc, 2)
            },
        )
        .needs(kind.need);
}

/// Sends a request twice. Its receives are posted to `queue`, which is the QP itself without a shared one.
pub(super) fn duplicate(bench: &mut Bench, mut rc: Pair, queue: &Pair, kind: Kind) -> Script {
    bench.poke(rc.region, AT, &[0; 8])?;
    bench.receive(queue, 64, 2)?;
    let request = (kind.craft)(&rc);
    let first = bench.ask(&rc, &request, &[&kind.answered(0, 1)])?;
    let again = bench.ask(&rc, &request, &[&kind.answered(0, 1)])?;
    if kind.need.is_some() {
        let original =
            |seen: &[crate::packet::Seen]| seen.first().and_then(|packet| packet.packet.atomic_ack());
        must(original(&first) == Some(0) && original(&again) == Some(0), || {
            format!("original values {:?} and {:?}, expected 0 twice", original(&first), original(&again))
        })?;
        bench.memory(rc.region, AT, &0x1234u64.to_le_bytes())?;
    }
    rc.advance(1);
    bench.works(&rc, 2)?;
    bench.completes(queue, &vec![(0, 0); kind.receives]).map(drop)
}

/// Sends a request that is `by` PSNs ahead, twice. Its receives are posted to `queue`.
pub(super) fn ahead(bench: &mut Bench, rc: &Pair, queue: &Pair, kind: Kind, by: i32) -> Script {
    bench.receive(queue, 64, 1)?;
    let request = (kind.craft)(rc);
    let psn = rc.request_at(Opcode::RC_SEND_ONLY, by).bth.psn;
    let early = request.with(|bth| bth.psn = psn);
    bench.ask(rc, &early, &["NAK_PSN_SEQUENCE+0 msn 0"])?;
    bench.ask(rc, &early, &[])?;
    bench.untouched(AT, 64)?;
    bench.works(rc, 1)?;
    bench.completes(queue, &[]).map(drop)
}

fn behind(bench: &mut Bench, kind: Kind, by: i32) -> Script {
    let mut rc = bench.rc()?;
    bench.receive(&rc, 64, 1)?;
    bench.works(&rc, 1)?;
    let psn = rc.request_at(Opcode::RC_SEND_ONLY, -by).bth.psn;
    rc.advance(1);
    let late = (kind.craft)(&rc).with(|bth| bth.psn = psn);
    let is_acknowledged = kind.answered(0, 1).starts_with("ACK");
    bench.ask(&rc, &late, if is_acknowledged { &["ACK+0 msn 1"] } else { &[] })?;
    bench.untouched(AT, 64)?;
    bench.works(&rc, 2)?;
    bench.completes(&rc, &[]).map(drop)
}

fn without_ack_request(bench: &mut Bench, kind: Kind) -> Script {
    let mut rc = bench.rc()?;
    bench.receive(&rc, 64, 1)?;
    let request = (kind.craft)(&rc).with(|bth| bth.ack_req = false);
    bench.send(&request)?;
    let came = bench.packets(&rc, usize::from(!kind.answered(0, 1).starts_with("ACK")))?;
    let words: Vec<String> = came.iter().map(|seen| seen.words(rc.first)).collect();
    let answer = kind.answered(0, 1);
    // A responder may acknowledge without being asked.
    let is_right = words == [answer.clone()] || words.is_empty() && answer.starts_with("ACK");
    must(is_right, || format!("expected {answer}, came {}", words.join(", ")))?;
    rc.advance(1);
    bench.works(&rc, 2)?;
    bench.completes(&rc, &vec![(0, 0); kind.receives]).map(drop)
}
