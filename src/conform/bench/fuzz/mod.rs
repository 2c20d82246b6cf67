//! Fuzzing: packets between valid and invalid, from a seed, to queue pairs that are made for them.
//!
//! ```text
//! generate -> a sequence of packets for one queue pair    (Sequence, as text: script)
//! field    -> plays it at the target, and looks           (Observed)
//! model    -> follows every state that is allowed         (Model)
//! judge    -> compares                                    (Finding)
//! honest   -> a connection beside, which must go on
//! shrink   -> the shortest sequence that still breaks it  (Tries)
//! ```
//!
//! A finding counts if it repeats at a new queue pair, so that a packet lost on the way is none.

use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::bench::{Bench, TRIES};
use crate::run::Outcome;
use crate::service::Service;
use crate::verdict::{Script, Stop, Verdict};

mod draft;
mod field;
mod generate;
mod honest;
mod judge;
mod model;
mod script;
mod shrink;
#[cfg(test)]
mod tests;
mod tries;

pub use draft::{Draft, Fault, Place};
use field::Field;
use generate::Abilities;
use judge::{Finding, Kind, judge};
pub use script::{Line, ScriptError, Sequence, Step};
pub use tries::Tries;

/// Chapter of fuzzing in reports.
const CHAPTER: &str = "Fuzzing";
/// Services that are fuzzed, with their names in reports.
const SERVICES: [(Service, &str); 3] = [(Service::Rc, "rc"), (Service::Uc, "uc"), (Service::Ud, "ud")];
/// Sequences that are played to shrink one.
const SHRINKING: u32 = 400;
/// Looks at a target that may not have come to an end yet, and pauses before them.
const LOOKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(30), Duration::from_millis(150)];
/// Time of a campaign beside ten times that of its packets at the given rate.
const LEAST_TIME: Duration = Duration::from_secs(120);

/// A campaign.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Seed of all sequences.
    pub seed: u64,
    /// Number of packets.
    pub packets: u64,
    /// Packets a second, at most.
    pub rate: u32,
}

/// Result for a service.
#[derive(Clone, Debug, Default)]
struct Tally {
    sequences: u64,
    packets: u64,
    /// Findings that did not repeat.
    unrepeated: u64,
    found: Option<(Finding, Sequence)>,
    seconds: f64,
    capture: Vec<u8>,
}

/// A campaign under way.
struct Campaign<'a> {
    bench: &'a mut Bench,
    field: Field,
    rate: u32,
    /// Time at which a campaign gives up: an agent may answer late each time.
    until: Instant,
    /// Capture of the sequence played last.
    capture: Vec<u8>,
    /// Connects to the agent of a target that was gone.
    again: &'a mut Again<'a>,
    /// True if the target was lost and has not come back.
    is_gone: bool,
}

/// Returns a new connection to an agent that was lost; `None` if it does not come back.
pub type Again<'a> = dyn FnMut() -> Option<Agent> + 'a;

impl Config {
    /// Returns the longest time of a campaign.
    fn limit(&self) -> Duration {
        let packets = u32::try_from(self.packets).unwrap_or(u32::MAX);
        LEAST_TIME + Duration::from_secs(10) * packets / self.rate.max(1)
    }
}

