//! Coverage of the transport: which packets met a QP in which state and place in the sequence, and how timers moved.
//! Printed as a table.
//!
//! Impossible moves are listed with a reason and must not occur. All other entries must be reached, rare ones by a
//! script.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use roxie::transport::coverage::{
    Arrival, Coverage, EventEffect, Place, Receipt, ReceiveResult, Source, Timer, TimerCause, TimerTransition,
};
use roxie::verbs::QpState;
use roxie::wire::{Opcode, Operation, Service};

/// A column of the table.
type Column = (QpState, Place);

/// States and places in which a packet can be found.
fn columns(service: Service, opcode: Opcode) -> Vec<Column> {
    use Place::{Ahead, Duplicate, Expected, Ghost, Later, Unordered};
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let response = opcode.info().is_some_and(|info| info.is_response());
    let (states, places): (&[QpState], &[Place]) = match (service, response) {
        (Service::Ud, _) => (&[Rtr, Rts, Sqd, Sqe], &[Unordered]),
        (Service::Uc, _) => (&[Rtr, Rts, Sqd, Sqe], &[Expected, Duplicate, Ahead]),
        // XRC targets receive requests, initiators receive responses.
        (_, false) => (&[Rtr, Rts, Sqd], &[Expected, Duplicate, Ahead]),
        (_, true) => (&[Rts, Sqd], &[Expected, Later, Duplicate, Ghost]),
    };
    let each = states.iter().flat_map(|state| places.iter().map(|place| (*state, *place)));
    each.chain([Reset, Init, Err].map(|state| (state, Unordered))).collect()
}

/// Groups opcodes that the transport does not distinguish: they differ in immediate data, invalidation or the kind of
/// atomic.
fn kind(opcode: Opcode) -> String {
    let Some(info) = opcode.info() else { return opcode.to_string() };
    let atomic = matches!(info.operation, Operation::CompareSwap | Operation::FetchAdd);
    let operation = if atomic { "Atomic".into() } else { format!("{:?}", info.operation) };
    format!("{:?} {operation} {:?}", info.service, info.position)
}

fn rows(service: Service) -> impl Iterator<Item = Opcode> {
    Opcode::all().filter(move |row| row.service == service).map(|row| row.opcode)
}

const SERVICES: [Service; 4] = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc];

/// All combinations of service, source of receives, and result of the lookup.
fn receipts() -> Vec<Receipt> {
    let mut all = Vec::new();
    for service in SERVICES {
        for source in Source::ALL {
            all.extend(ReceiveResult::ALL.map(|found| Receipt { service, source, result: found }));
        }
    }
    all
}

/// Why a combination is impossible, or `None` if it can occur.
fn cannot_find(receipt: Receipt) -> Option<&'static str> {
    match (receipt.service, receipt.source, receipt.result) {
        (Service::Xrc, Source::Named, _) => None,
        (Service::Xrc, ..) => Some("each request of XRC names its queue"),
        (_, Source::Named, _) => Some("only requests of XRC name a queue"),
        (_, _, ReceiveResult::NoQueue) => Some("a queue that a QP was made for stays as long as the QP"),
        _ => None,
    }
}

/// Returns the names of the entries that were not reached.
pub fn unreached(coverage: &Coverage) -> Vec<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for service in SERVICES {
        for opcode in rows(service) {
            for (state, place) in columns(service, opcode) {
                let name = format!("{} in {state:?}, {place:?}", kind(opcode));
                *counts.entry(name).or_default() += coverage.arrivals(Arrival { state, opcode, place });
            }
        }
    }
    for step in moves() {
        let reached = coverage.moves(step);
        match impossible(step) {
            None if RARE.iter().any(|(rare, _)| *rare == step) => {}
            None => *counts.entry(describe(step)).or_default() += reached,
            Some(why) => assert!(reached == 0, "{}: {reached} times, but {why}", describe(step)),
        }
    }
    for receipt in receipts() {
        let reached = coverage.receipts(receipt);
        match cannot_find(receipt) {
            None => *counts.entry(describe_receipt(receipt)).or_default() += reached,
            Some(why) => assert!(reached == 0, "{}: {reached} times, but {why}", describe_receipt(receipt)),
        }
    }
    for notice in EventEffect::ALL {
        *counts.entry(describe_notice(notice).into()).or_default() += coverage.notices(notice);
    }
    counts.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
}

