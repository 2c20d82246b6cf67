//! Tests how `.ci/test` runs failed tests again, with substitutes for cargo and interop that print given output.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::in_time::CommandInTime;
use tempfile::TempDir;

const BEGIN: &str = "     Running tests/a.rs (target/debug/deps/a-1)\n";
const OTHER: &str = "     Running tests/b.rs (target/debug/deps/b-2)\n";

fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output of a test target with these results.
fn target(begin: &str, tests: &[(&str, bool)]) -> String {
    let mut text = begin.to_string();
    for (name, passes) in tests {
        text += &format!("test {name} ... {}\n", if *passes { "ok" } else { "FAILED" });
    }
    let failed: Vec<_> = tests.iter().filter(|test| !test.1).map(|test| test.0).collect();
    if !failed.is_empty() {
        text += "\nfailures:\n\n---- x stdout ----\n    not_a_name\n\nfailures:\n";
        failed.iter().for_each(|name| text += &format!("    {name}\n"));
    }
    let (word, count) = if failed.is_empty() { ("ok", 0) } else { ("FAILED", failed.len()) };
    text + &format!(
        "\ntest result: {word}. {} passed; {count} failed; 0 ignored; 0 measured; 0 filtered out\n",
        tests.len() - count
    )
}

/// Runs the script. Returns whether it succeeds, its last two lines, and the names of the tests that it ran again.
fn run(first: &str, second: &str) -> (bool, String, String) {
    let tree = TempDir::new().unwrap();
    let root = tree.path();
    executable(
        &root.join(".ci/test"),
        &fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/test")).unwrap(),
    );
    executable(&root.join("uverbs-shim/link"), "#!/bin/sh\n");
    executable(&root.join("target/debug/interop"), "#!/bin/sh\necho 0 passed, 0 failed, 0 skipped\n");
    fs::write(root.join("first"), first).unwrap();
    fs::write(root.join("second"), second).unwrap();
    executable(
        &root.join("bin/cargo"),
        "#!/bin/bash\ncase \"$*\" in\n*--no-run*|build*) ;;\n\
         *--exact*) set -- \"${@:$#-1}\"; echo \"$1\" >>asked; cat second;;\n\
         *) cat first; ! grep -q -e FAILED -e signal first;;\nesac\n",
    );
    let path = format!("{}:{}", root.join("bin").display(), std::env::var("PATH").unwrap());
    let done = Command::new("timeout")
        .arg("60")
        .arg(root.join(".ci/test"))
        .env("PATH", path)
        .output_in_time()
        .expect("bash");
    let said = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<_> = said.lines().collect();
    let asked = fs::read_to_string(root.join("asked")).unwrap_or_default();
    (done.status.success(), lines[lines.len().saturating_sub(2)..].join("\n"), asked)
}

#[test]
fn run_without_failures_has_empty_flaky_line() {
    let (passes, end, asked) = run(&target(BEGIN, &[("x", true)]), "");
    assert_eq!((passes, end.as_str(), asked.as_str()), (true, "flaky:\n1 passed, 0 failed, 0 skipped", ""));
}

#[test]
fn test_that_passes_again_is_named_flaky() {
    let first = target(BEGIN, &[("m::x", false), ("y", true)]);
    let (passes, end, asked) = run(&first, &target(BEGIN, &[("m::x", true)]));
    assert_eq!((passes, end.as_str()), (true, "flaky: m::x\n2 passed, 0 failed, 0 skipped"));
    assert_eq!(asked, "m::x\n");
}

#[test]
fn test_that_fails_twice_stays_failed() {
    let first = target(BEGIN, &[("x", false)]);
    let (passes, end, _) = run(&first, &first);
    assert_eq!((passes, end.as_str()), (false, "flaky:\n0 passed, 1 failed, 0 skipped"));
}

#[test]
fn second_run_counts_only_in_its_target() {
    let first = target(BEGIN, &[("x", false)]) + &target(OTHER, &[("x", true)]);
    let (passes, end, _) = run(&first, &first);
    assert_eq!((passes, end.as_str()), (false, "flaky:\n1 passed, 1 failed, 0 skipped"));
}

#[test]
fn skip_in_second_run_stays_failed() {
    let again = format!("SKIP x: no root\n{}", target(BEGIN, &[("x", true)]));
    let (passes, end, _) = run(&target(BEGIN, &[("x", false)]), &again);
    assert_eq!((passes, end.as_str()), (false, "flaky:\n0 passed, 1 failed, 0 skipped"));
}

#[test]
fn aborted_target_stays_failed_beside_flaky_test() {
    let first = format!("{BEGIN}test x ... ok\nerror: signal: 6\n{}", target(OTHER, &[("y", false)]));
    let (passes, end, _) = run(&first, &target(OTHER, &[("y", true)]));
    assert_eq!((passes, end.as_str()), (false, "flaky: y\n1 passed, 1 failed, 0 skipped"));
}

#[test]
fn doc_test_with_spaces_runs_again() {
    let doc = "   Doc-tests roxie\n";
    let name = "src/lib.rs - a (line 3)";
    let again = target(doc, &[("src/lib.rs - a (line 3) - compile", true)]);
    let (passes, end, asked) = run(&target(doc, &[(name, false)]), &again);
    assert_eq!(
        (passes, end.as_str()),
        (true, "flaky: src/lib.rs - a (line 3)\n1 passed, 0 failed, 0 skipped")
    );
    assert_eq!(asked, format!("{name}\n"));
}
