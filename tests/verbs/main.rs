//! Unmodified programs of the verbs API on Roxie, in two network namespaces that a veth pair joins, over both kinds of port.
//!
//! The library is built and linked beside the `roxie` under test, so that `roxie run` finds it as users' does. Network tests need
//! root, and each names the program that it needs: without either it says so and is skipped. Two programs run at a time.

mod abi;
mod accounts;
mod cancelled;
mod classes;
mod commands;
mod ends;
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
    FAR, FI_PORT, Finished, NEAR, NEAR_V6, PORTS, QPERF_PORT, Running, Site, UCX_PORT, compiled, descendants,
    folder, installed, launcher, sent_bytes, skip,
};
