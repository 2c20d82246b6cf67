//! `roxie conform`: a conformance bench for any RoCE v2 peer.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie_report::output;

mod compare;
mod expect;
mod fuzz;
mod list;
mod play;
mod reach;
mod report;
mod through;

/// Exit code of a run in which the target broke a rule.
const BROKEN: u8 = 1;
/// Exit code of wrong usage.
const USAGE: u8 = 2;
/// Exit code of a run that could not begin.
const CANNOT_RUN: u8 = 77;

const LONG_ABOUT: &str = "Sends right and wrong packets to a RoCE v2 peer, and judges what it does by the rules of the InfiniBand \
                          specification: which packets it sends, what memory and completions have, and whether it lives.\n\nAt the \
                          target runs a small agent, one C file on libibverbs:\n\n  roxie conform agent > agent.c\n  cc agent.c \
                          -libverbs -lrdmacm -o agent\n  ./agent\n\n--ssh compiles and starts it there, and ends it. The bench makes every packet itself. With CAP_NET_RAW it uses packet \
                          sockets, else a UDP socket, and says which checks that leaves out. Each check ends with a verdict: keeps, \
                          breaks, lenient (accepts without harm what it should refuse) or not tested.\n\n--fuzz sends packets between \
                          valid and invalid instead, made from --seed, each sequence to a queue pair of its own. A model follows what the \
                          specification allows; memory, completions, answers and an honest connection beside are compared with it. What \
                          breaks a rule is shrunk to the packets that it needs, and printed as a script for --script.\n\n--through puts a wire (see `roxie wire`) between two foreign peers, and runs \
                          --play for each script of the wire: a shell command that performs $ROXIE_OPERATION (read, send, write or \
                          atomic) once between the peers, with messages of 8 KiB and a path MTU of 1024 bytes. The packets that pass \
                          are judged.";

const AFTER_HELP: &str = "Examples:\n  roxie conform --target 192.0.2.2\n  roxie conform --target 192.0.2.2 --ssh me@hostb --short\n  roxie conform \
                          --target 192.0.2.2 --filter rc/duplicate --captures packets\n  roxie conform --target 192.0.2.2 --json \
                          run.json --junit run.xml --html run.html\n  roxie conform --target 192.0.2.2 --expect cx6\n  roxie conform --target 192.0.2.2 --fuzz --seed 7\n  roxie conform \
                          --target 192.0.2.2 --script fuzz-rc.script\n  roxie conform --through veth0 veth1 --play \
                          './play $ROXIE_OPERATION'\n\nExit codes: 0 the target keeps all rules that were tested, 1 it \
                          breaks some, 2 wrong usage, 77 the run cannot begin. With --expect: 0 the target does what the profile \
                          says, 1 it does something else.";

/// Test a RoCE v2 peer against the specification
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    play: PlayArguments,
}

// No doc comments for commands that have a long help: the comment would replace it.
#[derive(Debug, Subcommand)]
enum Command {
    List(list::Arguments),
    /// Print the agent's source
    Agent,
    Diff(compare::Arguments),
}

/// Selection of checks.
#[derive(Debug, Args)]
struct Selection {
    /// Only checks whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only a quick subset, which covers each service
    #[arg(long)]
    short: bool,
}

impl Selection {
    /// Returns the chosen checks.
    fn checks(&self) -> Vec<roxie_conform_bench::check::Check> {
        let mut checks = roxie_conform_bench::checks::all();
        checks.retain(|check| {
            (!self.short || check.is_short)
                && self.filter.as_ref().is_none_or(|text| check.name.contains(text.as_str()))
        });
        checks
    }
}

/// A run against a target.
#[derive(Debug, Args)]
struct PlayArguments {
    /// RoCE address of the target
    #[arg(long, value_name = "ADDRESS")]
    target: Option<IpAddr>,
    /// TCP port of the agent
    #[arg(long, value_name = "PORT", default_value_t = roxie_conform_bench::agent::PORT)]
    agent_port: u16,
    /// Address of the agent [default: the target's]
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<IpAddr>,
    /// Compile and run the agent at this host by `ssh`, for the time of the run
    #[arg(long, value_name = "USER@HOST", conflicts_with_all = ["agent", "agent_port"], value_parser = reach::host)]
    ssh: Option<String>,
    /// Device that the agent of --ssh opens [default: the first]
    #[arg(long, value_name = "NAME", requires = "ssh", value_parser = reach::device)]
    ssh_device: Option<String>,
    /// Interface that leads to the target [default: that of the route]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How to reach the link [default: raw if permitted]
    #[arg(long, value_enum)]
    link: Option<Link>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    fuzz: fuzz::FuzzArguments,
    #[command(flatten)]
    through: through::ThroughArguments,
    /// Compare the target with this adapter instead of the specification: a name of `roxie profile list`, or a file
    #[arg(long, value_name = "NAME", conflicts_with_all = ["fuzz", "script", "through"])]
    expect: Option<String>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the report as a page that needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the packets of each check, and the scripts of --fuzz, to this folder
    #[arg(long, value_name = "DIR")]
    captures: Option<PathBuf>,
    /// Print a line for each check, also for those that are kept
    #[arg(long, short)]
    verbose: bool,
}

/// How to reach the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Link {
    /// Packet sockets: every byte of a frame; takes CAP_NET_RAW
    Raw,
    /// A UDP socket: every byte behind the UDP header
    Socket,
}

/// Why a command ended early: the exit code, and what to say.
#[derive(Debug)]
struct Ended(u8, String);

impl From<roxie_report::failure::Failure> for Ended {
    fn from(failure: roxie_report::failure::Failure) -> Ended {
        Ended(failure.exit_code(), failure.to_string())
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.command {
        Some(Command::List(arguments)) => list::run(arguments).map(|()| 0),
        Some(Command::Agent) => {
            output::exact(roxie_conform_bench::agent::SOURCE).map(|()| 0).map_err(Ended::from)
        }
        Some(Command::Diff(arguments)) => compare::run(arguments),
        None => play::run(&arguments.play),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Ended(code, why)) => {
            output::complain("conform", why);
            ExitCode::from(code)
        }
    }
}
