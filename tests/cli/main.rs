//! The commands as a user runs them: in two processes in two network namespaces with a veth pair between them, or in
//! one process. Tests with a network need root, and are skipped with a message without it. No test depends on measured
//! times. Captures and ladders, the demo, the pages, and the scripts that install the program are tested here too.

#[path = "../support/commands.rs"]
mod commands;
#[path = "../support/in_time.rs"]
mod in_time;
#[path = "../support/kept.rs"]
mod kept;
#[path = "../support/network.rs"]
mod network;

mod action;
mod alone;
mod capture;
mod cc;
mod decode;
mod demo;
mod docs;
mod doctor;
mod formats;
mod ladder;
mod machine;
mod manual;
mod output;
mod perf;
mod pingpong;
mod products;
mod rates;
mod seen;
mod sim;
mod tarball;
mod wrong;

use std::net::Ipv4Addr;
use std::process::Command;

use commands::{Finished, LIMIT, Running};

const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const A: &str = "192.0.2.1";

/// Returns a `roxie` command with these arguments, separated by spaces.
fn roxie(arguments: &str) -> Command {
    if products::COMMANDS.iter().any(|command| arguments.split(' ').any(|word| word == *command)) {
        products::build();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.args(arguments.split_whitespace());
    command
}

/// Runs a command in the calling thread's network namespace.
fn run(arguments: &str) -> Finished {
    Running::start(roxie(arguments)).finish()
}
