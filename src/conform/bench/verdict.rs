//! Verdicts of checks.

use serde::{Deserialize, Serialize};

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The target does what the specification asks.
    Keeps,
    /// The target does something else.
    Breaks,
    /// The target accepts, without harm, what it should refuse.
    Lenient,
    /// The check did not run, or could not decide.
    NotTested,
}

impl Verdict {
    /// All verdicts, in the order of reports.
    pub const ALL: [Verdict; 4] = [Verdict::Keeps, Verdict::Breaks, Verdict::Lenient, Verdict::NotTested];

    /// Returns the words of reports.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Keeps => "keeps",
            Verdict::Breaks => "breaks",
            Verdict::Lenient => "lenient",
            Verdict::NotTested => "not tested",
        }
    }
}

/// Why a script ended before its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The target broke the rule: expected and observed.
    Breaks(String),
    /// The target accepted what it should refuse.
    Lenient(String),
    /// The check cannot decide: why.
    NotTested(String),
    /// The agent no longer answers.
    Lost(String),
    /// The target no longer answers over RoCE.
    Silent(String),
}

impl Stop {
    /// Returns the verdict: a target that is lost during a check breaks the rule, since no packet may end a host.
    pub fn verdict(&self) -> Verdict {
        match self {
            Stop::Breaks(_) | Stop::Lost(_) | Stop::Silent(_) => Verdict::Breaks,
            Stop::Lenient(_) => Verdict::Lenient,
            Stop::NotTested(_) => Verdict::NotTested,
        }
    }

    /// Returns the reason.
    pub fn reason(&self) -> &str {
        match self {
            Stop::Breaks(why)
            | Stop::Lenient(why)
            | Stop::NotTested(why)
            | Stop::Lost(why)
            | Stop::Silent(why) => why,
        }
    }
}

/// Result of a script.
pub type Script<T = ()> = Result<T, Stop>;

/// Fails with [`Stop::Breaks`] unless a condition holds.
///
/// # Errors
/// If it does not.
pub fn must(holds: bool, otherwise: impl FnOnce() -> String) -> Script {
    if holds { Ok(()) } else { Err(Stop::Breaks(otherwise())) }
}
