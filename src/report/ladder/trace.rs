//! Classifies each packet of a connection by its PSN and by the packets before it (IBTA 9.7).

use std::collections::VecDeque;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use roxie::wire::{NakCode, Operation, Position, Psn, Service, Syndrome, rnr_timer_ns};

use super::{Connection, Facts, Fate, Passage, duration, plural, psn_range};

/// A jump beyond this many PSNs, more than any window, is a new connection on the same queue pair.
const NEW_CONNECTION: i32 = 1 << 16;
/// Most READs and atomics tracked at once: more than any responder accepts.
const MOST_READS: usize = 1024;

/// Class of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new request.
    Request,
    /// A retransmitted request.
    Again,
    /// A new response.
    Answer,
    /// A repeated response.
    AnswerAgain,
    /// A NAK, or a response that signals an error.
    Trouble,
    /// Outside of any sequence: a datagram or congestion notification.
    Datagram,
}

/// A gap: PSNs between two packets that are not in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    from: Psn,
    pub(super) count: u32,
    /// True if responses are missing, not requests.
    answers: bool,
}

/// Classification of a packet.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    /// A remark, or empty.
    pub(super) remark: String,
    pub(super) missing: Option<Missing>,
}

impl Mark {
    fn new(kind: Kind, remark: impl Into<String>) -> Mark {
        Mark { kind, remark: remark.into(), missing: None }
    }
}

/// A READ or an atomic with outstanding responses.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    first: Psn,
    /// PSN of the next response.
    due: Psn,
    /// PSN after the last response.
    end: Psn,
    /// True once a later response has arrived, an implied NAK, which is reported once.
    overtaken: bool,
}

/// The requests of one end, and the responses to them.
#[derive(Debug, Default)]
struct Stream {
    /// The PSN after the highest request.
    next: Option<Psn>,
    /// The PSN after the last request; below `next` during retransmission.
    cursor: Psn,
    /// Reason for the current retransmission.
    again: Option<String>,
    /// PSN ranges below `next` that have not appeared: first, count.
    holes: Vec<(Psn, u32)>,
    /// Highest acknowledged PSN.
    acknowledged: Option<Psn>,
    /// Reason of the last NAK, until the retransmission.
    trouble: Option<&'static str>,
    awaited: VecDeque<Awaited>,
    /// True if the last PSN may be too low: a READ takes as many PSNs as it has responses, and the path MTU is not
    /// known.
    open_ended: bool,
}

/// Classifies the packets of a connection in order.
pub(super) struct Trace {
    streams: [Stream; 2],
    /// Largest payload of a packet that is followed by another one of its message.
    path_mtu: Option<usize>,
    /// True if both ends were captured, so that lost packets are known.
    two_sided: bool,
    /// Time of the last packet.
    last_at: Option<i64>,
}

impl Trace {
    pub(super) fn new(connection: &Connection) -> Trace {
        Trace {
            streams: Default::default(),
            path_mtu: path_mtu(connection),
            two_sided: connection.two_sided,
            last_at: None,
        }
    }

    /// Classifies the next packet. `right` is its direction.
    pub(super) fn mark(&mut self, passage: &Passage, right: bool) -> Mark {
        let facts = &passage.facts;
        let silence = self.last_at.zip(passage.at).map(|(last, at)| (at - last).max(0).cast_unsigned());
        self.last_at = passage.at.or(self.last_at);
        if facts.operation == Operation::Cnp {
            return Mark::new(Kind::Datagram, "congestion: slow down");
        }
        if !facts.is_ordered() {
            return Mark::new(Kind::Datagram, "");
        }
        if passage.fate == Fate::Extra {
            return Mark::new(if facts.is_answer() { Kind::AnswerAgain } else { Kind::Again }, "");
        }
        if !facts.is_answer() {
            let span = match (facts.asks, self.path_mtu) {
                (Some(bytes), Some(mtu)) => (bytes as usize).div_ceil(mtu).max(1) as u32,
                _ => 1,
            };
            let open_ended = facts.asks.is_some() && self.path_mtu.is_none();
            return self.streams[usize::from(!right)].request(facts, span, open_ended, silence);
        }
        let stream = &mut self.streams[usize::from(right)];
        if passage.is_void() {
            // A lost response never reached the requester: leave its state unchanged.
            let kind = if matches!(facts.syndrome, Some(Syndrome::Ack { .. }) | None) {
                Kind::Answer
            } else {
                Kind::Trouble
            };
            return Mark::new(kind, "");
        }
        let mut mark = stream.answer(facts);
        if self.two_sided {
            mark.missing = None;
        }
        mark
    }
}

