//! The JSON that commands print: one object, or one object a line, with the version of its command's format in front.
//!
//! A version is raised when a key goes, is renamed, or changes its type or meaning: `docs/versions.md`.
//! `tests/cli/formats.rs` compares what the commands print with the formats that `tests/data/formats.txt` keeps.

use std::fmt;

use roxie::text::acts;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// Version of `roxie capture --json`.
pub const CAPTURE: u32 = 1;
/// Version of `roxie cc --json`.
pub const CC: u32 = 1;
/// Version of `roxie conform list --json`.
pub const CONFORM_LIST: u32 = 1;
/// Version of `roxie decode --json`.
pub const DECODE: u32 = 1;
/// Version of `roxie demo --json`.
pub const DEMO: u32 = 1;
/// Version of `roxie doctor --json`.
pub const DOCTOR: u32 = 1;
/// Version of `roxie judge --json`.
pub const JUDGE: u32 = 1;
/// Version of `roxie lab --json`.
pub const LAB: u32 = 1;
/// Version of `roxie nfs --json`.
pub const NFS: u32 = 1;
/// Version of `roxie nvme --json`.
pub const NVME: u32 = 1;
/// Version of `roxie profile --json`.
pub const PROFILE: u32 = 1;
/// Version of `roxie perf --json`.
pub const PERF: u32 = 1;
/// Version of `roxie pingpong --json`.
pub const PINGPONG: u32 = 1;
/// Version of `roxie show --json`.
pub const SHOW: u32 = 1;
/// Version of `roxie sim --json`.
pub const SIM: u32 = 1;
/// Version of `roxie top --json`.
pub const TOP: u32 = 1;
/// Version of `roxie wire --json`.
pub const WIRE: u32 = 1;

/// An object with the version of its format.
#[derive(Debug, Serialize)]
pub struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    object: T,
}

/// Adds the version to an object.
pub fn versioned<T: Serialize>(version: u32, object: T) -> Versioned<T> {
    Versioned { version, object }
}

impl<T: Serialize> fmt::Display for Versioned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self).map_err(|_| fmt::Error)?)
    }
}

/// Returns JSON in which characters that act on a terminal are escaped, those too that JSON takes as they are (U+009B).
///
/// # Errors
///
/// If serialization fails.
pub fn text(object: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string(object)?))
}

/// Escapes characters that act on a terminal, which are within strings in the JSON of one line.
fn escaped(json: &str) -> String {
    if !json.contains(acts) {
        return json.to_owned();
    }
    let unit = |unit: &mut u16| format!("\\u{unit:04x}");
    let shown = |c: char| {
        if acts(c) { c.encode_utf16(&mut [0; 2]).iter_mut().map(unit).collect() } else { c.to_string() }
    };
    json.chars().map(shown).collect()
}

/// Prints an object as a line of JSON.
///
/// # Errors
///
/// As [`output::line()`].
pub fn print(version: u32, object: impl Serialize) -> Result<(), Failure> {
    output::line(versioned(version, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_foreign_text_is_exact_and_plain() {
        let name = "a\u{1b}[2J\n\u{9b}\u{7f}\u{202e}\u{e0041}\"z";
        let shown = versioned(SHOW, serde_json::json!({ "name": name })).to_string();
        assert!(!shown.contains(acts), "{shown:?}");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read["name"], name);
    }
}
