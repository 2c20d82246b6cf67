//! `roxie lab atomic`: responses to additions are lost, but the counter counts each addition once.

use clap::Args;
use roxie::port::fault::FaultConfig;
use roxie::time::Nanos;
use roxie::verbs::{RKey, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::Payload;
use serde_json::Value;

use super::document::{About, Block, Choice, Facts, Run, Table};
use super::stage::{Scene, Stage, block, micros};

pub(super) const ABOUT: About = About {
    name: "atomic",
    line: "a duplicate FETCH_ADD is answered, and not executed again",
    see: &[
        "A few FETCH_ADDs of 1 on one counter. Responses are lost, so requests are retransmitted.",
        "A WRITE may be executed again: the result is the same. An addition must not. So the responder saves the \
         results of its last atomics (as many as `max_dest_rd_atomic`), and a duplicate gets the saved result; \
         memory is not changed.",
        "The trap: an application that retries above the transport (a new work request after an error completion) adds \
         again, because the request has a new PSN. If every response is lost, the requester cannot know whether its \
         addition was executed. It was.",
    ],
    change: &[
        "`--lose none`: each request is executed on arrival.",
        "`--lose all`: the requester gives up with an error completion, although the counter was incremented.",
        "`--depth 1`: one outstanding atomic at a time. Each of them then costs a round trip.",
        "`--lose request`: the lost request was not executed, so there are no duplicates.",
    ],
};

/// Lose responses to atomics: duplicates are answered, not executed
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab atomic\n  roxie lab atomic --lose all\n  roxie lab atomic --adds 8 --depth 1"
)]
pub(super) struct Arguments {
    /// Number of additions of 1, posted at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    adds: u32,
    /// Frame to lose: a response by its number from 1, the first request, all (responses), or none
    #[arg(long, default_value = "2", value_parser = lost)]
    lose: Lost,
    /// Atomics outstanding: max_rd_atomic of both ends
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    depth: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Nothing,
    Request,
    Answer(u32),
    All,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Nothing => f.write_str("none"),
            Lost::Request => f.write_str("request"),
            Lost::Answer(number) => write!(f, "answer {number}"),
            Lost::All => f.write_str("all"),
        }
    }
}

fn lost(text: &str) -> Result<Lost, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(Lost::Nothing),
        ("request", _) => Ok(Lost::Request),
        ("all", _) => Ok(Lost::All),
        (_, Ok(number @ 1..=16)) => Ok(Lost::Answer(number)),
        _ => Err("give the number of an answer (1 to 16), request, all, or none".into()),
    }
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut all = vec![arguments.lose];
    let last = Lost::Answer(arguments.adds);
    let others = [Lost::Nothing, Lost::Request, Lost::Answer(1), last, Lost::All];
    for other in others {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    let runs = all.iter().map(|lost| play(arguments, *lost)).collect::<Result<Vec<_>, _>>()?;
    let facts = [
        ("asked for", "adds"),
        ("completed well", "completed_well"),
        ("counter", "counter"),
        ("requests came", "requests_received"),
        ("duplicates", "duplicates"),
    ];
    let table = Table::of_runs("Additions: posted, completed, and executed", &["lost"], &facts, &runs);
    Ok((runs, vec![Block::Table(table)]))
}

/// Returns the faults at each end.
fn faults(lost: Lost) -> Result<[Option<FaultConfig>; 2], Failure> {
    let fault = |text: &str| FaultConfig::parse(text).map(Some).map_err(|e| Failure::Usage(e.to_string()));
    Ok(match lost {
        Lost::Nothing => [None, None],
        Lost::Request => [fault("tx.drop=nth1")?, None],
        Lost::Answer(number) => [None, fault(&format!("tx.drop=nth{number}"))?],
        Lost::All => [None, fault("tx.drop=every1")?],
    })
}

fn play(arguments: &Arguments, lost: Lost) -> Result<Run, Failure> {
    let scene = Scene { faults: faults(lost)?, rd_atomic: arguments.depth, ..Scene::default() };
    let mut stage = Stage::new(&scene)?;
    let begin = Nanos::from_micros(10);
    stage.run(begin);
    for n in 0..arguments.adds {
        let wr = SendWr {
            wr_id: n.into(),
            opcode: WrOpcode::FetchAdd,
            remote_addr: stage.regions[1].address,
            rkey: RKey(stage.regions[1].key),
            compare_add: 1,
            ..SendWr::default()
        };
        let target = stage.regions[0].sge(8 * u64::from(n), 8);
        stage.post(&wr, Payload::Sges(&[target]))?;
    }
    let Completions { rows, successes, last } = completions(&mut stage, arguments.adds, begin)?;
    stage.run(last + Nanos::from_micros(20));
    let counter = stage.regions[1].bytes(0, 8).try_into().map(u64::from_ne_bytes).unwrap_or(0);
    let mut facts = Facts::default();
    facts.tell("adds", arguments.adds, "", "additions of 1 were posted");
    facts.tell("depth", arguments.depth, "", "of them may be outstanding");
    facts.tell("completed_well", successes, "", "of them completed with success");
    facts.tell("counter", counter, "", "value of the counter in the responder's memory, 0 at first");
    facts.tell(
        "requests_received",
        stage.counter(1, "rx_atomic_requests") + stage.counter(1, "duplicate_request"),
        "",
        "requests arrived at the responder, duplicates included",
    );
    facts.tell(
        "duplicates",
        stage.counter(1, "duplicate_request"),
        "",
        "of them were duplicates: answered, not executed",
    );
    facts.tell(
        "sent_again",
        stage.counter(0, "retransmitted_packets"),
        "packets",
        "retransmitted by the requester",
    );
    facts.tell("timeouts", stage.counter(0, "local_ack_timeout_err"), "", "timeouts of the requester");
    facts.tell(
        "completed_us",
        micros(Nanos(last.since(begin).0)),
        "us",
        "from posting to the last completion",
    );
    let (ladder, _) = stage.end()?;
    let heading = format!("{} additions, {} outstanding; lost: {lost}", arguments.adds, arguments.depth);
    let table = Table {
        title: "Completions of the requester".into(),
        columns: vec!["work request", "status", "returned", "after us"],
        rows,
        sum: false,
    };
    Ok(Run {
        choice: vec![Choice::new("lost", lost)],
        facts,
        blocks: vec![block(&heading, ladder), Block::Table(table)],
    })
}

/// Completions of the requester.
struct Completions {
    rows: Vec<Vec<Value>>,
    successes: u32,
    /// Time of the last one.
    last: Nanos,
}

/// Runs until all additions have completed.
fn completions(stage: &mut Stage, adds: u32, begin: Nanos) -> Result<Completions, Failure> {
    let mut all = Completions { rows: Vec::new(), successes: 0, last: begin };
    for _ in 0..adds {
        let Some((at, wc)) = stage.completion(Nanos::from_millis(60_000)) else {
            return Err(Failure::Run("an atomic has no completion after a minute of virtual time".into()));
        };
        let well = wc.status == WcStatus::Success;
        let word = stage.regions[0].bytes(8 * wc.wr_id, 8).try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let returned = if well { Value::from(word) } else { Value::Null };
        all.rows.push(vec![
            wc.wr_id.into(),
            wc.status.to_string().into(),
            returned,
            micros(Nanos(at.since(begin).0)).into(),
        ]);
        all.successes += u32::from(well);
        all.last = all.last.max(at);
    }
    Ok(all)
}
