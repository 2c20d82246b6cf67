//! Connections that the connection manager establishes and ends (chapter 12), with the bench as the active side. The
//! QPs of a connection follow what both messages have agreed.

use std::time::Duration;

use roxie_wire::cm::{CmMessage, CommId, Dreq, Mra, Rej, RejReason, Req, Rtu, Stage};
use roxie_wire::{Opcode, PortSpace, Qpn, ServiceId};

use super::connection::{
    agree, called, ending, established, hears, is_rejected, messages, offered, quiet, request, say, words,
};
use super::connections::Answer;
use crate::bench::Bench;
use crate::check::{Chapter, Check, Role};
use crate::service::Service;
use crate::verdict::{Script, must};

/// Time in which a message without an answer is repeated.
const REPEATED_WITHIN: Duration = Duration::from_secs(4);
/// Code of the time that the bench's MRA asks for, 4.3 s, and a part of it.
const SERVICE_TIMEOUT: (u8, Duration) = (20, Duration::from_millis(1500));
/// Time in which a message that must not come would come.
const QUIET: Duration = Duration::from_millis(300);
/// Statuses of requests with exhausted retries and RNR retries (`enum ibv_wc_status`).
const EXCEEDED: (u32, u32) = (12, 13);

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Established connections", Service::Rc, Role::Responder);
    replies(&mut chapter);
    losses(&mut chapter);
    repetitions(&mut chapter);
    refusals(&mut chapter);
    releases(&mut chapter);
    own_releases(&mut chapter);
    chapter.done()
}

/// Adds a check whose connections end with it.
fn add<'a>(
    chapter: &'a mut Chapter,
    name: &str,
    clause: &'static str,
    stimulus: &str,
    asks: &str,
    script: fn(&mut Bench) -> Script,
) -> &'a mut Check {
    chapter.add(name, clause, stimulus, asks, move |bench| ending(bench, script))
}

/// Fields of a REP, and packets of the QP afterwards.
fn replies(chapter: &mut Chapter) {
    add(chapter,
            "cm/reply/establishes",
            "12.6.8",
            "a REQ that the agent accepts, an RTU, then a SEND in each direction",
            "the REP echoes the bench's ID and names the agent's QP; both SENDs have the starting PSNs of the REP and the REQ",
            |bench| established(bench, |_| ())?.works(bench),
        )
        .short();
    add(
        chapter,
        "cm/reply/depth",
        "12.6.8",
        "a REQ with 2 responder resources; the agent posts four READs, which are not answered",
        "the REP's initiator depth is 1 or 2, and so many READs come",
        |bench| {
            let connection = established(bench, |req| req.responder_resources = 2)?;
            let depth = connection.rep.initiator_depth;
            must((1..=2).contains(&depth), || format!("the initiator depth is {depth}"))?;
            bench.post(&connection.pair, "op=read off=0 len=8 raddr=4096 rkey=1 n=4")?;
            let expected: Vec<String> = (0..depth).map(|n| format!("READ_REQUEST+{n} len 0")).collect();
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            bench.expect_requests(&connection.pair, &expected).map(drop)
        },
    );
    add(
        chapter,
        "cm/reply/retry_count",
        "12.6.5",
        "a REQ with retry count 2; the agent posts a SEND, which is not answered",
        "the SEND is sent three times, then completes with a retry error",
        |bench| {
            let connection = established(bench, |req| {
                req.retry_count = 2;
                req.primary_path.local_ack_timeout = 12;
            })?;
            bench.post(&connection.pair, "op=send off=0 len=8 id=7")?;
            let done = bench.completions(&connection.pair, 1, REPEATED_WITHIN)?;
            must(done.len() == 1 && done[0].status == EXCEEDED.0, || format!("completed as {done:?}"))?;
            bench.expect_requests(&connection.pair, &["SEND_ONLY+0 len 8"; 3]).map(drop)
        },
    );
    add(
        chapter,
        "cm/reply/rnr_retry_count",
        "12.6.5",
        "a REQ with RNR retry count 1; the agent posts a SEND, to which the bench answers RNR NAKs",
        "the SEND is sent twice, then completes with an RNR retry error",
        |bench| {
            let connection = established(bench, |req| req.rnr_retry_count = 1)?;
            let rc = &connection.pair;
            bench.post(rc, "op=send off=0 len=8 id=7")?;
            for _ in 0..2 {
                bench.expect_requests(rc, &["SEND_ONLY+0 len 8"])?;
                bench.send(&rc.response(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x21, 0))?;
            }
            bench.completes(rc, &[(7, EXCEEDED.1)]).map(drop)
        },
    );
}

