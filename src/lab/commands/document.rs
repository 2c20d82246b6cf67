//! The results of a lab, as data. `--json` prints it; [`super::text`] and [`super::page`] draw it, and show no number
//! that it does not contain.

use roxie_report::failure::Failure;
use roxie_report::formats;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Description of a lab.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct About {
    /// Name in the command: `roxie lab NAME`.
    pub(crate) name: &'static str,
    /// Summary in one line.
    pub(crate) line: &'static str,
    /// Observations to make.
    pub(crate) see: &'static [&'static str],
    /// Changes that show the opposite.
    pub(crate) change: &'static [&'static str],
}

/// Results of a lab.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) about: About,
    /// The command that repeats it.
    pub(crate) command: String,
    /// The requested run first. Others differ from it by their `choice`.
    pub(crate) runs: Vec<Run>,
    /// Blocks about all runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) across: Vec<Block>,
}

impl Report {
    /// Returns the report as `--json` prints it, and as a page embeds it.
    ///
    /// # Errors
    ///
    /// If serialization fails, which no report causes.
    pub(crate) fn json(&self) -> Result<String, Failure> {
        let report = formats::versioned(formats::LAB, self);
        formats::text(&report).map_err(|e| Failure::Run(format!("the data: {e}")))
    }
}

/// One run of the engine.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Run {
    /// Differences from the other runs. The page has a control for each choice.
    pub(crate) choice: Vec<Choice>,
    /// Numbers of the run, by name.
    pub(crate) facts: Facts,
    /// Drawings of the run.
    pub(crate) blocks: Vec<Block>,
}

/// The value of a control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Choice {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

impl Choice {
    pub(crate) fn new(name: &'static str, value: impl ToString) -> Choice {
        Choice { name, value: value.to_string() }
    }
}

/// Numbers by name, in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Facts(pub(crate) Vec<(&'static str, Fact)>);

/// A number, its unit, and its meaning.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fact {
    pub(crate) value: Value,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) unit: &'static str,
    pub(crate) about: &'static str,
}

impl Facts {
    /// Adds a number.
    pub(crate) fn tell(
        &mut self,
        name: &'static str,
        value: impl Into<Value>,
        unit: &'static str,
        about: &'static str,
    ) {
        self.0.push((name, Fact { value: rounded(value.into()), unit, about }));
    }

    /// Returns a value by name, as a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).and_then(|(_, fact)| fact.value.as_f64())
    }
}

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, fact)| map.serialize_entry(name, fact))?;
        map.end()
    }
}

/// Rounds to six significant digits; further ones are arithmetic noise.
pub(crate) fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(5 - value.abs().log10().floor() as i32);
    if scale.is_finite() && scale > 0.0 { (value * scale).round() / scale } else { value }
}

fn rounded(value: Value) -> Value {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(number) => round(number).into(),
        None => value,
    }
}

/// A part of a report.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Block {
    /// A paragraph.
    Prose { text: String },
    /// Rows of cells.
    Table(Table),
    /// Lines over a common axis.
    Chart(Chart),
    /// Stacked bars, one below the other.
    Bars(Bars),
    /// A sequence diagram of two queue pairs.
    Ladder(Ladder),
    /// A frame or a message, field by field.
    Bytes(Bytes),
    /// Durations of activities, and their places.
    Timeline(Timeline),
    /// States that change step by step.
    Steps(Steps),
}

#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// True if the last row is the sum of the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sum: bool,
}

impl Table {
    /// Returns a table with one run per row: its first choices, then facts. `facts` are pairs of column title and fact
    /// name.
    pub(crate) fn of_runs<'a>(
        title: &str,
        choices: &[&'static str],
        facts: &[(&'static str, &'static str)],
        runs: impl IntoIterator<Item = &'a Run>,
    ) -> Table {
        let row = |run: &Run| {
            let choices = run.choice.iter().take(choices.len()).map(|choice| choice.value.clone().into());
            choices.chain(facts.iter().map(|(_, fact)| run.facts.number(fact).into())).collect()
        };
        Table {
            title: title.to_owned(),
            columns: choices.iter().copied().chain(facts.iter().map(|(column, _)| *column)).collect(),
            rows: runs.into_iter().map(row).collect(),
            sum: false,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Horizontal lines: thresholds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) levels: Vec<Level>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

/// Returns an axis.
pub(crate) fn axis(name: &'static str, unit: &'static str) -> Axis {
    Axis { name, unit }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<[f64; 2]>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Level {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| [round(x), round(y)]).collect();
        Series { name: name.into(), points }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) parts: Vec<Part>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) value: f64,
}

impl Part {
    pub(crate) fn new(name: impl Into<String>, value: f64) -> Part {
        Part { name: name.into(), value: round(value) }
    }
}

/// The rungs of a ladder, from [`roxie_report::ladder`].
#[derive(Debug, Serialize)]
pub(crate) struct Ladder {
    pub(crate) heading: String,
    #[serde(flatten)]
    pub(crate) ladder: roxie_report::ladder::Ladder,
}

#[derive(Debug, Serialize)]
pub(crate) struct Bytes {
    pub(crate) title: String,
    /// The bytes, two hex digits each.
    pub(crate) hex: String,
    pub(crate) fields: Vec<ByteField>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ByteField {
    pub(crate) header: String,
    pub(crate) name: String,
    /// Offset of the first bit.
    pub(crate) bit: usize,
    pub(crate) bits: usize,
    pub(crate) value: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) about: String,
    /// True if the ICRC does not cover the field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) uncovered: bool,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    pub(crate) title: String,
    /// Unit of all times.
    pub(crate) unit: &'static str,
    pub(crate) spans: Vec<Span>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Span {
    /// The place of the activity.
    pub(crate) at: &'static str,
    pub(crate) what: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Steps {
    pub(crate) title: String,
    /// Names of the places that have a state.
    pub(crate) places: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) at: String,
    pub(crate) says: String,
    /// State of each place in words, and its severity: 0 fine, 1 strained, 2 stuck.
    pub(crate) states: Vec<(String, u8)>,
}
