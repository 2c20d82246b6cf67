//! The bench's end of a connection by the connection manager: it asks, and the agent listens and accepts by librdmacm.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use roxie_wire::cm::{CmMessage, CommId, Drep, Dreq, Kind, PrivateData, RejReason, Rep, Req, Rtu, Stage};
use roxie_wire::{CmaHeader, PortSpace, Psn, Qpn, ServiceId};

use super::connections::{Answer, OWN_ID, heard, message, req};
use crate::bench::{Bench, Pair, Setup};
use crate::service::Service;
use crate::verdict::{Script, Stop, must};

/// Time in which a manager answers a message or its consumer. Linux hands messages to a work queue.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Code of the time that the target is to wait for the bench's answer: 0.54 s.
const RESPONSE_TIMEOUT: u8 = 17;
/// Time in which a manager says that a connection has ended, once its consumer has destroyed it.
const ENDS_WITHIN: Duration = Duration::from_millis(30);

/// A connection, established or not yet: the bench's request and the target's reply.
pub(super) struct Connection {
    pub(super) req: Req,
    pub(super) rep: Rep,
    pub(super) pair: Pair,
}

/// Listens at the target, and returns a request for a connection to it, which `change` changes. Adapter and
/// communication ID are new: a manager may remember those of an earlier run.
pub(super) fn request(bench: &mut Bench, change: impl FnOnce(&mut Req)) -> Script<Req> {
    let family = if bench.wire.target().is_ipv4() { 4 } else { 6 };
    let port = bench.agent.ask(&format!("listen family={family}"))?.number("port")? as u16;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = OWN_ID | now.as_micros() as u32;
    let header = CmaHeader { source: bench.wire.here(), source_port: 4791, destination: bench.wire.target() };
    let mut request = Req {
        service_id: ServiceId::of_port(PortSpace::Tcp, port),
        local_ca_guid: 0x0200_00ff_0000_0000 | u64::from(id),
        local_qpn: bench.own_qpn(),
        responder_resources: 4,
        initiator_depth: 4,
        starting_psn: Psn::new(0x0012_3456),
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: 3,
        private_data: PrivateData::new(Kind::Req, &header.to_bytes()).unwrap_or(PrivateData::EMPTY),
        ..req(bench, CommId(id))
    };
    request.primary_path.local_ack_timeout = 18;
    change(&mut request);
    Ok(request)
}

/// Sends a message of the transaction that a request began.
pub(super) fn say(bench: &mut Bench, req: &Req, said: CmMessage) -> Script {
    bench.send(&message(&said, transaction(req)))
}

/// Returns the transaction ID of a request.
pub(super) fn transaction(req: &Req) -> u64 {
    u64::from(req.local_comm_id.0) << 16
}

/// Waits for `count` messages of a connection, for `limit` at most, and returns all that came.
pub(super) fn messages(bench: &mut Bench, req: &Req, count: usize, limit: Duration) -> Vec<Answer> {
    heard(bench, count, limit, |answer| {
        answer.tid == transaction(req) || answer.receiver() == Some(req.local_comm_id)
    })
}

/// Describes messages for reports.
pub(super) fn words(messages: &[Answer]) -> String {
    if messages.is_empty() {
        return "nothing".into();
    }
    messages.iter().map(Answer::words).collect::<Vec<_>>().join(", ")
}

/// Waits for one message of a connection.
pub(super) fn one(bench: &mut Bench, req: &Req, kind: Kind) -> Script<Answer> {
    let mut came = messages(bench, req, 1, ANSWERS_WITHIN);
    must(came.len() == 1 && came[0].message.kind() == kind, || {
        format!("expected one {kind}, came {}", words(&came))
    })?;
    Ok(came.remove(0))
}

