//! A requester's reaction to acknowledgements, NAKs and responses, right and wrong ones (9.7.5.2, 9.7.6, 9.9.2).

use roxie_wire::Opcode;

use super::requester::words;
use crate::bench::{Bench, Pair, Setup};
use crate::check::{Chapter, Check, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, must};

/// Responses to a READ of 2,056 bytes that fit no rule: name, stimulus, packets.
type WrongResponse = (&'static str, &'static str, fn(&Pair) -> Vec<Craft>);

const WRONG_RESPONSES: [WrongResponse; 5] = [
    ("first_short", "a FIRST shorter than the path MTU", |rc| {
        vec![rc.response(Opcode::RC_READ_RESPONSE_FIRST, 0).aeth(0x1f, 1).data(&[1; 512])]
    }),
    ("middle_first", "a MIDDLE without a FIRST", |rc| {
        vec![rc.response(Opcode::RC_READ_RESPONSE_MIDDLE, 0).data(&[1; 1024])]
    }),
    ("only_too_short", "an ONLY of 8 bytes", |rc| {
        vec![rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[1; 8])]
    }),
    ("last_too_long", "FIRST, MIDDLE, and a LAST of 16 bytes where 8 are left", |rc| {
        vec![
            rc.response(Opcode::RC_READ_RESPONSE_FIRST, 0).aeth(0x1f, 1).data(&[1; 1024]),
            rc.response(Opcode::RC_READ_RESPONSE_MIDDLE, 1).data(&[1; 1024]),
            rc.response(Opcode::RC_READ_RESPONSE_LAST, 2).aeth(0x1f, 1).data(&[1; 16]),
        ]
    }),
    ("atomic_answer", "an atomic's answer", |rc| {
        vec![rc.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0).aeth(0x1f, 1).word(0).word(1)]
    }),
];

/// A NAK that ends a request: name, syndrome, status of the completion (`enum ibv_wc_status`).
const FATAL: [(&str, u8, u32); 3] =
    [("invalid_request", 0x61, 9), ("remote_access", 0x62, 10), ("remote_operational", 0x63, 11)];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Responses at a requester", Service::Rc, Role::Requester);
    naks(&mut chapter);
    acknowledgements(&mut chapter);
    void_acknowledgements(&mut chapter);
    wrong_read_responses(&mut chapter);
    missing_responses(&mut chapter);
    chapter.done()
}

/// Acknowledgements that refuse a request.
fn naks(chapter: &mut Chapter) {
    for (name, syndrome, status) in FATAL {
        for op in ["send", "write", "read"] {
            let check = chapter.add(
                format!("rc/nak/{name}/{op}"),
                "9.9.2.3",
                format!("the agent posts a {op} and a SEND; the bench answers the first by NAK {}", name.replace('_', " ")),
                "the request completes with the status of the NAK, the one behind it is flushed, and the QP enters the error state",
                move |bench| {
                    let rc = bench.rc()?;
                    bench.post(&rc, &words(op, 8))?;
                    bench.post(&rc, "op=send off=64 len=8 id=8")?;
                    bench.packets(&rc, 2)?;
                    bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(syndrome, 0))?;
                    bench.completes(&rc, &[(7, status), (8, 5)])?;
                    bench.in_error(&rc)?;
                    bench.expect_requests(&rc, &[]).map(drop)
                },
            );
            check.is_short = op == "send";
        }
    }
    chapter
        .add(
            "rc/nak/sequence",
            "9.7.5.2.8",
            "the agent posts three SENDs; the bench answers by a sequence NAK of the second",
            "the first is acknowledged by it, and the others are sent again with their PSNs, once",
            |bench| {
                let rc = three_sends(bench)?;
                bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 1).aeth(0x60, 1))?;
                bench.expect_requests(&rc, &["SEND_ONLY+1 len 8", "SEND_ONLY+2 len 8"])?;
                bench.completes(&rc, &[(1, 0)])?;
                bench.send(&rc.ack(2, 3))?;
                bench.completes(&rc, &[(2, 0), (3, 0)]).map(drop)
            },
        )
        .short();
}

