//! What each packet of a connection is, told by its PSN and by what came before it (IBTA 9.7).

use roxie::wire::{NakCode, Operation, Position, Psn, Service, Syndrome, rnr_timer_ns};

use super::{Connection, Seen, duration, plural};

/// A jump of more PSNs than any window is another connection on the same queue pair.
const ANOTHER_LIFE: i32 = 1 << 16;

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
    pub(super) from: Psn,
    pub(super) count: u32,
    /// Of answers.
    pub(super) answers: bool,
}

/// What was found out about a packet.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    /// In words, if it is worth any.
    pub(super) remark: String,
    pub(super) missing: Option<Missing>,
}

/// The requests of one end, and the answers to them.
#[derive(Debug, Default)]
struct Stream {
    /// The PSN after the last request.
    next: Option<Psn>,
    /// PSNs below it that never came: first, count.
    holes: Vec<(Psn, u32)>,
    /// The last that was acknowledged.
    acknowledged: Option<Psn>,
    /// What the last answer complained of.
    trouble: Option<&'static str>,
    /// The PSN after the last READ response.
    answers: Option<Psn>,
    /// The last PSN may be higher than it seems: a READ takes as many as it has responses.
    open_ended: bool,
}

/// Goes through the packets of a connection.
pub(super) struct Trace {
    streams: [Stream; 2],
    /// Payload bytes of a full packet, as far as the capture shows any.
    path_mtu: Option<usize>,
}

impl Trace {
    pub(super) fn new(connection: &Connection) -> Trace {
        Trace { streams: Default::default(), path_mtu: path_mtu(connection) }
    }

    /// What the next packet is. `right`: which way it goes.
    pub(super) fn mark(&mut self, seen: &Seen, right: bool) -> Mark {
        let plain = |kind| Mark { kind, remark: String::new(), missing: None };
        if !seen.is_ordered() || seen.operation == Operation::Cnp {
            return match seen.operation {
                Operation::Cnp => Mark { remark: "congestion: slow down".into(), ..plain(Kind::Datagram) },
                _ => plain(Kind::Datagram),
            };
        }
        if seen.is_answer() { self.streams[usize::from(right)].answer(seen) } else { self.request(seen, right) }
    }

    fn request(&mut self, seen: &Seen, right: bool) -> Mark {
        let span = match (seen.asks, self.path_mtu) {
            (Some(bytes), Some(mtu)) => (bytes as usize).div_ceil(mtu).max(1) as u32,
            _ => seen.count,
        };
        let stream = &mut self.streams[usize::from(!right)];
        let open_ended = seen.asks.is_some() && self.path_mtu.is_none();
        stream.request(seen, span, open_ended)
    }
}

/// The payload of a packet that is followed by another of its message is a full one.
pub(super) fn path_mtu(connection: &Connection) -> Option<usize> {
    let full = |seen: &&Seen| matches!(seen.position, Position::First | Position::Middle) && seen.count == 1;
    connection.packets.iter().filter(full).map(|seen| seen.payload).filter(|n| *n > 0).max()
}

impl Stream {
    fn request(&mut self, seen: &Seen, span: u32, open_ended: bool) -> Mark {
        let (psn, end) = (seen.psn, seen.psn + span);
        let mark = |kind, remark: &str| Mark { kind, remark: remark.into(), missing: None };
        let Some(next) = self.next else {
            (self.next, self.open_ended) = (Some(end), open_ended);
            return mark(Kind::Request, "");
        };
        let ahead = psn.distance_from(next);
        if ahead.abs() > ANOTHER_LIFE {
            *self = Stream { next: Some(end), open_ended, ..Stream::default() };
            return mark(Kind::Request, "PSNs begin anew: another connection of this queue pair");
        }
        if ahead >= 0 {
            let gap = (ahead > 0 && !self.open_ended).then_some(Missing {
                from: next,
                count: ahead as u32,
                answers: false,
            });
            self.holes.extend(gap.map(|gap| (gap.from, gap.count)));
            (self.next, self.open_ended) = (Some(end), open_ended);
            return Mark { missing: gap, ..mark(Kind::Request, "") };
        }
        if end.distance_from(next) > 0 {
            self.next = Some(end);
        }
        let was_missing = self.fill(psn, span);
        if seen.service == Service::Uc {
            return mark(Kind::Again, if was_missing { "late: out of order" } else { "seen before" });
        }
        if self.acknowledged.is_some_and(|last| !last.is_before(psn)) {
            return mark(Kind::Again, "a duplicate: acknowledged already, the acknowledgement came too late");
        }
        let why = self.trouble.unwrap_or("sent again: no answer came in time");
        if was_missing {
            return mark(Kind::Again, &format!("{why}; the first time that this capture has it"));
        }
        mark(Kind::Again, why)
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

    fn answer(&mut self, seen: &Seen) -> Mark {
        let psn = seen.psn;
        let known = self.acknowledged.is_some_and(|last| {
            let behind = last.distance_from(psn);
            (0..ANOTHER_LIFE).contains(&behind)
        });
        let mark = |kind, remark: String| Mark { kind, remark, missing: None };
        match seen.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.acknowledge(psn - 1);
                self.trouble = Some("sent again after the sequence NAK");
                mark(Kind::Trouble, format!("sequence NAK: {psn} is missing, send again from there"))
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.acknowledge(psn - 1);
                self.trouble = Some("sent again after the RNR NAK");
                let wait = duration(rnr_timer_ns(timer));
                mark(Kind::Trouble, format!("receiver not ready: no receive is posted, come again after {wait}"))
            }
            Some(Syndrome::Nak(code)) => mark(Kind::Trouble, meaning(code).into()),
            Some(Syndrome::Reserved(byte)) => mark(Kind::Trouble, format!("reserved syndrome {byte:#04x}")),
            Some(Syndrome::Ack { .. }) | None => {
                let missing = self.missing_answers(seen);
                let again = known && (seen.operation != Operation::ReadResponse || missing.is_none());
                self.acknowledge(psn);
                self.trouble = None;
                let remark = if again { "answered before" } else { "" };
                let kind = if again { Kind::AnswerAgain } else { Kind::Answer };
                Mark { kind, remark: remark.into(), missing }
            }
        }
    }

    /// READ responses of one message follow one another.
    fn missing_answers(&mut self, seen: &Seen) -> Option<Missing> {
        if seen.operation != Operation::ReadResponse {
            return None;
        }
        let expected = self.answers.replace(seen.psn + seen.count)?;
        let ahead = seen.psn.distance_from(expected);
        let inside = matches!(seen.position, Position::Middle | Position::Last);
        (inside && (1..ANOTHER_LIFE).contains(&ahead)).then_some(Missing {
            from: expected,
            count: ahead as u32,
            answers: true,
        })
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

impl Missing {
    /// In words.
    pub(super) fn label(&self) -> String {
        let what = if self.answers { "answers, " } else { "" };
        match self.count {
            1 => format!("{what}psn {}", self.from),
            n => format!("{what}psn {}..{}", self.from, self.from + (n - 1)),
        }
    }

    pub(super) fn remark(&self) -> String {
        format!("{} not in this capture: lost before it, or not captured", plural(self.count.into(), "packet"))
    }
}
