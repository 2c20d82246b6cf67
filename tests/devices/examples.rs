//! Runs each program of `examples` as its first lines say, with both ends in one process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::in_time::CommandInTime;

/// All examples, and the last output of each.
const EXAMPLES: [(&str, &str); 10] = [
    ("connect", "says: hello by address and port"),
    ("counters", "4 clients took 2000 tickets, each another one"),
    ("key_value", "300 of 600 keys were found, and the server did nothing for it"),
    ("lossy_link", "seed 1: 262144 bytes crossed in "),
    ("own_port", "65536 bytes were read in "),
    ("rpc", "400 requests of 8 clients were answered from 16 receives"),
    ("send_recv", "received 15 bytes: hello over RDMA"),
    ("smb_direct", "24 files were the same after their way there and back"),
    ("virtual_time", " Gb/s of data from the server, whose link has 100 Gb/s"),
    ("zero_copy", "64 MiB in "),
];

/// Returns cargo's folder of examples. Builds them, unless `ROXIE_FOLDER` says where `.ci/test` has.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(made) = std::env::var_os("ROXIE_FOLDER") {
            return Path::new(&made).join("examples");
        }
        let mut build = Command::new(env!("CARGO"));
        // Without `-p`, as `cargo test` has built them: with other packages, crates have other features, and all would
        // compile again.
        build.args(["build", "--quiet", "--examples"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        for (feature, is_on) in [
            ("planted-bugs", cfg!(feature = "planted-bugs")),
            ("tokio", cfg!(feature = "tokio")),
            ("xdp", cfg!(feature = "xdp")),
        ] {
            if is_on {
                build.args(["--features", feature]);
            }
        }
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.build_in_time().expect("cargo").success(), "{build:?}");
        let this = std::env::current_exe().expect("a path");
        this.parent().and_then(Path::parent).expect("a build folder").join("examples")
    })
}

fn run(name: &str) -> String {
    let program = folder().join(name);
    let ran =
        Command::new(&program).output_in_time().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{name}: {}\n{output}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    output
}

#[test]
fn each_example_prints_its_result() {
    for (name, wanted) in EXAMPLES {
        let output = run(name);
        assert!(output.contains(wanted), "{name} said {output:?}, and not {wanted:?}");
    }
}

#[test]
#[cfg(feature = "tokio")]
fn async_echo_returns_every_message() {
    let output = run("async_echo");
    assert!(output.contains("100 connections, 200 round trips each, none lost"), "{output}");
}

#[test]
fn lossy_link_drops_the_same_frames() {
    let output = run("lossy_link");
    assert!(!output.contains(" 0 frames were lost"), "{output}");
    assert_eq!(run("lossy_link"), output);
}

#[test]
fn all_examples_are_run() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut there: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
        })
        .collect();
    there.sort();
    // `async_echo` has a test of its own, since it takes a feature.
    let mut run: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).chain(["async_echo"]).collect();
    run.sort_unstable();
    assert_eq!(there, run);
}
