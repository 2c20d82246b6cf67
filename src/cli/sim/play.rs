//! `roxie sim run`: runs one scenario.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use roxie::text::file_in;
use roxie::time::Nanos;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use roxie_sim::scenario::{Results, Scenario, Simulation, Time};

use super::{EXIT_CODES, Profiles, failure, print};

/// Interval between progress lines.
const TELL: Duration = Duration::from_millis(250);

/// Run one scenario and print its results
#[derive(Debug, Args)]
#[command(
    long_about = "Runs a scenario and prints a summary: flow completion times and slowdowns (relative to the empty \
        network), marks, drops, pauses, the slowest flows, the deepest queues.\n\n--out writes tables to a folder: \
        flows.csv (with what happened to each flow's packets), ports.csv, hosts.csv, queues.csv (depths over time), \
        rates.csv, control.csv (if the scenario asks for it), summary.json, and a capture of each link that the \
        scenario names.",
    after_help = format!(
        "Examples:\n  roxie sim run docs/sim/incast.toml\n  roxie sim run docs/sim/incast.toml --out /tmp/incast\n  \
        roxie sim run docs/sim/incast.toml --json | jq .slowdown_p99\n\n{EXIT_CODES}"
    )
)]
pub(super) struct Arguments {
    /// File of the scenario
    file: PathBuf,
    /// Write tables and captures to this folder; created if missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Also write each table as a Parquet file
    #[arg(long, requires = "out")]
    parquet: bool,
    /// Seed to use instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut scenario = Scenario::open(&arguments.file).map_err(failure)?;
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    let mut progress = Progress::new();
    let out = arguments.out.as_deref().map(|folder| Out { folder, parquet: arguments.parquet });
    let simulation = Profiles::default()
        .of(&scenario)
        .and_then(|profile| Simulation::with_profile(&scenario, profile))
        .map_err(|error| failure(error.within(&arguments.file)))?;
    let results = play(simulation, &scenario, out, |simulation| progress.tell(simulation))?;
    progress.end(results.summary.events);
    if arguments.json {
        return formats::print(formats::SIM, &results.summary);
    }
    print::summary(&results)
}

/// Where to write tables, and whether as Parquet too.
#[derive(Clone, Copy)]
pub(super) struct Out<'a> {
    pub(super) folder: &'a Path,
    pub(super) parquet: bool,
}

/// Runs a scenario, and writes its results to a folder.
pub(super) fn play(
    mut simulation: Simulation,
    scenario: &Scenario,
    out: Option<Out<'_>>,
    mut tell: impl FnMut(&Simulation),
) -> Result<Results, Failure> {
    if let Some(Out { folder, .. }) = out {
        fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
        for link in &scenario.output.capture {
            let path = file_in(folder, link, "pcapng").map_err(|error| Failure::Usage(error.to_string()))?;
            let file = File::create(&path).map_err(|error| unwritten(&path, &error))?;
            simulation.capture(link, Box::new(BufWriter::new(file))).map_err(failure)?;
        }
    }
    // A step only bounds the interval of progress lines: the simulation itself decides when it is over.
    let step = Nanos((scenario.time.0.0 / 1000).clamp(1, 100_000));
    while !simulation.is_over() {
        simulation.advance(simulation.now() + step).map_err(failure)?;
        tell(&simulation);
    }
    let results = simulation.results();
    if let Some(out) = out {
        write(out, &results)?;
    }
    Ok(results)
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

fn write(Out { folder, parquet }: Out<'_>, results: &Results) -> Result<(), Failure> {
    for table in &results.tables {
        #[cfg(not(feature = "parquet"))]
        if parquet {
            return Err(Failure::Run("this roxie was built without Parquet: --features parquet".into()));
        }
        #[cfg(feature = "parquet")]
        if parquet {
            let path = folder.join(format!("{}.parquet", table.name));
            let file = File::create(&path).map_err(|error| unwritten(&path, &error))?;
            table.write_parquet(BufWriter::new(file)).map_err(|error| unwritten(&path, &error))?;
        }
        let path = folder.join(format!("{}.csv", table.name));
        let file = File::create(&path).map_err(|error| unwritten(&path, &error))?;
        table.write_csv(BufWriter::new(file)).map_err(|error| unwritten(&path, &error))?;
    }
    // Written last: a folder with this file is complete.
    let path = folder.join("summary.json");
    let summary = formats::versioned(formats::SIM, &results.summary);
    let text = serde_json::to_string_pretty(&summary).expect("numbers and texts");
    fs::write(&path, text + "\n").map_err(|error| unwritten(&path, &error))
}

/// A progress line on a terminal.
struct Progress {
    began: Instant,
    told: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { began: Instant::now(), told: Instant::now() }
    }

    fn tell(&mut self, simulation: &Simulation) {
        if self.told.elapsed() < TELL {
            return;
        }
        self.told = Instant::now();
        let ended = simulation.flows().len() - simulation.open();
        output::progress(format_args!(
            "{}: {ended} of {} flows have ended, {} queue pairs, {:.1} million events",
            Time(Nanos(simulation.now().0 / 1000 * 1000)),
            simulation.flows().len(),
            simulation.queue_pairs(),
            simulation.fabric().events() as f64 / 1e6
        ));
    }

    fn end(&self, events: u64) {
        output::progress("");
        let took = self.began.elapsed().as_secs_f64();
        let millions = events as f64 / 1e6;
        output::note(format_args!(
            "{millions:.2} million events in {took:.2} s, {:.2} million a second",
            millions / took
        ));
    }
}
