//! `roxie nvme`: blocks over a fabric, as target and as initiator (NVMe over Fabrics over RDMA).

use std::process::ExitCode;

use clap::{Args, Subcommand};

mod bench;
mod block_options;
mod initiator;
mod list;
mod target;
mod transfer;

/// Default name of a subsystem, at both ends.
const NQN: &str = "nqn.2026-11.roxie:disk";

/// Serve disks over RDMA, or read and write those of others (NVMe over Fabrics)
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// No doc comments for commands that have a long help: the comment would replace it.
#[derive(Debug, Subcommand)]
enum Command {
    Target(target::Arguments),
    List(list::ListArguments),
    Id(list::IdArguments),
    Read(transfer::ReadArguments),
    Write(transfer::WriteArguments),
    Bench(bench::Arguments),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let (name, done) = match &arguments.command {
        Command::Target(arguments) => ("nvme target", target::run(arguments)),
        Command::List(arguments) => ("nvme list", list::list(arguments)),
        Command::Id(arguments) => ("nvme id", list::id(arguments)),
        Command::Read(arguments) => ("nvme read", transfer::read(arguments)),
        Command::Write(arguments) => ("nvme write", transfer::write(arguments)),
        Command::Bench(arguments) => ("nvme bench", bench::run(arguments)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(name),
    }
}
