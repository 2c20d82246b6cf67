//! Queue pairs on the device of a command, and faults while it runs.

pub(crate) mod health;
mod queue_pairs;

pub(crate) use queue_pairs::{QueuePairs, Shape};
