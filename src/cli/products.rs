//! Products: programs of their own, which `roxie` starts for their commands, as git does with those of `git-NAME`.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use roxie_report::described::{self, Described};
use roxie_report::failure::Failure;

/// Commands of products, and the program of each.
const PRODUCTS: [(&str, &str); 6] = [
    ("conform", "roxie-conform"),
    ("judge", "roxie-conform"),
    ("wire", "roxie-conform"),
    ("lab", "roxie-lab"),
    ("nfs", "roxie-storage"),
    ("nvme", "roxie-storage"),
];

/// A command line that a product's program parses.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Returns a product's command that `roxie help` is asked about.
pub(crate) fn help_wanted(line: &[OsString]) -> Option<&'static str> {
    let [_, help, name, ..] = line else { return None };
    PRODUCTS.iter().map(|(command, _)| *command).find(|command| help == "help" && name == command)
}

/// Becomes the program of a product's command, with these arguments. Returns only if that is not possible.
pub(crate) fn start(command: &str, arguments: &[OsString]) -> ExitCode {
    let name = program_of(command);
    let failure = match find(name) {
        Some(path) => {
            let error = Command::new(&path).args(arguments).exec();
            Failure::Run(format!("cannot start {}: {error}", path.display()))
        }
        None => missing(name),
    };
    failure.report(command)
}

/// Replaces the products' commands by those that their programs describe. What a missing program would describe stays
/// out.
pub(crate) fn with_products(program: clap::Command) -> clap::Command {
    let mut names: Vec<&str> = PRODUCTS.iter().map(|(_, program)| *program).collect();
    names.dedup();
    let mut all: Vec<Described> = names.into_iter().filter_map(describe).flatten().collect();
    program.mut_subcommands(|command| {
        match all.iter().position(|described| described.name() == command.get_name()) {
            Some(at) => all.swap_remove(at).into_command().display_order(command.get_display_order()),
            None => command,
        }
    })
}

fn program_of(command: &str) -> &'static str {
    PRODUCTS.iter().find(|(name, _)| *name == command).map_or("roxie", |(_, program)| program)
}

/// Looks for a program beside this one, then in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = beside().into_iter().chain(env::split_paths(&path));
    // An empty entry of `PATH` is the current folder, from which no program is started.
    let folders = folders.filter(|folder| !folder.as_os_str().is_empty());
    folders.map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns the folder of this program. `None` without /proc.
fn beside() -> Option<PathBuf> {
    env::current_exe().ok().as_deref().and_then(Path::parent).map(Path::to_owned)
}

fn missing(name: &str) -> Failure {
    let place = beside().map_or_else(|| "roxie".to_owned(), |folder| folder.display().to_string());
    Failure::Run(format!(
        "the command is in the program {name}, which is neither in {place} nor in PATH: `make products` builds it, or \
         `cargo build --release -p {name}`; packages of roxie contain it"
    ))
}

/// Asks a product's program for its commands. `None`: the program is missing, or another release.
fn describe(name: &str) -> Option<Vec<Described>> {
    let mut program = Command::new(find(name)?);
    program.arg(described::COMMAND).stdin(Stdio::null()).stderr(Stdio::null());
    described::parse(&program.output().ok()?.stdout)
}
