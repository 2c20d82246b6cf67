//! Scenarios of whole networks, in virtual time.
//!
//! [`text`] tests the file format, [`patterns`] the flows of each pattern, [`runs`] output and reproducibility,
//! [`flows`] the counts per flow, [`known`] published results, [`examples`] the scenarios of `docs/sim`.

mod examples;
mod flows;
mod known;
mod patterns;
mod runs;
mod text;

use roxie_sim::scenario::{Results, Scenario, Simulation};

fn scenario(text: &str) -> Scenario {
    Scenario::read(text).expect("a scenario")
}

fn simulation(text: &str) -> Simulation {
    Simulation::new(&scenario(text)).expect("a scenario that can be played")
}

fn played(text: &str) -> Results {
    let mut simulation = simulation(text);
    simulation.run().expect("connections");
    simulation.results()
}
