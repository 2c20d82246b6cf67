//! The commands of the program.

use std::fs;
use std::path::PathBuf;

use roxie_conform_bench::report::Report;

pub(crate) mod conform;
pub(crate) mod judge;
pub(crate) mod wire;

/// A format of reports.
type Format = fn(&Report) -> String;

/// Writes a report to each file that is asked for, in that file's format. An error names the file.
fn write_reports(report: &Report, files: &[(&Option<PathBuf>, Format)]) -> Result<(), String> {
    for (file, format) in files {
        let Some(file) = file else { continue };
        fs::write(file, format(report)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}
