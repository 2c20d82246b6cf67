//! `roxie nfs`: files over RDMA, as client and as read-only server (NFS version 3).

use std::process::ExitCode;

use clap::{Args, Subcommand};

mod location;
mod ls;
mod serve;
mod session;
mod transfer;

/// Copy files to and from an NFS server over RDMA, or serve a folder
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// No doc comments for commands that have a long help: the comment would replace it.
#[derive(Debug, Subcommand)]
enum Command {
    Ls(ls::Arguments),
    Get(transfer::GetArguments),
    Put(transfer::PutArguments),
    Serve(serve::Arguments),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let (name, done) = match &arguments.command {
        Command::Ls(arguments) => ("nfs ls", ls::run(arguments)),
        Command::Get(arguments) => ("nfs get", transfer::get(arguments)),
        Command::Put(arguments) => ("nfs put", transfer::put(arguments)),
        Command::Serve(arguments) => ("nfs serve", serve::run(arguments)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(name),
    }
}
