//! `roxie-conform`: a conformance bench, a judge of captures, and a wire between two interfaces. `roxie conform`,
//! `roxie judge` and `roxie wire` start this program.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use roxie_report::described;

mod commands;

use commands::{conform, judge, wire};

#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

/// A conformance bench, a judge and a wire for RoCE v2 peers: the commands `conform`, `judge` and `wire` of roxie
#[derive(Debug, Parser)]
#[command(name = "roxie-conform", bin_name = "roxie", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Conform(conform::Arguments),
    Judge(judge::Arguments),
    Wire(wire::Arguments),
    #[command(name = described::COMMAND, hide = true)]
    Describe,
}

fn main() -> ExitCode {
    roxie::stderr_log::install();
    match Arguments::parse().command {
        Command::Conform(arguments) => conform::run(&arguments),
        Command::Judge(arguments) => judge::run(&arguments),
        Command::Wire(arguments) => wire::run(&arguments),
        Command::Describe => described::print(&Arguments::command()),
    }
}
