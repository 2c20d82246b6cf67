//! What runs in virtual time, or without any: one NIC against a scripted peer, connection managers, switches, whole
//! networks, bytes on the wire. Nothing here waits for a clock, a thread or the kernel.

#[path = "../support/tags.rs"]
mod tags;

mod cm;
mod congestion;
mod errors;
mod fabric;
mod scenario;
mod transport;
mod vectors;
