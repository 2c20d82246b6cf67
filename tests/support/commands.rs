//! Commands as a user runs them: running ones, and what they have printed.
//!
//! Targets include this file by its path, and each uses a part of it.
#![allow(dead_code, reason = "each target uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::in_time::ChildInTime;

/// A command that takes longer has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A running command. Killed when the value is dropped.
pub(crate) struct Running {
    pub(crate) what: String,
    pub(crate) child: Child,
    pub(crate) stdout: Receiver<String>,
    pub(crate) stderr: Receiver<String>,
    pub(crate) seen: String,
}

/// Output and exit status of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) what: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Starts a command in the calling thread's network namespace.
    pub(crate) fn start(mut command: Command) -> Running {
        let what = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Running { what, child, stdout, stderr, seen: String::new() }
    }

    /// Waits for a line with `part` on standard error.
    pub(crate) fn wait_for(&mut self, part: &str) {
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

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the command's end.
    pub(crate) fn finish(mut self) -> Finished {
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
    pub(crate) fn succeeded(self) -> Finished {
        assert!(self.status.success(), "{} did not succeed: {self:#?}", self.what);
        self
    }

    /// Asserts that the command ended with this code, and that its single error has all these parts.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) -> Finished {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn was_killed(&self) {
        assert_eq!(self.status.signal(), Some(9), "{self:#?}");
    }

    /// Parses the lines of standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
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
