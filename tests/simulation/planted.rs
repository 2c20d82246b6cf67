//! Planted bugs: the seeds must find each, and shrinking must reduce the failing script to a short one.

use roxie::transport::PlantedBug;

use crate::campaign::{run, shrink, shrink_by_rule, strikes};
use crate::generate;
use crate::script::Script;

const SEEDS: u64 = 2_000;
/// Number of failing seeds to shrink until one is short enough.
const TRIES: usize = 4;
/// Maximum length of a shrunk script, in lines.
const LINES: usize = 15;

/// Bugs that scripts of packets find (`planted_bugs_break_these_scripts` in `tests/simulated/transport`): seeds rarely
/// meet what they take, or their runs wait for minutes of virtual time, too long to shrink. The last is one of
/// connection management, and is found in `tests/simulated/cm`.
const BY_SCRIPT: [PlantedBug; 5] = [
    PlantedBug::EarlyPacketsAreSilent,
    PlantedBug::WideGapsAreIgnored,
    PlantedBug::RnrCodeZeroIsNoWait,
    PlantedBug::WindowOpensToAllQps,
    PlantedBug::DepthsAreSwapped,
];

/// Bugs that an assertion of the NIC finds, before anything is seen outside of it.
const ASSERTED: [PlantedBug; 19] = [
    PlantedBug::NoDuplicateCheck,
    PlantedBug::AckBeforeReadResponse,
    PlantedBug::AckCompletesRead,
    PlantedBug::NoAckRequestOnRetransmission,
    PlantedBug::UcIgnoresGaps,
    PlantedBug::FlushesSharedReceives,
    PlantedBug::AnswersInOrderOfRequests,
    PlantedBug::SolicitedOnlyOnce,
    PlantedBug::UnfinishedGoesFirst,
    PlantedBug::HeldForEver,
    PlantedBug::IntervalIgnored,
    PlantedBug::NotifiesItself,
    PlantedBug::BurstsWithoutBound,
    PlantedBug::PausedForEver,
    PlantedBug::NewestResultAnswers,
    PlantedBug::PadIsWritten,
    PlantedBug::NoTimerAfterNak,
    PlantedBug::ProbeIsExecuted,
    PlantedBug::NoTimerAfterRepeat,
];

/// At least a third of the bugs.
const _: () = assert!(3 * ASSERTED.len() >= PlantedBug::ALL.len());

/// True if a script fails with the bug and passes without it.
fn is_due_to(bug: PlantedBug, script: &Script) -> bool {
    PlantedBug::plant(Some(bug));
    let fails = run(script, None).is_err();
    PlantedBug::plant(None);
    fails && run(script, None).is_ok()
}

/// Returns the shrunk script of the first seed that finds a bug. If it stays too long, tries the next seeds.
fn lesson(bug: PlantedBug) -> (u64, Script) {
    let mut lessons = Vec::new();
    for seed in (1..=SEEDS).filter(|seed| is_due_to(bug, &generate::script(*seed))).take(TRIES) {
        let whole = generate::script(seed);
        PlantedBug::plant(Some(bug));
        let strikes = strikes(&whole);
        PlantedBug::plant(None);
        lessons.push((seed, shrink(&whole, &strikes, |script| is_due_to(bug, script))));
        if lines(&lessons[lessons.len() - 1].1) <= LINES {
            break;
        }
    }
    let shortest = lessons.into_iter().min_by_key(|(_, script)| lines(script));
    shortest.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS} seeds"))
}

fn lines(script: &Script) -> usize {
    script.to_string().lines().count()
}

#[test]
fn every_planted_bug_is_found_and_shrunk() {
    let mut long = Vec::new();
    // `BUG=name` plants only that bug.
    let chosen = std::env::var("BUG").ok();
    let wanted = |bug: &PlantedBug| {
        chosen.as_ref().map_or(!BY_SCRIPT.contains(bug), |name| *name == format!("{bug:?}"))
    };
    for bug in PlantedBug::ALL.into_iter().filter(wanted) {
        let (seed, short) = lesson(bug);
        let text = short.to_string();
        println!("{bug:?}: found by seed {seed}\n{text}");
        if lines(&short) > LINES {
            long.push(format!("{bug:?}, seed {seed}: {} lines", lines(&short)));
        }
        assert!(
            is_due_to(bug, &Script::parse(&text).expect("a script")),
            "{bug:?}: the text is not the script"
        );
    }
    assert!(long.is_empty(), "longer than {LINES} lines: {long:?}");
}

/// Without its messages, this script fails by another rule: the probe that it expects is not sent.
#[test]
fn shrunk_script_fails_by_the_same_rule() {
    let text = "seed 1\nhosts 2\nq1 rc h1 h2\nat 0us q1> read 8\nat 0us q1> send 8 unsignaled\nat 0us q1< send 8\nat 3ms q1> read 8\nexpect 2 tail_probes\n";
    let script = Script::parse(text).expect("a script");
    PlantedBug::plant(Some(PlantedBug::ProbesReads));
    let why = run(&script, None).expect_err("a probe with the PSN of a READ");
    let short = shrink_by_rule(&script, &why);
    let (again, any) = (run(&short, None), shrink(&script, &[], |script| run(script, None).is_err()));
    let other = run(&any, None);
    PlantedBug::plant(None);
    assert!(again.is_err_and(|again| again.is_like(&why)), "{why}\n{short}");
    assert!(short.actions.len() < script.actions.len(), "{short}");
    assert!(other.as_ref().is_err_and(|other| !other.is_like(&why)), "{any}: {why:?}, {:?}", other.err());
}

#[test]
fn assertions_find_planted_bugs_first() {
    if !cfg!(debug_assertions) {
        println!("SKIP assertions_find_planted_bugs_first: assertions are off in this build");
        return;
    }
    for bug in ASSERTED {
        let reason = (1..=SEEDS).find_map(|seed| {
            PlantedBug::plant(Some(bug));
            let reason = run(&generate::script(seed), None).err();
            PlantedBug::plant(None);
            reason.map(|reason| reason.to_string())
        });
        let reason = reason.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS} seeds"));
        println!("{bug:?}: {reason}");
        assert!(reason.contains("invariant: "), "{bug:?} was found by {reason:?}");
    }
}
