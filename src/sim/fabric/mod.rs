//! Hosts on links with rates, joined by switches with queues: what congestion is made of.
//!
//! [`Switch`] is a switch's inside without I/O or a clock: marking, priorities, a shared buffer, priority flow control. Read it first,
//! then `egress` and `buffer`. [`Fabric`] joins switches and stations by links, and turns all of them by an event queue: hosts are those
//! of [`crate::sim`], and a station without one is the outside, which a test or a forwarder of real frames plays.

mod buffer;
mod classify;
mod config;
mod egress;
mod error;
mod link;
mod pfc;
mod run;
mod silence;
mod station;
mod stats;
mod switch;
mod topology;

pub use config::{EcnConfig, PortConfig, PriorityMap, Schedule, SwitchConfig, Threshold};
pub use error::{ConfigError, PRIORITIES};
pub use link::{ETHERNET_OVERHEAD, Line, LinkConfig, LinkRate, SHORTEST_FRAME};
pub use pfc::{PfcConfig, SonicHeadroom, worst_case};
pub use run::{Fabric, Step};
pub use station::{StationPort, StationStats};
pub use stats::{Depth, DropReason, Drops, IngressStats, QueueStats};
pub use switch::{Departure, Switch};
pub use topology::{End, FabricConfig, HeedsPauses, StationConfig};
