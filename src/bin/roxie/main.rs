//! `roxie`: the command line.

fn main() {}
