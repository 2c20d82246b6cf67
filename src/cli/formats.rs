//! The JSON that commands print: one object, or one object a line, with the version of its command's format in front.
//!
//! A version is raised when a key goes, is renamed, or changes its type or meaning: `docs/versions.md`. `tests/cli/formats.rs` compares what
//! the commands print with the formats that `tests/data/formats.txt` keeps.

use std::fmt;

use serde::Serialize;

use crate::failure::Failure;
use crate::output;

pub(crate) const CAPTURE: u32 = 1;
pub(crate) const CC: u32 = 1;
pub(crate) const CONFORM_LIST: u32 = 1;
pub(crate) const DECODE: u32 = 1;
pub(crate) const DEMO: u32 = 1;
pub(crate) const DOCTOR: u32 = 1;
pub(crate) const LAB: u32 = 1;
pub(crate) const NFS: u32 = 1;
pub(crate) const NVME: u32 = 1;
pub(crate) const PERF: u32 = 1;
pub(crate) const PINGPONG: u32 = 1;
pub(crate) const SHOW: u32 = 1;
pub(crate) const SIM: u32 = 1;
pub(crate) const TOP: u32 = 1;
pub(crate) const WIRE: u32 = 1;

/// An object with the version of its format.
#[derive(Debug, Serialize)]
pub(crate) struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    object: T,
}

/// Adds the version to an object.
pub(crate) fn versioned<T: Serialize>(version: u32, object: T) -> Versioned<T> {
    Versioned { version, object }
}

impl<T: Serialize> fmt::Display for Versioned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Prints an object as a line of JSON.
///
/// # Errors
///
/// As [`output::line`].
pub(crate) fn print(version: u32, object: impl Serialize) -> Result<(), Failure> {
    output::line(versioned(version, object))
}
