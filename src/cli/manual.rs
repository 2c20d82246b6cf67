//! `roxie completions` and `roxie man`: shell completions and manual pages, generated from the command line's
//! definition.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::{Shell, generate};
use roxie_report::failure::Failure;

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(
    long_about = "Prints a script that makes a shell complete roxie's commands and options.",
    after_help = "Examples:\n  eval \"$(roxie completions bash)\"                       in this shell\n  \
        roxie completions bash > ~/.local/share/bash-completion/completions/roxie\n  \
        roxie completions zsh > ~/.zfunc/_roxie\n  \
        roxie completions fish > ~/.config/fish/completions/roxie.fish\n\nThe Debian package installs them."
)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Write the pages of the manual into a folder
#[derive(Debug, Args)]
#[command(
    long_about = "Writes manual pages for roxie and for each of its commands to a folder (roxie.1, roxie-run.1 and so \
        on), and creates the folder if it is missing.",
    after_help = "Examples:\n  roxie man /tmp/man && man /tmp/man/roxie-run.1"
)]
pub(crate) struct ManArguments {
    /// Folder to write to; created if missing
    folder: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    generate(arguments.shell, &mut command, "roxie", &mut script);
    let mut out = io::stdout().lock();
    match out.write_all(&script).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::Output(error).report("completions"),
    }
}

/// Writes the manual pages.
pub(crate) fn man(arguments: &ManArguments, command: Command) -> ExitCode {
    let folder = &arguments.folder;
    match fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::Run(format!("cannot write into {}: {error}", folder.display())).report("man"),
    }
}
