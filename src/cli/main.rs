//! `roxie`: the command line.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod cc;
mod chart;
mod conform;
mod decode;
mod decoded;
mod demo;
mod device;
mod doctor;
mod failure;
mod floor;
mod lab;
mod ladder;
mod line_rate;
mod manual;
mod metrics;
mod nfs;
mod nic;
mod nvme;
mod output;
mod perf;
mod pingpong;
mod quota;
mod run;
mod show;
mod signals;
mod sim;
mod stream;
mod svg;
mod top;
mod wire;
mod words;

#[global_allocator]
static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;

/// A RoCE v2 NIC in software.
#[derive(Debug, Parser)]
#[command(name = "roxie", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// No doc comments for commands that have a long help: the comment would replace it.
#[derive(Debug, Subcommand)]
enum Command {
    Cc(cc::Arguments),
    Conform(conform::Arguments),
    Decode(decode::Arguments),
    Demo(demo::Arguments),
    Doctor(doctor::Arguments),
    Perf(perf::Arguments),
    /// Exchange messages with the stock `ibv_rc_pingpong`, or with another roxie
    Pingpong(pingpong::Arguments),
    Nfs(nfs::Arguments),
    Nic(nic::Arguments),
    Nvme(nvme::Arguments),
    Run(run::Arguments),
    Env(run::EnvArguments),
    Lab(lab::Arguments),
    Show(show::Arguments),
    Sim(sim::Arguments),
    Top(top::Arguments),
    Metrics(metrics::Arguments),
    Wire(wire::Arguments),
    Completions(manual::CompletionsArguments),
    #[command(hide = true)]
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    roxie::stderr_log::install();
    match Arguments::parse().command {
        Command::Cc(arguments) => cc::run(&arguments),
        Command::Conform(arguments) => conform::run(&arguments),
        Command::Decode(arguments) => decode::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
        Command::Nfs(arguments) => nfs::run(&arguments),
        Command::Nic(arguments) => nic::run(&arguments),
        Command::Nvme(arguments) => nvme::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => run::env(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Wire(arguments) => wire::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
    }
}
