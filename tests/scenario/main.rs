//! Scenarios of whole networks, in virtual time.
//!
//! [`text`] is what a file may say, [`patterns`] which flows follow, [`runs`] what is written down and that it is the same again,
//! [`flows`] what each met, [`known`] results that others have published, [`examples`] the scenarios of `docs/sim`.

mod examples;
mod flows;
mod known;
mod patterns;
mod runs;
mod text;

use roxie::sim::scenario::{Results, Scenario, Simulation};

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
