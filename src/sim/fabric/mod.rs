//! Hosts on links with rates, joined by switches with queues: what congestion is made of.
//!
//! [`Switch`] is a switch's inside without I/O or a clock: marking, priorities, a shared buffer, priority flow control. Read it first,
//! then `egress` and `buffer`. [`Fabric`] joins switches and stations by links, and turns all of them by an event queue: hosts are those
//! of [`crate::sim`], and a station without one is the outside, which a test or a forwarder of real frames plays.

mod buffer;
mod cable;
mod classify;
mod config;
mod deadlock;
mod depth;
mod egress;
mod error;
mod fate;
mod flow;
mod hosts;
mod link;
mod pfc;
mod routes;
mod routing;
mod run;
mod shape;
mod silence;
mod slots;
mod station;
mod stats;
mod switch;
mod tap;
mod thresholds;
mod toll;
mod topology;
mod weather;

pub use cable::LinkStats;
pub use config::{EcnConfig, PortConfig, PriorityMap, Schedule, SwitchConfig, Threshold};
pub use deadlock::Deadlock;
pub use depth::Depth;
pub use error::{ConfigError, PRIORITIES};
pub use fate::{Departure, Fate, Story};
pub use flow::{FlowName, FlowPart};
pub use hosts::Hosts;
pub use link::{ETHERNET_OVERHEAD, Line, LinkConfig, LinkRate, SHORTEST_FRAME};
pub use pfc::{PfcConfig, SonicHeadroom, WatchdogConfig, worst_case};
pub use routing::Hop;
pub use run::{Fabric, Step};
pub use shape::{Shape, ShapeLink, ShapeSwitch};
pub use station::{StationPort, StationStats};
pub use stats::{DropReason, Drops, IngressStats, QueueStats};
pub use switch::Switch;
pub use tap::TapSight;
pub use thresholds::SharedSwitch;
pub use toll::Toll;
pub use topology::{End, FabricConfig, HeedsPauses, Routing, StationConfig};
pub use weather::{Arrival, Weather};
