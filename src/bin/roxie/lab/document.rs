//! What a lab has to show, as data: `--json` prints it, [`super::text`] and [`super::page`] draw it, and neither knows a number that is
//! not in it.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::failure::Failure;

/// What a lab says of itself.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct About {
    /// By which it is started: `roxie lab NAME`.
    pub(crate) name: &'static str,
    /// In one line.
    pub(crate) line: &'static str,
    /// What will be seen.
    pub(crate) see: &'static [&'static str],
    /// What to change to see the opposite.
    pub(crate) change: &'static [&'static str],
}

/// What a lab found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) about: About,
    /// The command that makes it again.
    pub(crate) command: String,
    /// What was asked for first; the others differ from it in what their `choice` says.
    pub(crate) runs: Vec<Run>,
    /// Over all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) across: Vec<Block>,
}

impl Report {
    /// As `--json` prints it, and as a page has it.
    ///
    /// # Errors
    /// None that a report can cause.
    pub(crate) fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(|e| Failure::Run(format!("the data: {e}")))
    }
}

/// One run of the engine.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Run {
    /// What tells it from the others: the page has a control for each.
    pub(crate) choice: Vec<Choice>,
    /// Its numbers, by name.
    pub(crate) facts: Facts,
    /// What is drawn of it.
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

/// Numbers by name, in the order in which they are told.
#[derive(Debug, Default)]
pub(crate) struct Facts(pub(crate) Vec<(&'static str, Fact)>);

/// A number, its unit, and what it is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fact {
    pub(crate) value: Value,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) unit: &'static str,
    pub(crate) about: &'static str,
}

impl Facts {
    /// Adds one.
    pub(crate) fn tell(
        &mut self,
        name: &'static str,
        value: impl Into<Value>,
        unit: &'static str,
        about: &'static str,
    ) {
        self.0.push((name, Fact { value: rounded(value.into()), unit, about }));
    }

    /// The value of one, as a number.
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

/// Six digits that count: more are noise of the arithmetic.
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

/// Something to look at.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Block {
    /// Words.
    Prose { text: String },
    /// Rows of cells.
    Table(Table),
    /// Lines over a common axis.
    Chart(Chart),
    /// Lengths made of parts, one below the other.
    Bars(Bars),
    /// What two queue pairs said to one another.
    Ladder(Ladder),
    /// A frame or a message, field by field.
    Bytes(Bytes),
    /// What took how long, and where.
    Timeline(Timeline),
    /// Something that changes step by step.
    Steps(Steps),
}

#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// The last row is the sum of the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sum: bool,
}

impl Table {
    /// Runs side by side, one in a row: the first of their choices, then facts. Each column has a name, and of a fact that under which it is
    /// told.
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
    /// Lines across: thresholds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) levels: Vec<Level>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

/// What an axis counts.
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

/// The rungs of a ladder, as [`crate::ladder`] worked them out.
#[derive(Debug, Serialize)]
pub(crate) struct Ladder {
    pub(crate) heading: String,
    #[serde(flatten)]
    pub(crate) ladder: crate::ladder::Ladder,
}

#[derive(Debug, Serialize)]
pub(crate) struct Bytes {
    pub(crate) title: String,
    /// The bytes, two digits each.
    pub(crate) hex: String,
    pub(crate) fields: Vec<ByteField>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ByteField {
    pub(crate) header: String,
    pub(crate) name: String,
    /// The first bit, from the first of all.
    pub(crate) bit: usize,
    pub(crate) bits: usize,
    pub(crate) value: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) about: String,
    /// Not covered by the ICRC.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) uncovered: bool,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    pub(crate) title: String,
    /// Of all times.
    pub(crate) unit: &'static str,
    pub(crate) spans: Vec<Span>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Span {
    /// Who does it.
    pub(crate) at: &'static str,
    pub(crate) what: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Steps {
    pub(crate) title: String,
    /// What has a state.
    pub(crate) places: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) at: String,
    pub(crate) says: String,
    /// Of each place: its state in words, and how far it is from good: 0 fine, 1 strained, 2 stuck.
    pub(crate) states: Vec<(String, u8)>,
}