impl<'a> Campaign<'a> {
    fn new(
        bench: &'a mut Bench,
        config: &Config,
        limit: Duration,
        again: &'a mut Again<'a>,
    ) -> Script<Campaign<'a>> {
        let field = Field::new(bench)?;
        let (rate, until) = (config.rate.max(1), Instant::now() + limit);
        Ok(Campaign { bench, field, rate, until, capture: Vec::new(), again, is_gone: false })
    }

    /// Waits for a target that is gone, and prepares it anew. Returns false if it does not come back.
    fn comes_back(&mut self) -> bool {
        let Some(agent) = (self.again)() else { return false };
        let field = self.bench.reconnect(agent).and_then(|()| Field::new(self.bench));
        field.map(|field| self.field = field).is_ok()
    }

    /// Plays a sequence. Returns what is wrong; an error if the agent refuses something.
    fn play(&mut self, sequence: &Sequence) -> Script<Option<Finding>> {
        let played = self.played(sequence);
        self.capture = self.bench.wire.take_capture();
        match played {
            Err(Stop::Lost(words) | Stop::Silent(words)) => Ok(Some(Finding { kind: Kind::Gone, words })),
            Err(Stop::Breaks(words)) => {
                let kind =
                    if self.field.renew_honest(self.bench).is_ok() { Kind::Honest } else { Kind::Gone };
                Ok(Some(Finding { kind, words }))
            }
            other => other,
        }
    }

    fn played(&mut self, sequence: &Sequence) -> Script<Option<Finding>> {
        let (pair, mut observed) = self.field.play(self.bench, sequence, self.rate)?;
        let is_exact = self.field.takes_reads();
        let mut found = None;
        for pause in LOOKS {
            std::thread::sleep(pause);
            if !pause.is_zero() {
                observed.add(self.field.observe(self.bench, &pair, sequence)?);
            }
            found = judge(sequence, &self.field.regions, &observed, is_exact);
            if found.is_none() {
                break;
            }
        }
        let is_damaged = found.as_ref().is_some_and(|finding| finding.kind == Kind::Damage);
        self.field.clean(self.bench, &pair, is_damaged)?;
        self.field.honest.transfer(self.bench)?;
        Ok(found)
    }

    /// Plays a sequence to a target that is there, and waits for it if it is gone afterwards. Returns a finding of this
    /// kind.
    fn repeats(&mut self, sequence: &Sequence, kind: Kind) -> Option<Finding> {
        if Instant::now() > self.until || self.is_gone {
            return None;
        }
        // A target that was gone before is not waited for so long again.
        self.bench.tries = if kind == Kind::Gone { 1 } else { TRIES };
        let found = self.play(sequence);
        self.bench.tries = TRIES;
        let found = found.ok().flatten()?;
        self.is_gone = found.kind == Kind::Gone && !self.comes_back();
        Some(found).filter(|found| found.kind == kind)
    }

    /// Plays a sequence with a finding again. Returns the shortest one that has a finding of this kind; `None` if it
    /// does not repeat. One that the target did not survive is told in any case.
    fn shrunk(&mut self, sequence: &Sequence, found: Finding) -> Option<(Finding, Sequence)> {
        let kind = found.kind;
        self.is_gone = kind == Kind::Gone && !self.comes_back();
        let mut last = None;
        let mut fails = |candidate: &Sequence| {
            let again = self.repeats(candidate, kind);
            let fails = again.is_some();
            last = again.or(last.take());
            fails
        };
        if !fails(sequence) {
            return (kind == Kind::Gone).then(|| (found, sequence.clone()));
        }
        let short = shrink::shrink(sequence, SHRINKING, &mut fails);
        // The last play is of the sequence that is told.
        fails(&short);
        last.map(|finding| (finding, short))
    }
}

/// Returns the abilities of bench and target.
fn abilities(bench: &Bench) -> Abilities {
    Abilities { has_raw: bench.wire.sees_headers(), has_atomics: bench.device_number("atomic_cap") > 0 }
}

