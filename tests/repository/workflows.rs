//! Checks the workflows of continuous integration: a YAML parser reads them, they run scripts and targets that exist,
//! and they give the action inputs that it has.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::in_time::CommandInTime;
use crate::tree::root;

/// Prints one line for each step: what it runs, or the action that it uses, with its inputs.
const STEPS: &str = "
import sys, yaml
for job in yaml.safe_load(open(sys.argv[1]))['jobs'].values():
    assert job['runs-on'] and job['timeout-minutes'] <= 360, job
    for step in job['steps']:
        assert ('run' in step) != ('uses' in step), step
        for line in step.get('run', '').splitlines():
            print('run', line, sep='\\t')
        if 'uses' in step:
            print('uses', step['uses'], *step.get('with', {}), sep='\\t')
";

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns why a line of a step's script cannot be run in this tree.
fn fault(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let makefile = read("Makefile");
    let has = |target: &str| makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
    match words[..] {
        ["make", target, ..] if !has(target) => Some(format!("the Makefile has no {target}")),
        [script, ..] if script.starts_with(".ci/") && !root().join(script).exists() => {
            Some(format!("there is no {script}"))
        }
        _ => None,
    }
}

/// Returns the inputs that a step gives the action of this tree, and that it does not have.
fn unknown<'a>(inputs: &[&'a str]) -> Vec<&'a str> {
    let action = read("action.yml");
    let declared = action.split("\noutputs:").next().unwrap_or_default();
    let is_unknown = |input: &&&str| !declared.contains(&format!("\n  {input}:\n"));
    inputs.iter().filter(is_unknown).copied().collect()
}

fn steps(workflow: &Path) -> String {
    let read = Command::new("python3").args(["-c", STEPS]).arg(workflow).output_in_time().expect("python3");
    assert!(read.status.success(), "{}: {}", workflow.display(), String::from_utf8_lossy(&read.stderr));
    String::from_utf8_lossy(&read.stdout).into_owned()
}

#[test]
fn workflows_run_what_exists() {
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).output_in_time();
    if !has_yaml.is_ok_and(|done| done.status.success()) {
        println!("SKIP workflows_run_what_exists: python3 has no yaml (python3-yaml)");
        return;
    }
    let folder = fs::read_dir(root().join(".github/workflows")).expect("workflows");
    let workflows: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
    assert!(!workflows.is_empty());
    let all: String = workflows.iter().map(|workflow| steps(workflow)).collect();
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split('\t').collect()).collect();
    for line in &lines {
        match line[..] {
            ["run", script] => assert_eq!(fault(script), None, "{script}"),
            ["uses", "./", ref inputs @ ..] => assert_eq!(unknown(inputs), [""; 0]),
            // Another project's, of a version.
            ["uses", action, ..] => assert!(action.contains("@v"), "{action}"),
            _ => panic!("{line:?}"),
        }
    }
    for wanted in [["run", ".ci/run"], ["run", "make deb"], ["run", "make tarball"], ["uses", "./"]] {
        assert!(lines.iter().any(|line| line[..2] == wanted), "no step is {wanted:?}");
    }
}

#[test]
fn steps_that_cannot_run_are_faults() {
    assert_eq!(fault(".ci/run"), None);
    assert_eq!(fault("make deb"), None);
    assert_eq!(fault("ibv_devices | grep roxie0"), None);
    assert!(fault(".ci/nothing all").is_some() && fault("make nothing").is_some());
    assert_eq!(unknown(&["package", "name"]), [""; 0]);
    assert_eq!(unknown(&["package", "preload", "device"]), ["preload", "device"]);
}
