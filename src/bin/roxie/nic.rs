//! `roxie nic`: a NIC as a process of its own, which serves the programs of its host.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Uid, User};
use roxie::daemon::{Config, Daemon, DaemonError, Served, Users, Visit};
use roxie::descriptors::raise_limit;

use crate::device::{DeviceOptions, PortKind, THREAD};
use crate::failure::{EXIT_CODES, Failure};
use crate::line_rate::LineRate;
use crate::metrics;
use crate::output;
use crate::quota::{OfUser, Program};
use crate::show::objects::Whose;

/// How often it looks whether the engine lives.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a second of processes that are refused, which any process can cause, and how many may come at once.
const REFUSALS: (u32, u32) = (2, 20);
/// Lines a second of programs that come and go, and how many may come at once: all 255 may start and end together.
const VISITS: (u32, u32) = (10, 512);

/// Be the NIC of an interface, and serve the programs of this host
#[derive(Debug, Args)]
#[command(
    long_about = "Runs the NIC of an interface as a process of its own, as an adapter is a device of its own: the programs of this network \
        namespace, in whatever containers, share it. Over AF_XDP one process has an interface; this is how many have it by \
        that one.\n\nPrograms under `roxie run` and `roxie env` find it by themselves. It reads and writes their memory as an adapter \
        does, also while they are stopped, and takes everything of theirs away when they end. Without such a process, programs share an \
        interface over UDP sockets, each with an engine of its own.\n\nIt serves root and its own user, and those of --user, 255 programs at most. Up to 256 connections of one user may wait to be served, \
        and 1,024 of all users of --user together. A program trusts \
        it only if it is root's or of the program's own user: it reaches into the program's memory.\n\nWhen it ends, the programs' device fails, as \
        if the adapter had been pulled; they hear of it at once.",
    after_help = format!(
        "Examples:\n  roxie nic --dev eth0                       over AF_XDP if it is permitted, else over UDP sockets\n  roxie nic --dev eth0 --drive \
         thread:3      on core 3\n  roxie nic --dev eth0 --user alice --max-qps 64 --max-bytes 1G --max-rate 2.5G\n  roxie nic --dev eth0 --metrics 9740        \
         http://127.0.0.1:9740/metrics\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// A user, by name or number, that is served besides root and the user of this process; may be given several times
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Vec<u32>,
    /// All users of this host are served
    #[arg(long, conflicts_with = "user")]
    all_users: bool,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    of_user: OfUser,
    /// Serve metrics for Prometheus, of the NIC and of all programs, on this port of the loopback address or at this address and port
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Say nothing of who comes and goes
    #[arg(short, long)]
    quiet: bool,
}

fn user(text: &str) -> Result<u32, String> {
    let known = match text.parse() {
        Ok(uid) => return Ok(uid),
        Err(_) => User::from_name(text).map_err(|error| error.to_string())?,
    };
    known.map(|user| user.uid.as_raw()).ok_or_else(|| format!("there is no user {text:?} here"))
}

/// Serves until a signal ends it, or its engine fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("nic"),
    }
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.device.asked_port() == Some(PortKind::Memory) {
        return Err(Failure::Usage(
            "--port memory has both ends in one process: there is nobody to serve".into(),
        ));
    }
    // A NIC has some descriptors for each program. If it cannot have more, those that there are have to do.
    let _ = raise_limit();
    // Before any thread is started, so that none takes them.
    let signals = catch().map_err(|error| Failure::Run(format!("catching signals: {error}")))?;
    // Before there is anybody to serve.
    let scraped = arguments.metrics.map(metrics::listen).transpose()?;
    let mut options = arguments.device.clone();
    options.drive.get_or_insert(THREAD);
    options.serves = true;
    let opened = options.open()?;
    let info = opened.device.port();
    let interface = info.interface.clone().unwrap_or_default();
    let quiet = arguments.quiet;
    let log = Arc::new(Log {
        refusals: LineRate::new(REFUSALS.0, REFUSALS.1),
        visits: LineRate::new(VISITS.0, VISITS.1),
    });
    let noted = Arc::clone(&log);
    let porter = Box::new(move |visit| {
        if !quiet {
            noted.add(&visit);
        }
    });
    let daemon =
        Daemon::start(opened.device, &interface, config(arguments), porter).map_err(|error| match error {
            DaemonError::Device(error) => Failure::from(error),
            other => Failure::Device(other.to_string()),
        })?;
    if !quiet {
        output::note(format_args!("{interface} is served over {} ({})", info.name, info.mode));
    }
    if let Some(server) = scraped {
        std::thread::Builder::new()
            .name("roxie-metrics".into())
            .spawn(move || metrics::serve(&server, &Whose::default()))
            .map_err(|error| Failure::Run(format!("a thread for metrics: {error}")))?;
    }
    wait(&daemon, &signals, &log)?;
    let left = daemon.served().len();
    if left > 0 && !quiet {
        output::note(format_args!("{left} programs lose their device"));
    }
    Ok(())
}

fn config(arguments: &Arguments) -> Config {
    Config {
        users: if arguments.all_users { Users::All } else { Users::Only(arguments.user.clone()) },
        quota: arguments.program.quota(),
        user_quota: arguments.of_user.quota(),
        user_processes: arguments.of_user.processes(),
    }
}

/// The log of visits.
struct Log {
    refusals: LineRate,
    visits: LineRate,
}

impl Log {
    fn add(&self, visit: &Visit) {
        let rate = match visit {
            Visit::Refused { .. } => &self.refusals,
            Visit::Came(_) | Visit::Silent(_) | Visit::Went(_) | Visit::Left(_) => &self.visits,
        };
        self.count();
        if rate.takes(Instant::now()) {
            tell(visit);
        }
    }

    /// Says how many lines were left out.
    fn count(&self) {
        let now = Instant::now();
        if let Some(n) = self.refusals.left_out(now) {
            output::note(format_args!("{n} more refused"));
        }
        if let Some(n) = self.visits.left_out(now) {
            output::note(format_args!("{n} more programs came or went"));
        }
    }
}

fn tell(visit: &Visit) {
    let who = |served: &Served| {
        let user = User::from_uid(Uid::from_raw(served.uid)).ok().flatten();
        let user = user.map_or_else(|| served.uid.to_string(), |user| user.name);
        format!("{} (process {}, user {user}, slot {})", served.name, served.pid, served.slot)
    };
    match visit {
        Visit::Came(served) => output::note(format_args!("{} is served", who(served))),
        Visit::Refused { pid, why } => output::note(format_args!("process {pid} is not served: {why}")),
        Visit::Silent(served) => output::note(format_args!(
            "{} is served no more: a page of its memory did not come within 0.5 s, and others wait meanwhile",
            who(served)
        )),
        Visit::Went(served) => output::note(format_args!("{} is gone", who(served))),
        Visit::Left(threads) => output::note(format_args!(
            "{threads} threads wait for files of programs, whose file system does not answer: the process may not end before that does"
        )),
    }
}

fn catch() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

fn wait(daemon: &Daemon, signals: &SignalFd, log: &Log) -> Result<(), Failure> {
    loop {
        log.count();
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX));
        if fds[0].any() == Some(true) {
            return Ok(());
        }
        if daemon.has_failed() {
            return Err(Failure::Run("the engine has failed (see above), which is a bug of roxie's".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_as_people_write_them() {
        assert_eq!((user("0"), user("root"), user("1234")), (Ok(0), Ok(0), Ok(1234)));
        assert!(user("no such user").unwrap_err().contains("no such user"));
    }
}
