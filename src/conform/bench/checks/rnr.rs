//! Requests that find no receive (9.7.5.2.8).

use std::time::Duration;

use roxie_wire::{Opcode, Syndrome, rnr_timer_ns};

use crate::bench::{Bench, Setup};
use crate::check::{Chapter, Check, Role};
use crate::service::Service;
use crate::verdict::{Script, Stop, must};

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Receiver not ready", Service::Rc, Role::Responder);
    refusals(&mut chapter);
    order(&mut chapter);
    chapter.done()
}

/// RNR NAKs, and requests that are sent again.
fn refusals(chapter: &mut Chapter) {
    for code in [0, 1, 12, 20, 31] {
        chapter.add(
            format!("rc/rnr/timer_code_{code}"),
            "9.7.5.2.8",
            format!("a SEND to a QP without a receive, whose RNR timer has the code {code}"),
            "the RNR NAK carries the PSN of the request, the MSN of before and the timer code that modify_qp set",
            move |bench| {
                let rc = bench.connect(&Setup { rnr_timer: code, ..Setup::new(Service::Rc) })?;
                let came = bench.ask(&rc, &rc.send_only(&[1; 8]), &["RNR_NAK+0 msn 0"])?;
                let timer = came[0].packet.aeth().map(|aeth| aeth.kind());
                must(timer == Some(Syndrome::RnrNak { timer: code }), || {
                    format!("the syndrome is {timer:?}, expected the code {code}")
                })
            },
        );
    }
    for (name, opcode) in [
        ("send", Opcode::RC_SEND_ONLY),
        ("send_imm", Opcode::RC_SEND_ONLY_IMM),
        ("write_imm", Opcode::RC_WRITE_ONLY_IMM),
    ] {
        chapter
            .add(
                format!("rc/rnr/again/{name}"),
                "9.7.5.2.8",
                format!(
                    "a {} without a receive; then a receive is posted and the request sent again",
                    name.to_uppercase()
                ),
                "the request is refused by an RNR NAK without an effect, and executed when it is sent again",
                move |bench| again(bench, opcode),
            )
            .short();
    }
    chapter.add(
        "rc/rnr/write_takes_no_receive",
        "9.4.3",
        "a WRITE to a QP without a receive",
        "a WRITE without immediate takes no receive and completes nothing at the responder",
        |bench| {
            let rc = bench.rc()?;
            bench.works(&rc, 1)?;
            bench.completes(&rc, &[]).map(drop)
        },
    );
}

/// Packets before and behind one that gets an RNR NAK.
fn order(chapter: &mut Chapter) {
    chapter.add(
        "rc/rnr/ahead_is_silent",
        "9.7.5.2.8",
        "a SEND without a receive, and at once two requests behind it",
        "what follows a request that got an RNR NAK is dropped in silence",
        |bench| {
            let mut rc = bench.connect(&Setup { rnr_timer: 20, ..Setup::new(Service::Rc) })?;
            let send = rc.send_only(&[1; 8]);
            rc.advance(1);
            let write = rc.write_only(512, &[0xee; 8]);
            rc.advance(1);
            let next = rc.write_only(512, &[0xee; 8]);
            bench.send(&send)?;
            bench.send(&write)?;
            bench.send(&next)?;
            bench.expect(&rc, &["RNR_NAK+0 msn 0"])?;
            bench.untouched(512, 64)
        },
    );
    chapter.add(
        "rc/rnr/sequence_nak_after_wait",
        "9.7.5.2.8",
        "a SEND without a receive; after the time of the RNR NAK, a request ahead of it",
        "the responder goes back to the expected PSN, by a sequence NAK or by silence until the request is sent again",
        |bench| {
            let mut rc = bench.connect(&Setup { rnr_timer: 12, ..Setup::new(Service::Rc) })?;
            bench.ask(&rc, &rc.send_only(&[1; 8]), &["RNR_NAK+0 msn 0"])?;
            std::thread::sleep(Duration::from_nanos(rnr_timer_ns(12) * 4));
            let psn = rc.next + 1;
            bench.send(&rc.write_only(512, &[0xee; 8]).with(|bth| bth.psn = psn))?;
            let came = bench.packets(&rc, 0)?;
            let words: Vec<String> = came.iter().map(|seen| seen.words(rc.first)).collect();
            must(words.is_empty() || words == ["NAK_PSN_SEQUENCE+0 msn 0"], || {
                format!("expected a sequence NAK or nothing, came {}", words.join(", "))
            })?;
            bench.receive(&rc, 64, 1)?;
            bench.ask(&rc, &rc.send_only(&[1; 8]), &["ACK+0 msn 1"])?;
            rc.advance(1);
            bench.works(&rc, 2)
        },
    );
    chapter.add(
        "rc/rnr/in_the_last_packet",
        "9.7.5.2.8",
        "a WRITE with immediate of two packets without a receive",
        "the first packet is acknowledged, the LAST with immediate gets the RNR NAK, and is executed when sent again",
        |bench| {
            let mut rc = bench.rc()?;
            let first = rc.request(Opcode::RC_WRITE_FIRST).reth(rc.region.addr, rc.region.rkey, 1032);
            bench.ask(&rc, &first.data(&[0xee; 1024]).ack(), &["ACK+0 msn 0"])?;
            rc.advance(1);
            let last = rc.request(Opcode::RC_WRITE_LAST_IMM).word(5).data(&[0xee; 8]).ack();
            bench.ask(&rc, &last, &["RNR_NAK+1 msn 0"])?;
            bench.receive(&rc, 64, 1)?;
            bench.ask(&rc, &last, &["ACK+1 msn 1"])?;
            let done = bench.completes(&rc, &[(0, 0)])?;
            must(done[0].imm == 5 && done[0].length == 1032, || format!("the completion is {:?}", done[0]))
        },
    );
}

fn again(bench: &mut Bench, opcode: Opcode) -> Script {
    let mut rc = bench.rc()?;
    let mut request = rc.request(opcode);
    if opcode == Opcode::RC_WRITE_ONLY_IMM {
        request = request.reth(rc.region.addr, rc.region.rkey, 8);
    }
    if opcode != Opcode::RC_SEND_ONLY {
        request = request.word(0x0102_0304);
    }
    let request = request.data(b"received").ack();
    bench.ask(&rc, &request, &["RNR_NAK+0 msn 0"])?;
    bench.completes(&rc, &[])?;
    bench.receive(&rc, 64, 1)?;
    bench.ask(&rc, &request, &["ACK+0 msn 1"])?;
    let done = bench.completes(&rc, &[(0, 0)])?;
    let has_imm = opcode != Opcode::RC_SEND_ONLY;
    if done[0].length != 8 || has_imm && done[0].imm != 0x0102_0304 {
        return Err(Stop::Breaks(format!("the completion is {:?}", done[0])));
    }
    let at = if opcode == Opcode::RC_WRITE_ONLY_IMM { 0 } else { crate::bench::RECEIVES };
    bench.memory(rc.region, at, b"received")?;
    rc.advance(1);
    bench.works(&rc, 2)
}
