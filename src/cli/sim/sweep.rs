//! `roxie sim sweep`: runs a scenario with all combinations of some values, on all processors.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use roxie::profile::Profile;
use roxie_report::failure::Failure;
use roxie_report::output;
use roxie_sim::scenario::{Results, Scenario, Simulation};
use serde_json::{Map, Value};

use super::collect::{JOB, SUMMARY};
use super::{EXIT_CODES, Profiles, collect, failure, play};

/// File in a job's folder with its whole scenario.
const SCENARIO: &str = "scenario.toml";
/// File with one command a line.
const LIST: &str = "jobs.txt";
/// Most runs of a sweep; more are a typing error.
const MOST: usize = 100_000;

/// Run a scenario with all combinations of some values, on all processors
#[derive(Debug, Args)]
#[command(
    long_about = "Runs a scenario once for each combination of the given values, and for each seed: independent runs, \
        as many at a time as there are processors. Each run has its own folder with its scenario and its results. \
        Complete runs are not repeated, so that an interrupted sweep continues. At the end all results are joined to \
        one table, sweep.csv.\n\nKEY is the path of a value in the file: cc.rpg_ai_rate, network.spines, \
        traffic.0.load (of the first [[traffic]]).\n\n--list runs nothing, and writes jobs.txt with one command a \
        line, for GNU parallel, a Slurm array or any other way to run commands on many machines. `roxie sim collect \
        DIR` then makes the table.",
        after_help = format!(
            "Examples:\n  roxie sim sweep docs/sim/incast.toml --set cc.rpg_ai_rate=5,20,80 --seeds 10 --out /tmp/sweep\n  \
            roxie sim sweep F.toml --set ecn.kmin=5KB,50KB --out D --list && parallel < D/jobs.txt && roxie sim collect D\n  \
            sbatch --array=1-30 --wrap 'sh -c \"$(sed -n ${{SLURM_ARRAY_TASK_ID}}p D/jobs.txt)\"'\n\n{EXIT_CODES}"
        )
)]
pub(super) struct Arguments {
    /// File of the scenario
    file: PathBuf,
    /// Values for a key; repeatable for several keys
    #[arg(long, value_name = "KEY=A,B,C")]
    set: Vec<String>,
    /// Runs of each combination, with consecutive seeds from the scenario's on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Number of parallel runs [default: the number of processors]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Folder for all runs; created if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only write jobs.txt, a command a line, and run nothing
    #[arg(long)]
    list: bool,
    /// Also write the tables of each run as Parquet files
    #[arg(long)]
    parquet: bool,
    /// Print the table as one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A run of a sweep.
struct Job {
    folder: PathBuf,
    changes: Map<String, Value>,
    scenario: Scenario,
    /// The profile that the scenario names.
    profile: Option<&'static Profile>,
    text: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let jobs = jobs(arguments)?;
    for job in &jobs {
        job.prepare()?;
    }
    if arguments.list {
        return list(&arguments.out, &jobs);
    }
    let open: Vec<&Job> = jobs.iter().filter(|job| !job.is_done()).collect();
    let count = arguments.jobs.or(thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    output::note(format_args!("{} runs, {} to be played, {count} at a time", jobs.len(), open.len()));
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..count.min(open.len()) {
            scope.spawn(|| {
                while let Some(job) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let out = play::Out { folder: &job.folder, parquet: arguments.parquet };
                    match job.play(out) {
                        Ok(_) => output::note(format_args!("done: {}", job.folder.display())),
                        Err(failure) => {
                            let said = format!("{}: {failure}", job.folder.display());
                            failures.lock().unwrap_or_else(|e| e.into_inner()).push(said);
                        }
                    }
                }
            });
        }
    });
    collect::table(&arguments.out, arguments.json)?;
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Run(format!("{} runs failed: {first}", failures.len()))),
    }
}

