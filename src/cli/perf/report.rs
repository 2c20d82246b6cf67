//! Results, as tables for people and JSON for programs.

use hdrhistogram::Histogram;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use roxie::verbs::Mtu;

use super::arguments::{Measure, Operation, Service};
use super::control::ServerReport;
use super::picture;
use super::plan::Plan;
use super::plot::{SampleFormat, Series};

/// A client's results with one size.
pub(super) struct Outcome {
    /// Messages completed, or frames sent.
    pub(super) messages: u64,
    /// Payload bytes of a message.
    pub(super) bytes_each: u32,
    /// Duration in seconds.
    pub(super) seconds: f64,
    /// Latency of each operation in nanoseconds.
    pub(super) latency: Option<Histogram<u64>>,
    /// Counters that changed, with their increments.
    pub(super) counters: Vec<(String, u64)>,
    /// Samples of the rates, if taken.
    pub(super) series: Option<Series>,
}

/// Output format.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// One JSON object a line instead of a table.
    pub(super) json: bool,
    /// Samples of the rates as well.
    pub(super) plot: Option<SampleFormat>,
}

/// Returns an empty histogram of nanoseconds, up to a minute, with three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order, 0 to 5 digits")
}

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// Prints the results of a plan.
pub(super) struct Printer<'a> {
    plan: &'a Plan,
    port: (String, String),
    path_mtu: Mtu,
    form: Form,
}

impl<'a> Printer<'a> {
    pub(super) fn new(plan: &'a Plan, port: (String, String), path_mtu: Mtu, form: Form) -> Printer<'a> {
        Printer { plan, port, path_mtu, form }
    }

    /// Prints the plan and the columns' names.
    pub(super) fn heading(&self) -> Result<(), Failure> {
        if self.form.json {
            return Ok(());
        }
        let plan = self.plan;
        let what = if plan.floor {
            "bare frames, no transport".to_owned()
        } else {
            format!(
                "{:?} over {} on {} QP{}, depth {}",
                plan.operation,
                format!("{:?}", plan.service).to_uppercase(),
                plan.qps,
                if plan.qps == 1 { "" } else { "s" },
                plan.depth
            )
        };
        output::line(format_args!(
            "{what}; port {} ({}); path MTU {}",
            self.port.0,
            self.port.1,
            self.path_mtu.bytes()
        ))?;
        match plan.measure {
            Measure::Bw => output::line(format_args!(
                "{:>10} {:>12} {:>14} {:>10} {:>10} {:>8}",
                "size", "messages", "messages/s", "Gb/s", "lost", "resent"
            )),
            Measure::Lat => {
                output::line(format_args!("latency in us, {}", self.meaning()))?;
                let percentiles = PERCENTILES.map(|(name, _)| format!(" {name:>9}")).concat();
                output::line(format_args!(
                    "{:>10} {:>10} {:>9} {:>9}{percentiles} {:>9}",
                    "size", "count", "min", "mean", "max"
                ))
            }
        }
    }

    fn meaning(&self) -> &'static str {
        match self.plan.operation {
            _ if self.plan.floor => "from sending a frame to its echo",
            Operation::Send | Operation::Write => "from posting a message to the peer's answer",
            Operation::Read | Operation::Atomic => "from posting to completion",
        }
    }

    /// Prints the results of one size.
    pub(super) fn row(&self, size: u32, outcome: &Outcome, report: &ServerReport) -> Result<(), Failure> {
        if let (Some(series), Some(SampleFormat::Picture(file))) = (&outcome.series, &self.form.plot) {
            let title = format!("{:?} of {size} bytes over {}", self.plan.operation, self.port.0);
            std::fs::write(file, picture::draw(series, &title))
                .map_err(|error| Failure::Run(format!("cannot write {}: {error}", file.display())))?;
        }
        if self.form.json {
            return formats::print(formats::PERF, self.object(size, outcome, report));
        }
        self.numbers(size, outcome, report)?;
        match &outcome.series {
            Some(series) => output::lines(series.text().trim_end()),
            None => Ok(()),
        }
    }

