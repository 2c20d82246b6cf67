//! What each packet of a connection is, told by its PSN and by what came before it (IBTA 9.7).

use std::collections::VecDeque;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use roxie::wire::{NakCode, Operation, Position, Psn, Service, Syndrome, rnr_timer_ns};

use super::{Connection, Facts, Fate, Passage, duration, plural, psn_range};

/// A jump of more PSNs than any window is another connection on the same queue pair.
const ANOTHER_LIFE: i32 = 1 << 16;
/// READs and atomics that are followed at once: more than any responder takes.
const MOST_READS: usize = 1024;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks, or carries data.
    Request,
    /// A request that was there before.
    Again,
    /// Answers.
    Answer,
    /// An answer that was there before.
    AnswerAgain,
    /// A NAK.
    Trouble,
    /// Belongs to no order: datagrams and congestion notifications.
    Datagram,
}

/// PSNs between two packets that are not in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    from: Psn,
    pub(super) count: u32,
    /// They are packets of an answer, not of a request.
    answers: bool,
}

/// What was found out about a packet.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    /// In words, if it is worth any.
    pub(super) remark: String,
    pub(super) missing: Option<Missing>,
}

impl Mark {
    fn new(kind: Kind, remark: impl Into<String>) -> Mark {
        Mark { kind, remark: remark.into(), missing: None }
    }
}

/// A READ or an atomic whose answers are awaited.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    first: Psn,
    /// The answer that is due.
    due: Psn,
    /// After its last answer.
    end: Psn,
    /// A later answer has come: the implied NAK was told of.
    overtaken: bool,
}

/// The requests of one end, and the answers to them.
#[derive(Debug, Default)]
struct Stream {
    /// The PSN after the highest request.
    next: Option<Psn>,
    /// The PSN after the last request: below `next` while requests are sent again.
    cursor: Psn,
    /// Why requests are sent again, while they are.
    again: Option<String>,
    /// PSNs below `next` that never came: first, count.
    holes: Vec<(Psn, u32)>,
    /// The highest that was acknowledged.
    acknowledged: Option<Psn>,
    /// What an answer complained of, until requests are sent again.
    trouble: Option<&'static str>,
    awaited: VecDeque<Awaited>,
    /// The last PSN may be higher than it seems: a READ takes as many as it has responses.
    open_ended: bool,
}

/// Goes through the packets of a connection.
pub(super) struct Trace {
    streams: [Stream; 2],
    /// Payload bytes of a full packet, as far as the capture shows any.
    path_mtu: Option<usize>,
    /// Lost packets are known.
    two_sided: bool,
    /// When the last packet was.
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

    /// What the next packet is. `right`: which way it goes.
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
            // The requester does not know of it.
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

/// The payload of a packet that is followed by another of its message is a full one.
fn path_mtu(connection: &Connection) -> Option<usize> {
    let full = |facts: &&Facts| matches!(facts.position, Position::First | Position::Middle);
    let facts = connection.packets.iter().map(|passage| &passage.facts);
    facts.filter(full).map(|facts| facts.payload).filter(|n| *n > 0).max()
}

impl Stream {
    fn request(&mut self, facts: &Facts, span: u32, open_ended: bool, silence: Option<u64>) -> Mark {
        let (psn, end) = (facts.psn, facts.psn + span);
        let ahead = self.next.map_or(0, |next| psn.distance_from(next));
        if ahead.abs() > ANOTHER_LIFE {
            *self = Stream { next: Some(end), cursor: end, open_ended, ..Stream::default() };
            return Mark::new(Kind::Request, "PSNs begin anew: another connection of this queue pair");
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

    /// A request below the highest one.
    fn request_again(&mut self, facts: &Facts, silence: Option<u64>) -> Mark {
        let psn = facts.psn;
        let was_missing = self.fill(psn, 1);
        if facts.service == Service::Uc {
            return Mark::new(Kind::Again, if was_missing { "late: out of order" } else { "seen before" });
        }
        // Whoever goes back does so for one reason, which holds until it has caught up.
        if self.again.is_none() || psn.is_before(self.cursor) {
            let unanswered = self.awaited.iter().any(|read| read.contains(psn));
            let acknowledged = self.acknowledged.is_some_and(|last| !last.is_before(psn));
            let reason = match (self.trouble.take(), silence) {
                (Some(trouble), _) => trouble.into(),
                _ if was_missing => "fills the gap: late, or sent again".into(),
                _ if acknowledged && !unanswered => {
                    "sent again though it was acknowledged: the answer came late or not at all".into()
                }
                (None, Some(silence)) => format!("sent again: no answer, nothing for {}", duration(silence)),
                (None, None) => "sent again: no answer came in time".to_owned(),
            };
            self.again = Some(reason);
        }
        Mark::new(Kind::Again, self.again.clone().unwrap_or_default())
    }

    /// Notes which answers a READ or an atomic will have.
    fn expect(&mut self, facts: &Facts, end: Psn, open_ended: bool) {
        let answered = matches!(
            facts.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        );
        // One that begins within another repeats the rest of it.
        if !answered || open_ended || self.awaited.iter().any(|read| read.contains(facts.psn)) {
            return;
        }
        if self.awaited.len() == MOST_READS {
            self.awaited.pop_front();
        }
        self.awaited.push_back(Awaited { first: facts.psn, due: facts.psn, end, overtaken: false });
    }

    /// Takes PSNs out of the holes; true if the first of them was in one.
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
            && (0..ANOTHER_LIFE).contains(&psn.distance_from(next))
            && facts.syndrome.is_none_or(|s| matches!(s, Syndrome::Ack { .. }))
        {
            let sent = format!("answers nothing that was sent, the last was psn {}: a ghost", next - 1);
            return Mark::new(Kind::Trouble, sent + ", unless the capture lacks requests");
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

    /// An ACK, or what was asked for.
    fn good_answer(&mut self, facts: &Facts) -> Mark {
        let psn = facts.psn;
        if let Some(read) = self.awaited.iter_mut().find(|read| !psn.is_before(read.end) && !read.overtaken) {
            // Nothing is acknowledged beyond an answer that is due (IBTA 9.7.5.1.4).
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

    /// Takes what a READ or an atomic is answered with; returns what should have come before.
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
        let further = |last: Psn| last.is_before(psn) || last.distance_from(psn) > ANOTHER_LIFE;
        if self.acknowledged.is_none_or(further) {
            self.acknowledged = Some(psn);
        }
    }
}

fn meaning(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "sequence NAK",
        NakCode::InvalidRequest => {
            "invalid request: its opcode, order or length cannot be served; both queue pairs go to the error state"
        }
        NakCode::RemoteAccess => {
            "remote access error: key, bounds or rights forbid it; both queue pairs go to the error state"
        }
        NakCode::RemoteOperational => {
            "remote operational error: the responder failed by itself; both queue pairs go to the error state"
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
    /// What is drawn of it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut both = serializer.serialize_struct("Missing", 2)?;
        both.serialize_field("label", &self.label())?;
        both.serialize_field("remark", &self.remark())?;
        both.end()
    }
}

impl Missing {
    /// In a word.
    pub(super) fn label(&self) -> String {
        let what = if self.answers { "answer " } else { "" };
        format!("{what}{}", psn_range(self.from, self.from + (self.count - 1)))
    }

    /// In words.
    pub(super) fn remark(&self) -> String {
        format!("{} not in this capture: lost before it, or late", plural(self.count.into(), "packet"))
    }
}
