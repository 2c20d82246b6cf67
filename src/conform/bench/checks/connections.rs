//! Connection management (chapter 12), as it is seen by an end without a connection: each message goes to QP1, and
//! needs no program that listens at the target.

use std::time::{Duration, Instant};

use roxie_wire::cm::{
    Apr, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, Path, Rej, RejReason, Rep, Req, Rtu, SidrReq,
    SidrStatus,
};
use roxie_wire::mad::GSI_QKEY;
use roxie_wire::service_id::ServiceId;
use roxie_wire::{Deth, Gid, Opcode, Psn, Qpn};

use crate::bench::Bench;
use crate::check::{Chapter, Check, Role};
use crate::packet::{Craft, Seen};
use crate::service::Service;
use crate::verdict::{Script, Stop, must};

/// The service interface of management datagrams.
const QP1: Qpn = Qpn::new(1);
/// A service without a listener: no IP port of `rdma_cm` (annex A11).
const NOBODY: ServiceId = ServiceId(0x1234_5678_9abc_def0);
/// The bench's identifiers of connections, none of which the target has heard of. Each message has another.
const FIRST_ID: u32 = 0x4200_0000;
/// The least identifier of the bench's own connections, which are established.
pub(super) const OWN_ID: u32 = 0x8000_0000;
/// Time in which a connection manager answers. Linux hands messages to a work queue.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A connection that neither end has.
const STRANGER: CommId = CommId(0x0bad_0001);

/// Returns a datagram to QP1.
fn datagram(qkey: u32, mad: &[u8]) -> Craft {
    let mut packet = Craft::new(Opcode(0x64), QP1, Psn::new(0)).data(mad);
    packet.headers.extend(Deth { qkey, src_qp: QP1 }.to_bytes());
    packet
}

/// Returns a management datagram with a message.
pub(super) fn message(message: &CmMessage, tid: u64) -> Craft {
    datagram(GSI_QKEY, &message.to_mad(tid))
}

/// Returns a request for a connection to a service without a listener.
fn request(bench: &Bench, id: u32) -> CmMessage {
    CmMessage::Req(req(bench, CommId(FIRST_ID + id)))
}

/// Returns a request for a connection with this communication ID, to a service without a listener.
pub(super) fn req(bench: &Bench, local_comm_id: CommId) -> Req {
    let path = Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: Gid::from(bench.wire.here()),
        remote_gid: Gid::from(bench.wire.target()),
        hop_limit: 64,
        subnet_local: true,
        local_ack_timeout: 14,
        ..Path::default()
    };
    Req {
        local_comm_id,
        service_id: NOBODY,
        local_ca_guid: 0x0200_00ff_fe00_0001,
        local_qpn: Qpn::new(0x0077_7777),
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        starting_psn: Psn::new(1),
        retry_count: 7,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        pkey: 0xffff,
        path_mtu: 3,
        primary_path: path,
        ..Req::default()
    }
}

/// A message of the target's connection manager.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) tid: u64,
    pub(super) message: CmMessage,
    seen: Seen,
}

impl Answer {
    /// Reads a datagram to QP1; `None` if it is no message of connection management.
    pub(super) fn read(seen: Seen) -> Option<Answer> {
        let (tid, message) = CmMessage::read(seen.payload()).ok()?;
        Some(Answer { tid, message, seen })
    }

    /// Returns the receiver's communication ID, if the message has one.
    pub(super) fn receiver(&self) -> Option<CommId> {
        match &self.message {
            CmMessage::Mra(mra) => Some(mra.remote_comm_id),
            CmMessage::Rej(rej) => Some(rej.remote_comm_id),
            CmMessage::Rep(rep) => Some(rep.remote_comm_id),
            CmMessage::Dreq(dreq) => Some(dreq.remote_comm_id),
            CmMessage::Drep(drep) => Some(drep.remote_comm_id),
            _ => None,
        }
    }

    /// Describes the message for reports.
    pub(super) fn words(&self) -> String {
        match &self.message {
            CmMessage::Rej(rej) => format!("REJ of {}, reason {}", rej.remote_comm_id, rej.reason.0),
            CmMessage::SidrRep(rep) => format!("SIDR_REP of {}, status {}", rep.request_id, rep.status.0),
            CmMessage::Drep(drep) => format!("DREP of {} and {}", drep.remote_comm_id, drep.local_comm_id),
            other => other.kind().name().to_owned(),
        }
    }
}

/// Waits for `count` messages that are `meant`, for `limit` at most, and returns all of them that came.
pub(super) fn heard(
    bench: &mut Bench,
    count: usize,
    limit: Duration,
    meant: impl Fn(&Answer) -> bool,
) -> Vec<Answer> {
    let until = Instant::now() + limit;
    let mut heard = Vec::new();
    loop {
        let came = bench.wire.take(QP1).into_iter().filter_map(Answer::read);
        heard.extend(came.filter(&meant));
        if heard.len() >= count || Instant::now() >= until {
            return heard;
        }
        bench.wire.wait(QP1, 1, until);
    }
}

