//! Commits follow CONTRIBUTING.md: subjects with an area, bodies, at most 400 changed lines. A tree without its history
//! is not checked.

use std::process::Command;

use crate::in_time::CommandInTime;
use crate::tree::root;

/// Time from which commits are checked, in seconds since the Unix epoch: 1 December 2026.
const SINCE: u64 = 1_796_083_200;
/// Longest subject in characters, and most changed lines.
const SUBJECT: usize = 72;
const LINES: usize = 400;
/// A line of a body with the reason why a commit is longer: a move, a rename, generated text.
const MECHANICAL: &str = "Mechanical: ";
/// Commits that break a rule, and why they stay: the first digits of their hash.
const EXCEPTIONS: &[(&str, &str)] = &[];
/// Files whose lines are not written by hand.
const GENERATED: [&str; 5] = ["Cargo.lock", ".csv", ".svg", ".pcap", ".pcapng"];

/// A commit.
#[derive(Debug, Default)]
struct Commit {
    hash: String,
    subject: String,
    body: String,
    /// Lines that it adds and removes, without those of generated files.
    lines: usize,
}

/// Returns what a commit breaks.
fn faults(commit: &Commit) -> Vec<String> {
    let Commit { subject, body, lines, .. } = commit;
    let mut faults = Vec::new();
    if subject.chars().count() > SUBJECT {
        faults.push(format!("the subject has {} characters, at most {SUBJECT}", subject.chars().count()));
    }
    let area = subject.split_once(": ").map(|(area, rest)| (area, rest.chars().next()));
    if !area.is_some_and(|(area, first)| !area.is_empty() && first.is_some_and(char::is_uppercase)) {
        faults.push("the subject is no `area: Imperative sentence`".to_owned());
    }
    if body.trim().is_empty() {
        faults.push("there is no body that says why".to_owned());
    }
    if *lines > LINES && !body.lines().any(|line| line.starts_with(MECHANICAL)) {
        faults
            .push(format!("{lines} changed lines, at most {LINES} without `{MECHANICAL}REASON` in the body"));
    }
    faults
}

fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(root());
    let done = git.output_in_time().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Returns the commits that are checked. `None`: the tree has no history.
fn commits() -> Option<Vec<Commit>> {
    let format = "--format=%x1e%H%x1f%at%x1f%s%x1f%b%x1f";
    let text = git(&["log", "--no-merges", "--numstat", "-M", &format!("--since=@{SINCE}"), format])?;
    let commit = |entry: &str| {
        let mut fields = entry.split('\x1f');
        let mut field = || fields.next().unwrap_or_default().to_owned();
        let (hash, time, subject, body, changes) = (field(), field(), field(), field(), field());
        let lines = changes.lines().filter_map(|line| {
            let mut words = line.split('\t');
            let counts = [words.next()?.parse::<usize>().ok()?, words.next()?.parse().ok()?];
            let is_generated = GENERATED.iter().any(|end| line.ends_with(end));
            (!is_generated).then(|| counts.iter().sum::<usize>())
        });
        let lines = lines.sum();
        (time.parse::<u64>().is_ok_and(|time| time >= SINCE)).then_some(Commit { hash, subject, body, lines })
    };
    Some(text.split('\x1e').filter_map(commit).collect())
}

#[test]
fn new_commits_follow_the_rules() {
    let Some(commits) = commits() else {
        println!("SKIP new_commits_follow_the_rules: this tree has no history");
        return;
    };
    let is_excepted = |commit: &Commit| EXCEPTIONS.iter().any(|(hash, _)| commit.hash.starts_with(hash));
    let wrong: Vec<String> = commits
        .iter()
        .filter(|commit| !is_excepted(commit))
        .flat_map(|commit| {
            let of = |fault| format!("{:.10} {}: {fault}", commit.hash, commit.subject);
            faults(commit).into_iter().map(of)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn faults_of_commits_are_found() {
    let commit = |subject: &str, body: &str, lines| Commit {
        hash: String::new(),
        subject: subject.into(),
        body: body.into(),
        lines,
    };
    let faults = |commit: Commit| super::commits::faults(&commit).len();
    assert_eq!(faults(commit("wire: Read a header once", "It was read twice.", 400)), 0);
    assert_eq!(faults(commit("wire, nic: Read a header once", "Mechanical: moved.", 4000)), 0);
    assert_eq!(faults(commit("Read a header once", "It was read twice.", 1)), 1);
    assert_eq!(faults(commit("wire: read a header once", "It was read twice.", 1)), 1);
    assert_eq!(faults(commit(&format!("wire: R{}", "e".repeat(66)), "x", 1)), 1);
    assert_eq!(faults(commit("wire: Read a header once", "\n", 401)), 2);
}
