//! A network of hosts, links with rates, and switches with queues, to study congestion.
//!
//! [`Switch`] is a switch without I/O or a clock: ECN marking, priorities, a shared buffer, priority flow control. Read
//! it first, then `egress` and `buffer`. [`Fabric`] joins switches and stations by links, and runs all of them from one
//! event queue. Hosts are those of [`crate`]. A station without a host is an external port, for a test or for a
//! forwarder of real frames.

mod buffer;
mod cable;
mod classify;
mod config;
mod deadlock;
mod depth;
mod egress;
mod error;
mod flow;
mod flow_stats;
mod frame_faults;
mod hosts;
mod link;
mod outcome;
mod pause_state;
mod pfc;
mod routes;
mod routing;
mod run;
mod shape;
mod slots;
mod station;
mod stats;
mod switch;
mod tap;
mod thresholds;
mod topology;

pub use cable::LinkStats;
pub use config::{EcnConfig, PortConfig, PriorityMap, Schedule, SwitchConfig, Threshold};
pub use deadlock::Deadlock;
pub use depth::Depth;
pub use error::{ConfigError, PRIORITIES};
pub use flow::{FlowName, FlowPart};
pub use flow_stats::FlowStats;
pub use frame_faults::{Arrival, FrameFaults};
pub use hosts::{Hosts, Machine};
pub use link::{ETHERNET_OVERHEAD, Line, LinkConfig, LinkRate, SHORTEST_FRAME};
pub use outcome::{Departure, EgressOutcome, IngressOutcome};
pub use pfc::{PfcConfig, SonicHeadroom, WatchdogConfig, worst_case};
pub use routing::Hop;
pub use run::{Fabric, Step};
pub use shape::{Shape, ShapeLink, ShapeSwitch};
pub use station::{StationPort, StationStats};
pub use stats::{DropReason, Drops, IngressStats, QueueStats};
pub use switch::Switch;
pub use tap::TappedFrame;
pub use thresholds::SharedSwitch;
pub use topology::{End, FabricConfig, MacPause, Routing, StationConfig};
