//! `roxie sim collect`: joins the runs of a sweep to one table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Map, Value};

use super::EXIT_CODES;

/// File in a job's folder that lists what was changed.
pub(super) const JOB: &str = "job.json";
/// File that a job writes last.
pub(super) const SUMMARY: &str = "summary.json";
/// Columns that are printed. The file has all.
const SHOWN: &[&str] = &[
    "ended",
    "fct_p50_ns",
    "fct_p99_ns",
    "slowdown_p50",
    "slowdown_p99",
    "goodput_bps",
    "marked",
    "dropped",
    "pause_ns",
    "depth_peak",
];
/// File of the table.
const TABLE: &str = "sweep.csv";

/// Join the results of a sweep to one table
#[derive(Debug, Args)]
#[command(
    long_about = "Reads the folders of a sweep, on whichever machines they were run, and writes sweep.csv: a line for \
        each complete run, with what was changed and its summary. Prints the most important columns.",
    after_help = format!("Examples:\n  roxie sim collect /tmp/sweep\n  roxie sim collect /tmp/sweep --json | jq .slowdown_p99\n\n{EXIT_CODES}")
)]
pub(super) struct Arguments {
    /// Folder of the sweep
    folder: PathBuf,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    table(&arguments.folder, arguments.json)
}

/// A run: what was changed, and its results.
struct Row {
    changes: Map<String, Value>,
    summary: Map<String, Value>,
}

/// Writes and prints the table of all complete runs.
pub(super) fn table(folder: &Path, json: bool) -> Result<(), Failure> {
    let (rows, missing) = rows(folder)?;
    let keys: Vec<String> =
        rows.iter().flat_map(|row| row.changes.keys()).fold(Vec::new(), |mut keys, key| {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
            keys
        });
    let results: BTreeSet<&String> = rows.iter().flat_map(|row| row.summary.keys()).collect();
    let results: Vec<&String> = results.into_iter().filter(|name| !keys.contains(name)).collect();
    let cell = |value: Option<&Value>| match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if text.contains([',', '"']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let mut text = keys.iter().chain(results.iter().copied()).cloned().collect::<Vec<_>>().join(",") + "\n";
    for row in &rows {
        let changed = keys.iter().map(|key| cell(row.changes.get(key)));
        let came = results.iter().map(|name| cell(row.summary.get(*name)));
        text += &(changed.chain(came).collect::<Vec<_>>().join(",") + "\n");
    }
    let path = folder.join(TABLE);
    fs::write(&path, text).map_err(|error| Failure::Run(format!("{}: {error}", path.display())))?;
    if missing > 0 {
        output::note(format_args!("{missing} runs are not complete, and not in the table"));
    }
    if json {
        return rows.iter().try_for_each(|row| {
            let mut all = row.changes.clone();
            all.extend(row.summary.clone());
            formats::print(formats::SIM, all)
        });
    }
    let shown: Vec<&str> = SHOWN.iter().copied().filter(|name| results.iter().any(|of| of == name)).collect();
    let mut lines =
        vec![keys.iter().map(String::as_str).chain(shown.iter().copied()).map(str::to_owned).collect()];
    lines.extend(rows.iter().map(|row| {
        let changed = keys.iter().map(|key| cell(row.changes.get(key)));
        changed
            .chain(shown.iter().map(|name| cell(row.summary.get(*name).map(rounded).as_ref())))
            .collect::<Vec<_>>()
    }));
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0)).collect();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        output::line(cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}

/// Rounds to three decimal places for printing.
fn rounded(value: &Value) -> Value {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(number) => Value::from((number * 1e3).round() / 1e3),
        None => value.clone(),
    }
}

/// Returns the complete runs of a folder, in the order of their changes, and the number of incomplete ones.
fn rows(folder: &Path) -> Result<(Vec<Row>, usize), Failure> {
    let failed = |error: std::io::Error| Failure::Usage(format!("{}: {error}", folder.display()));
    let (mut rows, mut missing) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Ok(changes) = fs::read_to_string(path.join(JOB)) else { continue };
        let summary = fs::read_to_string(path.join(SUMMARY));
        let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
        match (read(&changes), summary.ok().as_deref().and_then(read)) {
            (Some(changes), Some(mut summary)) => {
                let version = summary.remove("version").unwrap_or_default();
                if version != formats::SIM {
                    return Err(Failure::Usage(format!(
                        "{}: a summary of version {version}, not {}: remove it, and run the sweep again",
                        path.join(SUMMARY).display(),
                        formats::SIM
                    )));
                }
                rows.push(Row { changes, summary });
            }
            _ => missing += 1,
        }
    }
    if rows.is_empty() && missing == 0 {
        return Err(Failure::Usage(format!("{}: no runs of a sweep are here", folder.display())));
    }
    rows.sort_by(|a, b| order(&a.changes, &b.changes));
    Ok((rows, missing))
}

/// Compares numbers by value, texts alphabetically.
fn order(a: &Map<String, Value>, b: &Map<String, Value>) -> std::cmp::Ordering {
    let pairs = a.iter().zip(b).map(|((_, a), (_, b))| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.to_string().cmp(&b.to_string()),
    });
    pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}
