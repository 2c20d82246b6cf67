//! `roxie lab rnr`: a SEND that finds no receive, and is retried.

use clap::Args;
use roxie::time::Nanos;
use roxie::verbs::{QpAttr, SendWr, WcStatus, WrOpcode};
use roxie::wire::rnr_timer_ns;
use roxie_report::failure::Failure;
use roxie_sim::Payload;

use super::document::{About, Block, Chart, Choice, Facts, Run, Series, Table, axis};
use super::stage::{Scene, Stage, block, micros};

pub(super) const ABOUT: About = About {
    name: "rnr",
    line: "no receive is posted: an RNR NAK, a wait, and the storm that a short wait makes",
    see: &[
        "SENDs arrive at a queue without a receive. The responder sends an RNR NAK with a time to wait (its \
         `min_rnr_timer`); then the requester retransmits all outstanding packets.",
        "The trap: the responder chooses the wait, as a code of 5 bits. If it is too short, every wait costs another \
         NAK and all outstanding packets again: a storm. If it is too long, the message waits although a receive is \
         posted.",
        "After `rnr_retry` waits the requester gives up, and the queue pair enters the error state. 7 means no limit.",
    ],
    change: &[
        "`--late 0`: the receives are posted first, and there is no NAK.",
        "`--timer 1`: 10 us. Count the NAKs.",
        "`--timer 24`: 40.96 ms. No storm, and the message is forty milliseconds late.",
        "`--retries 3 --timer 1`: the requester gives up long before the receives are posted.",
    ],
};

/// Send to a queue without receives: RNR NAKs, waits, and a storm of them
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab rnr\n  roxie lab rnr --timer 1              a storm\n  roxie lab rnr --retries 3 --timer 1  giving up"
)]
pub(super) struct Arguments {
    /// Number of one-packet messages, posted at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    messages: u32,
    /// Delay in us until the responder posts its receives, 0 to 50000
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u64).range(0..=50_000))]
    late: u64,
    /// The responder's min_rnr_timer code, 1 (10 us) to 31 (491.52 ms)
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..=31))]
    timer: u8,
    /// The requester's rnr_retry: 0 to 6 retries, or 7 for unlimited
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    retries: u8,
}

/// Timer codes for comparison.
const TIMERS: [u8; 8] = [1, 4, 8, 10, 12, 14, 16, 20];

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let asked = (arguments.timer, arguments.retries);
    let mut all = vec![asked];
    let others = [7, 3].into_iter().flat_map(|retries| TIMERS.map(|timer| (timer, retries)));
    all.extend(others.filter(|other| *other != asked));
    let runs = all
        .iter()
        .map(|(timer, retries)| play(arguments, *timer, *retries))
        .collect::<Result<Vec<_>, _>>()?;
    let patient = |run: &&Run| run.choice[1].value.starts_with('7');
    let mut endless: Vec<&Run> = runs.iter().filter(patient).collect();
    let timer = |run: &Run| run.facts.number("timer_us").unwrap_or(0.0);
    endless.sort_by(|a, b| timer(a).total_cmp(&timer(b)));
    let number = |run: &Run, name: &str| run.facts.number(name).unwrap_or(0.0);
    let facts = [
        ("timer us", "timer_us"),
        ("RNR NAKs", "rnr_naks"),
        ("packets sent again", "sent_again"),
        ("us too late", "too_late_us"),
    ];
    let table = Table::of_runs("Cost of the timer (rnr_retry 7)", &[], &facts, endless.iter().copied());
    let points = |name: &'static str| endless.iter().map(move |run| (timer(run), number(run, name)));
    let chart = Chart {
        title: "Retransmitted packets, by the timer".into(),
        x: axis("RNR timer", "us"),
        y: axis("packets", "packets"),
        series: vec![
            Series::new("sent again", points("sent_again")),
            Series::new("RNR NAKs", points("rnr_naks")),
        ],
        levels: vec![],
    };
    Ok((runs, vec![Block::Table(table), Block::Chart(chart)]))
}

fn play(arguments: &Arguments, timer: u8, retries: u8) -> Result<Run, Failure> {
    let change = |_: usize, [init, rtr, rts]: [QpAttr; 3]| {
        [init, QpAttr { min_rnr_timer: Some(timer), ..rtr }, QpAttr { rnr_retry: Some(retries), ..rts }]
    };
    // A long ACK timeout, 1 s, so that only the RNR timer acts.
    let mut stage = Stage::with(&Scene { timeout: 18, ..Scene::default() }, change)?;
    let begin = Nanos::from_micros(10);
    let post_receives = |stage: &mut Stage| -> Result<(), Failure> {
        let sge = stage.regions[1].sge(0, 1024);
        let Stage { fabric, qps, .. } = stage;
        (0..arguments.messages).try_for_each(|n| fabric.host(1).post_recv(&qps[1], n.into(), &[sge]))?;
        Ok(())
    };
    if arguments.late == 0 {
        post_receives(&mut stage)?;
    }
    stage.run(begin);
    let source = stage.regions[0].sge(0, 1024);
    for wr_id in 0..u64::from(arguments.messages) {
        let wr = SendWr { opcode: WrOpcode::Send, wr_id, ..SendWr::default() };
        stage.post(&wr, Payload::Sges(&[source]))?;
    }
    let ready = begin + Nanos::from_micros(arguments.late);
    stage.run(ready);
    if arguments.late > 0 {
        post_receives(&mut stage)?;
    }
    let (mut last, mut first, mut good) = (ready, None, 0);
    for _ in 0..arguments.messages {
        let Some((at, wc)) = stage.completion(Nanos::from_millis(60_000)) else {
            return Err(Failure::Run("a SEND has no completion after a minute of virtual time".into()));
        };
        first.get_or_insert(wc.status);
        good += u32::from(wc.status == WcStatus::Success);
        last = last.max(at);
    }
    stage.run(last + Nanos::from_micros(20));
    let mut facts = Facts::default();
    facts.tell("timer_us", rnr_timer_ns(timer) as f64 / 1e3, "us", "wait that the responder requests");
    facts.tell("rnr_naks", stage.counter(0, "rcvd_rnr_err"), "", "RNR NAKs were received by the requester");
    facts.tell("packets_sent", stage.counter(0, "sent_pkts"), "packets", "the requester sent");
    facts.tell("sent_again", stage.counter(0, "retransmitted_packets"), "packets", "of those again");
    facts.tell("delivered", good, "messages", "completed well");
    facts.tell("status", first.unwrap_or_default().to_string(), "", "status of the first completion");
    facts.tell("receives_after_us", arguments.late, "us", "after the SENDs the receives were posted");
    facts.tell(
        "too_late_us",
        if good > 0 { micros(Nanos(last.since(ready).0)) } else { 0.0 },
        "us",
        "from posting the receives to the last completion",
    );
    let (ladder, _) = stage.end()?;
    let text = format!("{timer} ({} us)", rnr_timer_ns(timer) as f64 / 1e3);
    let patience = if retries == 7 { "7 (for ever)".to_owned() } else { retries.to_string() };
    Ok(Run {
        choice: vec![Choice::new("RNR timer", text), Choice::new("rnr_retry", patience)],
        facts,
        blocks: vec![block(
            &format!("{} SENDs; receives are posted {} us later", arguments.messages, arguments.late),
            ladder,
        )],
    })
}
