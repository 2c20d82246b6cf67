//! A job: a program of tests, and what it prints.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A program that has printed nothing for this time hangs: it is ended, and counts as failed. `SILENCE` is another
/// number of seconds.
const SILENCE: u64 = 900;
/// Time for output after a program's end: a child that it has left may hold the pipe.
const AFTER_END: Duration = Duration::from_secs(5);

/// The program whose tests wait most of the time, for programs to start, for links, for timers: one test at a time used
/// a fifth of two processors, four at a time two thirds.
const WAITS: &str = "verbs";

pub(crate) struct Job {
    pub(crate) name: String,
    /// True if it has no deadline of real time.
    pub(crate) computes: bool,
    /// The folder of a program of tests. `None`: another command.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) command: Vec<String>,
    /// Arguments behind those of a run of all tests.
    pub(crate) more: Vec<String>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

/// What a job came to.
pub(crate) struct Outcome {
    pub(crate) job: String,
    pub(crate) totals: Totals,
    /// Names of failed tests.
    pub(crate) failed: Vec<String>,
    pub(crate) seconds: f64,
    /// Each test with its seconds: from the moment when a thread was free for it to its result.
    pub(crate) tests: Vec<(String, f64)>,
    pub(crate) lines: Vec<String>,
    /// What is wrong besides failed tests.
    pub(crate) error: Option<String>,
}

/// Lines with the seconds since the start at which each came, and what the program ended with.
struct Ran {
    lines: Vec<(f64, String)>,
    code: Option<i32>,
    error: Option<String>,
}

/// Returns the name and the result of a test from its line. libtest adds what kind a test is to some names.
fn result(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let kinds = [" - should panic", " - compile fail", " - compile"];
    let name = kinds.iter().find_map(|kind| name.strip_suffix(kind)).unwrap_or(name);
    Some((name, result))
}

/// Returns the number before a word of a line: of `2 passed, 0 failed`, or of `2 passed; 0 failed;`.
fn number(line: &str, word: &str) -> usize {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.windows(2).find(|pair| pair[1].trim_end_matches([',', ';']) == word);
    at.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

impl Job {
    /// Number of its tests that run at a time.
    fn threads(&self) -> usize {
        let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|text| text.parse().ok());
        let processors = thread::available_parallelism().map_or(1, usize::from);
        threads.unwrap_or(if self.name == WAITS { 2 * processors } else { processors })
    }

    fn start(&self, arguments: &[&str]) -> std::io::Result<Child> {
        // It has what others leave.
        let mut command = Command::new(if self.computes { "nice" } else { &self.command[0] });
        if self.computes {
            command.args(["-n", "5", &self.command[0]]);
        }
        command.args(&self.command[1..]).args(arguments);
        if let Some(folder) = &self.folder {
            command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        }
        command.env("RUST_TEST_THREADS", self.threads().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }

    /// Runs the command to its end; a copy of its output goes to `log`.
    fn ran(&self, arguments: &[&str], mut log: Option<File>) -> Ran {
        let began = Instant::now();
        let mut ran = Ran { lines: Vec::new(), code: None, error: None };
        let mut child = match self.start(arguments) {
            Ok(child) => child,
            Err(error) => return Ran { error: Some(format!("{}: {error}", self.command[0])), ..ran },
        };
        let lines = lines_of(&mut child);
        let silence = std::env::var("SILENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(SILENCE);
        let (mut last, mut ended) = (Instant::now(), None);
        loop {
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    last = Instant::now();
                    if let Some(log) = &mut log {
                        let _ = writeln!(log, "{line}");
                    }
                    ran.lines.push((began.elapsed().as_secs_f64(), line));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if ended.is_none() && child.try_wait().is_ok_and(|status| status.is_some()) {
                        ended = Some(Instant::now());
                    }
                    if ended.is_some_and(|at| at.elapsed() > AFTER_END) {
                        break;
                    }
                    if ended.is_none() && last.elapsed() > Duration::from_secs(silence) {
                        ran.error = Some(format!("said nothing for {silence} s, and was ended"));
                        let _ = Command::new("kill").args(["-ABRT", &child.id().to_string()]).status();
                        // Time for a core.
                        let until = Instant::now() + Duration::from_secs(2);
                        while child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < until
                        {
                            thread::sleep(Duration::from_millis(50));
                        }
                        let _ = child.kill();
                        last = Instant::now();
                    }
                }
            }
        }
        ran.code = child.wait().ok().and_then(|status| status.code());
        ran
    }

    /// Runs all tests of the job.
    pub(crate) fn run(&self) -> Outcome {
        let _ = fs::create_dir_all("target/test");
        let log = File::create(format!("target/test/{}.log", self.name.replace(' ', "-"))).ok();
        let began = Instant::now();
        let counts_itself = self.folder.is_none() && !self.command.iter().any(|word| word == "--doc");
        let more = self.more.iter().map(String::as_str);
        let list: Vec<&str> = ["--list"].into_iter().chain(more.clone()).collect();
        let order = if self.folder.is_some() { self.ran(&list, None).lines } else { Vec::new() };
        // Tests of hours are ignored otherwise.
        let ignored =
            (self.folder.is_some() && std::env::var_os("ALL").is_some()).then_some("--include-ignored");
        let all: Vec<&str> = ["--show-output"].into_iter().chain(ignored).chain(more).collect();
        let ran = self.ran(if counts_itself { &[] } else { &all }, log);
        let mut outcome = Outcome {
            job: self.name.clone(),
            totals: Totals::default(),
            failed: Vec::new(),
            seconds: began.elapsed().as_secs_f64(),
            tests: times(&order, &ran.lines, self.threads()),
            lines: Vec::new(),
            error: ran.error,
        };
        if counts_itself {
            outcome.totals = own_totals(&ran.lines, ran.code);
        } else {
            let own = own_results(&ran.lines, self.folder.is_some());
            let sum = |word| own.iter().map(|line| number(line, word)).sum::<usize>();
            let skips = ran.lines.iter().filter(|(_, line)| line.starts_with("SKIP ")).count();
            outcome.totals = Totals {
                passed: sum("passed").saturating_sub(skips),
                failed: sum("failed"),
                skipped: sum("ignored") + skips,
            };
            outcome.failed = failed(&ran.lines);
            // Aborted, or ended from outside.
            let is_whole = ran.code == Some(0) || outcome.totals.failed > 0;
            if own.is_empty() || !is_whole {
                outcome.totals.failed += 1;
                outcome.failed.clear();
                outcome.error.get_or_insert_with(|| format!("ended with {:?} before its result", ran.code));
            }
        }
        outcome.lines = ran.lines.into_iter().map(|(_, line)| line).collect();
        outcome
    }

    /// Runs one test again. A second run that skips proves nothing.
    pub(crate) fn passes_alone(&self, name: &str) -> bool {
        let ran = self.ran(&["--exact", name, "--show-output", "--include-ignored"], None);
        let passed = ran.lines.iter().any(|(_, line)| result(line) == Some((name, "ok")));
        passed && ran.code == Some(0) && !ran.lines.iter().any(|(_, line)| line.starts_with("SKIP "))
    }
}

/// Reads both outputs of a child, a line at a time.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (into, lines) = channel();
    let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] = [
        child.stdout.take().map(|output| Box::new(output) as _),
        child.stderr.take().map(|output| Box::new(output) as _),
    ];
    for output in outputs.into_iter().flatten() {
        let into = into.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if into.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
    }
    lines
}

