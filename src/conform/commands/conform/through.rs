//! `roxie conform --through`: two foreign peers with a wire between them, which plays each of its scripts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use roxie_conform_bench::report::Report;
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::through::{SCRIPTS, WireScript};
use roxie_conform_bench::verdict::Verdict;
use roxie_report::output;
use serde::Deserialize;

use super::report::{finish, make_folder, take};
use super::{CANNOT_RUN, Ended, PlayArguments, USAGE};

/// Bytes of a wire's report that are read.
const LONGEST_REPORT: u64 = 4 << 20;
/// Time in which the processes that a command has left end at a signal.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Options of a run with a wire between two peers.
#[derive(Debug, Args)]
pub(super) struct ThroughArguments {
    /// Put a wire between two interfaces, and judge the peers behind both
    #[arg(long, num_args = 2, value_names = ["A", "B"], requires = "play", conflicts_with_all = ["target", "fuzz", "script", "ssh", "short"])]
    through: Vec<String>,
    /// Command that performs $ROXIE_OPERATION once between the peers
    #[arg(long, value_name = "COMMAND", requires = "through")]
    play: Option<String>,
    /// Seconds for each command
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    within: u32,
}

/// A chosen run.
pub(super) struct Through<'a> {
    ends: &'a [String],
    play: &'a str,
    within: Duration,
}

/// The part of a wire's report that counts here.
#[derive(Deserialize)]
struct WireReport {
    rules: Vec<RuleReport>,
    verdicts: Vec<Outcome>,
}

#[derive(Deserialize)]
struct RuleReport {
    rule: String,
    applied: Option<bool>,
}

impl ThroughArguments {
    /// Returns the run, if one is asked for.
    pub(super) fn chosen(&self) -> Option<Through<'_>> {
        let play = self.play.as_deref().filter(|_| self.through.len() == 2)?;
        Some(Through { ends: &self.through, play, within: Duration::from_secs(self.within.into()) })
    }
}

impl Through<'_> {
    /// Plays the chosen scripts. Returns the exit code.
    pub(super) fn run(&self, arguments: &PlayArguments) -> Result<u8, Ended> {
        let filter = arguments.selection.filter.as_deref().unwrap_or_default();
        let scripts: Vec<WireScript> =
            SCRIPTS.into_iter().filter(|script| script.name.contains(filter)).collect();
        if scripts.is_empty() {
            return Err(Ended(USAGE, "no script has such a name: see `roxie wire --scripts`".into()));
        }
        make_folder(arguments)?;
        let between = self.ends.join(" and ");
        let device = BTreeMap::from([("device".to_owned(), format!("peers behind {between}"))]);
        let mut report = Report::new(between.clone(), between.clone(), "wire", device);
        output::line(format_args!("wire between {between}, {} scripts", scripts.len()))?;
        for (n, script) in scripts.iter().enumerate() {
            output::progress(format_args!("{}/{} {}", n + 1, scripts.len(), script.name));
            for outcome in self.script(script, arguments)? {
                take(outcome, arguments, &mut report)?;
            }
        }
        finish(arguments, &report)
    }

    /// Plays a script. Returns the outcomes of its rules and of the command.
    fn script(&self, script: &WireScript, arguments: &PlayArguments) -> Result<Vec<Outcome>, Ended> {
        let start = Instant::now();
        let mut wire = Wire::start(self.ends, script, arguments)?;
        let ended = self.play(script)?;
        let report = wire.end()?;
        let mut outcomes = report.verdicts;
        // A rule without an occasion says nothing, and would be in the report once a script.
        outcomes.retain(|outcome| outcome.verdict != Verdict::NotTested);
        for outcome in &mut outcomes {
            let rule = outcome.name.trim_start_matches("wire/").to_owned();
            let rule = if rule.starts_with("script/") { "follows".to_owned() } else { rule };
            outcome.name = format!("through/{}/{rule}", script.name);
            outcome.chapter = format!("Wire: {}", script.operation());
        }
        let unplayed = report.rules.iter().find(|rule| rule.applied == Some(false));
        let (verdict, came) = match (ended, unplayed) {
            (Some(status), Some(rule)) if status.success() => {
                (Verdict::NotTested, format!("too few packets for `{}`", rule.rule))
            }
            (Some(status), None) if status.success() => (Verdict::Keeps, String::new()),
            (Some(status), _) => (Verdict::Breaks, format!("the command ended with {status}")),
            (None, _) => {
                (Verdict::Breaks, format!("the command did not end within {} s", self.within.as_secs()))
            }
        };
        outcomes.push(Outcome {
            name: format!("through/{}/ends", script.name),
            chapter: format!("Wire: {}", script.operation()),
            clause: "9.7.5".into(),
            stimulus: script.rules.into(),
            asks: "the operation between both peers succeeds".into(),
            verdict,
            came,
            seconds: start.elapsed().as_secs_f64(),
            ladder: String::new(),
            adapters: Vec::new(),
            script: String::new(),
            capture: Vec::new(),
        });
        Ok(outcomes)
    }

    /// Runs the command, then ends what it has left. Returns its status; `None` if it was ended because its time was
    /// up.
    fn play(&self, script: &WireScript) -> Result<Option<ExitStatus>, Ended> {
        let mut command = Command::new("sh");
        command.args(["-c", self.play]).env("ROXIE_OPERATION", script.operation());
        command.env("ROXIE_SCRIPT", script.name).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let failed = |error: std::io::Error| Ended(CANNOT_RUN, format!("sh: {error}"));
        let mut child = command.spawn().map_err(failed)?;
        let ended = ends_within(&mut child, self.within);
        end_group(&mut child);
        ended.map_err(failed)
    }
}

