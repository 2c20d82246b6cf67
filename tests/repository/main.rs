//! The repository's own checks: rules of the sources, the page of rules of the specification, the scripts of continuous integration.

#[path = "../support/in_time.rs"]
mod in_time;

mod conformance;
mod release;
mod rerun;
mod tidy;