/// Returns the seconds of each test. libtest starts tests in the order of its list, the next one when a thread is free,
/// and prints a result at once.
fn times(order: &[(f64, String)], lines: &[(f64, String)], threads: usize) -> Vec<(String, f64)> {
    let places: HashMap<&str, usize> =
        order.iter().filter_map(|(_, line)| line.strip_suffix(": test")).zip(0..).collect();
    let began = lines.first().map_or(0.0, |(at, _)| *at);
    let mut ends = Vec::new();
    let mut tests = Vec::new();
    for (at, line) in lines {
        let Some((name, place)) = result(line).and_then(|(name, _)| Some((name, *places.get(name)?))) else {
            continue;
        };
        let start = place.checked_sub(threads).map_or(Some(&began), |before| ends.get(before));
        tests.push((name.to_owned(), at - start.unwrap_or(&began)));
        ends.push(*at);
    }
    tests
}

/// Returns the lines with results. A test may print such a line: a program's own is its last, and those of
/// documentation tests do not stand between two headings of outputs.
fn own_results(lines: &[(f64, String)], is_program: bool) -> Vec<&str> {
    let mut within = false;
    let mut results = Vec::new();
    for (_, line) in lines {
        within ^= ["failures:", "successes:"].contains(&&**line);
        if line.starts_with("test result: ") {
            if is_program {
                results.clear();
            }
            if is_program || !within {
                results.push(&**line);
            }
        }
    }
    results
}

/// Returns the names between the last `failures:` and its `test result:`, where a test's output does not stand.
fn failed(lines: &[(f64, String)]) -> Vec<String> {
    let (mut all, mut names) = (Vec::new(), Vec::new());
    for (_, line) in lines {
        if line == "failures:" {
            names.clear();
        } else if let Some(name) = line.strip_prefix("    ") {
            names.push(name.to_owned());
        } else if line.starts_with("test result: FAILED") {
            all.append(&mut names);
        } else if line.starts_with("test result: ") {
            names.clear();
        }
    }
    all
}

/// Returns the totals of a command that prints them itself. Exit code 77: it cannot run here.
fn own_totals(lines: &[(f64, String)], code: Option<i32>) -> Totals {
    let closes = |line: &&String| line.contains(" passed, ") && line.contains(" failed, ");
    let line = lines.iter().map(|(_, line)| line).rfind(closes).map_or("", |line| line);
    let mut totals = Totals {
        passed: number(line, "passed"),
        failed: number(line, "failed"),
        skipped: number(line, "skipped"),
    };
    match code {
        Some(0) => {}
        Some(77) => totals.skipped += 1,
        _ => totals.failed = totals.failed.max(1),
    }
    totals
}
