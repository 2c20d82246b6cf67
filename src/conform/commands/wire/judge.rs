//! Verdicts about the peers of a wire: `--judge` and `--script`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use roxie::frame::Frame;
use roxie::host::{PacketRule, PacketRules};
use roxie::time::Clock;
use roxie_conform_bench::report::{Report, junit, page};
use roxie_conform_bench::through::{SCRIPTS, WireJudge, WireScript, script};
use roxie_report::failure::Failure;
use roxie_report::output;

use super::report::Placed;
use crate::commands::write_reports;

/// Options about verdicts.
#[derive(Debug, Args)]
pub(super) struct JudgeArguments {
    /// Judge the reliable connections on the wire
    #[arg(long)]
    judge: bool,
    /// Change what a script says, and judge what follows: see --scripts
    #[arg(long, value_name = "NAME")]
    script: Option<String>,
    /// List the scripts: name, rules, what must follow
    #[arg(long, exclusive = true)]
    scripts: bool,
    /// Write the verdicts as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the verdicts as a page that needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A judge that both ends of a cable show frames to.
#[derive(Clone)]
pub(super) struct Judge {
    judge: Arc<Mutex<WireJudge>>,
    clock: Clock,
    script: Option<WireScript>,
    rules: String,
}

/// Prints the scripts.
pub(super) fn list() -> Result<(), Failure> {
    for script in SCRIPTS {
        let follows = format!("{:?}", script.follows).to_lowercase();
        output::line(format_args!("{:<36} {:<8} {}", script.name, follows, script.rules))?;
    }
    Ok(())
}

impl JudgeArguments {
    fn chosen(&self) -> Result<Option<WireScript>, Failure> {
        let Some(name) = &self.script else { return Ok(None) };
        let unknown = || Failure::Usage(format!("`{name}` is no script: see `roxie wire --scripts`"));
        script(name).map(Some).ok_or_else(unknown)
    }

    /// Returns the rules of the script.
    pub(super) fn rules(&self) -> Result<Vec<PacketRule>, Failure> {
        let Some(script) = self.chosen()? else { return Ok(Vec::new()) };
        let rules: PacketRules = script.rules.parse().map_err(|error| Failure::Usage(format!("{error}")))?;
        Ok(rules.0)
    }

    /// Returns a judge, if one is asked for.
    pub(super) fn judge(&self, placed: &[Placed]) -> Option<Judge> {
        let is_asked = self.judge || self.script.is_some() || self.junit.is_some() || self.html.is_some();
        let rules: Vec<String> = placed.iter().map(|placed| placed.rule.to_string()).collect();
        is_asked.then(|| Judge {
            judge: Arc::default(),
            clock: Clock::new(),
            script: self.script.as_deref().and_then(script),
            rules: if rules.is_empty() { "without a rule".into() } else { rules.join("; ") },
        })
    }

    /// Writes the reports.
    pub(super) fn write(&self, report: &Report) -> Result<(), Failure> {
        write_reports(report, &[(&self.junit, junit), (&self.html, page)]).map_err(Failure::Run)
    }
}

impl Judge {
    fn with<T>(&self, act: impl FnOnce(&mut WireJudge) -> T) -> T {
        act(&mut self.judge.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a frame as it arrives, before any fault. Returns false: no fault is to hit it.
    pub(super) fn arrives(&self, frame: &Frame<'_>) -> bool {
        self.with(|judge| judge.sent(frame, self.clock.now()));
        false
    }

    /// Takes a frame as it leaves.
    pub(super) fn leaves(&self, frame: &Frame<'_>) {
        self.with(|judge| judge.delivered(frame, self.clock.now()));
    }

    /// Returns the verdicts.
    pub(super) fn report(&self, names: &[String; 2]) -> Report {
        let between = format!("{} and {}", names[0], names[1]);
        let mut report = Report::new(between.clone(), between, "wire", BTreeMap::new());
        report.checks =
            self.with(|judge| judge.outcomes(self.clock.now(), &self.rules, self.script.as_ref()));
        report
    }
}
