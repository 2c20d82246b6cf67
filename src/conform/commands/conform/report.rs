//! What a run prints and writes.

use std::fs;
use std::path::Path;

use crate::commands::write_reports;
use roxie::text::file_in;
use roxie_conform_bench::report::{Report, junit, page};
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::verdict::Verdict;
use roxie_report::ladder::{self, Ladder, Style};
use roxie_report::output;

use super::{BROKEN, CANNOT_RUN, Ended, PlayArguments, expect};

/// Draws the packets of an outcome, writes its capture if that is asked for, prints it, and adds it to the report.
pub(super) fn take(
    mut outcome: Outcome,
    arguments: &PlayArguments,
    report: &mut Report,
) -> Result<(), Ended> {
    outcome.ladder = drawn(&outcome);
    expect::annotate(&mut outcome);
    output::progress("");
    if let Some(folder) = &arguments.captures {
        let name = outcome.name.replace('/', "-");
        let file = |kind| file_in(folder, &name, kind).map_err(|error| Ended(CANNOT_RUN, error.to_string()));
        if !outcome.capture.is_empty() {
            write(&file("pcapng")?, &outcome.capture)?;
        }
        if !outcome.script.is_empty() {
            write(&file("script")?, outcome.script.as_bytes())?;
        }
    }
    tell(&outcome, arguments.verbose)?;
    report.checks.push(outcome);
    Ok(())
}

/// Makes the folder for captures, if they are asked for.
pub(super) fn make_folder(arguments: &PlayArguments) -> Result<(), Ended> {
    let Some(folder) = &arguments.captures else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|e| Ended(CANNOT_RUN, format!("{}: {e}", folder.display())))
}

/// Prints a line for what is not kept, or for each outcome.
fn tell(outcome: &Outcome, verbose: bool) -> Result<(), Ended> {
    if outcome.verdict == Verdict::Keeps && !verbose {
        return Ok(());
    }
    output::line(format_args!("{:<10} {} ({})", outcome.verdict.words(), outcome.name, outcome.clause))?;
    if !outcome.came.is_empty() {
        output::line(format_args!("           {}", outcome.came))?;
    }
    for adapter in &outcome.adapters {
        output::line(format_args!("           {adapter}"))?;
    }
    if outcome.verdict == Verdict::Breaks {
        output::line(format_args!("           sent: {}", outcome.stimulus))?;
        output::line(format_args!("           asked: {}", outcome.asks))?;
        for line in outcome.script.lines().chain(outcome.ladder.lines()) {
            output::line(format_args!("    {line}"))?;
        }
    }
    Ok(())
}

/// Draws the packets of a check.
fn drawn(outcome: &Outcome) -> String {
    let Ok(reading) = ladder::read(&outcome.capture[..]) else { return String::new() };
    if reading.seen.is_empty() {
        return String::new();
    }
    let Ok(passages) = ladder::meet(vec![reading.seen]) else { return String::new() };
    let style = Style { names: None, every: true };
    let ladders = ladder::pair(passages);
    let text: Vec<String> =
        ladders.iter().map(|connection| ladder::draw_text(&Ladder::of(connection, &style))).collect();
    text.join("\n")
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Ended> {
    fs::write(file, bytes).map_err(|e| Ended(CANNOT_RUN, format!("{}: {e}", file.display())))
}

/// Writes the reports, and prints verdicts by chapter. Returns the exit code.
pub(super) fn finish(arguments: &PlayArguments, report: &Report) -> Result<u8, Ended> {
    output::line("")?;
    output::line(format_args!(
        "{:<30} {:>6} {:>7} {:>8} {:>11}",
        "chapter", "keeps", "breaks", "lenient", "not tested"
    ))?;
    for (chapter, [keeps, breaks, lenient, not_tested]) in report.chapters() {
        output::line(format_args!("{chapter:<30} {keeps:>6} {breaks:>7} {lenient:>8} {not_tested:>11}"))?;
    }
    output::line(report.summary())?;
    write_reports(
        report,
        &[(&arguments.json, Report::json), (&arguments.junit, junit), (&arguments.html, page)],
    )
    .map_err(|error| Ended(CANNOT_RUN, error))?;
    let tested = report.checks.len() - report.count(Verdict::NotTested);
    if tested == 0 {
        return Err(Ended(CANNOT_RUN, "no check could be run".into()));
    }
    Ok(if report.count(Verdict::Breaks) > 0 { BROKEN } else { 0 })
}
