//! `roxie sim`: scenarios of whole networks in virtual time.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie::profile::Profile;
use roxie_options::profile::ChosenProfile;
use roxie_report::failure::Failure;
use roxie_sim::scenario::{Scenario, ScenarioError};

mod collect;
mod play;
mod print;
mod sweep;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 wrong usage or an invalid scenario.";

/// Simulate a data centre: hosts, switches, traffic
#[derive(Debug, Args)]
#[command(
    long_about = "Runs scenarios in virtual time: hosts with the real transport engine, links with rates, switches \
        with shared buffers, marking, priority flow control and ECMP. A scenario is one TOML file; docs/simulator.md \
        explains it. The same seed gives the same results to the byte.",
    after_help = EXIT_CODES
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Run(play::Arguments),
    Sweep(sweep::Arguments),
    Collect(collect::Arguments),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.what {
        What::Run(arguments) => play::run(arguments),
        What::Sweep(arguments) => sweep::run(arguments),
        What::Collect(arguments) => collect::run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("sim"),
    }
}

/// The profiles that scenarios name. Each is read once.
#[derive(Default)]
struct Profiles(BTreeMap<String, &'static Profile>);

impl Profiles {
    /// Returns the profile that a scenario names.
    fn of(&mut self, scenario: &Scenario) -> Result<Option<&'static Profile>, ScenarioError> {
        let Some(name) = &scenario.hosts.profile else { return Ok(None) };
        if !self.0.contains_key(name) {
            let chosen = name.parse::<ChosenProfile>();
            let chosen = chosen.map_err(|error| ScenarioError::of_profile(error.to_string()))?;
            self.0.insert(name.clone(), chosen.profile);
        }
        Ok(self.0.get(name).copied())
    }
}

/// Returns the failure of an error: of the run, or of the scenario that was given.
fn failure(error: ScenarioError) -> Failure {
    match error {
        ScenarioError::Nic { .. } | ScenarioError::Capture(_) => Failure::Run(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    }
}