/// Returns all combinations, in the order of the command line.
fn jobs(arguments: &Arguments) -> Result<Vec<Job>, Failure> {
    let text = fs::read_to_string(&arguments.file)
        .map_err(|error| Failure::Usage(format!("{}: {error}", arguments.file.display())))?;
    // Parse the file as a scenario first: these errors name lines.
    let base = Scenario::open(&arguments.file).map_err(failure)?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut combinations: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for set in &arguments.set {
        let (key, values) = set.split_once('=').ok_or_else(|| {
            Failure::Usage(format!("--set {set}: give KEY=A,B,C, such as cc.rpg_ai_rate=5,20"))
        })?;
        let with = |before: &Vec<(String, String)>| -> Vec<Vec<(String, String)>> {
            let one = |value: &str| [before.clone(), vec![(key.to_owned(), value.to_owned())]].concat();
            values.split(',').map(one).collect()
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    if combinations.len() as u64 * arguments.seeds > MOST as u64 {
        let what = format!("{} runs: {MOST} at most", combinations.len() as u64 * arguments.seeds);
        return Err(Failure::Usage(what));
    }
    let (mut jobs, mut profiles) = (Vec::new(), Profiles::default());
    for combination in &combinations {
        for seed in base.seed..base.seed + arguments.seeds {
            jobs.push(job(arguments, &table, combination, seed, &mut profiles)?);
        }
    }
    Ok(jobs)
}

fn job(
    arguments: &Arguments,
    table: &toml::Table,
    combination: &[(String, String)],
    seed: u64,
    profiles: &mut Profiles,
) -> Result<Job, Failure> {
    let mut table = table.clone();
    let mut changes = Map::new();
    for (key, value) in combination {
        set(&mut table, key, value).map_err(Failure::Usage)?;
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
        let shown = number.map_or_else(|| Value::from(value.as_str()), Value::from);
        changes.insert(key.clone(), shown);
    }
    let mut scenario = Scenario::of_table(table).map_err(failure)?;
    scenario.find_nodes(arguments.file.parent().unwrap_or(Path::new(""))).map_err(failure)?;
    let profile = profiles.of(&scenario).map_err(failure)?;
    scenario.seed = seed;
    changes.insert("seed".into(), seed.into());
    let name: Vec<String> = combination.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._=+-".contains(c) { c } else { '_' };
    let name: String = [name, vec![format!("seed={seed}")]].concat().join("+").chars().map(plain).collect();
    let text =
        toml::to_string(&scenario).map_err(|error| Failure::Run(format!("a scenario as text: {error}")))?;
    Ok(Job { folder: arguments.out.join(name), changes, scenario, profile, text })
}

/// Sets the value at a path of table names and entry numbers.
fn set(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    let read = toml::from_str::<toml::Table>(&format!("value = {value}"));
    let value = match read.ok().and_then(|mut table| table.remove("value")) {
        Some(value) => value,
        None => toml::Value::String(value.to_owned()),
    };
    let (way, last) = match key.rsplit_once('.') {
        Some((way, last)) => (way.split('.').collect(), last),
        None => (Vec::new(), key),
    };
    let mut at = table;
    let mut way = way.into_iter().peekable();
    while let Some(step) = way.next() {
        let entry = at.entry(step).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let entry = match entry {
            toml::Value::Array(list) => {
                let number = way.next().unwrap_or("").parse::<usize>().ok();
                let count = list.len();
                number.and_then(|number| list.get_mut(number)).ok_or_else(|| {
                    format!("--set {key}: {step} has {count} entries: name one by its number, from 0")
                })?
            }
            other => other,
        };
        at = entry.as_table_mut().ok_or_else(|| format!("--set {key}: {step} has no members"))?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

impl Job {
    fn play(&self, out: play::Out<'_>) -> Result<Results, Failure> {
        let simulation = Simulation::with_profile(&self.scenario, self.profile).map_err(failure)?;
        play::play(simulation, &self.scenario, Some(out), |_| ())
    }

    /// Keeps a folder with this job's results; clears any other.
    fn prepare(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Run(format!("{}: {error}", self.folder.display()));
        let path = self.folder.join(SCENARIO);
        if fs::read_to_string(&path).is_ok_and(|text| text == self.text) {
            return Ok(());
        }
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let _ = fs::remove_file(self.folder.join(SUMMARY));
        let changes = serde_json::to_string_pretty(&self.changes).expect("texts and numbers");
        fs::write(self.folder.join(JOB), changes + "\n").map_err(failed)?;
        fs::write(path, &self.text).map_err(failed)
    }

    fn is_done(&self) -> bool {
        self.folder.join(SUMMARY).exists()
    }
}

fn list(out: &Path, jobs: &[Job]) -> Result<(), Failure> {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let line = |job: &&Job| {
        format!("roxie sim run {} --out {}\n", quoted(&job.folder.join(SCENARIO)), quoted(&job.folder))
    };
    let text: String = jobs.iter().filter(|job| !job.is_done()).map(|job| line(&job)).collect();
    let path = out.join(LIST);
    fs::write(&path, text).map_err(|error| Failure::Run(format!("{}: {error}", path.display())))?;
    output::line(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_by_path() {
        let mut table: toml::Table = toml::from_str("[[traffic]]\nload = 0.1\n").expect("a table");
        set(&mut table, "traffic.0.load", "0.5").expect("there");
        set(&mut table, "cc.control", "dcqcn").expect("made");
        set(&mut table, "seed", "7").expect("made");
        assert_eq!(table["traffic"][0]["load"].as_float(), Some(0.5));
        assert_eq!(table["cc"]["control"].as_str(), Some("dcqcn"));
        assert_eq!(table["seed"].as_integer(), Some(7));
        let wrong = set(&mut table, "traffic.1.load", "1").expect_err("one entry");
        assert!(wrong.contains("has 1 entries"), "{wrong}");
        assert!(set(&mut table, "seed.below", "1").is_err());
    }
}
