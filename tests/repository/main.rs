//! The repository's own checks: rules of the sources, the pages that follow from other files, the scripts of continuous
//! integration.

#[path = "../support/in_time.rs"]
mod in_time;

mod commits;
mod conformance;
mod crates;
mod figures;
mod release;
mod rerun;
mod tidy;
mod tree;
mod workflows;
