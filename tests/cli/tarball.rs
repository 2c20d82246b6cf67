//! Tests `.ci/tarball --check`: whether binaries run on an older C library, with libraries that every system has.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::in_time::CommandInTime;
use tempfile::TempDir;

/// Creates a folder with the two files of a build.
fn folder(roxie: &Path, library: &Path) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    symlink(roxie, folder.path().join("roxie")).expect("a link");
    symlink(library, folder.path().join("libibverbs.so.1")).expect("a link");
    folder
}

fn check(folder: &Path, glibc: &str) -> Output {
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(".ci/tarball");
    Command::new(script).arg("--check").arg(folder).env("GLIBC", glibc).output_in_time().expect("bash")
}

#[track_caller]
fn refuses(folder: &Path, glibc: &str, part: &str) {
    let done = check(folder, glibc);
    let output_text = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{output_text}");
    assert!(output_text.contains(part), "no {part:?} in {output_text}");
}

#[test]
fn newer_glibc_symbol_is_named() {
    let roxie = Path::new(env!("CARGO_BIN_EXE_roxie"));
    let folder = folder(roxie, roxie);
    let done = check(folder.path(), "99.0");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // `getauxval` has been in glibc since 2.16 on x86-64, since 2.17 on aarch64.
    refuses(folder.path(), "2.15", "needs getauxval of glibc 2.1");
    refuses(folder.path(), "2.9", "libibverbs.so.1 needs ");
}

#[test]
fn uncommon_library_is_named() {
    let roxie = Path::new(env!("CARGO_BIN_EXE_roxie"));
    let own = TempDir::new().expect("a folder");
    let source = own.path().join("odd.c");
    fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let odd = own.path().join("odd");
    // A library that exists only in this test.
    let cc = |arguments: &[&str]| {
        Command::new("cc").current_dir(own.path()).args(arguments).status_in_time().expect("cc").success()
    };
    assert!(cc(&["-shared", "-Wl,-soname,libnobodyhas.so.1", "-o", "libnobodyhas.so", "odd.c"]));
    assert!(cc(&["-o", "odd", "odd.c", "-Wl,--no-as-needed", "-L.", "-lnobodyhas"]));
    refuses(folder(roxie, &odd).path(), "99.0", "libibverbs.so.1 needs libnobodyhas.so.1");
}

#[test]
fn folder_without_both_files_is_refused() {
    let empty = TempDir::new().expect("a folder");
    refuses(empty.path(), "99.0", "are not both in");
}
