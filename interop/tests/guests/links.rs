//! VLAN interfaces and bonds, which few hosts' kernels lack and containers' often do: the tests of
//! `tests/network/vlans.rs` that need them, in a guest of the newest kernel.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::path::PathBuf;
use std::time::Duration;

use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::local::program::built;
use interop::network::Namespace;

/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the program of the tests of networks. Builds it unless `.ci/test` has, and says where.
fn program() -> PathBuf {
    if let Some(built) = std::env::var_os("ROXIE_NETWORK_TESTS") {
        return built.into();
    }
    built(&["test", "-p", "roxie", "--features", "xdp", "--test", "network", "--no-run"], "network")
}

#[test]
fn vlan_interfaces_and_bonds_serve_in_a_guest() {
    let _alone = crate::alone();
    let image = match Image::build(Kernel::Newest, false) {
        Ok(image) => image,
        Err(why) => return println!("SKIP vlan_interfaces_and_bonds_serve_in_a_guest: {why}"),
    };
    let program = program();
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-guest-links.log");
    let guest =
        Guest::start_with(&image, &namespace, 2, &log, Files::Host, Adapter::Plain).expect("the guest");
    let mut peer = guest.peer(&namespace).expect("a session");
    let mut run = |name: &str, line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let job = peer.spawn(name, &words).expect("a program");
        peer.wait(job, PATIENCE).expect("the program ends")
    };
    for module in ["8021q", "bonding", "veth"] {
        assert_eq!(run("modprobe", module).code, Some(0), "{module}");
    }
    let ended = run("chroot", &format!("/host {} vlans:: --nocapture --test-threads 1", program.display()));
    println!("{}", ended.output);
    assert_eq!(ended.code, Some(0), "the tests in the guest");
    assert!(!ended.output.contains("SKIP"), "nothing is skipped there");
}
