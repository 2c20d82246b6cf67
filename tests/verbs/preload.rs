//! Programs with preloads of their own keep them, and have the device as well.

use std::path::Path;
use std::process::Command;

use super::{NEAR, Running, Site, compiled, folder, ports, skip};

/// Distributions' rsockets preload for TCP programs.
const RSOCKETS: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Ways in which a program gets its own preload. `ROXIE` stands for the command with its options, `PRELOAD` for the
/// library, `PROGRAM` for the program.
const WAYS: [&str; 5] = [
    "LD_PRELOAD=PRELOAD exec ROXIE run OPTIONS -- PROGRAM",
    "exec ROXIE run OPTIONS -- env LD_PRELOAD=PRELOAD PROGRAM",
    "exec ROXIE run OPTIONS -- sh -c 'LD_PRELOAD=PRELOAD PROGRAM'",
    "export LD_PRELOAD=PRELOAD; eval \"$(ROXIE env OPTIONS)\"; exec PROGRAM",
    "eval \"$(ROXIE env OPTIONS)\"; LD_PRELOAD=PRELOAD:$LD_PRELOAD exec PROGRAM",
];

fn shell(way: &str, options: &str, preload: &str, program: &str) -> Command {
    let script = way
        .replace("PROGRAM", program)
        .replace("ROXIE", env!("CARGO_BIN_EXE_roxie"))
        .replace("OPTIONS", options)
        .replace("=PRELOAD", &format!("={preload}"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
}

#[test]
fn tcp_programs_run_over_preloaded_rsockets() {
    let name = "tcp_programs_run_over_preloaded_rsockets";
    if skip(name, &["cc", "sh", "env"]) {
        return;
    }
    if !Path::new(RSOCKETS).exists() {
        println!("SKIP {name}: {RSOCKETS} is not there (librdmacm1)");
        return;
    }
    let (_place, program) = compiled("plain_stream", &[]);
    let site = Site::new("p-rsockets");
    for port in ports() {
        for (number, way) in WAYS.iter().enumerate() {
            let non_blocking = if number % 2 == 0 { "" } else { " -n" };
            let start = |namespace, dev: &str, words: &str| {
                let program = format!("{} {words}{non_blocking}", program.display());
                Running::start(
                    namespace,
                    shell(way, &format!("--quiet --dev {dev} --port {port}"), RSOCKETS, &program),
                )
            };
            let mut server = start(&site.local, "left", &format!("serve {NEAR}"));
            // TCP sockets of the program do not show which port is served: wait for the rdma_cm listener.
            server.wait_until_it_serves();
            let (client, server) = (start(&site.remote, "right", NEAR).finish(), server.finish());
            let context = format!("{port}: {way}: {client:?} {server:?}");
            assert!(client.status.success() && server.status.success(), "{context}");
            assert!(client.output == "4194304 bytes\n" && server.output == client.output, "{context}");
        }
    }
}

#[test]
fn child_with_own_preload_keeps_the_device() {
    let name = "child_with_own_preload_keeps_the_device";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("execs", &[]);
    let site = Site::new("p-execs");
    let ours = folder().canonicalize().unwrap().join("libibverbs.so.1");
    let ours = ours.display();
    let run = |list: &str| site.local("udp", &format!("{} {list}", program.display())).finish();
    let started = run("libm.so.6");
    assert!(started.status.success(), "{started:?}");
    assert_eq!(started.output.lines().count(), 12, "{started:?}");
    for line in started.output.lines() {
        assert!(line.ends_with(&format!(" libm.so.6:{ours} last")), "{line}");
    }
    // The library is added once, and not to an explicitly empty preload.
    let twice = run(&format!("{ours}:libm.so.6"));
    let none = run("-");
    for (finished, wanted) in [(twice, format!(" {ours}:libm.so.6 last")), (none, " none last".into())] {
        assert!(finished.status.success() && finished.output.lines().count() == 12, "{finished:?}");
        assert!(finished.output.lines().all(|line| line.ends_with(&wanted)), "{finished:?}");
    }
}

/// A librdmacm that accesses the device file directly, without this library's interposed calls, is refused, and does
/// not take silence for answers.
#[test]
fn rdma_cm_file_serves_only_the_library() {
    let name = "rdma_cm_file_serves_only_the_library";
    if skip(name, &["env", "sh"]) {
        return;
    }
    let site = Site::new("p-file");
    let script = "env -u LD_PRELOAD sh -c 'echo command > /dev/infiniband/rdma_cm'";
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.args(["run", "--quiet", "--dev", "left", "--port", "udp", "--", "sh", "-c", script]);
    let written = Running::start(&site.local, command).finish();
    assert!(!written.status.success() && written.output.contains("I/O error"), "{written:?}");
}