/// Waits for the end of a command for at most `limit`.
fn ends_within(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() > until {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the processes of a command's group by SIGTERM, then by SIGKILL. The number of a group is not used again while a
/// process is in it.
fn end_group(command: &mut Child) {
    let group = Pid::from_raw(command.id().cast_signed());
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let until = Instant::now() + ENDS_WITHIN;
        let mut sent = killpg(group, signal);
        // The call fails once the group is empty.
        while sent.is_ok() && Instant::now() < until {
            // A command whose time was up is in the group until it is reaped.
            let _ = command.try_wait();
            std::thread::sleep(Duration::from_millis(10));
            sent = killpg(group, None);
        }
    }
}

/// A wire of its own process.
struct Wire {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Wire {
    fn start(ends: &[String], script: &WireScript, arguments: &PlayArguments) -> Result<Wire, Ended> {
        let failed = |why: String| Ended(CANNOT_RUN, format!("the wire: {why}"));
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(program);
        command.arg("wire").args(ends).args(["--json", "--script", script.name]);
        if let Some(folder) = &arguments.captures {
            let name = script.name.replace('/', "-");
            command.arg("--capture").args(["a", "b"].map(|end| folder.join(format!("{name}-{end}.pcapng"))));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let Some(output) = child.stdout.take() else { return Err(failed("no output".into())) };
        let mut wire = Wire { child, output: BufReader::new(output) };
        let mut line = String::new();
        let read = wire.output.read_line(&mut line).map_err(|e| failed(e.to_string()))?;
        // The wire says itself why it cannot begin.
        if read == 0 { Err(failed("it did not begin".into())) } else { Ok(wire) }
    }

    /// Ends the wire, and returns its report.
    fn end(&mut self) -> Result<WireReport, Ended> {
        let failed = |why: String| Ended(CANNOT_RUN, format!("the wire: {why}"));
        // The call fails if the wire has ended by itself.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let mut text = String::new();
        let read = (&mut self.output).take(LONGEST_REPORT).read_to_string(&mut text);
        read.map_err(|e| failed(e.to_string()))?;
        serde_json::from_str(text.trim()).map_err(|e| failed(format!("no report: {e}")))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The calls fail if the wire has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
