//! Bugs on purpose: the seeds must find each of them, and shrinking must make a lesson of it.

use roxie::transport::PlantedBug;

use crate::campaign::{run, shrink, strikes};
use crate::generate;
use crate::script::Script;

const SEEDS: u64 = 2_000;
/// Lines of a lesson at most.
const LINES: usize = 15;

const BUGS: [PlantedBug; 17] = [
    PlantedBug::NoDuplicateCheck,
    PlantedBug::AckBeforeReadResponse,
    PlantedBug::PsnCompareWithoutWrap,
    PlantedBug::AtomicExecutedAgain,
    PlantedBug::AckCompletesRead,
    PlantedBug::NoAckRequestOnRetransmission,
    PlantedBug::UcIgnoresGaps,
    PlantedBug::UdIgnoresQkey,
    PlantedBug::FlushesSharedReceives,
    PlantedBug::AcknowledgesRead,
    PlantedBug::AnswerGoesOn,
    PlantedBug::AnswersInOrderOfRequests,
    PlantedBug::SilentAfterRnr,
    PlantedBug::RnrTriesAreUsedUp,
    PlantedBug::DrainedWhileItWaits,
    PlantedBug::SolicitedOnlyOnce,
    PlantedBug::UnfinishedGoesFirst,
];

/// True if a script fails with the bug, and not without it.
fn is_due_to(bug: PlantedBug, script: &Script) -> bool {
    PlantedBug::plant(Some(bug));
    let fails = run(script, None).is_err();
    PlantedBug::plant(None);
    fails && run(script, None).is_ok()
}

#[test]
fn every_planted_bug_is_found_and_shrinks_to_a_lesson() {
    let mut long = Vec::new();
    for bug in BUGS {
        let found = (1..=SEEDS).find(|seed| is_due_to(bug, &generate::script(*seed)));
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS} seeds"));
        let whole = generate::script(seed);
        PlantedBug::plant(Some(bug));
        let strikes = strikes(&whole);
        PlantedBug::plant(None);
        let short = shrink(&whole, &strikes, |script| is_due_to(bug, script));
        let text = short.to_string();
        println!("{bug:?}: found by seed {seed}\n{text}");
        if text.lines().count() > LINES {
            long.push(format!("{bug:?}, seed {seed}: {} lines", text.lines().count()));
        }
        assert!(
            is_due_to(bug, &Script::parse(&text).expect("a script")),
            "{bug:?}: the text is not the script"
        );
    }
    assert!(long.is_empty(), "longer than {LINES} lines: {long:?}");
}
