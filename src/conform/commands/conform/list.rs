//! `roxie conform list`: the checks, without a target.

use clap::Args;
use roxie_report::formats;
use roxie_report::output;
use serde_json::json;

use super::{Ended, Selection, USAGE};

/// List the checks
#[derive(Debug, Args)]
#[command(
    long_about = "Lists the checks: name, clause of the specification (release 1.4), and what the bench does. With --json, an object with \
                  the array checks, one object a check: name, chapter, clause, service, role of the target, needs, stimulus, what is asked.",
    after_help = "Examples:\n  roxie conform list\n  roxie conform list --short\n  roxie conform list --filter uc/ --json\n\nExit \
                  codes: 0 done, 2 no check has such a name."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Lists the chosen checks.
pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    let checks = arguments.selection.checks();
    if checks.is_empty() {
        return Err(Ended(USAGE, "no check has such a name: see `roxie conform list`".into()));
    }
    if arguments.json {
        let checks: Vec<_> = checks.iter().map(roxie_conform_bench::check::Check::listed).collect();
        let listed = formats::versioned(formats::CONFORM_LIST, json!({ "checks": checks }));
        let text = serde_json::to_string_pretty(&listed).map_err(|e| Ended(1, e.to_string()))?;
        output::lines(&text)?;
        return Ok(());
    }
    for check in &checks {
        output::line(format_args!("{:<44} {:<10} {}", check.name, check.clause, check.stimulus))?;
    }
    Ok(())
}
