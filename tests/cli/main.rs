//! The commands as a user runs them: in two processes in two network namespaces with a veth pair between them, or in one
//! process. Tests with a network need root, and are skipped with a message without it. No test depends on measured times. Captures and
//! ladders, the demo, the labs, the pages, and the scripts that install the program are tested here too.

#[path = "../support/in_time.rs"]
mod in_time;
#[path = "../support/kept.rs"]
mod kept;

mod action;
mod alone;
mod capture;
mod cc;
mod decode;
mod demo;
mod docs;
mod doctor;
mod formats;
mod lab;
mod ladder;
mod manual;
mod network;
mod nfs;
mod nvme;
mod output;
mod perf;
mod pingpong;
mod rates;
mod seen;
mod sim;
mod tarball;
mod through;
mod wire;
mod wrong;

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use in_time::ChildInTime;
use serde_json::Value;

/// A command that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(90);

const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const A: &str = "192.0.2.1";

/// Returns a `roxie` command with these arguments, separated by spaces.
fn roxie(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.args(arguments.split_whitespace());
    command
}

/// A running command. Killed when the value is dropped.
struct Running {
    what: String,
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    seen: String,
}

/// Output and exit status of a finished command.
#[derive(Debug)]
struct Finished {
    what: String,
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Running {
    /// Starts a command in the calling thread's network namespace.
    fn start(mut command: Command) -> Running {
        let what = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Running { what, child, stdout, stderr, seen: String::new() }
    }

    /// Waits for a line with `part` on standard error.
    fn wait_for(&mut self, part: &str) {
        let until = Instant::now() + LIMIT;
        loop {
            match self.stderr.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen += &line;
                    if line.contains(part) {
                        return;
                    }
                }
                Err(e) => {
                    let stdout: String = self.stdout.try_iter().collect();
                    panic!("{} did not say {part:?} ({e}), but:\n{}{stdout}", self.what, self.seen)
                }
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the command's end.
    fn finish(mut self) -> Finished {
        let until = Instant::now() + LIMIT;
        let mut hung = false;
        let mut drain = |from: &Receiver<String>, into: &mut String| loop {
            match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => *into += &line,
                Err(e) => {
                    hung |= e == RecvTimeoutError::Timeout;
                    return;
                }
            }
        };
        let (mut stdout, mut stderr) = (String::new(), std::mem::take(&mut self.seen));
        drain(&self.stderr, &mut stderr);
        drain(&self.stdout, &mut stdout);
        assert!(!hung, "{} did not end within {LIMIT:?}:\n{stdout}{stderr}", self.what);
        let status = self.child.wait_in_time();
        Finished { what: self.what.clone(), status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The calls fail if the command has ended already, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    #[track_caller]
    fn succeeded(self) -> Finished {
        assert!(self.status.success(), "{} did not succeed: {self:#?}", self.what);
        self
    }

    /// Asserts that the command ended with this code, and that its single error has all these parts.
    #[track_caller]
    fn failed(self, code: i32, parts: &[&str]) -> Finished {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    #[track_caller]
    fn was_killed(&self) {
        assert_eq!(self.status.signal(), Some(9), "{self:#?}");
    }

    /// Parses the lines of standard output as JSON.
    #[track_caller]
    fn json(&self) -> Vec<Value> {
        let read = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}\n{self:#?}"));
        self.stdout.lines().map(read).collect()
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line + "\n").is_err() {
                return;
            }
        }
    });
    receiver
}

/// Runs a command in the calling thread's network namespace.
fn run(arguments: &str) -> Finished {
    Running::start(roxie(arguments)).finish()
}
