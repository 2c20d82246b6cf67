//! `roxie nvme` and `roxie nfs` as a user runs them: in two processes in two network namespaces with a veth pair
//! between them, or in one process. Tests with a network need root, and are skipped with a message without it.

#[path = "../../../../tests/support/commands.rs"]
mod commands;
#[path = "../../../../tests/support/in_time.rs"]
mod in_time;
#[path = "../../../../tests/support/network.rs"]
mod network;

mod nfs;
mod nvme;

use std::process::Command;

use commands::{Finished, LIMIT, Running};

const A: &str = "192.0.2.1";

/// Returns a command of the program with these arguments, separated by spaces.
fn roxie(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie-storage"));
    command.args(arguments.split_whitespace());
    command
}

/// Runs a command in the calling thread's network namespace.
fn run(arguments: &str) -> Finished {
    Running::start(roxie(arguments)).finish()
}
