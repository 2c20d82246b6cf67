//! Plays the scenario in virtual time, between simulated hosts.

use roxie_sim::scenario::Simulation;

use super::scenario::Scenario;
use super::trace::{Run, Summary, Trace};
use crate::demo::{Failure, Interrupt};

/// Plays the scenario.
///
/// # Errors
/// If a WRITE completes with an error.
pub(super) fn play(scenario: &Scenario, interrupt: &Interrupt) -> Result<Run, Failure> {
    let mut simulation = Simulation::new(&scenario.simulated()?)?;
    let mut trace = Trace::new(scenario);
    while !trace.is_over() && !simulation.is_over() {
        interrupt.check()?;
        let until = simulation.now() + scenario.interval();
        simulation.watch(until, |fabric| trace.look(fabric))?;
    }
    if let Some(why) = simulation.results().flows.iter().find_map(|flow| flow.failed.as_ref()) {
        return Err(Failure::Wrong(format!("a WRITE in virtual time completed with an error: {why}")));
    }
    let summary = Summary::of(&trace);
    Ok(Run { trace, summary })
}