/// Expects no message of a connection for some time, and no event at the agent.
pub(super) fn quiet(bench: &mut Bench, req: &Req, time: Duration) -> Script {
    let came = messages(bench, req, usize::MAX, time);
    must(came.is_empty(), || format!("expected no message, came {}", words(&came)))?;
    let answer = bench.agent.ask("cm_event ms=0")?;
    let event = answer.word("event")?;
    must(event == "none", || format!("expected no event at the agent, came {event}"))
}

/// Expects the next event of the agent's connection manager. Returns the agent's number of the connection.
pub(super) fn hears(bench: &mut Bench, expected: &str) -> Script<u64> {
    let answer = bench.agent.ask(&format!("cm_event ms={}", ANSWERS_WITHIN.as_millis()))?;
    let event = answer.word("event")?;
    must(event.strip_prefix("RDMA_CM_EVENT_") == Some(expected), || {
        format!("expected the event {expected} at the agent, came {event}")
    })?;
    answer.number("qp")
}

/// Sends a request, which the agent hears. Returns the agent's number of the connection.
pub(super) fn called(bench: &mut Bench, req: &Req) -> Script<u64> {
    say(bench, req, CmMessage::Req(req.clone()))?;
    let id = hears(bench, "CONNECT_REQUEST")?;
    bench.open.push(id);
    Ok(id)
}

/// Sends a request, which the agent accepts, and returns the connection that the reply offers.
pub(super) fn offered(bench: &mut Bench, change: impl FnOnce(&mut Req)) -> Script<Connection> {
    let req = request(bench, change)?;
    let id = called(bench, &req)?;
    let qpn = bench.agent.ask(&format!("accept qp={id}"))?.word32("qpn")?;
    let answer = one(bench, &req, Kind::Rep)?;
    let CmMessage::Rep(rep) = answer.message else { return Err(Stop::Breaks("the answer is no REP".into())) };
    must(answer.tid == transaction(&req), || "the REP has another transaction ID than the REQ".into())?;
    must(rep.remote_comm_id == req.local_comm_id, || {
        format!("the REP is for {}, the REQ was of {}", rep.remote_comm_id, req.local_comm_id)
    })?;
    must(rep.local_qpn == Qpn::new(qpn), || {
        format!("the REP names the QP {}, the agent has {}", rep.local_qpn, Qpn::new(qpn))
    })?;
    let setup = Setup {
        first: rep.starting_psn.value(),
        peer_first: req.starting_psn.value(),
        ..Setup::new(Service::Rc)
    };
    let pair = bench.pair(id, rep.local_qpn, req.local_qpn, &setup)?;
    Ok(Connection { req, rep, pair })
}

/// Establishes a connection.
pub(super) fn established(bench: &mut Bench, change: impl FnOnce(&mut Req)) -> Script<Connection> {
    let connection = offered(bench, change)?;
    connection.confirm(bench)?;
    Ok(connection)
}

/// Answers a DREQ of the target by a DREP.
pub(super) fn agree(bench: &mut Bench, dreq: &Answer) -> Script {
    let CmMessage::Dreq(said) = &dreq.message else { return Ok(()) };
    let (local_comm_id, remote_comm_id) = (said.remote_comm_id, said.local_comm_id);
    let drep = Drep { local_comm_id, remote_comm_id, ..Drep::default() };
    bench.send(&message(&CmMessage::Drep(drep), dreq.tid))
}

/// Runs a script, then frees its connections at the target and agrees to their end, so that no DREQ comes during a
/// later check.
pub(super) fn ending(bench: &mut Bench, script: fn(&mut Bench) -> Script) -> Script {
    let result = script(bench);
    let ended = bench.end();
    let until = Instant::now() + ANSWERS_WITHIN;
    while Instant::now() < until
        && let [answer, ..] = &heard(bench, 1, ENDS_WITHIN, |_| true)[..]
    {
        agree(bench, answer)?;
    }
    result.and(ended)
}

impl Connection {
    pub(super) fn ids(&self) -> (CommId, CommId) {
        (self.req.local_comm_id, self.rep.local_comm_id)
    }

