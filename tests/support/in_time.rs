//! Programs that tests start. A program that has not ended after [`LIMIT`] is killed, and its test fails with what the
//! program wrote.
//!
//! Targets include this file by its path, and each uses a part of it.
#![allow(dead_code, reason = "each target uses a part")]

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How long a program may run, on machines that do other things as well.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// How long a build of the project may run: one with optimizations takes several minutes on two processors.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Copies a program that is to be started. Another process does it: a program that another thread starts at the same
/// time would inherit a descriptor that writes the copy, and a file that is written cannot be started (`ETXTBSY`).
#[track_caller]
pub(crate) fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").arg("--").args([from, to]).status_in_time().expect("cp");
    assert!(copied.success(), "{} cannot be copied to {}", from.display(), to.display());
}

/// Counterparts of `Command`'s methods with a deadline.
pub(crate) trait CommandInTime {
    /// As [`Command::output`]; standard input is empty.
    fn output_in_time(&mut self) -> io::Result<Output>;
    /// As [`Command::status`].
    fn status_in_time(&mut self) -> io::Result<ExitStatus>;
    /// As [`Command::status`], of a build of the project.
    fn build_in_time(&mut self) -> io::Result<ExitStatus>;
}

impl CommandInTime for Command {
    #[track_caller]
    fn output_in_time(&mut self) -> io::Result<Output> {
        self.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(self.spawn()?.output_in_time())
    }

    #[track_caller]
    fn status_in_time(&mut self) -> io::Result<ExitStatus> {
        Ok(self.spawn()?.wait_in_time())
    }

    #[track_caller]
    fn build_in_time(&mut self) -> io::Result<ExitStatus> {
        let status = ends_by(&mut self.spawn()?, Instant::now() + BUILD_LIMIT);
        Ok(status.unwrap_or_else(|| panic!("{self:?} has not ended after {BUILD_LIMIT:?}")))
    }
}

/// Counterparts of `Child`'s methods with a deadline.
pub(crate) trait ChildInTime {
    /// As [`Child::wait_with_output`].
    fn output_in_time(self) -> Output;
    /// As [`Child::wait`].
    fn wait_in_time(&mut self) -> ExitStatus;
}

impl ChildInTime for Child {
    #[track_caller]
    fn output_in_time(mut self) -> Output {
        drop(self.stdin.take());
        let stdout = self.stdout.take().map(Stream::of);
        let stderr = self.stderr.take().map(Stream::of);
        let until = Instant::now() + LIMIT;
        let status = ends_by(&mut self, until);
        let whole = |stream: &Option<Stream>| stream.as_ref().is_none_or(|stream| stream.ends_by(until));
        let ended = whole(&stdout) && whole(&stderr);
        let [stdout, stderr] =
            [stdout, stderr].map(|stream| stream.map(|stream| stream.output()).unwrap_or_default());
        match status {
            Some(status) if ended => Output { status, stdout, stderr },
            _ => panic!(
                "a program has not ended after {LIMIT:?}, or has left its output open ({status:?}): {}\n{}",
                String::from_utf8_lossy(&stdout),
                String::from_utf8_lossy(&stderr)
            ),
        }
    }

    #[track_caller]
    fn wait_in_time(&mut self) -> ExitStatus {
        let status = ends_by(self, Instant::now() + LIMIT);
        status.unwrap_or_else(|| panic!("a program has not ended after {LIMIT:?}"))
    }
}

/// Returns the status of a child that ends by then. Kills any other.
fn ends_by(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    // Most programs end within milliseconds, some after minutes.
    let mut pause = Duration::from_micros(200);
    loop {
        let status = child.try_wait().expect("a child of this process");
        if status.is_some() {
            return status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(10));
    }
}

/// An output of a program, read while the program runs.
pub(crate) struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    /// Reads `from` to its end, in a thread.
    pub(crate) fn of(mut from: impl Read + Send + 'static) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let reader = spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut part) {
                lock(&into).extend_from_slice(&part[..length]);
            }
        });
        Stream { bytes, reader }
    }

    /// Returns what has been read until now.
    pub(crate) fn output(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }

    /// Returns what has been read until now, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output()).into_owned()
    }

    /// Returns true if every process that has the stream closes it by then.
    pub(crate) fn ends_by(&self, until: Instant) -> bool {
        while !self.reader.is_finished() {
            if Instant::now() > until {
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        true
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}