/// Rare moves, each with a script that reaches it.
const RARE: [(TimerTransition, &str); 2] = [
    // Once in 100,000 seeds: a rate limit is lifted, and the QP modified, within a message that has not asked.
    (
        TimerTransition { from: Timer::Ack, by: TimerCause::Command, to: Timer::Quiet, renewed: false },
        include_str!("../scripts/limit_lifted_within_a_message.txt"),
    ),
    // Less than once in 4,000: all that is outstanding is acknowledged during an RNR wait.
    (
        TimerTransition { from: Timer::Rnr, by: TimerCause::Packet, to: Timer::Test, renewed: false },
        include_str!("../scripts/answered_within_an_rnr_wait.txt"),
    ),
];

/// Why a timer move is impossible, or `None` if it can occur.
fn impossible(step: TimerTransition) -> Option<&'static str> {
    use Timer::{Ack, Idle, Quiet, Rnr, Test};
    use TimerCause::{Command, Packet, Sent, SentPaced, Time};
    match (step.from, step.by, step.to) {
        (Quiet, _, Test) | (Test, _, Quiet) => Some("a QP that asks late has no test left"),
        (Test, SentPaced, _) | (_, SentPaced, Test) => Some("a QP with a rate asks each time"),
        (Test, Packet | Time | Command, Ack) | (Test, _, Rnr) => Some("nothing is outstanding"),
        (Test, Sent, Idle) => Some("a packet that leaves ends no wait"),
        (Test, Sent, Test) if step.renewed => Some("a test begins once"),
        (Test, Command, Test) => Some("a change of the QP ends a test"),
        (Ack | Rnr, Sent | Time | Command, Test) => Some("something is outstanding"),
        (Idle, Time | Command, Test) => Some("a rest begins with an acknowledgement"),
        (Quiet, SentPaced, _) | (_, SentPaced, Quiet) => Some("a packet of a controlled rate asks"),
        (Idle | Ack | Quiet, Sent | SentPaced, Rnr) => Some("a packet that leaves asks for no pause"),
        (Ack, Sent, Quiet) => Some("a packet that leaves answers nothing"),
        (Ack | Rnr | Quiet, Sent | SentPaced, Idle) => Some("a packet that leaves ends no wait"),
        (Rnr, Sent | SentPaced, Ack | Quiet) => Some("only answers leave during a pause"),
        (Idle, Time, Ack | Rnr | Quiet) => Some("time ends waits and begins none"),
        (Ack | Quiet, Time, Rnr) => Some("time asks for no pause"),
        (Ack, Time, Quiet) | (Quiet, Time, Ack) => Some("a timer that expires stops until a packet leaves"),
        (Rnr, Time, Ack | Quiet) => Some("a pause ends before the first packet leaves again"),
        (Idle, Command, Ack | Rnr | Quiet) => Some("a command sends nothing"),
        (Quiet, Packet, Ack) => Some("only a packet that leaves asks"),
        (Quiet, Command, Ack) => Some("a command asks for nothing"),
        (Ack | Quiet, Command, Rnr) | (Rnr, Command, Ack | Quiet) => Some("a command is no answer"),
        (Ack, Sent, Ack) | (Quiet, Sent, Quiet) if step.renewed => {
            Some("the oldest packet decides, not the newest")
        }
        (Rnr, Sent | SentPaced | Time | Command, Rnr) if step.renewed => Some("a pause is not prolonged"),
        (Ack, Time, Ack) | (Quiet, Time, Quiet) if step.renewed => {
            Some("a timer that was put off keeps its time")
        }
        (Ack, Command, Ack) | (Quiet, Command, Quiet) if step.renewed => {
            Some("no script changes the timeout: `tests/simulated/transport` does")
        }
        _ => None,
    }
}

/// Prints the coverage as a table.
pub struct Table<'a>(pub &'a Coverage);