/// Infers the path MTU: each packet but the last of a message is full.
fn path_mtu(connection: &Connection) -> Option<usize> {
    let full = |facts: &&Facts| matches!(facts.position, Position::First | Position::Middle);
    let facts = connection.packets.iter().map(|passage| &passage.facts);
    facts.filter(full).map(|facts| facts.payload).filter(|n| *n > 0).max()
}

impl Stream {
    fn request(&mut self, facts: &Facts, span: u32, open_ended: bool, silence: Option<u64>) -> Mark {
        let (psn, end) = (facts.psn, facts.psn + span);
        let ahead = self.next.map_or(0, |next| psn.distance_from(next));
        if ahead.abs() > NEW_CONNECTION {
            *self = Stream { next: Some(end), cursor: end, open_ended, ..Stream::default() };
            return Mark::new(Kind::Request, "PSNs start again: a new connection of this queue pair");
        }
        self.expect(facts, end, open_ended);
        if let Some(next) = self.next.filter(|_| ahead < 0) {
            let mark = self.request_again(facts, silence);
            self.cursor = end;
            self.next = Some(if next.is_before(end) { end } else { next });
            return mark;
        }
        let from = self.next.unwrap_or(psn);
        let gap =
            (ahead > 0 && !self.open_ended).then_some(Missing { from, count: ahead as u32, answers: false });
        self.holes.extend(gap.map(|gap| (gap.from, gap.count)));
        (self.next, self.cursor, self.open_ended, self.again) = (Some(end), end, open_ended, None);
        let remark = match facts.asks {
            Some(_) if span > 1 => format!("asks for {}", psn_range(psn, end - 1)),
            _ => String::new(),
        };
        Mark { missing: gap, ..Mark::new(Kind::Request, remark) }
    }

    /// Classifies a request below the highest one.
    fn request_again(&mut self, facts: &Facts, silence: Option<u64>) -> Mark {
        let psn = facts.psn;
        let was_missing = self.fill(psn, 1);
        if facts.service == Service::Uc {
            return Mark::new(Kind::Again, if was_missing { "late: out of order" } else { "seen before" });
        }
        // A retransmission has one reason, which holds until it has caught up.
        if self.again.is_none() || psn.is_before(self.cursor) {
            let unanswered = self.awaited.iter().any(|read| read.contains(psn));
            let acknowledged = self.acknowledged.is_some_and(|last| !last.is_before(psn));
            let reason = match (self.trouble.take(), silence) {
                (Some(trouble), _) => trouble.into(),
                _ if was_missing => "fills the gap: late, or sent again".into(),
                _ if acknowledged && !unanswered => {
                    "sent again although acknowledged: the answer came late or not at all".into()
                }
                (None, Some(silence)) => format!("sent again: no answer, nothing for {}", duration(silence)),
                (None, None) => "sent again: no answer came in time".to_owned(),
            };
            self.again = Some(reason);
        }
        Mark::new(Kind::Again, self.again.clone().unwrap_or_default())
    }

    /// Records the responses that a READ or an atomic will get.
    fn expect(&mut self, facts: &Facts, end: Psn, open_ended: bool) {
        let answered = matches!(
            facts.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        );
        // A READ that begins within another repeats the rest of it.
        if !answered || open_ended || self.awaited.iter().any(|read| read.contains(facts.psn)) {
            return;
        }
        if self.awaited.len() == MOST_READS {
            self.awaited.pop_front();
        }
        self.awaited.push_back(Awaited { first: facts.psn, due: facts.psn, end, overtaken: false });
    }

    /// Removes PSNs from the gaps. Returns true if the first was in one.
    fn fill(&mut self, psn: Psn, span: u32) -> bool {
        let Some(at) = self.holes.iter().position(|(from, count)| {
            let into = psn.distance_from(*from);
            into >= 0 && (into as u32) < *count
        }) else {
            return false;
        };
        let (from, count) = self.holes.swap_remove(at);
        let before = psn.distance_from(from) as u32;
        let behind = count.saturating_sub(before + span);
        self.holes.extend((before > 0).then_some((from, before)));
        self.holes.extend((behind > 0).then_some((psn + span, behind)));
        true
    }

