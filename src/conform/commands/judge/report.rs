//! The verdicts about captures, as text, JSON and a conformance report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;

use roxie_conform_bench::report::Report;
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::through::Ruling;
use roxie_conform_bench::verdict::Verdict;
use roxie_report::failure::Failure;
use roxie_report::ladder::{self, Ladder, Style};
use serde::Serialize;

/// Frames in front of and behind those of a finding that its ladder shows.
const AROUND: u64 = 4;
/// Longest distance of the frames of a finding between which a ladder shows all.
const SPAN: u64 = 64;

/// All captures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Judgement {
    pub(super) captures: Vec<Judged>,
}

/// The verdicts about a capture.
#[derive(Debug, Serialize)]
pub(super) struct Judged {
    pub(super) file: String,
    pub(super) frames: u64,
    /// RoCE packets.
    pub(super) packets: u64,
    /// Packets of reliable connections, which are judged.
    pub(super) of_connections: u64,
    /// Packets of queue pairs beyond those that are followed.
    pub(super) unjudged: u64,
    /// Packets that receivers drop.
    pub(super) damaged: u64,
    /// Frames that may carry RoCE behind a header or link type that is not decoded.
    pub(super) unread: u64,
    /// Packets of other services.
    pub(super) others: BTreeMap<&'static str, u64>,
    pub(super) has_times: bool,
    /// Why the capture was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broken: Option<String>,
    pub(super) rulings: Vec<Ruling>,
    /// The ladder of a rule's first breach.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ladders: BTreeMap<&'static str, String>,
}

/// Numbers of the frames that a ladder shows, from and to.
fn window(frames: &[u64]) -> [(u64, u64); 2] {
    let (first, last) = (frames.first().copied().unwrap_or(0), frames.last().copied().unwrap_or(0));
    let around = |frame: u64| (frame.saturating_sub(AROUND), frame + AROUND);
    if last - first > SPAN { [around(first), around(last)] } else { [(around(first).0, around(last).1); 2] }
}

fn verdict(ruling: &Ruling) -> Verdict {
    match (ruling.broken, ruling.kept) {
        (1.., _) => Verdict::Breaks,
        (0, 1..) => Verdict::Keeps,
        (0, 0) => Verdict::NotTested,
    }
}

impl Judged {
    /// Draws the first breach of each rule, by another reading of the capture.
    pub(super) fn draw(&mut self, open: impl Fn() -> Result<Box<dyn Read>, Failure>) -> Result<(), Failure> {
        for ruling in &self.rulings {
            let Some(finding) = ruling.findings.first() else { continue };
            let windows = window(&finding.frames);
            let shows = |number: u64| windows.iter().any(|(from, to)| (*from..=*to).contains(&number));
            let Ok(reading) = ladder::read_frames(open()?, shows) else { continue };
            let Ok(passages) = ladder::meet(vec![reading.seen]) else { continue };
            let style = Style { names: None, every: true };
            let has = |connection: &ladder::Connection| {
                finding.frames.iter().all(|frame| connection.has_frame(*frame))
            };
            let connections = ladder::pair(passages);
            let drawn = connections.iter().find(|connection| has(connection));
            let text = drawn.map(|connection| ladder::draw_text(&Ladder::of(connection, &style)));
            self.ladders.extend(text.map(|text| (ruling.rule, text)));
        }
        Ok(())
    }

    /// Returns what was not judged, and why.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        note(self.damaged, "packets are damaged: receivers drop them");
        note(self.unread, "frames may carry RoCE behind a header or link type that is not decoded");
        note(self.unjudged, "packets belong to queue pairs beyond the first 1,024, and are not judged");
        for (service, count) in &self.others {
            let how = if *service == "RD" { "not judged" } else { "judged by their form alone" };
            note(*count, &format!("packets are of {service}, which are {how}"));
        }
        if !self.has_times {
            notes.push("frames without times: rules about time are left out".to_owned());
        }
        notes.extend(self.broken.as_ref().map(|why| format!("the rest was not read: {why}")));
        notes
    }

    fn write(&self, text: &mut String, lists_all: bool) {
        let Judged { file, frames, packets, of_connections, .. } = self;
        let _ = writeln!(
            text,
            "{file}: {frames} frames, {packets} RoCE packets, {of_connections} of reliable connections"
        );
        for note in self.notes() {
            let _ = writeln!(text, "  {note}");
        }
        for ruling in &self.rulings {
            let Ruling { rule, clause, asks, kept, broken, .. } = ruling;
            let verdict = verdict(ruling);
            if verdict == Verdict::NotTested && ruling.undecided == 0 && !lists_all {
                continue;
            }
            let words = if ruling.undecided > 0 && verdict == Verdict::NotTested {
                "undecided"
            } else {
                verdict.words()
            };
            let times = match (kept, broken) {
                (0, 0) => String::new(),
                (_, 0) => format!(" ({kept} times)"),
                _ => format!(" (broken {broken} times, kept {kept} times)"),
            };
            let _ = writeln!(text, "{words:<10} {rule}, {clause}: {asks}{times}");
            for finding in &ruling.findings {
                let _ = writeln!(text, "           {finding}");
            }
            if ruling.undecided > 0 {
                let (count, why) = (ruling.undecided, &ruling.why_undecided);
                let _ = writeln!(text, "           not decidable {count} times: {why}");
            }
            for line in self.ladders.get(rule).into_iter().flat_map(|ladder| ladder.lines()) {
                let _ = writeln!(text, "           {line}");
            }
        }
        if *of_connections == 0 && self.others.is_empty() {
            let _ = writeln!(text, "nothing to judge: no undamaged RoCE packet");
        }
    }

    fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.rulings.iter().map(|ruling| Outcome {
            name: format!("judge/{}", ruling.rule),
            chapter: self.file.clone(),
            clause: ruling.clause.into(),
            stimulus: format!("{} packets", self.packets),
            asks: ruling.asks.into(),
            verdict: verdict(ruling),
            came: match (ruling.findings.first(), ruling.undecided) {
                (Some(finding), _) => finding.to_string(),
                (None, 1..) => format!("not decidable: {}", ruling.why_undecided),
                (None, 0) if ruling.kept == 0 => "nothing in the capture tests it".into(),
                (None, 0) => String::new(),
            },
            seconds: 0.0,
            ladder: self.ladders.get(ruling.rule).cloned().unwrap_or_default(),
            adapters: Vec::new(),
            script: String::new(),
            capture: Vec::new(),
        })
    }
}

impl Judgement {
    /// True if a rule is broken, or a capture was not read to its end.
    pub(super) fn has_failed(&self) -> bool {
        let has_failed = |judged: &Judged| {
            judged.broken.is_some() || judged.rulings.iter().any(|ruling| ruling.broken > 0)
        };
        self.captures.iter().any(has_failed)
    }

    /// Returns the verdicts as lines.
    pub(super) fn text(&self, lists_all: bool) -> String {
        let mut text = String::new();
        self.captures.iter().for_each(|judged| judged.write(&mut text, lists_all));
        text
    }

    /// Returns the verdicts as a report of the conformance bench.
    pub(super) fn report(&self) -> Report {
        let files: Vec<&str> = self.captures.iter().map(|judged| judged.file.as_str()).collect();
        let files = files.join(" and ");
        let mut report = Report::new(files.clone(), files, "capture", BTreeMap::new());
        report.checks = self.captures.iter().flat_map(Judged::outcomes).collect();
        report
    }
}
