//! The labs as users see them: text in 80 columns, data, and pages that show only numbers of the data. Each lab shows
//! what it claims.
//!
//! [`pages`] checks all labs, in a browser if there is one. The other modules check single labs against theory.

mod browser;
mod fabric;
mod lessons;
mod pages;
mod protocols;
mod serve;
mod transport;

use std::process::{Command, Output, Stdio};

use crate::in_time::CommandInTime;
use serde_json::Value;

/// Runs `roxie lab` with these arguments.
fn lab(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie-lab"));
    command.arg("lab").args(arguments.split_whitespace()).stdin(Stdio::null());
    command.output_in_time().expect("roxie runs")
}

/// Returns the lab's text.
#[track_caller]
fn text(arguments: &str) -> String {
    let output = lab(arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the lab's data.
#[track_caller]
fn data(arguments: &str) -> Value {
    serde_json::from_str(&text(&format!("{arguments} --json"))).expect("JSON")
}

/// Returns a fact of a run.
#[track_caller]
fn fact(run: &Value, name: &str) -> f64 {
    run["facts"][name]["value"].as_f64().unwrap_or_else(|| panic!("no number {name} in {}", run["facts"]))
}

/// Returns the run with these values of its choices.
#[track_caller]
fn run_of<'a>(report: &'a Value, values: &[&str]) -> &'a Value {
    let all = report["runs"].as_array().expect("runs");
    let has = |run: &&Value| {
        let choice = run["choice"].as_array().expect("choices");
        values.iter().all(|value| choice.iter().any(|one| one["value"] == *value))
    };
    all.iter().find(has).unwrap_or_else(|| panic!("no run of {values:?}"))
}

/// Asserts that the command fails with this code, and that its error has all these parts.
#[track_caller]
fn refused(arguments: &str, code: i32, parts: &[&str]) {
    let output = lab(arguments);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {output_text}");
    for part in parts {
        assert!(output_text.contains(part), "{arguments}: no {part:?} in {output_text}");
    }
    assert!(!output_text.contains("panicked"), "{output_text}");
}
