//! Tests how the runner of `.ci/test` counts, runs failed tests again, and ends programs that hang, with scripts in
//! place of programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::in_time::CommandInTime;
use tempfile::TempDir;

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output of a test program with these results.
fn output(tests: &[(&str, bool)]) -> String {
    let mut text = String::new();
    for (name, passes) in tests {
        text += &format!("test {name} ... {}\n", if *passes { "ok" } else { "FAILED" });
    }
    let failed: Vec<_> = tests.iter().filter(|test| !test.1).map(|test| test.0).collect();
    if !failed.is_empty() {
        text += "\nfailures:\n\n---- x stdout ----\n    not_a_name\ntest result: ok. 9 passed; 0 failed;\n\nfailures:\n";
        failed.iter().for_each(|name| text += &format!("    {name}\n"));
    }
    let (word, count) = if failed.is_empty() { ("ok", 0) } else { ("FAILED", failed.len()) };
    text + &format!(
        "\ntest result: {word}. {} passed; {count} failed; 0 ignored; 0 measured; 0 filtered out\n",
        tests.len() - count
    )
}

/// A program by its name, its first and its second output.
type Program<'a> = (&'a str, String, String);

/// Runs the runner. Returns whether it succeeds, what it printed, and the names of the tests that it ran again.
fn run(programs: &[Program<'_>], more: &str) -> (bool, String, String) {
    let tree = TempDir::new().unwrap();
    let root = tree.path();
    let mut messages = more.to_owned();
    for (name, first, second) in programs {
        fs::write(root.join(format!("{name}.first")), first).unwrap();
        fs::write(root.join(format!("{name}.second")), second).unwrap();
        let path = root.join(name);
        executable(
            &path,
            "#!/bin/bash\nlast() { grep -q -e FAILED -e signal \"$1\" && exit 101; exit 0; }\ncase \"$1\" in\n\
             --list) ;;\n--exact) echo \"$2\" >>asked; cat \"$0.second\"; last \"$0.second\" ;;\n\
             *) cat \"$0.first\"; grep -q hangs \"$0.first\" && exec sleep 60; last \"$0.first\" ;;\nesac\n",
        );
        messages += &format!(
            "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"{0}/Cargo.toml\",\"target\":{{\"kind\":[\"test\"],\
             \"name\":\"{name}\"}},\"profile\":{{\"test\":true}},\"executable\":\"{0}/{name}\"}}\n",
            root.display()
        );
    }
    fs::write(root.join("messages"), messages).unwrap();
    let mut runner = Command::new(env!("CARGO_BIN_EXE_runner"));
    let done = runner.arg("messages").current_dir(root).env("SILENCE", "1").output_in_time().unwrap();
    let rerun = fs::read_to_string(root.join("asked")).unwrap_or_default();
    (done.status.success(), String::from_utf8(done.stdout).unwrap(), rerun)
}

/// Returns the last two lines.
fn end(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(2)..].join("\n")
}

#[test]
fn run_without_failures_has_empty_flaky_line() {
    let (passes, printed, rerun) = run(&[("a", output(&[("x", true)]), String::new())], "");
    assert_eq!((passes, &*end(&printed), &*rerun), (true, "flaky:\n1 passed, 0 failed, 0 skipped", ""));
}

#[test]
fn test_that_passes_again_is_named_flaky() {
    let again = output(&[("m::x", true)]);
    let (passes, printed, rerun) = run(&[("a", output(&[("m::x", false), ("y", true)]), again)], "");
    assert_eq!((passes, &*end(&printed)), (true, "flaky: m::x\n2 passed, 0 failed, 0 skipped"));
    assert_eq!(rerun, "m::x\n");
}

#[test]
fn test_that_fails_twice_stays_failed() {
    let first = output(&[("x", false)]);
    let (passes, printed, _) = run(&[("a", first.clone(), first)], "");
    assert_eq!((passes, &*end(&printed)), (false, "flaky:\n0 passed, 1 failed, 0 skipped"));
    assert!(printed.contains("failed: a x\n    not_a_name\n"), "what it said last: {printed}");
}

#[test]
fn second_run_counts_only_in_its_target() {
    let failed = output(&[("x", false)]);
    let passed = output(&[("x", true)]);
    let (passes, printed, rerun) = run(&[("a", failed.clone(), failed), ("b", passed.clone(), passed)], "");
    assert_eq!((passes, &*end(&printed)), (false, "flaky:\n1 passed, 1 failed, 0 skipped"));
    assert_eq!(rerun, "x\n");
}

