//! A conformance bench for RoCE v2 peers. The bench sends packets that it makes itself, right and wrong ones, and
//! judges by three things: the packets that the target sends, what an agent at the target says about memory,
//! completions and states, and whether the target still lives.
//!
//! ```text
//! checks   -> a table of scripts, one a rule               (Check)
//! run      -> makes QPs by the agent, plays the script     (Bench, Agent, Wire)
//! verdict  -> keeps, breaks, lenient, not tested           (Outcome)
//! report   -> JSON, JUnit, HTML, differences of two runs
//! ```
//!
//! Read `checks/mod.rs` and one of its chapters first: the scripts say what the specification asks.
//!
//! Architecture invariant: a run ends with a verdict for each check, whatever target and agent do. Each wait has an
//! end, and what is kept of a target's packets and of an agent's answers is bounded.
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod agent;
pub mod bench;
pub mod check;
pub mod checks;
pub mod fuzz;
mod margin;
pub mod packet;
pub mod pair;
pub mod report;
pub mod run;
pub mod service;
pub mod through;
pub mod verdict;
pub mod wire;
