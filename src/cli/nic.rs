//! `roxie nic`: a NIC as its own process, which serves the programs of its host.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Uid, User};
use roxie::descriptors::raise_limit;
use roxie::host::DeviceName;
use roxie_daemon::{ClientChange, Config, Daemon, DaemonError, Means, Served, Users};
use roxie_options::{DeviceOptions, PortKind, THREAD};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::line_rate::LineRate;
use roxie_report::output;
use roxie_report::signals;

use crate::metrics;
use crate::quota::{OfUser, Program};
use crate::show::objects::ProcessFilter;

/// Interval between two checks that the engine is alive.
const LOOK: Duration = Duration::from_secs(1);
/// Log lines a second about refused processes, which any process can cause, and their burst.
const REFUSALS: (u32, u32) = (2, 20);
/// Log lines a second about clients that connect and disconnect, and their burst: all 255 may start and end together.
const VISITS: (u32, u32) = (10, 512);

/// Run the NIC of an interface, and serve the programs of this host
#[derive(Debug, Args)]
#[command(
    long_about = "Runs the NIC of an interface as its own process, as an adapter is a device of its own: the programs \
        of this network namespace share it, in whatever containers they run. Over AF_XDP only one process can have an \
        interface, so this is how several programs share one.\n\nPrograms under `roxie run` and `roxie env` find the \
        NIC by themselves. As an adapter does, the NIC reads and writes their memory, even while they are stopped, and \
        frees their objects when they end. Without such a process, programs share an interface over UDP sockets, each \
        with its own engine.\n\nThe NIC serves root, its own user, and the users of --user, at most 255 programs. Up \
        to 256 connections of one user may wait to be served, and 1,024 of all users of --user together. A program \
        uses only a NIC of root or of the program's own user, because the NIC accesses the program's memory.\n\nWhen \
        the NIC ends, the programs' device fails at once, as if the adapter had been pulled.",
    after_help = format!(
        "Examples:\n  roxie nic --dev eth0                       over AF_XDP if permitted, else over UDP sockets\n  roxie nic --dev eth0 --drive \
         thread:3      on core 3\n  roxie nic --dev eth0 --user alice --max-qps 64 --max-bytes 1G --max-rate 2.5G\n  roxie nic --dev eth0 --metrics 9740        \
         http://127.0.0.1:9740/metrics\n  roxie nic --dev eth0 --name mlx5_0         as which programs see the device\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// Name of the device, for programs that look for one: mlx5_0, rxe0
    #[arg(long, value_name = "NAME", default_value_t)]
    name: DeviceName,
    /// Serve this user, by name or number, besides root and the user of this process; repeatable
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Vec<u32>,
    /// Serve all users of this host
    #[arg(long, conflicts_with = "user")]
    all_users: bool,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    of_user: OfUser,
    /// Serve metrics of the NIC and of all programs for Prometheus, on this port of the loopback address or at this
    /// address and port
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::address)]
    metrics: Option<SocketAddr>,
    /// Do not report programs that connect or disconnect
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

