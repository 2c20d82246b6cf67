//! `roxie-storage`: disks and files over RDMA. `roxie nvme` and `roxie nfs` start this program.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use roxie_report::described;

mod commands;

use commands::{nfs, nvme};

#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

/// Disks and files over RDMA: the commands `nvme` and `nfs` of roxie
#[derive(Debug, Parser)]
#[command(name = "roxie-storage", bin_name = "roxie", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Nvme(nvme::Arguments),
    Nfs(nfs::Arguments),
    #[command(name = described::COMMAND, hide = true)]
    Describe,
}

fn main() -> ExitCode {
    roxie::stderr_log::install();
    match Arguments::parse().command {
        Command::Nvme(arguments) => nvme::run(&arguments),
        Command::Nfs(arguments) => nfs::run(&arguments),
        Command::Describe => described::print(&Arguments::command()),
    }
}