/// Messages that are lost.
fn losses(chapter: &mut Chapter) {
    add(
        chapter,
        "cm/lost/rtu",
        "12.9.7",
        "no RTU until the REP comes again",
        "a REP without an RTU is sent again as it was, and the RTU to it establishes the connection",
        |bench| {
            let connection = offered(bench, |_| ())?;
            let again = messages(bench, &connection.req, 1, REPEATED_WITHIN);
            connection.is_repeated_by(&again)?;
            connection.confirm(bench)?;
            connection.works(bench)
        },
    );
    add(
        chapter,
        "cm/lost/rtu_before_data",
        "12.9.7",
        "a SEND behind the REP, then the RTU",
        "a SEND that overtakes the RTU is executed and acknowledged, and the RTU establishes the connection",
        |bench| {
            let connection = offered(bench, |_| ())?;
            let rc = &connection.pair;
            bench.receive(rc, 64, 1)?;
            bench.ask(rc, &rc.send_only(b"sixteen bytes..."), &["ACK+0 msn 1"])?;
            bench.completes(rc, &[(0, 0)])?;
            connection.confirm(bench)
        },
    );
    add(
        chapter,
        "cm/lost/rtu_of_another",
        "12.6.9",
        "an RTU with another ID than the REP's, then the right one",
        "the first establishes nothing, and the second does",
        |bench| {
            let connection = offered(bench, |_| ())?;
            let (local_comm_id, theirs) = connection.ids();
            let remote_comm_id = CommId(theirs.0 ^ 0x0f0f);
            let strange = Rtu { local_comm_id, remote_comm_id, ..Rtu::default() };
            connection.say(bench, CmMessage::Rtu(strange))?;
            let event = bench.agent.ask(&format!("cm_event ms={}", QUIET.as_millis()))?;
            must(event.word("event")? == "none", || {
                "the agent hears of the RTU for another connection".into()
            })?;
            connection.confirm(bench)
        },
    );
}

/// Messages that come again, and one that is late.
fn repetitions(chapter: &mut Chapter) {
    add(
        chapter,
        "cm/again/rtu",
        "12.6.9",
        "the RTU twice",
        "a repeated RTU is ignored, and the connection works",
        |bench| {
            let connection = established(bench, |_| ())?;
            connection.say(bench, connection.rtu())?;
            quiet(bench, &connection.req, QUIET)?;
            connection.works(bench)
        },
    );
    add(
        chapter,
        "cm/again/req_after_reply",
        "12.9.8.5",
        "the REQ again behind its REP",
        "the same REP comes again, with the same QP, and the agent hears of no second connection",
        |bench| {
            let connection = offered(bench, |_| ())?;
            connection.say(bench, CmMessage::Req(connection.req.clone()))?;
            let again = messages(bench, &connection.req, 1, REPEATED_WITHIN);
            connection.is_repeated_by(&again)?;
            connection.confirm(bench)?;
            quiet(bench, &connection.req, QUIET)?;
            connection.works(bench)
        },
    );
    add(
        chapter,
        "cm/again/req_after_rtu",
        "12.9.8.5",
        "the REQ again behind its RTU",
        "the agent hears of no second connection, and the first works",
        |bench| {
            let connection = established(bench, |_| ())?;
            connection.say(bench, CmMessage::Req(connection.req.clone()))?;
            let came = messages(bench, &connection.req, usize::MAX, QUIET);
            must(came.is_empty() || connection.is_repeated_by(&came).is_ok(), || {
                format!("expected nothing or the same REP, came {}", words(&came))
            })?;
            quiet(bench, &connection.req, Duration::ZERO)?;
            connection.works(bench)
        },
    );
    add(
        chapter,
        "cm/delayed/rtu",
        "12.6.6",
        "an MRA of the REP that asks for 4.3 s; after 1.5 s the RTU",
        "the REP is not sent again while the MRA's time lasts, and the RTU establishes the connection",
        |bench| {
            let connection = offered(bench, |_| ())?;
            let (local_comm_id, remote_comm_id) = connection.ids();
            let (service_timeout, time) = SERVICE_TIMEOUT;
            let mra =
                Mra { local_comm_id, remote_comm_id, message: Stage::Rep, service_timeout, ..Mra::default() };
            connection.say(bench, CmMessage::Mra(mra))?;
            // A REP may have been sent again before the MRA arrived.
            messages(bench, &connection.req, usize::MAX, QUIET);
            quiet(bench, &connection.req, time)?;
            connection.confirm(bench)?;
            connection.works(bench)
        },
    );
}

