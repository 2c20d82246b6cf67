//! Memory that is unmapped or protected while it is registered, and the resulting faults.

use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;

use super::{Site, compiled, ports, skip};

const MODES: [&str; 7] = ["ops", "anew", "before", "after", "thread", "child", "stack"];

#[test]
fn unmapped_memory_fails_only_its_requests() {
    let name = "unmapped_memory_fails_only_its_requests";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("gone", &["-libverbs", "-lpthread"]);
    let site = Site::new("gone");
    for port in ports() {
        for mode in MODES {
            let ended = site.local(port, &format!("{} {mode}", program.display())).finish();
            let well = ended.status.success() && ended.output.contains("all so");
            assert!(well, "{port} {mode}: {ended:?}");
        }
    }
    for (fault, signal) in [("segv", Signal::SIGSEGV), ("bus", Signal::SIGBUS), ("raise", Signal::SIGSEGV)] {
        for mode in ["ops", "before"] {
            let ended = site.local("udp", &format!("{} {mode} {fault}", program.display())).finish();
            // The launcher ends with its program's status.
            let by = ended.status.signal().or_else(|| ended.status.code().map(|code| code - 128));
            let so = ended.output.contains("all so") && by == Some(signal as i32);
            assert!(so, "{mode} {fault}: {ended:?}");
        }
    }
}

#[test]
fn registration_obeys_page_protection() {
    if skip("registration_obeys_page_protection", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("protections", &["-libverbs"]);
    let program = program.display().to_string();
    let ended = Site::new("protected").local("udp", &program).finish();
    assert!(ended.status.success(), "{ended:?}");
    let (site, _nics) = Site::with_nics("protected-nic", &["--port", "xdp"]);
    let ended = site.local("nic", &program).finish();
    assert!(ended.status.success(), "roxie nic: {ended:?}");
}
