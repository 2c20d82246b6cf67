//! Timers and retry counters of a requester, measured (9.7.6, 9.7.5.2.8).

use std::time::Duration;

use roxie_wire::{Opcode, rnr_timer_ns};

use crate::bench::{Bench, Setup};
use crate::check::{Chapter, Check, Role};
use crate::packet::Seen;
use crate::service::Service;
use crate::verdict::{Script, must};

/// Status of a request with exhausted retries (`IBV_WC_RETRY_EXC_ERR`).
const RETRY_EXCEEDED: u32 = 12;
/// Status of a request with exhausted RNR retries (`IBV_WC_RNR_RETRY_EXC_ERR`).
const RNR_RETRY_EXCEEDED: u32 = 13;
/// Time that a busy machine may add to a measured one.
const SLACK: Duration = Duration::from_millis(150);

/// Returns the time of an ACK timeout code: 4.096 us times 2 to the code.
fn timeout(code: u32) -> Duration {
    Duration::from_nanos(4096 << code)
}

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Timers and retries", Service::Rc, Role::Requester);
    timeouts(&mut chapter);
    retransmissions(&mut chapter);
    timeouts_behind_naks(&mut chapter);
    rnr_waits(&mut chapter);
    chapter.done()
}

/// ACK timeouts, and the retry counter.
fn timeouts(chapter: &mut Chapter) {
    for code in [14u8, 15, 16] {
        chapter.add(
            format!("rc/timeout/code_{code}"),
            "9.7.6.1.3",
            format!("the agent posts a SEND with ACK timeout code {code}; the bench is silent"),
            "the request is sent again after the timeout T at the earliest, and 4 T at the latest",
            move |bench| retransmission(bench, code),
        );
    }
    for retry in [0u8, 1, 3] {
        let check = chapter.add(
            format!("rc/timeout/retry_count_{retry}"),
            "9.9.2.4.1",
            format!("the agent posts a SEND with retry count {retry}; the bench is silent"),
            "the request is sent once and then as often as the retry count; then it completes with a retry error",
            move |bench| {
                let rc = bench.connect(&Setup { timeout: 12, retry, ..Setup::new(Service::Rc) })?;
                bench.post(&rc, "op=send off=0 len=8 id=7")?;
                let limit = (timeout(12) * 4 + SLACK) * (u32::from(retry) + 1);
                let done = bench.completions(&rc, 1, limit)?;
                must(done.len() == 1 && done[0].status == RETRY_EXCEEDED, || format!("completed as {done:?}"))?;
                let again = vec!["SEND_ONLY+0 len 8"; usize::from(retry) + 1];
                bench.expect_requests(&rc, &again)?;
                bench.in_error(&rc)
            },
        );
        check.is_short = retry == 1;
    }
    chapter.add(
        "rc/timeout/progress_resets_the_counter",
        "9.9.2.4.1",
        "the agent posts two SENDs with retry count 1; the bench acknowledges the first after its repetition",
        "an acknowledgement resets the retry counter: the second SEND is sent again too",
        |bench| {
            let rc = bench.connect(&Setup { timeout: 13, retry: 1, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, "op=send off=0 len=8 n=2 id=7")?;
            let first = bench.within_time(&rc, 4, timeout(13) * 4 + SLACK);
            must(first.len() == 4, || format!("{} packets came, expected two SENDs twice", first.len()))?;
            bench.send(&rc.ack(0, 1))?;
            let second = bench.within_time(&rc, 1, timeout(13) * 4 + SLACK);
            let words: Vec<String> = second.iter().map(|seen| seen.words(rc.peer_first)).collect();
            must(words == ["SEND_ONLY+1 len 8"], || {
                format!("expected the second SEND again, came {}", words.join(", "))
            })?;
            bench.send(&rc.ack(1, 2))?;
            bench.completes(&rc, &[(7, 0), (8, 0)]).map(drop)
        },
    );
}

/// Packets that are sent again after the ACK timeout.
fn retransmissions(chapter: &mut Chapter) {
    chapter.add(
        "rc/timeout/again_is_the_same",
        "9.7.1",
        "the agent posts a SEND with the solicited flag; the bench is silent",
        "what is sent again has the PSN, the header and the bytes that it had",
        |bench| {
            let rc = bench.connect(&Setup { timeout: 13, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, "op=send off=0 len=64 flags=se id=7")?;
            let came = bench.within_time(&rc, 2, timeout(13) * 4 + SLACK);
            must(came.len() == 2, || format!("{} packets came, expected the SEND twice", came.len()))?;
            let transport = |seen: &Seen| {
                let packet = &seen.packet;
                seen.frame.get(packet.bth_offset..packet.icrc_offset).map(<[u8]>::to_vec)
            };
            must(transport(&came[0]) == transport(&came[1]), || {
                format!("{} was sent again as {}", came[0].packet, came[1].packet)
            })?;
            bench.send(&rc.ack(0, 1))?;
            bench.completes(&rc, &[(7, 0)]).map(drop)
        },
    );
    chapter.add(
        "rc/timeout/none",
        "9.7.6.1.3",
        "the agent posts a SEND with ACK timeout code 0; the bench is silent for 300 ms",
        "code 0 disables the timeout: the request is not sent again",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, "op=send off=0 len=8 id=7")?;
            bench.expect_requests(&rc, &["SEND_ONLY+0 len 8"])?;
            let more = bench.listen(&rc, Duration::from_millis(300));
            must(more.is_empty(), || format!("{} packets came", more.len()))?;
            bench.send(&rc.ack(0, 1))?;
            bench.completes(&rc, &[(7, 0)]).map(drop)
        },
    );
    chapter.add(
        "rc/timeout/repeated_read",
        "9.7.6",
        "the agent posts a READ; the bench is silent",
        "a READ is requested again with its PSN, address and length",
        |bench| {
            let rc = bench.connect(&Setup { timeout: 13, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, &super::requester::words("read", 64))?;
            let came = bench.within_time(&rc, 2, timeout(13) * 4 + SLACK);
            let words: Vec<String> = came.iter().map(|seen| seen.words(rc.peer_first)).collect();
            must(words == ["READ_REQUEST+0 len 0"; 2], || format!("came {}", words.join(", ")))?;
            must(came[0].packet.reth() == came[1].packet.reth(), || "the RETHs differ".into())?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[4; 64]))?;
            bench.completes(&rc, &[(7, 0)]).map(drop)
        },
    );
}