    fn numbers(&self, size: u32, outcome: &Outcome, report: &ServerReport) -> Result<(), Failure> {
        match &outcome.latency {
            None => {
                let (arrived, seconds) = self.arrived(outcome, report);
                let rate = arrived as f64 / seconds;
                output::line(format_args!(
                    "{size:>10} {arrived:>12} {rate:>14.0} {:>10.3} {:>10} {:>8}",
                    rate * f64::from(outcome.bytes_each) * 8.0 / 1e9,
                    outcome.messages.saturating_sub(arrived),
                    resent(outcome, report),
                ))
            }
            Some(h) => {
                let us = |ns: u64| ns as f64 / 1e3;
                let percentiles =
                    PERCENTILES.map(|(_, p)| format!(" {:>9.2}", us(h.value_at_percentile(p)))).concat();
                output::line(format_args!(
                    "{size:>10} {:>10} {:>9.2} {:>9.2}{percentiles} {:>9.2}",
                    h.len(),
                    us(h.min()),
                    h.mean() / 1e3,
                    us(h.max())
                ))
            }
        }
    }

    /// Returns the number of messages that count, and their time in seconds.
    ///
    /// On RC, a completed message has arrived. For bare frames and for services without acknowledgements, the server's
    /// count is used, and the time from first to last arrival unless all came in one burst. A server cannot see WRITEs.
    fn arrived(&self, outcome: &Outcome, report: &ServerReport) -> (u64, f64) {
        let seen =
            self.plan.floor || (self.plan.service != Service::Rc && self.plan.operation == Operation::Send);
        if !seen {
            return (outcome.messages, outcome.seconds);
        }
        let seconds = report.seconds.filter(|s| *s > 0.0).unwrap_or(outcome.seconds);
        (report.messages.unwrap_or(0), seconds)
    }

    fn object(&self, size: u32, outcome: &Outcome, report: &ServerReport) -> Value {
        let plan = self.plan;
        let (arrived, seconds) = self.arrived(outcome, report);
        let rate = arrived as f64 / seconds;
        let mut object = json!({
            "role": "client", "service": plan.service, "operation": plan.operation, "measure": plan.measure, "floor": plan.floor,
            "port": self.port.0, "mode": self.port.1, "path_mtu": self.path_mtu.bytes(),
            "qps": plan.qps, "depth": plan.depth, "size": size, "payload_each": outcome.bytes_each,
            "messages": arrived, "sent": outcome.messages, "seconds": seconds, "messages_per_second": rate,
            "gbit_per_second": rate * f64::from(outcome.bytes_each) * 8.0 / 1e9,
            "resent_packets": resent(outcome, report),
            "counters": map(&outcome.counters), "server_counters": map(&report.counters),
        });
        if let Some(h) = &outcome.latency {
            let mut latency = json!({ "meaning": self.meaning(), "count": h.len(), "min": h.min(), "mean": h.mean(),
                                      "stdev": h.stdev(), "max": h.max() });
            for (name, p) in PERCENTILES {
                latency[name] = h.value_at_percentile(p).into();
            }
            object["latency_ns"] = latency;
        }
        if let Some(series) = &outcome.series {
            object["series"] = series.json();
        }
        object
    }
}

/// Returns the number of packets that either end retransmitted.
fn resent(outcome: &Outcome, report: &ServerReport) -> u64 {
    let all = outcome.counters.iter().chain(&report.counters);
    all.filter(|(name, _)| name == "retransmitted_packets").map(|(_, n)| n).sum()
}

/// Returns the counters as a JSON object. Sums counters that several layers of a port share.
fn map(counters: &[(String, u64)]) -> Value {
    let mut object = serde_json::Map::new();
    for (name, n) in counters {
        let sum = object.get(name).and_then(Value::as_u64).unwrap_or(0) + n;
        object.insert(name.clone(), sum.into());
    }
    object.into()
}
