//! Rates over time: samples of the queue pairs' reaction points, as a terminal chart, as JSON, and as a picture
//! ([`super::picture`]).
//!
//! Samples are taken between completions, at an interval that doubles when there are too many. A run of any length has
//! a few hundred.

use std::path::PathBuf;

use roxie::congestion::State;
use roxie_report::chart::{self, Line};
use serde_json::{Value, json};

/// Output format of the samples.
#[derive(Clone, Debug)]
pub(crate) enum SampleFormat {
    /// A chart, or the samples themselves with `--json`.
    Text,
    /// An SVG file besides.
    Picture(PathBuf),
}

/// Parses the argument of `--plot`.
pub(crate) fn parse(text: &str) -> Result<SampleFormat, String> {
    match text {
        "" => Ok(SampleFormat::Text),
        file if file.ends_with(".svg") => Ok(SampleFormat::Picture(file.into())),
        _ => Err("a picture's name ends in .svg; a server stands before --plot".into()),
    }
}

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Seconds since the beginning.
    pub(super) at: f64,
    /// Operations completed so far.
    pub(super) completed: u64,
    /// Congestion notifications handled so far.
    pub(super) notifications: u64,
    /// State of each queue pair's reaction point; `None` if its rate is not limited.
    pub(super) qps: Vec<Option<State>>,
}

/// All samples of a run.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) samples: Vec<Sample>,
    /// Payload bytes of an operation.
    pub(super) size: u32,
}

impl Series {
    /// Averages a value over those queue pairs that have it.
    fn mean(&self, name: &'static str, of: impl Fn(&State) -> Option<f64>) -> Line {
        let point = |sample: &Sample| {
            let known: Vec<f64> = sample.qps.iter().flatten().filter_map(&of).collect();
            (!known.is_empty()).then(|| (sample.at, known.iter().sum::<f64>() / known.len() as f64))
        };
        Line { name, points: self.samples.iter().filter_map(point).collect() }
    }

    /// Returns rates in Gb/s per queue pair: the allowed rate, its target, and the achieved payload rate.
    pub(super) fn rates(&self) -> [Line; 3] {
        let qps = self.samples.first().map_or(1, |sample| sample.qps.len().max(1)) as f64;
        let each = f64::from(self.size) * 8.0 / 1e9 / qps;
        // Completions come in batches: average over a hundredth of the run.
        let over = (self.samples.len() / 100).max(1);
        let ends: Vec<&Sample> = self.samples.iter().step_by(over).collect();
        let achieved = ends.windows(2).map(|pair| {
            let (a, b) = (pair[0], pair[1]);
            (b.at, (b.completed - a.completed) as f64 * each / (b.at - a.at))
        });
        [
            self.mean("rate", |state| Some(state.rate.0 / 1e9)),
            self.mean("target", |state| state.target.map(|rate| rate.0 / 1e9)),
            Line { name: "payload", points: achieved.collect() },
        ]
    }

    pub(super) fn alpha(&self) -> Line {
        self.mean("alpha", |state| state.alpha)
    }

    /// Returns round trips in microseconds.
    pub(super) fn round_trip(&self) -> Line {
        self.mean("round trip", |state| state.round_trip.map(|time| time.0 as f64 / 1e3))
    }

    /// Returns the times at which notifications were handled.
    pub(super) fn notified_at(&self) -> Vec<f64> {
        let more = self.samples.windows(2).filter(|pair| pair[1].notifications > pair[0].notifications);
        more.map(|pair| pair[1].at).collect()
    }

    /// Returns the number of notifications handled.
    pub(super) fn notifications(&self) -> u64 {
        let ends = self.samples.first().zip(self.samples.last());
        ends.map_or(0, |(first, last)| last.notifications - first.notifications)
    }

    /// Returns the duration in seconds.
    pub(super) fn length(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.at)
    }

    /// Returns the number of sampled queue pairs.
    pub(super) fn qps(&self) -> usize {
        self.samples.first().map_or(0, |sample| sample.qps.len())
    }

    pub(super) fn json(&self) -> Value {
        let qp = |state: &Option<State>| match state {
            None => Value::Null,
            Some(state) => json!({
                "rate_bps": state.rate.0,
                "target_bps": state.target.map(|rate| rate.0),
                "alpha": state.alpha,
                "round_trip_ns": state.round_trip.map(|time| time.0),
            }),
        };
        let sample = |sample: &Sample| {
            json!({
                "seconds": sample.at, "completed": sample.completed, "rp_cnp_handled": sample.notifications,
                "qps": sample.qps.iter().map(qp).collect::<Vec<_>>(),
            })
        };
        self.samples.iter().map(sample).collect()
    }

    /// Formats charts of 80 columns.
    pub(super) fn text(&self) -> String {
        let [rate, target, achieved] = self.rates();
        let of = match self.qps() {
            1 => String::new(),
            n => format!(", mean of {n} QPs"),
        };
        let title = format!("Gb/s{of}: * rate, - target, . payload; {} notifications", self.notifications());
        let mut all =
            chart(&title, 11, self.length(), &[('.', &achieved), ('-', &target), ('*', &rate)], None);
        let alpha = self.alpha();
        if !alpha.points.is_empty() {
            all += &chart("alpha", 5, self.length(), &[('*', &alpha)], Some(1.0));
        }
        let round_trip = self.round_trip();
        if !round_trip.points.is_empty() {
            all += &chart("round trip, us", 6, self.length(), &[('*', &round_trip)], None);
        }
        all
    }
}

/// Draws lines over the seconds of a run.
fn chart(title: &str, rows: usize, seconds: f64, lines: &[(char, &Line)], fixed_top: Option<f64>) -> String {
    chart::draw(title, rows, seconds, &format!("{seconds:.2} s"), lines, fixed_top)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie::congestion::Rate;

    fn series() -> Series {
        let sample = |n: u32| Sample {
            at: f64::from(n) / 100.0,
            completed: u64::from(n) * 10,
            notifications: u64::from(n > 50),
            qps: vec![Some(State {
                rate: Rate::from_gbps(if n > 50 { 0.5 } else { 1.0 }),
                target: Some(Rate::from_gbps(1.0)),
                alpha: Some(0.5),
                round_trip: None,
            })],
        };
        Series { samples: (0..=100).map(sample).collect(), size: 100_000 }
    }

    #[test]
    fn chart_has_80_columns_and_shows_rate_cut() {
        let text = series().text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("Gb/s: * rate, - target, . payload; 1 notifications\n"), "{text}");
        let rows: Vec<&str> = text.lines().skip(1).take(11).collect();
        // The rate covers its target until it falls. Then the target shows at the old rate.
        assert_eq!(rows[0].matches('*').count(), 34, "{text}");
        assert_eq!(rows[0].matches('-').count(), 33, "{text}");
        assert!(rows.iter().skip(1).any(|row| row.matches('*').count() == 33), "{text}");
        assert!(text.contains("alpha\n") && !text.contains("round trip"), "{text}");
        assert!(text.contains("1.00 s"), "{text}");
    }

    #[test]
    fn run_without_reaction_point_shows_achieved_rate() {
        let mut series = series();
        series.samples.iter_mut().for_each(|sample| sample.qps = vec![None]);
        assert!(!series.text().lines().skip(1).any(|line| line.contains('*')), "{}", series.text());
        assert!(series.text().contains('.'));
        assert_eq!(series.json()[0]["qps"][0], Value::Null);
    }
}
