//! Errors of a scenario, with their place in its file.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::fabric::ConfigError;
use roxie_nic::congestion::SettingsError;
use roxie_nic::nic::ControlError;

/// Place of a value in a scenario: table and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScenarioKey {
    /// Name of the table; empty for the keys above all tables.
    pub table: &'static str,
    /// Index among several tables of that name.
    pub number: Option<usize>,
    /// Key. `None`: the whole table.
    pub key: Option<&'static str>,
}

impl From<(&'static str, &'static str)> for ScenarioKey {
    fn from((table, key): (&'static str, &'static str)) -> ScenarioKey {
        ScenarioKey { table, number: None, key: Some(key) }
    }
}

impl fmt::Display for ScenarioKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.table, self.number) {
            ("", _) => f.write_str("the scenario"),
            (table, None) => write!(f, "[{table}]"),
            (table, Some(number)) => write!(f, "{table} {number}"),
        }
    }
}

/// Error of a scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Syntax or type error, with the line and what is allowed there.
    #[error("{0}")]
    Text(String),
    /// Invalid value, with what is allowed.
    #[error("{at}: {what}")]
    Wrong {
        /// Place of the value.
        at: ScenarioKey,
        /// The mistake, and the allowed values.
        what: String,
    },
    /// A capture could not be written.
    #[error("a capture: {0}")]
    Capture(#[from] std::io::Error),
    /// Invalid network.
    #[error("the network: {0}")]
    Network(#[from] ConfigError),
    /// Invalid congestion control.
    #[error("[cc]: {0}")]
    Control(#[from] SettingsError),
    /// A NIC rejected a command.
    #[error("host {host}: {error}")]
    Nic {
        /// Number of the host's station.
        host: usize,
        /// Error of the NIC.
        error: ControlError,
    },
}

/// Reads a file.
pub(super) fn load(path: &Path) -> Result<String, ScenarioError> {
    std::fs::read_to_string(path)
        .map_err(|source| ScenarioError::File { path: path.display().to_string(), source })
}

impl ScenarioError {
    /// Returns the error of a file's text.
    pub(super) fn of_file(path: &Path, error: &dyn fmt::Display) -> ScenarioError {
        ScenarioError::Text(format!("{}: {error}", path.display()))
    }

    /// Returns the error of a profile that cannot be had.
    pub fn of_profile(why: impl Into<String>) -> ScenarioError {
        ScenarioError::wrong(("hosts", "profile"), why)
    }

    pub(super) fn wrong(at: impl Into<ScenarioKey>, what: impl Into<String>) -> ScenarioError {
        ScenarioError::Wrong { at: at.into(), what: what.into() }
    }

    /// Converts an error of the TOML parser, and replaces Rust type names.
    pub(super) fn of_text(error: &toml::de::Error) -> ScenarioError {
        const TYPES: [(&str, &str); 4] = [
            ("usize", "a whole number from 0 on"),
            ("u32", "a whole number from 0 to 4294967295"),
            ("u16", "a whole number from 0 to 65535"),
            ("u8", "a whole number from 0 to 255"),
        ];
        let plain = |text: String, (name, meaning): &(&str, &str)| {
            text.replace(&format!("expected {name}"), &format!("expected {meaning}"))
        };
        ScenarioError::Text(TYPES.iter().fold(error.to_string(), plain))
    }

    /// Adds the file's path and the line, if the line can be determined.
    pub fn within(self, path: &Path) -> ScenarioError {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        match self.line(&text) {
            Some(line) => ScenarioError::Text(format!("{}: line {line}: {self}", path.display())),
            None => self,
        }
    }

    /// Returns the line of the error, counted from 1.
    fn line(&self, text: &str) -> Option<usize> {
        let root = DeTable::parse(text).ok()?;
        let span = match self {
            ScenarioError::Wrong { at, .. } => span(root.get_ref(), at)?,
            ScenarioError::Network(error) => span(root.get_ref(), &of_network(error)?)?,
            ScenarioError::Control(error) => span_of_named(root.get_ref(), "cc", &error.to_string())?,
            _ => return None,
        };
        Some(text[..span.start].matches('\n').count() + 1)
    }
}

/// Returns the key that a network error belongs to.
fn of_network(error: &ConfigError) -> Option<ScenarioKey> {
    let spot = match error {
        ConfigError::NoRate => ("network", "rate"),
        ConfigError::FrameErrors(_) => ("network", "frame_errors"),
        ConfigError::Watchdog => ("pfc", "watchdog"),
        ConfigError::Quanta => ("pfc", "quanta"),
        ConfigError::Priority(_) => ("pfc", "lossless"),
        ConfigError::Kmin { .. } => ("ecn", "kmin"),
        ConfigError::Pmax(_) => ("ecn", "pmax"),
        ConfigError::Weight(_) => ("switch", "schedule"),
        ConfigError::Alpha(_) => ("switch", "alpha"),
        ConfigError::Buffer { .. } => ("switch", "buffer"),
        ConfigError::Cell => ("switch", "cell"),
        ConfigError::Topology(_) | ConfigError::Ports => ("network", "nodes"),
        ConfigError::LongestFrame(_) => return None,
    };
    Some(spot.into())
}

/// Returns the span of a key, or else of its table.
fn span(root: &DeTable<'_>, at: &ScenarioKey) -> Option<Range<usize>> {
    let mut table = root;
    let mut whole = None;
    if !at.table.is_empty() {
        let (name, value) = root.iter().find(|(name, _)| name.get_ref() == at.table)?;
        let value = match (at.number, value.get_ref()) {
            (Some(number), DeValue::Array(list)) => list.get(number)?,
            _ => value,
        };
        whole = Some(if at.number.is_some() { value.span() } else { name.span() });
        table = value.get_ref().as_table()?;
    }
    let key = table.iter().find(|(key, _)| at.key.is_some_and(|wanted| key.get_ref() == wanted));
    key.map(|(key, _)| key.span()).or(whole)
}

/// Returns the span of the first key or value of a table that the error names in backticks, or else of the table.
fn span_of_named(root: &DeTable<'_>, name: &str, error: &str) -> Option<Range<usize>> {
    let (name, value) = root.iter().find(|(of, _)| of.get_ref() == name)?;
    let named = |text: &str| error.contains(&format!("`{text}`"));
    let entry = value
        .get_ref()
        .as_table()?
        .iter()
        .find(|(key, value)| named(key.get_ref()) || value.get_ref().as_str().is_some_and(named));
    Some(entry.map_or_else(|| name.span(), |(key, _)| key.span()))
}
