//! `roxie lab read`: a READ that loses a response.

use clap::Args;
use roxie::port::fault::FaultConfig;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RKey, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::Payload;

use super::document::{About, Bar, Bars, Block, Choice, Facts, Part, Run, Table};
use super::stage::{Scene, Stage, block, micros};

pub(super) const ABOUT: About = About {
    name: "read",
    line: "a READ that loses a response, and reads memory twice",
    see: &[
        "One READ request is answered by several packets. It consumes as many PSNs as there are responses, so the \
         requester knows which one is missing.",
        "A response that arrives ahead of a missing one is an implied NAK. The requester requests only the rest again.",
        "The trap: the responder saves no responses. It reads its memory again, which the application may have changed \
         meanwhile. The READ completes with success, with old bytes first and new ones after.",
    ],
    change: &[
        "`--lose none`: here, all bytes are of one moment, but no rule guarantees it.",
        "`--lose request`: only the timer detects the loss, and then all bytes are new.",
        "`--lose 6` of six: no packet follows the last response, so only the timer detects the loss.",
        "`--lose 1`: everything is read again.",
    ],
};

/// Lose a response of a READ, and see which bytes are read twice
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab read\n  roxie lab read --lose request\n  roxie lab read --packets 12 --lose 12"
)]
pub(super) struct Arguments {
    /// Number of response packets
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=32))]
    packets: u32,
    /// Frame to lose: a response by its number from 1, the request, or none
    #[arg(long, default_value = "3", value_parser = lost)]
    lose: Lost,
    /// Local ACK timeout code, 1 to 20: 4.096 us * 2^code
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=20))]
    timeout: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Nothing,
    Request,
    Response(u32),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Nothing => f.write_str("none"),
            Lost::Request => f.write_str("request"),
            Lost::Response(number) => number.fmt(f),
        }
    }
}

fn lost(text: &str) -> Result<Lost, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(Lost::Nothing),
        ("request", _) => Ok(Lost::Request),
        (_, Ok(number @ 1..=32)) => Ok(Lost::Response(number)),
        _ => Err("give the number of a response (1 to 32), request, or none".into()),
    }
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    if let Lost::Response(number) = arguments.lose
        && number > arguments.packets
    {
        let why = format!("--lose {number}: there are {} responses (--packets)", arguments.packets);
        return Err(Failure::Usage(why));
    }
    let mut all = vec![arguments.lose];
    let others =
        [Lost::Nothing, Lost::Request].into_iter().chain((1..=arguments.packets).map(Lost::Response));
    all.extend(others.filter(|lost| *lost != arguments.lose));
    let runs = all.iter().map(|lost| play(arguments, *lost)).collect::<Result<Vec<_>, _>>()?;
    let number = |run: &Run, name: &str| run.facts.number(name).unwrap_or(0.0);
    let bar = |run: &Run| Bar {
        name: format!("lost: {}", run.choice[0].value),
        parts: vec![
            Part::new("as it was", number(run, "old_bytes")),
            Part::new("as it became", number(run, "new_bytes")),
        ],
    };
    let bars = Bars {
        title: "Bytes returned by one READ".into(),
        unit: "bytes",
        bars: runs.iter().map(bar).collect(),
    };
    let facts = [
        ("responses sent", "responses_sent"),
        ("requests sent", "requests_sent"),
        ("timeouts", "timeouts"),
        ("complete after us", "completed_us"),
    ];
    let table = Table::of_runs("Cost of each loss", &["lost"], &facts, &runs);
    Ok((runs, vec![Block::Bars(bars), Block::Table(table)]))
}

/// Returns the faults at each end.
fn faults(lost: Lost) -> Result<[Option<FaultConfig>; 2], Failure> {
    let fault = |number: u32| {
        FaultConfig::parse(&format!("tx.drop=nth{number}")).map_err(|e| Failure::Usage(e.to_string()))
    };
    Ok(match lost {
        Lost::Nothing => [None, None],
        Lost::Request => [Some(fault(1)?), None],
        Lost::Response(number) => [None, Some(fault(number)?)],
    })
}

fn play(arguments: &Arguments, lost: Lost) -> Result<Run, Failure> {
    let mut stage =
        Stage::new(&Scene { faults: faults(lost)?, timeout: arguments.timeout, ..Scene::default() })?;
    let bytes = arguments.packets as usize * Mtu::Mtu1024.bytes();
    let fill = |stage: &Stage, byte: u8| {
        let written = stage.regions[1].memory.write(0, &vec![byte; bytes]);
        written.map_err(|e| Failure::Run(format!("the responder's memory: {e:?}")))
    };
    fill(&stage, b'o')?;
    let begin = Nanos::from_micros(10);
    stage.run(begin);
    let wr = SendWr {
        opcode: WrOpcode::Read,
        remote_addr: stage.regions[1].address,
        rkey: RKey(stage.regions[1].key),
        ..SendWr::default()
    };
    let target = stage.regions[0].sge(0, bytes as u32);
    stage.post(&wr, Payload::Sges(&[target]))?;
    // The responder's application overwrites the memory once the first response has been read from it, at most 20 us
    // after the start.
    while stage.counter(1, "sent_pkts") == 0 && stage.fabric.now() < begin + Nanos::from_micros(20) {
        if stage.fabric.step(begin + Nanos::from_micros(20)).is_none() {
            break;
        }
    }
    fill(&stage, b'n')?;
    let (at, wc) = stage.completed()?;
    if wc.status != WcStatus::Success {
        return Err(Failure::Run(format!("the READ ended with {}", wc.status)));
    }
    stage.run(at + Nanos::from_micros(20));
    let got = stage.regions[0].bytes(0, bytes);
    let count = |byte: u8| got.iter().filter(|b| **b == byte).count();
    let mut facts = Facts::default();
    facts.tell("bytes", bytes, "bytes", "asked for");
    facts.tell("old_bytes", count(b'o'), "bytes", "as they were when the READ first arrived");
    facts.tell("new_bytes", count(b'n'), "bytes", "as changed meanwhile");
    facts.tell(
        "requests_sent",
        stage.counter(0, "sent_pkts"),
        "packets",
        "READ requests, including repeated ones",
    );
    facts.tell("responses_sent", stage.counter(1, "sent_pkts"), "packets", "of answers");
    facts.tell(
        "implied_naks",
        stage.counter(0, "implied_nak_seq_err"),
        "",
        "implied NAKs: responses ahead of a \
        missing one",
    );
    facts.tell("timeouts", stage.counter(0, "local_ack_timeout_err"), "", "timeouts of the requester");
    facts.tell(
        "duplicates",
        stage.counter(1, "duplicate_request"),
        "requests",
        "were duplicates, and executed again",
    );
    facts.tell("completed_us", micros(Nanos(at.since(begin).0)), "us", "from posting to completion");
    facts.tell("status", wc.status.to_string(), "", "how it completed");
    let (ladder, _) = stage.end()?;
    let heading = format!("A READ of {} packets; lost: {lost}", arguments.packets);
    Ok(Run { choice: vec![Choice::new("lost", lost)], facts, blocks: vec![block(&heading, ladder)] })
}