    fn answer(&mut self, facts: &Facts) -> Mark {
        let psn = facts.psn;
        if let (Some(next), false) = (self.next, self.open_ended)
            && (0..NEW_CONNECTION).contains(&psn.distance_from(next))
            && facts.syndrome.is_none_or(|s| matches!(s, Syndrome::Ack { .. }))
        {
            let sent = format!("answers nothing that was sent, the last was psn {}: a ghost", next - 1);
            return Mark::new(Kind::Trouble, sent + ", unless the capture lacks requests");
        }
        if let Some(sack) = facts.sack {
            self.acknowledge(psn - 1);
            self.trouble = Some("sent again as asked for");
            let (missing, of) = (sack.missing(), sack.count);
            return Mark::new(Kind::Trouble, format!("asks for {missing} of {of} from psn {psn} on"));
        }
        match facts.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.acknowledge(psn - 1);
                self.trouble = Some("sent again after the sequence NAK");
                Mark::new(Kind::Trouble, format!("sequence NAK: psn {psn} is missing, send again from there"))
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.acknowledge(psn - 1);
                self.trouble = Some("sent again after the RNR NAK");
                let wait = duration(rnr_timer_ns(timer));
                Mark::new(
                    Kind::Trouble,
                    format!("receiver not ready: no receive is posted, come again after {wait}"),
                )
            }
            Some(Syndrome::Nak(code)) => Mark::new(Kind::Trouble, meaning(code)),
            Some(Syndrome::Reserved(byte)) => {
                Mark::new(Kind::Trouble, format!("reserved syndrome {byte:#04x}"))
            }
            Some(Syndrome::Ack { .. }) | None => self.good_answer(facts),
        }
    }

    /// Classifies an ACK, a READ response or an atomic's result.
    fn good_answer(&mut self, facts: &Facts) -> Mark {
        let psn = facts.psn;
        if let Some(read) = self.awaited.iter_mut().find(|read| !psn.is_before(read.end) && !read.overtaken) {
            // Nothing beyond an outstanding response is acknowledged (IBTA 9.7.5.1.4).
            read.overtaken = true;
            self.trouble = Some("sent again after the implied NAK");
            let due = psn_range(read.due, read.end - 1);
            return Mark::new(Kind::Trouble, format!("implies a NAK: the answer {due} never came"));
        }
        let known = self.acknowledged.is_some_and(|last| !last.is_before(psn));
        let missing = if facts.operation == Operation::Acknowledge { None } else { self.take_answer(facts) };
        let again = known && missing.is_none();
        self.acknowledge(psn);
        if again {
            Mark::new(Kind::AnswerAgain, "answered before")
        } else {
            Mark { missing, ..Mark::new(Kind::Answer, "") }
        }
    }

    /// Takes a response to a READ or an atomic. Returns the gap before it.
    fn take_answer(&mut self, facts: &Facts) -> Option<Missing> {
        let place = self.awaited.iter().position(|read| read.contains(facts.psn))?;
        let read = &mut self.awaited[place];
        let ahead = facts.psn.distance_from(read.due);
        let missing = (ahead > 0).then_some(Missing { from: read.due, count: ahead as u32, answers: true });
        if ahead >= 0 {
            read.due = facts.psn.next();
        }
        if read.due == read.end {
            self.awaited.remove(place);
        }
        missing
    }

    fn acknowledge(&mut self, psn: Psn) {
        let further = |last: Psn| last.is_before(psn) || last.distance_from(psn) > NEW_CONNECTION;
        if self.acknowledged.is_none_or(further) {
            self.acknowledged = Some(psn);
        }
    }
}

fn meaning(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "sequence NAK",
        NakCode::InvalidRequest => {
            "invalid request: its opcode, order, or length is not allowed; both queue pairs go to the error state"
        }
        NakCode::RemoteAccess => {
            "remote access error: key, bounds or rights forbid it; both queue pairs go to the error state"
        }
        NakCode::RemoteOperational => {
            "remote operational error: a fault of the responder; both queue pairs go to the error state"
        }
        NakCode::InvalidRdRequest => "invalid RD request",
    }
}

impl Awaited {
    fn contains(&self, psn: Psn) -> bool {
        !psn.is_before(self.first) && psn.is_before(self.end)
    }
}

impl Serialize for Missing {
    /// Serializes label and remark, as drawn.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut both = serializer.serialize_struct("Missing", 2)?;
        both.serialize_field("label", &self.label())?;
        both.serialize_field("remark", &self.remark())?;
        both.end()
    }
}

impl Missing {
    /// Returns the missing PSNs.
    pub(super) fn label(&self) -> String {
        let what = if self.answers { "answer " } else { "" };
        format!("{what}{}", psn_range(self.from, self.from + (self.count - 1)))
    }

    /// Returns the remark beside the gap.
    pub(super) fn remark(&self) -> String {
        format!("{} not in this capture: lost before it, or late", plural(self.count.into(), "packet"))
    }
}
