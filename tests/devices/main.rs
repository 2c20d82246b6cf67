//! Devices with threads, in real time and without a network: over memory, loopback and sockets of the own host.

#[path = "../support/in_time.rs"]
mod in_time;
#[cfg(feature = "xdp")]
#[path = "../support/wire.rs"]
#[allow(dead_code, reason = "a part is for ports")]
mod wire;

mod engine;
mod examples;
mod guard;
mod memory;
mod queues;
mod smb_direct;
mod two_processes;
mod workers;
