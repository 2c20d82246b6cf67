//! A capture on its way to a file, to a program that reads it, or to the screen.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signalfd::SignalFd;
use roxie::host::inspect::Attached;
use roxie::threads::lock;
use roxie_report::failure::Failure;
use roxie_report::signals;

use super::frames::{Counts, Frames};
use crate::decode::{self, Style};

/// Maximum time for the rest of a capture after its end was ordered. The program has 2 s, and so has the output.
const REST: Duration = Duration::from_secs(4);

/// Where the packets go.
pub(super) enum Sink {
    /// Standard output, as lines.
    Decoded(Style),
    /// A file or pipe, as pcapng.
    Stream(File),
}

/// A running capture.
pub(super) struct Session {
    counts: Arc<Mutex<Counts>>,
    limit: Option<u64>,
    stopper: Attached,
    /// Another descriptor of the output, which shows that its reader has closed it.
    output: OwnedFd,
    ended: Arc<EventFd>,
    result: Receiver<Result<(), Failure>>,
}

/// What ended a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The program ended, or closed its device.
    Program,
    Count,
    Seconds,
    Signal,
    /// The program that reads the output has closed it.
    Reader,
}

/// The end of a capture.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) cause: Cause,
    pub(super) counts: Counts,
}

impl Session {
    /// Starts the thread that moves packets to their sink.
    pub(super) fn start(mut frames: Frames, sink: Sink, limit: Option<u64>) -> Result<Session, Failure> {
        if let Some(limit) = limit {
            frames.set_limit(limit);
        }
        let system = |error: io::Error| Failure::Run(error.to_string());
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let ended = Arc::new(EventFd::from_flags(flags).map_err(|error| system(error.into()))?);
        let (counts, stopper) = (frames.counts(), frames.stopper().map_err(system)?);
        let output = match &sink {
            Sink::Decoded(_) => io::stdout().as_fd().try_clone_to_owned(),
            Sink::Stream(out) => out.as_fd().try_clone_to_owned(),
        };
        let output = output.map_err(system)?;
        let (tell, result) = bounded(1);
        let wakes = Arc::clone(&ended);
        let run = move || {
            let moved = match sink {
                Sink::Decoded(style) => decode::print(Box::new(frames), style),
                Sink::Stream(out) => copy(frames, out),
            };
            let _ = tell.send(moved);
            let _ = wakes.write(1);
        };
        thread::Builder::new().name("roxie-capture".into()).spawn(run).map_err(system)?;
        Ok(Session { counts, limit, stopper, output, ended, result })
    }

    /// Waits for the end: by a signal, after `within`, by the limit, by the program, or by the reader of the output.
    pub(super) fn wait(self, signals: &SignalFd, within: Option<Duration>) -> Result<Ending, Failure> {
        let until = within.map(|within| Instant::now() + within);
        let ordered = self.wait_for_order(signals, until);
        // The rest comes after the order. The stream ends by itself if the program is gone.
        let _ = self.stopper.stop();
        let result = match self.result.recv_timeout(REST) {
            Ok(result) => result,
            Err(_) => {
                return Err(Failure::Run(
                    "the output accepts no more data: the rest of the capture is lost".into(),
                ));
            }
        };
        let counts = *lock(&self.counts);
        let cause = match result {
            Ok(()) if self.limit.is_some_and(|limit| counts.captured >= limit) => Cause::Count,
            Ok(()) => ordered.unwrap_or(Cause::Program),
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Cause::Reader,
            Err(failure) => return Err(failure),
        };
        Ok(Ending { cause, counts })
    }

    /// Returns what has ordered the end. `None`: the capture has ended by itself.
    fn wait_for_order(&self, signals: &SignalFd, until: Option<Instant>) -> Option<Cause> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left
                .map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            // Errors and hang-ups are reported without being asked for.
            let output = PollFd::new(self.output.as_fd(), PollFlags::empty());
            let mut fds = [readable(signals.as_fd()), readable(self.ended.as_fd()), output];
            let _ = poll(&mut fds, timeout);
            let is_closed = fds[2].any() == Some(true);
            if self.ended.read().is_ok() {
                return None;
            }
            if signals::next(signals, Duration::ZERO).is_some() {
                return Some(Cause::Signal);
            }
            if is_closed {
                return Some(Cause::Reader);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Some(Cause::Seconds);
            }
        }
    }
}

fn copy(mut frames: Frames, mut out: File) -> Result<(), Failure> {
    let read = |error: io::Error| Failure::Run(error.to_string());
    while let Some(blocks) = frames.next_blocks().map_err(read)? {
        out.write_all(blocks).map_err(Failure::Output)?;
    }
    Ok(())
}

impl Cause {
    pub(super) fn name(self) -> &'static str {
        match self {
            Cause::Program => "program",
            Cause::Count => "count",
            Cause::Seconds => "seconds",
            Cause::Signal => "signal",
            Cause::Reader => "reader",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { captured, dropped, is_whole, .. } = self.counts;
        let s = if captured == 1 { "" } else { "s" };
        write!(f, "{captured} packet{s} captured")?;
        match dropped {
            0 => write!(f, ", none dropped")?,
            n => write!(
                f,
                ", {n} dropped: the reader was slower than the traffic (--snaplen makes it faster)"
            )?,
        }
        if self.cause == Cause::Program {
            write!(f, "; the program has ended, or closed its device")?;
            if !is_whole {
                write!(f, ", without its last count: the newest packets may be missing")?;
            }
        }
        Ok(())
    }
}
