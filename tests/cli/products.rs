//! Commands of products: `roxie` starts a program of their own for them.

use std::fs::{Permissions, create_dir, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Once;

use serde_json::Value;

use crate::in_time::{CommandInTime, copy_program};
use crate::{Finished, Running, roxie, run};

/// Commands of products.
pub(crate) const COMMANDS: [&str; 6] = ["conform", "judge", "lab", "nfs", "nvme", "wire"];
/// The programs of products, which are packages too.
const PROGRAMS: [&str; 3] = ["roxie-conform", "roxie-lab", "roxie-storage"];

/// Builds the programs of products beside `roxie`. `ROXIE_FOLDER` says that `.ci/test` has built them.
pub(crate) fn build() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if std::env::var_os("ROXIE_FOLDER").is_some() {
            return;
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet"]).args(PROGRAMS.iter().flat_map(|program| ["-p", program]));
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.build_in_time().unwrap().success(), "{build:?}");
    });
}

/// Runs a copy of `roxie` in a folder, with another one as `PATH`.
fn run_in(folder: &Path, path: &Path, arguments: &str) -> Finished {
    let program = folder.join("roxie");
    if !program.exists() {
        copy_program(roxie("").get_program(), &program);
    }
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).env("PATH", path);
    Running::start(command).finish()
}

#[test]
fn missing_program_is_named_with_its_build() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| run_in(folder.path(), Path::new("/proc/no-such"), arguments);
    let place = folder.path().display().to_string();
    for arguments in ["nvme list", "nvme --help", "help nvme target"] {
        run(arguments).failed(1, &["roxie nvme: ", "roxie-storage", &place, "PATH", "make products"]);
    }
    run("nfs ls /").failed(1, &["roxie nfs: ", "cargo build --release -p roxie-storage"]);
    run("lab list").failed(1, &["roxie lab: ", "cargo build --release -p roxie-lab"]);
    run("wire a b").failed(1, &["roxie wire: ", "cargo build --release -p roxie-conform"]);
    // What the programs describe is left out, and the commands themselves are not.
    let script = run("completions bash").succeeded().stdout;
    assert!(script.contains("nvme") && !script.contains("--block-size"));
}

#[test]
fn program_beside_roxie_precedes_the_path() {
    let (own, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    symlink("/bin/echo", path.path().join("roxie-storage")).unwrap();
    let run = |arguments: &str| run_in(own.path(), path.path(), arguments);
    // The program parses its arguments by itself.
    let arguments = "nvme list --no-such -- --help";
    assert_eq!(run(arguments).succeeded().stdout, format!("{arguments}\n"));
    assert_eq!(run("help nfs get").succeeded().stdout, "help nfs get\n");
    symlink("/bin/false", own.path().join("roxie-storage")).unwrap();
    assert_eq!(run("nvme list").failed(1, &[]).stdout, "");
}

#[test]
fn program_that_cannot_start_is_named() {
    let folder = tempfile::tempdir().unwrap();
    create_dir(folder.path().join("other")).unwrap();
    let program = folder.path().join("roxie-storage");
    std::fs::write(&program, "#!/no-such-interpreter\n").unwrap();
    let run = || run_in(folder.path(), &folder.path().join("other"), "nfs ls /");
    run().failed(1, &["neither in", "make products"]);
    set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    run().failed(1, &["cannot start", "roxie-storage"]);
}

#[test]
fn help_has_the_summaries_of_products() {
    build();
    let help = run("--help").succeeded().stdout;
    // Lines are wrapped.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let describe = |program: &&str| {
        let mut describe = Command::new(Path::new(roxie("").get_program()).with_file_name(program));
        describe.arg("describe");
        Running::start(describe).finish().succeeded().json()
    };
    let described: Vec<Value> = PROGRAMS.iter().flat_map(describe).collect();
    let commands: Vec<&Value> = described.iter().flat_map(|list| list.as_array().expect("a list")).collect();
    assert_eq!(commands.len(), COMMANDS.len());
    for command in commands {
        let text = |key: &str| command[key].as_str().expect("text");
        assert!(COMMANDS.contains(&text("name")), "{command}");
        assert!(help.contains(&format!("{} {}", text("name"), text("about"))), "{command}: {help}");
    }
}

#[test]
fn wrong_words_are_refused_as_before() {
    run("nvmee").failed(2, &["unrecognized subcommand 'nvmee'", "'nvme'"]);
    run("nvme tragte").failed(2, &["unrecognized subcommand 'tragte'", "'target'", "Usage: roxie nvme"]);
    run("nfs get").failed(2, &["Usage: roxie nfs get", "ADDRESS:/PATH"]);
    assert!(run("help nvme target").succeeded().stdout.contains("Usage: roxie nvme target"));
    assert!(run("nvme --help").succeeded().stdout.contains("Usage: roxie nvme <COMMAND>"));
}
