//! Converts a connection's packets to rungs. Similar consecutive packets share a rung.

use roxie::wire::{Position, Psn, Syndrome};
use serde::Serialize;

use super::trace::{Kind, Missing, Trace};
use super::{Connection, Facts, Fate, Passage, duration, plural, psn_range};

/// Fewest similar packets that are merged into one rung.
const SHORTEST_RUN: usize = 3;
/// Shortest gap that gets a line, in nanoseconds.
const LONG_NS: i64 = 1_000_000;
/// Such a gap must also be this many times the median gap.
const LONG_TIMES: i64 = 10;

/// How to draw.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// Names of the ends [default: address and queue pair].
    pub names: Option<[&'static str; 2]>,
    /// True for one rung per packet.
    pub every: bool,
}

/// A connection, ready to be drawn.
#[derive(Debug, Serialize)]
pub struct Ladder {
    pub(super) names: [String; 2],
    pub(super) title: String,
    pub(super) summary: String,
    pub(super) steps: Vec<Step>,
}

/// A line of the drawing.
#[derive(Debug, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum Step {
    Rung(Rung),
    Missing(Missing),
    /// A gap without packets.
    Silence {
        /// Length in nanoseconds.
        ns: u64,
    },
}

/// One packet, or several similar ones.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rung {
    /// Frame number in the capture.
    pub(super) number: Option<u64>,
    /// Nanoseconds since the first packet.
    pub(super) at: Option<i64>,
    pub(super) right: bool,
    pub(super) line: Line,
    pub(super) end: End,
    pub(super) label: String,
    pub(super) remark: String,
}

/// Style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Line {
    Plain,
    Again,
    Trouble,
}

/// Where a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    Arrives,
    /// On the way to the receiver.
    Lost,
    /// At the receiver; the line begins on the way, because the packet was never seen leaving.
    Extra,
}

/// A packet with the rung that it would get by itself.
struct Atom<'a> {
    facts: &'a Facts,
    rung: Rung,
}

#[derive(Default)]
struct Tally {
    packets: u64,
    again: u64,
    naks: u64,
    lost: u64,
    missing: u64,
}

impl Ladder {
    /// Builds the ladder of a connection.
    pub fn of(connection: &Connection, style: &Style) -> Ladder {
        let start = connection.packets.iter().find_map(|passage| passage.at);
        let end = connection.packets.iter().rev().find_map(|passage| passage.at);
        let long = long_silence(connection);
        let mut trace = Trace::new(connection);
        let (mut steps, mut run) = (Vec::new(), Vec::<Atom<'_>>::new());
        let (mut tally, mut last_at) = (Tally::default(), start);
        for passage in &connection.packets {
            let right = connection.goes_right(&passage.facts);
            let mark = trace.mark(passage, right);
            let atom = Atom::new(passage, right, mark.kind, &mark.remark, start);
            tally.count(&atom, mark.kind, mark.missing);
            let silence =
                passage.at.zip(last_at).map(|(at, last)| at - last).filter(|silence| *silence >= long);
            last_at = passage.at.or(last_at);
            let goes_on = silence.is_none() && mark.missing.is_none();
            if !(goes_on && run.last().is_some_and(|last| atom.follows(last))) {
                finish(&mut run, style.every, &mut steps);
            }
            steps.extend(silence.map(|ns| Step::Silence { ns: ns.cast_unsigned() }));
            steps.extend(mark.missing.map(Step::Missing));
            run.push(atom);
        }
        finish(&mut run, style.every, &mut steps);
        let names = match style.names {
            Some(names) => names.map(str::to_owned),
            None => connection.ends.map(|(address, qp)| match qp {
                Some(qp) => format!("{address} qp {qp}"),
                None => format!("{address} qp unknown"),
            }),
        };
        let lasted = start.zip(end).map_or(0, |(start, end)| (end - start).max(0).cast_unsigned());
        let title = format!("{}  {}  <->  {}", connection.service.name(), names[0], names[1]);
        Ladder { title, names, summary: tally.summary(lasted, connection), steps }
    }
}

impl Ladder {
    /// Keeps at most `most` lines, and says so in the summary.
    pub fn shorten(&mut self, most: usize) {
        let all = self.steps.len();
        if all > most {
            self.steps.truncate(most);
            self.summary += &format!("; the first {most} of {all} lines are drawn");
        }
    }
}

impl Tally {
    fn count(&mut self, atom: &Atom<'_>, kind: Kind, missing: Option<Missing>) {
        self.packets += 1;
        self.again += u64::from(matches!(kind, Kind::Again | Kind::AnswerAgain));
        let nak = matches!(atom.facts.syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }));
        self.naks += u64::from(nak);
        self.lost += u64::from(atom.rung.end == End::Lost);
        self.missing += missing.map_or(0, |missing| missing.count.into());
    }

    fn summary(&self, lasted_ns: u64, connection: &Connection) -> String {
        let mut text = format!("{} in {}", plural(self.packets, "packet"), duration(lasted_ns));
        for (n, what) in
            [(self.again, "sent again"), (self.lost, "lost on the way"), (self.missing, "missing")]
        {
            if n > 0 {
                text += &format!(", {n} {what}");
            }
        }
        if self.naks > 0 {
            text += &format!(", {}", plural(self.naks, "NAK"));
        }
        text + if connection.two_sided { "; both ends captured" } else { "" }
    }
}

