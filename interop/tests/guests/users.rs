//! Users, and what protects a NIC from them, on the kernels that the pages name: older ones lack means of protection.
//! Tests of `tests/verbs` and of `roxie-daemon`, whose hostile clients speak to a NIC without the library, in a guest
//! of each. With `ALL=1`, as in `make test-all`.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::path::PathBuf;
use std::time::Duration;

use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::local::program::built;
use interop::network::Namespace;

/// The tests of `tests/verbs`.
const TESTS: [&str; 2] =
    ["user_with_the_overflow_number_is_told_apart", "nic_of_users_warns_of_older_kernels"];
/// Those of `roxie-daemon` whose clients attack by what kernels differ in; others take too long when emulated.
const OF_CLIENTS: [&str; 4] = ["callers", "files", "silent", "--test-threads=2"];
/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the guests run: programs of tests, and the folder of the library and of `roxie`.
struct Programs {
    verbs: PathBuf,
    daemon: PathBuf,
    folder: PathBuf,
}

impl Programs {
    /// Builds them unless `.ci/test` has, and says where.
    fn find() -> Programs {
        let variables = ["ROXIE_VERBS_TESTS", "ROXIE_DAEMON_TESTS", "ROXIE_FOLDER"].map(std::env::var_os);
        if let [Some(verbs), Some(daemon), Some(folder)] = variables {
            return Programs { verbs: verbs.into(), daemon: daemon.into(), folder: folder.into() };
        }
        let verbs = built(&["test", "-p", "roxie-cli", "--test", "verbs", "--no-run"], "verbs");
        let daemon = built(&["test", "-p", "roxie-daemon", "--lib", "--no-run"], "roxie_daemon");
        let folder = verbs.ancestors().nth(2).expect("target/debug/deps").to_owned();
        let link = std::process::Command::new("uverbs-shim/link").arg(&folder).status();
        assert!(link.expect("a shell").success());
        Programs { verbs, daemon, folder }
    }
}

fn run_on(kernel: Kernel, name: &str) {
    if std::env::var_os("ALL").is_none() {
        return println!("LEFT OUT {name}: a guest of Linux {kernel}");
    }
    let _alone = crate::alone();
    let image = match Image::build(kernel, false) {
        Ok(image) => image,
        Err(why) => return println!("SKIP {name}: {why}"),
    };
    let Programs { verbs, daemon, folder } = Programs::find();
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join(format!("test-guest-users-{kernel}.log"));
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
    let [verbs, daemon] = [verbs, daemon].map(|path| path.display().to_string());
    let mut passed = |program: &str, arguments: &[&str]| {
        let rooted = [&["-m", "sh", script, "/usr/bin/env", &variable, program], arguments].concat();
        let ended = run("unshare", &rooted);
        println!("{}", ended.output);
        assert_eq!(ended.code, Some(0), "{program} in the guest");
        ended.output
    };
    let of_programs = passed(&verbs, &[&TESTS[..], &["--test-threads=1", "--nocapture"]].concat());
    assert!(of_programs.contains("2 passed") && !of_programs.contains("SKIP"), "nothing is skipped there");
    let of_clients = passed(&daemon, &OF_CLIENTS);
    let count = of_clients
        .split("test result: ok. ")
        .nth(1)
        .and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count >= 10), "ten tests of the NIC's clients or more: {count:?}");
}

#[test]
fn users_are_kept_apart_on_linux_6_1() {
    run_on(Kernel::V6_1, "users_are_kept_apart_on_linux_6_1");
}

#[test]
fn users_are_kept_apart_on_linux_6_12() {
    run_on(Kernel::V6_12, "users_are_kept_apart_on_linux_6_12");
}

#[test]
fn users_are_kept_apart_on_the_newest_linux() {
    run_on(Kernel::Newest, "users_are_kept_apart_on_the_newest_linux");
}
