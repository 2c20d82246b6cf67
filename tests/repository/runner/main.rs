//! Runs what `.ci/test` has built: test programs by path, two at a time, and failed tests again, alone.
//!
//! `runner FILE` reads cargo's messages (`--message-format json`) from the file: each program of tests is a job. A line
//! `also`, `acts` or `computes`, name, command, separated by tabs, is a job too. What a job prints goes to
//! `target/test/NAME.log`. The last two lines are `flaky: NAME, NAME` and the totals. `runner FILE PROGRAM ARGUMENT…`
//! runs one program, with these arguments: parts of names, `--skip`.

mod job;
mod report;
mod seconds;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, process, thread};

use job::{Job, Outcome};
use seconds::Seconds;

/// Programs that begin first, because they take longest.
const LONGEST: [&str; 5] = ["verbs", "cli", "labs", "guests", "interop"];

/// Programs that run in virtual time or compute, so that no deadline of real time passes while another program has the
/// processors.
const COMPUTE: [&str; 10] = [
    "simulated",
    "simulation",
    "fuzz",
    "handoff",
    "repository",
    "lib-roxie_conform_bench",
    "lib-roxie_lab_theory",
    "lib-roxie_nic",
    "lib-roxie_sim",
    "lib-roxie_wire",
];

/// Returns the text of a field of a line of JSON.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
    rest.split('"').next()
}

/// Returns the job of a line of the file. `None`: the line names no program of tests.
fn job_of(line: &str) -> Option<Job> {
    if let Some(rest) = line.strip_prefix("also\t") {
        let mut parts = rest.split('\t').map(str::to_owned);
        let (kind, name) = (parts.next()?, parts.next()?);
        return Some(Job {
            name,
            computes: kind == "computes",
            folder: None,
            command: parts.collect(),
            more: Vec::new(),
        });
    }
    if !line.split_once("\"profile\":{")?.1.split('}').next()?.contains("\"test\":true") {
        return None;
    }
    let (executable, manifest) = (field(line, "executable")?, field(line, "manifest_path")?);
    let target = line.split_once("\"target\":")?.1;
    let name = field(target, "name")?;
    let name = match target.split_once("\"kind\":[\"")?.1.split('"').next()? {
        "test" => name.to_owned(),
        "bin" => format!("bin-{name}"),
        _ => format!("lib-{name}"),
    };
    let folder = PathBuf::from(manifest).parent()?.to_owned();
    let computes = COMPUTE.contains(&&*name);
    Some(Job { name, computes, folder: Some(folder), command: vec![executable.to_owned()], more: Vec::new() })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        eprintln!("usage: runner FILE [PROGRAM [ARGUMENT…]]");
        process::exit(2);
    };
    let program = arguments.next();
    let more: Vec<String> = arguments.collect();
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut jobs: Vec<Job> = text.lines().filter_map(job_of).collect();
    jobs.retain(|job| program.as_ref().is_none_or(|name| *name == job.name));
    jobs.iter_mut().for_each(|job| job.more.clone_from(&more));
    jobs.sort_by_key(|job| LONGEST.iter().position(|name| *name == job.name).unwrap_or(LONGEST.len()));
    let (earlier, began) = (Seconds::read("target/seconds/tests"), Instant::now());
    let (ended, next) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let take = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
            let outcome = job.run();
            println!("{}", report::line(&outcome, &earlier));
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    thread::scope(|scope| {
        scope.spawn(take);
        take();
    });
    let mut outcomes: Vec<Outcome> = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    let by_name: HashMap<&str, &Job> = jobs.iter().map(|job| (&*job.name, job)).collect();
    let mut flaky = Vec::new();
    for outcome in &mut outcomes {
        let again = std::mem::take(&mut outcome.failed);
        for name in again {
            let passes = by_name[&*outcome.job].passes_alone(&name);
            println!("run again: {} {name} ... {}", outcome.job, if passes { "ok" } else { "FAILED" });
            if passes {
                outcome.totals.passed += 1;
                outcome.totals.failed -= 1;
                flaky.push(name);
            } else {
                outcome.failed.push(name);
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    earlier.write(&outcomes, program.is_none().then_some(seconds));
    let totals = report::print(&outcomes, &flaky, &earlier, seconds);
    process::exit(i32::from(totals.failed > 0));
}
