//! Ports and devices on real interfaces, in network namespaces that each test makes and removes. Without root these
//! tests are skipped.
//!
//! Modules that open AF_XDP need the feature `xdp`, and with it clang.
#![cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "helpers of modules that are left out"))]

#[cfg(feature = "xdp")]
#[path = "../support/end.rs"]
mod end;
#[path = "../support/in_time.rs"]
mod in_time;
#[path = "../support/isolation.rs"]
mod isolation;
#[path = "../support/tags.rs"]
mod tags;
#[path = "../support/wire.rs"]
mod wire;

#[cfg(feature = "xdp")]
mod bursts;
#[cfg(feature = "xdp")]
mod connections;
#[cfg(feature = "xdp")]
mod descriptors;
#[cfg(feature = "xdp")]
mod follow;
mod forward;
mod group;
#[cfg(feature = "xdp")]
mod lost_link;
#[cfg(feature = "xdp")]
mod marks;
#[cfg(feature = "xdp")]
mod multicast;
mod netdev;
mod opened;
mod packet;
#[cfg(feature = "xdp")]
mod restarted;
mod rules;
mod udp;
#[cfg(feature = "xdp")]
mod vlans;
#[cfg(feature = "xdp")]
mod xdp;

use in_time::CommandInTime;

/// Runs `ip` or `tc` in a namespace.
fn run_in(ns: &roxie::netdev::NetNs, program: &str, arguments: &str) {
    let mut command = std::process::Command::new(program);
    command.args(["-n", ns.name().unwrap()]).args(arguments.split(' '));
    assert!(command.status_in_time().unwrap().success(), "{program} {arguments}");
}