/// Acknowledgements that complete requests.
fn acknowledgements(chapter: &mut Chapter) {
    chapter
        .add(
            "rc/ack/coalesced",
            "9.7.5.1",
            "the agent posts three SENDs; the bench acknowledges the last",
            "one acknowledgement completes all requests before it, in order",
            |bench| {
                let rc = three_sends(bench)?;
                bench.send(&rc.ack(2, 3))?;
                bench.completes(&rc, &[(1, 0), (2, 0), (3, 0)])?;
                bench.expect_requests(&rc, &[]).map(drop)
            },
        )
        .short();
    chapter.add(
        "rc/ack/one_by_one",
        "9.7.5.1",
        "the agent posts three SENDs; the bench acknowledges the first",
        "an acknowledgement completes no request behind its PSN",
        |bench| {
            let rc = three_sends(bench)?;
            bench.send(&rc.ack(0, 1))?;
            bench.completes(&rc, &[(1, 0)])?;
            bench.settle()?;
            bench.completes(&rc, &[])?;
            bench.send(&rc.ack(2, 3))?;
            bench.completes(&rc, &[(2, 0), (3, 0)]).map(drop)
        },
    );
}

/// Acknowledgements that complete no request.
fn void_acknowledgements(chapter: &mut Chapter) {
    for (name, stimulus, ahead) in [
        ("beyond_the_last", "5 PSNs beyond the last request", 7),
        ("before_the_first", "before the first request", -1),
    ] {
        for (kind, syndrome) in [("ack", 0x1f), ("sequence_nak", 0x60), ("access_nak", 0x62)] {
            chapter.add(
                format!("rc/ghost/{kind}_{name}"),
                "9.9.2",
                format!(
                    "the agent posts three SENDs; the bench sends a {} {stimulus}",
                    kind.replace('_', " ")
                ),
                "a response whose PSN is none of an outstanding request is dropped",
                move |bench| {
                    let rc = three_sends(bench)?;
                    bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, ahead).aeth(syndrome, 9))?;
                    bench.expect_requests(&rc, &[])?;
                    bench.completes(&rc, &[])?;
                    bench.send(&rc.ack(2, 3))?;
                    bench.completes(&rc, &[(1, 0), (2, 0), (3, 0)]).map(drop)
                },
            );
        }
    }
    chapter.add(
        "rc/ack/reserved_syndrome",
        "9.7.5.2",
        "the agent posts three SENDs; the bench answers by a NAK of the reserved code 10",
        "a reserved NAK code completes nothing with success",
        |bench| {
            let rc = three_sends(bench)?;
            bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x6a, 0))?;
            bench.packets(&rc, 0)?;
            let came = bench.completions(&rc, 0, std::time::Duration::ZERO)?;
            must(came.iter().all(|wc| wc.status != 0), || format!("completed as {came:?}"))
        },
    );
    chapter.add(
        "rc/ack/void_packets",
        "9.6.1",
        "the agent posts three SENDs; the bench acknowledges them with a wrong ICRC, a wrong P_Key, a wrong version",
        "a response that is void acknowledges nothing",
        |bench| {
            let rc = three_sends(bench)?;
            bench.send(&rc.ack(2, 3).spoiled())?;
            bench.send(&rc.ack(2, 3).with(|bth| bth.pkey = 0x8001))?;
            bench.send(&rc.ack(2, 3).with(|bth| bth.tver = 1))?;
            bench.settle()?;
            bench.completes(&rc, &[])?;
            bench.send(&rc.ack(2, 3))?;
            bench.completes(&rc, &[(1, 0), (2, 0), (3, 0)]).map(drop)
        },
    );
}

/// READ responses that do not fit the request.
fn wrong_read_responses(chapter: &mut Chapter) {
    for (name, stimulus, packets) in WRONG_RESPONSES {
        chapter.add(
            format!("rc/read_response/{name}"),
            "9.9.2.4",
            format!("the agent posts a READ of 2,056 bytes; the bench answers by {stimulus}"),
            "a response that does not fit the request ends it with an error, and the QP enters the error state",
            move |bench| {
                let rc = bench.rc()?;
                bench.post(&rc, &words("read", 2056))?;
                bench.expect_requests(&rc, &["READ_REQUEST+0 len 0"])?;
                for packet in packets(&rc) {
                    bench.send(&packet)?;
                }
                let done = bench.completions(&rc, 1, std::time::Duration::from_secs(1))?;
                must(done.len() == 1 && done[0].id == 7 && done[0].status != 0, || {
                    format!("completed as {done:?}, expected an error")
                })?;
                bench.untouched(2056, 2048)?;
                bench.in_error(&rc)
            },
        );
    }
}

