//! Runs Roxie against real RoCE peers.

fn main() {}
