//! What the runner prints.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::{Outcome, Totals};
use crate::seconds::Seconds;

/// Lines that are printed of what a failed test said.
const LAST: usize = 60;
const SLOWEST: usize = 10;
/// Name under which the seconds of a whole run are kept.
pub(crate) const ALL: &str = "all programs";

/// Returns the line of a job that has ended.
pub(crate) fn line(outcome: &Outcome, kept: &Seconds) -> String {
    let Totals { passed, failed, skipped } = outcome.totals;
    let mut line = format!(
        "{:22} {passed:5} passed {failed:3} failed {skipped:4} skipped {}",
        outcome.job,
        kept.text(&outcome.job, outcome.seconds)
    );
    for name in outcome.failed.iter().chain(&outcome.error) {
        line += &format!("\n    failed: {name}");
    }
    line
}

/// Returns what a failed test said last.
fn last_lines<'a>(outcome: &'a Outcome, name: &str) -> &'a [String] {
    let begin = format!("---- {name} stdout ----");
    let Some(first) = outcome.lines.iter().position(|line| *line == begin) else { return &[] };
    let lines = &outcome.lines[first + 1..];
    let ends =
        |line: &String| line == "failures:" || line.starts_with("---- ") && line.ends_with(" stdout ----");
    let lines = &lines[..lines.iter().position(ends).unwrap_or(lines.len())];
    &lines[lines.len().saturating_sub(LAST)..]
}

fn heading(text: &str, lines: BTreeSet<String>) {
    if !lines.is_empty() {
        println!("\n{text}");
        lines.iter().for_each(|line| println!("{line}"));
    }
}

/// Prints the end of a run of these seconds, and returns its totals.
pub(crate) fn print(outcomes: &[Outcome], flaky: &[String], kept: &Seconds, seconds: f64) -> Totals {
    for outcome in outcomes {
        for name in &outcome.failed {
            println!("\nfailed: {} {name}", outcome.job);
            last_lines(outcome, name).iter().for_each(|line| println!("{line}"));
        }
        if let Some(error) = &outcome.error {
            println!("\nfailed: {}: {error}", outcome.job);
            let lines = &outcome.lines[outcome.lines.len().saturating_sub(LAST)..];
            lines.iter().for_each(|line| println!("{line}"));
        }
    }
    let lines = || outcomes.iter().flat_map(|outcome| &outcome.lines);
    let ignored = |line: &String| {
        let (name, why) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
        Some(format!("SKIP {name}: {}", why.trim_start_matches([',', ' '])))
    };
    let skips = lines().filter(|line| line.starts_with("SKIP ")).cloned().chain(lines().filter_map(ignored));
    heading("skipped:", skips.collect());
    let mut omitted = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (name, what) in lines().filter_map(|line| line.strip_prefix("LEFT OUT ")?.split_once(": ")) {
        omitted.entry(what).or_default().insert(name);
    }
    let of_each = |(what, names): (&str, BTreeSet<&str>)| match names.len() {
        1 => format!("{what}, by {}", names.into_iter().collect::<String>()),
        count => format!("{what}, by {count} tests"),
    };
    heading("left out (`make test-all` runs all):", omitted.into_iter().map(of_each).collect());
    let mut slowest: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| {
            outcome.tests.iter().map(|(name, seconds)| (format!("{} {name}", outcome.job), *seconds))
        })
        .collect();
    slowest.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("\nslowest tests, from a thread's being free for it to its result:");
    for (name, seconds) in slowest.iter().take(SLOWEST) {
        println!("{} {name}", kept.text(name, *seconds));
    }
    let mut totals = Totals::default();
    for outcome in outcomes {
        totals.passed += outcome.totals.passed;
        totals.failed += outcome.totals.failed;
        totals.skipped += outcome.totals.skipped;
    }
    println!("\n{} all programs", kept.text(ALL, seconds));
    println!("flaky:{}{}", if flaky.is_empty() { "" } else { " " }, flaky.join(", "));
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    totals
}
