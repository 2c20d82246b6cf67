//! The device of a command: its options, how it is opened, and faults while it runs.

mod bare;
pub(crate) mod congestion;
mod gids;
pub(crate) mod health;
pub(crate) mod interface;
mod open;
mod options;
mod queue_pairs;
mod wait;

pub(crate) use bare::BarePort;
pub(crate) use gids::{first_gid, no_gid};
pub(crate) use open::Opened;
pub(crate) use options::{DeviceOptions, ModeName, PortKind, THREAD, parse_selective};
pub(crate) use queue_pairs::{QueuePairs, Shape};
pub(crate) use wait::{IdleYield, linger};
