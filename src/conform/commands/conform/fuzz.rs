//! `roxie conform --fuzz` and `--script`: packets between valid and invalid, from a seed or from a file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use roxie::random::unguessable;
use roxie_conform_bench::bench::Bench;
use roxie_conform_bench::fuzz::{self, Config, Sequence};
use roxie_conform_bench::report::Report;
use roxie_report::output;

use super::reach::Reach;
use super::report::take;
use super::{CANNOT_RUN, Ended, PlayArguments, USAGE};

/// Time in which an agent that was lost listens again, if anything starts it anew.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Options of fuzzing.
#[derive(Debug, Args)]
pub(super) struct FuzzArguments {
    /// Send packets between valid and invalid in place of the checks
    #[arg(long, conflicts_with_all = ["filter", "short", "script"])]
    fuzz: bool,
    /// Seed of the packets [default: any, which is printed]
    #[arg(long, value_name = "N", requires = "fuzz")]
    seed: Option<u64>,
    /// Number of packets
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    packets: u64,
    /// Packets a second, at most
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Send the packets of a script, as --fuzz prints them, in place of the checks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "short"])]
    script: Option<PathBuf>,
}

/// What to send.
pub(super) enum Fuzzing {
    Campaign(Config),
    Script(Sequence, u32),
}

impl FuzzArguments {
    /// Returns what to send in place of the checks, if that is asked for.
    pub(super) fn chosen(&self) -> Result<Option<Fuzzing>, Ended> {
        if let Some(path) = &self.script {
            let failed = |why: String| Ended(USAGE, format!("the script {}: {why}", path.display()));
            let text = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
            let sequence = text.parse().map_err(|e: fuzz::ScriptError| failed(e.to_string()))?;
            return Ok(Some(Fuzzing::Script(sequence, self.rate)));
        }
        let seed = self.seed.unwrap_or_else(|| unguessable() >> 32);
        Ok(self.fuzz.then_some(Fuzzing::Campaign(Config { seed, packets: self.packets, rate: self.rate })))
    }
}

impl Fuzzing {
    /// Returns the words for the first line of a run.
    pub(super) fn words(&self) -> String {
        match self {
            Fuzzing::Campaign(config) => {
                format!("fuzzing with {} packets, seed {}", config.packets, config.seed)
            }
            Fuzzing::Script(sequence, _) => format!("a script of {} packets", sequence.lines.len()),
        }
    }

    /// Sends the packets, and prints and reports the outcomes.
    pub(super) fn run(
        &self,
        arguments: &PlayArguments,
        bench: &mut Bench,
        reach: &mut Reach,
        report: &mut Report,
    ) -> Result<(), Ended> {
        let cannot = |why: &str| Ended(CANNOT_RUN, format!("the target cannot be fuzzed: {why}"));
        let outcomes = match self {
            Fuzzing::Campaign(config) => {
                let mut told =
                    |sent: u64| output::progress(format_args!("{sent}/{} packets", config.packets));
                let mut again = || reach.connect_within(COMES_BACK_WITHIN).ok();
                fuzz::run(bench, config, &mut again, &mut told).map_err(|stop| cannot(stop.reason()))?
            }
            Fuzzing::Script(sequence, rate) => {
                vec![fuzz::replay(bench, sequence, *rate).map_err(|stop| cannot(stop.reason()))?]
            }
        };
        for outcome in outcomes {
            let stimulus = outcome.stimulus.clone();
            take(outcome, arguments, report)?;
            if !arguments.verbose {
                output::line(format_args!("           {stimulus}"))?;
            }
        }
        Ok(())
    }
}
