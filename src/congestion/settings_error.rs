//! What is wrong with the text of [`super::Settings`], and what would be right.

use super::knobs::KnobError;

/// What is wrong with a text of settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The first word names no algorithm.
    #[error("`{name}` is no congestion control: there are off, dcqcn, swift and fixed{}", meant(nearest))]
    Algorithm {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A part is not `KNOB=VALUE`.
    #[error("`{0}` sets nothing: write KNOB=VALUE, several with commas between them")]
    Part(String),
    /// A preset behind other knobs.
    #[error("preset={0} sets all knobs: write it before those that differ from it")]
    PresetLate(String),
    /// A knob of DCQCN.
    #[error(transparent)]
    Dcqcn(#[from] KnobError),
    /// No knob of this name.
    #[error("`{name}` is no knob of {of}{}; there are {known}", meant(nearest))]
    NoKnob {
        /// The algorithm that was named: `dcqcn`, `swift`, `fixed`.
        of: &'static str,
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// All that there are.
        known: String,
    },
    /// A knob takes no such value.
    #[error("{knob}={text}: it takes {takes}")]
    Value {
        /// The knob whose range was missed.
        knob: &'static str,
        /// What was asked for.
        text: String,
        /// The range and the unit.
        takes: String,
    },
    /// Swift's flow scaling is upside down.
    #[error("fs_min_cwnd={min} must be below fs_max_cwnd={max}")]
    FlowScaling {
        /// `fs_min_cwnd`, in packets.
        min: f64,
        /// `fs_max_cwnd`, in packets.
        max: f64,
    },
    /// `fixed` without its rate.
    #[error("a fixed rate wants to know which: fixed,rate=100M")]
    NoRate,
    /// A rate that is none.
    #[error(
        "`{0}` is no rate: write a number from 1k to 10T with its unit, k, M, G or T bits per second, such as 100M or 2.5G"
    )]
    Rate(String),
    /// A knob where there is none.
    #[error("congestion control is off and has no knobs: `dcqcn` or `dcqcn,{0}` switches it on")]
    Off(String),
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map_or(String::new(), |name| format!(" (did you mean {name}?)"))
}