/// Waits for `count` messages, then until the target has proven its life, and returns all that came.
fn answers(bench: &mut Bench, count: usize) -> Script<Vec<Answer>> {
    // A connection of an earlier check may still end.
    let is_meant = |answer: &Answer| answer.receiver().is_none_or(|id| id.0 < OWN_ID);
    let mut came = heard(bench, count, ANSWERS_WITHIN, is_meant);
    bench.settle()?;
    came.extend(heard(bench, 0, Duration::ZERO, is_meant));
    Ok(came)
}

/// Sends a valid request, and returns its rejection, which is the only answer.
///
/// # Errors
/// [`Stop::NotTested`] if nothing came: the target has no connection manager.
fn rejected(bench: &mut Bench, id: u32) -> Script<(Answer, Rej)> {
    let request = request(bench, id);
    bench.send(&message(&request, u64::from(id)))?;
    let mut came = answers(bench, 1)?;
    if came.is_empty() {
        return Err(Stop::NotTested(
            "nobody answers a valid REQ within a second: the target may have no connection manager".into(),
        ));
    }
    let words: Vec<String> = came.iter().map(Answer::words).collect();
    let first = came.remove(0);
    match &first.message {
        CmMessage::Rej(rej) if came.is_empty() && rej.remote_comm_id == CommId(FIRST_ID + id) => {
            let rej = rej.clone();
            Ok((first, rej))
        }
        _ => Err(Stop::Breaks(format!(
            "expected one REJ of {}, came {}",
            CommId(FIRST_ID + id),
            words.join(", ")
        ))),
    }
}