#[test]
fn skip_in_second_run_stays_failed() {
    let again = format!("SKIP x: no root\n{}", output(&[("x", true)]));
    let (passes, printed, _) = run(&[("a", output(&[("x", false)]), again)], "");
    assert_eq!((passes, &*end(&printed)), (false, "flaky:\n0 passed, 1 failed, 0 skipped"));
}

#[test]
fn aborted_target_stays_failed_beside_flaky_test() {
    let aborts = ("a", "test x ... ok\nerror: signal: 6\n".to_owned(), String::new());
    let flaky = ("b", output(&[("y", false)]), output(&[("y", true)]));
    let (passes, printed, _) = run(&[aborts, flaky], "");
    assert_eq!((passes, &*end(&printed)), (false, "flaky: y\n1 passed, 1 failed, 0 skipped"));
}

#[test]
fn silent_program_is_ended_and_failed() {
    let hangs = ("a", "test x has been running, and hangs\n".to_owned(), String::new());
    let (passes, printed, _) = run(&[hangs], "");
    assert_eq!((passes, &*end(&printed)), (false, "flaky:\n0 passed, 1 failed, 0 skipped"));
    assert!(printed.contains("a: said nothing for 1 s"), "{printed}");
}

#[test]
fn skips_and_own_totals_are_counted() {
    let skips = (
        "a",
        format!(
            "SKIP x: no root\nLEFT OUT x: other ports\nLEFT OUT y: other ports\n{}",
            output(&[("x", true), ("y", true)])
        ),
        String::new(),
    );
    let rows = "also\tacts\trows\techo\t3 passed, 0 failed, 2 skipped\n";
    let (passes, printed, _) = run(&[skips], rows);
    assert_eq!((passes, &*end(&printed)), (true, "flaky:\n4 passed, 0 failed, 3 skipped"));
    assert!(printed.contains("skipped:\nSKIP x: no root\n"), "{printed}");
    assert!(printed.contains(":\nother ports, by 2 tests\n"), "{printed}");
}

#[test]
fn one_program_runs_with_its_arguments() {
    let tree = TempDir::new().unwrap();
    let arguments = tree.path().join("told");
    fs::write(tree.path().join("output"), output(&[("x", true)])).unwrap();
    let program = tree.path().join("chosen");
    executable(&program, "#!/bin/bash\ncd \"$(dirname \"$0\")\"\necho \"$*\" >>told\ncat output\n");
    let message = format!(
        "{{\"manifest_path\":\"{0}/Cargo.toml\",\"target\":{{\"kind\":[\"test\"],\"name\":\"chosen\"}},\"profile\":{{\"test\":true}},\
         \"executable\":\"{0}/chosen\"}}\n",
        tree.path().display()
    );
    let file = tree.path().join("messages");
    fs::write(&file, message.clone() + &message.replace("\"name\":\"chosen\"", "\"name\":\"other\""))
        .unwrap();
    let mut runner = Command::new(env!("CARGO_BIN_EXE_runner"));
    runner.arg(&file).args(["chosen", "a::", "b::"]).current_dir(tree.path()).env_remove("ALL");
    assert!(runner.output_in_time().unwrap().status.success());
    assert_eq!(fs::read_to_string(arguments).unwrap(), "--list a:: b::\n--show-output a:: b::\n");
}

#[test]
fn doc_test_with_spaces_runs_again() {
    let tree = TempDir::new().unwrap();
    let docs = tree.path().join("docs");
    let name = "src/lib.rs - a (line 3)";
    let again = output(&[("src/lib.rs - a (line 3) - compile", true)]);
    fs::write(tree.path().join("first"), output(&[("x", true)]) + &output(&[(name, false)])).unwrap();
    fs::write(tree.path().join("second"), again).unwrap();
    executable(
        &docs,
        "#!/bin/bash\ncd \"$(dirname \"$0\")\"\ncase \"$*\" in\n*--exact*) cat second ;;\n*) cat first; exit 101 ;;\nesac\n",
    );
    let (passes, printed, _) = run(&[], &format!("also\tcomputes\tdocs\t{}\t--doc\t--\n", docs.display()));
    let wanted = "flaky: src/lib.rs - a (line 3)\n2 passed, 0 failed, 0 skipped";
    assert_eq!((passes, &*end(&printed)), (true, wanted));
}