/// Formats a count in at most five columns.
fn short(count: u64) -> String {
    match count {
        0 => "-".into(),
        1..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for service in SERVICES {
            let mut heads = String::new();
            for opcode in rows(service) {
                let columns = columns(service, opcode);
                let mut head = String::new();
                for (state, place) in &columns {
                    let place = if *place == Place::Unordered { String::new() } else { format!("{place:?}") };
                    let state = format!("{state:?}").to_uppercase();
                    write!(head, " {:>6}", format!("{state:.3}{place:.3}"))?;
                }
                if head != heads {
                    writeln!(f, "\n{:28}{head}", format!("{service:?}").to_uppercase())?;
                    heads = head;
                }
                write!(f, "{:28}", opcode.to_string())?;
                for column in columns {
                    let (state, place) = column;
                    let count = self.0.arrivals(Arrival { state, opcode, place });
                    write!(f, " {:>6}", short(count))?;
                }
                writeln!(f)?;
            }
        }
        writeln!(f, "\ntimers")?;
        for step in moves() {
            let note = impossible(step).map(|why| format!(" (cannot be: {why})")).unwrap_or_default();
            writeln!(f, "{:>10}  {}{note}", short(self.0.moves(step)), describe(step))?;
        }
        writeln!(f, "\nreceives")?;
        for receipt in receipts() {
            let note = cannot_find(receipt).map(|why| format!(" (cannot be: {why})")).unwrap_or_default();
            let count = short(self.0.receipts(receipt));
            writeln!(f, "{count:>10}  {}{note}", describe_receipt(receipt))?;
        }
        writeln!(f, "\nevents of completion queues")?;
        for notice in EventEffect::ALL {
            writeln!(f, "{:>10}  {}", short(self.0.notices(notice)), describe_notice(notice))?;
        }
        Ok(())
    }
}

fn describe_receipt(receipt: Receipt) -> String {
    let source = match receipt.source {
        Source::Own => "its own queue",
        Source::Shared => "a shared queue",
        Source::Named => "the shared queue that it names",
    };
    let counts = match receipt.result {
        ReceiveResult::Receive => "a receive",
        ReceiveResult::Nothing => "no receive",
        ReceiveResult::NoQueue => "no such queue",
        ReceiveResult::Unfit => "a receive that cannot hold it",
    };
    let service = format!("{:?}", receipt.service).to_uppercase();
    format!("a message of {service} looks in {source}: {counts}")
}

fn describe_notice(notice: EventEffect) -> &'static str {
    match notice {
        EventEffect::Unasked => "a completion: no event was requested",
        EventEffect::AtOnce => "a completion: the event leaves at once",
        EventEffect::HeldBack => "a completion: the event is held back, and its timer starts",
        EventEffect::Joined => "a completion: the event that is held back stands for one more",
        EventEffect::ByCount => "a completion: the event that was held back leaves, there are enough",
        EventEffect::ByFailure => "a completion: the event that was held back leaves with a failure",
        EventEffect::ByTime => "time passed: the event that was held back leaves",
        EventEffect::ByCommand => "a command: the event that was held back leaves",
    }
}

fn describe(step: TimerTransition) -> String {
    let name = |timer: Timer| match timer {
        Timer::Idle => "nothing",
        Timer::Ack => "an acknowledgement",
        Timer::Rnr => "a receive at the peer",
        Timer::Quiet => "the time to ask",
        Timer::Test => "the test of the peer",
    };
    let by = match step.by {
        TimerCause::Sent => "a packet left",
        TimerCause::SentPaced => "a packet left, paced",
        TimerCause::Packet => "a packet came",
        TimerCause::Time => "time passed",
        TimerCause::Command => "a command",
    };
    let again = if step.renewed { ", anew" } else { "" };
    format!("waits for {}: {by}: waits for {}{again}", name(step.from), name(step.to))
}

/// All combinations of a timer move.
fn moves() -> Vec<TimerTransition> {
    let mut moves = Vec::new();
    for from in Timer::ALL {
        for by in TimerCause::ALL {
            for to in Timer::ALL {
                for renewed in [false, true] {
                    if !renewed || (from == to && from != Timer::Idle) {
                        moves.push(TimerTransition { from, by, to, renewed });
                    }
                }
            }
        }
    }
    moves
}

#[test]
fn rare_moves_are_reached_by_scripts() {
    for (rare, text) in RARE {
        let script = crate::script::Script::parse(text).expect("a script");
        drop(Coverage::take());
        assert!(crate::campaign::run(&script, None).is_ok());
        assert_eq!(Coverage::take().moves(rare), 1, "{}", describe(rare));
    }
}
