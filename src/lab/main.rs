//! `roxie-lab`: runs of the engine to learn from. `roxie lab` starts this program.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use roxie_report::described;

mod commands;

#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

/// Runs of the engine to learn from: the command `lab` of roxie
#[derive(Debug, Parser)]
#[command(name = "roxie-lab", bin_name = "roxie", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Lab(commands::Arguments),
    #[command(name = described::COMMAND, hide = true)]
    Describe,
}

fn main() -> ExitCode {
    roxie::stderr_log::install();
    match Arguments::parse().command {
        Command::Lab(arguments) => commands::run(&arguments),
        Command::Describe => described::print(&Arguments::command()),
    }
}