/// Connections that one end refuses.
fn refusals(chapter: &mut Chapter) {
    add(
        chapter,
        "cm/refused/other_port",
        "12.6.7.2",
        "a REQ for port 9, though the agent listens at another one",
        "a REJ with the reason 8, invalid service ID, and no event at the agent",
        |bench| {
            let port_9 = ServiceId::of_port(PortSpace::Tcp, 9);
            let req = request(bench, |req| req.service_id = port_9)?;
            say(bench, &req, CmMessage::Req(req.clone()))?;
            is_rejected(bench, &req, RejReason::INVALID_SERVICE_ID)?;
            quiet(bench, &req, Duration::ZERO)
        },
    );
    add(
        chapter,
        "cm/refused/by_consumer",
        "12.6.7.2",
        "a REQ that the agent rejects",
        "a REJ of the REQ with the reason 28, consumer reject",
        |bench| {
            let req = request(bench, |_| ())?;
            let id = called(bench, &req)?;
            bench.agent.ask(&format!("reject qp={id}"))?;
            is_rejected(bench, &req, RejReason::CONSUMER)
        },
    );
    add(
        chapter,
        "cm/refused/reply",
        "12.6.7",
        "a REJ of the REP, then an RTU",
        "the agent hears of the rejection, and no connection is established",
        |bench| {
            let connection = offered(bench, |_| ())?;
            let (local_comm_id, remote_comm_id) = connection.ids();
            let reason = RejReason::CONSUMER;
            let rej = Rej { local_comm_id, remote_comm_id, message: Stage::Rep, reason, ..Rej::default() };
            connection.say(bench, CmMessage::Rej(rej))?;
            hears(bench, "REJECTED")?;
            connection.say(bench, connection.rtu())?;
            let event = bench.agent.ask(&format!("cm_event ms={}", QUIET.as_millis()))?;
            must(event.word("event")? == "none", || "the agent hears of an RTU behind the rejection".into())
        },
    );
    add(
        chapter,
        "cm/refused/stale",
        "12.9.8.3.1",
        "a REQ with another ID from the QP of an established connection",
        "a REJ with the reason 10, stale connection",
        |bench| {
            let connection = established(bench, |_| ())?;
            let other =
                Req { local_comm_id: CommId(connection.req.local_comm_id.0 ^ 1), ..connection.req.clone() };
            say(bench, &other, CmMessage::Req(other.clone()))?;
            is_rejected(bench, &other, RejReason::STALE)
        },
    );
}

/// Releases that the bench begins.
fn releases(chapter: &mut Chapter) {
    add(
        chapter,
        "cm/release/dreq",
        "12.6.11",
        "a DREQ, to which the agent agrees",
        "the agent hears of it, and a DREP has both IDs and the transaction ID of the DREQ",
        |bench| established(bench, |_| ())?.release(bench),
    )
    .short();
    add(
        chapter,
        "cm/release/dreq_again",
        "12.9.8.2",
        "the DREQ again, twice, behind its DREP",
        "each is answered by the same DREP, and the agent hears of none",
        |bench| {
            let connection = established(bench, |_| ())?;
            connection.release(bench)?;
            for _ in 0..2 {
                connection.say(bench, connection.dreq())?;
                connection.is_released(bench)?;
            }
            quiet(bench, &connection.req, Duration::ZERO)
        },
    );
    add(
        chapter,
        "cm/release/other_qp",
        "12.6.10",
        "a DREQ that names another QP than the connection's",
        "no DREP, no event at the agent, and the connection works",
        |bench| {
            let connection = established(bench, |_| ())?;
            let (local_comm_id, remote_comm_id) = connection.ids();
            let remote_qpn = Qpn::new(connection.pair.qpn.value() ^ 1);
            let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() };
            connection.say(bench, CmMessage::Dreq(dreq))?;
            quiet(bench, &connection.req, QUIET)?;
            connection.works(bench)
        },
    );
    add(
        chapter,
        "cm/release/is_silent",
        "12.6.11",
        "a WRITE behind the DREP",
        "the QP of a released connection neither executes nor answers",
        |bench| {
            let connection = established(bench, |_| ())?;
            connection.release(bench)?;
            bench.send(&connection.pair.write_only(512, &[0xee; 8]))?;
            bench.expect(&connection.pair, &[])?;
            bench.untouched(512, 64)
        },
    );
}

/// Releases that the agent begins.
fn own_releases(chapter: &mut Chapter) {
    add(
        chapter,
        "cm/release/own",
        "12.6.10",
        "the agent disconnects; the bench answers by a DREP",
        "one DREQ names both IDs and the bench's QP; behind the DREP the agent hears that the connection has ended",
        |bench| {
            let connection = established(bench, |_| ())?;
            let dreq = connection.left(bench)?;
            agree(bench, &dreq)?;
            hears(bench, "DISCONNECTED")?;
            quiet(bench, &connection.req, QUIET)
        },
    );
    add(
        chapter,
        "cm/release/own_again",
        "12.6.10",
        "the agent disconnects; the bench answers the repeated DREQ alone",
        "a DREQ without an answer is sent again, with its transaction ID",
        |bench| {
            let connection = established(bench, |_| ())?;
            let first = connection.left(bench)?;
            let again = messages(bench, &connection.req, 1, REPEATED_WITHIN);
            let is_copy = |answer: &Answer| answer.tid == first.tid && answer.message == first.message;
            must(!again.is_empty() && again.iter().all(is_copy), || {
                format!("expected the same DREQ again, came {}", words(&again))
            })?;
            agree(bench, &first)?;
            hears(bench, "DISCONNECTED").map(drop)
        },
    );
    add(
        chapter,
        "cm/release/both",
        "12.9.8.2",
        "the agent disconnects; in place of a DREP comes a DREQ of the bench",
        "the agent hears that the connection has ended, and the DREQ is answered by a DREP",
        |bench| {
            let connection = established(bench, |_| ())?;
            connection.left(bench)?;
            connection.say(bench, connection.dreq())?;
            hears(bench, "DISCONNECTED")?;
            // Linux answers once the consumer has let the connection go.
            bench.destroy(&connection.pair)?;
            connection.is_released(bench)
        },
    );
}