/// Returns the shortest gap, in nanoseconds, that gets a line of its own.
fn long_silence(connection: &Connection) -> i64 {
    let times = connection.packets.iter().filter_map(|passage| passage.at);
    let mut gaps: Vec<i64> = times.clone().zip(times.skip(1)).map(|(a, b)| b - a).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
    usual.saturating_mul(LONG_TIMES).max(LONG_NS)
}

impl<'a> Atom<'a> {
    fn new(passage: &'a Passage, right: bool, kind: Kind, inferred: &str, start: Option<i64>) -> Atom<'a> {
        let facts = &passage.facts;
        let line = match kind {
            Kind::Again | Kind::AnswerAgain => Line::Again,
            Kind::Trouble => Line::Trouble,
            Kind::Request | Kind::Answer | Kind::Datagram => Line::Plain,
        };
        let end = match passage.fate {
            Fate::Lost => End::Lost,
            Fate::Extra => End::Extra,
            Fate::Unknown | Fate::Delivered => End::Arrives,
        };
        let rung = Rung {
            number: passage.number(right),
            at: passage.at.zip(start).map(|(at, start)| at - start),
            right,
            line,
            end,
            label: String::new(),
            remark: remark(passage, inferred),
        };
        Atom { facts, rung }
    }

    /// True if this packet can join the rung of `last`.
    fn follows(&self, last: &Atom<'_>) -> bool {
        let (a, b) = (&last.rung, &self.rung);
        let alike = (a.right, a.line, a.end, &a.remark) == (b.right, b.line, b.end, &b.remark);
        let (before, after) = (last.facts, self.facts);
        let goes_on = match (before.position, after.position) {
            (Position::First | Position::Middle, Position::Middle | Position::Last) => {
                before.operation == after.operation
            }
            (Position::Only, Position::Only) => before.opcode == after.opcode && before.carries.is_empty(),
            _ => false,
        };
        alike && goes_on && after.psn == before.psn.next()
    }
}

/// Appends the rungs of a run of packets.
fn finish(run: &mut Vec<Atom<'_>>, every: bool, steps: &mut Vec<Step>) {
    let rung = |atom: &Atom<'_>, name: &str, last: Psn| {
        let again = if atom.rung.line == Line::Again { " again" } else { "" };
        let label = format!("{name} {}{again}", psn_range(atom.facts.psn, last));
        Step::Rung(Rung { label, ..atom.rung.clone() })
    };
    match (&run[..], every) {
        ([first, .., last], false) if run.len() >= SHORTEST_RUN => {
            let (from, to) = (first.facts.name(), last.facts.name());
            let name = if from == to { from } else { format!("{from}..{}", ending(&from, &to)) };
            steps.push(rung(first, &name, last.facts.psn));
        }
        (atoms, _) => steps.extend(atoms.iter().map(|atom| rung(atom, &atom.facts.name(), atom.facts.psn))),
    }
    run.clear();
}

/// Returns the words of `to` after the prefix shared with `from`: `LAST_WITH_IMM` for WRITE_LAST_WITH_IMM after
/// WRITE_FIRST.
fn ending<'a>(from: &str, to: &'a str) -> &'a str {
    let same = from.split('_').zip(to.split('_')).take_while(|(a, b)| a == b).map(|(a, _)| a.len() + 1).sum();
    to.get(same..).unwrap_or(to)
}

/// Combines the comments of both captures, or what the PSN implies if there are none.
fn remark(passage: &Passage, inferred: &str) -> String {
    let said = |sight: &Option<super::Sight>| {
        let comment = sight.as_ref().map_or("", |sight| &sight.comment);
        // Over sockets the IPv4 identification is unknown for every packet: leave that part out.
        comment.split_once(" (ICRC good for").map_or(comment, |(verdict, _)| verdict).to_owned()
    };
    let (sender, receiver) = (said(&passage.departed), said(&passage.arrived));
    let telling = |text: &&String| !matches!(&text[..], "" | "request" | "answer" | "acknowledges");
    let mut parts: Vec<String> = [&sender].into_iter().filter(telling).cloned().collect();
    match passage.fate {
        Fate::Lost => parts.push("lost on the way".into()),
        Fate::Extra => parts.push("received once more than sent: duplicated on the way".into()),
        Fate::Unknown | Fate::Delivered => {}
    }
    let executed = receiver.is_empty() || receiver == "executed";
    if parts.is_empty() && !inferred.is_empty() && (executed || !telling(&&receiver)) {
        parts.push(inferred.to_owned());
    }
    parts.extend([&receiver].into_iter().filter(telling).cloned());
    parts.join("; ")
}
