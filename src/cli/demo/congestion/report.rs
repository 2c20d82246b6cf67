//! Formats a run as text.

use std::fmt;

use serde_json::{Value, json};

use super::scenario::Scenario;
use super::trace::{Run, Summary};

/// Rows of the table over time.
const ROWS: usize = 16;

/// The runs of a scenario.
pub(super) struct Report {
    pub(super) scenario: Scenario,
    pub(super) simulated: Run,
    pub(super) real: Option<Run>,
}

impl Report {
    /// Returns the runs with their names.
    pub(super) fn runs(&self) -> Vec<(&'static str, &Run)> {
        let mut runs = vec![("virtual time", &self.simulated)];
        runs.extend(self.real.as_ref().map(|run| ("real frames", run)));
        runs
    }

    /// Returns the JSON object.
    pub(super) fn summary(&self) -> Value {
        json!({
            "scenario": self.scenario,
            "virtual": self.simulated.summary,
            "real": self.real.as_ref().map(|run| &run.summary),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, run) in self.runs() {
            over_time(f, name, run)?;
        }
        let runs = self.runs();
        write!(
            f,
            "\nRates and queue, but its most, are those of the second half: at first all send at the rate of their links.\n"
        )?;
        write!(f, "\n{:32}", "")?;
        runs.iter().try_for_each(|(name, _)| write!(f, "{name:>16}"))?;
        let mut line = |what: String, value: &dyn Fn(&Summary) -> String| {
            write!(f, "\n{what:32}")?;
            runs.iter().try_for_each(|(_, run)| write!(f, "{:>16}", value(&run.summary)))
        };
        for sender in 0..self.scenario.senders {
            line(format!("sender {}, Mb/s", sender + 1), &|run| format!("{:.1}", run.mbps[sender]))?;
        }
        line("all senders, Mb/s".into(), &|run| format!("{:.1}", run.mbps.iter().sum::<f64>()))?;
        line("fairness (Jain's index)".into(), &|run| format!("{:.3}", run.fairness))?;
        line("queue, mean, KB".into(), &|run| format!("{:.1}", run.queue_mean / 1e3))?;
        line("queue, 99 of 100, KB".into(), &|run| format!("{:.1}", run.queue_99 as f64 / 1e3))?;
        line("queue, most, KB".into(), &|run| format!("{:.1}", run.queue_peak as f64 / 1e3))?;
        line("frames over the link".into(), &|run| run.frames.to_string())?;
        line("of them marked".into(), &|run| run.marked.to_string())?;
        line("notifications (CNPs)".into(), &|run| run.notifications.to_string())?;
        line("frames dropped".into(), &|run| run.dropped.to_string())?;
        line("of them in the second half".into(), &|run| run.dropped_settled.to_string())?;
        line("given late, median, 99 %, us".into(), &|run| match run.late_us {
            Some([median, most]) => format!("{median:.0}, {most:.0}"),
            None => "-".into(),
        })
    }
}

/// Writes queue depth and rates at a few moments.
fn over_time(f: &mut fmt::Formatter<'_>, name: &str, run: &Run) -> fmt::Result {
    let samples = &run.trace.samples;
    let step = samples.len().div_ceil(ROWS).max(1);
    write!(f, "\n{name}:\n{:>10}{:>12}  Mb/s of each sender", "s", "queue, KB")?;
    for last in (step..samples.len()).step_by(step) {
        let first = last - step;
        let most = samples[first..=last].iter().map(|sample| sample.depth).max().unwrap_or(0);
        write!(f, "\n{:>10.3}{:>12.1}", samples[last].at.as_secs_f64(), most as f64 / 1e3)?;
        for receiver in 0..samples[last].delivered.len() {
            write!(f, "{:>9.1}", run.trace.rate(receiver, first, last))?;
        }
    }
    writeln!(f)
}
