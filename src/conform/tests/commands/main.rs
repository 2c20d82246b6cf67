//! `roxie judge`, `roxie wire` and `roxie conform --through` as a user runs them, with `roxie perf` at both ends. Tests
//! with a network need root, and are skipped with a message without it.

#[path = "../../../../tests/support/commands.rs"]
mod commands;
#[path = "../../../../tests/support/in_time.rs"]
mod in_time;
#[path = "../../../../tests/support/network.rs"]
mod network;

mod judge;
mod through;
mod wire;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use commands::{Finished, LIMIT, Running};
use in_time::CommandInTime;

const A: &str = "192.0.2.1";

/// Returns the path of `roxie`, which starts the program beside it. Builds it, unless `ROXIE_FOLDER` says that
/// `.ci/test` has.
fn roxie_path() -> PathBuf {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if std::env::var_os("ROXIE_FOLDER").is_some() {
            return;
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "roxie-cli"]);
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        if cfg!(feature = "planted-bugs") {
            build.args(["--features", "planted-bugs"]);
        }
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.build_in_time().unwrap().success(), "{build:?}");
    });
    Path::new(env!("CARGO_BIN_EXE_roxie-conform")).with_file_name("roxie")
}

/// Returns a `roxie` command with these arguments, separated by spaces.
fn roxie(arguments: &str) -> Command {
    let mut command = Command::new(roxie_path());
    command.args(arguments.split_whitespace());
    command
}

/// Runs a command in the calling thread's network namespace.
fn run(arguments: &str) -> Finished {
    Running::start(roxie(arguments)).finish()
}
