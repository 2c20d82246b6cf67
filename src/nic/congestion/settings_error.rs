//! Errors in the text of [`super::Settings`], with what is allowed.

use super::knobs::KnobError;

/// Why a text of settings is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The first word is not an algorithm.
    #[error("`{name}` is no congestion control: there are off, dcqcn, swift and fixed{}", meant(nearest))]
    Algorithm {
        /// The given word.
        name: String,
        /// The most similar algorithm.
        nearest: Option<&'static str>,
    },
    /// A part is not `KNOB=VALUE`.
    #[error("`{0}` sets nothing: write KNOB=VALUE, several with commas between them")]
    Part(String),
    /// A preset after other knobs.
    #[error("preset={0} sets all knobs: write it before those that differ from it")]
    PresetLate(String),
    /// Error in a knob of DCQCN.
    #[error(transparent)]
    Dcqcn(#[from] KnobError),
    /// Unknown knob.
    #[error("`{name}` is no knob of {of}{}; there are {known}", meant(nearest))]
    NoKnob {
        /// The algorithm: `dcqcn`, `swift`, `fixed`.
        of: &'static str,
        /// The given name.
        name: String,
        /// The most similar knob.
        nearest: Option<&'static str>,
        /// All knobs of the algorithm.
        known: String,
    },
    /// The value is out of the knob's range.
    #[error("{knob}={text}: it takes {takes}")]
    Value {
        /// Name of the knob.
        knob: &'static str,
        /// The given value.
        text: String,
        /// Range and unit.
        takes: String,
    },
    /// Swift's flow scaling has a minimum not below its maximum.
    #[error("fs_min_cwnd={min} must be below fs_max_cwnd={max}")]
    FlowScaling {
        /// `fs_min_cwnd`, in packets.
        min: f64,
        /// `fs_max_cwnd`, in packets.
        max: f64,
    },
    /// `fixed` without a rate.
    #[error("`fixed` requires a rate: fixed,rate=100M")]
    NoRate,
    /// Invalid rate.
    #[error(
        "`{0}` is no rate: write a number from 1k to 10T with its unit, k, M, G or T bits per second, such as 100M or 2.5G"
    )]
    Rate(String),
    /// A knob although congestion control is off.
    #[error("congestion control is off and has no knobs: `dcqcn` or `dcqcn,{0}` switches it on")]
    Off(String),
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map_or(String::new(), |name| format!(" (did you mean {name}?)"))
}