/// ACK timeouts of requests that a NAK has caused to be sent again.
fn timeouts_behind_naks(chapter: &mut Chapter) {
    for (name, syndrome) in [("sequence_nak", 0x60), ("rnr_nak", 0x20 | 1)] {
        let title = name.replace('_', " ");
        chapter.add(
            format!("rc/timeout/behind_{name}"),
            "9.7.6.1.3",
            format!("the agent posts a SEND; the bench answers by one {title}, and is silent then"),
            format!("what is sent again because of a {title} may be lost as well: it is sent again after the timeout"),
            move |bench| {
                let rc = bench.connect(&Setup { timeout: 14, ..Setup::new(Service::Rc) })?;
                bench.post(&rc, "op=send off=0 len=8 id=7")?;
                let first = bench.within_time(&rc, 1, Duration::from_secs(1));
                must(first.len() == 1, || format!("{} packets came, expected a SEND", first.len()))?;
                bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(syndrome, 0))?;
                let again = bench.within_time(&rc, 2, timeout(14) * 4 + SLACK);
                must(again.len() == 2, || {
                    format!("{} packets came behind the {title}, expected the SEND twice", again.len())
                })?;
                bench.send(&rc.ack(0, 1))?;
                bench.completes(&rc, &[(7, 0)]).map(drop)
            },
        );
    }
}

