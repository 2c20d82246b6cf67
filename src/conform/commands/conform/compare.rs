//! `roxie conform diff`: which verdicts of two runs differ.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use roxie_conform_bench::report::{Report, diff};
use roxie_report::output;

use super::{BROKEN, Ended, USAGE};

/// Compare two reports
#[derive(Debug, Args)]
#[command(
    long_about = "Prints the checks whose verdicts differ between two reports that --json has written.",
    after_help = "Example:\n  roxie conform diff before.json after.json\n\nExit codes: 0 the second run breaks nothing that the first \
                  did not, 1 it does, 2 wrong usage."
)]
pub(super) struct Arguments {
    /// Report of the first run
    before: PathBuf,
    /// Report of the second run
    after: PathBuf,
}

fn read(file: &Path) -> Result<Report, Ended> {
    let failed = |why: String| Ended(USAGE, format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
    Report::read(&text).map_err(failed)
}

/// Prints the differences. Returns the exit code.
pub(super) fn run(arguments: &Arguments) -> Result<u8, Ended> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let changes = diff(&before, &after);
    for (what, report) in [("before", &before), ("after", &after)] {
        output::line(format_args!(
            "{what}: {} at {}, {}",
            report.device_in_words(),
            report.target,
            report.summary()
        ))?;
    }
    for change in &changes {
        output::line(change.words())?;
        if change.is_worse() && !change.came.is_empty() {
            output::line(format_args!("    {}", change.came))?;
        }
    }
    if changes.is_empty() {
        output::line("no verdict differs")?;
    }
    let is_worse = changes.iter().any(roxie_conform_bench::report::Change::is_worse);
    Ok(if is_worse { BROKEN } else { 0 })
}
