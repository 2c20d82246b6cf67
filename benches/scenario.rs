//! Cost of the simulator: events per second and memory, for several network sizes.
//!
//! `cargo bench -p benches --bench scenario [-- NAME …]`. Each run is a separate process on one core. `KB/host` is the
//! memory of an idle host. `KB/queue pair` is the additional memory once all flows that start at time zero have
//! started. Memory is the peak of the process.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Instant;

use roxie::time::Nanos;
use roxie_sim::scenario::{Scenario, Simulation};
use serde::{Deserialize, Serialize};

/// Queue pairs per host above which they dominate the memory, and not frames and buffers.
const MANY: usize = 10;

/// A run: name and scenario.
struct Run {
    name: &'static str,
    text: String,
}

/// Measurements of a run.
#[derive(Serialize, Deserialize)]
struct Cost {
    hosts: usize,
    queue_pairs: usize,
    flows: usize,
    events: u64,
    seconds: f64,
    virtual_ms: f64,
    /// Bytes of the process: before, with all hosts, after the start of the first flows, and at the peak.
    bytes: [u64; 4],
    /// Queue pairs of the first flows.
    first_queue_pairs: usize,
}

fn leaf_spine(leaves: usize, spines: usize, hosts: usize) -> String {
    format!("[network]\nshape = \"leaf-spine\"\nleaves = {leaves}\nspines = {spines}\nhosts = {hosts}\n")
}

/// Scenario: each host sends `bytes` to one other host.
fn permutation(name: &'static str, network: &str, bytes: &str) -> Run {
    let text = format!(
        "time = \"1 s\"\n{network}[ecn]\n[pfc]\n[cc]\ncontrol = \"dcqcn\"\n[[traffic]]\npattern = \"permutation\"\nbytes = \"{bytes}\"\n"
    );
    Run { name, text }
}

/// Scenario: each host sends 4 KB to each other host, with a queue pair for each.
fn mesh(name: &'static str, network: &str) -> Run {
    let text = format!(
        "time = \"1 s\"\n{network}[ecn]\n[pfc]\n[[traffic]]\npattern = \"all-to-all\"\nbytes = \"4 KB\"\n"
    );
    Run { name, text }
}

fn runs() -> Vec<Run> {
    vec![
        permutation("10-hosts", &leaf_spine(2, 2, 5), "1 MB"),
        permutation("100-hosts", &leaf_spine(10, 4, 10), "1 MB"),
        permutation("1000-hosts", &leaf_spine(40, 8, 25), "1 MB"),
        mesh("1000-queue-pairs", &leaf_spine(4, 2, 8)),
        mesh("10000-queue-pairs", &leaf_spine(6, 4, 17)),
        Run { name: "web-search", text: include_str!("../docs/sim/web-search.toml").into() },
    ]
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let names: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runs = runs();
    if let ["play", name] = names[..] {
        let run = runs.iter().find(|run| run.name == name).expect("the parent knows its runs");
        println!("{}", serde_json::json!(play(&run.text)));
        return ExitCode::SUCCESS;
    }
    if let Some(wrong) = names.iter().find(|name| runs.iter().all(|run| run.name != **name)) {
        let known: Vec<&str> = runs.iter().map(|run| run.name).collect();
        eprintln!("scenario: `{wrong}`: give names of runs: {}", known.join(", "));
        return ExitCode::from(2);
    }
    println!(
        "{:<18} {:>6} {:>12} {:>7} {:>10} {:>8} {:>11} {:>9} {:>8} {:>11}",
        "run",
        "hosts",
        "queue pairs",
        "flows",
        "virtual ms",
        "M events",
        "M events/s",
        "MB",
        "KB/host",
        "KB/queue pair"
    );
    for run in runs.iter().filter(|run| names.is_empty() || names.contains(&run.name)) {
        match measure(run.name) {
            Ok(cost) => print(run.name, &cost),
            Err(why) => {
                eprintln!("scenario: {}: {why}", run.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs one scenario in a separate process.
fn measure(name: &str) -> Result<Cost, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("timeout");
    let output =
        command.arg("3600").arg(program).args(["play", name]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn play(text: &str) -> Cost {
    let scenario = Scenario::read(text).expect("a scenario");
    let before = memory("VmRSS");
    let mut simulation = Simulation::new(&scenario).expect("a scenario that can be played");
    let seated = memory("VmRSS");
    let start = Instant::now();
    simulation.advance(Nanos(1)).expect("connections");
    let (begun, first_queue_pairs) = (memory("VmRSS"), simulation.queue_pairs());
    simulation.run().expect("connections");
    Cost {
        hosts: simulation.shape().stations.len(),
        queue_pairs: simulation.queue_pairs(),
        flows: simulation.flows().len(),
        events: simulation.fabric().events(),
        seconds: start.elapsed().as_secs_f64(),
        virtual_ms: simulation.now().0 as f64 / 1e6,
        bytes: [before, seated, begun, memory("VmHWM")],
        first_queue_pairs,
    }
}

/// Returns a memory figure of this process in bytes (`proc_pid_status(5)`).
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.expect("a line of kilobytes") * 1024
}

fn print(name: &str, cost: &Cost) {
    let [before, seated, begun, most] = cost.bytes;
    let each = |bytes: u64, count: usize| bytes as f64 / 1e3 / count as f64;
    let millions = cost.events as f64 / 1e6;
    println!(
        "{name:<18} {:>6} {:>12} {:>7} {:>10.2} {millions:>8.2} {:>11.2} {:>9.1} {:>8.1} {:>13}",
        cost.hosts,
        cost.queue_pairs,
        cost.flows,
        cost.virtual_ms,
        millions / cost.seconds,
        most as f64 / 1e6,
        each(seated - before, cost.hosts),
        if cost.first_queue_pairs < MANY * cost.hosts {
            "-".into()
        } else {
            format!("{:.1}", each(begun - seated, cost.first_queue_pairs))
        },
    );
}