    pub(super) fn say(&self, bench: &mut Bench, said: CmMessage) -> Script {
        say(bench, &self.req, said)
    }

    pub(super) fn rtu(&self) -> CmMessage {
        let (local_comm_id, remote_comm_id) = self.ids();
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() })
    }

    pub(super) fn dreq(&self) -> CmMessage {
        let (local_comm_id, remote_comm_id) = self.ids();
        CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: self.pair.qpn, ..Dreq::default() })
    }

    /// Sends the RTU, which the agent hears.
    pub(super) fn confirm(&self, bench: &mut Bench) -> Script {
        self.say(bench, self.rtu())?;
        hears(bench, "ESTABLISHED").map(drop)
    }

    /// Expects `came` to be copies of the reply.
    pub(super) fn is_repeated_by(&self, came: &[Answer]) -> Script {
        let is_copy = |answer: &Answer| matches!(&answer.message, CmMessage::Rep(rep) if *rep == self.rep);
        must(!came.is_empty() && came.iter().all(is_copy), || {
            format!("expected the same REP again, came {}", words(came))
        })
    }

    /// Expects a DREP to the bench's DREQ.
    pub(super) fn is_released(&self, bench: &mut Bench) -> Script {
        let answer = one(bench, &self.req, Kind::Drep)?;
        let (mine, theirs) = self.ids();
        let expected = format!("DREP of {mine} and {theirs}");
        must(answer.words() == expected && answer.tid == transaction(&self.req), || {
            format!("expected {expected} with the transaction ID of the DREQ, came {}", answer.words())
        })
    }

    /// Releases the connection by a DREQ, to which the agent agrees.
    pub(super) fn release(&self, bench: &mut Bench) -> Script {
        self.say(bench, self.dreq())?;
        hears(bench, "DISCONNECTED")?;
        bench.tell(&self.pair, "disconnect", "")?;
        self.is_released(bench)
    }

    /// The agent disconnects. Returns the target's DREQ, which names both ends.
    pub(super) fn left(&self, bench: &mut Bench) -> Script<Answer> {
        bench.tell(&self.pair, "disconnect", "")?;
        let answer = one(bench, &self.req, Kind::Dreq)?;
        let (mine, theirs) = self.ids();
        let expected = Dreq {
            local_comm_id: theirs,
            remote_comm_id: mine,
            remote_qpn: self.req.local_qpn,
            ..Dreq::default()
        };
        let is_right = matches!(&answer.message, CmMessage::Dreq(dreq)
            if Dreq { private_data: PrivateData::EMPTY, ..dreq.clone() } == expected);
        must(is_right, || format!("expected {expected:?}, came {:?}", answer.message))?;
        Ok(answer)
    }

    /// Expects a SEND in each direction to arrive, with the PSNs of the messages.
    pub(super) fn works(&self, bench: &mut Bench) -> Script {
        let rc = &self.pair;
        bench.receive(rc, 64, 1)?;
        bench.ask(rc, &rc.send_only(b"sixteen bytes..."), &["ACK+0 msn 1"])?;
        bench.completes(rc, &[(0, 0)])?;
        bench.post(rc, "op=send off=0 len=8 id=7")?;
        bench.expect_requests(rc, &["SEND_ONLY+0 len 8"])?;
        bench.send(&rc.ack(0, 1))?;
        bench.completes(rc, &[(7, 0)]).map(drop)
    }
}

/// Expects a REJ of a request.
pub(super) fn is_rejected(bench: &mut Bench, req: &Req, reason: RejReason) -> Script {
    let answer = one(bench, req, Kind::Rej)?;
    let is_right = matches!(&answer.message, CmMessage::Rej(rej)
        if rej.remote_comm_id == req.local_comm_id && rej.message == Stage::Req && rej.reason == reason);
    must(is_right, || format!("expected a REJ of the REQ, reason {}, came {:?}", reason.0, answer.message))
}