/// Fuzzes a target. Returns an outcome for each service. `again` is asked for the agent of a target that is gone,
/// `progress` hears the number of packets sent.
///
/// # Errors
/// If the agent refuses what fuzzing needs, or the target is lost before the first packet.
pub fn run<'a>(
    bench: &'a mut Bench,
    config: &Config,
    again: &'a mut Again<'a>,
    progress: &mut dyn FnMut(u64),
) -> Script<Vec<Outcome>> {
    let abilities = abilities(bench);
    let limit = config.limit();
    let mut campaign = Campaign::new(bench, config, limit, again)?;
    let mut tallies: [Tally; 3] = Default::default();
    let (mut sent, mut n, mut ended) = (0, 0, None);
    while sent < config.packets && ended.is_none() {
        if Instant::now() > campaign.until {
            ended = Some(format!("the target is slow: the time is up after {} s", limit.as_secs()));
            break;
        }
        let sequence = generate::sequence(config.seed, n, abilities);
        n += 1;
        let at = SERVICES.iter().position(|(service, _)| *service == sequence.service).unwrap_or(0);
        let tally = &mut tallies[at];
        if tally.found.is_some() {
            // Of a service the first finding is told.
            sent += sequence.sent().len() as u64;
            continue;
        }
        let begun = Instant::now();
        let packets = sequence.sent().len() as u64;
        (sent, tally.sequences, tally.packets) =
            (sent + packets, tally.sequences + 1, tally.packets + packets);
        match campaign.play(&sequence) {
            Ok(None) => {}
            Ok(Some(finding)) => {
                tally.capture.clone_from(&campaign.capture);
                tally.found = campaign.shrunk(&sequence, finding);
                match &tally.found {
                    _ if campaign.is_gone => ended = Some("the target is gone".to_owned()),
                    Some(_) => tally.capture.clone_from(&campaign.capture),
                    None => tally.unrepeated += 1,
                }
            }
            Err(stop) => ended = Some(stop.reason().to_owned()),
        }
        tally.seconds += begun.elapsed().as_secs_f64();
        progress(sent);
    }
    Ok(tallies
        .into_iter()
        .zip(SERVICES)
        .map(|(tally, (_, name))| outcome(name, tally, config, ended.as_deref()))
        .collect())
}

/// Plays one sequence, and says what is wrong.
///
/// # Errors
/// If the agent refuses what fuzzing needs.
pub fn replay(bench: &mut Bench, sequence: &Sequence, rate: u32) -> Script<Outcome> {
    let start = Instant::now();
    let config = Config { seed: 0, packets: 0, rate };
    let mut never = || None;
    let mut campaign = Campaign::new(bench, &config, LEAST_TIME, &mut never)?;
    let found = campaign.play(sequence)?;
    let tally = Tally {
        sequences: 1,
        packets: sequence.sent().len() as u64,
        found: found.map(|finding| (finding, sequence.clone())),
        seconds: start.elapsed().as_secs_f64(),
        capture: campaign.capture,
        ..Tally::default()
    };
    let stimulus = format!("the {} packets of a script", tally.packets);
    Ok(Outcome { name: "fuzz/script".into(), stimulus, ..outcome("script", tally, &config, None) })
}

fn outcome(name: &str, tally: Tally, config: &Config, ended: Option<&str>) -> Outcome {
    let (verdict, came) = match (&tally.found, ended) {
        (Some((finding, _)), _) => (Verdict::Breaks, finding.words.clone()),
        (None, Some(why)) => (Verdict::NotTested, format!("not to the end: {why}")),
        (None, None) if tally.sequences == 0 => (Verdict::NotTested, "no sequence of this service".into()),
        (None, None) => (Verdict::Keeps, String::new()),
    };
    let unrepeated = match tally.unrepeated {
        0 => String::new(),
        n => format!("; {n} findings did not repeat, as if packets were lost"),
    };
    Outcome {
        name: format!("fuzz/{name}"),
        chapter: CHAPTER.into(),
        clause: "9.7, 9.8".into(),
        stimulus: format!(
            "{} packets in {} sequences, seed {}{unrepeated}",
            tally.packets, tally.sequences, config.seed
        ),
        asks: "what is left behind follows from the valid packets alone, memory that was not granted stays as it was, and the target lives"
            .into(),
        verdict,
        came,
        seconds: tally.seconds,
        ladder: String::new(),
        adapters: Vec::new(),
        script: tally.found.map(|(_, sequence)| sequence.to_string()).unwrap_or_default(),
        capture: tally.capture,
    }
}
