//! `roxie`: the command line.

#![deny(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod capture;
mod cc;
mod decode;
mod demo;
mod device;
mod doctor;
mod floor;
mod manual;
mod metrics;
mod nic;
mod perf;
mod pingpong;
mod products;
mod profile;
mod quota;
mod run;
mod show;
mod sim;
mod stream;
#[cfg(feature = "top")]
mod top;

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
    Capture(capture::Arguments),
    Cc(cc::Arguments),
    /// Test a RoCE v2 peer against the specification
    Conform(products::Arguments),
    Decode(decode::Arguments),
    Demo(demo::Arguments),
    Disable(run::DisableArguments),
    Doctor(doctor::Arguments),
    Enable(run::EnableArguments),
    Extcap(capture::extcap::Arguments),
    Perf(perf::Arguments),
    Profile(profile::Arguments),
    /// Exchange messages with the stock `ibv_rc_pingpong`, or with another roxie
    Pingpong(pingpong::Arguments),
    /// Copy files to and from an NFS server over RDMA, or serve a folder
    Nfs(products::Arguments),
    Nic(nic::Arguments),
    /// Serve disks over RDMA, or read and write those of others (NVMe over Fabrics)
    Nvme(products::Arguments),
    Run(run::Arguments),
    Env(run::EnvArguments),
    /// Judge the packets in a capture by the rules of the specification
    Judge(products::Arguments),
    /// Learn how the transport works: small runs of the engine, with pictures and controls
    Lab(products::Arguments),
    Show(show::Arguments),
    Sim(sim::Arguments),
    #[cfg(feature = "top")]
    Top(top::Arguments),
    Metrics(metrics::Arguments),
    /// A cable between two interfaces that loses, doubles, damages, marks, delays or reorders chosen packets
    Wire(products::Arguments),
    Completions(manual::CompletionsArguments),
    #[command(hide = true)]
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    roxie::stderr_log::install();
    let line = command_line(std::env::args_os());
    if let Some(command) = products::help_wanted(&line) {
        return products::start(command, &line[1..]);
    }
    match Arguments::parse_from(&line).command {
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Cc(arguments) => cc::run(&arguments),
        Command::Conform(_) => products::start("conform", &line[1..]),
        Command::Decode(arguments) => decode::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Disable(arguments) => run::disable(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Enable(arguments) => run::enable(&arguments),
        Command::Extcap(arguments) => capture::extcap::run(&arguments),
        Command::Perf(arguments) => perf::run(arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Pingpong(arguments) => pingpong::run(&arguments),
        Command::Nfs(_) => products::start("nfs", &line[1..]),
        Command::Nic(arguments) => nic::run(&arguments),
        Command::Nvme(_) => products::start("nvme", &line[1..]),
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => run::env(&arguments),
        Command::Judge(_) => products::start("judge", &line[1..]),
        Command::Lab(_) => products::start("lab", &line[1..]),
        Command::Show(arguments) => show::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        #[cfg(feature = "top")]
        Command::Top(arguments) => top::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Wire(_) => products::start("wire", &line[1..]),
        Command::Completions(arguments) => {
            manual::completions(&arguments, products::with_products(Arguments::command()))
        }
        Command::Man(arguments) => manual::man(&arguments, products::with_products(Arguments::command())),
    }
}

/// Returns the command line. Wireshark starts `roxie extcap` by a link of another name.
fn command_line(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut line: Vec<OsString> = given.collect();
    let is_link = |name: &OsString| Path::new(name).file_name() == Some(OsStr::new(capture::extcap::LINK));
    if line.first().is_some_and(is_link) {
        line.insert(1, "extcap".into());
    }
    line
}