/// Waits after an RNR NAK, and the RNR retry counter.
fn rnr_waits(chapter: &mut Chapter) {
    // Code 0 is the longest wait.
    for code in [0u8, 12, 20, 24] {
        chapter.add(
            format!("rc/rnr_wait/code_{code}"),
            "9.7.5.2.8",
            format!("the agent posts a SEND; the bench answers by an RNR NAK of timer code {code}"),
            "the request is sent again when the time of the code is over, not before",
            move |bench| rnr_wait(bench, code),
        );
    }
    for retry in [0u8, 2] {
        let check = chapter.add(
            format!("rc/rnr_wait/retry_count_{retry}"),
            "9.9.2.4.1",
            format!("the agent posts a SEND with RNR retry count {retry}; the bench answers by RNR NAKs"),
            "the request is sent once and then as often as the RNR retry count; then it completes with an RNR retry error",
            move |bench| {
                let rc = bench.connect(&Setup { rnr_retry: retry, ..Setup::new(Service::Rc) })?;
                bench.post(&rc, "op=send off=0 len=8 id=7")?;
                for _ in 0..=retry {
                    bench.expect_requests(&rc, &["SEND_ONLY+0 len 8"])?;
                    bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x20 | 1, 0))?;
                }
                bench.completes(&rc, &[(7, RNR_RETRY_EXCEEDED)])?;
                bench.expect_requests(&rc, &[])?;
                bench.in_error(&rc)
            },
        );
        check.is_short = retry == 0;
    }
    chapter.add(
        "rc/rnr_wait/without_end",
        "9.9.2.4.1",
        "the agent posts a SEND with RNR retry count 7; the bench answers by ten RNR NAKs, then by an ACK",
        "an RNR retry count of 7 has no end",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, "op=send off=0 len=8 id=7")?;
            for _ in 0..10 {
                let came = bench.within_time(&rc, 1, Duration::from_secs(1));
                must(came.len() == 1, || format!("{} packets came, expected the SEND again", came.len()))?;
                bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x20 | 1, 0))?;
            }
            bench.within_time(&rc, 1, Duration::from_secs(1));
            bench.send(&rc.ack(0, 1))?;
            bench.completes(&rc, &[(7, 0)]).map(drop)
        },
    );
}

fn retransmission(bench: &mut Bench, code: u8) -> Script {
    let rc = bench.connect(&Setup { timeout: code, ..Setup::new(Service::Rc) })?;
    let time = timeout(u32::from(code));
    // The timer starts after this, and before the first packet is noticed, which may be late on a busy host.
    let start = std::time::Instant::now();
    bench.post(&rc, "op=send off=0 len=8 id=7")?;
    let came = bench.within_time(&rc, 2, time * 4 + SLACK);
    let words: Vec<String> = came.iter().map(|seen| seen.words(rc.peer_first)).collect();
    must(words == ["SEND_ONLY+0 len 8"; 2], || {
        format!("expected the SEND twice, came {}", words.join(", "))
    })?;
    let measured = came[1].at.duration_since(came[0].at);
    let least = came[1].at.duration_since(start);
    must(least >= time.mul_f64(0.9) && measured <= time * 4 + SLACK, || {
        format!("sent again after {measured:.1?}, expected {time:.1?} to {:.1?}", time * 4)
    })?;
    bench.send(&rc.ack(0, 1))?;
    bench.completes(&rc, &[(7, 0)]).map(drop)
}

fn rnr_wait(bench: &mut Bench, code: u8) -> Script {
    let rc = bench.rc()?;
    let time = Duration::from_nanos(rnr_timer_ns(code));
    bench.post(&rc, "op=send off=0 len=8 id=7")?;
    let first = bench.within_time(&rc, 1, Duration::from_secs(1));
    must(first.len() == 1, || format!("{} packets came, expected a SEND", first.len()))?;
    // Before the NAK leaves: on a busy host, the bench may run again long after it.
    let start = std::time::Instant::now();
    bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x20 | code, 0))?;
    let again = bench.within_time(&rc, 1, time * 4 + SLACK);
    must(again.len() == 1, || format!("{} packets came, expected the SEND again", again.len()))?;
    let measured = again[0].at.duration_since(start);
    must(measured >= time.mul_f64(0.9) && measured <= time * 3 + SLACK, || {
        format!("sent again after {measured:.1?}, expected {time:.1?}")
    })?;
    bench.send(&rc.ack(0, 1))?;
    bench.completes(&rc, &[(7, 0)]).map(drop)
}
