//! Unmodified programs of the verbs API on Roxie, in two network namespaces joined by a veth pair, over the XDP and UDP
//! ports.
//!
//! The library is built and linked beside the `roxie` under test, so that `roxie run` finds it as users' does. Network
//! tests need root and the programs that they name; without, they are skipped with a message.

mod abi;
mod accounts;
mod cancelled;
mod classes;
mod commands;
mod conform;
mod discovery;
mod ends;
mod fuzzed;
mod gloo;
mod gone;
mod huge_pages;
mod killed;
mod late;
mod launcher;
mod mesh;
mod netlink;
mod newer;
mod nic;
mod packaged;
mod perftest;
mod pingpong;
mod preload;
mod profiles;
mod pyverbs;
mod query;
mod raw;
mod rdmacm;
mod reused;
mod routed;
mod shared;
mod site;
mod surroundings;
mod sysfs;
mod upper;
mod waits;

use site::{
    FAR, FI_PORT, Finished, NEAR, NEAR_V6, PORTS, QPERF_PORT, Running, Site, UCX_PORT, compiled, copied,
    descendants, folder, has, installed, launcher, ports, sent_bytes, skip,
};