/// Serves until a signal, or until the engine fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("nic"),
    }
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.device.asked_port() == Some(PortKind::Memory) {
        return Err(Failure::Usage(
            "--port memory has both ends in one process: there are no programs to serve".into(),
        ));
    }
    // A NIC needs several descriptors for each program. If the limit cannot be raised, it serves fewer programs.
    let _ = raise_limit();
    // Block signals before any thread starts, so that no thread takes them.
    let signals = signals::catch_in_command()?;
    // Bind the metrics port before serving programs.
    let scraped = arguments.metrics.map(metrics::listen).transpose()?;
    let mut options = arguments.device.clone();
    options.drive.get_or_insert(THREAD);
    options.serves = true;
    options.name = arguments.name.clone();
    let opened = options.open()?;
    let info = opened.device.port();
    let interface = info.interface.clone().unwrap_or_default();
    let quiet = arguments.quiet;
    let log = Arc::new(Log {
        refusals: LineRate::new(REFUSALS.0, REFUSALS.1),
        changes: LineRate::new(VISITS.0, VISITS.1),
    });
    let noted = Arc::clone(&log);
    let on_change = Box::new(move |change| {
        if !quiet {
            noted.add(&change);
        }
    });
    let daemon =
        Daemon::start(opened.device, &interface, config(arguments), on_change).map_err(
            |error| match error {
                DaemonError::Device(error) => Failure::from(error),
                other => Failure::Device(other.to_string()),
            },
        )?;
    if !quiet {
        output::note(format_args!("{interface} is served over {} ({})", info.name, info.mode));
    }
    if arguments.all_users || !arguments.user.is_empty() {
        warn_of_kernel();
    }
    if let Some(listener) = scraped {
        std::thread::Builder::new()
            .name("roxie-metrics".into())
            .spawn(move || metrics::serve(&listener, ProcessFilter::default()))
            .map_err(|error| Failure::Run(format!("a thread for metrics: {error}")))?;
    }
    wait(&daemon, &signals, &log)?;
    let left = daemon.served().len();
    if left > 0 && !quiet {
        output::note(format_args!("{left} programs lose their device"));
    }
    Ok(())
}

/// Reports what the kernel lacks to keep users apart.
fn warn_of_kernel() {
    for means in Means::missing() {
        output::note(format_args!(
            "this kernel is older than Linux {}: {means} (docs/security.md)",
            means.since()
        ));
    }
}

fn config(arguments: &Arguments) -> Config {
    Config {
        users: if arguments.all_users { Users::All } else { Users::Only(arguments.user.clone()) },
        quota: arguments.program.quota(),
        user_quota: arguments.of_user.quota(),
        user_processes: arguments.of_user.processes(),
    }
}

/// The log of clients.
struct Log {
    refusals: LineRate,
    changes: LineRate,
}

impl Log {
    fn add(&self, change: &ClientChange) {
        let rate = match change {
            ClientChange::Refused { .. } => &self.refusals,
            ClientChange::Admitted(_)
            | ClientChange::Evicted(_)
            | ClientChange::Ended(_)
            | ClientChange::StillBusy(_) => &self.changes,
        };
        self.count();
        if rate.takes(Instant::now()) {
            print_change(change);
        }
    }

    /// Reports the number of suppressed lines.
    fn count(&self) {
        let now = Instant::now();
        if let Some(n) = self.refusals.left_out(now) {
            output::note(format_args!("{n} more refused"));
        }
        if let Some(n) = self.changes.left_out(now) {
            output::note(format_args!("{n} more programs connected or ended"));
        }
    }
}

fn print_change(change: &ClientChange) {
    let describe = |served: &Served| {
        let user = User::from_uid(Uid::from_raw(served.uid)).ok().flatten();
        let user = user.map_or_else(|| served.uid.to_string(), |user| user.name);
        format!("{} (process {}, user {user}, slot {})", served.name, served.pid, served.slot)
    };
    match change {
        ClientChange::Admitted(served) => output::note(format_args!("{} is served", describe(served))),
        ClientChange::Refused { pid, why } => {
            output::note(format_args!("process {pid} is not served: {why}"))
        }
        ClientChange::Evicted(served) => output::note(format_args!(
            "{} is no longer served: copies from or to its memory took longer than 0.5 s",
            describe(served)
        )),
        ClientChange::Ended(served) => output::note(format_args!("{} has ended", describe(served))),
        ClientChange::StillBusy(threads) => output::note(format_args!(
            "{threads} threads wait for files of programs whose file system does not answer: the process may not end before that file system does"
        )),
    }
}

fn wait(daemon: &Daemon, signals: &SignalFd, log: &Log) -> Result<(), Failure> {
    loop {
        log.count();
        if signals::next(signals, LOOK).is_some() {
            return Ok(());
        }
        if daemon.has_failed() {
            return Err(Failure::Run("the engine has failed (see above): this is a bug in roxie".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_parsed_by_name_or_number() {
        assert_eq!((user("0"), user("root"), user("1234")), (Ok(0), Ok(0), Ok(1234)));
        assert!(user("no such user").unwrap_err().contains("no such user"));
    }
}