/// Responses that are missing, and one of another operation.
fn missing_responses(chapter: &mut Chapter) {
    chapter.add(
        "rc/read_response/gap",
        "9.7.6",
        "the agent posts a READ of three packets; the bench leaves out the second",
        "a response that is ahead is an implied NAK: the rest is requested again, from the missing packet on",
        |bench| {
            let rc = bench.connect(&Setup { timeout: 14, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, &words("read", 2056))?;
            bench.expect_requests(&rc, &["READ_REQUEST+0 len 0"])?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_FIRST, 0).aeth(0x1f, 1).data(&[1; 1024]))?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_LAST, 2).aeth(0x1f, 1).data(&[3; 8]))?;
            rest_is_requested(bench, &rc)
        },
    );
    chapter.add(
        "rc/read_response/ack_instead",
        "9.7.6",
        "the agent posts a READ and a SEND; the bench acknowledges the SEND without a response to the READ",
        "an acknowledgement behind a READ is an implied NAK of it: it completes nothing, and both are requested again",
        |bench| {
            let rc = bench.connect(&Setup { timeout: 14, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, &words("read", 8))?;
            bench.post(&rc, "op=send off=64 len=8 id=8")?;
            bench.packets(&rc, 2)?;
            bench.send(&rc.ack(1, 2))?;
            let came = bench.within_time(&rc, 2, std::time::Duration::from_secs(1));
            let again: Vec<String> = came.iter().map(|seen| seen.words(rc.peer_first)).collect();
            must(again == ["READ_REQUEST+0 len 0", "SEND_ONLY+1 len 8"], || format!("came {}", again.join(", ")))?;
            bench.completes(&rc, &[]).map(drop)
        },
    );
    chapter.add(
        "rc/read_response/of_a_send",
        "9.9.2.4",
        "the agent posts a SEND; the bench answers by a READ response",
        "a READ response to a SEND is none of its answers: the SEND does not complete with success",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, &words("send", 8))?;
            bench.expect_requests(&rc, &["SEND_ONLY+0 len 8"])?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[9; 8]))?;
            bench.settle()?;
            let done = bench.completions(&rc, 0, std::time::Duration::ZERO)?;
            must(done.iter().all(|wc| wc.status != 0), || format!("completed as {done:?}"))?;
            bench.untouched(0, 64)
        },
    );
}

/// The agent posts three SENDs, which reach the bench.
fn three_sends(bench: &mut Bench) -> Script<Pair> {
    let rc = bench.rc()?;
    bench.post(&rc, "op=send off=0 len=8 n=3 id=1")?;
    bench.expect_requests(&rc, &["SEND_ONLY+0 len 8", "SEND_ONLY+1 len 8", "SEND_ONLY+2 len 8"])?;
    Ok(rc)
}

/// Expects a READ request from the second packet on, at once or after the ACK timeout, and answers it.
fn rest_is_requested(bench: &mut Bench, rc: &Pair) -> Script {
    let came = bench.within_time(rc, 1, std::time::Duration::from_secs(1));
    let words: Vec<String> = came.iter().map(|seen| seen.words(rc.peer_first)).collect();
    must(words == ["READ_REQUEST+1 len 0"], || {
        format!("expected a READ request from the second packet on, came {}", words.join(", "))
    })?;
    let reth = came[0].packet.reth().unwrap_or_default();
    must(reth.va == super::requester::REMOTE.0 + 1024 && reth.dma_len == 1032, || {
        format!("the RETH is {reth:?}")
    })?;
    bench.send(&rc.response(Opcode::RC_READ_RESPONSE_FIRST, 1).aeth(0x1f, 1).data(&[2; 1024]))?;
    bench.send(&rc.response(Opcode::RC_READ_RESPONSE_LAST, 2).aeth(0x1f, 1).data(&[3; 8]))?;
    bench.completes(rc, &[(7, 0)])?;
    bench.memory(rc.region, 0, &[[1; 1024].as_slice(), &[2; 1024], &[3; 8]].concat())
}
