//! Users in user namespaces on Linux 6.1, which does not say in which namespace the peer of a socket is: a test of
//! `tests/verbs/launcher.rs` in a guest. With `ALL=1`, as in `make test-all`.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::path::PathBuf;
use std::time::Duration;

use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::local::program::built;
use interop::network::Namespace;

const TEST: &str = "user_with_the_overflow_number_is_told_apart";
/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the program of the tests of unmodified programs, and the folder of the library and of `roxie`. Builds them unless `.ci/test` has, and
/// says where.
fn programs() -> (PathBuf, PathBuf) {
    let told = ["ROXIE_VERBS_TESTS", "ROXIE_FOLDER"].map(std::env::var_os);
    if let [Some(tests), Some(folder)] = told {
        return (tests.into(), folder.into());
    }
    let tests = built(&["test", "-p", "roxie-cli", "--test", "verbs", "--no-run"], "verbs");
    let folder = tests.ancestors().nth(2).expect("target/debug/deps").to_owned();
    let link = std::process::Command::new("uverbs-shim/link").arg(&folder).status();
    assert!(link.expect("a shell").success());
    (tests, folder)
}

#[test]
fn users_are_told_apart_on_linux_6_1() {
    let name = "users_are_told_apart_on_linux_6_1";
    if std::env::var_os("ALL").is_none() {
        return println!("LEFT OUT {name}: a guest of Linux 6.1");
    }
    let _alone = crate::alone();
    let image = match Image::build(Kernel::V6_1, false) {
        Ok(image) => image,
        Err(why) => return println!("SKIP {name}: {why}"),
    };
    let (tests, folder) = programs();
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-guest-users.log");
    let guest =
        Guest::start_with(&image, &namespace, 2, &log, Files::Host, Adapter::Plain).expect("the guest");
    let mut peer = guest.peer(&namespace).expect("a session");
    let mut run = |name: &str, words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let job = peer.spawn(name, &words).expect("a program");
        peer.wait(job, PATIENCE).expect("the program ends")
    };
    assert_eq!(run("modprobe", &["veth"]).code, Some(0));
    let script = concat!("/host", env!("CARGO_MANIFEST_DIR"), "/guest/rooted");
    let variable = format!("ROXIE_FOLDER={}", folder.display());
    let tests = tests.display().to_string();
    let program = ["-m", "sh", script, "/usr/bin/env", &variable, &tests, TEST, "--nocapture"];
    let ended = run("unshare", &program);
    println!("{}", ended.output);
    assert_eq!(ended.code, Some(0), "the test in the guest");
    assert!(ended.output.contains("1 passed") && !ended.output.contains("SKIP"), "nothing is skipped there");
}