/// A datagram that is dropped: name, clause, stimulus, datagram made of a valid request's.
type Dropped = (&'static str, &'static str, &'static str, fn(&[u8]) -> Craft);

const DROPPED: [Dropped; 7] = [
    ("wrong_qkey", "10.2.4", "a REQ with another Q_Key than that of QP1", |mad| datagram(GSI_QKEY ^ 1, mad)),
    ("bad_icrc", "7.8.1", "a REQ with a wrong ICRC", |mad| datagram(GSI_QKEY, mad).spoiled()),
    ("base_version", "13.4.2", "a REQ in a datagram of base version 2", |mad| changed(mad, 0, 2)),
    ("class_version", "13.4.2", "a REQ of class version 1", |mad| changed(mad, 2, 1)),
    ("no_such_class", "13.4.4", "a REQ of the reserved class 0x0f", |mad| changed(mad, 1, 0x0f)),
    ("no_such_message", "12.6", "a message with the attribute 0x7f, which does not exist", |mad| {
        changed(mad, 17, 0x7f)
    }),
    ("short", "13.4.2", "the first 100 bytes of a REQ", |mad| datagram(GSI_QKEY, &mad[..100])),
];

/// Returns a management datagram with another byte.
fn changed(mad: &[u8], at: usize, byte: u8) -> Craft {
    let mut mad = mad.to_vec();
    mad[at] = byte;
    datagram(GSI_QKEY, &mad)
}

/// Messages about a connection that does not exist.
const STRANGE: [fn() -> CmMessage; 7] = [
    || CmMessage::Rep(Rep { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Rep::default() }),
    || CmMessage::Rtu(Rtu { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Rtu::default() }),
    || CmMessage::Drep(Drep { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Drep::default() }),
    || CmMessage::Rej(Rej { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Rej::default() }),
    || CmMessage::Mra(Mra { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Mra::default() }),
    || CmMessage::Lap(Lap { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Lap::default() }),
    || CmMessage::Apr(Apr { local_comm_id: CommId(FIRST_ID), remote_comm_id: STRANGER, ..Apr::default() }),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Connection management", Service::Ud, Role::Responder);
    rejections(&mut chapter);
    dropped_datagrams(&mut chapter);
    unknown_connections(&mut chapter);
    service_resolution(&mut chapter);
    chapter.done()
}

/// Requests for a service without a listener.
fn rejections(chapter: &mut Chapter) {
    chapter
        .add(
            "cm/rejected/no_listener",
            "12.6.7.2",
            "a REQ for a service on which nobody listens",
            "a REJ of the REQ, with the reason 8, invalid service ID",
            |bench| {
                let (_, rej) = rejected(bench, 1)?;
                must(rej.reason == RejReason::INVALID_SERVICE_ID, || {
                    format!("the reason is {}, expected 8", rej.reason.0)
                })
            },
        )
        .short();
    chapter.add(
        "cm/rejected/names_the_stage",
        "12.6.7.1",
        "a REQ for a service on which nobody listens",
        "the REJ says that it rejects a REQ",
        |bench| {
            let (_, rej) = rejected(bench, 2)?;
            must(rej.message as u8 == 0, || {
                format!("the rejected message is {:?}, expected the REQ", rej.message)
            })
        },
    );
    chapter.add(
        "cm/rejected/transaction",
        "13.4.6.4",
        "a REQ for a service on which nobody listens, with a transaction ID of 64 bits",
        "the REJ has the transaction ID of the REQ",
        |bench| {
            let tid = 0x1122_3344_5566_7788;
            let request = request(bench, 3);
            bench.send(&message(&request, tid))?;
            let came = answers(bench, 1)?;
            let Some(answer) = came.first() else {
                return Err(Stop::NotTested("nobody answers a valid REQ within a second".into()));
            };
            must(answer.tid == tid, || format!("the transaction ID is {:#x}, expected {tid:#x}", answer.tid))
        },
    );
    chapter.add(
        "cm/rejected/from_qp1",
        "13.5.3.1",
        "a REQ for a service on which nobody listens",
        "the REJ is a datagram of 256 bytes from QP1, with the Q_Key of QP1",
        |bench| {
            let (answer, _) = rejected(bench, 4)?;
            let deth = answer.seen.packet.deth();
            must(deth == Some(Deth { qkey: GSI_QKEY, src_qp: QP1 }), || format!("its header is {deth:?}"))?;
            let length = answer.seen.payload().len();
            must(length == 256, || format!("its payload has {length} bytes, expected 256"))
        },
    );
    chapter.add(
        "cm/rejected/repeated",
        "12.10.2",
        "the same REQ twice, as when its answer is lost",
        "each REQ is rejected with the same reason, and no other message comes",
        |bench| {
            let (_, first) = rejected(bench, 5)?;
            let (_, second) = rejected(bench, 5)?;
            must(first.reason == second.reason, || {
                format!("the reasons are {} and {}", first.reason.0, second.reason.0)
            })
        },
    );
}

/// Datagrams that no message answers.
fn dropped_datagrams(chapter: &mut Chapter) {
    for (name, clause, stimulus, packet) in DROPPED {
        chapter.add(
            format!("cm/dropped/{name}"),
            clause,
            format!("{stimulus}, then a valid one"),
            "no message of connection management answers the first, and the second is rejected",
            move |bench| {
                rejected(bench, 6)?;
                let mad = request(bench, 7).to_mad(7);
                bench.send(&packet(&mad))?;
                rejected(bench, 8).map(drop)
            },
        );
    }
}

/// Messages about a connection that does not exist.
fn unknown_connections(chapter: &mut Chapter) {
    for strange in STRANGE {
        let kind = strange().kind();
        chapter.add(
            format!("cm/stranger/{}", kind.name().to_lowercase()),
            "12.9.8",
            format!("a {kind} about a connection that does not exist"),
            "nothing, a REJ, or to a LAP an APR; and the next REQ is handled",
            move |bench| {
                rejected(bench, 9)?;
                bench.send(&message(&strange(), 9))?;
                let came = answers(bench, 0)?;
                let is_refusal = |answer: &&Answer| {
                    let came = answer.message.kind();
                    came == Kind::Rej || (kind, came) == (Kind::Lap, Kind::Apr)
                };
                let others: Vec<String> =
                    came.iter().filter(|answer| !is_refusal(answer)).map(Answer::words).collect();
                must(others.is_empty(), || {
                    format!("expected nothing or a refusal, came {}", others.join(", "))
                })?;
                rejected(bench, 10).map(drop)
            },
        );
    }
    chapter.add(
        "cm/stranger/dreq",
        "12.9.8.2",
        "a DREQ about a connection that does not exist, as when its DREP was lost",
        "a DREP with the two communication IDs, so that the sender stops repeating",
        |bench| {
            rejected(bench, 11)?;
            let mine = CommId(FIRST_ID + 12);
            let dreq = Dreq { local_comm_id: mine, remote_comm_id: STRANGER, ..Dreq::default() };
            bench.send(&message(&CmMessage::Dreq(dreq), 12))?;
            let came = answers(bench, 1)?;
            let words: Vec<String> = came.iter().map(Answer::words).collect();
            must(words == [format!("DREP of {mine} and {STRANGER}")], || {
                format!("expected a DREP of {mine} and {STRANGER}, came {}", words.join(", "))
            })
        },
    );
}

/// Resolution of service IDs.
fn service_resolution(chapter: &mut Chapter) {
    chapter.add(
        "cm/sidr/no_listener",
        "12.11.2.1",
        "a SIDR_REQ for a service on which nobody listens",
        "a SIDR_REP with its request ID and the status 1, service ID not supported",
        |bench| {
            rejected(bench, 13)?;
            let mine = CommId(FIRST_ID + 14);
            let request =
                SidrReq { request_id: mine, pkey: 0xffff, service_id: NOBODY, ..SidrReq::default() };
            bench.send(&message(&CmMessage::SidrReq(request), 14))?;
            let came = answers(bench, 1)?;
            let words: Vec<String> = came.iter().map(Answer::words).collect();
            let expected = format!("SIDR_REP of {mine}, status {}", SidrStatus::UNSUPPORTED.0);
            must(words == [expected.clone()], || format!("expected {expected}, came {}", words.join(", ")))
        },
    );
}
